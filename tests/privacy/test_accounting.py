"""Events, ε and σ: against dp-accounting, the PRV accountant, closed forms, planted faults."""

import math
from functools import reduce

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.optimize import brentq
from scipy.stats import binom, norm

from twinset.privacy.accounting import accountant
from twinset.privacy.accounting.accountant import (
    NotCovered,
    calibrate_noise_multiplier,
    compose,
    composed_epsilon,
    epsilon,
    gaussian_noise_multiplier,
    group_bound,
    group_epsilon,
    prv_epsilon,
)
from twinset.privacy.accounting.events import (
    GaussianRelease,
    IndividualGaussian,
    MaskedAccess,
    NonPrivateAccess,
    SubsampledGaussian,
    event_from_dict,
    event_to_dict,
)

DELTA = 1e-5
STEPS = SubsampledGaussian(1.1, 0.01, 100)
COUNTS, TEACHER = GaussianRelease(10.0, "label counts"), GaussianRelease(3.0, "teacher")
INDIVIDUAL = IndividualGaussian(0.8, 0.05, 60, 0.5)
TUNING, MASKED = NonPrivateAccess("tuning"), MaskedAccess("patterns")

# -- events ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "change"),
    [
        (STEPS, {"kind": "laplace"}), (STEPS, {"steps": 0}), (STEPS, {"sample_rate": 1.1}),
        (STEPS, {"noise_multiplier": -1.0}), (STEPS, {"noise_multiplier": math.nan}),
        (INDIVIDUAL, {"least_share": 1.1}), (STEPS, {"extra": 1}), (TUNING, {"reason": " "}),
    ],
)  # fmt: skip
def test_what_names_no_mechanism_is_refused(event, change):
    with pytest.raises(ValueError):
        event_from_dict(event_to_dict(event) | change)


def test_compose_merges_only_neighbours_that_differ_in_steps_alone():
    step, other = SubsampledGaussian(1.0, 0.1, 2), SubsampledGaussian(1.0, 0.2, 2)
    events = [step, step, other, COUNTS, COUNTS, TUNING, TUNING, step]
    once = (SubsampledGaussian(1.0, 0.1, 4), other, COUNTS, COUNTS, TUNING, step)
    assert compose(events) == once
    one = IndividualGaussian(0.8, 0.05, 1, 0.5)
    assert compose([one, one, one]) == (IndividualGaussian(0.8, 0.05, 3, 0.5),)
    for unlike in (IndividualGaussian(0.8, 0.05, 1, 0.6), SubsampledGaussian(0.8, 0.05, 1)):
        assert compose([one, unlike]) == (one, unlike)


# -- ε, for every accountant -----------------------------------------------------------------------

# events, δ, and their ε
PINNED = {
    "rare": ([SubsampledGaussian(0.5, 1e-4, 1000)], 1e-5, 0.542125),
    "usual": ([SubsampledGaussian(1.0, 0.01, 1000)], 1e-5, 1.82882),
    "with a teacher": ([SubsampledGaussian(0.6, 0.01, 500), TEACHER], 1e-5, 5.96681),
    "few steps": ([SubsampledGaussian(1.0, 0.3, 10), TEACHER], 1e-5, 7.0946),
    "many steps": ([SubsampledGaussian(2.0, 0.05, 1000), TEACHER], 1e-8, 5.35794),
    "much noise": ([SubsampledGaussian(8.0, 0.3, 200)], 1e-5, 2.16128),
    "no steps": ([GaussianRelease(5.0, "label counts"), TEACHER], 1e-5, 1.50651),
    "individual": ([INDIVIDUAL, TEACHER], 1e-5, 4.93551),
    "large": ([SubsampledGaussian(0.5, 0.1, 100)], 1e-5, 31.3741),
    "little noise": ([SubsampledGaussian(0.05, 0.001, 100)], 1e-6, 796.877),
    "once 604,671": ([SubsampledGaussian(0.05, 2e-6, 3000)], 1e-5, 368.687),
}
NO_WITNESS = ("little noise", "once 604,671")  # needs too many points


