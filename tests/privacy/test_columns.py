"""The release of the other columns: what it spends, and what one unit can change in a sum.

`test_replay` compares whole releases on neighbouring tables. The audit attacks them.
"""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import opened
from twinset.config.plan import least_threshold
from twinset.privacy.accounting.events import COLUMNS, GaussianRelease
from twinset.privacy.mechanism import columns as mechanism
from twinset.privacy.mechanism import vector_sum
from twinset.privacy.mechanism.columns import release_histograms, release_pair_scores, unit_weights
from twinset.privacy.mechanism.gate import Gate
from twinset.privacy.mechanism.randomness import Randomness
from twinset.privacy.mechanism.vector_sum import VectorSum
from twinset.run import columns as release
from twinset.run.columns import ColumnRelease
from twinset.table import survey
from twinset.table.kinds import ColumnRules

N = 240
rng = np.random.default_rng(1)
AGES = rng.integers(18, 90, N)
FRAME = pd.DataFrame({"age": AGES, "city": np.where(AGES > 50, "York", "Hull")})
LABELS = rng.integers(0, 2, N)
ALONE = [[i] for i in range(N)]
SIGMA, SHARE = 1.0, 1e-7  # of the event in the ledger, and δ of the selection


def spending_holds(monkeypatch):
    """Whether all noise together is at least that of the event, and δ of the selection no more."""
    multipliers, recorded = [], []
    release_sum, add_gaussian = VectorSum.release, mechanism.add_gaussian_

    def watch_sum(total, sigma, *given):
        multipliers.append(sigma)
        return release_sum(total, sigma, *given)

    def watch_scores(scores, deviation, randomness):
        multipliers.append(deviation / len(scores) ** 0.5)
        return add_gaussian(scores, deviation, randomness)

    monkeypatch.setattr(VectorSum, "release", watch_sum)
    monkeypatch.setattr(mechanism, "add_gaussian_", watch_scores)
    private, keys = {c: FRAME[c] for c in FRAME}, Randomness.for_tests(0)
    gate = Gate(recorded.append)
    given = ColumnRules(), SIGMA, least_threshold(2.0, 2, 3, 1, SHARE), gate, keys
    parts = ColumnRelease(private, LABELS, 2, ALONE, *given)
    whole = GaussianRelease(SIGMA, COLUMNS)
    try:
        with gate.parts_of(whole):
            parts.find_model([N / 2, N / 2])
    except RuntimeError as error:
        assert "spend more" in str(error)
        return False
    assert len(multipliers) == 5  # kinds, grids, labels, scores and pairs
    spent = sum(sigma**-2 for sigma in multipliers)
    (first, event) = recorded
    return first == whole and spent <= SIGMA**-2 * (1 + 1e-9) and event.delta(1) <= SHARE


scores_of = release.release_pair_scores
SPENT_TWICE = {
    "parts of more than all": ("PAIRS", 0.5),
    "one score's noise for all": (
        "release_pair_scores",
        lambda *given: scores_of(*given[:5], given[5] / 2, given[6]),
    ),
    "a threshold of ten times δ": (
        "least_threshold",
        lambda *given: least_threshold(*given[:4], 10 * given[4]),
    ),
}


@pytest.mark.parametrize("fault", [None, *SPENT_TWICE])
def test_all_parts_together_spend_what_the_ledger_says_and_faults_are_caught(monkeypatch, fault):
    if fault:
        monkeypatch.setattr(release, *SPENT_TWICE[fault])
    assert spending_holds(monkeypatch) == (fault is None)


@pytest.mark.parametrize("declared", [["city"], []])
def test_without_a_selection_only_declared_values_leave_a_private_run(declared):
    private, gate = {"city": FRAME["city"]}, Gate(lambda event: None)
    rules = ColumnRules(values=dict.fromkeys(declared, ("York", "Oslo")))
    given = rules, SIGMA, None, gate, Randomness.for_tests(0)
    parts = ColumnRelease(private, LABELS, 2, ALONE, *given)
    with gate.parts_of(GaussianRelease(SIGMA, COLUMNS)):
        if declared:
            model = parts.find_model([N / 2, N / 2])
            assert [c.values for c in model.columns] == [("York", "Oslo")]
        else:  # the control
            with pytest.raises(RuntimeError, match="nothing without noise"):
                parts.find_model([N / 2, N / 2])


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
    weights = unit_weights(ALONE[:50], 50)
    draws, deviation = opened(
        release_histograms(codes, sizes, weights, 3.0, Randomness.for_tests(3))
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


def window_without_change(counts, deviation):
    """The rule before: what a long tail holds carries noise behind it."""
    clear, ends = np.flatnonzero(counts > 4.75 * deviation), []
    first, last = (clear[0], clear[-1]) if len(clear) else (counts.argmax(), counts.argmax())
    for side in (counts[:first][::-1], counts[last + 1 :]):
        together = side.cumsum() - 4.75 * deviation * np.arange(1, len(side) + 1) ** 0.5
        ends.append(int(together.argmax()) + 1 if together.max() > 0 else 0)
    return first - ends[0], last + ends[1]


TAILS = {  # places of records, noise, the most that may be cut, how often the old rule fails
    "74 years": (lambda draw: draw.integers(130, 204, 600), 4, 0.02, 0.06),
    "no year is clear": (lambda draw: draw.integers(130, 204, 600), 7, 0.06, 0.1),
    "200 years": (lambda draw: draw.integers(100, 300, 2000), 6, 0.01, 0.2),
    "half in one": (lambda draw: [*draw.integers(130, 204, 300), *[203] * 300], 4, 0.02, 0.06),
    "normal": (lambda draw: draw.normal(200, 15, 600).astype(int), 4, 0.06, 0.02),
    "exponential": (lambda draw: 300 - draw.exponential(15, 600).astype(int), 4, 0.06, 0.01),
}


@pytest.mark.parametrize("name", TAILS)
def test_a_window_ends_near_the_last_record(name):
    places, deviation, most_cut, least_before = TAILS[name]

    def measure(rule):
        draw, beyond, cut = np.random.default_rng(7), [], []
        for _ in range(500):
            own = np.array(places(draw))
            counts = np.bincount(own, minlength=400) + draw.normal(0, deviation, 400)
            first, last = rule(counts, deviation)
            beyond.append(max(own.min() - first, last - own.max()))
            cut.append(((own < first) | (own > last)).mean())
        return np.mean(np.array(beyond) > 20), np.mean(cut)

    too_far, cut = measure(survey.find_window)
    assert too_far <= 0.02 and cut <= most_cut
    assert measure(window_without_change)[0] > max(least_before, 2 * too_far)  # the control


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
    weights, pairs = unit_weights(ALONE, N), [(0, 1), (0, 2)]
    given = lambda x, y: mean, weights, 0.0, Randomness.for_tests(0)
    scores, _ = opened(release_pair_scores([a, b, c], [2, 2, 2], pairs, *given))
    assert scores[0] > 0.9 * N and scores[1] < 0.3 * N
