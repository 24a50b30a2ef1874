"""Gaussian noise added to tensors, rounded to a grid exactly as real numbers would be.

This module knows no policy. The caller states what the noise guarantees.

The last bits of floating-point noise reveal the number it was added to (Mironov 2012, "On
significance of the least significant bits for differential privacy"). c + z is a multiple of z's
last place, and which multiples exist depends on c. Here the output is the multiple of a grid step g
nearest to S + std · Z for a *real* Gaussian Z. g is chosen before the data are seen, so this
rounding is post-processing of the Gaussian mechanism over real numbers. Its theorem applies
unchanged, and every multiple of g may come out, whatever S is.

No computer can store Z, but rounding needs few of its bits. Z is Box and Muller's formula (1958) of
two uniform numbers with endless bits, and each level knows more of them:

1. 63 + 32 bits (float64: 63 + 64), in the sum's own precision. A number is decided if neither the
   unknown bits nor errors of evaluation can change the nearest multiple.
2. About one pair in 150 is undecided. It gets 64 + 64 bits more, in double precision.
3. Practically never, 64 + 64 bits more, and again, in interval arithmetic, until both ends of the
   interval agree. That ends with probability one, because only S + std · Z exactly halfway between
   two multiples would never end.

The CPU computes all of it. For sums on a GPU, threads draw the numbers one step ahead while the
gradient is computed (`_draw_ahead`), and the GPU only adds and rounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from mpmath.ctx_iv import MPIntervalContext
from mpmath.libmp import to_rational

from twinset.privacy.mechanism.randomness import NOISE_STREAMS, KeyStream, Randomness

if TYPE_CHECKING:
    import torch

THREADS_FROM = 1 << 20  # numbers
JOINED = 1 << 22  # numbers that a GPU rounds at once: each operation waits for its start
LEAST_STD, LARGEST_STD = 1e-30, 1e30  # the grid's steps are exact in float32

FINENESS = 2.0**-6  # of the grid, in standard deviations
AT_ONCE = 1 << 17  # numbers that fit into the processor's cache
WAITING = 1 << 12  # pairs that are refined together
WORD_BITS, MORE_BITS = 63, 64  # bits of a radius at level 1, and of each number at every next level
GUARD_BITS = 64  # of interval arithmetic
# The most that level 1 may be wrong about Z, by bytes of a number, at radii between NEAREST and
# FARTHEST. Beyond these, the logarithm of a number near 1, or near 0, is less accurate. As long as
# NumPy's log, sin and cos err by at most 4 units in the last place, the error is below a third of
# this margin.
MARGIN = {4: 2.0**-16, 8: 2.0**-32}
NEAREST, FARTHEST = 2.0**-6, 5.0
# The largest multiple that level 1 may decide, and the most that rounding moves such a sum.
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
    """Add independent N(0, std²) to every element, round to a grid, in place. Return the tensor.

    The grid's step is the largest power of two that is at most std / 64. Elements that are not
    finite stay. A tensor on another device is processed on the CPU.

    Guarantee: take a sum that adding or removing one unit changes by at most C in L2 norm, and std
    = σC. This is then the Gaussian mechanism of noise multiplier σ with post-processing, for that
    unit and relation, *as computed*. Each element is the multiple of the step nearest to S + std ·
    Z for the stored sum S and a real Gaussian Z, so its last bits reveal nothing more. With scales
    it is that of the smallest scale. It assumes independent uniform bits, and the C of the sum as
    computed, its own rounding included. With std = 0 there is no noise, no rounding and no
    guarantee.

    Args:
        tensor: float32 or float64, of any shape and on any device.
        std: standard deviation, either 0 or from 1e-30 to 1e30.
        randomness: its noise streams are used, all of them in parallel for large tensors.
        scales: one for each element, or for each of several tensors in one (k, *shape). They are
            above 0 and functions of earlier releases. Each element has its own standard deviation,
            std times its scale, and its own grid, which follows from that.

    Raises:
        TypeError: the tensor has another precision. Noise rounded to 8 bits is not Gaussian.
        ValueError: a standard deviation is out of range.
    """
    import torch

    with torch.no_grad():
        stds: Scale = float(std)
        if scales is not None:
            own = scales.detach().cpu().double().expand(tensor.shape)
            stds = std * own.flatten().numpy()
        _check([tensor], std, [stds])
        if std == 0:
            return tensor
        flat = tensor.detach().cpu().contiguous().view(-1)  # (n,)
        grids = list(map(GaussianGrid, randomness.noise, randomness.refinement))
        if len(flat) < THREADS_FROM:
            grids[0].add(flat.numpy(), stds, grid_step(stds))
        else:  # each stream has its part, side by side
            count, many = len(grids), isinstance(stds, np.ndarray)
            parts = np.array_split(flat.numpy(), count)
            each = np.array_split(stds, count) if many else [stds] * count
            with ThreadPoolExecutor(min(count, torch.get_num_threads())) as pool:
                list(pool.map(GaussianGrid.add, grids, parts, each, map(grid_step, each)))
        if not (tensor.is_cpu and tensor.is_contiguous()):  # its flat form was a copy
            tensor.copy_(flat.view(tensor.shape))
    return tensor


def add_gaussian_to_each_(
    tensors: Sequence[torch.Tensor],
    std: float,
    randomness: Randomness,
    scales: Sequence[torch.Tensor] = (),
) -> None:
    """Do `add_gaussian_` for each tensor. On a GPU, the numbers were drawn one step ahead.

    Guarantee: that of `add_gaussian_`, for all of the tensors together, if float32 and float64 sums
    and products of the GPU are those of IEEE 754. The numbers are fresh: no number is used for two
    sums, and they come from streams of their own that no sum and no gradient reaches.

    Args:
        tensors: all on one device.
        std: as in `add_gaussian_`.
        randomness: as there. For tensors of a GPU its streams `ahead` are used.
        scales: one for each tensor, or empty.

    Raises:
        TypeError: as in `add_gaussian_`.
        ValueError: as there.
    """
    import torch

    if std == 0 or not tensors or tensors[0].is_cpu:
        for i, tensor in enumerate(tensors):
            add_gaussian_(tensor, std, randomness, scales[i] if scales else None)
        return
    with torch.no_grad():
        flat = [tensor.detach().reshape(-1) for tensor in tensors]
        stds = [
            std * scale.detach().double().expand(tensor.shape).reshape(-1)
            for scale, tensor in zip(scales, tensors, strict=bool(scales))
        ]
        _check(tensors, std, [std, *stds])
        _add_there(flat, stds or std, randomness)
        for tensor, numbers in zip(tensors, flat, strict=True):
            if not tensor.is_contiguous():  # its flat form was a copy
                tensor.copy_(numbers.view(tensor.shape))


def _check(tensors: Sequence[torch.Tensor], std: float, stds: Sequence[Any]) -> None:
    import torch

    if wrong := {t.dtype for t in tensors} - {torch.float32, torch.float64}:
        raise TypeError(f"noise is added to float32 or float64 tensors only, not {wrong.pop()}")
    known = [torch.as_tensor(own, dtype=torch.float64) for own in stds]
    if std != 0 and not all(((s >= LEAST_STD) & (s <= LARGEST_STD)).all() for s in known):
        raise ValueError(
            f"a standard deviation must be 0, or from {LEAST_STD:g} to {LARGEST_STD:g}, not {std}"
        )


# -- the grid --------------------------------------------------------------------------------------


def grid_step(std: Scale) -> Scale:
    """Return the largest power of two that is at most std / 64, for one or for each.

    Rounding to a multiple of it has a variance of at most g²/12, below 3e-5 of the noise's.

    >>> grid_step(1.0), grid_step(0.99)
    (0.015625, 0.0078125)
    """
    _, exponent = np.frexp(std)
    step = np.ldexp(FINENESS, exponent - 1)
    return step if isinstance(std, np.ndarray) else float(step)


class Pairs(NamedTuple):
    """Undecided pairs of numbers: their bits (p,) as in `polar`, and their places."""

    words: np.ndarray
    turns: np.ndarray
    cosines: np.ndarray
    sines: np.ndarray

    def places(self, count: int) -> np.ndarray:
        """Return the places, below `count`, of all cosines and then of all sines.

        If the count is odd, the last sine is unused.
        """
        places = np.concatenate([self.cosines, self.sines])
        return places[:-1] if len(places) and places[-1] == count else places


@dataclass(eq=False)
class GaussianGrid:
    """Adds N(0, std²) to sums and rounds them to a grid.

    Guarantee: `add` is post-processing of sums + N(0, std² I) over real numbers, if the bits are
    uniform and independent: of each sum the nearest multiple of the step, exactly. It is the
    Gaussian mechanism of multiplier σ on three conditions. Adding or removing one unit changes the
    sums by at most C in L2 norm, std = σC, and the step does not depend on the units.

    Args:
        stream: source of bits. Sums of one length take the same number of them.
        refinement: source of the further bits. How many are taken depends on the sums.
    """

    stream: KeyStream
    refinement: KeyStream

    def add(self, sums: np.ndarray, std: Scale, step: Scale) -> None:
        """Overwrite sums with the noisy ones, block by block. Elements that are not finite stay.

        Args:
            sums: (n,) float32 or float64.
            std: one, or (n,) of float64.
            step: of the grid, a power of two, one or (n,) of float64.
        """
        largest, size = min(AT_ONCE, len(sums)), sums.itemsize
        gaussian = Gaussian(self.stream, sums.dtype, largest)
        off, decided = np.empty(largest, sums.dtype), np.empty(largest, bool)
        waiting: list[Pairs] = []
        for start in range(0, len(sums), AT_ONCE):
            some = slice(start, start + AT_ONCE)
            block, ratio = sums[some], _at(std, some) / _at(step, some)
            nearest, off, decided = (
                gaussian.draw(len(block)),
                off[: len(block)],
                decided[: len(block)],
            )
            nearest *= _like(ratio, block)
            with np.errstate(over="ignore", invalid="ignore"):
                # The product is exact: a power of two.
                np.multiply(block, _like(1.0 / _at(step, some), block), out=off)
                off += nearest
                np.rint(off, out=nearest)
                off -= nearest
            np.abs(off, out=off)
            np.less_equal(off, _like(0.5 - SLACK[size] - MARGIN[size] * ratio, off), out=decided)
            if not (nearest.max() <= LARGEST[size] and nearest.min() >= -LARGEST[size]):
                decided &= np.abs(nearest) <= LARGEST[size]
            # A pair is decided where both of its numbers are.
            radius = gaussian.radius
            both, sines = decided[: len(radius)], decided[len(radius) :]
            both[: len(sines)] &= sines
            both &= radius >= NEAREST
            both &= radius <= FARTHEST
            left = np.flatnonzero(~both)
            pairs = Pairs(gaussian.words[left], gaussian.turns[left], left, len(radius) + left)
            places = pairs.places(len(block))
            nearest *= _like(_at(step, some), block)
            nearest[places] = block[places]
            np.add(nearest, 0.0, out=block)  # -0.0 would tell on which side of 0 it was
            # Level 2 looks at many pairs at once, by their places in all of the sums.
            waiting.append(pairs._replace(cosines=start + pairs.cosines, sines=start + pairs.sines))
            count = sum(len(each.words) for each in waiting)
            if count >= WAITING or (count and start + AT_ONCE >= len(sums)):
                joined = map(np.concatenate, zip(*waiting, strict=True))
                self._refine(sums, std, step, Pairs(*joined))
                waiting = []

    def _refine(self, sums: np.ndarray, std: Scale, step: Scale, pairs: Pairs) -> None:
        """Overwrite the sums that level 1 left undecided, by levels 2 and 3."""
        places = pairs.places(len(sums))
        exact = sums[places].astype(np.float64)  # (m,) all cosines, then all sines
        std, step = (np.broadcast_to(_at(scale, places), exact.shape) for scale in (std, step))
        more = self.refinement.fill(np.empty((2, len(pairs.words)), np.uint64))
        z, ratio = refined(pairs.words, pairs.turns, more).ravel()[: len(exact)], std / step
        with np.errstate(over="ignore", invalid="ignore"):
            whole = np.rint(exact / step)
            off = exact / step - whole + z * ratio
            nearest = np.rint(off)
            values = (whole + nearest) * step + 0.0  # of a large multiple the leading 53 bits
        values = np.where(np.isfinite(exact), values, exact)
        decided = np.abs(off - nearest) <= 0.5 - SLACK_2 - MARGIN_2 * ratio
        # The logarithms of extreme words are not accurate enough here.
        known = (pairs.words > 0) & (pairs.words < 2**WORD_BITS - 1)
        decided &= np.tile(known, 2)[: len(exact)]
        third: dict[int, ExactPair] = {}
        for i in np.flatnonzero(~decided & np.isfinite(exact)).tolist():
            is_sine, pair = divmod(i, len(pairs.words))
            if pair not in third:
                further, turn_bits = more[:, pair].tolist(), 8 * pairs.turns.itemsize + MORE_BITS
                word = int(pairs.words[pair]) << MORE_BITS | further[0]
                turn = int(pairs.turns[pair]) << MORE_BITS | further[1]
                bits = (word, WORD_BITS + MORE_BITS), (turn, turn_bits)
                third[pair] = ExactPair(*bits, self.refinement)
            values[i] = third[pair].nearest(exact[i], std[i], step[i], sine=bool(is_sine))
        sums[places] = values


def _at(scale: Scale, places: slice | np.ndarray) -> Scale:
    return scale[places] if isinstance(scale, np.ndarray) else scale


def _like(scale: Scale, sums: np.ndarray) -> Scale:
    """Return numbers that do not make a sum more precise than it is."""
    return scale.astype(sums.dtype) if isinstance(scale, np.ndarray) else scale


# -- Gaussian numbers by Box and Muller's formula, at three levels ---------------------------------


class Gaussian:
    """Level 1: draws from N(0, 1) into its own memory, which stays in the CPU's cache.

    NumPy draws number by number, which is three times slower. Torch's float32 numbers never exceed
    5.8 standard deviations, and a mechanism that is cut off there needs a larger δ.

    Args:
        stream: source of bits.
        dtype: float32 or float64.
        most: the largest number of draws per call.

    Attributes:
        words: (pairs,) int64, turns: (pairs,) int32 or int64, radius: (pairs,): of the last draw,
            as in `polar`.
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
        """Return the next (count,) numbers: all cosines of pairs, then all sines.

        The caller may change them, and the next call overwrites them.
        """
        pairs = -(-count // 2)
        bits = self._stream.fill(self._bits[: pairs * (8 + self._turn.itemsize)])
        words = bits[: 8 * pairs].view(np.uint64)
        self.words = np.right_shift(words, np.uint64(1), out=words).view(np.int64)
        self.turns = bits[8 * pairs :].view(self._turn)
        self.radius = self._radius[:pairs]
        return polar(self.words, self.turns, self.radius, self._numbers[: 2 * pairs])[:count]


def polar(words: np.ndarray, turns: np.ndarray, radius: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Turn uniform bits into Gaussian numbers. Return `out`.

    Args:
        words: (n,) int64, at least 0: the leading 63 bits of a share u of 1. The squared radius is
            -2 ln u, with u in the middle of its possible values. A float32 keeps the leading 24 of
            the bits wherever they are, so small words, the far tail, lose none.
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


def refined(words: np.ndarray, turns: np.ndarray, more: np.ndarray) -> np.ndarray:
    """Level 2: return (2, n) cosines and sines of `polar`, from more bits of each word and turn.

    `more` is (2, n) uint64, the next bits of both.
    """
    further, angle = (more + 0.5) * 2.0**-MORE_BITS, turns.astype(np.float64)
    below = (words + further[0]) * 2.0**-WORD_BITS
    above = (2**WORD_BITS - 1 - words + (1.0 - further[0])) * 2.0**-WORD_BITS  # 1 - below
    logs = np.where(words < 2 ** (WORD_BITS - 1), np.log(below), np.log1p(-np.minimum(above, 0.5)))
    angle = (angle + further[1]) * (2.0 * math.pi / 2.0 ** (8 * turns.itemsize))
    return np.sqrt(-2.0 * logs) * np.stack([np.cos(angle), np.sin(angle)])


@dataclass
class ExactPair:
    """Level 3: sqrt(-2 ln u) · cos 2πv and sqrt(-2 ln u) · sin 2πv of uniform u and v, exactly.

    Args:
        word: the leading bits of u as a whole number, and their count.
        turn: the same of v, below 0 for a v below 0.
        stream: source of all further bits.
    """

    word: tuple[int, int]
    turn: tuple[int, int]
    stream: KeyStream

    def nearest(self, total: float, std: float, step: float, *, sine: bool) -> float:
        """Return the multiple of `step` nearest to total + std · Z, with Z the cosine or the sine.

        Bits are drawn until both ends of the interval that holds Z agree.
        """
        whole, ratio = Fraction(total) / Fraction(step), Fraction(std) / Fraction(step)
        while True:
            (word, word_bits), (turn_word, turn_bits) = self.word, self.turn
            if word:  # 0 has no logarithm
                context = MPIntervalContext()  # of its own: precision is a property of a context
                context.prec = max(word_bits, turn_bits) + GUARD_BITS
                u = context.mpf([word, word + 1]) / 2**word_bits
                turn = context.mpf([turn_word, turn_word + 1]) / 2**turn_bits
                wave = (context.sin if sine else context.cos)(2 * context.pi * turn)
                ends = (context.sqrt(-2 * context.log(u)) * wave)._mpi_
                low, high = (
                    math.floor(whole + ratio * Fraction(*to_rational(end)) + Fraction(1, 2))
                    for end in ends
                )
                if low == high:
                    return float(low * Fraction(step))
            further = self.stream.fill(np.empty(2, np.uint64)).tolist()
            self.word = word << MORE_BITS | further[0], word_bits + MORE_BITS
            self.turn = turn_word << MORE_BITS | further[1], turn_bits + MORE_BITS


# -- noise for a GPU -------------------------------------------------------------------------------


class DrawnPairs(NamedTuple):
    """Normal numbers of level 1, drawn ahead for n sums that are not computed yet.

    Args:
        words: (P,) int64, as in `polar`. P is half of n, rounded up.
        turns: (P,) likewise.
        numbers: (2 P,) all cosines and then all sines. NaN where this level cannot decide.
    """

    words: np.ndarray
    turns: np.ndarray
    numbers: np.ndarray


Wanted = list[tuple[int, str]]  # how many numbers, in which format
_THREADS = ThreadPoolExecutor(NOISE_STREAMS, "noise")  # starts no thread before it is used


def _draw_ahead(
    wanted: Wanted, randomness: Randomness
) -> tuple[Wanted, list[DrawnPairs], list[Future[None]]]:
    """Let each stream draw its part of the numbers in its own thread."""
    drawn = []
    for count, dtype in wanted:
        pairs, turn = -(-count // 2), np.dtype(dtype).itemsize
        words, turns = np.empty(pairs, np.int64), np.empty(pairs, f"i{turn}")
        drawn.append(DrawnPairs(words, turns, np.empty(2 * pairs, dtype)))

    def fill(number: int, stream: KeyStream) -> None:
        step = AT_ONCE // 2  # pairs that stay in the processor's cache
        for words, turns, numbers in drawn[number :: len(randomness.ahead)]:
            pairs = len(words)
            gaussian = Gaussian(stream, numbers.dtype, min(AT_ONCE, 2 * pairs))
            for start in range(0, pairs, step):
                stop = min(start + step, pairs)
                cosines, sines = np.split(gaussian.draw(2 * (stop - start)), 2)
                # NaN decides nothing, so such pairs go to level 2, as on the processor.
                unsure = ~((gaussian.radius >= NEAREST) & (gaussian.radius <= FARTHEST))
                cosines[unsure] = sines[unsure] = np.nan
                words[start:stop], turns[start:stop] = gaussian.words, gaussian.turns
                numbers[start:stop], numbers[pairs + start : pairs + stop] = cosines, sines

    return wanted, drawn, [_THREADS.submit(fill, *each) for each in enumerate(randomness.ahead)]


def _add_there(
    flat: Sequence[torch.Tensor], stds: float | Sequence[torch.Tensor], randomness: Randomness
) -> None:
    """Overwrite flat tensors of a device with the noisy ones, about JOINED numbers at a time."""
    import torch

    pieces = [piece for numbers in flat for piece in numbers.split(JOINED)]
    groups: list[list[int]] = []  # places of pieces: a part of a large tensor, or many small ones
    size = 0
    for i, piece in enumerate(pieces):
        size += len(piece)
        if not groups or size > JOINED or piece.dtype != pieces[groups[-1][0]].dtype:
            groups, size = [*groups, []], len(piece)
        groups[-1].append(i)
    own = [] if isinstance(stds, float) else [x for each in stds for x in each.split(JOINED)]
    wanted = [
        (sum(len(pieces[i]) for i in group), str(pieces[group[0]].dtype).removeprefix("torch."))
        for group in groups
    ]
    # Take out the numbers drawn ahead before they are used, so no step can get them again, and
    # have threads draw those of the next step. Numbers for sums of other sizes are thrown away.
    known = randomness.drawn_ahead.pop() if randomness.drawn_ahead else None
    for future in known[2] if known else ():  # a stream serves one thread at a time
        future.result()
    if known is None or known[0] != wanted:
        known = _draw_ahead(wanted, randomness)
        for future in known[2]:
            future.result()
    randomness.drawn_ahead.append(_draw_ahead(wanted, randomness))
    grid = GaussianGrid(randomness.ahead[0], randomness.refinement[0])  # for its further bits
    for group, drawn in zip(groups, known[1], strict=True):
        sums = torch.cat([pieces[i] for i in group])
        std = stds if isinstance(stds, float) else torch.cat([own[i] for i in group])
        _round_there(sums, std, drawn, grid)
        for i, noisy in zip(group, sums.split([len(pieces[i]) for i in group]), strict=True):
            pieces[i].copy_(noisy)


def _round_there(
    sums: torch.Tensor, std: float | torch.Tensor, drawn: DrawnPairs, grid: GaussianGrid
) -> None:
    """Overwrite sums (n,) on a device with the noisy ones: level 1 there, the others here.

    The device computes products with powers of two, one other product, sums and roundings. About
    one pair in 150 stays undecided at level 1 and moves to the CPU.
    """
    import torch

    count, pairs, size = len(sums), len(drawn.words), sums.element_size()
    if isinstance(std, float):
        step: Any = grid_step(std)
        there, ratio, inverse = step, std / step, 1.0 / step
    else:
        step = torch.ldexp(torch.full_like(std, FINENESS), torch.frexp(std).exponent - 1)
        there, ratio, inverse = (x.to(sums.dtype) for x in (step, std / step, 1.0 / step))
    off = torch.from_numpy(drawn.numbers[:count]).to(sums.device) * ratio
    off.add_(sums * inverse)  # exact product: a power of two
    nearest = off.round()
    off.sub_(nearest).abs_()
    decided = (off <= 0.5 - SLACK[size] - MARGIN[size] * ratio) & (nearest.abs() <= LARGEST[size])
    # A pair is decided if both its numbers are. If the count is odd, the last sine is unused.
    both = decided[:pairs].clone()
    both[: count - pairs] &= decided[pairs:]
    left = torch.nonzero(~both).flatten()
    places = torch.cat([left, pairs + left])
    places = places[places < count]
    exact = sums[places].cpu().numpy()
    sums.copy_(nearest.mul_(there).add_(0.0))  # -0.0 would tell on which side of 0 it was
    if not len(exact):
        return
    chosen, own = left.cpu().numpy(), np.arange(len(left))
    open_pairs = Pairs(drawn.words[chosen], drawn.turns[chosen], own, len(own) + own)
    stds, steps = (x if isinstance(x, float) else x[places].cpu().numpy() for x in (std, step))
    grid._refine(exact, stds, steps, open_pairs)
    sums[places] = torch.from_numpy(exact).to(sums.device)
