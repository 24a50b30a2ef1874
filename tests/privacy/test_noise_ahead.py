"""Noise for sums on a GPU: drawn ahead by processor threads, used once, rounded as real numbers."""

import numpy as np
import pytest
import torch

from tests.helpers.pretended import DEVICE, pretending
from tests.privacy.test_gaussian_grid import SIZES, pair_of, rounded, sums
from twinset.privacy.mechanism import noise
from twinset.privacy.mechanism.noise import (
    _add_there,
    add_gaussian_,
    add_gaussian_to_each_,
    grid_step,
)
from twinset.privacy.mechanism.randomness import Randomness

SHAPES = [(3, 5), (700,), (2, 40)]


def noisy(exact, std, seed=1):
    """Add noise to one array as on a GPU, with the processor in its place."""
    out = torch.from_numpy(exact.copy())
    own = [torch.from_numpy(std)] if isinstance(std, np.ndarray) else std
    _add_there([out], own, Randomness.for_tests(seed))
    return out.numpy()


def truth(exact, std):
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
