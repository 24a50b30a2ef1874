"""Noisy sums of vectors, counts of labels, tokens and lengths, and regressions: what a unit moves.

The noise itself is tried in `test_noise`. The audit attacks them.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import opened
from twinset.privacy.mechanism import vector_sum
from twinset.privacy.mechanism.counts import (
    LengthBins,
    TokenMarginals,
    TokenWeights,
    release_label_counts,
    release_token_marginals,
    without_negatives,
)
from twinset.privacy.mechanism.gate import Noisy
from twinset.privacy.mechanism.randomness import Randomness
from twinset.privacy.mechanism.vector_sum import (
    UNIT_STEPS,
    Descent,
    Regressions,
    VectorSum,
    fit_regressions,
)

# -- vectors ---------------------------------------------------------------------------------------


def total(vectors):
    summed = VectorSum(4)
    summed.add(np.array(vectors, np.float64).reshape(-1, 4))
    return summed._sum / UNIT_STEPS


def sparse_total(vector):
    summed, places = VectorSum(4), np.flatnonzero(vector)
    summed.add(np.asarray(vector, np.float64)[None, places], places)
    return summed._sum / UNIT_STEPS


def check_vector(rows, one):
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
    check_vector(rows, one)


def test_without_clipping_the_check_fails(monkeypatch):
    monkeypatch.setattr(vector_sum, "_SLACK", 5.0)
    with pytest.raises(AssertionError):
        check_vector([], np.array([3.0, 4.0, 0.0, 0.0]))


def test_a_short_vector_is_added_unchanged_and_a_nan_is_not_added():
    assert total([[0.5, 0, -0.25, 0]]).tolist() == [0.5, 0, -0.25, 0]
    assert total([[np.nan, 0, 0.5, 0], [np.inf, 0, 0.5, 0]]).tolist() == [0, 0, 0, 0]


# -- labels ----------------------------------------------------------------------------------------


def test_combinations_without_records_get_few_rows():
    """Set to 0 alone, noise below 0 leaves what is above: rows of labels that no record has."""
    labels, public = [(i % 10,) for i in range(3000)], [(i,) for i in range(200)]
    noisy = opened(release_label_counts(labels, public, 7.0, Randomness.for_tests(9)))
    cut = np.maximum(noisy, 0)
    kept = np.array(without_negatives(noisy))
    assert kept.min() == 0 and kept.sum() == sum(noisy)
    assert kept[10:].sum() / kept.sum() < 0.04 < 0.1 < cut[10:].sum() / cut.sum()
    assert np.abs(kept[:10] - 300).max() < 50


def test_the_public_set_must_have_every_label_and_an_error_tells_none():
    labels, public = [("bad",), ("secret",)], [("bad",), ("good",), ("mixed",)]
    with pytest.raises(ValueError, match="row 2 ") as error:
        release_label_counts(labels, public, 1.0, Randomness.for_tests(0))
    assert "secret" not in str(error.value)


PUBLIC = [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
LABELS = st.lists(st.sampled_from(PUBLIC), max_size=8)


@given(LABELS, st.integers(1, 3).flatmap(lambda m: st.tuples(
    st.just(m), st.lists(st.sampled_from(PUBLIC), min_size=m, max_size=m)
)), st.randoms())  # fmt: skip
def test_a_unit_moves_label_counts_by_the_most_that_noise_is_for(others, unit, random):
    """By at most m in length, wherever its m records stand among others. In σm that is 1 / σ."""
    most, own = unit
    table = [*others, *own]
    random.shuffle(table)
    # noise of one seed, so small that rounding removes it
    used, unused = (
        np.array(opened(release_label_counts(each, PUBLIC, 1e-3, Randomness.for_tests(1), most)))
        for each in (table, others)
    )
    assert used.tolist() == [table.count(c) for c in PUBLIC]
    assert 0 < np.linalg.norm(used - unused) <= most


# -- tokens and lengths ----------------------------------------------------------------------------

END, VOCABULARY = 0, 300
TEXTS = [
    [([5, 7, 7, END], (0, 1))],
    [([7, 9, END], (1, 1))],
    [(list(range(1, 200)), (1, 0))],  # longer than may be
]
WEIGHTS = TokenWeights(
    np.where(np.arange(VOCABULARY) % 2, 1.0, 0.25) * np.sign(range(VOCABULARY)), 4
)
BINS = LengthBins(64, END)
LONGEST = (2 * (WEIGHTS.bound**2 + 1)) ** 0.5  # of two attributes, tokens and length


def released(units, noise=0.0, seed=0, bins=BINS):
    randomness = Randomness.for_tests(seed)
    return release_token_marginals(units, (2, 2), WEIGHTS, noise, randomness, bins)


def flat(marginals):
    """What noise is alike on: counts times their tokens' weights, and counts of lengths."""
    tokens = [(each * WEIGHTS.weights).ravel() for each in marginals.counts]
    return np.concatenate([*tokens, *(each.ravel() for each in marginals.lengths)])


