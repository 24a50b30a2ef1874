import tracemalloc

import numpy as np
import pytest
from scipy import stats

from twinset.privacy.mechanism.randomness import Randomness, poisson_batches

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
