"""Masking: a text without its private spans.

The first phase of selective privacy trains without noise on masked texts, so its guarantee is this
module's: texts that differ only inside their private spans mask to the same text. Knows nothing of
how spans are found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from twinset.policies.detection.detectors import Detector, Span, joined
from twinset.table.arrow_columns import LazySequence

PLACEHOLDER = "___"

OnProgress = Callable[[int, int], None]  # texts done, texts in all


def private_runs(text: str, spans: Iterable[Span]) -> list[Span]:
    """Join spans that nothing but spaces and punctuation parts.

    >>> private_runs("Ann, Bob and Cy", [(0, 3), (5, 8), (13, 15)])
    [(0, 8), (13, 15)]
    """
    runs: list[Span] = []
    for start, end in joined(spans):
        if runs and not any(map(str.isalnum, text[runs[-1][1] : start])):
            runs[-1] = runs[-1][0], end
        else:
            runs.append((start, end))
    return runs


def mask(text: str, spans: Iterable[Span]) -> str:
    """Put one placeholder for each private run: its length, kind and number of words are gone.

    >>> mask("Ann, Bob and Cy", [(0, 3), (5, 8), (13, 15)])
    '___ and ___'
    """
    pieces, kept = [], 0
    for start, end in private_runs(text, spans):
        pieces += [text[kept:start], PLACEHOLDER]
        kept = end
    return "".join([*pieces, text[kept:]])


def detect(
    texts: Sequence[str], detector: Detector, on_progress: OnProgress
) -> Iterator[tuple[str, list[Span]]]:
    """Yield each text with its private spans."""
    for done, found in enumerate(zip(texts, detector.spans(texts), strict=True), start=1):
        yield found
        on_progress(done, len(texts))


class Masked(LazySequence[str]):
    """Texts masked, each when it is asked for.

    Args:
        texts: as they are.
        detector: finds private spans.
        on_progress: called with how many are done, when all are asked for in order.
    """

    def __init__(self, texts: Sequence[str], detector: Detector, on_progress: OnProgress) -> None:
        self._texts, self._detector, self._on_progress = texts, detector, on_progress

    def __len__(self) -> int:
        return len(self._texts)

    def __iter__(self) -> Iterator[str]:
        found = detect(self._texts, self._detector, self._on_progress)
        return (mask(text, spans) for text, spans in found)

    def cell(self, index: int) -> str:
        """Return one text, masked."""
        text = self._texts[index]
        return mask(text, next(iter(self._detector.spans([text]))))


def masked(texts: Sequence[str], detector: Detector, on_progress: OnProgress) -> list[str]:
    """Return the texts masked, in order."""
    return list(Masked(texts, detector, on_progress))
