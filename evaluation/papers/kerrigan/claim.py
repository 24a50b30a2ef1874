"""Whether the claim of paper 003 held for a model, computed from ratios and from nothing else.

"Possible at all" is four things, each a ratio of perplexities on the same test lines: private
fine-tuning under noise improves on the public model; it beats private training from nothing;
private training from nothing is, under noise, no better than counting words in the public text;
and without noise it is better, so that it is noise that makes it useless.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evaluation.papers.intervals import Interval
from evaluation.papers.verdict import Verdict, Word

Outcome = tuple[str, Word]

POSSIBLE: Outcome = (
    "public text first makes private training under the largest noise possible",
    Word.HELD,
)
HELPFUL: Outcome = "public text first helps, but private training alone learns too", Word.PARTLY
UNDERFIT: Outcome = (
    "public text first helps, but private training alone fails without noise too",
    Word.UNDECIDED,
)
USELESS: Outcome = "public text first, or private text after it, does not help", Word.NOT_HELD
UNCLEAR: Outcome = "the intervals do not tell", Word.UNDECIDED


@dataclass(frozen=True)
class Evidence:
    """What was found of the claim for one model: ratios of test perplexities.

    Args:
        learns: public, then private under the largest noise ÷ public only.
        beats: public, then private ÷ private only, both under the largest noise.
        useless: private only under the largest noise ÷ word counts of the public text.
        able: private only without noise ÷ word counts of the public text.
    """

    learns: Interval
    beats: Interval
    useless: Interval
    able: Interval

    @property
    def outcome(self) -> Outcome:
        """What that comes to, and whether the claim held.

        >>> good, bad = Interval(0.8, 0.7, 0.9, 3), Interval(1.2, 1.1, 1.3, 3)
        >>> [str(Evidence(learns, good, bad, good).outcome[1]) for learns in (good, bad)]
        ['held', 'not held']
        """
        helps = self.learns.below(1), self.beats.below(1)
        if False in helps:
            return USELESS
        if None in helps:
            return UNCLEAR
        if self.useless.below(1):
            return HELPFUL
        if not self.able.below(1):
            return UNDERFIT
        return POSSIBLE if self.useless.above(1) else UNCLEAR

    def verdict(self, subject: str) -> Verdict:
        """Return the outcome with the four ratios in words."""
        because, word = self.outcome
        return Verdict(subject, because, word, self._sentences())

    def _sentences(self) -> Sequence[str]:
        return (
            f"under the largest noise, public then private ÷ public only: {self.learns}: "
            + _said(self.learns, "the noisy private steps improve on the public model"),
            f"public then private ÷ private only, both under the largest noise: {self.beats}: "
            + _said(self.beats, "beginning from public text is better"),
            f"private only, the largest noise ÷ word counts of the public text: {self.useless}: "
            + _said(self.useless, "private training alone learns more than word counts"),
            f"private only without noise ÷ word counts of the public text: {self.able}: "
            + _said(self.able, "private training alone learns more than word counts"),
        )


def _said(found: Interval, what: str) -> str:
    below = found.below(1)
    if below:
        return what
    return f"it is not shown that {what}" if below is None else f"it is not so that {what}"
