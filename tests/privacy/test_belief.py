"""What ε says in plain words: the exact bound, reached by a mechanism, never passed by another."""

import math

import numpy as np
import pytest

from tests.helpers import handover
from twinset.privacy.statement.guarantee import (
    belief_sentence,
    guarantee,
    most_belief,
    percent_up,
    says_little,
)


def chance_of_being_right(present, absent):
    """The best chance of telling two distributions, each being as likely before."""
    return np.maximum(present, absent).sum() / 2


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.1])
def test_the_bound_is_reached_and_not_passed(epsilon, delta):
    """By the mechanism that is (ε, δ)-private and gives away the most (Kairouz et al. 2015)."""
    likely = (1 - delta) * math.exp(epsilon) / (1 + math.exp(epsilon))
    present = np.array([delta, likely, 1 - delta - likely, 0.0])
    reached = chance_of_being_right(present, present[::-1])
    assert reached == pytest.approx(most_belief(epsilon, delta), abs=1e-12)
    assert reached > most_belief(epsilon * 0.9, delta)  # a smaller ε would claim too much


def test_the_mean_belief_of_a_gaussian_is_below_the_bound():
    from scipy.stats import norm

    sigma, delta = 1.0, 1e-5
    epsilon = next(
        e
        for e in np.arange(0.1, 20, 0.01)
        if norm.cdf(0.5 / sigma - e * sigma) - math.exp(e) * norm.cdf(-0.5 / sigma - e * sigma)
        <= delta
    )
    assert 0.5 < norm.cdf(0.5 / sigma) < most_belief(epsilon, delta)


def test_percent_is_never_rounded_down():
    for share in np.linspace(0.5, 0.9998, 997):
        assert float(percent_up(share).removesuffix(" %")) >= 100 * share - 1e-9


def test_a_large_epsilon_is_said_to_say_little():
    small, none = guarantee(handover.ledger()), guarantee(handover.ledger(handover.NO_PRIVACY))
    assert not says_little(small) and "rules out little" not in belief_sentence(small)
    assert "from 50 % to at most 89.6 % on average" in belief_sentence(small)
    large = guarantee(handover.ledger(handover.TRAINING[1:], delta=1e-5))
    assert says_little(large) == (large.epsilon > 4.6) and says_little(none)
    assert "Nothing is guaranteed" in belief_sentence(none)
