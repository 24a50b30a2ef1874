"""Noisy sums are those of real numbers, rounded; each level of refinement is tried by itself."""

import mpmath
import numpy as np
import pytest
from scipy import stats

from twinset.privacy.mechanism import noise
from twinset.privacy.mechanism.noise import ExactPair, GaussianGrid, grid_step, polar, refined
from twinset.privacy.mechanism.randomness import KeyStream

KEYS = bytes(32), bytes([1] * 32)
MANY = 40_001  # an odd number of several blocks
STD, STEP = 0.8, 2.0**-9  # finer than grids are: more is close to a half
mpmath.mp.prec = 200


def sums(count=MANY, dtype=np.float32):
    return (3 * np.random.default_rng(0).standard_normal(count)).astype(dtype)


class Watched(GaussianGrid):
    """Keeps which pairs were refined, in order: their bits are the refinement stream's."""

    def __init__(self):
        super().__init__(*map(KeyStream, KEYS))
        self.refined = []

    def _refine(self, sums, std, step, pairs):
        self.refined.append(pairs.cosines)
        super()._refine(sums, std, step, pairs)


def pair_of(word, turn, turn_bits):
    """Return cosine and sine of (word, bits) and turn, to 200 bits, in the middle of the rest."""
    u, v = (mpmath.ldexp(2 * n + 1, -b - 1) for n, b in (word, (turn, turn_bits)))
    cosine, sine = mpmath.cos_sin(2 * mpmath.pi * v)
    radius = mpmath.sqrt(-2 * mpmath.log(u))
    return radius * cosine, radius * sine


def true_numbers(watched, count, dtype):
    """Return the (count,) Gaussian numbers that all bits drawn stand for, by mpmath."""
    first, second = map(KeyStream, KEYS)
    further, out, size = {}, [None] * count, np.dtype(dtype).itemsize
    for places in watched.refined:  # further bits of both, by the place of the cosine
        more = second.fill(np.empty((2, len(places)), np.uint64)).T.tolist()
        further |= dict(zip(places.tolist(), more, strict=True))
    for start in range(0, count, noise.AT_ONCE):
        pairs = -(-min(noise.AT_ONCE, count - start) // 2)
        bits = first.fill(np.empty(pairs * (8 + size), np.uint8))
        words, turns = bits[: 8 * pairs].view(np.uint64) >> 1, bits[8 * pairs :].view(f"i{size}")
        for i, (word, turn) in enumerate(zip(words.tolist(), turns.tolist(), strict=True)):
            a, b = further.get(start + i, (1 << 63, 1 << 63))  # unknown: about the middle
            z = pair_of((word << 64 | a, 127), turn << 64 | b, 8 * size + 64)
            for place, number in zip((start + i, start + i + pairs), z, strict=True):
                if place < count:
                    out[place] = number
    return out


def rounded(exact, z, std=STD, step=STEP):
    return [
        int(mpmath.floor(mpmath.mpf(s) / step + mpmath.mpf(std) / step * n + 0.5)) * step
        for s, n in zip(exact.tolist(), z, strict=True)
    ]


def noisy(exact, std=STD, step=STEP):
    watched, out = Watched(), exact.copy()
    watched.add(out, std, step)
    return watched, out


@pytest.fixture(scope="module", autouse=True)
def small_blocks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise, "AT_ONCE", 1 << 13)
        patch.setattr(noise, "WAITING", 300)
        yield


def test_every_released_number_is_rounded_as_the_real_one_and_without_a_margin_some_are_not(
    monkeypatch,
):
    watched, out = noisy(sums())
    truth = np.array(rounded(sums(), true_numbers(watched, MANY, np.float32)))
    assert np.array_equal(out, truth)
    share = sum(map(len, watched.refined)) / (MANY / 2)
    assert 0.01 < share < 0.1  # some were refined, by far not all
    monkeypatch.setattr(noise, "MARGIN", {4: 0.0})
    monkeypatch.setattr(noise, "SLACK", {4: 0.0})
    monkeypatch.setattr(noise, "NEAREST", 0.0)
    wrong = noisy(sums())[1] != truth
    assert 1 <= wrong.sum() < 0.01 * MANY


