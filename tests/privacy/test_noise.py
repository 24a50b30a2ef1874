"""All noise has the stated standard deviation and a Gaussian's shape, into the tails.

One table of all ways in which noise is drawn. Key streams are fresh, private and apart. Poisson
batches draw each record by itself. Each test is shown to notice a fault.
"""

import numpy as np
import pytest
import torch
from scipy import stats

from tests.conftest import opened
from twinset.privacy.accounting.events import GaussianRelease
from twinset.privacy.mechanism import noise
from twinset.privacy.mechanism.counts import (
    TokenWeights,
    release_label_counts,
    release_token_marginals,
)
from twinset.privacy.mechanism.noise import Gaussian, _add_there, add_gaussian_
from twinset.privacy.mechanism.randomness import KeyStream, Randomness, poisson_batches
from twinset.privacy.mechanism.vector_sum import VectorSum

MANY, AT_ONCE = 1 << 24, 1 << 16
STD = 2.5


def is_gaussian(draws, std):
    """Whether draws could be N(0, std²), by Kolmogorov-Smirnov and by their variance."""
    shape = stats.kstest(draws / std, "norm").pvalue
    spread = stats.chi2(len(draws)).cdf(float(np.sum((draws / std) ** 2)))
    return shape > 1e-4 and 1e-4 < spread < 1 - 1e-4


def added(dtype, randomness):
    tensor = torch.full((50, 400), 3.0, dtype=dtype)
    assert add_gaussian_(tensor, STD, randomness) is tensor and tensor.dtype == dtype
    return (tensor - 3.0).double().flatten().numpy(), STD


def scaled(randomness):
    scales = torch.linspace(0.5, 2, 20_000)
    return (add_gaussian_(torch.zeros(20_000), STD, randomness, scales) / scales).numpy(), STD


def for_a_gpu(randomness):
    numbers = torch.full((20_000,), 0.3)
    _add_there([numbers], STD, randomness)
    return (numbers - 0.3).numpy(), STD


def of_label_counts(randomness, most=1):
    """Half of the combinations have no record: they must get noise, too."""
    labels = [(i,) for i in range(4000)]
    noisy = release_label_counts(labels[:2000] * 3, labels, 20.0, randomness, most)
    assert noisy.event == GaussianRelease(20.0, "label counts")
    return opened(noisy) - np.repeat([3.0, 0.0], 2000), 20.0 * most


def of_token_marginals(randomness):
    weights = TokenWeights(np.full(5000, 0.5), 4.0)
    found = release_token_marginals([], (2, 2), weights, 3.0, randomness)
    assert found.event == GaussianRelease(3.0, "token marginals")
    return np.concatenate(opened(found).counts).ravel() * 0.5, 3.0 * (2 * 4.0**2) ** 0.5


WAYS = {
    "float32": lambda r: added(torch.float32, r),
    "float64": lambda r: added(torch.float64, r),
    "in threads": lambda r: added(torch.float32, r),
    "of its own size each": scaled,
    "for a GPU": for_a_gpu,
    "label counts": of_label_counts,
    "label counts by owner": lambda r: of_label_counts(r, most=5),
    "token marginals": of_token_marginals,
    "vector sum": lambda r: (opened(VectorSum(20_000).release(STD, r, "sum")), STD),
}


@pytest.mark.parametrize("way", WAYS)
def test_noise_has_the_stated_standard_deviation(way, monkeypatch):
    if way == "in threads":
        monkeypatch.setattr(noise, "AT_ONCE", 300)
        monkeypatch.setattr(noise, "THREADS_FROM", 1000)
    randomness = Randomness.for_tests(1)
    draws, std = WAYS[way](randomness)
    assert is_gaussian(draws, std)
    assert not is_gaussian(draws, std * 2 / 3) and not is_gaussian(draws, std * 3 / 2)
    assert are_independent(draws[:-1:2], draws[1::2])
    assert are_independent(draws, WAYS[way](randomness)[0])  # the next call


