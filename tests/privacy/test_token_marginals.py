"""Noisy counts of tokens by label: what one unit moves, and an attack that must find no more."""

import numpy as np
import pytest
from scipy.stats import norm

from twinset.privacy.mechanism import counts
from twinset.privacy.mechanism.counts import (
    COMMON,
    LEAST,
    RARE,
    LengthBins,
    TokenMarginals,
    TokenWeights,
    release_token_marginals,
)
from twinset.privacy.mechanism.randomness import Randomness
from twinset.privacy.mechanism.vector_sum import VectorSum

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
    marginals, event = release_token_marginals(
        units, (2, 2), WEIGHTS, noise, Randomness.for_tests(seed), bins
    )
    return marginals, event


def flat(marginals):
    """What noise is alike on: counts times their tokens' weights, and counts of lengths."""
    tokens = [(each * WEIGHTS.weights).ravel() for each in marginals.counts]
    return np.concatenate([*tokens, *(each.ravel() for each in marginals.lengths)])


def test_it_counts_texts_that_have_a_token_for_each_label_value():
    counts = released(TEXTS[:2])[0].counts
    assert counts[0][:, 7] == pytest.approx([1, 1], abs=1e-5)
    assert counts[1][:, 7] == pytest.approx([0, 2], abs=1e-5)
    assert not counts[0][:, END].any()
    assert counts[0][0, 9] == 0


def test_it_counts_texts_of_each_length_for_each_label_value():
    first, second = released(TEXTS)[0].lengths
    bins = [BINS.of(ids) for ((ids, _),) in TEXTS]
    assert bins == [0, 0, len(BINS) - 1]  # three tokens, two, and one that does not end
    assert first[0, 0] == first[1, 0] == first[1, -1] == pytest.approx(1, abs=1e-5)
    assert second[1, 0] == pytest.approx(2, abs=1e-5) and second[0, -1] == pytest.approx(
        1, abs=1e-5
    )
    assert first.sum() == second.sum() == pytest.approx(3, abs=1e-4)


def test_lengths_are_counted_only_if_asked_for():
    marginals, _ = released(TEXTS, 3.0, bins=None)
    assert not marginals.lengths and marginals.deviation == 3.0 * WEIGHTS.bound * 2**0.5
    assert released(TEXTS, 3.0)[0].deviation == pytest.approx(3.0 * LONGEST)


@pytest.mark.parametrize("gone", range(len(TEXTS)))
def test_a_unit_moves_the_counts_by_the_length_that_noise_is_measured_in(gone):
    fewer = [unit for i, unit in enumerate(TEXTS) if i != gone]
    change = flat(released(TEXTS)[0]) - flat(released(fewer)[0])
    assert 0 < np.linalg.norm(change) <= LONGEST


def test_an_owner_of_many_texts_moves_them_no_further():
    owner = [TEXTS[2][0]] * 5 + [TEXTS[0][0]] * 3
    assert np.linalg.norm(flat(released([owner])[0])) <= LONGEST


def test_a_text_that_is_too_long_counts_for_less_all_tokens_alike():
    counts = released([TEXTS[2]])[0].counts[0][1, 1:200]
    assert counts == pytest.approx(np.full(199, counts[0]), abs=1e-5)
    assert 0 < counts[0] < 0.6


def test_common_and_rare_tokens_make_way_for_those_between():
    frequencies = np.array([0.9, 16 * COMMON, COMMON, RARE, RARE / 4, 1e-9])
    found = TokenWeights.from_frequencies(frequencies, END)
    assert found.weights == pytest.approx([0, 0.5, 1, 1, 0.5, LEAST])
    many = np.full(VOCABULARY, COMMON)
    bound = TokenWeights.from_frequencies(many, END).bound
    assert bound == pytest.approx(((VOCABULARY - 1) * COMMON) ** 0.5)


def test_noise_is_of_the_deviation_that_is_stated():
    marginals, event = released(TEXTS, 3.0)
    assert event.noise_multiplier == 3.0
    assert (flat(marginals) - flat(released(TEXTS)[0])).std() == pytest.approx(
        marginals.deviation, rel=0.1
    )
    assert marginals.noise[2] == marginals.noise[1] * 4 and marginals.noise[END] == np.inf


def test_without_noise_there_is_no_event():
    assert released(TEXTS)[1] is None


def test_what_is_kept_to_resume_from_is_what_was_released(tmp_path):
    marginals, _ = released(TEXTS, 3.0)
    marginals.save(tmp_path / "m.npz")
    read = TokenMarginals.load(tmp_path / "m.npz")
    assert (flat(read) == flat(marginals)).all()
    assert (read.noise == marginals.noise).all() and read.units == marginals.units
    assert [each.shape for each in read.lengths] == [(2, len(BINS))] * 2
    without, _ = released(TEXTS, 3.0, bins=None)
    without.save(tmp_path / "m.npz")
    assert not TokenMarginals.load(tmp_path / "m.npz").lengths


def advantage(runs=2000):
    """How often the best attacker on one unit is right, who knows all others."""
    long = [([*range(1, 100)], (0, 0))]
    there, away = (
        np.array([flat(released(units, 1.0, seed + start)[0]) for seed in range(runs // 2)])
        for units, start in (([long], 0), ([], runs))
    )
    direction = flat(released([long])[0])
    cut = direction @ direction / 2
    return ((there @ direction > cut).mean() + (away @ direction <= cut).mean()) / 2


LIMIT = norm.cdf(0.5) + 3 * 0.5 / 2000**0.5


def test_the_best_attacker_is_right_as_often_as_one_gaussian_release_allows():
    assert norm.cdf(0.5) - 0.03 < advantage() < LIMIT


def test_more_weight_than_was_accounted_for_is_seen(monkeypatch):
    monkeypatch.setattr(counts, "VectorSum", Unclipped)
    assert advantage() > LIMIT


class Unclipped(VectorSum):
    """Adds vectors twice as long as they may be."""

    def add_at(self, places, values):
        super().add_at(places, values)
        super().add_at(places, values)
