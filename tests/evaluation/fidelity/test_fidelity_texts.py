"""Measures of words and labels, each against its definition or another implementation."""

import random
from collections import Counter

import numpy as np
import pandas as pd
import pytest

from evaluation.fidelity.measures import label_distance, label_histogram
from evaluation.fidelity.texts import (
    BLOCKS,
    DRAWN,
    PART_ROWS,
    PARTS,
    count_ngrams,
    diversity_scores,
    drawable_ngrams,
    duplicate_rate,
    expected_distinct,
    jackknife,
    leave_out_blocks,
    length_histogram,
    length_scores,
    row_self_bleus,
    rows_per_part,
    self_bleu,
    split_words,
    vocabulary_scores,
    word_divergence,
)

WORDS = [f"w{i}" for i in range(60)]


def rows(number, seed=0, shortest=0, longest=25):
    """Rows of words, some more usual than others; empty and very short ones among them."""
    rng = random.Random(seed)
    weights = [1 / (i + 1) for i in range(len(WORDS))]
    return [rng.choices(WORDS, weights, k=rng.randint(shortest, longest)) for _ in range(number)]


def plain_grams(table, n):
    return [tuple(row[i : i + n]) for row in table for i in range(len(row) - n + 1)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Don't STOP!", ["don't", "stop"]),
        ("Straße, it’s 5-star…", ["strasse", "it’s", "5", "star"]),
        ("'quoted'", ["quoted"]),
        ("... !!", []),
        ("", []),
    ],
)
def test_words(text, expected):
    assert split_words(text) == expected


@pytest.mark.parametrize("table", [rows(40), [[], ["a"], []], [["a", "b"]], []])
def test_ngrams_are_those_of_each_row(table):
    for n in range(1, 5):
        counts = count_ngrams(table, n)
        expected = Counter(plain_grams(table, n))
        assert sorted(counts.sum(axis=0)) == sorted(expected.values())
        assert counts.sum(axis=1).tolist() == [max(0, len(row) - n + 1) for row in table]


def test_blocks_leave_each_row_out_once():
    kept = list(leave_out_blocks(25))
    assert len(kept) == BLOCKS
    assert (sum((~k).astype(int) for k in kept) == 1).all()
    assert list(leave_out_blocks(1)) == []


def test_jackknife_of_a_mean_is_the_usual_interval():
    values = np.random.default_rng(0).normal(size=BLOCKS)
    without = [values[kept].mean() for kept in leave_out_blocks(BLOCKS)]
    score = jackknife("", values.mean(), without, "match", -np.inf, np.inf, BLOCKS)
    half = 2.2622 * values.std(ddof=1) / np.sqrt(BLOCKS)
    assert (score.high - score.low) / 2 == pytest.approx(half, rel=1e-4)


@pytest.mark.parametrize("without", [[], [0.5], [0.5, float("nan")]])
def test_no_interval_is_the_whole_range(without):
    score = jackknife("", 0.5, without, "match", 0.0, 1.0, 3)
    assert (score.low, score.high) == (0.0, 1.0)


def test_intervals_are_as_wide_as_samples_differ():
    """More than ⅔ of the standard deviation over samples, less than twice, for each measure."""
    tables = [rows(100, seed) for seed in range(40)]
    found = [
        [*diversity_scores(table, [800] * 4), *vocabulary_scores(table, tables[seed - 1])]
        for seed, table in enumerate(tables)
    ]
    for scores in zip(*found, strict=True):
        deviation = np.std([score.value for score in scores])
        quantile = 2.2622  # Student's t of nine degrees of freedom
        errors = np.mean([(score.high - score.low) / 2 / quantile for score in scores])
        if max(score.high for score in scores) < scores[0].maximum:  # none is cut
            assert 0.67 < errors / deviation < 2, scores[0].name


def test_lengths():
    texts = ["one two", "One two, three four!", "", "six " * 6]
    counted = np.array([len(split_words(text)) for text in texts])
    mean, median = length_scores(counted)
    assert counted.tolist() == [2, 4, 0, 6]
    assert (mean.value, median.value) == (3.0, 3.0)
    assert (median.low, median.high) == (0.0, np.inf)  # of four rows nothing is known


def test_intervals_of_the_median_cover_it():
    rng = np.random.default_rng(0)
    covered = [
        (s := length_scores(rng.geometric(0.02, size=60))[1]).low <= 35 <= s.high
        for _ in range(400)
    ]  # 35 is the median of that distribution
    assert 0.93 <= np.mean(covered) <= 0.995


@pytest.mark.parametrize(
    ("counted", "bins", "shares"),
    [
        ([0, 1, 1, 3], ["0", "1", "2", "3", "4 or more"], [0.25, 0.5, 0, 0.25, 0]),
        ([0, 0], ["0", "1 or more"], [1, 0]),
        ([30, 59, 61], ["0–4", "60–64", "65 or more"], [0, 1 / 3, 0]),
    ],
)
def test_length_histogram(counted, bins, shares):
    histogram = length_histogram({"twin": np.array(counted)})
    at = [histogram.bins.index(name) for name in bins]
    assert [histogram.series["twin"][place] for place in at] == pytest.approx(shares)
    assert sum(histogram.series["twin"]) == pytest.approx(1)


