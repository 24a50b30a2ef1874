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

The processor makes all of it. For sums on a GPU, threads draw the numbers one step ahead, while the
gradient is computed (`_draw_ahead`), and the GPU only adds and rounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from twinset.privacy.mechanism.gaussian import MORE_BITS, WORD_BITS, ExactPair, Gaussian
from twinset.privacy.mechanism.randomness import NOISE_STREAMS, KeyStream, Randomness

if TYPE_CHECKING:
    import torch

THREADS_FROM = 1 << 20  # numbers
JOINED = 1 << 22  # numbers that a GPU rounds at once: each operation waits for its start
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
    A tensor of another device is computed on the processor.

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

    if tensor.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"noise is added to float32 or float64 tensors only, not {tensor.dtype}")
    with torch.no_grad():
        stds: Scale = float(std)
        if scales is not None:
            stds = std * scales.detach().cpu().double().flatten().numpy()
        _check(std, stds)
        if std == 0:
            return tensor
        flat = tensor.detach().cpu().contiguous().view(-1)
        _add(flat.numpy(), stds, randomness)
        if not (tensor.is_cpu and tensor.is_contiguous()):
            tensor.copy_(flat.view(tensor.shape))
    return tensor


def add_gaussian_to_each_(
    tensors: Sequence[torch.Tensor],
    std: float,
    randomness: Randomness,
    scales: Sequence[torch.Tensor] = (),
) -> None:
    """Do `add_gaussian_` of each tensor; for tensors of a GPU with numbers that were drawn before.

    Guarantee: that of `add_gaussian_`, for all of the tensors together, if float32 and float64 sums
    and products of the GPU are those of IEEE 754. The numbers are fresh: none is used for two
    sums, and they are drawn from streams of their own that no sum and no gradient reaches.

    Args:
        tensors: all on one device.
        std: see `add_gaussian_`, as for all that is not said here.
        randomness: see there; for tensors of a GPU its streams `ahead` are used.
        scales: one for each tensor; none: there are none.

    Raises:
        TypeError: see `add_gaussian_`.
        ValueError: see there.
    """
    import torch

    if std == 0 or not tensors or tensors[0].is_cpu:
        for i, tensor in enumerate(tensors):
            add_gaussian_(tensor, std, randomness, scales[i] if scales else None)
        return
    if wrong := {t.dtype for t in tensors} - {torch.float32, torch.float64}:
        raise TypeError(f"noise is added to float32 or float64 tensors only, not {wrong.pop()}")
    with torch.no_grad():
        flat = [tensor.detach().reshape(-1) for tensor in tensors]
        stds = [std * scale.detach().double().reshape(-1) for scale in scales]
        for own in [std, *stds]:
            _check(std, own)
        _add_there(flat, stds or std, randomness)
        for tensor, numbers in zip(tensors, flat, strict=True):
            if not tensor.is_contiguous():  # its flat form was a copy
                tensor.copy_(numbers.view(tensor.shape))


def _check(std: float, stds: Any) -> None:
    inside = (stds >= LEAST_STD) & (stds <= LARGEST_STD)
    if not (std == 0 or (inside if isinstance(inside, bool) else bool(inside.all()))):
        raise ValueError(
            f"a standard deviation must be 0, or from {LEAST_STD:g} to {LARGEST_STD:g}, not {std}"
        )


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


# -- noise for a GPU -------------------------------------------------------------------------------


@dataclass(frozen=True)
class DrawnPairs:
    """Normal numbers of level 1, for n sums that nobody has computed yet.

    Args:
        words: (P,) int64, as `polar` knows them; P is half of n, rounded up.
        turns: (P,) likewise.
        numbers: (2 P,) all cosines and then all sines. NaN where this level cannot decide.
    """

    words: np.ndarray
    turns: np.ndarray
    numbers: np.ndarray

    def fill(self, stream: KeyStream) -> None:
        """Draw all of it, in parts that stay in the processor's cache."""
        pairs, step = len(self.words), AT_ONCE // 2
        gaussian = Gaussian(stream, self.numbers.dtype, min(AT_ONCE, 2 * pairs))
        for start in range(0, pairs, step):
            stop = min(start + step, pairs)
            cosines, sines = np.split(gaussian.draw(2 * (stop - start)), 2)
            # NaN decides nothing, so such pairs go to level 2, as on the processor.
            unsure = ~((gaussian.radius >= NEAREST) & (gaussian.radius <= FARTHEST))
            cosines[unsure] = sines[unsure] = np.nan
            self.words[start:stop], self.turns[start:stop] = gaussian.words, gaussian.turns
            self.numbers[start:stop] = cosines
            self.numbers[pairs + start : pairs + stop] = sines


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
    grid = GaussianGrid(randomness.ahead[0], randomness.refinement[0])  # for its further bits
    for group, drawn in zip(groups, _take_ahead(wanted, randomness), strict=True):
        sums = torch.cat([pieces[i] for i in group])
        std = stds if isinstance(stds, float) else torch.cat([own[i] for i in group])
        _round_there(sums, std, drawn, grid)
        for i, noisy in zip(group, sums.split([len(pieces[i]) for i in group]), strict=True):
            pieces[i].copy_(noisy)


