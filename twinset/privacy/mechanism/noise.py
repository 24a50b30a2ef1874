"""Gaussian noise added to tensors, rounded to a grid as real numbers would be, to the last bit.

Knows no policy: what the noise is worth is for the caller.

Floating-point noise tells by its last bits what it was added to (Mironov 2012, "On significance of
the least significant bits for differential privacy"): c + z is a multiple of z's last place, and
which multiples there are depends on c. Here what leaves is the multiple of a grid step g nearest to
S + std · Z for a *real* Gaussian Z. g is chosen before the data are seen, so this rounding is
post-processing of the Gaussian mechanism over real numbers: its theorem holds as it stands, and
every multiple of g may come out, whatever S is.

No computer holds Z, but rounding needs few of its bits. Z is Box and Muller's formula (1958) of two
uniform numbers, which are bits without end, and each level knows more of them:

1. 63 + 32 bits (float64: 63 + 64), in the sum's own precision. A number is decided where neither
   the bits that are not known nor errors of evaluation can change the nearest multiple.
2. About one pair in 150 is not: 64 + 64 bits more, in double precision.
3. Practically never: again 64 + 64 bits more, and again, in interval arithmetic, until both ends of
   the interval agree. That ends with probability one: only S + std · Z exactly halfway between two
   multiples would not.

Number by number, as NumPy draws them, is three times as slow. torch's float32 numbers never leave
5.8 standard deviations, and a mechanism that is cut off there needs a larger δ. Here no tail ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from mpmath.ctx_iv import MPIntervalContext
from mpmath.libmp import to_rational

from twinset.privacy.mechanism.randomness import KeyStream, Randomness

if TYPE_CHECKING:
    import torch

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


THREADS_FROM = 1 << 20  # numbers
JOINED = 1 << 22  # numbers of several tensors that a GPU draws together
LEAST_STD, LARGEST_STD = 1e-30, 1e30  # the grid's steps are exact in float32

FINENESS = 2.0**-6  # of the grid, in standard deviations
AT_ONCE = 1 << 17  # numbers, in cache
WAITING = 1 << 12  # pairs that are refined together
# How far level 1 may be wrong about Z, by bytes of a number, at radii between NEAREST and FARTHEST:
# beyond, the logarithm of a number near 1, or near 0, is less accurate. As long as NumPy's log, sin
# and cos err by at most 4 units in the last place, it is wrong by less than a third of that.
MARGIN = {4: 2.0**-16, 8: 2.0**-32}
NEAREST, FARTHEST = 2.0**-6, 5.0
# How large a multiple level 1 may decide, and how far rounding moves a sum of that size, at most.
LARGEST = {4: 2.0**12, 8: 2.0**30}
SLACK = {4: 2.0**-12, 8: 2.0**-22}
MARGIN_2, SLACK_2 = 2.0**-44, 2.0**-50  # of level 2, at every radius

Scale: TypeAlias = float | np.ndarray


def add_gaussian_(
    tensor: torch.Tensor,
    std: float,
    randomness: Randomness,
    scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """Add independent N(0, std²) to every element, round to a grid, in place; return the tensor.

    The grid's step is the largest power of two that is at most std / 64. What is not finite stays.
    All is computed where the tensor lies, unless that is a device whose arithmetic is not the
    processor's to the bit: then on the processor.

    Guarantee: for a sum that adding or removing one unit changes by at most C in L2 norm, std = σC
    makes this the Gaussian mechanism of noise multiplier σ with post-processing, for that unit and
    relation, *as computed*: each element is the multiple of the step nearest to S + std · Z for the
    sum S as it stands in memory and a real Gaussian Z, so that its last bits tell nothing more.
    With scales it is that of the least scale. It rests on independent uniform bits, and on the C of
    the sum as computed, its own rounding included. With std = 0 there is no noise, no rounding and
    no guarantee.

    Args:
        tensor: float32 or float64, of any shape and on any device.
        std: standard deviation; 0, or from 1e-30 to 1e30.
        randomness: its noise streams are used, all of them at once where there is much to draw.
        scales: as many, above 0, functions of what was released before: each element has its own
            standard deviation, std times its scale, and its own grid, which follows from that.

    Raises:
        TypeError: the tensor is of another precision; noise rounded to 8 bits is not Gaussian.
        ValueError: a standard deviation is out of range.
    """
    import torch

    from twinset.privacy.mechanism.device_noise import is_exact_on

    if tensor.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"noise is added to float32 or float64 tensors only, not {tensor.dtype}")
    with torch.no_grad():
        stays = tensor.is_cpu or is_exact_on(tensor.device)
        known = tensor.detach() if stays else tensor.cpu()
        stds: float | torch.Tensor = float(std)
        if scales is not None:
            stds = std * (scales.detach() if stays else scales.cpu()).double().flatten()
        _check(std, stds)
        if std == 0:
            return tensor
        flat = known.contiguous().view(-1)
        if flat.is_cpu:
            _add(flat.numpy(), stds if isinstance(stds, float) else stds.numpy(), randomness)
        else:
            _add_there(flat, stds, randomness)
        if not stays or not tensor.is_contiguous():
            tensor.copy_(flat.view(tensor.shape))
    return tensor


def add_gaussian_to_each_(
    tensors: Sequence[torch.Tensor],
    std: float,
    randomness: Randomness,
    scales: Sequence[torch.Tensor] = (),
) -> None:
    """Do `add_gaussian_` of each tensor; on a GPU joined, where few numbers take as long as many.

    Guarantee: that of `add_gaussian_`, for all of the tensors together.

    Args:
        tensors: all on one device.
        std: see `add_gaussian_`, as for all that is not said here.
        randomness: see there.
        scales: one for each tensor; none: there are none.
    """
    for some in _joined_there(tensors):
        parts, own = [tensors[i] for i in some], [scales[i] for i in some] if scales else None
        if len(parts) == 1:
            add_gaussian_(parts[0], std, randomness, own[0] if own else None)
        else:
            _add_to_joined(parts, std, randomness, own)


def _add_to_joined(
    parts: Sequence[torch.Tensor],
    std: float,
    randomness: Randomness,
    scales: Sequence[torch.Tensor] | None,
) -> None:
    import torch

    def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat([tensor.detach().flatten() for tensor in tensors])

    own = joined(scales) if scales else None
    noisy = add_gaussian_(joined(parts), std, randomness, own)
    with torch.no_grad():
        for part, its in zip(parts, noisy.split([part.numel() for part in parts]), strict=True):
            part.copy_(its.view(part.shape))


def _joined_there(tensors: Sequence[torch.Tensor]) -> Iterator[list[int]]:
    """Yield the numbers of tensors that get their noise together: on a processor each by itself."""
    some: list[int] = []
    numbers = 0
    for i, tensor in enumerate(tensors):
        numbers += tensor.numel()
        is_like = some and tensor.dtype == tensors[some[0]].dtype and not tensor.is_cpu
        if some and not (is_like and numbers <= JOINED):
            yield some
            some, numbers = [], tensor.numel()
        some.append(i)
    if some:
        yield some


def _check(std: float, stds: float | torch.Tensor) -> None:
    inside = (stds >= LEAST_STD) & (stds <= LARGEST_STD)
    if not (std == 0 or (inside if isinstance(inside, bool) else bool(inside.all()))):
        raise ValueError(
            f"a standard deviation must be 0, or from {LEAST_STD:g} to {LARGEST_STD:g}, not {std}"
        )


def _add_there(numbers: torch.Tensor, std: float | torch.Tensor, randomness: Randomness) -> None:
    from twinset.privacy.mechanism.device_noise import DeviceGrid, grid_steps

    step = float(grid_step(std)) if isinstance(std, float) else grid_steps(std)
    DeviceGrid(randomness.on_device, randomness.refinement[0]).add(numbers, std, step)


def _add(numbers: np.ndarray, std: Scale, randomness: Randomness) -> None:
    """Give every stream its part of the numbers, side by side; the first one all of a few."""
    import torch

    grids = list(map(GaussianGrid, randomness.noise, randomness.refinement))
    if len(numbers) < THREADS_FROM:
        return grids[0].add(numbers, std, grid_step(std))
    parts = np.array_split(numbers, len(grids))
    stds = np.array_split(std, len(grids)) if isinstance(std, np.ndarray) else [std] * len(grids)
    with ThreadPoolExecutor(min(len(grids), torch.get_num_threads())) as pool:
        list(pool.map(GaussianGrid.add, grids, parts, stds, map(grid_step, stds)))


def grid_step(std: Scale) -> Scale:
    """Return the largest power of two that is at most std / 64, of one or of each.

    Rounding to a multiple of it has a variance of at most g²/12, below 3e-5 of the noise's.

    >>> grid_step(1.0), grid_step(0.99)
    (0.015625, 0.0078125)
    """
    _, exponent = np.frexp(std)
    step = np.ldexp(FINENESS, exponent - 1)
    return step if isinstance(std, np.ndarray) else float(step)


class GaussianGrid:
    """Adds N(0, std²) to sums and rounds them to a grid.

    Guarantee: `add` is post-processing of sums + N(0, std² I) over real numbers, if the bits are
    uniform and independent: of each sum the nearest multiple of the step, exactly. For sums that
    adding or removing one unit changes by at most C in L2 norm, std = σC, and a step that does not
    depend on the units, it is the Gaussian mechanism of multiplier σ.

    Args:
        stream: source of bits; sums of one length take the same number of them.
        refinement: source of the further bits; how many are taken depends on the sums.
    """

    def __init__(self, stream: KeyStream, refinement: KeyStream) -> None:
        self._stream, self._refinement = stream, refinement

    def add(self, sums: np.ndarray, std: Scale, step: Scale) -> None:
        """Overwrite sums with the noisy ones; what is not finite stays.

        Args:
            sums: (n,) float32 or float64.
            std: one, or (n,) of float64.
            step: of the grid, a power of two, one or (n,) of float64.
        """
        first = _FirstLevel(self._stream, sums.dtype, min(AT_ONCE, len(sums)))
        waiting: list[_Pairs] = []
        for start in range(0, len(sums), AT_ONCE):
            some = slice(start, start + AT_ONCE)
            pairs = first.add(sums[some], _at(std, some), _at(step, some))
            waiting.append(pairs.behind(start))
            count = sum(len(pairs.words) for pairs in waiting)
            if count >= WAITING or (count and start + AT_ONCE >= len(sums)):
                self._refine(sums, std, step, _Pairs.joined(waiting))
                waiting = []

    def _refine(self, sums: np.ndarray, std: Scale, step: Scale, pairs: _Pairs) -> None:
        """Overwrite what level 1 left as it was."""
        places = pairs.places(len(sums))
        exact = sums[places].astype(np.float64)
        std, step = (np.broadcast_to(_at(scale, places), exact.shape) for scale in (std, step))
        more = self._refinement.fill(np.empty((2, len(pairs.words)), np.uint64))
        values, decided = _second_level(exact, std, step, pairs, more)
        third: dict[int, ExactPair] = {}
        for i in np.flatnonzero(~decided & np.isfinite(exact)).tolist():
            is_sine, pair = divmod(i, len(pairs.words))
            known = third.setdefault(pair, pairs.exact(pair, more, self._refinement))
            values[i] = known.nearest(exact[i], std[i], step[i], sine=bool(is_sine))
        sums[places] = values


@dataclass(frozen=True)
class _Pairs:
    """Pairs of numbers that are not decided: their bits, as of `polar`, and both their places."""

    words: np.ndarray
    turns: np.ndarray
    cosines: np.ndarray
    sines: np.ndarray

    @classmethod
    def joined(cls, parts: list[_Pairs]) -> _Pairs:
        """Return all of them, in order."""
        names = ("words", "turns", "cosines", "sines")
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def behind(self, start: int) -> _Pairs:
        """Return them with their places in an array of which theirs is the part from `start` on."""
        return _Pairs(self.words, self.turns, start + self.cosines, start + self.sines)

    def places(self, count: int) -> np.ndarray:
        """Return those of all cosines and then of all sines; an odd count lacks the last sine."""
        places = np.concatenate([self.cosines, self.sines])
        return places[:-1] if len(places) and places[-1] == count else places

    def exact(self, i: int, more: np.ndarray, refinement: KeyStream) -> ExactPair:
        """Return one pair with (2, n) further bits of all."""
        turn = int(self.turns[i]), 8 * self.turns.itemsize
        pair = ExactPair((int(self.words[i]), WORD_BITS), turn, refinement)
        pair.take(*more[:, i].tolist())
        return pair


class _FirstLevel:
    """Level 1, in memory of its own.

    Args:
        stream: source of bits.
        dtype: float32 or float64.
        most: numbers at once.
    """

    def __init__(self, stream: KeyStream, dtype: np.dtype, most: int) -> None:
        self._gaussian = Gaussian(stream, dtype, most)
        self._off, self._decided = np.empty(most, dtype), np.empty(most, bool)

    def add(self, sums: np.ndarray, std: Scale, step: Scale) -> _Pairs:
        """Overwrite the sums of all pairs but those that are returned."""
        nearest, off = self._gaussian.draw(len(sums)), self._off[: len(sums)]
        nearest *= _like(std / step, sums)
        with np.errstate(over="ignore", invalid="ignore"):
            np.multiply(sums, _like(1.0 / step, sums), out=off)  # exact: a power of two
            off += nearest
            np.rint(off, out=nearest)
            off -= nearest
        pairs = self._undecided(nearest, np.abs(off, out=off), std / step)
        places = pairs.places(len(sums))
        nearest *= _like(step, sums)
        nearest[places] = sums[places]
        np.add(nearest, 0.0, out=sums)  # -0.0 would tell on which side of 0 it was
        return pairs

    def _undecided(self, nearest: np.ndarray, off: np.ndarray, ratio: Scale) -> _Pairs:
        size, radius = off.itemsize, self._gaussian.radius
        decided = self._decided[: len(off)]
        np.less_equal(off, _like(0.5 - SLACK[size] - MARGIN[size] * ratio, off), out=decided)
        if not (nearest.max() <= LARGEST[size] and nearest.min() >= -LARGEST[size]):
            decided &= np.abs(nearest) <= LARGEST[size]
        both, sines = decided[: len(radius)], decided[len(radius) :]
        both[: len(sines)] &= sines
        both &= radius >= NEAREST
        both &= radius <= FARTHEST
        pairs = np.flatnonzero(~both)
        words, turns = self._gaussian.words[pairs], self._gaussian.turns[pairs]
        return _Pairs(words, turns, pairs, len(radius) + pairs)


def _second_level(
    exact: np.ndarray, std: np.ndarray, step: np.ndarray, pairs: _Pairs, more: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the noisy multiples of the step, and which of them are decided."""
    z = refined(pairs.words, pairs.turns, more).ravel()[: len(exact)]
    ratio = std / step
    with np.errstate(over="ignore", invalid="ignore"):
        whole = np.rint(exact / step)
        off = exact / step - whole + z * ratio
        nearest = np.rint(off)
        values = (whole + nearest) * step + 0.0  # of a large multiple the leading 53 bits
    decided = np.abs(off - nearest) <= 0.5 - SLACK_2 - MARGIN_2 * ratio
    known = (pairs.words > 0) & (pairs.words < 2**WORD_BITS - 1)
    decided &= np.tile(known, 2)[: len(exact)]
    return np.where(np.isfinite(exact), values, exact), decided


def refined(words: np.ndarray, turns: np.ndarray, more: np.ndarray) -> np.ndarray:
    """Return (2, n) cosines and sines of `polar`, from 64 bits more of each word and turn."""
    further, angle = (more + 0.5) * 2.0**-MORE_BITS, turns.astype(np.float64)
    below = (words + further[0]) * 2.0**-WORD_BITS
    above = (2**WORD_BITS - 1 - words + (1.0 - further[0])) * 2.0**-WORD_BITS  # 1 - below
    logs = np.where(words < 2 ** (WORD_BITS - 1), np.log(below), np.log1p(-np.minimum(above, 0.5)))
    angle = (angle + further[1]) * (2.0 * math.pi / 2.0 ** (8 * turns.itemsize))
    return np.sqrt(-2.0 * logs) * np.stack([np.cos(angle), np.sin(angle)])


def _at(scale: Scale, places: slice | np.ndarray) -> Scale:
    return scale[places] if isinstance(scale, np.ndarray) else scale


def _like(scale: Scale, sums: np.ndarray) -> Scale:
    """Return numbers that do not make a sum more precise than it is."""
    return scale.astype(sums.dtype) if isinstance(scale, np.ndarray) else scale
