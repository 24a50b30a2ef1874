"""Measures of words, labels and vectors, each against its definition or another implementation."""

import random
from collections import Counter

import numpy as np
import pandas as pd
import pytest

from evaluation.fidelity.embeddings import (
    divergence_curve_area,
    frechet_distance,
    mauve,
    precision_recall,
)
from evaluation.fidelity.measures import label_distance, label_histogram
from evaluation.fidelity.texts import (
    BLOCKS,
    DRAWN,
    count_ngrams,
    diversity_scores,
    drawable_ngrams,
    duplicate_rate,
    expected_distinct,
    jackknife,
    length_histogram,
    length_scores,
    row_self_bleus,
    self_bleu,
    split_words,
    vocabulary_scores,
)

WORDS = [f"w{i}" for i in range(60)]
T_OF_NINE = 2.2622  # Student's t of nine degrees of freedom, two-sided 95 %


def rows(number, seed=0, shortest=0, longest=25):
    """Rows of words, some more usual than others; empty and very short ones among them."""
    rng = random.Random(seed)
    weights = [1 / (i + 1) for i in range(len(WORDS))]
    return [rng.choices(WORDS, weights, k=rng.randint(shortest, longest)) for _ in range(number)]


def plain_grams(table, n):
    return [tuple(row[i : i + n]) for row in table for i in range(len(row) - n + 1)]


def cloud(rows, seed, shift=0.0, spread=1.0, dimensions=10):
    vectors = np.random.default_rng(seed).normal(scale=spread, size=(rows, dimensions))
    vectors[:, 0] += 1 + shift
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


PAIRS = {
    "alike": (cloud(600, 0), cloud(600, 1)),
    "shifted": (cloud(600, 0, shift=0.7), cloud(600, 1)),
    "narrow": (cloud(600, 0, spread=0.5), cloud(600, 1)),
    "apart": (-cloud(600, 0, shift=4.0), cloud(600, 1, shift=4.0)),
}


# -- intervals -------------------------------------------------------------------------------------


def test_jackknife_of_a_mean_is_the_usual_interval():
    values = np.random.default_rng(0).normal(size=BLOCKS)
    score = jackknife("", lambda kept: values[kept].mean(), BLOCKS, "match", -np.inf, np.inf)
    assert score.value == pytest.approx(values.mean())
    half = T_OF_NINE * values.std(ddof=1) / np.sqrt(BLOCKS)
    assert (score.high - score.low) / 2 == pytest.approx(half, rel=1e-4)
    alone = jackknife("", lambda kept: 0.5, 1, "match", 0.0, 1.0)
    assert (alone.low, alone.value, alone.high) == (0.0, 0.5, 1.0)  # of one row nothing is known


def test_intervals_are_as_wide_as_samples_differ():
    """More than ⅔ of the standard deviation over samples, less than twice, for each measure."""
    tables = [rows(100, seed) for seed in range(25)]
    found = [
        [*diversity_scores(table, [800] * 4), *vocabulary_scores(table, tables[seed - 1])]
        for seed, table in enumerate(tables)
    ]
    clouds = [(cloud(100, 2 * seed, 0.7), cloud(100, 2 * seed + 1)) for seed in range(25)]
    embedded = [(mauve(*pair, seed=1), frechet_distance(*pair)) for pair in clouds]
    for scores in [*zip(*found, strict=True), *zip(*embedded, strict=True)]:
        deviation = np.std([score.value for score in scores])
        errors = np.mean([(score.high - score.low) / 2 / T_OF_NINE for score in scores])
        if max(score.high for score in scores) < scores[0].maximum:  # none is cut
            assert 0.67 < errors / deviation < 2, scores[0].name


# -- words and labels ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Straße, it’s 5-star… 'quoted'", ["strasse", "it’s", "5", "star", "quoted"]),
        ("... !!", []),
    ],
)
def test_words(text, expected):
    assert split_words(text) == expected


@pytest.mark.parametrize("table", [rows(40), [[], ["a"], []], []])
def test_ngrams_are_those_of_each_row(table):
    for n in range(1, 5):
        counts = count_ngrams(table, n)
        assert sorted(counts.sum(axis=0)) == sorted(Counter(plain_grams(table, n)).values())
        assert counts.sum(axis=1).tolist() == [max(0, len(row) - n + 1) for row in table]


