"""Noise of `noise`, drawn and rounded where a tensor lies: a GPU.

Which multiple of the grid's step is nearest to S + std · Z is decided here by one level, in double
precision. Nothing rests on how exact a GPU's logarithm, sine and cosine are: they are made of whole
numbers, tables, sums, products and square roots, which IEEE 754 states to the last bit, so what a
processor computes is what every device computes (`is_exact_on` tries it). What this level leaves
open, fewer than one pair in ten million, goes to the processor and to interval arithmetic.

How far a number is from Z, where words are from `LEAST` to `MOST`, and so the radius from 2⁻¹² to
6.1 (u = word / 2⁶³, L = -ln u, r = √(2 L)):

- bits that are not known: of u they are less than 2⁻³⁷ of it, 2⁻³⁷ / r of r, at r = 6; of the angle
  less than 2⁻⁵⁶;
- the word as a float64: 2⁻⁵⁴ of u, near 1 as much of L, 2⁻⁵⁴ / r ≤ 2⁻⁴² of r;
- L: 2⁻⁵⁸ for what its series leaves out, and roundings of sums below 18: 2⁻⁴⁷ for r = 6, 2⁻⁵¹ / r
  for less, and 2⁻⁵⁸ / r where u > 3/4, since no large numbers cancel;
- root, sine and cosine: 2⁻⁵¹ of the radius each.

Together less than 2⁻³⁹: `MARGIN` is twice that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

import mpmath
import numpy as np
import torch

from twinset.privacy.mechanism.chacha20 import ChaCha20
from twinset.privacy.mechanism.noise import WORD_BITS, ExactPair

if TYPE_CHECKING:
    from torch import Tensor

    from twinset.privacy.mechanism.randomness import KeyStream

AT_ONCE = 1 << 22  # numbers: many, since each operation waits for a GPU's start
MARGIN, SLACK = 2.0**-38, 2.0**-40  # of Z; of the roundings in units of the step
LEAST, MOST = 1 << 37, (1 << WORD_BITS) - (1 << 38)  # words
TRIED = 1 << 16  # pairs

_FRACTION, _ONE = (1 << 52) - 1, 1023 << 52  # of a float64's bits
_LOGS, _ANGLES = 7, 8  # bits that choose a row of a table
_PAIRS_A_BLOCK = 4

Stds: TypeAlias = "float | Tensor"


class DeviceGrid:
    """Adds N(0, std²) to sums and rounds them to a grid: `noise.GaussianGrid` on any device.

    Guarantee: that of `noise.GaussianGrid`, if sums, products and square roots of float64 are those
    of IEEE 754.

    Args:
        stream: source of bits; sums of one length take the same number of them.
        refinement: source of the further bits; how many are taken depends on the sums.
    """

    def __init__(self, stream: ChaCha20, refinement: KeyStream) -> None:
        self._stream, self._refinement = stream, refinement

    def add(self, sums: Tensor, std: Stds, step: Stds) -> None:
        """Overwrite sums with the noisy ones; what is not finite stays.

        Args:
            sums: (n,) float32 or float64.
            std: one, or (n,) of float64 where the sums are.
            step: of the grid, a power of two, likewise.
        """
        for start in range(0, len(sums), AT_ONCE):
            some = slice(start, start + AT_ONCE)
            self._add(sums[some], *(x if isinstance(x, float) else x[some] for x in (std, step)))

    def _add(self, sums: Tensor, std: Stds, step: Stds) -> None:
        words, turns = pairs_of(self._stream, -(-len(sums) // 2), sums.device)
        exact, ratio = sums.double(), std / step
        scaled = exact * (1.0 / step)  # exact: a power of two
        whole = scaled.round()
        off = (scaled - whole).add_(polar(words, turns)[: len(sums)] * ratio)
        nearest = off.round()
        decided = (off - nearest).abs_() <= 0.5 - SLACK - MARGIN * ratio
        decided &= ((words >= LEAST) & (words <= MOST)).repeat(2)[: len(sums)]
        finite = exact.isfinite()
        noisy = torch.where(finite, (whole + nearest).mul_(step).add_(0.0), exact)  # no -0.0
        left = torch.nonzero(finite & ~decided).flatten()
        if len(left):
            stds, steps = (torch.zeros_like(exact) + x for x in (std, step))
            known = [x[left].tolist() for x in (exact, stds, steps)]
            chosen = [x[left % len(words)].tolist() for x in (words, turns)]
            values = self._exact(left.tolist(), len(words), list(zip(*known, *chosen, strict=True)))
            noisy[left] = torch.tensor(values, dtype=torch.float64, device=sums.device)
        sums.copy_(noisy)

    def _exact(
        self, places: list[int], pairs: int, known: list[tuple[float, float, float, int, int]]
    ) -> list[float]:
        """Return the nearest multiples of numbers whose sum, std, step, word and turn are known."""
        made: dict[int, ExactPair] = {}
        values = []
        for place, (total, std, step, word, turn) in zip(places, known, strict=True):
            drawn = ExactPair((word, WORD_BITS), (turn, 64), self._refinement)
            pair = made.setdefault(place % pairs, drawn)
            values.append(pair.nearest(total, std, step, sine=place >= pairs))
        return values


def grid_steps(std: Tensor) -> Tensor:
    """Return `noise.grid_step` of each; float64 from 1e-300 on."""
    return (std.view(torch.int64) & ~_FRACTION).view(torch.float64) * 2.0**-6


def pairs_of(stream: ChaCha20, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return (count,) words of 63 bits and (count,) turns of 64, as int64."""
    blocks = stream.draw(-(-count // _PAIRS_A_BLOCK), device)
    words, turns = blocks.view(torch.int64).view(-1, 2)[:count].unbind(1)
    return words >> 1 & (1 << WORD_BITS) - 1, turns


def polar(words: Tensor, turns: Tensor) -> Tensor:
    """Return (2 n,) float64, all cosines and then all sines, of `gaussian.polar`'s formula.

    Args:
        words: (n,) int64, the leading 63 bits of u.
        turns: (n,) int64, the leading 64 bits of the shares of a full turn, from -1/2 to 1/2.
    """
    radius = _root(logarithms(words).mul_(-2.0))
    cosine, sine = waves(turns)
    return torch.cat([cosine.mul_(radius), sine.mul_(radius)])


def _root(numbers: Tensor) -> Tensor:
    """Return square roots to the last bit: on a processor PyTorch's are wrong in one of 150."""
    if not numbers.is_cpu:
        return numbers.sqrt()
    with np.errstate(invalid="ignore"):  # of words that are left undecided
        return torch.from_numpy(np.sqrt(numbers.numpy()))


def logarithms(words: Tensor) -> Tensor:
    """Return (n,) ln u: u = 2ᵉ c (1 + r), c of a table, from 3/4 to 3/2, and |r| ≤ 2⁻⁸."""
    bits = words.double().view(torch.int64)
    row = bits >> (52 - _LOGS) & (1 << _LOGS) - 1
    centres, inverses, logs, carried = _table(_log_columns, 1 << _LOGS, words.device)
    r = (bits & _FRACTION | _ONE).view(torch.float64).sub_(centres[row]).mul_(inverses[row])
    series = torch.full_like(r, -1 / 6)
    for n in (5, 4, 3, 2, 1):
        series.mul_(r).add_(math.copysign(1 / n, n % 2 - 0.5))
    exponent = (bits >> 52).sub_(1023 + WORD_BITS).double().add_(carried[row])
    return series.mul_(r).add_(logs[row]).add_(exponent.mul_(math.log(2)))


def waves(turns: Tensor) -> tuple[Tensor, Tensor]:
    """Return (n,) cos 2πv and sin 2πv: 2πv is an angle of a table and another one below 0.0123."""
    low = (1 << (64 - _ANGLES)) - 1
    row = (turns >> (64 - _ANGLES)) + (1 << (_ANGLES - 1))
    angle = (turns & low).sub_((low + 1) // 2).double().mul_(2.0 * math.pi / 2.0**64)
    square = angle * angle
    sine = (square * (1 / 120)).sub_(1 / 6).mul_(square).mul_(angle).add_(angle)
    less = (square * (-1 / 720)).add_(1 / 24).mul_(square).sub_(0.5).mul_(square)  # cosine - 1
    cosines, sines = (column[row] for column in _table(_angle_columns, 1 << _ANGLES, turns.device))
    return (
        (cosines * less).sub_(sines * sine).add_(cosines),
        (sines * less).add_(cosines * sine).add_(sines),
    )


def _table(of: Callable[[int], list[list[float]]], rows: int, device: torch.device) -> list[Tensor]:
    return [torch.tensor(column, dtype=torch.float64, device=device) for column in of(rows)]


@cache
def _log_columns(rows: int) -> list[list[float]]:
    """Return c, 1 / c and ln c of the middle of each part of 1 to 2; from 3/2 on of half of it."""
    centres = [1 + (2 * i + 1) / (2 * rows) for i in range(rows)]
    carried = [float(c > 1.5) for c in centres]
    with mpmath.workprec(120):
        logs = [
            float(mpmath.log(c) - k * mpmath.log(2)) for c, k in zip(centres, carried, strict=True)
        ]
    return [centres, [1 / c for c in centres], logs, carried]


@cache
def _angle_columns(rows: int) -> list[list[float]]:
    """Return cosines and sines of the middle of each part of a turn, from -1/2 on."""
    with mpmath.workprec(120):
        angles = [mpmath.pi * (2 * i + 1 - rows) / rows for i in range(rows)]
        return [[float(of(angle)) for angle in angles] for of in (mpmath.cos, mpmath.sin)]


@cache
def is_exact_on(device: torch.device) -> bool:
    """Return whether a device makes the processor's numbers, bit by bit; tried with a known key."""
    processor = torch.empty(0).cpu().device
    return torch.equal(_tried(processor), _tried(device).cpu())


def _tried(device: torch.device) -> Tensor:
    return polar(*pairs_of(ChaCha20(bytes(range(32))), TRIED, device)).view(torch.int64)
