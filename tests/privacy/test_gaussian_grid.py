"""Noisy sums are those of real numbers, rounded; each level of refinement is tried by itself.

So is noise for a GPU, which processor threads draw ahead. Who reads the last bits of what leaves
learns no more than ε allows.
"""

import mpmath
import numpy as np
import pytest
import torch

from tests.conftest import opened
from tests.helpers.pretended import DEVICE, pretending
from twinset.policies import MechanismParams
from twinset.policies.policy import Uniform
from twinset.privacy.mechanism import noise
from twinset.privacy.mechanism.counts import release_label_counts
from twinset.privacy.mechanism.noise import (
    ExactPair,
    Gaussian,
    GaussianGrid,
    _add_there,
    add_gaussian_,
    add_gaussian_to_each_,
    grid_step,
    polar,
    refined,
)
from twinset.privacy.mechanism.randomness import KeyStream, Randomness

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


@pytest.mark.parametrize("std", [1e-30, 0.7, 1.0, 1.9999, 1e30])
def test_the_grid_follows_from_the_standard_deviation_alone(std):
    step = grid_step(std)
    assert np.log2(step) == round(np.log2(step)) and 64 <= std / step < 128
    assert step**2 / 12 < 3e-5 * std**2
    assert grid_step(np.array([std, 2 * std])).tolist() == [step, 2 * step]


def test_each_number_may_have_its_own_noise_and_grid(monkeypatch):
    monkeypatch.setattr(noise, "AT_ONCE", 1000)
    own = (0.1, 1.0, 30.0)
    std = np.repeat(own, 50_000)
    out = np.split(noisy(np.zeros(150_000, np.float32), std, grid_step(std))[1], 3)
    for place, one in enumerate(own):
        alone = noisy(np.zeros(150_000, np.float32), one, grid_step(one))[1]
        assert np.array_equal(out[place], np.split(alone, 3)[place])
        assert not np.array_equal(out[place - 1], np.split(alone, 3)[place - 1])


def test_zero_has_no_sign_and_infinite_sums_stay():
    """-0.0 is what NumPy rounds a small negative number to: its sign is a bit of the sum's."""
    out = noisy(np.zeros(200_000, np.float32), 1.0, 2.0**-6)[1]
    assert (out == 0).sum() > 500 and not np.signbit(out[out == 0]).any()
    assert np.signbit(np.rint(np.float32(-0.3)))
    exact = np.array([np.inf, 1.0, -np.inf, np.nan, 2.0], np.float32)
    out = noisy(exact, 1e-3, grid_step(1e-3))[1]
    assert np.array_equal(np.isfinite(out), np.isfinite(exact))
    assert out[0] == np.inf and out[2] == -np.inf and np.isnan(out[3])


# -- for a GPU: drawn ahead, used once -------------------------------------------------------------

SHAPES = [(3, 5), (700,), (2, 40)]


def noisy_there(exact, std, seed=1):
    """Add noise to one array as on a GPU, with the processor in its place."""
    out = torch.from_numpy(exact.copy())
    own = [torch.from_numpy(std)] if isinstance(std, np.ndarray) else std
    _add_there([out], own, Randomness.for_tests(seed))
    return out.numpy()


def truth_there(exact, std):
    """Return the multiples by mpmath, from the bits that were drawn; further bits: their middle."""
    _, drawn, futures = noise._draw_ahead([(len(exact), exact.dtype.name)], Randomness.for_tests(1))
    for future in futures:
        future.result()
    words, turns = (x.tolist() for x in (drawn[0].words, drawn[0].turns))
    bits = 64 + 8 * exact.itemsize
    pairs = [
        pair_of((word << 64 | 1 << 63, 127), turn << 64 | 1 << 63, bits)
        for word, turn in zip(words, turns, strict=True)
    ]
    numbers = [z for both in zip(*pairs, strict=True) for z in both][: len(exact)]
    return np.array(rounded(exact, numbers, std, grid_step(std)), float).astype(exact.dtype)