def test_the_longest_rows_share_a_bin():
    histogram = length_histogram({"twin": np.array([10] * 999 + [10_000])})
    assert len(histogram.bins) < 25
    assert histogram.series["twin"][-1] == pytest.approx(0.001)


@pytest.mark.parametrize(
    ("ours", "real", "distance"),
    [("aabb", "abab", 0.0), ("aaaa", "bbbb", 1.0), ("aaab", "aabb", 0.25), ("ab", "cdef", 1.0)],
)
def test_label_distance(ours, real, distance):
    score = label_distance(list(ours), list(real))
    assert score.value == pytest.approx(distance)
    assert score.n == len(ours)


def test_labels_are_in_order_and_gaps_are_left_out():
    twin = pd.DataFrame({"stars": [10.0, 2.0, None, 2.0]})
    histogram = label_histogram({"twin": twin, "train": pd.DataFrame({"stars": [5]})}, "stars")
    assert histogram.bins == ["2", "5", "10"]
    assert histogram.series == {"twin": [2 / 3, 0, 1 / 3], "train": [0, 1, 0]}


def test_vocabulary_by_hand():
    ours, real = [["a", "a", "b"], ["c"]], [["a", "b", "b", "b"], ["d"]]
    known, covered, divergence = vocabulary_scores(ours, real)
    assert known.value == pytest.approx(2 / 3)
    assert covered.value == pytest.approx(4 / 5)
    p, q = np.array([2, 1, 1, 0]) / 4, np.array([1, 3, 0, 1]) / 5

    def bits(shares):
        return -sum(s * np.log2(s) for s in shares if s)

    assert divergence.value == pytest.approx(bits((p + q) / 2) - (bits(p) + bits(q)) / 2)
    assert word_divergence(p, q) == pytest.approx(word_divergence(q, p))


def test_distinct_is_the_usual_one_of_all_and_the_expected_one_of_some():
    counts = np.bincount([WORDS.index(word) for row in rows(30) for word in row])
    total = counts.sum()
    assert expected_distinct(counts, total) == pytest.approx((counts > 0).sum() / total)
    flat = np.repeat(np.arange(len(counts)), counts)
    rng = np.random.default_rng(0)
    drawn = [len(set(rng.choice(flat, 50, replace=False))) / 50 for _ in range(2000)]
    assert expected_distinct(counts, 50) == pytest.approx(
        np.mean(drawn), abs=4 * np.std(drawn) / 44
    )


def test_diversity_does_not_depend_on_the_number_of_rows():
    few, many = rows(300, seed=1), rows(3000, seed=2)
    drawn = drawable_ngrams(few)
    one, other = diversity_scores(few, drawn), diversity_scores(many, drawn)
    for score, larger in zip(one, other, strict=True):
        assert score.low <= larger.value <= score.high or abs(score.value - larger.value) < 0.01
    assert drawable_ngrams(many) == (DRAWN,) * 4
    sizes = [len(set(plain_grams(table, 2))) / len(plain_grams(table, 2)) for table in (few, many)]
    assert sizes[0] > 2 * sizes[1]  # the control: the plain share does


def test_ngram_diversity_is_the_sum():
    table = rows(60, shortest=4)
    drawn = drawable_ngrams(table)
    expected = sum(
        expected_distinct(np.array(list(Counter(plain_grams(table, n)).values())), drawn[n - 1])
        for n in (1, 2, 3, 4)
    )
    assert diversity_scores(table, drawn)[-1].value == pytest.approx(expected)


@pytest.mark.parametrize(
    ("texts", "rate"), [(["A b.", "a, B", "c"], 1 / 3), (["a", "b"], 0), (["a"] * 4, 3 / 4)]
)
def test_duplicate_rate(texts, rate):
    assert duplicate_rate(texts).value == pytest.approx(rate)


@pytest.mark.parametrize("table", [rows(40), rows(12, seed=3, longest=5), [["a"], ["a"], ["b"]]])
def test_self_bleu_agrees_with_nltk(table):
    bleu = pytest.importorskip("nltk.translate.bleu_score")
    smoothing = bleu.SmoothingFunction().method1
    expected = [
        bleu.sentence_bleu(table[:i] + table[i + 1 :], row, smoothing_function=smoothing)
        for i, row in enumerate(table)
    ]
    assert row_self_bleus(table) == pytest.approx(expected, abs=1e-9)


def test_self_bleu_by_hand():
    row = "a b c d e".split()
    assert row_self_bleus([row, row]) == [1.0, 1.0]
    assert row_self_bleus([row, ["x"]]) == [0.0, 0.0]
    # 4/5 words, 3/4 pairs, 2/3, 1/2; the reference is one word longer
    score, _ = row_self_bleus([row, "a b c d f g".split()])
    assert score == pytest.approx(np.exp(-0.2) * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25)


@pytest.mark.parametrize(
    ("number", "size", "n"),
    [(5000, PART_ROWS, PARTS * PART_ROWS), (50, 10, 50), (9, 9, 9), (2, 2, 2)],
)
def test_parts_of_self_bleu(number, size, n):
    assert rows_per_part(number) == size
    score = self_bleu([["a", "b"]] * number, size)
    assert score.n == n
    assert (score.low == score.high) == (n > size)


def test_one_row_has_no_self_bleu():
    assert self_bleu([["a"]], rows_per_part(1)) is None
