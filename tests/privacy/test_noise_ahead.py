"""Noise for sums on a GPU: drawn ahead by processor threads, used once, rounded as real numbers."""

import math

import numpy as np
import pytest
import torch

from tests.helpers.pretended import DEVICE, pretending
from tests.privacy.test_gaussian_grid import pair_of, rounded, sums
from tests.privacy.test_randomness import bits_of, is_gaussian
from twinset.privacy.mechanism import noise
from twinset.privacy.mechanism.noise import (
    _add_there,
    add_gaussian_,
    add_gaussian_to_each_,
    grid_step,
)
from twinset.privacy.mechanism.randomness import Randomness

SIZES = [(3, 5), (700,), (2, 40)]
STRETCH = [torch.linspace(0.5, 2, math.prod(size)).view(size) for size in SIZES]


def noisy(exact, std, seed=1):
    """Add noise to one array as on a GPU, with the processor in its place."""
    out = torch.from_numpy(exact.copy())
    own = [torch.from_numpy(std)] if isinstance(std, np.ndarray) else std
    _add_there([out], own, Randomness.for_tests(seed))
    return out.numpy()


def truth(exact, std):
    """Return the multiples by mpmath, from the bits that were drawn; further bits: their middle."""
    drawn = noise._draw_ahead([(len(exact), exact.dtype.name)], Randomness.for_tests(1))
    for future in drawn[2]:
        future.result()
    words, turns = (x.tolist() for x in (drawn[1][0].words, drawn[1][0].turns))
    bits = 64 + 8 * exact.itemsize
    pairs = [
        pair_of((word << 64 | 1 << 63, 127), turn << 64 | 1 << 63, bits)
        for word, turn in zip(words, turns, strict=True)
    ]
    numbers = [z for both in zip(*pairs, strict=True) for z in both][: len(exact)]
    return np.array(rounded(exact, numbers, std, grid_step(std)), float).astype(exact.dtype)


@pytest.mark.parametrize(
    ("dtype", "scale", "std"),
    [
        (np.float32, 1.0, 0.8),
        (np.float64, 1.0, 0.3),
        (np.float64, 1e15, 0.3),  # multiples that have more bits than a float64
        (np.float32, 1e9, 100.0),
        (np.float32, 1e-30, 1e-30),
        (np.float32, 1e-44, 1e20),
    ],
)
def test_every_released_number_is_rounded_as_the_real_one(dtype, scale, std, monkeypatch):
    """What is rounded there, what level 2 rounds where all is left to it, and one std for each."""
    exact = (sums(2001, np.float64) * scale).astype(dtype)
    expected = truth(exact, std)
    assert np.array_equal(noisy(exact, std), expected)
    assert np.array_equal(noisy(exact, np.full(len(exact), std)), expected)
    monkeypatch.setattr(noise, "SLACK", dict.fromkeys(noise.SLACK, 1.0))
    assert np.array_equal(noisy(exact, std), expected)


def test_without_a_margin_some_would_be_wrong(monkeypatch):
    exact = sums(100_001)
    expected = noisy(exact, 0.8)
    for bound in ("MARGIN", "SLACK"):
        monkeypatch.setattr(noise, bound, dict.fromkeys(noise.MARGIN, 0.0))
    monkeypatch.setattr(noise, "FARTHEST", 100.0)
    monkeypatch.setattr(noise, "NEAREST", 0.0)
    assert not np.array_equal(noisy(exact, 0.8), expected)


def test_the_noise_is_gaussian_and_what_is_not_finite_stays():
    out = noisy(np.full(200_000, 0.3, np.float32), 2.5)
    draws = (out - np.float32(0.3)).astype(float)
    assert is_gaussian(draws, 2.5)
    assert not is_gaussian(draws, 2.5 * 2 / 3) and not is_gaussian(draws, 2.5 * 3 / 2)
    assert not np.signbit(out[out == 0]).any()
    ends = noisy(np.array([np.inf, 1.0, -np.inf, np.nan, 1e300]), 1e-3)
    assert np.isfinite(ends).tolist() == [False, True, False, False, True]
    assert ends[0] == np.inf and ends[2] == -np.inf and ends[4] == 1e300


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


