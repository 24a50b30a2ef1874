import tracemalloc

import numpy as np
import pytest
import torch
from scipy import stats

from twinset.privacy.accounting.events import GaussianRelease
from twinset.privacy.mechanism import noise
from twinset.privacy.mechanism.counts import (
    proportional_rows,
    release_label_counts,
    without_negatives,
)
from twinset.privacy.mechanism.noise import add_gaussian_
from twinset.privacy.mechanism.randomness import Randomness, poisson_batches


def is_gaussian(draws, std):
    """Whether draws could be N(0, std²), by Kolmogorov-Smirnov and by their variance."""
    shape = stats.kstest(draws / std, "norm").pvalue
    spread = stats.chi2(len(draws)).cdf(float(np.sum((draws / std) ** 2)))
    return shape > 1e-4 and 1e-4 < spread < 1 - 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_has_the_stated_standard_deviation(dtype):
    tensor = torch.full((50, 400), 3.0, dtype=dtype)
    out = add_gaussian_(tensor, 2.5, Randomness.for_tests(1))
    assert out is tensor and tensor.dtype == dtype
    draws = (tensor - 3.0).double().flatten().numpy()
    assert is_gaussian(draws, 2.5)
    assert not is_gaussian(draws, 2.5 * 2 / 3)
    assert not is_gaussian(draws, 2.5 * 3 / 2)


def test_elements_and_calls_are_independent():
    randomness = Randomness.for_tests(2)
    first, second = (add_gaussian_(torch.zeros(20_000), 1.0, randomness) for _ in range(2))
    assert abs(np.corrcoef(first.numpy(), second.numpy())[0, 1]) < 0.03
    assert abs(np.corrcoef(first.numpy()[1:], first.numpy()[:-1])[0, 1]) < 0.03


def test_many_numbers_are_drawn_side_by_side_from_different_streams(monkeypatch):
    monkeypatch.setattr(noise, "AT_ONCE", 300)
    monkeypatch.setattr(noise, "THREADS_FROM", 1000)
    randomness = Randomness.for_tests(4)
    drawn = add_gaussian_(torch.zeros(40_000), 2.0, randomness).numpy()
    assert is_gaussian(drawn, 2.0)
    parts = np.array(np.array_split(drawn, len(randomness.noise)))
    correlations = np.corrcoef(parts) - np.eye(len(parts))
    assert np.abs(correlations).max() < 0.05
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    alone = add_gaussian_(torch.zeros(40_000), 2.0, Randomness.for_tests(4)).numpy()
    assert np.array_equal(drawn, alone)  # threads do not change what is drawn


def test_views_and_gradients_get_noise_in_place():
    base = torch.zeros(4, 6, requires_grad=True)
    add_gaussian_(base, 1.0, Randomness.for_tests(3))
    assert base.grad_fn is None and bool((base != 0).all())
    whole = torch.zeros(4, 6)
    add_gaussian_(whole.t(), 1.0, Randomness.for_tests(3))
    assert bool((whole != 0).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64])
def test_low_precision_is_refused(dtype):
    with pytest.raises(TypeError, match="float32 or float64"):
        add_gaussian_(torch.zeros(3, dtype=dtype), 1.0, Randomness.for_tests(0))


@pytest.mark.parametrize("std", [-1.0, float("nan"), float("inf")])
def test_impossible_standard_deviations_are_refused(std):
    with pytest.raises(ValueError, match="standard deviation"):
        add_gaussian_(torch.zeros(3), std, Randomness.for_tests(0))


def noise_of(randomness):
    return add_gaussian_(torch.zeros(8), 1.0, randomness).tolist()


def bits_of(stream):
    return stream.fill(np.empty(32, np.uint8)).tobytes()


def test_the_operating_system_gives_fresh_randomness_each_time():
    one, two = Randomness.from_os(), Randomness.from_os()
    assert one.is_private and two.is_private
    assert noise_of(one) != noise_of(two)
    assert bits_of(one.sampling) != bits_of(two.sampling)


def test_global_seeds_do_not_reach_the_noise():
    drawn = []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)
        drawn.append(noise_of(Randomness.from_os()))
    assert drawn[0] != drawn[1]


