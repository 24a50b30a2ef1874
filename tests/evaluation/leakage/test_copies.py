"""Overlap: every measure sees ten rows copied from train, and none sees rows that were not."""

import math
from difflib import SequenceMatcher
from functools import partial

import numpy as np
import pytest
from scipy.stats import binom

from evaluation.findings import Findings
from evaluation.leakage.copies import (
    HELDOUT,
    REPEATED,
    RUN_REPEATED,
    SIMILARITY,
    TRAIN,
    near_duplicates,
    overlap,
    verbatim_scores,
)
from evaluation.report.verdicts import judge_leakage
from twinset.progress import Silent
from twinset.table.ngrams import number_words, rows_sharing_a_run, words_of

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


def measure(twin, train, heldout, seed=1):
    measured = overlap(twin, train, heldout, Bags().encode, seed=seed, progress=Silent())
    found = Findings("audit", {}, tuple(measured))
    for m in found.measured:
        assert (m.question, m.score.where) == ("leakage", "private rows")
        assert m.score.minimum <= m.score.low <= m.score.value <= m.score.high <= m.score.maximum
    return found


def words_in(*tables):
    vocabulary: dict[str, int] = {}
    return [number_words(table, vocabulary) for table in tables]


ROWS, OTHERS, FRESH = (made_up(150, seed) for seed in (1, 2, 3))
RUNS, NEAR, LONGEST = "rows with a run of 8 words", "near-duplicates", "longest verbatim run"
NEARER, RATIO = "nearer to train than to held-out", "distance ratio, 5th percentile"


def test_ten_copied_rows_are_caught_by_every_measure():
    found = measure(FRESH[:40] + ROWS[60:70], ROWS, OTHERS)
    for name in (RUNS, NEAR):
        in_train, by_chance = (found.find(name, against=a) for a in (TRAIN, HELDOUT))
        assert in_train.value == 10 / 50
        assert in_train.low > by_chance.high or by_chance.value == 0 < in_train.low
    for name in (REPEATED, RUN_REPEATED):  # of the table's rows, however often
        twice = measure(FRESH[:40] + ROWS[60:70] * 2, ROWS, OTHERS[:50])
        counted = [twice.find(name, against=a) for a in (TRAIN, HELDOUT)]
        assert [(s.value, s.n) for s in counted] == [(10 / 150, 150), (0, 50)]
    run, chance = (found.find(LONGEST, against=a) for a in (TRAIN, HELDOUT))
    assert (run.value, run.low, run.high, run.n) == (LENGTH, LENGTH, math.inf, 50)
    assert chance.value < 8
    ratio, reference = (found.find(RATIO, against=a) for a in (TRAIN, HELDOUT))
    assert ratio.high < 0.01 < 0.5 < reference.value
    assert found.find(NEARER).value > 0.5
    assert measure(FRESH[:2] + ROWS[:10], ROWS, OTHERS).find(NEARER).low > 0.5  # ten of twelve


def test_a_twin_of_rows_that_are_in_neither_table_is_not_caught():
    """The control: real rows as a twin share with train what they share with held-out."""
    found = measure(made_up(150, 4), ROWS, OTHERS)
    assert max(found.find(name, against=TRAIN).value for name in (RUNS, NEAR)) < 0.03
    assert max(found.find(LONGEST, against=a).value for a in (TRAIN, HELDOUT)) < 9
    nearer = found.find(NEARER)
    assert nearer.low < 0.5 < nearer.high
    one, other = (found.find(RATIO, against=a) for a in (TRAIN, HELDOUT))
    assert one.low < other.high and other.low < one.high


def test_runs_are_those_of_another_algorithm_and_their_lower_bound_is_the_bootstraps():
    """Against difflib, on tables whose rows share runs of every length."""
    rng = np.random.default_rng(0)
    twin, train = made_up(60, 10, vocabulary=40), made_up(12, 11, vocabulary=40)
    for length in range(12):
        start = rng.integers(10)
        words = twin[length].split()
        words[start : start + length] = train[length].split()[start : start + length]
        twin[length] = " ".join(words)
    twin[20:23] = train[:3]
    ours, theirs = words_in(twin, train)
    matchers = [[SequenceMatcher(None, a.split(), b.split(), False) for b in train] for a in twin]
    longest = np.array([max(m.find_longest_match().size for m in row) for row in matchers])
    for length in range(1, LENGTH + 1):
        assert rows_sharing_a_run(ours, theirs, length).tolist() == (longest >= length).tolist()
    maxima = [rng.choice(longest, len(longest)).max() for _ in range(4000)]
    run = verbatim_scores(ours, theirs)[0]
    assert (run.value, run.low) == (LENGTH, np.quantile(maxima, 0.025)) and run.low < LENGTH


