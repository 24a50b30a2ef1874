"""Events, ε and σ: against dp-accounting, the PRV accountant, closed forms, planted faults."""

import itertools
import math
from dataclasses import replace
from functools import reduce

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from opacus.accountants import prv
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


@pytest.mark.parametrize("event", [STEPS, COUNTS, INDIVIDUAL, TUNING, MASKED])
def test_an_event_is_read_as_it_was_written_and_not_without_a_field(event):
    plain = event_to_dict(event)
    assert event_from_dict(plain) == event
    for name in plain:
        with pytest.raises(ValueError):
            event_from_dict({k: v for k, v in plain.items() if k != name})


@pytest.mark.parametrize(
    ("event", "change"),
    [
        *((STEPS, {"kind": kind}) for kind in ("laplace", None, ["subsampled_gaussian"])),
        *((STEPS, {"steps": n}) for n in (0, 1.0, True)),
        *((STEPS, {"sample_rate": q}) for q in (0.0, 1.1, math.nan, "0.1")),
        *((STEPS, {"noise_multiplier": s}) for s in (0.0, -1.0, math.inf, math.nan, True)),
        *((INDIVIDUAL, {"least_share": s}) for s in (0.0, -0.1, 1.1, math.nan, True, "0.5")),
        (STEPS, {"extra": 1}), (TUNING, {"reason": " "}), (COUNTS, {"what": ""}),
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
    "two phases": ([*map(SubsampledGaussian, (1.0, 2), (0.02, 0.1), (200, 100))], 1e-5, 2.93807),
    "no steps": ([GaussianRelease(5.0, "label counts"), TEACHER], 1e-5, 1.50651),
    "individual": ([INDIVIDUAL, TEACHER], 1e-5, 4.93551),
    "large": ([SubsampledGaussian(0.5, 0.1, 100)], 1e-5, 31.3741),
    "little noise": ([SubsampledGaussian(0.05, 0.001, 100)], 1e-6, 796.877),
    "once 604,671": ([SubsampledGaussian(0.05, 2e-6, 3000)], 1e-5, 368.687),
    "once 1,000": ([SubsampledGaussian(0.15, 1e-5, 45)], 1e-5, 23.2472),
    "half of all": ([SubsampledGaussian(0.2, 0.5, 60)], 1e-5, 579.877),
}
NO_WITNESS = ("little noise", "once 604,671", "once 1,000", "half of all")  # needs too many points


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


def check_against_reference(events, delta, finest=5e-4):
    ours = epsilon(events, delta)
    interval = max(finest, ours / 20_000)  # e to the loss is no float above about 700
    above = reference(events, delta, interval, pessimistic=True)
    below = reference(events, delta, interval, pessimistic=False)
    assert below <= ours <= above * 1.005 + 0.01  # rounding counts where δ and ε are tiny
    assert ours >= 0.99 * above - 0.005


@pytest.mark.parametrize("name", PINNED)
def test_epsilon_is_as_pinned_and_agrees_with_dp_accounting(name):
    events, delta, expected = PINNED[name]
    assert epsilon(events, delta) == pytest.approx(expected, rel=1e-3)
    check_against_reference(events, delta)


@pytest.mark.parametrize("name", [name for name in PINNED if name not in NO_WITNESS])
def test_the_witness_agrees_and_sees_a_ledger_that_is_wrong(name):
    """The controls: an event that was left out, and two thirds of the noise."""
    events, delta, _ = PINNED[name]
    witness = prv_epsilon(events, delta)

    def off(events):
        return abs(epsilon(events, delta) / witness - 1)

    assert off(events) < 0.002
    less = [replace(e, noise_multiplier=e.noise_multiplier * 2 / 3) for e in events]
    assert off(less) > 0.01
    if len(events) > 1:
        assert off(events[:-1]) > 0.01 and off(events[1:]) > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("delta", [1e-5, 1e-9])
@pytest.mark.parametrize("others", [[], [COUNTS]], ids=["alone", "with counts"])
@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0, 8.0])
def test_agrees_with_dp_accounting_on_the_grid(sigma, others, delta):
    for rate, steps in itertools.product([1e-4, 1e-2, 0.3], [1, 100, 10_000, 100_000]):
        events = [SubsampledGaussian(sigma, rate, steps), *others]
        if 0.01 < (spent := epsilon(events, delta)) < 60:  # coarser, the reference itself is off
            check_against_reference(events, delta, finest=1e-5 if spent < 0.3 else 1e-4)


