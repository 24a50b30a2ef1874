"""Whether the claim of paper 000 held, computed from intervals and from nothing else.

It has three parts: at the same σ adaptive noise costs less perplexity than DP-SGD; the canary's
exposure is below that without noise; and the ε that is stated for it is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from evaluation.exposure import UNKNOWN
from evaluation.papers.adp.cases import ADAPTIVE
from evaluation.papers.adp.found import Found
from evaluation.papers.adp.noise import DP_SGD, NO_DP, PUBLISHED
from evaluation.papers.adp.published import COPIES, SIGMAS
from evaluation.papers.intervals import Interval
from evaluation.papers.verdict import Verdict, Word, together, word_of


def verdicts(found: Found) -> Iterator[Verdict]:
    """Yield a verdict on each part of the claim, for each form of adaptive noise."""
    for form in ADAPTIVE:
        ratios = {sigma: found.relative(form, sigma) for sigma in SIGMAS}
        yield utility(form, ratios, [_price(form, sigma, found) for sigma in SIGMAS])
    for form in ADAPTIVE:
        yield protection(form, found)
    yield guarantee({sigma: found.attacks(PUBLISHED, sigma) for sigma in SIGMAS})


def utility(form: str, ratios: Mapping[float, Interval], prices: Sequence[str] = ()) -> Verdict:
    """Judge test perplexities over those of DP-SGD, by σ.

    >>> str(utility("ours", {1.0: Interval(0.8, 0.7, 0.9, 3)}).word)
    'held'
    """
    word = together(word_of(found.below(1)) for found in ratios.values())
    details = [f"σ = {sigma:g}: perplexity ÷ DP-SGD {found}" for sigma, found in ratios.items()]
    because = "it costs less perplexity than DP-SGD at the same σ"
    return Verdict(form, because, word, [*details, *prices])


def protection(form: str, found: Found) -> Verdict:
    """Judge exposures against those without noise, where these show that the secret is known."""
    judged, details = [], []
    for copies in COPIES:
        bare = found.exposure(NO_DP, 0.0, copies)
        if not bare.above(UNKNOWN):
            details.append(
                f"planted {copies} times: not judged, for it is not shown that training without "
                f"noise learns the secret ({bare.text(1)} bits)"
            )
            continue
        for sigma in SIGMAS:
            judged.append(word_of(found.protection(form, sigma, copies).below(0)))
            details.append(_protected(form, sigma, copies, found))
    word = together(judged) if judged else Word.UNDECIDED
    return Verdict(form, "the canary is exposed less than without noise", word, details)


def guarantee(attacks: Mapping[float, Sequence[Mapping[str, float]]]) -> Verdict:
    """Judge the nominal ε of the published form by attacks that prove a larger one, by σ."""
    words = [
        Word.NOT_HELD if any(map(_refuted, found)) else Word.UNDECIDED for found in attacks.values()
    ]
    details = [
        f"σ = {sigma:g}, {found['what']}: nominal ε {found['claimed']:.2f}, shown at least "
        f"{found['lower_bound']:.2f} (δ = {found['delta']:g}); guaranteed ε: none"
        for sigma, several in attacks.items()
        for found in several
    ]
    because = "its nominal ε bounds what can be learnt from the noisy gradients"
    return Verdict(PUBLISHED, because, together(words), details)


def _refuted(finding: Mapping[str, float]) -> bool:
    return finding["lower_bound"] > finding["claimed"]


def _protected(form: str, sigma: float, copies: int, found: Found) -> str:
    ours = found.exposure(form, sigma, copies)
    less, more = (found.protection(form, sigma, copies, than) for than in (NO_DP, DP_SGD))
    never = found.exposure(form, sigma, 0)
    return (
        f"planted {copies} times, σ = {sigma:g}: {ours.text(1)} bits, never: {never.text(1)}; less "
        f"No-DP {less.text(1)}, less DP-SGD {more.text(1)}"
    )


def _price(form: str, sigma: float, found: Found) -> str:
    """Return what less noise was bought with."""
    least, theirs = (found.spent(f, sigma, "least_protected") for f in (form, DP_SGD))
    return (
        f"bought at σ = {sigma:g} with {found.noise(form, sigma):.3g} of its noise: guaranteed to "
        f"every record is ε {least}, by DP-SGD {theirs}"
    )