def test_near_duplicates_are_those_of_all_pairs():
    """Rows with few to many words changed, short and empty rows too."""
    rng = np.random.default_rng(5)
    other = made_up(60, 1, length=60) + ["w1", "w1 w2", "w1 w2 w3", "w9 w9", "?"]
    twin = ["w1", "w2", "w1 w2", "w2 w1", "w1 w2 w3", "w3 w1 w2", "w1 w2 w3 w4", "", "!"]
    for changes in range(12):
        for text in other[:8]:
            words = np.array(text.split(), object)
            words[rng.choice(len(words), changes, replace=False)] = "w999"
            twin.append(" ".join(words))

    def runs(text):
        words = words_of(text)
        return {tuple(words[i : i + 3]) for i in range(max(1, len(words) - 2))} - {()}

    def near(one):
        return any(len(one & two) / len(one | two) >= SIMILARITY for two in map(runs, other) if two)

    expected = [bool(runs(text)) and near(runs(text)) for text in twin]
    ours, theirs, nothing = words_in(twin, other, [])
    found, repeated = near_duplicates(ours, theirs)
    assert found.tolist() == expected and 20 < sum(expected) < len(expected) - 20
    assert (near_duplicates(theirs, ours)[0] == repeated).all() and 0 < repeated.sum() < 20
    assert not near_duplicates(ours, nothing)[0].any()


@pytest.mark.parametrize(("rows", "held", "share"), [(600, 60, 0.03), (600, 120, 0.1)])
def test_short_rows_that_many_write_are_no_sign_of_a_leak(rows, held, share):
    """A twin of other rows repeats used ones by chance, and one of them in many of its rows."""
    rng, draws, told = np.random.default_rng(0), 80, []

    def draw(size):
        fresh = [" ".join(f"w{w}" for w in rng.integers(0, 3000, 14)) for _ in range(size)]
        short = [f"very p{rng.zipf(1.2) % 5000} indeed" for _ in range(size)]
        return np.where(rng.random(size) < share, short, fresh).tolist()

    for _ in range(draws):
        tables = draw(rows), draw(rows), draw(held)
        told.append(judge_leakage(overlap(*tables, None, seed=0, progress=Silent())))
    signs = [said for said in told if said.answer not in ("No leak found", "No sure sign")]
    assert len(signs) <= binom.ppf(0.999, draws, 0.025), signs
    # The control: an eighth of the used rows, of which none were held out.
    leak = judge_leakage(
        overlap(tables[1][: rows // 8], *tables[1:], None, seed=0, progress=Silent())
    )
    assert leak.answer == "Signs of a leak" and "used and" in leak.line


def look_up(vectors, numbers):
    return vectors[[int(number) for number in numbers]]


@pytest.mark.parametrize(("dimensions", "twin", "table"), [(4, 200, 200), (32, 400, 100)])
def test_without_a_leak_the_interval_holds_one_half(dimensions, twin, table):
    """Also where some rows are the nearest to very many, as happens in many dimensions."""
    rng, held, narrow = np.random.default_rng(0), 0, 0
    for _ in range(60):
        vectors = rng.normal(2, 1, size=(twin + 2 * table, dimensions)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        numbers = [str(row) for row in range(len(vectors))]
        tables = numbers[:twin], numbers[twin : twin + table], numbers[twin + table :]
        measured = overlap(*tables, partial(look_up, vectors), seed=0, progress=Silent())
        score = Findings("audit", {}, tuple(measured)).find(NEARER)
        held += score.low <= 0.5 <= score.high
        narrow += abs(score.value - 0.5) <= 1.96 * 0.5 / math.sqrt(twin)
    assert held / 60 > 0.86
    if dimensions > 4:  # the control: as if every row fell to a side by itself
        assert narrow / 60 < 0.88