def reference(events, delta, interval, pessimistic):
    """A bound of ε by dp_accounting: from above if `pessimistic`, from below if not."""
    parts = []
    for event in events:
        one = event.at(0.0) if isinstance(event, IndividualGaussian) else event
        rate, steps = getattr(one, "sample_rate", 1.0), getattr(one, "steps", 1)
        known = pld.from_gaussian_mechanism(
            one.noise_multiplier,
            pessimistic_estimate=pessimistic,
            sampling_prob=rate,
            value_discretization_interval=interval,
            use_connect_dots=pessimistic,
        )
        parts.append(known.self_compose(steps))
    return reduce(lambda a, b: a.compose(b), parts).get_epsilon_for_delta(delta)


def check_against_reference(events, delta):
    ours = epsilon(events, delta)
    interval = max(5e-4, ours / 20_000)  # e to the loss is no float above about 700
    above = reference(events, delta, interval, pessimistic=True)
    below = reference(events, delta, interval, pessimistic=False)
    assert below <= ours <= above * 1.005 + 0.01  # rounding counts where δ and ε are tiny
    assert ours >= 0.99 * above - 0.005


@pytest.mark.parametrize("name", PINNED)
def test_epsilon_is_as_pinned_and_agrees_with_dp_accounting(name):
    events, delta, expected = PINNED[name]
    assert epsilon(events, delta) == pytest.approx(expected, rel=1e-3)
    check_against_reference(events, delta)


def two_thirds_of_the_noise(event):
    noise = {"noise_multiplier": event.noise_multiplier * 2 / 3}
    return type(event)(**vars(event) | noise)


@pytest.mark.parametrize("name", [name for name in PINNED if name not in NO_WITNESS])
def test_the_witness_agrees_and_sees_a_ledger_that_is_wrong(name):
    """The controls: an event that was left out, and two thirds of the noise."""
    events, delta, _ = PINNED[name]
    witness = prv_epsilon(events, delta)

    def off(events):
        return abs(epsilon(events, delta) / witness - 1)

    assert off(events) < 0.002
    assert off([two_thirds_of_the_noise(event) for event in events]) > 0.01
    if len(events) > 1:
        assert off(events[:-1]) > 0.01 and off(events[1:]) > 0.01


def noise_is_overrated(find):
    return lambda steps, *rest: find([(1.03 * sigma, q, n) for sigma, q, n in steps], *rest)