@pytest.mark.parametrize(("dtype", "scale", "std"), SIZES)
def test_every_number_of_a_gpu_is_rounded_as_the_real_one(dtype, scale, std, monkeypatch):
    """What is rounded there, what level 2 rounds where all is left to it, and one std for each."""
    exact = (sums(2001, np.float64) * scale).astype(dtype)
    expected = truth_there(exact, std)
    assert np.array_equal(noisy_there(exact, std), expected)
    assert np.array_equal(noisy_there(exact, np.full(len(exact), std)), expected)
    monkeypatch.setattr(noise, "SLACK", dict.fromkeys(noise.SLACK, 1.0))
    assert np.array_equal(noisy_there(exact, std), expected)


def test_without_a_margin_some_of_them_would_be_wrong(monkeypatch):
    exact = sums(100_001)
    expected = noisy_there(exact, 0.8)
    for bound in ("MARGIN", "SLACK"):
        monkeypatch.setattr(noise, bound, dict.fromkeys(noise.MARGIN, 0.0))
    monkeypatch.setattr(noise, "FARTHEST", 100.0)
    monkeypatch.setattr(noise, "NEAREST", 0.0)
    assert not np.array_equal(noisy_there(exact, 0.8), expected)


def test_no_number_is_used_twice_and_none_depends_on_a_sum(monkeypatch):
    """Three steps draw what one stream of numbers holds in a row, whatever the sums are."""
    taken: list[np.ndarray] = []
    plain = noise._round_there

    def watched(sums, std, drawn, grid):
        taken.append(drawn.words.copy())
        plain(sums, std, drawn, grid)

    monkeypatch.setattr(noise, "_round_there", watched)
    for scale in (1.0, 1e6):
        randomness = Randomness.for_tests(2)
        for _ in range(3):
            _add_there([torch.full((4001,), scale)], 0.7, randomness)
        _add_there([torch.zeros(17)], 0.7, randomness)  # drawn now: what was ahead does not fit
    once = np.concatenate(taken[:4])
    assert len(np.unique(once)) == len(once) == 3 * 2001 + 9
    assert np.array_equal(once, np.concatenate(taken[4:]))
    ((wanted, drawn, futures),) = randomness.drawn_ahead  # those of the next step
    assert wanted == [(17, "float32")] and all(future.result() is None for future in futures)
    assert not set(drawn[0].words) & set(once)


def test_a_step_that_used_its_numbers_again_would_be_noticed(monkeypatch):
    """The control of the above: noise that is never taken out."""
    kept = noise._draw_ahead([(50, "float32")], Randomness.for_tests(1))
    monkeypatch.setattr(noise, "_draw_ahead", lambda wanted, randomness: kept)
    again = Randomness.for_tests(1)
    first, second = torch.zeros(50), torch.zeros(50)
    _add_there([first], 0.7, again)
    _add_there([second], 0.7, again)
    assert torch.equal(first, second)


def test_tensors_of_a_processor_get_their_noise_one_by_one_and_of_a_device_joined(monkeypatch):
    def to_each(place):
        totals = [torch.zeros(shape).to(place) for shape in SHAPES]
        add_gaussian_to_each_(totals, 1.5, Randomness.for_tests(3))
        return torch.cat([total.cpu().flatten() for total in totals])

    randomness, joined = Randomness.for_tests(3), torch.zeros(795)
    apart = [add_gaussian_(torch.zeros(shape), 1.5, randomness).flatten() for shape in SHAPES]
    assert torch.equal(to_each("cpu"), torch.cat(apart))
    _add_there([joined], 1.5, Randomness.for_tests(3))
    with pretending():
        assert torch.equal(to_each(DEVICE), joined)
        monkeypatch.setattr(noise, "JOINED", 720)  # the first two, and the last one
        first = torch.zeros(715)
        _add_there([first], 1.5, Randomness.for_tests(3))
        assert torch.equal(to_each(DEVICE)[:715], first)


# -- the last bits ---------------------------------------------------------------------------------

