"""Measures of clouds of vectors, each against its definition or another implementation."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from evaluation.fidelity.embeddings import (
    divergence_curve_area,
    frechet_distance,
    gaussian_distance,
    is_inside,
    mauve,
    precision_recall,
)
from evaluation.utility.classifiers import SentenceEncoder

REVIEWS = Path(__file__).parents[4] / "shared" / "data"


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


@pytest.mark.parametrize("name", PAIRS)
def test_mauve_agrees_with_its_authors(name):
    """On the same clusters to 0.0001; on each one's own, the mean of ten seeds, to 0.03."""
    theirs = pytest.importorskip("mauve").compute_mauve
    p, q = (vectors.astype(np.float32) for vectors in PAIRS[name])
    found = [theirs(p_features=p, q_features=q, verbose=False, seed=seed) for seed in range(10)]
    assert divergence_curve_area(found[0].p_hist, found[0].q_hist) == pytest.approx(
        found[0].mauve, abs=1e-4
    )
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


def test_curve_area_is_symmetric_and_knows_no_scale():
    p, q = np.array([5, 3, 0, 2]), np.array([1, 1, 4, 4])
    assert divergence_curve_area(p, q) == pytest.approx(divergence_curve_area(q / 10, p / 10))


@pytest.mark.parametrize("name", PAIRS)
def test_regions_agree_with_scikit_learn(name):
    from sklearn.neighbors import NearestNeighbors

    ours, real = PAIRS[name]
    radii = NearestNeighbors(n_neighbors=4).fit(real).kneighbors(real)[0][:, 3]
    near = np.linalg.norm(ours[:, None] - real[None], axis=2)
    assert (is_inside(ours, real) == (near <= radii).any(axis=1)).mean() > 0.998  # by rounding


def test_precision_and_recall_tell_what_is_wrong():
    half = cloud(600, 0)
    half = half[half[:, 1] > 0]
    both = {name: precision_recall(*pair) for name, pair in PAIRS.items()}
    missing = precision_recall(half, cloud(600, 1)[: len(half)])
    beyond = precision_recall(cloud(600, 1)[: len(half)], half)
    ceiling = both["alike"]
    assert [s.value for s in both["apart"]] == [0.0, 0.0]
    assert missing[1].high < ceiling[1].low and missing[0].high > ceiling[0].low
    assert beyond[0].high < ceiling[0].low and beyond[1].high > ceiling[1].low


def test_one_row_has_no_region():
    assert precision_recall(cloud(1, 0), cloud(5, 1)) == []
    assert frechet_distance(cloud(1, 0), cloud(1, 1)) is None


def test_frechet_distance_in_closed_form():
    """Of samples with the moments (0, diag 1, 4, 9) and ((1, 2, 0), diag 4, 4, 1)."""
    signs = np.array([[a, b, c] for a in (-1, 1) for b in (-1, 1) for c in (-1, 1)], float)
    signs *= np.sqrt(7 / 8)  # the sample covariance divides by N - 1
    one, other = signs * [1, 2, 3], signs * [2, 2, 1] + [1, 2, 0]
    assert gaussian_distance(one, other) == pytest.approx(5 + (1 + 0 + 4))
    assert gaussian_distance(one, one) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("name", PAIRS)
def test_frechet_distance_by_the_matrix_root(name):
    from scipy.linalg import sqrtm

    ours, real = PAIRS[name]
    a, b = np.cov(ours, rowvar=False), np.cov(real, rowvar=False)
    expected = ((ours.mean(0) - real.mean(0)) ** 2).sum() + np.trace(a + b - 2 * sqrtm(a @ b).real)
    score = frechet_distance(ours, real)
    assert score.value == pytest.approx(expected, rel=1e-6)
    assert score.low <= expected <= score.high


def test_fewer_rows_than_dimensions():
    few = frechet_distance(cloud(5, 0), cloud(5, 1))
    assert np.isfinite([few.value, few.low, few.high]).all()
    assert few.value > frechet_distance(cloud(600, 0), cloud(600, 1)).value  # why n must be equal


def test_intervals_are_as_wide_as_samples_differ():
    def drawn(seed):
        pair = cloud(200, 2 * seed, shift=0.7), cloud(200, 2 * seed + 1)
        return mauve(*pair, seed=seed), frechet_distance(*pair)

    for scores in zip(*map(drawn, range(30)), strict=True):
        errors = np.mean([(score.high - score.low) / 2 / 2.2622 for score in scores])
        assert 0.67 < errors / np.std([score.value for score in scores]) < 1.5, scores[0].name


@pytest.mark.slow
@pytest.mark.skipif(not REVIEWS.exists(), reason="needs the reviews")
def test_reviews_of_another_kind_and_shuffled_ones_are_off_the_ceiling():
    def texts(name, rows, skip=0):
        frame = pd.read_csv(REVIEWS / name / "train.csv.gz").sample(frac=1, random_state=0)
        return frame["text"].tolist()[skip : skip + rows]

    rng = np.random.default_rng(0)
    film = texts("imdb_short", 400)
    shuffled = [" ".join(rng.permutation(text.split())) for text in texts("imdb_short", 400, 800)]
    encoder = SentenceEncoder()
    real = encoder.encode(film)

    def scores(twin):
        ours = encoder.encode(twin)
        return [mauve(ours, real, 0), *precision_recall(ours, real), frechet_distance(ours, real)]

    ceiling = scores(texts("imdb_short", 400, 400))
    assert ceiling[0].value > 0.9
    for twin in (shuffled, texts("yelp_category_stars", 400)):
        found = scores(twin)
        assert all(f.high < c.low for f, c in zip(found[:3], ceiling[:3], strict=True))
        assert found[3].low > ceiling[3].high