def a_tenth_of_the_steps_is_missed(find):
    return lambda steps, *rest: find([(sigma, q, n - n // 10) for sigma, q, n in steps], *rest)


def losses_are_rounded_down(find):
    def lower(losses, width, likely, other):
        beyond = np.exp(likely)
        masses = np.append(beyond[:-1] - beyond[1:], 0)
        masses[0] += 1 - beyond[0]
        return masses

    def wrong(*args):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(accountant, "_dots", lower)
            return find(*args)

    return wrong


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        (noise_is_overrated, "few steps"), (a_tenth_of_the_steps_is_missed, "little noise"),
        (losses_are_rounded_down, "few steps"),
    ],
)  # fmt: skip
def test_an_accountant_made_too_small_fails_the_comparison(fault, name, monkeypatch):
    events, delta, _ = PINNED[name]
    accountant._epsilon.cache_clear()
    monkeypatch.setattr(accountant, "composed_epsilon", fault(composed_epsilon))
    try:
        with pytest.raises(AssertionError):
            check_against_reference(events, delta)
    finally:
        accountant._epsilon.cache_clear()


@pytest.mark.parametrize("sigma", [0.36, 0.384])
def test_epsilon_never_falls_into_a_hole_of_its_grid(sigma):
    """A coarse grid once made 0.8 of 51: less noise may not look more private."""
    found = [epsilon([SubsampledGaussian(sigma * f, 1e-3, 10**5)], 1e-6) for f in (0.99, 1, 1.01)]
    assert found[0] > found[1] > found[2]


@pytest.mark.parametrize("accountant_of", [epsilon, prv_epsilon, group_epsilon])
def test_every_accountant_keeps_the_contract(accountant_of):
    """No event spends nothing; an access without noise spends all; an unknown event raises."""
    more = (2,) if accountant_of is group_epsilon else ()
    assert accountant_of([], DELTA, *more) == 0.0
    for access in (TUNING, MASKED):
        if accountant_of is prv_epsilon:
            with pytest.raises(NotCovered, match="without noise"):
                prv_epsilon([COUNTS, access], DELTA)
        else:
            assert accountant_of([COUNTS, access], DELTA, *more) == math.inf
    for events in (["noise"], [COUNTS, object()], [TUNING, None]):
        with pytest.raises(TypeError, match="not an event"):
            accountant_of(events, DELTA, *more)
    for delta in (0.0, 1.0, -1e-5, math.nan):
        if accountant_of is not prv_epsilon:
            with pytest.raises(ValueError, match="delta"):
                accountant_of([COUNTS], delta, *more)


def test_the_witness_says_what_is_out_of_its_range():
    with pytest.raises(NotCovered, match="range.*points"):  # else it would fill the memory
        prv_epsilon([SubsampledGaussian(0.05, 2e-6, 3000)], DELTA)


def test_each_privacy_weight_has_the_epsilon_of_its_own_multiplier():
    """Individual accounting, and its witness, against the accountant at σ / c(ρ)."""
    events = [TEACHER, INDIVIDUAL]
    for weight, multiplier in ((0.0, 0.8), (0.5, 0.8 / 0.75), (1.0, 1.6)):
        own = epsilon([TEACHER, SubsampledGaussian(multiplier, 0.05, 60)], DELTA)
        assert epsilon(events, DELTA, weight) == own
    assert prv_epsilon(events, DELTA, 1.0) == pytest.approx(own, 2e-3)
    spent = [epsilon(events, DELTA, w / 10) for w in range(11)]
    assert spent == sorted(spent, reverse=True)


# -- closed forms and edges ------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [0.5, 30.0])
def test_gaussian_releases_are_exact_and_compose_exactly(sigma):
    spent = epsilon([GaussianRelease(sigma, "counts")], 1e-6)
    assert gaussian_delta(1 / sigma, spent) == pytest.approx(1e-6, rel=1e-5)
    four = epsilon([GaussianRelease(2 * sigma, "counts")] * 4, 1e-6)
    assert four == pytest.approx(spent, rel=1e-9)


@pytest.mark.parametrize(
    ("sigma", "rate", "steps", "delta"),
    [
        (0.01, 0.5, 1_000_000, 1e-5), (1e6, 1e-7, 10_000_000, 1e-6), (2.0, 0.9999, 5000, 1e-5),
        (0.7, 0.02, 3000, 1e-12),  # below what Fourier transforms in double precision resolve
        (1.0, 0.01, 10, 0.5), (0.01, 1e-11, 10_000, 1e-6),  # less than δ for being drawn at all
    ],
)  # fmt: skip
def test_extremes_stay_upper_bounds(sigma, rate, steps, delta):
    spent = epsilon([SubsampledGaussian(sigma, rate, steps)], delta)
    unsampled = epsilon([GaussianRelease(sigma / math.sqrt(steps), "same, rate 1")], delta)
    assert 0 <= spent <= unsampled < math.inf
    assert spent == 0 or rate * steps > delta  # else it is hardly ever drawn


def test_the_closed_form_holds_where_no_transform_can():
    """At so small a δ the rounding of the transforms says nothing."""
    step, whole = (0.1, 0.01, 1000), GaussianRelease(0.1 / math.sqrt(1000), "all")
    spent = epsilon([SubsampledGaussian(*step)], 1e-25)
    assert composed_epsilon([step], 1e-25, spent) == math.inf
    assert spent == pytest.approx(epsilon([whole], 1e-25))
    assert epsilon([SubsampledGaussian(*step)], 1e-10) < 0.1 * spent


# -- calibration -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "rate", "steps"), [(8.0, 0.05, 60), (0.2, 0.1, 100), (50.0, 0.1, 100)]
)
def test_calibration_hits_the_target_from_the_safe_side(target, rate, steps):
    counts = [GaussianRelease(gaussian_noise_multiplier(target / 20, 1e-6), "label counts")]
    sigma = calibrate_noise_multiplier(target, 1e-6, rate, steps, counts)

    def spent(multiplier):
        return epsilon([*counts, SubsampledGaussian(multiplier, rate, steps)], 1e-6)

    assert spent(sigma) <= target < spent(sigma / 1.004)  # some ε are leapt over