def test_it_counts_texts_of_each_label_value_by_token_and_length():
    assert released(TEXTS).event is None  # without noise
    found, counts = opened(released(TEXTS)), opened(released(TEXTS[:2])).counts
    assert counts[0][:, 7] == pytest.approx([1, 1], abs=1e-5)
    assert counts[1][:, 7] == pytest.approx([0, 2], abs=1e-5)
    assert not counts[0][:, END].any() and counts[0][0, 9] == 0
    without = opened(released([TEXTS[0], [], *TEXTS[1:]]))  # a unit whose records were left out
    assert without.units == found.units + 1 == 4 and (flat(without) == flat(found)).all()
    first, second = found.lengths
    # three tokens, two, and one that does not end
    assert [BINS.of(ids) for ((ids, _),) in TEXTS] == [0, 0, len(BINS) - 1]
    assert [first[0, 0], first[1, 0], first[1, -1], second[0, -1]] == pytest.approx([1] * 4, 1e-5)
    assert second[1, 0] == pytest.approx(2, abs=1e-5)
    assert first.sum() == second.sum() == pytest.approx(3, abs=1e-4)


IDS = st.lists(st.integers(0, VOCABULARY - 1), max_size=80)
ONE_TEXT = st.tuples(IDS, st.tuples(st.integers(0, 1), st.integers(0, 1)))
OWNER = st.lists(ONE_TEXT, max_size=4)


def check_sensitivity(others, unit, at):
    """One more unit moves the whole sum by at most 1, and by the same whole numbers everywhere."""
    sums = []

    def keep(total, *given):
        sums.append(total._sum.copy())
        return Noisy(np.zeros(len(total._sum)), None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VectorSum, "release", keep)
        for units in ([*others[:at], unit, *others[at:]], others, [unit], []):
            released(units)
    used, unused, alone, empty = sums
    assert (used - unused == alone - empty).all()
    assert np.linalg.norm(alone / UNIT_STEPS) <= 1


@given(st.lists(OWNER, max_size=4), OWNER, st.integers(0, 4))
def test_any_unit_moves_the_marginals_by_its_own_vector_alone(others, unit, at):
    check_sensitivity(others, unit, at)


def test_texts_of_an_owner_that_are_not_averaged_are_caught(monkeypatch):
    def sum_of_texts(self, vectors, places=slice(None)):
        self._sum[places] += np.trunc(vectors * UNIT_STEPS * 2).astype(np.int64).sum(0)

    monkeypatch.setattr(VectorSum, "add", sum_of_texts)
    with pytest.raises(AssertionError):
        check_sensitivity([], [TEXTS[2][0]] * 2, 0)


@pytest.mark.parametrize("bins", [BINS, None])
def test_noise_is_of_the_deviation_that_is_stated_and_read_as_it_was_written(tmp_path, bins):
    noisy = released(TEXTS, 3.0, bins=bins)
    marginals = opened(noisy)
    longest = LONGEST if bins else WEIGHTS.bound * 2**0.5
    assert noisy.event.noise_multiplier == 3.0 and marginals.deviation == pytest.approx(
        3.0 * longest
    )
    drawn = flat(marginals) - flat(opened(released(TEXTS, bins=bins)))
    assert drawn.std() == pytest.approx(marginals.deviation, rel=0.1)
    assert marginals.noise[2] == marginals.noise[1] * 4 and marginals.noise[END] == np.inf
    marginals.save(tmp_path / "m.npz")
    read = TokenMarginals.load(tmp_path / "m.npz")
    assert (flat(read) == flat(marginals)).all()
    assert (read.noise == marginals.noise).all() and read.units == marginals.units
    assert [each.shape for each in read.lengths] == [(2, len(BINS))] * (2 if bins else 0)


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
    one, other = (opened(fit_regressions(each, 1.0, Randomness.for_tests(0))) for each in both)
    for mine, theirs in zip(one, other, strict=True):
        assert (mine == theirs).all()
