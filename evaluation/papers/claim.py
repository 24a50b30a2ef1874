"""Whether the claim of paper 003 held, computed from what was found and from nothing else.

"Possible at all" is four things, each a ratio of perplexities on the same test lines: private
fine-tuning under noise improves on the public model; it beats private training from nothing;
private training from nothing is, under noise, no better than counting words in the public text;
and without noise it is better, so that it is noise that makes it useless.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evaluation.scores import mean

DRAWS = 2000
CONFIRMED, HELPED = "confirmed", "partly: it helps, but private training alone learns too"
REFUTED, UNDECIDED = "refuted", "undecided"
UNDERFIT = "undecided: it helps, but private training alone fails without noise too"

Groups = np.ndarray  # (G, 2): nats and tokens of the same groups of test lines for every model


@dataclass(frozen=True)
class Ratio:
    """One perplexity as a multiple of another, with its 95 % interval.

    Args:
        value: below 1 where the first is better.
        low: of the interval.
        high: of the interval.
        seeds: it was taken over; of one alone the interval is over test lines.
    """

    value: float
    low: float
    high: float
    seeds: int

    @property
    def below(self) -> bool:
        """Whether the whole interval is below 1."""
        return self.high < 1

    @property
    def above(self) -> bool:
        """Whether the whole interval is above 1."""
        return self.low > 1

    def __str__(self) -> str:
        """Return "0.812 [0.794, 0.829]"."""
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def ratio(ours: Mapping[int, Groups], theirs: Mapping[int, Groups]) -> Ratio | None:
    """Return perplexity over perplexity, seed by seed; None where no seed has both.

    Args:
        ours: groups by seed.
        theirs: groups by seed.
    """
    pairs = [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]
    if not pairs:
        return None
    differences = [_nats(a) - _nats(b) for a, b in pairs]
    if len(pairs) > 1:
        score = mean("", differences, "minimise", -math.inf, math.inf)
        low, high = score.low, score.high
    else:
        low, high = _bootstrap(*pairs[0])
    middle = float(np.mean(differences))
    return Ratio(_times(middle), _times(low), _times(high), len(pairs))


def _times(nats: float) -> float:
    return math.exp(min(nats, 700.0))  # e to a larger power is no float


def _nats(groups: Groups) -> float:
    return float(groups[:, 0].sum() / groups[:, 1].sum())


def _bootstrap(ours: Groups, theirs: Groups) -> tuple[float, float]:
    """Return the 95 % percentiles of the difference over draws of groups, the same for both."""
    drawn = np.random.default_rng(0).integers(len(ours), size=(DRAWS, len(ours)))
    a, b = (groups[drawn].sum(1) for groups in (ours, theirs))  # (draws, 2)
    low, high = np.quantile(a[:, 0] / a[:, 1] - b[:, 0] / b[:, 1], [0.025, 0.975])
    return float(low), float(high)


@dataclass(frozen=True)
class Verdict:
    """What was found of the claim for one model.

    Args:
        learns: public, then private under noise ÷ public only.
        beats: public, then private under noise ÷ private only under noise.
        useless: private only under noise ÷ word counts of the public text.
        able: private only without noise ÷ word counts of the public text.
    """

    learns: Ratio
    beats: Ratio
    useless: Ratio
    able: Ratio

    @property
    def word(self) -> str:
        """Whether the claim held.

        >>> good, bad = Ratio(0.8, 0.7, 0.9, 3), Ratio(1.2, 1.1, 1.3, 3)
        >>> Verdict(good, good, bad, good).word, Verdict(bad, good, bad, good).word
        ('confirmed', 'refuted')
        """
        if self.learns.above or self.beats.above:
            return REFUTED
        if not (self.learns.below and self.beats.below):
            return UNDECIDED
        if self.useless.below:
            return HELPED
        if not self.able.below:
            return UNDERFIT
        return CONFIRMED if self.useless.above else UNDECIDED

    def sentences(self) -> Sequence[str]:
        """Return the four ratios in words."""
        return (
            f"under noise, public then private ÷ public only: {self.learns}: "
            + _said(self.learns, "the noisy private steps improve on the public model"),
            f"public then private ÷ private only, both under noise: {self.beats}: "
            + _said(self.beats, "beginning from public text is better"),
            f"private only under noise ÷ word counts of the public text: {self.useless}: "
            + _said(self.useless, "private training alone learns more than word counts"),
            f"private only without noise ÷ word counts of the public text: {self.able}: "
            + _said(self.able, "private training alone learns more than word counts"),
        )


def verdict(of: Callable[[str], Mapping[int, Groups]]) -> Verdict | None:
    """Return the verdict on one model; None where rows are missing.

    Args:
        of: "public", "quiet" (private only without noise), "private" and "both" (under the
            largest noise), "counts" → groups by seed.
    """
    pairs = [("both", "public"), ("both", "private"), ("private", "counts"), ("quiet", "counts")]
    found = [ratio(of(ours), of(theirs)) for ours, theirs in pairs]
    complete = [one for one in found if one is not None]
    return Verdict(*complete) if len(complete) == len(found) else None


def _said(found: Ratio, what: str) -> str:
    if found.below:
        return what
    return f"it is not so that {what}" if found.above else f"it is not shown that {what}"
