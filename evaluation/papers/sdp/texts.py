"""The two text sets as tokens of one kind, in all the forms that models of paper 004 learn from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from evaluation.papers.sdp.attacks import Sides
from evaluation.papers.sdp.corpora import Flagged, Row, TextSet, canary, encoded, planted
from evaluation.papers.sdp.sizes import Size
from twinset.detectors import detector_named
from twinset.masking import mask
from twinset.pretraining.vocabulary import train_tokenizer

Tick = Callable[[int, int], object]


@dataclass(frozen=True)
class LstmTexts:
    """One text set for LSTMs.

    Args:
        rows: of the set.
        size: of the experiment.
        base: gives the tokens where the size has no vocabulary of its own.
    """

    rows: TextSet
    size: Size
    base: Any = None

    @cached_property
    def tokenizer(self) -> Any:
        """A BPE of the training rows as the policy function leaves them, without canaries."""
        if self.size.vocabulary is None:
            return self.base.tokenizer
        return train_tokenizer([f" {row.masked}" for row in self.rows.train], self.size.vocabulary)

    @cached_property
    def train(self) -> Flagged:
        """Rows and canaries, all flagged."""
        return self._encoded(self._planted(True))

    @cached_property
    def missed(self) -> Flagged:
        """The same, but for the canaries' secret."""
        return self._encoded(self._planted(False))

    @cached_property
    def test(self) -> Flagged:
        """Held-out rows."""
        return self._encoded(self.rows.heldout)

    @cached_property
    def sides(self) -> Sides:
        """Rows for membership inference."""
        train, heldout = self.rows.train, self.rows.heldout
        return Sides.of(train, heldout, self.size.members, self.tokenizer, self.size.context)

    def anonymised(self, seen: bool) -> Flagged:
        """Return rows and canaries as the policy function leaves them."""
        return self._encoded([Row(row.masked, ()) for row in self._planted(seen)])

    def _planted(self, seen: bool) -> list[Row]:
        return planted(self.rows.train, canary(self.size.digits), seen)

    def _encoded(self, rows: Sequence[Row]) -> Flagged:
        return encoded(rows, self.tokenizer, self.size.context)


@dataclass(frozen=True)
class TransformerTexts:
    """WikiText-2 for the transformer, with policy functions that are detectors.

    Args:
        rows: of the set.
        tokenizer: of the base model.
        context: most tokens of a record.
    """

    rows: TextSet
    tokenizer: Any
    context: int

    @cached_property
    def train(self) -> Flagged:
        """Training rows as they are."""
        return self._encoded(self.rows.train)

    @cached_property
    def test(self) -> Flagged:
        """Held-out rows."""
        return self._encoded(self.rows.heldout)

    def found(self, policy: str, tick: Tick) -> list[Row]:
        """Return training rows with what a detector flags.

        Raises:
            InputError: the detector's library is not installed.
        """
        texts = [row.text for row in self.rows.train]
        found = []
        for text, spans in zip(texts, detector_named(policy).spans(texts), strict=True):
            found.append(Row(text, tuple((start, end, policy) for start, end in spans)))
            tick(len(found), len(texts))
        return found

    def redacted(self, rows: Sequence[Row]) -> Flagged:
        """Return rows without what is flagged."""
        return self._encoded([Row(mask(row.text, row.places), ()) for row in rows])

    def share(self, rows: Sequence[Row]) -> float:
        """Return the share of tokens that is flagged."""
        return self._encoded(rows).share

    def _encoded(self, rows: Sequence[Row]) -> Flagged:
        return encoded(rows, self.tokenizer, self.context)
