"""Label values that nobody declared: what one unit alone holds is hardly ever released.

The attack runs the selection on a table and on one without a unit, at a δ so large that it is seen.
"""

import math
from collections import Counter

import numpy as np
import pytest
from scipy.stats import norm

from tests.conftest import opened
from twinset.config import PrivacyConfig, RunConfig
from twinset.config.plan import make_plan, plan_selection, settled
from twinset.privacy.accounting.accountant import (
    NotCovered,
    epsilon,
    gaussian_delta,
    group_epsilon,
    prv_epsilon,
)
from twinset.privacy.accounting.events import GaussianRelease, LabelSelection, SubsampledGaussian
from twinset.privacy.mechanism import counts
from twinset.privacy.mechanism.counts import select_label_values
from twinset.privacy.mechanism.randomness import Randomness

# σ, τ, A and m: of each the δ is so large that an attack of some thousand runs sees it
TOYS = [
    LabelSelection(1.0, 4, 1, 1),
    LabelSelection(0.7, 3, 2, 1),
    LabelSelection(0.5, 6, 1, 3),  # an owner's three records
]
RUNS, SURE = 6000, 4.5  # of each table, and standard deviations


def released(selection, runs=RUNS):
    """How often values were released that one unit alone has, and those that others have too."""
    randomness, own, common = Randomness.for_tests(0), 0, Counter()
    others = ["a"] * 40 + ["b"] * 2
    for _ in range(runs):
        columns = [[*others, *["own"] * selection.most]] * selection.attributes
        found = opened(select_label_values(columns, selection, randomness))
        own += any("own" in column for column in found)
        common.update(value for column in found for value in column)
    return own / runs, common["a"] / runs / selection.attributes


def check_attack(selection, claimed=None):
    """The attacker says "the unit is there" where its own value is released, and is never wrong."""
    rate, common = released(selection)
    delta = (claimed or selection).delta()
    assert common == 1
    assert rate < delta + SURE * math.sqrt(delta * (1 - min(delta, 1)) / RUNS)
    return rate


@pytest.mark.parametrize("selection", TOYS)
def test_a_value_of_one_unit_is_released_no_more_often_than_delta_says(selection):
    rate = check_attack(selection)
    # exactly: the unit's records have one value in each column
    away = (selection.threshold - 0.5 - selection.most) / selection.deviation
    exact = 1 - (1 - norm.sf(away)) ** selection.attributes
    assert rate == pytest.approx(exact, abs=SURE * math.sqrt(exact / RUNS))
    assert exact <= selection.delta() <= 1.3 * selection.most * exact


@pytest.mark.parametrize("selection", TOYS)
def test_a_threshold_without_the_units_records_is_caught(selection):
    """The negative controls: δ of noise alone, and counts without noise."""
    lower = LabelSelection(
        selection.noise_multiplier,
        selection.threshold + selection.most,
        selection.attributes,
        selection.most,
    )
    with pytest.raises(AssertionError):
        check_attack(selection, claimed=lower)


def check_noise(selection, runs=1500):
    """A unit with m records of a value that others have moves the counts by 1/σ of their noise."""
    totals = []  # without the unit, and with it
    for own in ([], ["a"] * selection.most):
        randomness = Randomness.for_tests(1)
        columns = [["a"] * 200 + own] * selection.attributes
        found = [opened(select_label_values(columns, selection, randomness)) for _ in range(runs)]
        totals.append(np.array([sum(column["a"] for column in each) for each in found], float))
    moved = (totals[1].mean() - totals[0].mean()) / max(1e-9, totals[0].std())
    assert moved == pytest.approx(1 / selection.noise_multiplier, rel=0.12)


@pytest.mark.parametrize("selection", TOYS)
def test_what_others_have_too_is_covered_by_the_noise(selection):
    check_noise(selection)


@pytest.mark.parametrize("fault", ["exact counts", "noise of one column", "noise of one record"])
def test_too_little_noise_is_caught(monkeypatch, fault):
    selection = LabelSelection(0.7, 6, 2, 3)
    if fault == "exact counts":
        monkeypatch.setattr(counts.GaussianGrid, "add", lambda *_, **__: None)
    else:
        less = 2**0.5 if fault == "noise of one column" else 3
        noise = selection.deviation / less
        monkeypatch.setattr(LabelSelection, "deviation", property(lambda _: noise))
    with pytest.raises(AssertionError):
        check_noise(selection)


