"""A pair of Gaussian numbers to as many bits as rounding needs, in interval arithmetic.

Slow, and practically never needed: see `noise`.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from mpmath.ctx_iv import MPIntervalContext
from mpmath.libmp import to_rational

from twinset.privacy.mechanism.randomness import KeyStream

MORE_BITS = 64
_GUARD_BITS = 64


class ExactPair:
    """sqrt(-2 ln u) · cos 2πv and sqrt(-2 ln u) · sin 2πv of uniform u and v, real numbers.

    Args:
        word: the leading bits of u, as a whole number, and how many they are.
        turn: the same of v; below 0 for a v below 0.
        stream: source of all further bits.
    """

    def __init__(self, word: tuple[int, int], turn: tuple[int, int], stream: KeyStream) -> None:
        (self._word, self._word_bits), (self._turn, self._turn_bits) = word, turn
        self._stream = stream

    def take(self, word: int, turn: int) -> None:
        """Append `MORE_BITS` bits to each."""
        self._word, self._word_bits = self._word << MORE_BITS | word, self._word_bits + MORE_BITS
        self._turn, self._turn_bits = self._turn << MORE_BITS | turn, self._turn_bits + MORE_BITS

    def nearest(self, total: float, std: float, step: float, *, sine: bool) -> float:
        """Return the multiple of `step` nearest to total + std · Z, Z the cosine or the sine.

        Bits are drawn until both ends of the interval, where Z is, agree.
        """
        whole, ratio = Fraction(total) / Fraction(step), Fraction(std) / Fraction(step)
        while True:
            if self._word:  # 0 has no logarithm
                ends = (whole + ratio * z for z in self._interval(sine))
                low, high = (math.floor(end + Fraction(1, 2)) for end in ends)
                if low == high:
                    return float(low * Fraction(step))
            self.take(*self._stream.fill(np.empty(2, np.uint64)).tolist())

    def _interval(self, sine: bool) -> tuple[Fraction, Fraction]:
        """Return the ends of the interval where Z is, by the bits so far."""
        context = MPIntervalContext()  # of its own: precision is a property of a context
        context.prec = max(self._word_bits, self._turn_bits) + _GUARD_BITS
        u = context.mpf([self._word, self._word + 1]) / 2**self._word_bits
        angle = 2 * context.pi * context.mpf([self._turn, self._turn + 1]) / 2**self._turn_bits
        wave = context.sin(angle) if sine else context.cos(angle)
        low, high = (context.sqrt(-2 * context.log(u)) * wave)._mpi_
        return Fraction(*to_rational(low)), Fraction(*to_rational(high))
