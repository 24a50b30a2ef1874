"""γ records together: against brute force, a second implementation, and rules that do not hold."""

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy.stats import binom, norm

from twinset.privacy.accounting.accountant import epsilon, group_bound, group_epsilon
from twinset.privacy.accounting.events import (
    GaussianRelease,
    IndividualGaussian,
    MaskedAccess,
    NonPrivateAccess,
    SubsampledGaussian,
)

DELTA = 1e-5


def hockey_stick(mu, spent):
    """δ of N(μ, 1) against N(0, 1) by adding up on a grid; a group's μ is γ times one record's."""
    x = np.linspace(-15, 15 + mu, 40_001)
    inside = norm.pdf(x, mu) - np.exp(spent) * norm.pdf(x)
    return float(np.clip(inside, 0, None).sum() * (x[1] - x[0]))


def smallest(mu, delta):
    """ε of the same, by halving."""
    low, high = 0.0, 100.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if hockey_stick(mu, middle) > delta else (low, middle)
    return high


@pytest.mark.parametrize(("sigma", "size"), [(4.0, 2), (4.0, 5), (2.0, 3), (10.0, 20)])
def test_of_a_plain_gaussian_it_is_exact(sigma, size):
    exact = smallest(size / sigma, DELTA)
    found = group_epsilon([SubsampledGaussian(sigma, 1.0, 1)], DELTA, size)
    assert found == pytest.approx(exact, rel=1e-4)
    assert found == group_epsilon([GaussianRelease(sigma, "counts")], DELTA, size)


@pytest.mark.parametrize(("mu", "size"), [(0.25, 2), (0.25, 5), (0.5, 3), (0.1, 20)])
def test_the_general_bound_covers_a_plain_gaussian_and_other_rules_do_not(mu, size):
    """Negative controls: ε ÷ γ, which paper 003 states; γε with δ left as it is; γ - 1 for γ."""
    alone = smallest(mu, DELTA)
    spent, delta = group_bound(alone, DELTA, size)
    assert spent == size * alone

    def covers(spent, delta):
        return hockey_stick(size * mu, spent) <= delta * (1 + 1e-6)

    assert covers(spent, delta)
    assert not covers(alone / size, DELTA)
    assert not covers(alone, DELTA)
    assert not covers(*group_bound(alone / size, DELTA, size))


def test_delta_has_to_grow_too():
    """Randomised response that tells all with probability δ: γ records have γ such chances."""
    assert group_bound(0.0, DELTA, 4) == (0.0, pytest.approx(4 * DELTA))
    spent, delta = group_bound(0.5, DELTA, 3)
    assert (spent, delta) == (1.5, pytest.approx(DELTA * (1 + math.exp(0.5) + math.exp(1.0))))


@pytest.mark.parametrize("spent", [100.0, 5000.0, math.inf])
def test_a_large_epsilon_leaves_no_bound(spent):
    assert group_bound(spent, DELTA, 10) == (10 * spent, 1.0)


def mixture(step, size, pessimistic):
    """ε of a second implementation, for the group's own mixture: rounded up or down."""
    drawn = np.arange(size + 1)
    one = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        step.noise_multiplier,
        drawn.astype(float).tolist(),
        binom.pmf(drawn, size, step.sample_rate).tolist(),
        pessimistic_estimate=pessimistic,
        value_discretization_interval=5e-3,
        use_connect_dots=pessimistic,
    )
    return one.self_compose(step.steps).get_epsilon_for_delta(DELTA)


@pytest.mark.parametrize(
    ("step", "size"),
    [
        (SubsampledGaussian(1.1, 0.01, 200), 2),
        (SubsampledGaussian(1.1, 0.01, 200), 5),
        (SubsampledGaussian(2.0, 0.1, 50), 3),
    ],
)
def test_of_poisson_steps_it_is_a_bound(step, size):
    """A negative control: ε of one record, let alone ε ÷ γ, which paper 003 states."""
    least, most = (mixture(step, size, pessimistic) for pessimistic in (False, True))
    assert least < group_epsilon([step], DELTA, size) < 2 * most
    assert epsilon([step], DELTA) < least


def test_it_grows_with_the_group_and_with_what_was_done():
    step = SubsampledGaussian(1.0, 0.02, 100)
    found = [group_epsilon([step], DELTA, size) for size in (1, 2, 3, 5, 10, 50)]
    assert found == sorted(found) and len(set(found)) == len(found)
    assert found[0] == epsilon([step], DELTA)
    assert group_epsilon([step, GaussianRelease(5.0, "counts")], DELTA, 3) > found[2]


@pytest.mark.parametrize(("rate", "sigma"), [(0.003, 0.1), (0.3, 0.1), (0.999, 0.5), (1e-6, 30.0)])
def test_extremes_have_a_finite_bound_below_the_unsampled_one(rate, sigma):
    plain = group_epsilon([SubsampledGaussian(sigma, 1.0, 300)], DELTA, 10)
    assert 0 <= group_epsilon([SubsampledGaussian(sigma, rate, 300)], DELTA, 10) <= plain < math.inf


def test_records_that_count_less_are_taken_as_if_they_counted_whole():
    lighter = IndividualGaussian(1.0, 0.02, 100, 0.3)
    whole = SubsampledGaussian(1.0, 0.02, 100)
    assert group_epsilon([lighter], DELTA, 3) == group_epsilon([whole], DELTA, 3)


@pytest.mark.parametrize("access", [NonPrivateAccess("tuning"), MaskedAccess("numbers")])
def test_an_access_without_noise_is_covered_by_nothing(access):
    assert group_epsilon([SubsampledGaussian(1.0, 0.1, 1), access], DELTA, 2) == math.inf


def test_where_delta_covers_one_record_it_need_not_cover_more():
    faint = [SubsampledGaussian(5e4, 1.0, 1)]
    assert epsilon(faint, DELTA) == 0 < group_epsilon(faint, DELTA, 1000)


def test_what_is_no_group_or_no_event_is_refused():
    assert group_epsilon([], DELTA, 3) == 0
    with pytest.raises(ValueError, match="at least one"):
        group_bound(1.0, DELTA, 0)
    with pytest.raises(ValueError, match="at least one"):
        group_epsilon([], DELTA, 0)
    with pytest.raises(TypeError, match="not an event"):
        group_epsilon(["event"], DELTA, 2)
