import itertools
import math
from functools import reduce

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.integrate import quad
from scipy.stats import norm

from twinset.privacy.accounting import accountant
from twinset.privacy.accounting import loss_distribution as lossdistribution
from twinset.privacy.accounting.accountant import (
    calibrate_noise_multiplier,
    compose,
    epsilon,
    gaussian_noise_multiplier,
)
from twinset.privacy.accounting.events import (
    GaussianRelease,
    IndividualGaussian,
    MaskedAccess,
    NonPrivateAccess,
    SubsampledGaussian,
)
from twinset.privacy.accounting.loss_distribution import _one_way as one_way
from twinset.privacy.accounting.loss_distribution import composed_epsilon
from twinset.privacy.accounting.renyi import log_moment, renyi_epsilon

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
    assert below <= ours <= above * 1.005 + 0.01  # rounding counts where δ and ε are tiny
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
        (1.0, 0.02, 200, [SubsampledGaussian(2.0, 0.1, 100), COUNTS]),  # two phases
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


def test_pinned():
    value = epsilon([SubsampledGaussian(1.0, 0.01, 1000)], 1e-5)
    assert value == pytest.approx(1.8290, abs=0.0005)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 4.0, 30.0])
def test_a_gaussian_release_is_exact(sigma):
    spent = epsilon([GaussianRelease(sigma, "counts")], 1e-6)
    mu = 1 / sigma
    delta = norm.cdf(mu / 2 - spent / mu) - math.exp(spent) * norm.cdf(-mu / 2 - spent / mu)
    assert delta == pytest.approx(1e-6, rel=1e-5)


def test_gaussian_releases_compose_exactly():
    four = epsilon([GaussianRelease(4.0, "counts")] * 4, 1e-6)
    assert four == pytest.approx(epsilon([GaussianRelease(2.0, "counts")], 1e-6), rel=1e-9)


def test_neither_the_order_nor_the_grouping_of_events_matters():
    step, one = SubsampledGaussian(1.0, 0.01, 30), SubsampledGaussian(1.0, 0.01, 1)
    assert epsilon([COUNTS, step], 1e-6) == epsilon([step, COUNTS], 1e-6)
    assert epsilon([one] * 30, 1e-6) == epsilon([step], 1e-6)


def test_nothing_spends_nothing_and_access_without_noise_spends_everything():
    assert epsilon([], 1e-5) == 0.0
    for access in (NonPrivateAccess("tuning"), MaskedAccess("patterns")):
        assert epsilon([COUNTS, access], 1e-5) == math.inf


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


@pytest.mark.parametrize("steps", [100_000, 10_000])
@pytest.mark.parametrize("sigma", [0.36, 0.384, 0.39, 0.45])
def test_epsilon_never_falls_into_a_hole_of_its_grid(sigma, steps):
    """A coarse grid once made 0.8 of 51: less noise may not look more private."""
    found = [epsilon([SubsampledGaussian(sigma * f, 1e-3, steps)], 1e-6) for f in (0.99, 1, 1.01)]
    assert found[0] > found[1] > found[2]
    assert found[2] > reference([SubsampledGaussian(sigma * 1.01, 1e-3, steps)], 1e-6, 1e-3, False)


# dp_accounting's own grid is too coarse, and e to the loss no float, above about 700.
LARGE = [
    (0.05, 2e-6, 3000, 1e-5),  # once 604,671
    (0.1, 1e-5, 12_000, 1e-5),
    (0.15, 1e-5, 45, 1e-5),  # once 1,000
    (0.1, 1e-4, 10_000, 1e-5),
    (0.1, 0.001, 1000, 1e-6),
    (0.15, 0.1, 100, 1e-5),
    (0.05, 0.001, 100, 1e-6),
    (0.2, 0.5, 60, 1e-5),
    (0.3, 0.01, 3000, 1e-5),
    (0.5, 0.5, 500, 1e-5),
]


@pytest.mark.parametrize(("sigma", "rate", "steps", "delta"), LARGE)
def test_agrees_with_dp_accounting_where_noise_is_small(sigma, rate, steps, delta):
    events = [SubsampledGaussian(sigma, rate, steps)]
    ours = epsilon(events, delta)
    interval = max(1e-4, ours / 20_000)
    above = reference(events, delta, interval, pessimistic=True)
    assert reference(events, delta, interval, pessimistic=False) <= ours <= 1.01 * above


@pytest.mark.parametrize(("sigma", "rate"), [(0.02, 0.5), (0.02, 1e-3), (1e-3, 0.1), (0.3, 0.01)])
def test_one_step_is_exact_at_any_size(sigma, rate):
    """Of one step δ(ε) has a closed form, which no large number stands in the way of."""
    spent = epsilon([SubsampledGaussian(sigma, rate, 1)], 1e-6)

    def delta(eps):  # of the outputs above x, where the loss is ε, the record being removed
        odds = eps + math.log1p(-math.exp(-eps) * (1 - rate)) - math.log(rate)
        x = sigma * odds + 1 / (2 * sigma)
        with_it = (1 - rate) * norm.sf(x) + rate * norm.sf(x - 1 / sigma)
        return with_it - math.exp(eps + norm.logsf(x))

    assert delta(spent) <= 1e-6 <= delta(spent * (1 - 1e-4))