def test_test_randomness_repeats_and_is_not_private():
    one, two = Randomness.for_tests(5), Randomness.for_tests(5)
    assert noise_of(one) == noise_of(two)
    assert bits_of(one.sampling) == bits_of(two.sampling)
    assert not one.is_private and "tests" in one.description
    assert noise_of(Randomness.for_tests(6)) != noise_of(Randomness.for_tests(5))


def test_sampling_and_noise_are_separate_streams():
    for randomness in (Randomness.from_os(), Randomness.for_tests(5)):
        streams = (randomness.sampling, *randomness.noise)
        assert len({bits_of(stream) for stream in streams}) == len(streams) > 2


LABELS = [("bad",)] * 400 + [("good",)] * 600
PUBLIC = [("bad",), ("good",), ("mixed",)]


def test_label_counts_carry_the_stated_noise_and_their_event():
    randomness = Randomness.for_tests(7)
    released = [release_label_counts(LABELS, PUBLIC, 20.0, randomness) for _ in range(2000)]
    assert {event for _, event in released} == {GaussianRelease(20.0, "label counts")}
    draws = (np.array([counts for counts, _ in released])[:, :2] - [400, 600]).flatten()
    assert is_gaussian(draws, 20.0)
    assert not is_gaussian(draws, 20.0 * 2 / 3)
    assert not is_gaussian(draws, 20.0 * 3 / 2)


def test_combinations_without_records_get_noise_too():
    randomness = Randomness.for_tests(8)
    empty = [release_label_counts(LABELS, PUBLIC, 20.0, randomness)[0][2] for _ in range(200)]
    assert is_gaussian(np.array(empty, float), 20.0)


def test_counts_all_below_zero_become_uniform():
    assert without_negatives((-5, -1, 0)) == without_negatives((-5, 4, 1)) == (1, 1, 1)
    assert without_negatives((-5, 4, 2)) == (0, 1, 0)


def test_combinations_without_records_get_few_rows():
    """Set to 0 alone, noise below 0 leaves what is above: rows of labels that no record has."""
    labels, public = [(i % 10,) for i in range(3000)], [(i,) for i in range(200)]
    noisy, _ = release_label_counts(labels, public, 7.0, Randomness.for_tests(9))
    cut = np.maximum(noisy, 0)
    kept = np.array(without_negatives(noisy))
    assert kept.min() == 0 and kept.sum() == sum(noisy)
    assert kept[10:].sum() / kept.sum() < 0.04 < 0.1 < cut[10:].sum() / cut.sum()
    assert np.abs(kept[:10] - 300).max() < 50


def test_a_label_outside_the_public_set_is_refused_without_showing_it():
    with pytest.raises(ValueError, match="row 2 ") as error:
        release_label_counts([("bad",), ("secret",)], PUBLIC, 1.0, Randomness.for_tests(0))
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("public", [[], [("bad",), ("bad",)]])
def test_the_public_set_must_be_a_set(public):
    with pytest.raises(ValueError, match="distinct"):
        release_label_counts([], public, 1.0, Randomness.for_tests(0))


@pytest.mark.parametrize(
    ("counts", "rows", "expected"),
    [
        ((1.0, 1.0, 1.0), 10, (4, 3, 3)),
        ((0.0, 2.5), 7, (0, 7)),
        ((5.0, 3.0, 2.0), 0, (0, 0, 0)),
        ((1e-9, 1e9), 3, (0, 3)),
        ((0.1, 0.2, 0.7), 10, (1, 2, 7)),
    ],
)
def test_rows_are_shared_out_exactly(counts, rows, expected):
    assert proportional_rows(counts, rows) == expected


@pytest.mark.parametrize("counts", [(0.0, 0.0), (-1.0, 2.0), (float("nan"), 1.0), ()])
def test_counts_without_proportions_are_refused(counts):
    with pytest.raises(ValueError):
        proportional_rows(counts, 5)


N, RATE, STEPS = 60, 0.15, 4000


def membership(batches):
    """Return (steps, N) of 0 and 1."""
    table = np.zeros((STEPS, N))
    for step, batch in enumerate(batches):
        table[step, batch] = 1
    return table


