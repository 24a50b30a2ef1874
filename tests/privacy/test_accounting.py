"""Events, ε and σ: against dp-accounting, the PRV accountant, closed forms, planted faults."""

import itertools
import math
from functools import reduce

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
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
from twinset.privacy.accounting.accountant import _one_way as one_way
from twinset.privacy.accounting.events import (
    GaussianRelease,
    IndividualGaussian,
    MaskedAccess,
    NonPrivateAccess,
    SubsampledGaussian,
    event_from_dict,
    event_to_dict,
)

COUNTS = GaussianRelease(10.0, "label counts")
DELTA = 1e-5


EVENTS = [
    SubsampledGaussian(1.1, 0.01, 100),
    GaussianRelease(20.0, "label counts"),
    NonPrivateAccess("tuning"),
    IndividualGaussian(1.1, 0.01, 100, 0.4),
    MaskedAccess("patterns"),
]


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_is_read_as_it_was_written_and_not_without_a_field(event):
    plain = event_to_dict(event)
    assert event_from_dict(plain) == event
    for name in plain:
        with pytest.raises(ValueError):
            event_from_dict({k: v for k, v in plain.items() if k != name})


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "laplace"}, {"kind": None}, {"kind": ["subsampled_gaussian"]}, {"extra": 1},
        {"steps": 0}, {"steps": 1.0}, {"steps": True},
        {"sample_rate": 0.0}, {"sample_rate": 1.1}, {"sample_rate": math.nan},
        {"sample_rate": "0.1"}, {"noise_multiplier": 0.0}, {"noise_multiplier": -1.0},
        {"noise_multiplier": math.inf}, {"noise_multiplier": math.nan}, {"noise_multiplier": True},
    ],
)  # fmt: skip
def test_what_names_no_mechanism_is_refused(change):
    with pytest.raises(ValueError):
        event_from_dict(event_to_dict(EVENTS[0]) | change)


@pytest.mark.parametrize(
    "make",
    [
        *(lambda s=s: IndividualGaussian(1.1, 0.01, 100, s) for s in (0.0, -0.1, 1.1, math.nan)),
        *(lambda s=s: IndividualGaussian(1.1, 0.01, 100, s) for s in (True, "0.5")),
        *(lambda w=w: IndividualGaussian(1.1, 0.01, 100, 0.5).at(w) for w in (-0.1, 1.1, math.nan)),
        lambda: NonPrivateAccess(" "),
        lambda: GaussianRelease(1.0, ""),
    ],
)
def test_shares_weights_and_reasons_out_of_range_are_refused(make):
    with pytest.raises(ValueError):
        make()


def test_an_unknown_event_is_not_written():
    with pytest.raises(TypeError, match="str is not an event"):
        event_to_dict("noise")


def test_compose_merges_only_neighbours_of_equal_sigma_and_rate():
    step, other = SubsampledGaussian(1.0, 0.1, 2), SubsampledGaussian(1.0, 0.2, 2)
    count, access = GaussianRelease(5.0, "label counts"), NonPrivateAccess("tuning")
    found = compose([step, step, other, count, count, access, access, step])
    assert found == (SubsampledGaussian(1.0, 0.1, 4), other, count, count, access, step)


def test_individual_steps_recorded_one_by_one_or_together_are_one_event():
    one = IndividualGaussian(0.8, 0.05, 1, 0.5)
    assert compose([one, one, one]) == (IndividualGaussian(0.8, 0.05, 3, 0.5),)
    assert len(compose([one, IndividualGaussian(0.8, 0.05, 1, 0.6)])) == 2
    assert len(compose([one, SubsampledGaussian(0.8, 0.05, 1)])) == 2


# -- against dp-accounting -------------------------------------------------------------------------


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
    assert ours <= bound * 1.001  # two grids, each of which gives an upper bound


@pytest.mark.parametrize("steps", [100_000, 10_000])
@pytest.mark.parametrize("sigma", [0.36, 0.384, 0.39, 0.45])
def test_epsilon_never_falls_into_a_hole_of_its_grid(sigma, steps):
    """A coarse grid once made 0.8 of 51: less noise may not look more private."""
    found = [epsilon([SubsampledGaussian(sigma * f, 1e-3, steps)], 1e-6) for f in (0.99, 1, 1.01)]
    assert found[0] > found[1] > found[2]
    assert found[2] > reference([SubsampledGaussian(sigma * 1.01, 1e-3, steps)], 1e-6, 1e-3, False)


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
            patch.setattr(accountant, "_dots", lower_losses)
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


# -- against the witness ---------------------------------------------------------------------------

