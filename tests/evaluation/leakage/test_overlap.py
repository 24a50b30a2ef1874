"""Overlap: every measure sees ten rows copied from train, and none sees rows that were not."""

from __future__ import annotations

import math
from difflib import SequenceMatcher

import numpy as np
import pytest

from evaluation.findings import Findings
from evaluation.leakage import copies
from evaluation.leakage.copies import (
    HELDOUT,
    SAMPLE,
    SIMILARITY,
    TRAIN,
    Nearest,
    find_nearest,
    near_duplicates,
    overlap,
    ratio_percentile,
    share_nearer,
    verbatim_scores,
)
from twinset.errors import InputError
from twinset.progress import Silent
from twinset.table import ngrams as shingles
from twinset.table.ngrams import Vocabulary, rows_sharing_a_run, words_of

LENGTH = 30  # words of a made-up text


def made_up(rows, seed, length=LENGTH, vocabulary=300):
    """Texts of words drawn as in a language: few of them often, most of them seldom."""
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, vocabulary + 1)
    words = rng.choice(vocabulary, size=(rows, length), p=weights / weights.sum())
    return [" ".join(f"w{word}" for word in row) for row in words]


class Bags:
    """Counts words into 64 dimensions by a fixed projection."""

    def encode(self, texts):
        table = np.random.default_rng(0).normal(size=(1000, 64))
        vectors = np.array([sum(table[int(w[1:])] for w in words_of(t)) for t in texts])
        return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def measured(twin, train, heldout, seed=1):
    return Findings(
        "audit", {}, tuple(overlap(twin, train, heldout, Bags(), seed=seed, progress=Silent()))
    )


TRAIN_ROWS, HELDOUT_ROWS, FRESH = (made_up(150, seed) for seed in (1, 2, 3))
SHARES = (("rows with a run of 8 words", 10), ("near-duplicates", 10))


def test_ten_copied_rows_are_caught_by_every_measure():
    found = measured(FRESH[:40] + TRAIN_ROWS[60:70], TRAIN_ROWS, HELDOUT_ROWS)
    for name, often in SHARES:
        in_train, by_chance = found.find(name, against=TRAIN), found.find(name, against=HELDOUT)
        assert in_train.value == often / 50
        assert in_train.low > by_chance.high or by_chance.value == 0 < in_train.low
    run, chance = (found.find("longest verbatim run", against=a) for a in (TRAIN, HELDOUT))
    assert (run.value, run.low, run.high, run.n) == (LENGTH, LENGTH, math.inf, 50)
    assert chance.value < 8
    nearer = found.find("nearer to train than to held-out")
    assert nearer.value > 0.5
    ratio, reference = (
        found.find("distance ratio, 5th percentile", against=a) for a in (TRAIN, HELDOUT)
    )
    assert ratio.high < 0.01 < 0.5 < reference.value


def test_the_share_nearer_to_train_sees_ten_copies_among_twelve_rows():
    found = measured(FRESH[:2] + TRAIN_ROWS[:10], TRAIN_ROWS, HELDOUT_ROWS)
    assert found.find("nearer to train than to held-out").low > 0.5


@pytest.mark.parametrize("seed", [4, 5, 6])
def test_a_twin_of_rows_that_are_in_neither_table_is_not_caught(seed):
    """The control: real rows as a twin share with train what they share with held-out."""
    found = measured(made_up(150, seed), TRAIN_ROWS, HELDOUT_ROWS)
    for name, _ in SHARES:
        assert found.find(name, against=TRAIN).value < 0.03
    runs = [found.find("longest verbatim run", against=a).value for a in (TRAIN, HELDOUT)]
    assert max(runs) < 9
    nearer = found.find("nearer to train than to held-out")
    assert nearer.low < 0.5 < nearer.high
    one, other = (found.find("distance ratio, 5th percentile", against=a) for a in (TRAIN, HELDOUT))
    assert one.low < other.high and other.low < one.high


def test_a_twin_of_the_heldout_rows_themselves_is_caught_against_those_alone():
    found = measured(HELDOUT_ROWS[:50], TRAIN_ROWS, HELDOUT_ROWS)
    for name, _ in SHARES:
        assert found.find(name, against=TRAIN).value < 0.03
        assert found.find(name, against=HELDOUT).value == 1
    assert found.find("nearer to train than to held-out").value == 0


