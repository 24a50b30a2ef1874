"""Independent Gaussian numbers, many at once, by the polar formula of Box and Muller (1958).

Number by number, as NumPy draws them, is three times as slow. torch's float32 numbers never leave
5.8 standard deviations, and a mechanism that is cut off there needs a larger δ; these reach to 9.4,
where the density is 2e-20.
"""

from __future__ import annotations

import math

import numpy as np

from twinset.privacy.keystream import KeyStream


class Gaussian:
    """Draws from N(0, 1) into memory of its own, which stays in the processor's cache.

    Args:
        stream: source of bits.
        dtype: float32 or float64.
        most: numbers that may be asked for at once.
    """

    def __init__(self, stream: KeyStream, dtype: np.dtype, most: int) -> None:
        pairs, self._turn = -(-most // 2), np.dtype(f"u{dtype.itemsize}")
        self._stream = stream
        self._bits = np.empty(pairs * (8 + self._turn.itemsize), np.uint8)
        self._radius = np.empty(pairs, dtype)
        self._numbers = np.empty(2 * pairs, dtype)

    def draw(self, count: int) -> np.ndarray:
        """Return the next (count,), to be used, and changed at will, before the next call."""
        pairs = -(-count // 2)
        bits = self._stream.fill(self._bits[: pairs * (8 + self._turn.itemsize)])
        words, turns = bits[: 8 * pairs].view(np.uint64), bits[8 * pairs :].view(self._turn)
        return polar(words, turns, self._radius[:pairs], self._numbers[: 2 * pairs])[:count]


def polar(words: np.ndarray, turns: np.ndarray, radius: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Turn uniform bits into Gaussian numbers; return `out`.

    Args:
        words: (n,) uint64, overwritten; the squared radius is -2 ln(word / 2⁶⁴). A float32 keeps
            the leading 24 bits of a word wherever they stand: small words, the far tail, lose none.
        turns: (n,) unsigned, the shares of a full turn.
        radius: (n,) float32 or float64, overwritten.
        out: (2 n,) to be filled with all cosines and then all sines.
    """
    np.right_shift(words, np.uint64(1), out=words)
    np.copyto(radius, words.view(np.int64), casting="unsafe")  # signed: converted faster
    radius *= 2.0**-63
    radius += 2.0**-64  # zero has no logarithm
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
