"""The release of the other columns: what one unit can change, and nothing else than that.

A run on a neighbouring table gets the releases of the first one played back. What it adds up then
differs by one unit's bounded contribution, and what it makes of the releases does not differ at
all. Each check has a control that fails.
"""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinset.config.plan import least_threshold
from twinset.privacy.mechanism import columns as mechanism
from twinset.privacy.mechanism import vector_sum
from twinset.privacy.mechanism.columns import release_histograms, release_pair_scores, unit_weights
from twinset.privacy.mechanism.randomness import Randomness
from twinset.privacy.mechanism.vector_sum import UNIT_STEPS, VectorSum
from twinset.run import columns as release
from twinset.run.columns import ColumnRelease, PrivateColumns
from twinset.table import survey
from twinset.table.kinds import ColumnRules

N = 240
rng = np.random.default_rng(1)
FRAME = pd.DataFrame(
    {
        "age": rng.integers(18, 90, N),
        "city": np.array(["York", "Leeds", "Hull"])[rng.integers(0, 3, N)],
        "when": [f"2024-0{1 + i % 9}-{1 + i % 28:02}" for i in range(N)],
        "price": np.round(rng.gamma(2, 30, N), 2),
        "user_id": [f"u{i}" for i in range(N)],
        "flag": rng.integers(0, 2, N).astype(bool),
    }
)
LABELS = rng.integers(0, 2, N)
OWNERS = [[i, i + 1, i + 2] for i in range(0, N, 3)]
ALONE = [[i] for i in range(N)]
SIGMA, SHARE = 1.0, 1e-7  # of the event in the ledger, and δ of the selection
# What the one unit that is used or left out may hold.
ODD = {
    "a value that no other has": {"city": "Nowhere", "age": 19},
    "a gap": {"city": None, "when": None, "price": np.nan},
    "an extreme": {"price": 1e14, "age": 10**9, "when": "1801-01-01"},
    "cells of other kinds": {"city": "3,5", "when": "soon", "user_id": "u0"},
    "digits and objects": {"city": "01067", "when": [1], "user_id": "20240103"},
    "other spellings": {"city": b"x", "when": "3/1/2024 6:30 PM", "user_id": "-$1,234.50"},
    "zones and large numbers": {"city": "yes", "when": "2024-01-03T10:00:00.5+02:00"},
    "coarse values": {"price": "7.000", "when": "2024-01-03T10:00:00Z", "age": "19.0"},
    "a number among texts": {"city": 10**18, "when": 20240103, "user_id": 7},
}


class Replay:
    """Records what is released in one run, and plays it back in the next."""

    def __init__(self) -> None:
        self.outputs, self.taken, self.is_first = [], 0, True
        self.sums, self.counts = [], []  # of the present run: exact sums with their bounds
        self.multipliers = []  # of noise, for each sum

    def begin_again(self):
        exact = self.sums, self.counts
        self.sums, self.counts, self.taken, self.is_first = [], [], 0, False
        return exact

    def play(self, output):
        if self.is_first:
            self.outputs.append(output)
        self.taken += 1
        return self.outputs[self.taken - 1]

    def add_gaussian(self, scores, deviation, randomness):
        self.sums.append((scores.numpy().copy(), len(scores) ** 0.5))
        self.multipliers.append(deviation / len(scores) ** 0.5)
        return self.play(scores + 0.3 * deviation)

    def select(self, texts, selection, randomness):
        self.counts.append([pd.Series(each, dtype=object).value_counts() for each in texts])
        return self.play([dict(each[each > 20]) for each in self.counts[-1]])


@pytest.fixture
def replay(monkeypatch):
    found = Replay()

    def release_sum(total, sigma, randomness):
        exact = total._sum / UNIT_STEPS
        found.sums.append((exact, 1.0))
        found.multipliers.append(sigma)
        noise = np.random.default_rng(len(found.sums)).normal(0, sigma, len(exact))
        return found.play(exact + noise)

    monkeypatch.setattr(VectorSum, "release", release_sum)
    monkeypatch.setattr(mechanism, "add_gaussian_", found.add_gaussian)
    monkeypatch.setattr(release, "select_label_values", found.select)
    return found