Wanted = list[tuple[int, str]]  # how many numbers, in which format


def _take_ahead(wanted: Wanted, randomness: Randomness) -> list[DrawnPairs]:
    """Return fresh numbers, and have threads draw those of the next step.

    A step's numbers are taken out before they are used, so no step can get them again. Those that
    were drawn for sums of other sizes are thrown away.
    """
    known = [randomness.drawn_ahead.pop()] if randomness.drawn_ahead else []
    for _, _, futures in known:  # a stream serves one thread at a time
        for future in futures:
            future.result()
    if not known or known[0][0] != wanted:
        known = [_draw_ahead(wanted, randomness)]
        for future in known[0][2]:
            future.result()
    randomness.drawn_ahead.append(_draw_ahead(wanted, randomness))
    return known[0][1]


def _draw_ahead(
    wanted: Wanted, randomness: Randomness
) -> tuple[Wanted, list[DrawnPairs], list[Future[None]]]:
    """Have each stream draw its part of the numbers in a thread of its own."""
    drawn = []
    for count, dtype in wanted:
        pairs, turn = -(-count // 2), np.dtype(dtype).itemsize
        words, turns = np.empty(pairs, np.int64), np.empty(pairs, f"i{turn}")
        drawn.append(DrawnPairs(words, turns, np.empty(2 * pairs, dtype)))

    def fill(number: int, stream: KeyStream) -> None:
        for each in drawn[number :: len(randomness.ahead)]:
            each.fill(stream)

    return wanted, drawn, [_THREADS.submit(fill, *each) for each in enumerate(randomness.ahead)]


_THREADS = ThreadPoolExecutor(NOISE_STREAMS, "noise")  # starts no thread before it is used


def _round_there(
    sums: torch.Tensor, std: float | torch.Tensor, drawn: DrawnPairs, grid: GaussianGrid
) -> None:
    """Overwrite sums (n,) on a device with the noisy ones: level 1 there, the others here.

    What is done there are products with powers of two, one other product, sums and roundings. What
    level 1 leaves open, about one pair in 150, comes to the processor.
    """
    import torch

    count, pairs, size = len(sums), len(drawn.words), sums.element_size()
    if isinstance(std, float):
        step: Any = grid_step(std)
        ratio, inverse = std / step, 1.0 / step
    else:
        step = torch.ldexp(torch.full_like(std, FINENESS), torch.frexp(std).exponent - 1)
        ratio, inverse = (std / step).to(sums.dtype), (1.0 / step).to(sums.dtype)
    there = step if isinstance(std, float) else step.to(sums.dtype)
    off = torch.from_numpy(drawn.numbers[:count]).to(sums.device) * ratio
    off.add_(sums * inverse)  # exact product: a power of two
    nearest = off.round()
    off.sub_(nearest).abs_()
    decided = (off <= 0.5 - SLACK[size] - MARGIN[size] * ratio) & (nearest.abs() <= LARGEST[size])
    # A pair is decided where both of its numbers are; of an odd count the last sine is nobody's.
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
    open_pairs = _Pairs(drawn.words[chosen], drawn.turns[chosen], own, len(own) + own)
    stds, steps = (x if isinstance(x, float) else x[places].cpu().numpy() for x in (std, step))
    grid._refine(exact, stds, steps, open_pairs)
    sums[places] = torch.from_numpy(exact).to(sums.device)


# -- the grid --------------------------------------------------------------------------------------


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
