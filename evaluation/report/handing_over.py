"""The one question behind the three: may the twin be handed over? By rules, from what is known."""

from __future__ import annotations

from evaluation.report.verdicts import REFUTED, Tone, Verdict
from twinset.privacy.statement.guarantee import Guarantee, says_little
from twinset.privacy.statement.theorems import FLAGGED_UNIT

QUESTION = "May I hand this over?"
_WHAT_GOES = "share/ and model/ may go, internal/ stays"
_USELESS = "; but no use of it was seen"


def may_hand_over(claim: Guarantee | None, is_useful: Verdict, leaks: Verdict) -> Verdict:
    """Answer from the guarantee and the verdicts on use and leakage; fidelity has no say in it.

    Args:
        claim: what is guaranteed; None where nothing is known.
        is_useful: of `verdicts.useful`.
        leaks: of `verdicts.leaking`.
    """
    answer, line, tone = _answer(claim, leaks)
    if tone != "bad" and is_useful.tone == "bad":
        line += _USELESS
    return Verdict(QUESTION, answer, line, tone)


def _answer(claim: Guarantee | None, leaks: Verdict) -> tuple[str, str, Tone]:
    if claim is None:
        return "No", "nothing is known of its privacy: share/privacy.json is missing", "bad"
    if claim.epsilon is None:
        return "No", "nothing is guaranteed: treat the twin and the model as private", "bad"
    if leaks.answer == REFUTED:
        return "No", leaks.line, "bad"
    if leaks.tone == "bad":
        return "Not yet", f"{leaks.line}: read what it was before anybody gets it", "bad"
    if claim.unit == FLAGGED_UNIT:
        line = "only if all that the detector did not flag may be public: that is not protected"
        return "Not as it is", line, "mixed"
    if leaks.tone == "unknown":
        return _unattacked(says_little(claim))
    if says_little(claim):
        line = "the bound alone says little at this ε; no attack found more than chance does"
        return "With care", line, "mixed"
    line = f"the guarantee holds and no attack found more than chance does: {_WHAT_GOES}"
    return "Yes", line, "good"


def _unattacked(is_weak: bool) -> tuple[str, str, Tone]:
    if is_weak:
        line = "the bound alone says little at this ε, and no attack was tried: run an audit first"
        return "Not yet", line, "mixed"
    line = f"no attack was tried, but the guarantee holds without: {_WHAT_GOES}"
    return "Yes", line, "good"
