"""Measures of words, labels and vectors, each against its definition or another implementation."""

import random
from collections import Counter

import numpy as np
import pytest

from evaluation.fidelity.texts import (
    DRAWN,
    diversity_scores,
    drawable_ngrams,
    expected_distinct,
    frechet_distance,
    mauve,
    precision_recall,
    row_self_bleus,
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
    "shifted": (cloud(600, 0, shift=0.7), cloud(600, 1)),
    "narrow": (cloud(600, 0, spread=0.5), cloud(600, 1)),
}


def test_intervals_are_as_wide_as_samples_differ():
    """More than ⅔ of the standard deviation over samples, less than twice, for each measure."""
    tables = [rows(100, seed) for seed in range(16)]
    found = [
        [*diversity_scores(table, [800] * 4), *vocabulary_scores(table, tables[seed - 1])]
        for seed, table in enumerate(tables)
    ]
    clouds = [(cloud(100, 2 * seed, 0.7), cloud(100, 2 * seed + 1)) for seed in range(16)]
    embedded = [(mauve(*pair, seed=1), frechet_distance(*pair)) for pair in clouds]
    for scores in [*zip(*found, strict=True), *zip(*embedded, strict=True)]:
        deviation = np.std([score.value for score in scores])
        errors = np.mean([(score.high - score.low) / 2 / T_OF_NINE for score in scores])
        if max(score.high for score in scores) < scores[0].maximum:  # none is cut
            assert 0.67 < errors / deviation < 2, scores[0].name


def test_vocabulary_by_hand():
    ours, real = [["a", "a", "b"], ["c"]], [["a", "b", "b", "b"], ["d"]]
    known, covered, divergence = vocabulary_scores(ours, real)
    assert (known.value, covered.value) == (pytest.approx(2 / 3), pytest.approx(4 / 5))
    p, q = np.array([2, 1, 1, 0]) / 4, np.array([1, 3, 0, 1]) / 5

    def bits(shares):
        return -sum(s * np.log2(s) for s in shares if s)

    assert divergence.value == pytest.approx(bits((p + q) / 2) - (bits(p) + bits(q)) / 2)
    assert vocabulary_scores([[]], [["a"]]) == []


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


@pytest.mark.parametrize("table", [rows(40), [["a"], ["a"], ["b"]]])
def test_self_bleu_agrees_with_nltk(table):
    bleu = pytest.importorskip("nltk.translate.bleu_score")
    smoothing = bleu.SmoothingFunction().method1
    expected = [
        bleu.sentence_bleu(table[:i] + table[i + 1 :], row, smoothing_function=smoothing)
        for i, row in enumerate(table)
    ]
    assert row_self_bleus(table) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", ["shifted", "narrow"])
def test_precision_and_recall_agree_with_scikit_learn(name):
    from sklearn.neighbors import NearestNeighbors

    ours, real = PAIRS[name]
    both = zip(precision_recall(ours, real), (ours, real), (real, ours), strict=True)
    for score, one, region in both:
        radii = NearestNeighbors(n_neighbors=4).fit(region).kneighbors(region)[0][:, 3]
        near = np.linalg.norm(one[:, None] - region[None], axis=2)
        assert score.value == pytest.approx((near <= radii).any(axis=1).mean(), abs=0.002)


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
