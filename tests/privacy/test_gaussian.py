"""The noise's shape, into the tails, and its independence; each test is shown to notice a fault."""

import numpy as np
import pytest
from scipy import stats

from twinset.privacy.mechanism.noise import Gaussian, polar
from twinset.privacy.mechanism.randomness import KeyStream

MANY, AT_ONCE = 1 << 24, 1 << 16


def many(seed=1, dtype=np.float32):
    gaussian = Gaussian(KeyStream(bytes([seed] * 32)), np.dtype(dtype), AT_ONCE)
    return np.concatenate([gaussian.draw(AT_ONCE).copy() for _ in range(MANY // AT_ONCE)])


@pytest.fixture(scope="module")
def draws():
    return many()


def tails_are_gaussian(draws):
    """Whether as many numbers as should lie beyond 1 … 5 standard deviations, on either side."""
    beyond = [(int((s * draws > z).sum()), stats.norm.sf(z)) for z in range(1, 6) for s in (-1, 1)]
    return min(stats.binomtest(k, len(draws), p).pvalue for k, p in beyond) > 1e-4


def test_the_tails_are_gaussian(draws):
    assert tails_are_gaussian(draws)


@pytest.mark.parametrize(
    "broken",
    [lambda d: 1.001 * d, lambda d: d[np.abs(d) < 4.5], lambda d: d + 0.001, lambda d: np.tanh(d)],
    ids=["0.1 % too wide", "cut off at 4.5", "shifted by 0.001", "squashed"],
)
def test_other_tails_are_noticed(draws, broken):
    assert not tails_are_gaussian(broken(draws))


def test_the_whole_distribution_is_gaussian(draws):
    assert stats.kstest(draws[: 1 << 20], "norm").pvalue > 1e-4
    assert stats.kstest(many(2, np.float64)[: 1 << 20], "norm").pvalue > 1e-4


def are_independent(x, y):
    """Whether neither the numbers nor their squares go together."""
    pairs = ((x, y), (x**2, y**2), (x, y**2))
    return all(abs(np.corrcoef(a, b)[0, 1]) < 5 / np.sqrt(len(x)) for a, b in pairs)


def test_the_two_numbers_of_a_pair_are_independent(draws):
    rows = draws[: 1 << 22].reshape(-1, 2, AT_ONCE // 2)
    cosines, sines = rows[:, 0].ravel(), rows[:, 1].ravel()
    assert are_independent(cosines, sines)
    assert not are_independent(cosines, np.roll(cosines, 1) * np.abs(cosines))


def test_neighbours_and_calls_are_independent(draws):
    assert are_independent(draws[:-1:2], draws[1::2])
    assert are_independent(draws[:AT_ONCE], draws[AT_ONCE : 2 * AT_ONCE])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_extreme_bits_give_finite_numbers(dtype):
    largest = np.iinfo(np.int64).max
    words = np.array([0, 1, 2, largest, largest])
    turns = np.array([0, 0, 0, 0, -1], f"i{np.dtype(dtype).itemsize}")
    out = polar(words, turns, np.empty(5, dtype), np.empty(10, dtype))
    assert np.isfinite(out).all()
    assert out[0] == pytest.approx(np.sqrt(2 * 64 * np.log(2)), rel=1e-6)  # 9.42: as far as it goes
    assert np.abs(out[3:5]).max() < 1e-3


def test_an_odd_count_and_later_calls_follow_the_same_stream():
    gaussian = Gaussian(KeyStream(bytes(32)), np.dtype(np.float64), 8)
    first, second = gaussian.draw(5).copy(), gaussian.draw(8).copy()
    assert len(first) == 5 and len(second) == 8
    assert len(set(first) | set(second)) == 13


def test_the_key_stream_is_aes_in_counter_mode():
    """AES-256 of the blocks 0 and 1 under the key 0, from published vectors."""
    stream = KeyStream(bytes(32)).fill(np.empty(32, np.uint8)).tobytes().hex()
    assert stream == "dc95c078a2408989ad48a21492842087" + "530f8afbc74536b9a963b4f1c4cb738b"


def test_a_long_array_continues_the_stream():
    whole = KeyStream(bytes(32)).fill(np.empty((3, 1 << 19), np.uint8)).ravel()
    stream = KeyStream(bytes(32))
    parts = [stream.fill(np.empty(n, np.uint8)) for n in (5, (1 << 20) + 3)]
    joined = np.concatenate(parts)
    assert np.array_equal(joined, whole[: len(joined)])
