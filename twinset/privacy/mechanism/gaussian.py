"""Normal numbers by Box and Muller's formula (1958): many at once, or one pair to any precision.

`Gaussian` draws from uniform bits, in cache. Number by number, as NumPy draws them, is three times
as slow. The float32 numbers of torch never leave 5.8 standard deviations, and a mechanism that is
cut off there needs a larger δ. These are close to real Gaussian numbers, and `noise` draws their
further bits where they matter: no tail ends. `ExactPair` does so in interval arithmetic. That is
slow, and practically never needed.
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


WORD_BITS = 63


class Gaussian:
    """Draws from N(0, 1) into memory of its own, which stays in the processor's cache.

    Args:
        stream: source of bits.
        dtype: float32 or float64.
        most: numbers that may be asked for at once.

    Attributes:
        words: (pairs,) int64, turns: (pairs,) int32 or int64, radius: (pairs,): of the last draw,
            as `polar` knows them.
    """

    words: np.ndarray
    turns: np.ndarray
    radius: np.ndarray

    def __init__(self, stream: KeyStream, dtype: np.dtype, most: int) -> None:
        pairs, self._turn = -(-most // 2), np.dtype(f"i{dtype.itemsize}")
        self._stream = stream
        self._bits = np.empty(pairs * (8 + self._turn.itemsize), np.uint8)
        self._radius = np.empty(pairs, dtype)
        self._numbers = np.empty(2 * pairs, dtype)

    def draw(self, count: int) -> np.ndarray:
        """Return the next (count,), to be used, and changed at will, before the next call."""
        pairs = -(-count // 2)
        bits = self._stream.fill(self._bits[: pairs * (8 + self._turn.itemsize)])
        words = bits[: 8 * pairs].view(np.uint64)
        self.words = np.right_shift(words, np.uint64(1), out=words).view(np.int64)
        self.turns = bits[8 * pairs :].view(self._turn)
        self.radius = self._radius[:pairs]
        return polar(self.words, self.turns, self.radius, self._numbers[: 2 * pairs])[:count]


def polar(words: np.ndarray, turns: np.ndarray, radius: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Turn uniform bits into Gaussian numbers; return `out`.

    Args:
        words: (n,) int64, at least 0: the leading 63 bits of a share u of 1; the squared radius is
            -2 ln u, at the middle of what these bits leave open. A float32 keeps the leading 24 of
            them wherever they stand: small words, the far tail, lose none.
        turns: (n,) int32 or int64, the leading bits of the shares of a full turn, from -1/2 to 1/2.
        radius: (n,) float32 or float64, overwritten.
        out: (2 n,) to be filled with all cosines and then all sines.
    """
    np.copyto(radius, words, casting="unsafe")
    radius *= 2.0**-WORD_BITS
    radius += 2.0 ** -(WORD_BITS + 1)  # zero has no logarithm
    np.log(radius, out=radius)
    radius *= -2.0
    np.sqrt(radius, out=radius)
    cosines, sines = np.split(out, 2)
    np.copyto(sines, turns, casting="unsafe")
    sines *= 2.0 * math.pi / 2.0 ** (8 * turns.itemsize)
    np.cos(sines, out=cosines)
    np.sin(sines, out=sines)
    cosines *= radius
    sines *= radius
    return out
