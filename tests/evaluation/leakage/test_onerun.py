"""The bound of ε from one run: against the paper, an exact interval, and mechanisms of known ε."""

import math

import numpy as np
import pytest
from scipy.stats import beta, binom

from evaluation.leakage import roc
from evaluation.leakage.roc import epsilon_lower_bound, one_run_audit

M = 200


def include(m, seed):
    """Coins that repeat; those of an audit must not."""
    return np.random.default_rng(seed).integers(2, size=m).astype(bool)


def randomised_response(epsilon, seed, m=M):
    """ε-private, exactly: each bit is told truly with probability e^ε / (1 + e^ε).

    Sizes say nothing; they let the auditor guess some of the canaries only.
    """
    rng = np.random.default_rng([seed, 1])
    included = include(m, seed)
    truthful = included ^ (rng.random(m) > 1 / (1 + math.exp(-epsilon)))
    return np.where(truthful, 1, -1) * (1 + rng.random(m)), included


def name_and_shame(delta, seed, m=1000):
    """(0, δ)-private: each bit is published with probability δ, else nothing is said of it."""
    rng = np.random.default_rng([seed, 1])
    included = include(m, seed)
    published = rng.random(m) < delta
    return np.where(published, np.where(included, 2, -2), rng.normal(0, 0.1, m)), included


def exceeding(epsilon, seeds, **options):
    runs = (one_run_audit(*randomised_response(epsilon, s), 0.0, **options) for s in range(seeds))
    return sum(run.epsilon > epsilon for run in runs)


@pytest.mark.parametrize(
    ("r", "v", "m", "delta", "published"),
    [
        (100, 75, 1000, 1e-4, 0.673),  # appendix D
        (1510, 1439, 100_000, 1e-5, 2.675),  # section 7, cut there, not rounded
    ],
)
def test_the_papers_own_numbers(r, v, m, delta, published):
    assert epsilon_lower_bound(r, v, m, delta) == pytest.approx(published, abs=1e-3)
    bounds = [epsilon_lower_bound(r, v, many, delta) for many in (m, 10 * m)]
    # δ costs, and by every canary, not by those guessed alone
    assert epsilon_lower_bound(r, v, m, 0.0) > bounds[0] + 0.01 > bounds[1] + 0.02


@pytest.mark.parametrize(("r", "v"), [(10, 10), (1000, 700), (100, 55), (10, 0)])
def test_without_delta_it_is_clopper_and_pearsons_bound(r, v):
    least = beta.ppf(0.05, v, r - v + 1) if v else 0.0  # of the chance to be right
    expected = math.log(least / (1 - least)) if least > 0.5 else 0.0  # coins could make fewer
    assert epsilon_lower_bound(r, v, r, 0.0) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
def test_the_bound_exceeds_the_truth_in_a_twentieth_of_all_runs_at_most(epsilon):
    above = exceeding(epsilon, 100, guesses=M // 2)
    assert above <= binom.ppf(0.999, 100, 0.05)
    assert exceeding(epsilon, 40) <= binom.ppf(0.999, 40, 0.05)  # Bonferroni
    if epsilon == 1:  # it is no looser than it must be: the exact chance is 4.4 %
        assert above >= 1
        found = [one_run_audit(*randomised_response(2.0, s, 2000), 0.0).epsilon for s in range(5)]
        assert 1.6 < np.mean(found) < 2.0


def test_the_best_of_all_numbers_of_guesses_without_correction_would_be_no_bound():
    """The negative control: what Bonferroni is there for."""
    seeds, epsilon, chance = 400, 1.0, 1 / (1 + math.exp(-1.0))
    exceeds = 0
    for seed in range(seeds):
        scores, included = randomised_response(epsilon, seed)
        ranked = included[np.argsort(-scores)]
        halves = np.arange(1, M // 2)
        correct = ranked.cumsum()[halves - 1] + (~ranked)[::-1].cumsum()[halves - 1]
        exceeds += bool((binom.sf(correct - 1, 2 * halves, chance) < 0.05).any())
    assert exceeds > 2 * binom.ppf(0.999, seeds, 0.05)


def test_forgetting_delta_would_be_no_bound():
    """The negative control: a mechanism that keeps (0, δ) and still publishes some bits."""
    delta, seeds = 0.01, 60
    runs = [name_and_shame(delta, seed) for seed in range(seeds)]
    assert all(one_run_audit(*run, delta, guesses=20).epsilon == 0.0 for run in runs)
    assert sum(one_run_audit(*run, 0.0, guesses=20).epsilon > 0.0 for run in runs) > seeds / 3


def test_a_mechanism_that_tells_all_is_found_out_and_one_that_tells_nothing_is_not():
    included = include(1000, 0)
    assert one_run_audit(included + 0.0, included, 1e-5).epsilon > 4
    small = one_run_audit(include(40, 1) + 0.0, include(40, 1), 1e-5, guesses=20)
    assert (small.guesses, small.correct, small.tried) == (20, 20, (20,))
    assert small.epsilon > 1.7
    silent = [
        one_run_audit(np.random.default_rng(seed).normal(size=M), include(M, seed + 500), 0.0)
        for seed in range(100)
    ]
    assert sum(run.epsilon > 0 for run in silent) <= 13  # 5 are expected at most
    assert one_run_audit(np.zeros(M), include(M, 7), 0.0).epsilon == 0.0


def test_inclusion_is_a_fair_coin_that_no_seed_repeats():
    draws = np.array([roc.include(50) for _ in range(400)])
    assert abs(draws.mean() - 0.5) < 0.02  # 5.6 standard deviations
    assert np.abs(np.corrcoef(draws.T) - np.eye(50)).max() < 0.3
    assert len({tuple(row) for row in draws.tolist()}) == 400
