"""The noisy sum of bounded vectors: what one unit can change, and a control that sees too much.

The noisy regressions: they learn, a gradient is a unit's own, and too little noise is seen.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from twinset.privacy.mechanism import vector_sum
from twinset.privacy.mechanism.randomness import Randomness
from twinset.privacy.mechanism.vector_sum import (
    UNIT_STEPS,
    Descent,
    Regressions,
    VectorSum,
    fit_regressions,
)

NUMBERS = st.floats(-1e6, 1e6, allow_nan=False, width=32)


def total(vectors):
    summed = VectorSum(4)
    summed.add(np.array(vectors, np.float64).reshape(-1, 4))
    return summed._sum / UNIT_STEPS


def sparse_total(vector):
    summed, places = VectorSum(4), np.flatnonzero(vector)
    summed.add_at(places, np.asarray(vector)[places])
    return summed._sum / UNIT_STEPS


def check_sensitivity(rows, one):
    """Whoever else is there, one more moves the sum by the same vector, of length one at most."""
    change = total([*rows, one]) - total(rows)
    assert np.linalg.norm(change) <= 1
    assert change.tolist() == total([one]).tolist()
    assert np.linalg.norm(sparse_total(one)) <= 1
    assert sparse_total(one) == pytest.approx(total([one]), abs=1e-6)


VECTOR = st.lists(NUMBERS, min_size=4, max_size=4).map(np.array)


@given(st.lists(VECTOR, max_size=6), VECTOR)
def test_one_unit_moves_the_sum_by_its_own_vector_alone(rows, one):
    check_sensitivity(rows, one)


def test_without_clipping_the_check_fails(monkeypatch):
    monkeypatch.setattr(vector_sum, "_SLACK", 5.0)
    with pytest.raises(AssertionError):
        check_sensitivity([], np.array([3.0, 4.0, 0.0, 0.0]))


def test_a_short_vector_is_added_as_it_is_and_what_is_no_number_is_not():
    assert total([[0.5, 0, -0.25, 0]]).tolist() == [0.5, 0, -0.25, 0]
    assert total([[np.nan, 0, 0.5, 0], [np.inf, 0, 0.5, 0]]).tolist() == [0, 0, 0, 0]


def test_noise_has_its_standard_deviation():
    noisy = VectorSum(20_000).release(3.0, Randomness.for_tests(0))
    assert noisy.std() == pytest.approx(3.0, rel=0.03)


SIGMA = 2.0


def data_of(count, seed=0, units=None):
    rng = np.random.default_rng(seed)
    labels = [rng.integers(0, 2, count), rng.integers(0, 3, count)]
    vectors = []
    for y in labels:
        x = rng.normal(0, 0.5, (count, 8))
        x[np.arange(count), y] += 2.0
        vectors.append(x / np.linalg.norm(x, axis=1, keepdims=True))
    units = units or [[i] for i in range(count)]
    return Regressions(vectors, labels, (2, 3), units, len(units))


def without(data, gone):
    keep = np.arange(len(data.units)) != gone
    return Regressions(
        [x[keep] for x in data.vectors],
        [y[keep] for y in data.labels],
        data.classes,
        data.units[:-1],
        data.expected,
    )


def right(data, weights, attribute):
    scores = data.vectors[attribute] @ weights[attribute].T
    return (scores.argmax(1) == data.labels[attribute]).mean()


def test_it_learns_in_spite_of_the_noise():
    data = data_of(3000)
    weights = fit_regressions(data, SIGMA, Randomness.for_tests(0))
    assert right(data, weights, 0) > 0.9
    assert right(data, weights, 1) > 0.9


def test_noise_that_drowns_all_units_leaves_nothing():
    data = data_of(300)
    weights = fit_regressions(data, 1e6, Randomness.for_tests(0))
    assert right(data, weights, 1) < 0.7


@pytest.mark.parametrize("gone", [0, 299, 511])
def test_without_a_unit_the_gradients_of_others_stay_bit_for_bit(gone):
    data = data_of(700)
    weights = [np.random.default_rng(k).normal(0, 1, (k, 8)) for k in (2, 3)]
    every = vector_sum._gradients(data, data.units, weights)
    fewer = without(data, gone)
    others = vector_sum._gradients(fewer, fewer.units, weights)
    assert (np.delete(every, gone, 0) == others).all()


def test_all_records_of_an_owner_are_clipped_as_one(monkeypatch):
    """However many they are, the owner moves a sum by one length at most."""
    added = []
    monkeypatch.setattr(vector_sum.VectorSum, "add", lambda self, rows: added.append(rows.copy()))
    data = data_of(5, units=[[0, 1, 2, 3], [4]])
    fit_regressions(data, SIGMA, Randomness.for_tests(0), Descent(steps=1))
    (rows,) = added
    assert rows.shape == (2, 2 * 8 + 3 * 8)
    alone = data_of(5, units=[[0], [1], [2], [3]])
    weights = [np.zeros((2, 8)), np.zeros((3, 8))]
    each = vector_sum._gradients(alone, alone.units, weights)
    assert rows[0] == pytest.approx(each.mean(0) / Descent().max_grad_norm)


def distinguished(noise_multiplier, runs=400):
    """How often one record more is guessed right from the weights, with all other records known."""
    data = data_of(40)
    step = Descent(steps=4)
    odd = (np.full((1, 8), 8**-0.5), np.full((1, 8), 8**-0.5))
    more = Regressions(
        [np.concatenate([x, o]) for x, o in zip(data.vectors, odd, strict=True)],
        [np.append(y, 1) for y in data.labels],
        data.classes,
        [*data.units, [40]],
        data.expected,
    )

    def flat(data, seed):
        found = fit_regressions(data, noise_multiplier, Randomness.for_tests(seed), step)
        return np.concatenate([w.ravel() for w in found])

    off, on = (
        np.stack([flat(one, seed + start) for seed in range(runs)])
        for one, start in ((data, 0), (more, runs))
    )
    half = runs // 2
    direction = np.linalg.pinv(np.cov(off[:half].T)) @ (on[:half].mean(0) - off[:half].mean(0))
    scores_on, scores_off = on[half:] @ direction, off[half:] @ direction
    cut = (np.median(scores_on) + np.median(scores_off)) / 2
    return ((scores_on > cut).mean() + (scores_off <= cut).mean()) / 2


def limit(noise_multiplier):
    """Return the most that any attacker is right, with three standard deviations of luck."""
    return norm.cdf(1 / (2 * noise_multiplier)) + 3 * 0.5 / 20


def test_an_attacker_who_knows_all_others_is_not_right_more_often_than_promised():
    assert distinguished(1.0) <= limit(1.0)


def test_with_too_little_noise_the_attack_is_seen(monkeypatch):
    release = vector_sum.VectorSum.release
    monkeypatch.setattr(
        vector_sum.VectorSum,
        "release",
        lambda self, sigma, randomness: release(self, sigma / 8, randomness),
    )
    assert distinguished(1.0) > limit(1.0)


def test_how_many_units_take_part_moves_nothing_by_itself():
    """One more whose vectors are zero; where units are drawn by chance, their number is private."""
    data = data_of(40)
    more = Regressions(
        [np.concatenate([x, np.zeros((1, 8))]) for x in data.vectors],
        [np.append(y, 1) for y in data.labels],
        data.classes,
        [*data.units, [40]],
        data.expected,
    )
    one, other = (fit_regressions(each, 1.0, Randomness.for_tests(0)) for each in (data, more))
    for mine, theirs in zip(one, other, strict=True):
        assert (mine == theirs).all()
