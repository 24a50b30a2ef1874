"""The noisy sum of bounded vectors: what one unit can change, and a control that sees too much."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinset.privacy.mechanism import vector_sum
from twinset.privacy.mechanism.randomness import Randomness
from twinset.privacy.mechanism.vector_sum import UNIT_STEPS, VectorSum

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