SIZES = [  # precision, size of the sums, standard deviation
    (np.float32, 1.0, 0.8),
    (np.float64, 1.0, 0.3),
    (np.float64, 1e15, 0.3),  # multiples that have more bits than a float64
    (np.float32, 1e9, 100.0),
    (np.float32, 1e-30, 1e-30),
    (np.float32, 1e-44, 1e20),
]


@pytest.mark.parametrize(("dtype", "scale", "std"), SIZES)
def test_sums_of_any_size_are_rounded_as_exactly(dtype, scale, std):
    exact = (sums(2001, np.float64) * scale).astype(dtype)
    step = grid_step(std)
    watched, out = noisy(exact, std, step)
    truth = rounded(exact, true_numbers(watched, len(exact), dtype), std, step)
    assert np.array_equal(out, np.array(truth, dtype=np.float64).astype(dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("level", [2, 3])
def test_each_level_is_exact_where_it_is_forced(dtype, level, monkeypatch):
    monkeypatch.setattr(noise, "MARGIN", {4: 1.0, 8: 1.0})
    if level == 3:
        monkeypatch.setattr(noise, "MARGIN_2", 1.0)
    count = 9001 if level == 2 else 301
    exact, step = sums(count, dtype), 2.0**-20
    watched, out = noisy(exact, STD, step)
    assert sum(map(len, watched.refined)) == -(-count // 2)
    assert np.array_equal(out, rounded(exact, true_numbers(watched, count, dtype), STD, step))


def test_level_3_takes_bits_until_they_are_enough():
    """The noise is 2³⁰⁰ steps wide, so that 127 bits leave the multiple open, and 319 may do."""
    pair = ExactPair((5 << 60, 63), (-3 << 28, 32), KeyStream(KEYS[0]))
    found = [pair.nearest(0.5, 2.0**300, 1.0, sine=sine) for sine in (False, True)]
    word, turn = 5 << 60, -3 << 28
    with mpmath.workprec(800):
        for a, b in KeyStream(KEYS[0]).fill(np.empty((8, 2), np.uint64)).tolist():
            word, turn = word << 64 | a, turn << 64 | b
        z = pair_of((word, 63 + 8 * 64), turn, 32 + 8 * 64)
        assert found == [float(int(mpmath.floor(mpmath.ldexp(n, 300) + 1))) for n in z]


class Zeros(KeyStream):
    """A stream that begins with zeros."""

    def __init__(self, key, calls):
        super().__init__(key)
        self._calls = calls

    def fill(self, out):
        self._calls -= 1
        return super().fill(out) if self._calls < 0 else out.__imul__(np.uint64(0))


def test_no_tail_ends_and_extreme_words_are_left_to_level_3(monkeypatch):
    pair = ExactPair((0, 63), (1 << 20, 32), Zeros(KEYS[0], 4))
    assert 18 < pair.nearest(0.0, 1.0, 2.0**-6, sine=False) < 23  # 319 zeros: sqrt(638 ln 2) = 21
    pair = ExactPair((2**63 - 1, 63), (0, 32), KeyStream(KEYS[0]))
    assert pair.nearest(0.0, 1.0, 2.0**-6, sine=False) == 0.0

    monkeypatch.setattr(noise.ExactPair, "nearest", lambda *given, **which: 7.0)
    grid, out = GaussianGrid(KeyStream(KEYS[0]), KeyStream(KEYS[1])), np.zeros(4)
    grid.stream.fill = lambda bits: np.copyto(bits, 0) or bits
    grid.add(out, 1.0, 2.0**-6)
    assert out.tolist() == [7.0] * 4


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numpy_errs_by_far_less_than_the_margin(dtype):
    """What level 1 assumes of NumPy's functions, over 2.6 million numbers, where they are used."""
    largest, size = 0.0, np.dtype(dtype).itemsize
    for seed in range(20):
        raw = np.random.default_rng(seed)
        words = raw.integers(0, 2**63, 1 << 16)
        turns = raw.integers(-(2 ** (8 * size - 1)), 2 ** (8 * size - 1), 1 << 16, f"i{size}")
        more = raw.integers(0, 2**64, (2, 1 << 16), np.uint64)
        radius, out = np.empty(1 << 16, dtype), np.empty(1 << 17, dtype)
        off = polar(words, turns, radius, out) - refined(words, turns, more).ravel()
        used = np.tile((radius >= noise.NEAREST) & (radius <= noise.FARTHEST), 2)
        largest = max(largest, float(np.abs(off[used]).max()))
    assert 0 < largest < noise.MARGIN[size] / 3


def test_level_2_errs_by_far_less_than_its_margin():
    raw, small = np.random.default_rng(1), 2 ** np.arange(62)
    words = np.concatenate([raw.integers(0, 2**63, 2000), small, [2**62], 2**63 - 1 - small])
    turns = raw.integers(-(2**31), 2**31, len(words)).astype(np.int32)
    more = raw.integers(0, 2**64, (2, len(words)), np.uint64)
    drawn = zip(words.tolist(), turns.tolist(), more.T.tolist(), strict=True)
    for (word, turn, (a, b)), z in zip(drawn, refined(words, turns, more).T.tolist(), strict=True):
        truth = pair_of((word << 64 | a, 127), turn << 64 | b, 96)
        off = max(abs(x - y) for x, y in zip(truth, z, strict=True))
        assert off < noise.MARGIN_2 / 16


def is_on_grid_as_gaussian(multiples, centre, std):
    """Whether numbers could be the nearest whole ones to a Gaussian's, by a chi-square test."""
    assert (multiples == np.rint(multiples)).all()
    low, high = int(multiples.min()), int(multiples.max())
    below = stats.norm.cdf(np.arange(low, high + 2) - 0.5, centre, std)
    below[0], below[-1] = 0.0, 1.0
    expected = len(multiples) * np.diff(below)
    counted = np.bincount((multiples - low).astype(int), minlength=len(expected))
    few = expected < 20
    observed, expected = ([*x[~few][1:], x[few].sum() + x[~few][0]] for x in (counted, expected))
    return stats.chisquare(observed, expected).pvalue > 1e-4


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("std", [1.0, 0.999])
def test_the_grid_has_gaussian_probabilities(dtype, std):
    step = grid_step(std)
    multiples = noisy(np.full(400_000, 0.3, dtype), std, step)[1].astype(np.float64) / step
    centre, wide = float(np.array(0.3, dtype)) / step, std / step
    assert is_on_grid_as_gaussian(multiples, centre, wide)
    for wrong in ((centre, wide * 2 / 3), (centre, wide * 3 / 2), (centre + 5, wide)):
        assert not is_on_grid_as_gaussian(multiples, *wrong)


@pytest.mark.parametrize("std", [1e-30, 0.7, 1.0, 1.9999, 1e30])
def test_the_grid_follows_from_the_standard_deviation_alone(std):
    step = grid_step(std)
    assert np.log2(step) == round(np.log2(step)) and 64 <= std / step < 128
    assert step**2 / 12 < 3e-5 * std**2
    assert grid_step(np.array([std, 2 * std])).tolist() == [step, 2 * step]


def test_each_number_may_have_its_own_noise_and_grid(monkeypatch):
    monkeypatch.setattr(noise, "AT_ONCE", 1000)
    std = np.repeat([0.1, 1.0, 30.0], 50_000)
    out = noisy(np.zeros(150_000, np.float32), std, grid_step(std))[1]
    for part, own in zip(np.split(out.astype(float), 3), (0.1, 1.0, 30.0), strict=True):
        assert is_on_grid_as_gaussian(part / grid_step(own), 0.0, own / grid_step(own))
    one = noisy(np.zeros(150_000, np.float32), 1.0, grid_step(1.0))[1]
    assert np.array_equal(out[50_000:100_000], one[50_000:100_000])


def test_zero_has_no_sign_and_infinite_sums_stay():
    """-0.0 is what NumPy rounds a small negative number to: its sign is a bit of the sum's."""
    out = noisy(np.zeros(200_000, np.float32), 1.0, 2.0**-6)[1]
    assert (out == 0).sum() > 500 and not np.signbit(out[out == 0]).any()
    assert np.signbit(np.rint(np.float32(-0.3)))
    exact = np.array([np.inf, 1.0, -np.inf, np.nan, 2.0], np.float32)
    out = noisy(exact, 1e-3, grid_step(1e-3))[1]
    assert np.array_equal(np.isfinite(out), np.isfinite(exact))
    assert out[0] == np.inf and out[2] == -np.inf and np.isnan(out[3])
