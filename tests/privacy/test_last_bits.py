"""Who reads the last bits of what leaves learns no more than ε allows; who read them before did.

Each attack is shown to work on the mechanism that was here first, floating-point noise added to
floating-point numbers (Mironov 2012).
"""

import numpy as np
import pytest
import torch
from scipy import stats

from twinset.policies import MechanismParams
from twinset.policies.policy import Uniform
from twinset.privacy.mechanism.counts import release_label_counts
from twinset.privacy.mechanism.noise import AT_ONCE, Gaussian, grid_step
from twinset.privacy.mechanism.randomness import KeyStream, Randomness

MANY = 200_000
SIGMA_COUNTS = 9.0


def float_noise(dtype, seed):
    """Return (MANY,) numbers as they were drawn before there was a grid."""
    gaussian = Gaussian(KeyStream(bytes([seed] * 32)), np.dtype(dtype), AT_ONCE)
    draws = [gaussian.draw(AT_ONCE).copy() for _ in range(-(-MANY // AT_ONCE))]
    return np.concatenate(draws)[:MANY]


def float_counts(count, seed):
    return np.maximum(count + SIGMA_COUNTS * float_noise(np.float64, seed), 0.0)


def rounded_counts(count, seed):
    """Return MANY releases of one count, as many labels of one release."""
    labels, randomness = [(i,) for i in range(MANY)], Randomness.for_tests(seed)
    released, _ = release_label_counts(labels * count, labels, SIGMA_COUNTS, randomness)
    assert all(type(number) is int for number in released)
    return np.array(released)


@pytest.fixture(scope="module")
def released_counts():
    return {count: rounded_counts(count, 3 + count) for count in (0, 1)}


def test_no_label_count_shows_what_it_is_not(released_counts):
    """At ε = 8, of which the old one broke δ 1,500 times over."""

    def not_one(published):  # z near -1 is a multiple of 2⁻⁵³, and with it 1 + z
        last = published * 2.0**53
        return ((published > 0) & (published < 0.5) & (last != np.rint(last))).mean()

    assert not_one(float_counts(0, 1)) == pytest.approx(0.0148, abs=0.003)
    assert not_one(float_counts(1, 2)) == not_one(released_counts[0]) == 0


def is_rounded(counts, centre, std):
    """Whether whole numbers, those below 0 counted as 0, are a Gaussian number's."""
    edges = np.arange(int(3 * std)) + 0.5
    cells = np.diff(stats.norm.cdf([-np.inf, *edges, np.inf], centre, std))
    counted = np.bincount(np.clip(counts, 0, len(cells) - 1), minlength=len(cells))
    return stats.chisquare(counted, len(counts) * cells).pvalue > 1e-4


@pytest.mark.parametrize("count", [0, 1])
def test_label_counts_are_rounded_gaussian_numbers_of_one_support(released_counts, count):
    found = released_counts[count]
    assert set(range(int(3 * SIGMA_COUNTS))) <= set(found.tolist())
    assert is_rounded(found, count, SIGMA_COUNTS)
    for wrong in ((count, SIGMA_COUNTS * 2 / 3), (count, SIGMA_COUNTS * 3 / 2)):
        assert not is_rounded(found, *wrong)
    assert not is_rounded(found, 1 - count, SIGMA_COUNTS)


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
    sums, _ = Uniform(params).release([torch.full((MANY,), float(total))], [])
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