def is_poisson_sampling(table):
    """Inclusion rate of every record, variance of the size, and pairs, each as for N free coins."""
    rates = stats.binomtest(int(table.sum()), table.size, RATE).pvalue
    each = stats.chi2(N).sf(
        float(np.sum((table.sum(0) - STEPS * RATE) ** 2) / (STEPS * RATE * (1 - RATE)))
    )
    sizes = table.sum(1)
    free = (STEPS - 1) * sizes.var(ddof=1) / (N * RATE * (1 - RATE))
    spread = stats.chi2(STEPS - 1).cdf(float(free))
    pairs = (table[:, 0::2] * table[:, 1::2]).sum()
    together = stats.binomtest(int(pairs), STEPS * N // 2, RATE**2).pvalue
    return min(rates, each, 2 * min(spread, 1 - spread), together) > 1e-4


def shuffled_batches():
    """What most loaders do: a permutation cut into batches of one size."""
    rng, size = np.random.default_rng(0), round(N * RATE)
    while True:
        order = rng.permutation(N)
        yield from (order[i : i + size] for i in range(0, N - size + 1, size))


def fixed_size_batches():
    rng = np.random.default_rng(0)
    while True:
        yield rng.choice(N, round(N * RATE), replace=False)


def first(batches):
    return (batch for batch, _ in zip(batches, range(STEPS), strict=False))


def test_each_record_enters_each_step_independently():
    assert is_poisson_sampling(membership(poisson_batches(N, RATE, STEPS, Randomness.for_tests(1))))


@pytest.mark.parametrize("factor", [2 / 3, 3 / 2])
def test_another_rate_is_noticed(factor):
    batches = poisson_batches(N, RATE * factor, STEPS, Randomness.for_tests(1))
    assert not is_poisson_sampling(membership(batches))


@pytest.mark.parametrize("sampler", [shuffled_batches, fixed_size_batches])
def test_samplers_of_one_size_are_noticed(sampler):
    assert not is_poisson_sampling(membership(first(sampler())))


def test_steps_are_independent_of_each_other():
    table = membership(poisson_batches(N, RATE, STEPS, Randomness.for_tests(2)))
    again = (table[1:] * table[:-1]).sum()
    assert stats.binomtest(int(again), (STEPS - 1) * N, RATE**2).pvalue > 1e-4


@pytest.mark.parametrize("n", [1, 99, 100, 101, 250])
def test_records_are_drawn_some_at_a_time_and_as_if_at_once(n, monkeypatch):
    monkeypatch.setattr("twinset.privacy.mechanism.randomness.AT_ONCE", 100)
    stream = Randomness.for_tests(7).sampling
    for batch in poisson_batches(n, 0.25, 5, Randomness.for_tests(7)):
        words = stream.fill(np.empty(n, np.uint64))
        assert batch.tolist() == np.flatnonzero(words < 2**62).tolist()


def test_memory_does_not_grow_with_the_number_of_records():
    tracemalloc.start()
    try:
        (batch,) = poisson_batches(3_000_000, 1e-4, 1, Randomness.for_tests(8))
        assert 150 < len(batch) < 500 and batch.max() > 2_000_000
        assert tracemalloc.get_traced_memory()[1] < 3e6  # 64 bits of each were 24 MB
    finally:
        tracemalloc.stop()


def test_empty_batches_are_yielded():
    sizes = [len(b) for b in poisson_batches(3, 0.1, 200, Randomness.for_tests(4))]
    assert len(sizes) == 200 and 0 in sizes


def test_rate_one_takes_everything():
    (batch,) = poisson_batches(5, 1.0, 1, Randomness.for_tests(5))
    assert sorted(batch.tolist()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("n", "rate", "steps"), [(0, 0.1, 1), (5, 0.0, 1), (5, 1.1, 1), (5, 0.1, 0), (5, np.nan, 1)]
)
def test_bad_arguments_raise_before_the_first_batch(n, rate, steps):
    with pytest.raises(ValueError):
        poisson_batches(n, rate, steps, Randomness.for_tests(0))
