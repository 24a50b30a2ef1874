"""Self-BLEU: how much each row resembles the others of its table.

Source: Zhu et al. 2018, "Texygen". BLEU-4 (Papineni et al. 2002) of each row of a part with all
others of the part as its references, averaged. Smoothing, as there: n-grams without any match
count as 0.1 of one match (method 1 of Chen and Cherry 2014); a row that shares no word at all
scores 0.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from evaluation.fidelity.words import Row
from evaluation.findings import Score, mean

PARTS, PART_ROWS = 5, 200
_LONGEST, _SMOOTHING = 4, 0.1

Gram = tuple[str, ...]


def part_rows(rows: int) -> int:
    """Return how many rows each part of such a table has: at most a fifth, unless that is one.

    >>> part_rows(100_000), part_rows(600), part_rows(7)
    (200, 120, 7)
    """
    return min(PART_ROWS, rows // PARTS) if rows >= 2 * PARTS else rows


def self_bleu(rows: Sequence[Row], size: int) -> Score | None:
    """Return the mean over disjoint parts; None where there are not two rows.

    It rises with the rows of a part: compare scores of the same size only. The interval is
    Student's over the parts, so it speaks of other rows from the same source. One part has none.

    Args:
        rows: in random order.
        size: rows of each part; where the table has fewer, it is one part.
    """
    size = min(size, len(rows))
    if size < 2:
        return None
    parts = min(PARTS, len(rows) // size)
    values = [
        statistics.fmean(self_bleus(rows[part * size : (part + 1) * size])) for part in range(parts)
    ]
    return replace(mean("self-BLEU", values, "match", 0.0, 1.0), n=parts * size)


def self_bleus(rows: Sequence[Row]) -> list[float]:
    """Return each row's BLEU-4 with all others as references (N,)."""
    matches = [_matches(rows, n) for n in range(1, _LONGEST + 1)]
    lengths = sorted(map(len, rows))
    return [
        _bleu([found[i] for found in matches], len(row), _nearest_other(lengths, len(row)))
        for i, row in enumerate(rows)
    ]


def _matches(rows: Sequence[Row], n: int) -> list[int]:
    """Return how many n-grams of each row some other row has as often."""
    counted = [_grams(row, n) for row in rows]
    highest: dict[Gram, tuple[int, int]] = {}  # how often it occurs in two rows that have it most
    for grams in counted:
        for gram, count in grams.items():
            first, second = highest.get(gram, (0, 0))
            if count > second:
                highest[gram] = (first, count) if count <= first else (count, first)
    found = []
    for grams in counted:
        clipped = 0
        for gram, count in grams.items():
            first, second = highest[gram]
            clipped += min(count, second if count == first else first)
        found.append(clipped)
    return found


def _grams(row: Row, n: int) -> Counter[Gram]:
    return Counter(zip(*(row[shift:] for shift in range(n)), strict=False))


def _nearest_other(lengths: list[int], own: int) -> int:
    """Return the length nearest to a row's own among the others' (sorted); the shorter of two."""
    place = bisect_left(lengths, own)
    others = lengths[max(0, place - 1) : place] + lengths[place + 1 : place + 2]
    return min(others, key=lambda length: (abs(length - own), length))


def _bleu(matches: Sequence[int], length: int, reference: int) -> float:
    if matches[0] == 0:
        return 0.0
    precisions = [
        (matched or _SMOOTHING) / max(1, length - shift) for shift, matched in enumerate(matches)
    ]
    brevity = min(0.0, 1 - reference / length)
    return math.exp(brevity + statistics.fmean(map(math.log, precisions)))
