import itertools
import math
from functools import reduce

import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.stats import norm

from twinset.privacy.accountant import compose, epsilon
from twinset.privacy.analyticgaussian import gaussian_noise_multiplier
from twinset.privacy.calibration import calibrate_noise_multiplier
from twinset.privacy.events import (
    GaussianRelease,
    IndividualGaussian,
    MaskedAccess,
    NonPrivateAccess,
    SubsampledGaussian,
)

COUNTS = GaussianRelease(10.0, "label counts")


def reference(events, delta, interval, pessimistic):
    """A bound of ε by dp_accounting: from above if `pessimistic`, from below if not."""
    parts = []
    for event in events:
        release = isinstance(event, GaussianRelease)
        one = pld.from_gaussian_mechanism(
            event.noise_multiplier,
            pessimistic_estimate=pessimistic,
            sampling_prob=1.0 if release else event.sample_rate,
            value_discretization_interval=interval,
            use_connect_dots=pessimistic,
        )
        parts.append(one.self_compose(1 if release else event.steps))
    return reduce(lambda a, b: a.compose(b), parts).get_epsilon_for_delta(delta)


def check_against_reference(events, delta):
    ours = epsilon(events, delta)
    interval = 1e-4 if ours > 0.3 else 1e-5  # coarser, the reference itself is off for small ε
    above = reference(events, delta, interval, pessimistic=True)
    below = reference(events, delta, interval, pessimistic=False)
    assert below <= ours <= above * 1.01 + 0.01  # near 0 no grid is fine enough, and Rényi holds
    assert ours >= 0.99 * above - 0.005


@pytest.mark.parametrize(
    ("sigma", "rate", "steps", "others"),
    [
        (0.5, 1e-4, 1000, []),
        (0.6, 0.01, 500, [COUNTS]),
        (1.0, 0.01, 2000, []),
        (1.0, 0.3, 10, [COUNTS]),
        (2.0, 0.05, 1000, [COUNTS]),
        (8.0, 0.3, 200, []),
        (8.0, 0.01, 100, [COUNTS]),
    ],
)
def test_agrees_with_dp_accounting(sigma, rate, steps, others):
    check_against_reference([SubsampledGaussian(sigma, rate, steps), *others], 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("delta", [1e-5, 1e-9])
@pytest.mark.parametrize("others", [[], [COUNTS]], ids=["alone", "with counts"])
@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0, 8.0])
def test_agrees_with_dp_accounting_on_the_grid(sigma, others, delta):
    for rate, steps in itertools.product([1e-4, 1e-2, 0.3], [1, 100, 10_000, 100_000]):
        events = [SubsampledGaussian(sigma, rate, steps), *others]
        if 0.01 < epsilon(events, delta) < 60:
            check_against_reference(events, delta)


def test_two_different_phases_compose():
    events = [SubsampledGaussian(1.0, 0.02, 200), SubsampledGaussian(2.0, 0.1, 100), COUNTS]
    check_against_reference(events, 1e-6)


def test_pinned():
    value = epsilon([SubsampledGaussian(1.0, 0.01, 1000)], 1e-5)
    assert value == pytest.approx(1.8326, abs=0.001)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 4.0, 30.0])
def test_a_gaussian_release_is_exact(sigma):
    spent = epsilon([GaussianRelease(sigma, "counts")], 1e-6)
    mu = 1 / sigma
    delta = norm.cdf(mu / 2 - spent / mu) - math.exp(spent) * norm.cdf(-mu / 2 - spent / mu)
    assert delta == pytest.approx(1e-6, rel=1e-5)


def test_gaussian_releases_compose_exactly():
    four = epsilon([GaussianRelease(4.0, "counts")] * 4, 1e-6)
    assert four == pytest.approx(epsilon([GaussianRelease(2.0, "counts")], 1e-6), rel=1e-9)


def test_the_order_of_events_does_not_matter():
    step = SubsampledGaussian(1.0, 0.01, 50)
    assert epsilon([COUNTS, step], 1e-6) == epsilon([step, COUNTS], 1e-6)


def test_steps_recorded_one_by_one_or_together_spend_the_same():
    one = SubsampledGaussian(1.0, 0.01, 1)
    assert epsilon([one] * 30, 1e-6) == epsilon([SubsampledGaussian(1.0, 0.01, 30)], 1e-6)


def test_nothing_spends_nothing_and_non_private_access_spends_everything():
    assert epsilon([], 1e-5) == 0.0
    assert epsilon([COUNTS, NonPrivateAccess("tuning")], 1e-5) == math.inf


def test_unknown_events_raise():
    class Laplace:
        noise_multiplier = 1.0

    for events in (["noise"], [COUNTS, Laplace()], [NonPrivateAccess("tuning"), None]):
        with pytest.raises(TypeError, match="not an event"):
            epsilon(events, 1e-5)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_impossible_deltas_raise(delta):
    with pytest.raises(ValueError, match="delta"):
        epsilon([COUNTS], delta)