def release_of(frame, units, record=lambda event: None):
    selection = least_threshold(2.0, frame.shape[1], 3, 1, SHARE)
    private = PrivateColumns({c: frame[c] for c in frame}, LABELS, 2, units)
    rules, noise = ColumnRules(), Randomness.for_tests(0)
    return ColumnRelease(private, rules, SIGMA, selection, record, noise)


def model_of(frame, units):
    return release_of(frame, units).find_model([N / 2, N / 2])


def with_odd(odd, rows):
    frame = FRAME.astype(dict.fromkeys(("city", "when", "user_id", "price", "age"), object))
    for name, cell in odd.items():
        for row in rows:
            frame.at[row, name] = cell
    return frame


def check_sensitivity(replay, odd, units):
    """The first unit is used, then left out. What earlier releases decide is the same."""
    frame = with_odd(odd, units[0])
    used = model_of(frame, units)
    sums, counts = replay.begin_again()
    without = model_of(frame, [[], *units[1:]])
    assert len(sums) == len(replay.sums) >= 5
    for (exact, bound), (other, _) in zip(sums, replay.sums, strict=True):
        assert np.linalg.norm(exact - other) <= bound
    most = max(map(len, units))
    for column, other in zip(sum(counts, []), sum(replay.counts, []), strict=True):
        assert column.sub(other, fill_value=0).abs().sum() <= most
    return used, without


@pytest.mark.parametrize("units", [ALONE, OWNERS], ids=["records", "owners"])
@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_a_unit_moves_each_part_by_its_bound_and_nothing_else(replay, odd, units):
    used, without = check_sensitivity(replay, odd, units)
    twins = [model.draw(LABELS, 7) for model in (used, without)]
    pd.testing.assert_frame_equal(*twins)
    assert used.columns == without.columns


add_ones = VectorSum.add_ones


def weights_of_records(units, records):
    """Each record of an owner weighs 1, as if the others were not there."""
    weights = np.zeros(records, np.int64)
    for unit in units:
        weights[list(unit)] = UNIT_STEPS
    return weights


def counted_twice(*given):
    add_ones(*given)
    add_ones(*given)


@pytest.mark.parametrize(
    "fault",
    [
        (release, "unit_weights", weights_of_records),
        (VectorSum, "add_ones", counted_twice),
    ],
    ids=["owners not scaled", "a marginal counted twice"],
)
def test_a_planted_fault_of_sensitivity_is_caught(replay, monkeypatch, fault):
    monkeypatch.setattr(*fault)
    with pytest.raises(AssertionError):
        check_sensitivity(replay, ODD["a value that no other has"], OWNERS)


def check_spending(replay):
    """All noise that was drawn is at least that of the event, and δ of the selection no more."""
    recorded = []
    release_of(FRAME, ALONE, recorded.append).find_model([N / 2, N / 2])
    assert sum(sigma**-2 for sigma in replay.multipliers) <= SIGMA**-2 * (1 + 1e-9)
    assert [event.delta(1) <= SHARE for event in recorded] == [True]


scores_of = release.release_pair_scores
SPENT_TWICE = {
    "parts of more than all": ("PAIRS", 0.5),
    "one score's noise for all": (
        "release_pair_scores",
        lambda *given: scores_of(*given[:5], given[5] / len(given[2]) ** 0.5, given[6]),
    ),
    "a threshold of ten times δ": (
        "least_threshold",
        lambda *given: least_threshold(*given[:4], 10 * given[4]),
    ),
}


@pytest.mark.parametrize("fault", [None, *SPENT_TWICE])
def test_all_parts_together_spend_what_the_ledger_says(replay, monkeypatch, fault):
    if fault is None:
        return check_spending(replay)
    monkeypatch.setattr(release, *SPENT_TWICE[fault])
    with pytest.raises(AssertionError):
        check_spending(replay)


def test_a_domain_that_is_read_from_the_table_is_caught(replay, monkeypatch):
    """The control of the comparison: values that skip the selection differ between neighbours."""

    def read(texts, selection, randomness):
        return [dict(pd.Series(each, dtype=object).value_counts()) for each in texts]

    monkeypatch.setattr(release, "select_label_values", read)
    frame, found = with_odd(ODD["a value that no other has"], [0]), []
    for units in (ALONE, [[], *ALONE[1:]]):
        run = release_of(frame, units)
        run.find_kinds()
        run.find_values()
        found.append(run.columns)
        replay.begin_again()
    assert found[0] != found[1]