# Each attack is shown to work on the mechanism that was here first, floating-point noise added to
# floating-point numbers (Mironov 2012).
DRAWS = 200_000
SIGMA_COUNTS = 9.0


def float_noise(dtype, seed):
    """Return (DRAWS,) numbers as they were drawn before there was a grid."""
    gaussian = Gaussian(KeyStream(bytes([seed] * 32)), np.dtype(dtype), noise.AT_ONCE)
    draws = [gaussian.draw(noise.AT_ONCE).copy() for _ in range(-(-DRAWS // noise.AT_ONCE))]
    return np.concatenate(draws)[:DRAWS]


def float_counts(count, seed):
    return np.maximum(count + SIGMA_COUNTS * float_noise(np.float64, seed), 0.0)


def test_no_label_count_shows_what_it_is_not():
    """At ε = 8, of which the old one broke δ 1,500 times over."""
    labels = [(i,) for i in range(DRAWS)]  # none of which a record has
    keys = Randomness.for_tests(3)
    released = opened(release_label_counts([], labels, SIGMA_COUNTS, keys))
    assert all(type(number) is int for number in released)

    def not_one(published):  # z near -1 is a multiple of 2⁻⁵³, and with it 1 + z
        last = published * 2.0**53
        return ((published > 0) & (published < 0.5) & (last != np.rint(last))).mean()

    assert not_one(float_counts(0, 1)) == pytest.approx(0.0148, abs=0.003)
    assert not_one(float_counts(1, 2)) == not_one(np.array(released)) == 0


# One step of SGD on one weight that starts at 0, as every LoRA's second factor does.
LEARNING_RATE, EXPECTED_RECORDS, CLIPPED_TO = np.float32(0.3), np.float32(48), 1.0


def step_of(noisy):
    """Return float32 weights after the step."""
    return (np.float32(0) - LEARNING_RATE * (noisy / EXPECTED_RECORDS)).astype(np.float32)


def old_release(total, sigma, seed):
    """float32 noise added to float32 sums."""
    return np.float32(total) + np.float32(sigma * CLIPPED_TO) * float_noise(np.float32, seed)


def new_release(total, sigma, seed):
    params = MechanismParams(sigma, CLIPPED_TO, 0.1, Randomness.for_tests(seed))
    sums, _ = Uniform(params).release([torch.full((DRAWS,), float(total))], [])
    return sums[0].numpy()


def shown_not_to_be_c(weights):
    """The share of weights that no sum C + z leads to: z near -C are multiples of 2⁻²⁵ C."""
    about = -weights.astype(np.float64) * 48 / 0.3  # what leads to each weight
    step = 2.0**-25 * CLIPPED_TO
    near = np.rint(about / step)[:, None] + np.arange(-4, 5)  # (n, 9) multiples of it
    possible = (step_of((near * step).astype(np.float32)) == weights[:, None]).any(1)
    return ((np.abs(about) < CLIPPED_TO / 4) & ~possible).mean()


@pytest.mark.parametrize("sigma", [0.5, 2.0])
def test_weights_after_one_step_show_nothing_and_any_table_may_lead_to_each(sigma):
    """All sums are multiples of one step, whatever was summed; so weights are of one set."""
    assert shown_not_to_be_c(step_of(old_release(0.0, sigma, 1))) > 0.02
    assert shown_not_to_be_c(step_of(old_release(CLIPPED_TO, sigma, 2))) == 0
    step = grid_step(sigma * CLIPPED_TO)
    for total in (0.0, CLIPPED_TO, 0.1):
        released = new_release(total, sigma, 3)
        assert total == 0.1 or shown_not_to_be_c(step_of(released)) == 0
        multiples = released.astype(np.float64) / step
        assert (multiples == np.rint(multiples)).all()
        assert not np.signbit(released[released == 0]).any()
        assert set(range(-100, 101)) <= set(np.rint(multiples - total / step).astype(int).tolist())
    multiples = old_release(0.1, sigma, 3).astype(np.float64) / step
    assert (multiples != np.rint(multiples)).any()