@pytest.mark.parametrize(
    ("sigma", "rate", "steps", "delta"),
    [
        (0.01, 1e-6, 1, 1e-5),  # log-moments overflow
        (0.01, 0.5, 1_000_000, 1e-5),
        (0.1, 1e-3, 1000, 1e-5),
        (1e3, 0.999, 10, 1e-6),
        (1e6, 1e-7, 10_000_000, 1e-6),
        (0.7, 0.02, 3000, 1e-12),  # below what Fourier transforms in double precision resolve
        (2.0, 0.9999, 5000, 1e-5),
        (1.0, 0.01, 10, 0.5),  # the Rényi conversion goes below zero
    ],
)
def test_extremes_stay_upper_bounds(sigma, rate, steps, delta):
    spent = epsilon([SubsampledGaussian(sigma, rate, steps)], delta)
    unsampled = epsilon([GaussianRelease(sigma / math.sqrt(steps), "same, rate 1")], delta)
    assert 0 <= spent <= unsampled < math.inf


def test_a_small_delta_falls_back_to_a_valid_bound():
    events = [SubsampledGaussian(2.0, 0.01, 500)]
    assert epsilon(events, 1e-12) >= epsilon(events, 1e-10)


@pytest.mark.parametrize(
    ("target", "rate", "steps", "others"),
    [(8.0, 0.05, 60, [COUNTS]), (1.0, 0.01, 300, []), (0.2, 0.1, 100, []), (50.0, 0.1, 100, [])],
)
def test_calibration_hits_the_target_from_the_safe_side(target, rate, steps, others):
    sigma = calibrate_noise_multiplier(target, 1e-6, rate, steps, others)
    assert epsilon([*others, SubsampledGaussian(sigma, rate, steps)], 1e-6) <= target
    less = SubsampledGaussian(0.998 * sigma, rate, steps)
    assert epsilon([*others, less], 1e-6) > target


def test_an_unreachable_target_says_what_is_attainable():
    with pytest.raises(ValueError, match=r"smallest attainable.* is 0\.4"):
        calibrate_noise_multiplier(0.3, 1e-6, 0.01, 100, [COUNTS])
    with pytest.raises(ValueError, match="is infinite"):
        calibrate_noise_multiplier(8.0, 1e-6, 0.01, 100, [NonPrivateAccess("tuning")])


@pytest.mark.parametrize("target", [0.0, -1.0, math.nan, math.inf])
def test_impossible_targets_raise(target):
    with pytest.raises(ValueError, match="epsilon"):
        calibrate_noise_multiplier(target, 1e-6, 0.01, 100)
    with pytest.raises(ValueError, match="epsilon"):
        gaussian_noise_multiplier(target, 1e-6)


@pytest.mark.parametrize("target", [0.05, 0.4, 1.0, 8.0, 50.0])
def test_the_analytic_gaussian_inverts_epsilon(target):
    sigma = gaussian_noise_multiplier(target, 1e-6)
    assert epsilon([GaussianRelease(sigma, "counts")], 1e-6) == pytest.approx(target, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [1e-6, 1e-3, 0.3])
@pytest.mark.parametrize("steps", [1, 1000, 100_000])
@pytest.mark.parametrize("target", [0.1, 1.0, 8.0, 50.0])
def test_budgets_from_a_tenth_to_fifty_are_met(target, rate, steps):
    counts = [GaussianRelease(gaussian_noise_multiplier(target / 20, 1e-6), "label counts")]
    sigma = calibrate_noise_multiplier(target, 1e-6, rate, steps, counts)

    def spent(multiplier):
        return epsilon([*counts, SubsampledGaussian(multiplier, rate, steps)], 1e-6)

    assert spent(sigma) <= target < spent(sigma / 1.004)  # some ε are leapt over


def test_each_privacy_weight_has_the_epsilon_of_its_own_multiplier():
    """Individual accounting against the accountant at σ / c(ρ), label counts included."""
    counts, event = GaussianRelease(30.0, "label counts"), IndividualGaussian(0.8, 0.05, 60, 0.5)
    for weight, multiplier in ((0.0, 0.8), (0.5, 0.8 / 0.75), (1.0, 1.6)):
        own = SubsampledGaussian(multiplier, 0.05, 60)
        assert epsilon([counts, event], 1e-5, weight) == epsilon([counts, own], 1e-5)
    spent = [epsilon([counts, event], 1e-5, w / 10) for w in range(11)]
    assert spent == sorted(spent, reverse=True)


def test_individual_steps_recorded_one_by_one_or_together_are_one_event():
    one = IndividualGaussian(0.8, 0.05, 1, 0.5)
    assert compose([one, one, one]) == (IndividualGaussian(0.8, 0.05, 3, 0.5),)
    assert len(compose([one, IndividualGaussian(0.8, 0.05, 1, 0.6)])) == 2
    assert len(compose([one, SubsampledGaussian(0.8, 0.05, 1)])) == 2


def test_masked_texts_are_no_free_lunch():
    assert epsilon([MaskedAccess("patterns"), GaussianRelease(9.0, "x")], 1e-5) == math.inf


@pytest.mark.parametrize("steps", [100_000, 10_000])
@pytest.mark.parametrize("sigma", [0.36, 0.384, 0.39, 0.45])
def test_epsilon_never_falls_into_a_hole_of_its_grid(sigma, steps):
    """A coarse grid once made 0.8 of 51: less noise may not look more private."""
    found = [epsilon([SubsampledGaussian(sigma * f, 1e-3, steps)], 1e-6) for f in (0.99, 1, 1.01)]
    assert found[0] > found[1] > found[2]
    assert found[2] > reference([SubsampledGaussian(sigma * 1.01, 1e-3, steps)], 1e-6, 1e-3, False)