@st.composite
def records_of_units(draw):
    """Codes of a few columns for a few records, their owners, and which owner is left out."""
    owners = draw(st.lists(st.integers(0, 3), min_size=1, max_size=10))
    sizes = draw(st.lists(st.integers(1, 4), min_size=2, max_size=4))
    codes = [
        np.array(draw(st.lists(st.integers(-1, n - 1), min_size=len(owners), max_size=len(owners))))
        for n in sizes
    ]
    return owners, sizes, codes, draw(st.sampled_from(owners))


@given(records_of_units())
def test_any_unit_moves_histograms_and_scores_by_their_bounds(found):
    owners, sizes, codes, gone = found
    pairs = [(a, b) for b in range(len(sizes)) for a in range(b)]
    moved = []

    def keep(sums, deviation, randomness):
        moved.append(sums.numpy().copy())
        return sums

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mechanism, "add_gaussian_", keep)
        patch.setattr(vector_sum, "add_gaussian_", keep)
        for left in (owners, [o for o in owners if o != gone]):
            units = [[i for i, o in enumerate(owners) if o == own] for own in sorted({*left})]
            weights = unit_weights(units, len(owners))
            release_histograms(codes, sizes, weights, 1.0, Randomness.for_tests(0))
            mean = lambda a, b: np.full((sizes[a], sizes[b]), 0.3)  # noqa: E731
            release_pair_scores(codes, sizes, pairs, mean, weights, 1.0, Randomness.for_tests(0))
    counts, scores, fewer_counts, fewer_scores = moved
    assert np.linalg.norm(counts - fewer_counts) <= 1
    assert np.abs(scores - fewer_scores).max() <= 1  # so all of them move by √P at most


def test_histograms_have_the_stated_noise():
    codes = [np.full(50, 1), np.full(50, -1), np.arange(50)]
    sizes = [4000, 4000, 4000]
    draws, deviation = release_histograms(
        codes, sizes, unit_weights(ALONE[:50], 50), 3.0, Randomness.for_tests(3)
    )
    assert deviation == pytest.approx(3.0 * 3**0.5)
    noise = np.concatenate([draws[0][2:], draws[1], draws[2][50:]])
    assert noise.std() == pytest.approx(deviation, rel=0.03)
    for wrong in (2 / 3, 3 / 2):
        assert noise.std() != pytest.approx(wrong * deviation, rel=0.03)
    assert draws[0][1] == pytest.approx(50, abs=5 * deviation)


def test_noise_hardly_ever_widens_a_window(monkeypatch):
    """Tails are empty. The noise is that of `release_histograms` with a deviation of 10."""
    noise = np.random.default_rng(5).normal(0, 10, (10_000, 400))
    noise[:, 200] += 1000

    def windows():
        return np.array([survey.find_window(counts, 10.0) for counts in noise])

    assert (windows() != 200).any(1).sum() < 10
    monkeypatch.setattr(survey, "_SURE", 4.0)  # the control: as for a single count
    assert (windows() != 200).any(1).sum() > 100
    monkeypatch.undo()
    # what enough records hold widens it, in one place or in near ones together
    noise[:, 7] += 90
    noise[:, 201:209] += 30
    first, last = windows().T
    assert (first == 7).mean() > 0.99 and (last >= 208).mean() > 0.8


def test_a_record_in_too_many_histograms_is_refused():
    weights = unit_weights(ALONE[:2], 2)
    codes = [np.array([0, 1]), np.array([1, -1])]
    with pytest.raises(ValueError, match="more histograms"):
        release_histograms(codes, [2, 2], weights, 1.0, Randomness.for_tests(0), most=1)
    with pytest.raises(ValueError, match="outside of one"):
        release_histograms(codes, [1, 2], weights, 1.0, Randomness.for_tests(0))


def test_a_pair_that_goes_together_has_the_higher_score():
    a, b, c = LABELS, LABELS.copy(), rng.integers(0, 2, N)
    mean = np.full((2, 2), N / 4)
    scores, _ = release_pair_scores(
        [a, b, c],
        [2, 2, 2],
        [(0, 1), (0, 2)],
        lambda x, y: mean,
        unit_weights(ALONE, N),
        0.0,
        Randomness.for_tests(0),
    )
    assert scores[0] > 0.9 * N and scores[1] < 0.3 * N