@pytest.mark.parametrize("steps", [100, 10_000])
def test_a_record_that_is_hardly_ever_drawn_has_next_to_no_loss(steps):
    """With less than δ in all for being drawn once, nothing can be inferred, whatever the noise."""
    assert epsilon([SubsampledGaussian(0.01, 1e-7 / steps, steps)], 1e-6) == 0.0


@pytest.mark.parametrize("removed", [True, False])
@pytest.mark.parametrize("steps", [(1.0, 0.02, 300), (0.3, 0.1, 30), (0.5, 0.5, 20)])
def test_each_direction_agrees_with_its_own_reference(steps, removed):
    sigma, rate, count = steps
    bound = epsilon([SubsampledGaussian(*steps)], 1e-6)
    with np.errstate(divide="ignore"):
        ours = one_way([steps], 1e-6, bound, removed)
    both = pld.from_gaussian_mechanism(
        sigma, sampling_prob=rate, value_discretization_interval=1e-3
    )
    one = both._pmf_remove if removed else both._pmf_add
    expected = one.self_compose(count).get_epsilon_for_delta(1e-6)
    assert 0.999 * expected <= ours <= 1.01 * expected
    assert ours <= bound


@pytest.mark.parametrize("sigma", [0.05, 0.2, 1.0, 5.0])
@pytest.mark.parametrize("rate", [1e-5, 1e-3, 0.1, 0.9])
@pytest.mark.parametrize("order", [1.0001, 1.05, 1.5, 2.0, 3.0])
def test_moments_near_order_one_are_no_less_than_they_are(sigma, rate, order):
    """Against adaptive quadrature; at the orders 2 and 3 against the closed form."""
    found, exact = log_moment(sigma, rate, order), moment(sigma, rate, order)
    assert exact <= found <= exact * 1.001 + 1e-4 * rate + 1e-9


def moment(sigma, rate, order):
    """log E[L^α] by adaptive quadrature, split where the two parts of L are equal."""
    middle = sigma * math.log((1 - rate) / rate) + 1 / (2 * sigma)
    last = order / sigma + 12
    places = [-12.0, *sorted(x for x in {0.0, middle, order / sigma} if -12 < x < last), last]

    def log_density(x):
        ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + x / sigma - 1 / (2 * sigma**2))
        return order * ratio + norm.logpdf(x)

    most = max(map(log_density, np.linspace(-12, last, 2000)))
    parts = [
        quad(lambda x: math.exp(log_density(x) - most), low, high, epsabs=0, limit=500)[0]
        for low, high in itertools.pairwise(places)
    ]
    return most + math.log(sum(parts))


def test_the_fallbacks_hold_where_no_transform_can():
    """At so small a δ the rounding of the transforms says nothing, and the moments do."""
    step = (0.1, 0.01, 1000)
    spent = epsilon([SubsampledGaussian(*step)], 1e-25)
    assert composed_epsilon([step], 1e-25, spent) == math.inf
    assert epsilon([SubsampledGaussian(*step)], 1e-10) < spent == renyi_epsilon([step], 1e-25)
    assert spent < 0.1 * epsilon([GaussianRelease(0.1 / math.sqrt(1000), "all")], 1e-25)


def lower_losses(losses, width, likely, other):
    """Each loss rounded down to the grid: what `_dots` must not do."""
    beyond = np.exp(likely)
    return np.append(beyond[:-1] - beyond[1:], 0) + np.append(
        1 - beyond[0], np.zeros(len(losses) - 1)
    )


def noise_is_overrated(find):
    return lambda steps, *rest: find([(1.03 * sigma, q, n) for sigma, q, n in steps], *rest)


def a_tenth_of_the_steps_is_missed(find):
    return lambda steps, *rest: find([(sigma, q, n - n // 10) for sigma, q, n in steps], *rest)


def losses_are_rounded_down(find):
    def wrong(*args):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lossdistribution, "_dots", lower_losses)
            return find(*args)

    return wrong


@pytest.mark.parametrize(
    ("fault", "check", "case"),
    [
        (noise_is_overrated, test_agrees_with_dp_accounting, (1.0, 0.3, 10, [])),
        (a_tenth_of_the_steps_is_missed, test_agrees_with_dp_accounting, (1.0, 0.3, 10, [])),
        (losses_are_rounded_down, test_agrees_with_dp_accounting, (1.0, 0.3, 10, [])),
        (noise_is_overrated, test_agrees_with_dp_accounting_where_noise_is_small, LARGE[6]),
        (
            a_tenth_of_the_steps_is_missed,
            test_agrees_with_dp_accounting_where_noise_is_small,
            LARGE[6],
        ),
    ],
)
def test_an_accountant_made_too_small_fails_the_comparison(fault, check, case, monkeypatch):
    accountant._epsilon.cache_clear()
    monkeypatch.setattr(accountant, "composed_epsilon", fault(composed_epsilon))
    try:
        with pytest.raises(AssertionError):
            check(*case)
    finally:
        accountant._epsilon.cache_clear()