def test_threads_change_nothing_and_have_streams_of_their_own(monkeypatch):
    monkeypatch.setattr(noise, "AT_ONCE", 300)
    monkeypatch.setattr(noise, "THREADS_FROM", 1000)
    drawn = add_gaussian_(torch.zeros(40_000), 2.0, Randomness.for_tests(4)).numpy()
    correlations = np.corrcoef(np.array_split(drawn, noise.NOISE_STREAMS))
    assert np.abs(correlations - np.eye(noise.NOISE_STREAMS)).max() < 0.05
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    alone = add_gaussian_(torch.zeros(40_000), 2.0, Randomness.for_tests(4)).numpy()
    assert np.array_equal(drawn, alone)


def test_views_and_gradients_get_noise_in_place():
    base, whole = torch.zeros(4, 6, requires_grad=True), torch.zeros(4, 6)
    add_gaussian_(base, 1.0, Randomness.for_tests(3))
    add_gaussian_(whole.t(), 1.0, Randomness.for_tests(3))
    assert base.grad_fn is None and bool((base != 0).all()) and bool((whole != 0).all())


@pytest.mark.parametrize(
    ("dtype", "std", "error"),
    [
        *((dtype, 1.0, TypeError) for dtype in (torch.bfloat16, torch.float16, torch.int64)),
        *((torch.float32, std, ValueError) for std in (-1.0, float("nan"), float("inf"))),
    ],
)
def test_low_precision_and_impossible_standard_deviations_are_refused(dtype, std, error):
    with pytest.raises(error, match="float32 or float64|standard deviation"):
        add_gaussian_(torch.zeros(3, dtype=dtype), std, Randomness.for_tests(0))


# -- the numbers below it --------------------------------------------------------------------------


def many(seed, dtype, count):
    gaussian = Gaussian(KeyStream(bytes([seed] * 32)), np.dtype(dtype), AT_ONCE)
    return np.concatenate([gaussian.draw(AT_ONCE).copy() for _ in range(count // AT_ONCE)])


@pytest.fixture(scope="module")
def draws():
    return many(1, np.float32, MANY)


def tails_are_gaussian(draws):
    """Whether as many numbers as should lie beyond 1 … 5 standard deviations, on either side."""
    beyond = [(int((s * draws > z).sum()), stats.norm.sf(z)) for z in range(1, 6) for s in (-1, 1)]
    return min(stats.binomtest(k, len(draws), p).pvalue for k, p in beyond) > 1e-4


@pytest.mark.parametrize(
    "broken",
    [lambda d: 1.001 * d, lambda d: d[np.abs(d) < 4.5], lambda d: d + 0.001, lambda d: np.tanh(d)],
    ids=["0.1 % too wide", "cut off at 4.5", "shifted by 0.001", "squashed"],
)
def test_the_tails_are_gaussian_and_other_tails_are_noticed(draws, broken):
    assert tails_are_gaussian(draws)
    assert not tails_are_gaussian(broken(draws))


def are_independent(x, y):
    """Whether neither the numbers nor their squares go together."""
    pairs = ((x, y), (x**2, y**2), (x, y**2))
    return all(abs(np.corrcoef(a, b)[0, 1]) < 5 / np.sqrt(len(x)) for a, b in pairs)


def test_the_two_numbers_of_a_pair_are_independent(draws):
    rows = draws[: 1 << 22].reshape(-1, 2, AT_ONCE // 2)
    cosines, sines = rows[:, 0].ravel(), rows[:, 1].ravel()
    assert are_independent(cosines, sines)
    assert not are_independent(cosines, np.roll(cosines, 1) * np.abs(cosines))
    assert are_independent(draws[:AT_ONCE], draws[AT_ONCE : 2 * AT_ONCE])


# -- keys ------------------------------------------------------------------------------------------


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


def test_randomness_for_tests_repeats_and_is_not_private():
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