def test_lengths_and_the_interval_of_their_median():
    mean, median = length_scores(np.array([2, 4, 0, 6]))
    assert (mean.value, median.value) == (3.0, 3.0)
    assert (median.low, median.high) == (0.0, np.inf)  # of four rows nothing is known
    rng, truth = np.random.default_rng(0), 35  # the median of this geometric distribution
    scores = [length_scores(rng.geometric(0.02, size=60))[1] for _ in range(400)]
    assert 0.93 <= np.mean([score.low <= truth <= score.high for score in scores]) <= 0.995


@pytest.mark.parametrize(
    ("counted", "bins", "shares"),
    [
        ([0, 1, 1, 3], ["0", "1", "2", "3", "4 or more"], [0.25, 0.5, 0, 0.25, 0]),
        ([0, 0], ["0", "1 or more"], [1, 0]),
        ([30, 59, 61], ["0–4", "60–64", "65 or more"], [0, 1 / 3, 0]),
        ([10] * 999 + [10_000], ["10", "11 or more"], [0.999, 0.001]),
    ],
)
def test_length_histogram(counted, bins, shares):
    histogram = length_histogram({"twin": np.array(counted)})
    at = [histogram.bins.index(name) for name in bins]
    assert [histogram.series["twin"][place] for place in at] == pytest.approx(shares)
    assert sum(histogram.series["twin"]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("ours", "real", "distance"), [("aabb", "abab", 0.0), ("aa", "bb", 1.0), ("aaab", "aabb", 0.25)]
)
def test_label_distance(ours, real, distance):
    assert label_distance(list(ours), list(real)).value == pytest.approx(distance)


def test_labels_are_in_order_and_gaps_are_left_out():
    twin = pd.DataFrame({"stars": [10.0, 2.0, None, 2.0]})
    histogram = label_histogram({"twin": twin, "train": pd.DataFrame({"stars": [5]})}, "stars")
    assert histogram.bins == ["2", "5", "10"]
    assert histogram.series == {"twin": [2 / 3, 0, 1 / 3], "train": [0, 1, 0]}


def test_vocabulary_by_hand():
    ours, real = [["a", "a", "b"], ["c"]], [["a", "b", "b", "b"], ["d"]]
    known, covered, divergence = vocabulary_scores(ours, real)
    assert (known.value, covered.value) == (pytest.approx(2 / 3), pytest.approx(4 / 5))
    p, q = np.array([2, 1, 1, 0]) / 4, np.array([1, 3, 0, 1]) / 5

    def bits(shares):
        return -sum(s * np.log2(s) for s in shares if s)

    assert divergence.value == pytest.approx(bits((p + q) / 2) - (bits(p) + bits(q)) / 2)
    assert vocabulary_scores([[]], [["a"]]) == []


# -- repetition ------------------------------------------------------------------------------------


def test_distinct_is_the_usual_one_of_all_and_the_expected_one_of_some():
    counts = np.bincount([WORDS.index(word) for row in rows(30) for word in row])
    total = counts.sum()
    assert expected_distinct(counts, total) == pytest.approx((counts > 0).sum() / total)
    flat = np.repeat(np.arange(len(counts)), counts)
    rng = np.random.default_rng(0)
    drawn = [len(set(rng.choice(flat, 50, replace=False))) / 50 for _ in range(2000)]
    error = 4 * np.std(drawn) / 44
    assert expected_distinct(counts, 50) == pytest.approx(np.mean(drawn), abs=error)


def test_diversity_does_not_depend_on_the_number_of_rows():
    few, many = rows(300, seed=1), rows(1500, seed=2)
    drawn = drawable_ngrams(few)
    one, other = diversity_scores(few, drawn), diversity_scores(many, drawn)
    for score, larger in zip(one, other, strict=True):
        assert score.low <= larger.value <= score.high or abs(score.value - larger.value) < 0.01
    expected = [
        expected_distinct(np.array(list(Counter(plain_grams(few, n + 1)).values())), drawn[n])
        for n in range(4)
    ]
    assert [s.value for s in one] == pytest.approx([*expected[:3], sum(expected)])
    assert drawable_ngrams(many) == (DRAWN,) * 4
    plain = [len(set(plain_grams(table, 2))) / len(plain_grams(table, 2)) for table in (few, many)]
    assert plain[0] > 1.5 * plain[1]  # the control: the plain share does


@pytest.mark.parametrize(("texts", "rate"), [(["A b.", "a, B", "c"], 1 / 3), (["a"] * 4, 3 / 4)])
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
    ("number", "twin", "n"), [(1500, 5000, 1000), (60, 50, 50), (9, 9, 9), (2, 2, 2)]
)
def test_parts_of_self_bleu(number, twin, n):
    score = self_bleu([["a", "b"]] * number, twin)
    assert score.n == n and (score.low == score.high) == (n > 9)  # one part has no interval
    assert self_bleu([["a"]], 1) is None


