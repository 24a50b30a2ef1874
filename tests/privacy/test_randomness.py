"""Key streams are fresh, private and apart. Poisson batches draw each record by itself."""

import numpy as np
import pytest
import torch
from scipy import stats

from twinset.privacy.mechanism.noise import add_gaussian_
from twinset.privacy.mechanism.randomness import KeyStream, Randomness, poisson_batches


def noise_of(randomness):
    return add_gaussian_(torch.zeros(8), 1.0, randomness).tolist()


def bits_of(stream):
    return stream.fill(np.empty(32, np.uint8)).tobytes()


def test_the_key_stream_is_aes_in_counter_mode():
    """AES-256 of the blocks 0 and 1 under the key 0, from published vectors."""
    stream = KeyStream(bytes(32)).fill(np.empty(32, np.uint8)).tobytes().hex()
    assert stream == "dc95c078a2408989ad48a21492842087" + "530f8afbc74536b9a963b4f1c4cb738b"


def test_the_operating_system_gives_fresh_randomness_whatever_the_seeds():
    made = []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)
        made.append(Randomness.from_os())
    assert all(randomness.is_private for randomness in made)
    assert noise_of(made[0]) != noise_of(made[1])
    assert bits_of(made[0].sampling) != bits_of(made[1].sampling)


def test_test_randomness_repeats_and_is_not_private():
    one, two = Randomness.for_tests(5), Randomness.for_tests(5)
    assert noise_of(one) == noise_of(two) != noise_of(Randomness.for_tests(6))
    assert bits_of(one.sampling) == bits_of(two.sampling)
    assert not one.is_private and "tests" in one.description


def test_no_key_is_used_twice():
    for randomness in (Randomness.from_os(), Randomness.for_tests(5)):
        streams = (*randomness.noise, *randomness.refinement, *randomness.ahead)
        assert len({bits_of(stream) for stream in (randomness.sampling, *streams)}) == 13


# -- Poisson batches -------------------------------------------------------------------------------

N, RATE, STEPS = 60, 0.15, 4000


def membership(batches):
    """Return (steps, N) of 0 and 1."""
    table = np.zeros((STEPS, N))
    for step, batch in zip(range(STEPS), batches, strict=False):
        table[step, batch] = 1
    return table


def is_poisson_sampling(table):
    """Inclusion rate of every record, size, pairs, and steps in a row, each as for free coins."""
    rates = stats.binomtest(int(table.sum()), table.size, RATE).pvalue
    off = (table.sum(0) - STEPS * RATE) ** 2 / (STEPS * RATE * (1 - RATE))
    each = stats.chi2(N).sf(float(off.sum()))
    free = (STEPS - 1) * table.sum(1).var(ddof=1) / (N * RATE * (1 - RATE))
    spread = stats.chi2(STEPS - 1).cdf(float(free))
    pairs = table[:, 0::2] * table[:, 1::2]
    again = table[1:] * table[:-1]
    both = [stats.binomtest(int(x.sum()), x.size, RATE**2).pvalue for x in (pairs, again)]
    return min(rates, each, 2 * min(spread, 1 - spread), *both) > 1e-4


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


SAMPLERS = {
    "Poisson": lambda: poisson_batches(N, RATE, STEPS, Randomness.for_tests(1)),
    "two thirds": lambda: poisson_batches(N, RATE * 2 / 3, STEPS, Randomness.for_tests(1)),
    "three halves": lambda: poisson_batches(N, RATE * 3 / 2, STEPS, Randomness.for_tests(1)),
    "shuffled": shuffled_batches,
    "of one size": fixed_size_batches,
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_each_record_enters_each_step_independently_and_other_samplers_are_noticed(name):
    assert is_poisson_sampling(membership(SAMPLERS[name]())) == (name == "Poisson")


@pytest.mark.parametrize("n", [99, 100, 250])
def test_records_are_drawn_some_at_a_time_and_as_if_at_once(n, monkeypatch):
    monkeypatch.setattr("twinset.privacy.mechanism.randomness.AT_ONCE", 100)
    stream = Randomness.for_tests(7).sampling
    for batch in poisson_batches(n, 0.25, 5, Randomness.for_tests(7)):
        words = stream.fill(np.empty(n, np.uint64))
        assert batch.tolist() == np.flatnonzero(words < 2**62).tolist()