def test_no_copy_is_missed_where_train_is_the_larger_and_distances_have_equal_tables():
    twin = FRESH[:20] + TRAIN_ROWS[-10:]
    found = measured(twin, TRAIN_ROWS, HELDOUT_ROWS[:30])
    assert found.find("near-duplicates", against=TRAIN).value == pytest.approx(1 / 3)
    assert found.find("near-duplicates", against=SAMPLE).value < 1 / 3
    places = {m.place["against"] for m in found.measured if "distance" in m.score.name}
    assert places == {SAMPLE, HELDOUT}
    assert found == measured(twin, TRAIN_ROWS, HELDOUT_ROWS[:30])
    assert found != measured(twin, TRAIN_ROWS, HELDOUT_ROWS[:30], seed=2)


def test_a_larger_heldout_table_is_cut_to_the_size_of_train():
    found = measured(HELDOUT_ROWS, TRAIN_ROWS[:50], HELDOUT_ROWS)
    assert found.find("near-duplicates", against=HELDOUT).value == pytest.approx(50 / 150)
    assert not [m for m in found.measured if m.place["against"] == SAMPLE]


@pytest.mark.parametrize("empty", range(3))
def test_an_empty_table_is_refused(empty):
    tables = [["w1 w2"]] * 3
    tables[empty] = []
    with pytest.raises(InputError, match="has no row"):
        overlap(*tables, Bags(), seed=0, progress=Silent())


def test_every_score_is_of_leakage_and_private_and_has_its_value_in_its_interval():
    for m in measured(FRESH, TRAIN_ROWS, HELDOUT_ROWS).measured:
        assert (m.question, m.score.where) == ("leakage", "private rows")
        assert m.score.goal in ("minimise", "match")
        assert m.score.minimum <= m.score.low <= m.score.value <= m.score.high <= m.score.maximum


def test_the_longest_run_is_that_of_another_algorithm():
    """Against difflib, on tables whose rows share runs of every length."""
    rng = np.random.default_rng(0)
    twin, train = made_up(12, 10, vocabulary=40), made_up(12, 11, vocabulary=40)
    for length in range(12):
        start = rng.integers(10)
        words = twin[length].split()
        words[start : start + length] = train[length].split()[start : start + length]
        twin[length] = " ".join(words)
    vocabulary = Vocabulary()
    ours, theirs = vocabulary.words(twin), vocabulary.words(train)
    longest = [
        max(
            SequenceMatcher(None, one.split(), other.split(), autojunk=False)
            .find_longest_match()
            .size
            for other in train
        )
        for one in twin
    ]
    for length in range(1, 15):
        expected = [run >= length for run in longest]
        assert rows_sharing_a_run(ours, theirs, length).tolist() == expected
    assert verbatim_scores(ours, theirs)[0].value == max(longest)


def test_a_run_leaves_no_row_and_case_and_punctuation_do_not_count():
    vocabulary = Vocabulary()
    twin = vocabulary.words(["The “old” MAN, and the sea", "", "a b"])
    other = vocabulary.words(["the old man and", "the sea", "", "b a"])
    shared = [rows_sharing_a_run(twin, other, n).tolist() for n in (1, 2, 4, 5, 100)]
    assert shared == [
        [True, False, True],
        [True, False, False],
        [True, False, False],
        *[[False] * 3] * 2,
    ]
    assert [s.value for s in verbatim_scores(vocabulary.words(["", "?"]), other)] == [0, 0]


def test_the_lower_bound_of_the_longest_run_is_the_bootstraps():
    twin = made_up(60, 1, vocabulary=40)
    other = made_up(60, 2, vocabulary=40)
    other[:3] = twin[:3]
    vocabulary = Vocabulary()
    ours, theirs = vocabulary.words(twin), vocabulary.words(other)
    lengths = sum(rows_sharing_a_run(ours, theirs, n).astype(int) for n in range(1, LENGTH + 1))
    rng = np.random.default_rng(0)
    maxima = [rng.choice(lengths, len(lengths)).max() for _ in range(4000)]
    run = verbatim_scores(ours, theirs)[0]
    assert run.value == LENGTH
    assert run.low == np.quantile(maxima, 0.025) < LENGTH


def brute_force(twin, other):
    def runs(text):
        words = text.split()
        return {tuple(words[i : i + 3]) for i in range(max(1, len(words) - 2))}

    def near(one):
        return any(len(one & two) / len(one | two) >= SIMILARITY for two in map(runs, other))

    return [near(runs(text)) for text in twin]


