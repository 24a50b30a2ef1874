"""ChaCha20 (RFC 8439) in whole-number operations on tensors: random bits where a tensor lies.

Slower than AES on a processor, which has instructions for that; on a GPU the bits need not be moved
there. All operations are exact, so the bits are the same on every device.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

BLOCK_WORDS = 16  # of 32 bits
BLOCKS = 1 << 64  # of one key
_CONSTANTS = struct.unpack("<4i", b"expand 32-byte k")
_WORD = (1 << 32) - 1
_DOUBLE_ROUNDS = 10


class ChaCha20:
    """The key stream of ChaCha20 with a counter of 64 bits, and a nonce of zeros.

    Up to block 2³² it is RFC 8439's; behind, that of Bernstein (2008).

    Args:
        key: 32 bytes, of one stream only: the counter starts at zero.
    """

    def __init__(self, key: bytes) -> None:
        self._key, self._next = struct.unpack("<8i", key), 0

    def draw(self, blocks: int, device: torch.device) -> Tensor:
        """Return the next (blocks, 16) int32 there; no bit of them is returned again.

        Raises:
            OverflowError: the key has no more.
        """
        first, self._next = self._next, self._next + blocks
        if self._next > BLOCKS:
            raise OverflowError("the counter of a ChaCha20 key has come to its end")
        return _blocks(self._key, first, blocks, device)


def _blocks(key: tuple[int, ...], first: int, count: int, device: torch.device) -> Tensor:
    """Return (count, 16) int32, the key's blocks number `first` and following."""
    import torch

    start = torch.zeros(4, 4, count, dtype=torch.int32, device=device)  # words by 4, blocks
    known = torch.tensor([*_CONSTANTS, *key], dtype=torch.int32, device=device)
    start[:3] = known.view(3, 4, 1)
    low = torch.arange(count, device=device) + (first & _WORD)
    high = (low >> 32) + (first >> 32)
    start[3, 0], start[3, 1] = _wrapped(low), _wrapped(high)
    state = list(start.clone())
    for _ in range(_DOUBLE_ROUNDS):
        _round(state)
        _shift(state, -1)  # so that columns are diagonals
        _round(state)
        _shift(state, 1)
    words = torch.stack(state).add_(start).view(BLOCK_WORDS, count)
    return words.t().flatten().view(count, BLOCK_WORDS)


def _wrapped(numbers: Tensor) -> Tensor:
    """Return the low 32 bits of int64 as int32."""
    import torch

    return (((numbers & _WORD) ^ (1 << 31)) - (1 << 31)).to(torch.int32)


def _round(state: list[Tensor]) -> None:
    """Mix each column of four rows of (4, blocks), in place."""
    a, b, c, d = state
    for into, by, turned, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        into += by
        turned ^= into
        right = (turned >> (32 - bits)).bitwise_and_((1 << bits) - 1)  # without the sign
        turned.bitwise_left_shift_(bits).bitwise_or_(right)


def _shift(state: list[Tensor], direction: int) -> None:
    state[1:] = [row.roll(direction * i, 0) for i, row in enumerate(state[1:], 1)]
