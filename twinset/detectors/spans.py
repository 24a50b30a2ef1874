"""Spans: stretches of a text that a detector flags as private. Knows nothing of why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

Span = tuple[int, int]  # half-open, in characters


class Detector(Protocol):
    """A policy function in the words of selective differential privacy."""

    name: str

    def spans(self, texts: Sequence[str]) -> Iterator[list[Span]]:
        """Yield what is private in each text, in order: sorted, disjoint spans."""
        ...


def joined(spans: Iterable[Span]) -> list[Span]:
    """Sort spans, and make one of those that overlap or touch.

    >>> joined([(4, 6), (0, 2), (5, 9), (9, 10)])
    [(0, 2), (4, 10)]
    """
    disjoint: list[Span] = []
    for start, end in sorted(spans):
        if disjoint and start <= disjoint[-1][1]:
            disjoint[-1] = (disjoint[-1][0], max(end, disjoint[-1][1]))
        else:
            disjoint.append((start, end))
    return disjoint