def test_a_step_that_used_its_numbers_again_would_be_noticed(monkeypatch):
    """The control of the above: noise that is never taken out."""
    kept = noise._draw_ahead([(50, "float32")], Randomness.for_tests(1))
    monkeypatch.setattr(noise, "_draw_ahead", lambda wanted, randomness: kept)
    again = Randomness.for_tests(1)
    first, second = torch.zeros(50), torch.zeros(50)
    _add_there([first], 0.7, again)
    _add_there([second], 0.7, again)
    assert torch.equal(first, second)


def test_the_next_numbers_are_drawn_while_a_step_is_computed():
    randomness = Randomness.for_tests(4)
    _add_there([torch.zeros(4001)], 0.7, randomness)
    ((wanted, drawn, futures),) = randomness.drawn_ahead
    for future in futures:
        future.result()
    assert wanted == [(4001, "float32")] and np.isfinite(drawn[0].numbers).mean() > 0.99


def test_no_key_is_used_twice():
    for randomness in (Randomness.from_os(), Randomness.from_os(), Randomness.for_tests(5)):
        streams = (randomness.sampling, *randomness.noise, *randomness.refinement)
        assert len({bits_of(s) for s in (*streams, *randomness.ahead)}) == len(streams) + 4


@pytest.mark.parametrize("scaled", [False, True])
def test_of_a_sum_little_is_copied_from_its_device(monkeypatch, scaled):
    """About one pair in 150; the control copies all of it."""
    count = 10_001
    scales = torch.linspace(0.5, 2, count)
    copied: list[int] = []
    plain = noise.GaussianGrid._refine
    monkeypatch.setattr(
        noise.GaussianGrid, "_refine", lambda *a: copied.append(len(a[1])) or plain(*a)
    )
    with pretending() as reads:
        there = torch.zeros(count).to(DEVICE)
        own = [scales.to(DEVICE)] if scaled else []
        add_gaussian_to_each_([there], 1.0, Randomness.for_tests(1), own)
        assert 0 < sum(copied) < count / 20 and reads["copies"] <= 4
        here = torch.zeros(count)
        _add_there([here], [scales.double()] if scaled else 1.0, Randomness.for_tests(1))
        assert torch.equal(there.cpu(), here)
        add_gaussian_(there, 1.0, Randomness.for_tests(1))  # the control
        assert sum(copied) > count


def to_each(scales=()):
    totals = [torch.zeros(size).to(DEVICE) for size in SIZES]
    add_gaussian_to_each_(totals, 1.5, Randomness.for_tests(3), [s.to(DEVICE) for s in scales])
    return flat(totals)


def flat(tensors):
    return torch.cat([tensor.cpu().flatten() for tensor in tensors])


def to_one(count, std=1.5):
    total = torch.zeros(count)
    _add_there([total], std, Randomness.for_tests(3))
    return total


def test_tensors_of_a_processor_get_their_noise_one_by_one():
    randomness, totals = Randomness.for_tests(3), [torch.zeros(size) for size in SIZES]
    add_gaussian_to_each_(totals, 1.5, Randomness.for_tests(3))
    apart = [add_gaussian_(torch.zeros(size), 1.5, randomness) for size in SIZES]
    assert torch.equal(flat(totals), flat(apart))


def test_tensors_of_a_device_get_their_noise_joined(monkeypatch):
    with pretending():
        assert torch.equal(to_each(), to_one(795))
        assert torch.equal(to_each(STRETCH), to_one(795, [1.5 * flat(STRETCH).double()]))
        monkeypatch.setattr(noise, "JOINED", 720)  # the first two, and the last one
        assert torch.equal(to_each()[:715], to_one(715))
        assert not torch.equal(to_each(), to_one(795))


@pytest.mark.parametrize(("dtype", "std"), [(torch.bfloat16, 1.0), (torch.float32, -1.0)])
def test_what_is_refused_on_a_processor_is_refused_there(dtype, std):
    with pretending(), pytest.raises((TypeError, ValueError)):
        add_gaussian_to_each_([torch.zeros(4, dtype=dtype).to(DEVICE)], std, Randomness.from_os())
