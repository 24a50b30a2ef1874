import numpy as np
import pytest

from evaluation.base_models.kneser_ney import KneserNey, _discounts

RNG = np.random.default_rng(0)
TOKENS = np.cumsum(RNG.integers(0, 3, size=400)) % 7  # a row with some order in it


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_probabilities_of_all_tokens_are_one(order):
    model = KneserNey(TOKENS, 9, order)
    for context in ([0, 1, 2, 3], [4, 4, 4, 4], [8, 8, 8, 8], TOKENS[10:14].tolist()):
        nats = [model.nats(np.array([*context, token]))[-1] for token in range(9)]
        assert np.exp(-np.array(nats)).sum() == pytest.approx(1.0)


def test_a_bigram_model_by_hand():
    """a b a b a c: the counts behind a are b 2, c 1; lower orders count what they follow."""
    tokens = np.array([0, 1, 0, 1, 0, 2])
    bigram, unigram = _discounts(np.array([2, 2, 1])), _discounts(np.array([1, 1, 1]))
    # a follows b; b follows a; c follows a: each once
    low_b = (1 - unigram[1]) / 3 + 3 * unigram[1] / 3 / 4
    freed = bigram[2] + bigram[1]
    expected = (2 - bigram[2] + freed * low_b) / 3
    found = KneserNey(tokens, 4, order=2).nats(np.array([0, 1]))[-1]
    assert np.exp(-found) == pytest.approx(expected)


def test_longer_memory_predicts_more_of_ordered_text_and_nothing_of_noise():
    row = np.tile([3, 1, 4, 1, 5, 9, 2, 6], 60)
    costs = [KneserNey(row[:400], 10, order).nats(row[400:]).mean() for order in (1, 2, 3)]
    assert costs[0] > costs[1] > costs[2] and costs[2] < 0.2
    noise = RNG.integers(0, 10, size=3000)
    assert KneserNey(noise[:2000], 10, 5).nats(noise[2000:]).mean() > np.log(10) - 0.02


def test_tokens_it_never_saw_cost_more_and_not_everything():
    model = KneserNey(TOKENS, 9)
    assert np.isfinite(model.nats(np.array([8, 8, 7]))).all()
    assert model.nats(np.array([8]))[0] > model.nats(np.array([0]))[0]