def test_near_duplicates_are_those_of_all_pairs(monkeypatch):
    """Rows with few to many words changed, short rows too; in blocks of few pairs."""
    monkeypatch.setattr(copies, "PAIRS_AT_ONCE", 7)
    monkeypatch.setattr(shingles, "_BLOCK", 11)
    rng = np.random.default_rng(5)
    other = made_up(60, 1, length=60) + ["w1", "w1 w2", "w1 w2 w3", "w9 w9"]
    twin = []
    for changes in range(12):
        for text in other[:8]:
            words = text.split()
            for place in rng.choice(len(words), changes, replace=False):
                words[place] = "w999"
            twin.append(" ".join(words))
    twin += ["w1", "w2", "w1 w2", "w2 w1", "w1 w2 w3", "w3 w1 w2", "w1 w2 w3 w4"]
    expected = brute_force(twin, other)
    vocabulary = Vocabulary()
    ours, theirs = vocabulary.words(twin), vocabulary.words(other)
    assert near_duplicates(ours, theirs).tolist() == expected
    assert 20 < sum(expected) < len(expected) - 20


def test_rows_without_words_are_no_near_duplicates_of_each_other():
    vocabulary = Vocabulary()
    ours = vocabulary.words(["", "!", "w1 w2 w3 w4"])
    for others in (["", "?"], [""], []):
        assert near_duplicates(ours, vocabulary.words(others)).tolist() == [False] * 3


def test_nearest_is_that_of_the_whole_matrix():
    rng = np.random.default_rng(0)
    ours, theirs = (rng.normal(size=(n, 16)).astype(np.float32) for n in (30, 23))
    ours, theirs = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (ours, theirs))
    theirs[4] = ours[3]
    whole = np.linalg.norm(ours[:, None] - theirs[None], axis=2)
    found = find_nearest(ours, theirs)
    assert found.distance == pytest.approx(np.maximum(whole.min(1), 1e-3), abs=1e-4)
    assert found.distance[3] == pytest.approx(1e-3)
    assert found.row.tolist() == whole.argmin(1).tolist()


def apart(*distances):
    """Each row with a nearest row of its own."""
    return Nearest(np.array(distances), np.arange(len(distances)))


def test_a_row_as_near_to_both_tables_counts_half():
    score = share_nearer(apart(1.0, 1.0, 0.5), apart(1.0, 1.0, 1.0))
    assert (score.value, score.n) == (pytest.approx(2 / 3), 3)
    assert share_nearer(apart(*[1.0] * 9), apart(*[1.0] * 9)).value == 0.5


@pytest.mark.parametrize(
    ("dimensions", "twin", "table"), [(4, 200, 200), (256, 400, 400), (32, 400, 100)]
)
def test_without_a_leak_the_interval_holds_one_half(dimensions, twin, table):
    """Also where some rows are the nearest to very many, as happens in many dimensions."""
    rng, held, narrow = np.random.default_rng(0), 0, 0
    for _ in range(200):
        vectors = rng.normal(size=(twin + 2 * table, dimensions)).astype(np.float32)
        vectors += 2
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        ours, train, heldout = np.split(vectors, [twin, twin + table])
        score = share_nearer(find_nearest(ours, train), find_nearest(ours, heldout))
        held += score.low <= 0.5 <= score.high
        narrow += abs(score.value - 0.5) <= 1.96 * 0.5 / math.sqrt(twin)
    assert held / 200 > 0.9
    if dimensions > 4:  # the control: as if every row fell to a side by itself
        assert narrow / 200 < 0.85


def test_the_interval_of_a_percentile_holds_it_as_often_as_it_says():
    rng = np.random.default_rng(0)
    true, held = math.exp(-1.6448536), 0  # the 5th percentile of a lognormal ratio
    for _ in range(400):
        score = ratio_percentile(apart(*rng.lognormal(size=200)), apart(*np.ones(200)))
        held += score.low <= true <= score.high
    assert held / 400 > 0.93
    few = ratio_percentile(apart(*np.ones(5)), apart(*np.ones(5)))
    assert (few.value, few.low, few.high) == (1.0, 0.0, 1.0)


def test_nothing_that_holds_codes_shows_them():
    words = Vocabulary().words(["secret words of a row"])
    assert str(words.codes[0]) not in repr(words)