@pytest.mark.parametrize(
    ("target", "others", "message"),
    [
        (0.3, [COUNTS], r"smallest attainable.* is 0\.4"), (8.0, [TUNING], "is infinite"),
        (0.0, [], "epsilon"), (math.nan, [], "epsilon"),
    ],
)  # fmt: skip
def test_an_unreachable_target_is_refused(target, others, message):
    with pytest.raises(ValueError, match=message):
        calibrate_noise_multiplier(target, 1e-6, 0.01, 100, others)


# -- groups ----------------------------------------------------------------------------------------


def gaussian_delta(mu, spent):
    """δ of N(μ, 1) against N(0, 1) (Balle and Wang 2018); a group's μ is γ times one record's."""
    return norm.cdf(mu / 2 - spent / mu) - math.exp(spent) * norm.cdf(-mu / 2 - spent / mu)


def gaussian_epsilon(mu, delta):
    return brentq(lambda spent: gaussian_delta(mu, spent) - delta, 0, 100)


@pytest.mark.parametrize(("sigma", "size"), [(4.0, 2), (10.0, 20)])
def test_of_a_plain_gaussian_a_group_is_exact_and_other_rules_do_not_cover_it(sigma, size):
    """Negative controls: ε ÷ γ, which paper 003 states; γε with δ left as it is; γ - 1 for γ."""
    found = group_epsilon([SubsampledGaussian(sigma, 1.0, 1)], DELTA, size)
    assert found == pytest.approx(gaussian_epsilon(size / sigma, DELTA), rel=1e-4)
    assert found == group_epsilon([GaussianRelease(sigma, "counts")], DELTA, size)
    alone = gaussian_epsilon(1 / sigma, DELTA)
    spent, delta = group_bound(alone, DELTA, size)
    assert spent == size * alone

    def covers(spent, delta):
        return gaussian_delta(size / sigma, spent) <= delta * (1 + 1e-6)

    assert covers(spent, delta)
    assert not covers(alone / size, DELTA)
    assert not covers(alone, DELTA)
    assert not covers(*group_bound(alone / size, DELTA, size))


def test_delta_grows_with_a_group_and_a_large_epsilon_leaves_no_bound():
    """Randomised response that tells all with probability δ: γ records have γ such chances."""
    assert group_bound(0.0, DELTA, 4) == (0.0, pytest.approx(4 * DELTA))
    spent, delta = group_bound(0.5, DELTA, 3)
    assert (spent, delta) == (1.5, pytest.approx(DELTA * (1 + math.exp(0.5) + math.exp(1.0))))
    for spent in (100.0, 5000.0, math.inf):
        assert group_bound(spent, DELTA, 10) == (10 * spent, 1.0)


def test_of_poisson_steps_a_group_has_a_bound():
    """By the group's own mixture. The negative control: ε of one record."""
    size, drawn, event = 3, np.arange(4), SubsampledGaussian(2.0, 0.1, 50)
    least, most = (
        pld.from_mixture_gaussian_mechanism(
            2.0,
            drawn.astype(float).tolist(),
            binom.pmf(drawn, size, 0.1).tolist(),
            pessimistic_estimate=pessimistic,
            value_discretization_interval=2e-2,
            use_connect_dots=pessimistic,
        )
        .self_compose(50)
        .get_epsilon_for_delta(DELTA)
        for pessimistic in (False, True)
    )
    assert least < group_epsilon([event], DELTA, size) < 2 * most
    assert epsilon([event], DELTA) < least


def test_it_grows_with_the_group_and_with_what_was_done():
    step, lighter = SubsampledGaussian(1.0, 0.02, 100), IndividualGaussian(1.0, 0.02, 100, 0.3)
    found = [group_epsilon([step], DELTA, size) for size in (1, 3, 50)]
    assert epsilon([step], DELTA) == found[0] < found[1] < found[2]
    assert group_epsilon([step, GaussianRelease(5.0, "counts")], DELTA, 3) > found[1]
    assert group_epsilon([lighter], DELTA, 3) == found[1]  # as if it counted whole


def test_where_delta_covers_one_record_it_need_not_cover_more():
    faint = [SubsampledGaussian(5e4, 1.0, 1)]
    assert epsilon(faint, DELTA) == 0 < group_epsilon(faint, DELTA, 1000)