# -- clouds of vectors -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAIRS)
def test_mauve_agrees_with_its_authors(name):
    """On the same clusters to 0.0001; on each one's own, the mean of ten seeds, to 0.03."""
    theirs = pytest.importorskip("mauve").compute_mauve
    p, q = (vectors.astype(np.float32) for vectors in PAIRS[name])
    found = [theirs(p_features=p, q_features=q, verbose=False, seed=seed) for seed in range(10)]
    area = divergence_curve_area(found[0].p_hist, found[0].q_hist)
    assert area == pytest.approx(found[0].mauve, abs=1e-4)
    mean = np.mean([each.mauve for each in found])
    assert mauve(*PAIRS[name], seed=0).value == pytest.approx(mean, abs=0.03)


def test_mauve_falls_with_the_distance():
    values = [mauve(cloud(400, 0, shift), cloud(400, 1), 0) for shift in (0.0, 0.5, 1.0, 2.0)]
    assert values[0].value > 0.93
    assert all(one.value > other.value for one, other in zip(values, values[1:], strict=False))
    assert values[0].low > values[2].high
    assert mauve(*PAIRS["apart"], seed=0).value < 0.02


@pytest.mark.parametrize("rows", [1, 2, 50])
def test_mauve_of_one_repeated_row(rows):
    assert mauve(np.ones((rows, 4)), np.ones((rows, 4)), 0).value == pytest.approx(1)
    assert mauve(np.ones((rows, 4)), cloud(rows, 0, dimensions=4), 0).value < 0.7


@pytest.mark.parametrize("name", PAIRS)
def test_precision_and_recall_agree_with_scikit_learn(name):
    from sklearn.neighbors import NearestNeighbors

    ours, real = PAIRS[name]
    for score, one, region in zip(
        precision_recall(ours, real), (ours, real), (real, ours), strict=True
    ):
        radii = NearestNeighbors(n_neighbors=4).fit(region).kneighbors(region)[0][:, 3]
        near = np.linalg.norm(one[:, None] - region[None], axis=2)
        assert score.value == pytest.approx((near <= radii).any(axis=1).mean(), abs=0.002)


def test_precision_and_recall_tell_what_is_wrong():
    half = cloud(600, 0)
    half = half[half[:, 1] > 0]
    ceiling, apart = precision_recall(*PAIRS["alike"]), precision_recall(*PAIRS["apart"])
    missing = precision_recall(half, cloud(600, 1)[: len(half)])
    beyond = precision_recall(cloud(600, 1)[: len(half)], half)
    assert [s.value for s in apart] == [0.0, 0.0]
    assert missing[1].high < ceiling[1].low and missing[0].high > ceiling[0].low
    assert beyond[0].high < ceiling[0].low and beyond[1].high > ceiling[1].low


def test_frechet_distance_in_closed_form_and_by_the_matrix_root():
    """Of samples with the moments (0, diag 1, 4, 9) and ((1, 2, 0), diag 4, 4, 1)."""
    from scipy.linalg import sqrtm

    signs = np.array([[a, b, c] for a in (-1, 1) for b in (-1, 1) for c in (-1, 1)], float)
    signs *= np.sqrt(7 / 8)  # the sample covariance divides by N - 1
    one, other = signs * [1, 2, 3], signs * [2, 2, 1] + [1, 2, 0]
    assert frechet_distance(one, other).value == pytest.approx(5 + (1 + 0 + 4))
    for ours, real in PAIRS.values():
        a, b = np.cov(ours, rowvar=False), np.cov(real, rowvar=False)
        apart = ((ours.mean(0) - real.mean(0)) ** 2).sum()
        expected = apart + np.trace(a + b - 2 * sqrtm(a @ b).real)
        assert frechet_distance(ours, real).value == pytest.approx(expected, rel=1e-6)


def test_few_rows_have_no_region_and_a_large_distance():
    assert precision_recall(cloud(1, 0), cloud(5, 1)) == []
    assert frechet_distance(cloud(1, 0), cloud(1, 1)) is None
    few = frechet_distance(cloud(5, 0), cloud(5, 1))  # fewer rows than dimensions
    assert np.isfinite([few.value, few.low, few.high]).all()
    assert few.value > frechet_distance(*PAIRS["alike"]).value  # why n must be equal
