"""The noisy sum of bounded vectors: what one unit can change, and a control that sees too much.

The noisy regressions: a gradient is a unit's own. The audit attacks them.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from twinset.privacy.mechanism import vector_sum
from twinset.privacy.mechanism.randomness import Randomness
from twinset.privacy.mechanism.vector_sum import (
    UNIT_STEPS,
    Descent,
    Regressions,
    VectorSum,
    fit_regressions,
)


def total(vectors):
    summed = VectorSum(4)
    summed.add(np.array(vectors, np.float64).reshape(-1, 4))
    return summed._sum / UNIT_STEPS


def sparse_total(vector):
    summed, places = VectorSum(4), np.flatnonzero(vector)
    summed.add(np.asarray(vector, np.float64)[None, places], places)
    return summed._sum / UNIT_STEPS


def check_sensitivity(rows, one):
    """Whoever else is there, one more moves the sum by the same vector, of length one at most."""
    change = total([*rows, one]) - total(rows)
    assert np.linalg.norm(change) <= 1
    assert change.tolist() == total([one]).tolist()
    assert np.linalg.norm(sparse_total(one)) <= 1
    assert sparse_total(one) == pytest.approx(total([one]), abs=1e-6)


NUMBERS = st.floats(-1e6, 1e6, allow_nan=False, width=32)
VECTOR = st.lists(NUMBERS, min_size=4, max_size=4).map(np.array)


@settings(suppress_health_check=[HealthCheck.too_slow])  # where others use the machine
@given(st.lists(VECTOR, max_size=6), VECTOR)
def test_one_unit_moves_the_sum_by_its_own_vector_alone(rows, one):
    check_sensitivity(rows, one)


def test_without_clipping_the_check_fails(monkeypatch):
    monkeypatch.setattr(vector_sum, "_SLACK", 5.0)
    with pytest.raises(AssertionError):
        check_sensitivity([], np.array([3.0, 4.0, 0.0, 0.0]))


def test_a_short_vector_is_added_unchanged_and_a_nan_is_not_added():
    assert total([[0.5, 0, -0.25, 0]]).tolist() == [0.5, 0, -0.25, 0]
    assert total([[np.nan, 0, 0.5, 0], [np.inf, 0, 0.5, 0]]).tolist() == [0, 0, 0, 0]


# -- regressions -----------------------------------------------------------------------------------

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


def with_one_more(data, vector):
    return replace(
        data,
        vectors=[np.concatenate([x, vector[None]]) for x in data.vectors],
        labels=[np.append(y, 1) for y in data.labels],
        units=[*data.units, [len(data.labels[0])]],
    )


@pytest.mark.parametrize("gone", [0, 299, 511])
def test_without_a_unit_the_gradients_of_others_stay_bit_for_bit(gone):
    data = data_of(700)
    weights = [np.random.default_rng(k).normal(0, 1, (k, 8)) for k in (2, 3)]
    every = vector_sum._gradients(data, data.units, weights)
    others = vector_sum._gradients(data, [u for u in data.units if u != [gone]], weights)
    assert (np.delete(every, gone, 0) == others).all()


def test_all_records_of_an_owner_are_clipped_as_one(monkeypatch):
    """However many they are, the owner moves a sum by one length at most."""
    added = []
    monkeypatch.setattr(vector_sum.VectorSum, "add", lambda self, rows: added.append(rows.copy()))
    data = data_of(5, units=[[0, 1, 2, 3], [4]])
    fit_regressions(data, SIGMA, Randomness.for_tests(0), Descent(steps=1))
    (rows,) = added
    assert rows.shape == (2, 2 * 8 + 3 * 8)
    weights = [np.zeros((2, 8)), np.zeros((3, 8))]
    each = vector_sum._gradients(data, [[0], [1], [2], [3]], weights)
    assert rows[0] == pytest.approx(each.mean(0) / Descent().max_grad_norm)


def test_a_unit_of_zeros_changes_no_regression():
    """One more whose vectors are zero; where units are drawn by chance, their number is private."""
    data = data_of(40)
    both = (data, with_one_more(data, np.zeros(8)))
    one, other = (fit_regressions(each, 1.0, Randomness.for_tests(0)) for each in both)
    for mine, theirs in zip(one, other, strict=True):
        assert (mine == theirs).all()