TEACHER = GaussianRelease(3.0, "teacher")
LEDGERS = {
    "small": [SubsampledGaussian(8.0, 0.05, 100)],
    "usual": [SubsampledGaussian(0.8, 0.05, 60), TEACHER],
    "long": [SubsampledGaussian(2.0, 0.001, 100_000), TEACHER],
    "large": [SubsampledGaussian(0.5, 0.1, 100)],
    "two phases": [SubsampledGaussian(1.0, 0.02, 200), SubsampledGaussian(2.0, 0.1, 100), TEACHER],
    "no steps": [GaussianRelease(5.0, "label counts"), TEACHER],
    "individual": [IndividualGaussian(0.8, 0.05, 60, 0.5), TEACHER],
}


def differs(ours, witness):
    return abs(ours / witness - 1) > 0.01


@pytest.mark.parametrize("delta", [1e-5, 1e-8])
@pytest.mark.parametrize("name", LEDGERS)
def test_the_witness_agrees_and_sees_a_ledger_that_is_wrong(name, delta):
    """The controls: an event that was left out, and two thirds of the noise."""
    events = LEDGERS[name]
    witness = prv_epsilon(events, delta)
    assert not differs(epsilon(events, delta), witness)
    assert abs(epsilon(events, delta) / witness - 1) < 0.002
    less = [
        type(e)(*(v * 2 / 3 if k == "noise_multiplier" else v for k, v in vars(e).items()))
        for e in events
    ]
    assert differs(epsilon(less, delta), witness)
    if len(events) > 1:
        assert differs(epsilon(events[:-1], delta), witness)
        assert differs(epsilon(events[1:], delta), witness)


@pytest.mark.parametrize("weight", [0.0, 0.5, 1.0])
def test_the_witness_takes_the_multiplier_of_a_privacy_weight(weight):
    events = LEDGERS["individual"]
    assert epsilon(events, DELTA, weight) == pytest.approx(prv_epsilon(events, DELTA, weight), 2e-3)


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([COUNTS, NonPrivateAccess("tuning")], "without noise"),
        ([MaskedAccess("patterns")], "without noise"),
        ([SubsampledGaussian(0.05, 2e-6, 3000)], "points"),  # it would fill the memory
        ([SubsampledGaussian(0.01, 0.5, 1_000_000)], "range"),
    ],
)
def test_the_witness_says_what_it_does_not_cover(events, why):
    with pytest.raises(NotCovered, match=why):
        prv_epsilon(events, DELTA)


def test_the_witness_of_nothing_and_of_no_event():
    assert prv_epsilon([], DELTA) == 0.0
    with pytest.raises(TypeError, match="not an event"):
        prv_epsilon(["noise"], DELTA)


# -- closed forms and edges ------------------------------------------------------------------------


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


def test_neither_the_order_nor_the_grouping_of_events_matters():
    step, one = SubsampledGaussian(1.0, 0.01, 30), SubsampledGaussian(1.0, 0.01, 1)
    assert epsilon([COUNTS, step], 1e-6) == epsilon([step, COUNTS], 1e-6)
    assert epsilon([one] * 30, 1e-6) == epsilon([step], 1e-6)


def test_each_privacy_weight_has_the_epsilon_of_its_own_multiplier():
    """Individual accounting against the accountant at σ / c(ρ), label counts included."""
    counts, event = GaussianRelease(30.0, "label counts"), IndividualGaussian(0.8, 0.05, 60, 0.5)
    for weight, multiplier in ((0.0, 0.8), (0.5, 0.8 / 0.75), (1.0, 1.6)):
        own = SubsampledGaussian(multiplier, 0.05, 60)
        assert epsilon([counts, event], 1e-5, weight) == epsilon([counts, own], 1e-5)
    spent = [epsilon([counts, event], 1e-5, w / 10) for w in range(11)]
    assert spent == sorted(spent, reverse=True)


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


def test_the_closed_form_holds_where_no_transform_can():
    """At so small a δ the rounding of the transforms says nothing."""
    step, whole = (0.1, 0.01, 1000), GaussianRelease(0.1 / math.sqrt(1000), "all")
    spent = epsilon([SubsampledGaussian(*step)], 1e-25)
    assert composed_epsilon([step], 1e-25, spent) == math.inf
    assert spent == pytest.approx(epsilon([whole], 1e-25))
    assert epsilon([SubsampledGaussian(*step)], 1e-10) < 0.1 * spent


# -- calibration -----------------------------------------------------------------------------------


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


# -- groups ----------------------------------------------------------------------------------------


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
    one = pld.from_mixture_gaussian_mechanism(
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