def losses_rounded_down(losses, width, likely, other):
    beyond = np.exp(likely)
    masses = np.append(beyond[:-1] - beyond[1:], 0)
    masses[0] += 1 - beyond[0]
    return masses


FAULTS = [*itertools.product(["noise", "steps"], ["few steps", "little noise"])]


@pytest.mark.parametrize(("fault", "name"), [*FAULTS, ("rounded down", "few steps")])
def test_an_accountant_made_too_small_fails_the_comparison(fault, name, monkeypatch):
    def wrong(steps, *rest):
        if fault == "noise":  # is overrated
            steps = [(1.03 * sigma, q, n) for sigma, q, n in steps]
        elif fault == "steps":  # a tenth of them is missed
            steps = [(sigma, q, n - n // 10) for sigma, q, n in steps]
        return composed_epsilon(steps, *rest)

    events, delta, _ = PINNED[name]
    accountant._epsilon.cache_clear()
    monkeypatch.setattr(accountant, "composed_epsilon", wrong)
    if fault == "rounded down":
        monkeypatch.setattr(accountant, "_dots", losses_rounded_down)
    try:
        with pytest.raises(AssertionError):
            check_against_reference(events, delta)
    finally:
        accountant._epsilon.cache_clear()


@pytest.mark.parametrize("sigma", [0.36, 0.384, 0.39, 0.45])
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


@pytest.mark.parametrize(
    ("steps", "why"), [((0.05, 2e-6, 3000), "points"), ((0.01, 0.5, 10**6), "")]
)
def test_the_witness_names_events_out_of_its_range(steps, why):
    with pytest.raises(NotCovered, match=f"range.*{why}"):  # else it would fill the memory
        prv_epsilon([SubsampledGaussian(*steps)], DELTA)


def test_the_work_does_not_grow_with_equal_events_nor_much_with_kinds(monkeypatch):
    """A ledger from others may have thousands of events. Points of grids are counted, not time."""
    points, kinds = [], [SubsampledGaussian(1 + i / 10, 0.01, 1000) for i in range(8)]
    lengths, whole, discretise = [], accountant._length, prv.discretize
    monkeypatch.setattr(accountant, "_WITNESS_POINTS", 1 << 17)
    monkeypatch.setattr(accountant, "_POINTS", 1 << 12)
    monkeypatch.setattr(
        prv, "discretize", lambda part, grid: points.append(grid.size) or discretise(part, grid)
    )
    monkeypatch.setattr(
        accountant, "_length", lambda *given: lengths.append(whole(*given)) or lengths[-1]
    )
    once = SubsampledGaussian(1.2, 0.01, 20_000)
    assert prv_epsilon([replace(once, steps=100)] * 200, DELTA) == prv_epsilon([once], DELTA)
    assert len(points) == 2 and 1 < epsilon(kinds, DELTA) / prv_epsilon(kinds, DELTA) < 1.1
    assert sum(points[-8:]) <= 1.1 * (1 << 17) and max(lengths) * 8 <= 8 << 12
    with pytest.raises(NotCovered, match="needs grids of"):
        prv_epsilon([replace(each, steps=10**6) for each in kinds], DELTA)
    deltas = []  # of a search for one that hardly comes nearer
    monkeypatch.setattr(accountant, "epsilon", lambda _, d: deltas.append(d) or -math.log(d))
    assert group_epsilon([COUNTS], DELTA, 2) < 3 and 5 < len(deltas) <= 11


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


@pytest.mark.parametrize("sigma", [0.5, 1.0, 4.0, 30.0])
def test_gaussian_releases_are_exact_and_compose_exactly(sigma):
    spent = epsilon([GaussianRelease(sigma, "counts")], 1e-6)
    assert gaussian_delta(1 / sigma, spent) == pytest.approx(1e-6, rel=1e-5)
    assert gaussian_noise_multiplier(spent, 1e-6) == pytest.approx(sigma, rel=1e-5)
    four = epsilon([GaussianRelease(2 * sigma, "counts")] * 4, 1e-6)
    assert four == pytest.approx(spent, rel=1e-9)


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


@pytest.mark.parametrize(
    ("sigma", "rate", "steps", "delta"),
    [
        (0.01, 1e-6, 1, 1e-5), (0.01, 0.5, 1_000_000, 1e-5), (0.1, 1e-3, 1000, 1e-5),
        (1e3, 0.999, 10, 1e-6), (1e6, 1e-7, 10_000_000, 1e-6), (2.0, 0.9999, 5000, 1e-5),
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

BUDGETS = [(8.0, 0.05, 60), (1.0, 0.01, 300), (0.2, 0.1, 100), (50.0, 0.1, 100)]
MORE = itertools.product([0.1, 1.0, 8.0, 50.0], [1e-6, 1e-3, 0.3], [1, 1000, 100_000])


@pytest.mark.parametrize(
    ("target", "rate", "steps"),
    [*BUDGETS, *(pytest.param(*each, marks=pytest.mark.slow) for each in MORE)],
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
        *((target, [], "epsilon") for target in (0.0, -1.0, math.nan, math.inf)),
    ],
)  # fmt: skip
def test_an_unreachable_target_is_refused(target, others, message):
    with pytest.raises(ValueError, match=message):
        calibrate_noise_multiplier(target, 1e-6, 0.01, 100, others)
    if not others:
        with pytest.raises(ValueError, match=message):
            gaussian_noise_multiplier(target, 1e-6)


# -- groups ----------------------------------------------------------------------------------------


def gaussian_delta(mu, spent):
    """δ of N(μ, 1) against N(0, 1) (Balle and Wang 2018); a group's μ is γ times one record's."""
    return norm.cdf(mu / 2 - spent / mu) - math.exp(spent) * norm.cdf(-mu / 2 - spent / mu)


def gaussian_epsilon(mu, delta):
    return brentq(lambda spent: gaussian_delta(mu, spent) - delta, 0, 100)


@pytest.mark.parametrize(("sigma", "size"), [(4.0, 2), (4.0, 5), (2.0, 3), (10.0, 20)])
def test_of_a_plain_gaussian_a_group_is_exact_and_other_rules_do_not_cover_it(sigma, size):
    """Negative controls: ε ÷ γ, which paper 003 states; γε with δ left as it is; γ - 1 for γ."""
    found = group_epsilon([SubsampledGaussian(sigma, 1.0, 1)], DELTA, size)
    assert found == pytest.approx(gaussian_epsilon(size / sigma, DELTA), rel=1e-4)
    assert found == group_epsilon([GaussianRelease(sigma, "counts")], DELTA, size)
    alone = gaussian_epsilon(1 / sigma, DELTA)

    def bound(spent):  # as the words of a guarantee have it
        return size * spent, DELTA * math.expm1(size * spent) / math.expm1(spent)

    def covers(spent, delta):
        return gaussian_delta(size / sigma, spent) <= delta * (1 + 1e-6)

    assert covers(*bound(alone))
    assert not covers(alone / size, DELTA)
    assert not covers(alone, DELTA)
    assert not covers(*bound(alone / size))


@pytest.mark.parametrize(
    ("step", "size", "interval"),
    [
        ((2.0, 0.1, 50), 3, 2e-2),
        pytest.param((1.1, 0.01, 200), 2, 5e-3, marks=pytest.mark.slow),
        pytest.param((1.1, 0.01, 200), 5, 5e-3, marks=pytest.mark.slow),
    ],
)
def test_of_poisson_steps_a_group_has_a_bound(step, size, interval):
    """By the group's own mixture. The negative control: ε of one record."""
    (sigma, rate, steps), drawn = step, np.arange(size + 1)
    event = SubsampledGaussian(*step)
    least, most = (
        pld.from_mixture_gaussian_mechanism(
            sigma,
            drawn.astype(float).tolist(),
            binom.pmf(drawn, size, rate).tolist(),
            pessimistic_estimate=pessimistic,
            value_discretization_interval=interval,
            use_connect_dots=pessimistic,
        )
        .self_compose(steps)
        .get_epsilon_for_delta(DELTA)
        for pessimistic in (False, True)
    )
    assert least < group_epsilon([event], DELTA, size) < 2 * most
    assert epsilon([event], DELTA) < least


def test_group_epsilon_grows_with_the_group_and_the_events():
    step = SubsampledGaussian(1.0, 0.02, 100)
    found = [group_epsilon([step], DELTA, size) for size in (1, 2, 3, 5, 10, 50)]
    assert found == sorted(found) and len(set(found)) == len(found)
    assert found[0] == epsilon([step], DELTA)
    assert group_epsilon([step, GaussianRelease(5.0, "counts")], DELTA, 3) > found[2]
    lighter = IndividualGaussian(1.0, 0.02, 100, 0.3)  # counts as if it counted whole
    assert group_epsilon([lighter], DELTA, 3) == found[2]


def test_where_delta_covers_one_record_it_need_not_cover_more():
    faint = [SubsampledGaussian(5e4, 1.0, 1)]
    assert epsilon(faint, DELTA) == 0 < group_epsilon(faint, DELTA, 1000)
    with pytest.raises(ValueError, match="at least one"):
        group_epsilon([], DELTA, 0)
