"""One answer to each question, with its reasons, by rules that the page states. Measures nothing.

Utility and leakage are never averaged, into one another or over measures: each verdict counts how
many comparisons went well. The verdict at the end of a run and the report use the same rules.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal

from scipy.stats import hypergeom, norm

from evaluation.fidelity.measures import SECOND, TRAIN
from evaluation.findings import Measured, Score
from evaluation.leakage.one_run import BOUND
from evaluation.leakage.roc import AUROC, MARGIN, PLACE, RATES
from evaluation.release import (
    BASELINE,
    FEW_ROWS,
    PRIVATE_CLASSIFIER,
    REAL,
    TWIN,
    TWIN_SMALL,
)
from evaluation.report.tables import (
    COMMONEST,
    GUESSING,
    HELD_OUT,
    NEARER,
    RULES,
    TRAIN_SAMPLE,
    Group,
    find_claim,
    format_number,
    format_score,
    group_scores,
    place_in_words,
)
from twinset.privacy.statement.guarantee import Guarantee, says_little
from twinset.privacy.statement.theorems import FLAGGED_UNIT

TOO_FEW = "Too few rows to say"
REFUTED = "The claim is refuted"
FALSE_ALARMS = 0.025  # of one attack, and of all of a verdict together: those of a 95 % interval
Tone = Literal["good", "mixed", "bad", "unknown"]
_BLIND = PLACE["sees"]  # what sees neither model nor twin can only tell the tables apart
# One in a thousand false alarms needs more rows than most tables have, so it does not count.
_COUNTED = ("AUROC", "TPR at 1 % FPR", NEARER)
# Of fidelity, the most important first: all of a text, what is missing, words, labels, lengths.
DECIDING = (
    "MAUVE",
    "recall of embeddings",
    "Jensen–Shannon divergence of words",
    "total variation distance of labels",
    "mean length",
)
# (rows that it was made from, their reference), the fairest pair first.
_PAIRS = ((TRAIN_SAMPLE, HELD_OUT), (TRAIN, HELD_OUT), ("train only", "held-out only"))
_WHAT_GOES = "share/ and model/ may go, internal/ stays"


@dataclass(frozen=True)
class Verdict:
    """What the page says to one question.

    Args:
        question: as a reader would ask it.
        answer: one or a few words.
        line: one sentence that says what the answer rests on.
        tone: how the answer is shown, in addition to its words.
        reasons: what was compared, worst first.
        rule: how the answer follows.
    """

    question: str
    answer: str
    line: str
    tone: Tone
    reasons: tuple[str, ...] = ()
    rule: str = ""


@dataclass(frozen=True)
class Comparison:
    """Two numbers that were compared.

    Args:
        is_well: for the twin.
        reason: in words.
        errors: by how many standard errors a finding is off from chance. Infinite for two
            intervals that lie apart.
    """

    is_well: bool
    reason: str
    errors: float = math.inf


def judge_use(measured: Sequence[Measured]) -> Verdict:
    """Judge whether classifiers learn more from the twin than can be had without it.

    The twin must be above every mark that was measured: text of the base model that saw no
    private data, and always guessing the commonest label. Intervals must lie apart.

    Args:
        measured: scores of utility. Accuracies of the twin and of at least one mark count.

    Returns:
        "Yes" where every label and classifier is above all marks, "In part" where some are.
    """
    accuracies = [m for m in measured if m.score.name == "accuracy" and "value" not in m.place]
    guesses = {m.place.get("label"): m.score for m in accuracies if m.place["rows"] == COMMONEST}
    compared, shares = [], []
    for group in group_scores(accuracies):
        scores = _finite_scores(group)
        guess = guesses.get(group.place.get("label"))
        # A twin of more rows is compared by as many as the base wrote: more rows teach more,
        # whoever wrote them, and that says nothing about the private records.
        twin = scores.get(TWIN_SMALL, scores.get(TWIN))
        marks = {"no private data": scores[BASELINE]} if BASELINE in scores else {}
        marks |= {"guessing the commonest label": guess} if guess else {}
        if twin is None or not marks:
            continue
        said = []
        for name, mark in marks.items():
            above, below = twin.low > mark.high, twin.high < mark.low
            how = "above" if above else "below" if below else "not apart from"
            said.append(f"{how} {name} {format_score(mark)}")
        reason = f"{place_in_words(group.place) or group.name}: {format_score(twin)}, "
        reason += ", ".join(said)
        if TWIN_SMALL in scores:
            whole = format_number(scores[TWIN].value)
            reason += f", both of as many rows; all of the twin's give {whole}"
        if REAL in scores and scores[REAL].value > 0:
            share = scores[TWIN].value / scores[REAL].value
            shares.append(share)
            reason += f"; {share:.0%} of what real rows give ({format_number(scores[REAL].value)})"
        if PRIVATE_CLASSIFIER in scores:
            private = format_number(scores[PRIVATE_CLASSIFIER].value)
            reason += f"; a DP classifier of real rows gives {private}"
        compared.append(Comparison(all(twin.low > mark.high for mark in marks.values()), reason))
    line = "the twin is surely above what needs no private text in {} of {} comparisons of accuracy"
    if shares:
        line += f", and gives {min(shares):.0%} or more of what real rows give"
    return _count_comparisons(
        "Is it useful?",
        compared,
        line,
        "no accuracy of a classifier trained on the twin beside one that needs no private text",
        RULES["useful"],
    )


def judge_fidelity(measured: Sequence[Measured]) -> Verdict:
    """Judge whether the twin is as near to real rows as a second real sample is.

    `DECIDING` names the few measures that decide, the most important first. If none of them was
    measured, all that were measured decide.
    """
    deciding = find_deciding(measured)
    compared = [c for group in deciding for c in _compare_with_second(group)]
    line = "as good as that sample in {} of the {} measures that decide"
    missing = "no measure of the twin beside the same of a second real sample"
    found = _count_comparisons("Is it faithful?", compared, line, missing, RULES["faithful"])
    if not compared:
        return found
    others = [
        c for g in group_scores(measured) if g not in deciding for c in _compare_with_second(g)
    ]
    reasons = tuple(c.reason for c in [*compared, *sorted(others, key=lambda c: c.is_well)])
    first = deciding[0]
    twin, second = first.scores[TWIN], first.scores[SECOND]
    both = f"{format_number(twin.value)} (a second real sample: {format_number(second.value)})"
    # Less than half, or more than double, of a second real sample in the first measure is a "No".
    little, much = twin.high < second.low / 2, twin.low > second.high * 2
    is_far = {"maximise": little, "minimise": much, "match": little or much}[twin.goal]
    if found.tone == "mixed" and is_far:
        found = replace(found, answer="No", tone="bad")
    return replace(found, line=f"{first.title} {both}; {found.line}", reasons=reasons)


def find_deciding(measured: Sequence[Measured]) -> list[Group]:
    """Return the measures that decide whether a twin is faithful, the most important first."""
    known = [g for g in group_scores(measured) if {TWIN, SECOND} <= _finite_scores(g).keys()]
    deciding = [g for name in DECIDING for g in known if g.name == name]
    return deciding or known


def judge_leakage(measured: Sequence[Measured]) -> Verdict:
    """Judge whether an attack found something.

    Other runs with planted canaries have a policy in their place. They can refute a claim, but
    they cannot clear this run and do not count as an attack on it.
    """
    bounds = []
    for m in measured:
        if m.score.name == BOUND and not math.isnan(m.score.value):
            claim = find_claim(measured, m)
            stated = "nothing is claimed" if claim is None else f"claimed is {format_number(claim)}"
            kept = {k: v for k, v in m.place.items() if k not in ("attack", "sees")}
            where = f" with canaries, {place_in_words(kept)}" if kept else ""
            holds = claim is None or m.score.value <= claim
            reason = f"{BOUND}{where}: {format_number(m.score.value)}; {stated}"
            bounds.append(Comparison(holds, reason))
    own = [m for m in measured if "policy" not in m.place]
    tried = sorted([*_compare_attacks(own), *_compare_overlaps(own)], key=lambda c: c.is_well)
    blind = tuple(
        "Members and non-members can be told apart without model and twin "
        f"(AUROC {format_score(m.score)}): attacks on membership mean little here"
        for m in own
        if m.score.name == AUROC
        and m.place.get("sees") == _BLIND
        and m.score.low > GUESSING[AUROC] + MARGIN
    )
    answer, line, tone = _answer_on_leakage(all(c.is_well for c in bounds), tried)
    rows = [m.score.n for m in own if m.score.name == AUROC]
    if tone == "good" and rows and max(rows) < 2 * FEW_ROWS:  # too few to find anything
        answer, tone = TOO_FEW, "unknown"
    reasons = tuple(c.reason for c in sorted([*bounds, *tried], key=lambda c: c.is_well))
    return Verdict("Does it leak?", answer, line, tone, (*blind, *reasons), RULES["leaking"])


def _answer_on_leakage(bounds_hold: bool, tried: Sequence[Comparison]) -> tuple[str, str, Tone]:
    if not bounds_hold:
        return REFUTED, "an attack shows more than is claimed: do not share", "bad"
    if not tried:
        return "Not measured", "no attack on this run was measured", "unknown"
    what, found = f"{len(tried)} attacks and comparisons found", [c for c in tried if not c.is_well]
    by_chance = NormalDist().inv_cdf(1 - FALSE_ALARMS / len(tried))  # Bonferroni's inequality
    if any(c.errors > by_chance for c in found):
        return "Signs of a leak", f"{len(found)} of {what} something", "bad"
    if found:
        line = f"{len(found)} of {what} something, no more than so many find by chance"
        return "No sure sign", line, "mixed"
    return "No leak found", f"none of {what} anything", "good"


def judge_hand_over(claim: Guarantee | None, use: Verdict, leaks: Verdict) -> Verdict:
    """Say whether the twin may be handed over: the one question behind the three others.

    Fidelity has no say in it.

    Args:
        claim: what is guaranteed. None where nothing is known.
        use: of `judge_use`.
        leaks: of `judge_leakage`.
    """
    answer, line, tone = _answer_on_hand_over(claim, leaks)
    if tone != "bad" and use.tone == "bad":
        line += "; but no use of it was seen"
    return Verdict("May I hand this over?", answer, line, tone)


def _answer_on_hand_over(claim: Guarantee | None, leaks: Verdict) -> tuple[str, str, Tone]:
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
    is_attacked, is_weak = leaks.tone != "unknown", says_little(claim)
    if is_weak and is_attacked:
        line = "the bound alone says little at this ε; no attack found more than chance does"
        return "With care", line, "mixed"
    if is_weak:
        line = "the bound alone says little at this ε, and no attack was tried: run an audit first"
        return "Not yet", line, "mixed"
    if is_attacked:
        line = f"the guarantee holds and no attack found more than chance does: {_WHAT_GOES}"
    else:
        line = f"no attack was tried, but the guarantee holds without: {_WHAT_GOES}"
    return "Yes", line, "good"


def _count_comparisons(
    question: str, comparisons: Sequence[Comparison], line: str, missing: str, rule: str
) -> Verdict:
    """Return Yes, In part or No, by how many comparisons went well."""
    if not comparisons:
        return Verdict(question, "Not measured", f"there is {missing}", "unknown", (), rule)
    well = sum(c.is_well for c in comparisons)
    answers: tuple[tuple[str, Tone], ...] = (("No", "bad"), ("In part", "mixed"), ("Yes", "good"))
    answer, tone = answers[(well > 0) + (well == len(comparisons))]
    reasons = tuple(c.reason for c in sorted(comparisons, key=lambda c: c.is_well))
    return Verdict(question, answer, line.format(well, len(comparisons)), tone, reasons, rule)


def _compare_with_second(group: Group) -> Iterator[Comparison]:
    """Compare the twin with a second real sample: nothing can be expected to come closer."""
    scores = _finite_scores(group)
    if TWIN not in scores or SECOND not in scores:
        return
    twin, second = scores[TWIN], scores[SECOND]
    # Intervals that meet count as equal: few rows make wide ones, which the rule says.
    enough, few = twin.high >= second.low, twin.low <= second.high
    well = {"maximise": enough, "minimise": few, "match": enough and few}[twin.goal]
    both = f"{format_score(twin)}, a second real sample {format_score(second)}"
    yield Comparison(well, f"{group.title}: {both}{'' if well else ': apart'}")


def _compare_attacks(measured: Sequence[Measured]) -> Iterator[Comparison]:
    """Compare each attack with guessing."""
    tried = {tuple(m.place.items()): m.score.n for m in measured if m.score.name == AUROC}
    for m in measured:
        if m.score.name not in _COUNTED or m.place.get("sees") == _BLIND or not _is_finite(m.score):
            continue
        guessing = GUESSING[m.score.name]
        errors = _count_errors(m.score, tried.get(tuple(m.place.items()), 0) - m.score.n)
        leaks = errors > NormalDist().inv_cdf(1 - FALSE_ALARMS)
        how = f"{'above' if leaks else 'not above'} guessing ({guessing:g})"
        if m.score.low > guessing and not leaks:
            how = "no more than chance gives beside so few others"
        where = ", ".join(filter(None, (m.score.name, place_in_words(m.place))))
        yield Comparison(not leaks, f"{where}: {format_score(m.score)}, {how}", errors)


def _count_errors(score: Score, others: int) -> float:
    """Return by how many standard errors a score is above guessing.

    With few others, the threshold of a low false-positive rate is a matter of chance itself, which
    no interval shows. The members above it are then counted as if all were ranked at random.

    Args:
        score: of an attack.
        others: rows that it was tried on besides members. 0 or fewer: not known, or not of a rate.
    """
    above = score.value - GUESSING[score.name]
    if score.name in RATES and others > 0:
        found, allowed = round(score.value * score.n), int(RATES[score.name] * others + 1e-9)
        return float(norm.isf(hypergeom.cdf(allowed, score.n + others, others, found + allowed)))
    error = (score.value - score.low) / NormalDist().inv_cdf(1 - FALSE_ALARMS)
    return above / error if error > 0 else math.copysign(math.inf, above)


def _compare_overlaps(measured: Sequence[Measured]) -> Iterator[Comparison]:
    """Compare what the twin shares with training rows and with rows that it never saw."""
    for group in group_scores(measured):
        scores = {word: s for word, s in group.scores.items() if not math.isnan(s.value)}
        pair = next((p for p in _PAIRS if p[0] in scores and p[1] in scores), None)
        if pair is None or group.name in GUESSING:  # an attack, compared with guessing instead
            continue
        train, held_out = (scores[word] for word in pair)
        leaks = train.low > held_out.high if train.goal == "minimise" else train.high < held_out.low
        both = f"{format_score(train)} of training rows, {format_score(held_out)} of others"
        yield Comparison(not leaks, f"{group.title}: {both}{': apart' if leaks else ''}")


def _finite_scores(group: Group) -> dict[str, Score]:
    return {word: score for word, score in group.scores.items() if _is_finite(score)}


def _is_finite(score: Score) -> bool:
    return all(map(math.isfinite, (score.value, score.low, score.high)))