def test_the_release_does_not_depend_on_the_order_of_records():
    selection, columns = LabelSelection(1e-6, 2, 2, 1), [["a"] * 9, [3] + [2] * 4 + [1] * 4]
    for each in (columns, [column[::-1] for column in columns]):
        found = opened(select_label_values(each, selection, Randomness.for_tests(0)))
        assert [list(column.items()) for column in found] == [[("a", 9)], [(1, 4), (2, 4)]]
    with pytest.raises(ValueError, match="other columns"):
        select_label_values(columns[:1], selection, Randomness.for_tests(0))


# -- what it costs ---------------------------------------------------------------------------------


def least_delta(selection, spent):
    """Return the exact δ at ε of the worst pair here, in both directions.

    One value of the unit is its own, and in another column it is one of many.
    """
    away = (selection.threshold - 0.5 - selection.most) / selection.deviation
    p, mu = norm.sf(away), selection.most / selection.deviation
    there = p + (1 - p) * gaussian_delta(mu, spent)
    return max(there, gaussian_delta(mu, spent + math.log1p(-p)))


@pytest.mark.parametrize("selection", [*TOYS, LabelSelection(2.5, 14, 1, 1)])
def test_epsilon_and_delta_cover_the_selected_values(selection):
    delta = 1.5 * selection.delta()
    spent = epsilon([selection], delta)
    assert least_delta(selection, spent) <= delta
    # The negative control: a Gaussian release alone.
    wrong = epsilon([GaussianRelease(selection.noise_multiplier, "counts")], delta)
    assert wrong < spent and least_delta(selection, 60.0) > 0.1 * delta
    assert epsilon([selection], selection.delta()) == math.inf
    with pytest.raises(NotCovered):
        prv_epsilon([selection], selection.delta())
    assert prv_epsilon([selection], delta) == pytest.approx(spent, rel=0.01)


def test_groups_and_steps_are_composed_at_the_remaining_delta():
    selection, step = LabelSelection(3.0, 20, 1, 1), SubsampledGaussian(1.1, 0.01, 100)
    left = 1e-5 - selection.delta()
    both = epsilon([selection, step], 1e-5)
    assert both == epsilon([GaussianRelease(3.0, "counts"), step], left)
    assert epsilon([step], 1e-5) < both
    of_two = 2 * norm.sf((19.5 - 2) / 3)
    assert selection.delta(2) == pytest.approx(of_two, rel=1e-4)
    three = [group_epsilon([selection], 1e-3, size) for size in (1, 2, 3)]
    assert three == sorted(three) and three[2] < math.inf
    assert gaussian_delta(2 / 3.0, three[1]) + selection.delta(2) <= 1e-3 * (1 + 1e-9)
    assert group_epsilon([selection], 1e-5, 20) == math.inf  # they have a value of their own
    assert LabelSelection(1.0, 2, 1, 5).delta() == 1.0


# (N, ε): the threshold with one column and with two, as docs/labels.md has it
THRESHOLDS = {
    (60, 1.0): (80, 116),
    (60, 8.0): (14, 19),
    (400, 1.0): (80, 116),
    (400, 8.0): (14, 19),
    (3000, 1.0): (98, 141),
    (3000, 8.0): (16, 22),
}


@pytest.mark.parametrize(("asked", "thresholds"), THRESHOLDS.items(), ids=str)
def test_plans_leave_room_for_it(asked, thresholds):
    records, target = asked
    privacy = PrivacyConfig(target)
    for columns, threshold in enumerate(thresholds, start=1):
        selection = plan_selection(records, privacy, columns, 1)
        config = settled(RunConfig(privacy), records, selection=selection)
        plan = make_plan(records, config, selection)
        assert selection.threshold == threshold and selection.delta() <= 0.1 * plan.target_delta
        assert 0.999 * target < plan.epsilon <= target and plan.selection in plan.releases
        without = make_plan(records, config)
        assert without.marginal_noise < plan.marginal_noise < 1.05 * without.marginal_noise
    assert plan_selection(records, privacy, 0, 1) is None
    assert plan_selection(records, PrivacyConfig(None), 1, 1) is None


@pytest.mark.parametrize(("most", "size"), [(1, None), (4, None), (1, 3)])
def test_the_threshold_is_the_lowest_for_a_share_of_delta(most, size):
    selection = plan_selection(500, PrivacyConfig(8.0, group_size=size), 1, most)
    lower = LabelSelection(selection.noise_multiplier, selection.threshold - 1, 1, most)
    assert selection.delta(size or 1) <= 1e-6 < lower.delta(size or 1)
