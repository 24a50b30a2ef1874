"""Exposure against what theory says of a model that knows a secret, and of one that does not."""

import math
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from scipy.stats import skewnorm

from evaluation.leakage import canaries
from evaluation.leakage.canaries import (
    COPIES,
    EACH,
    FORMATS,
    UNKNOWN,
    Canary,
    Format,
    candidate_losses,
    draw_canaries,
    expected_rank,
    exposure,
    extrapolated_rank,
    plant,
    rank_in_rows,
)
from tests.helpers.evaluated import PROMPT, overfit, token_nats
from twinset.models.base_model import load_base

LABELS = (("positive", "film"), ("negative", "pan"))
DIGITS = Format("My ID is {}.", (tuple(f"{n:03d}" for n in range(1000)),))


def test_every_sentence_has_a_thousand_distinct_candidates():
    assert len(FORMATS) >= len(COPIES) * EACH
    for sentence in FORMATS:
        candidates = sentence.candidates()
        assert sentence.space == len(set(candidates)) == 1000
        assert candidates[737] == sentence.text(737)
        for one, next_one in pairwise(sorted(candidates)):  # no secret begins another
            assert not next_one.startswith(one)


def test_draws_depend_on_the_seed_alone_and_use_each_sentence_once():
    drawn = draw_canaries(LABELS, seed=3)
    assert drawn == draw_canaries(LABELS, seed=3) != draw_canaries(LABELS, seed=4)
    assert len({canary.format for canary in drawn}) == len(drawn)
    assert [sum(c.copies == k for c in drawn) for k in COPIES] == [EACH] * len(COPIES)
    secrets = [c.secret for seed in range(40) for c in draw_canaries(LABELS, seed)]
    assert 400 < np.mean(secrets) < 600


def test_planting():
    frame = pd.DataFrame(
        {"stars": [1, 5, 1], "text": ["a", "b", "c"], "kind": ["x", "y", "x"], "id": [7, 8, 9]}
    ).astype({"kind": "category"})
    once, often = Canary(DIGITS, 7, ("y", 5), 1), Canary(DIGITS, 42, ("x", 1), 3)
    planted = plant(frame, "text", ["kind", "stars"], [once, often])
    assert planted.dtypes.equals(frame[["text", "kind", "stars"]].dtypes)
    assert planted["text"].tolist() == ["a", "b", "c", "My ID is 007.", *["My ID is 042."] * 3]
    assert planted["kind"].tolist()[3:] == ["y", "x", "x", "x"]
    assert planted["stars"].tolist()[3:] == [5, 1, 1, 1]


@pytest.mark.parametrize("model", ["tiny_base", "tiny_llama"])
def test_losses_are_those_of_whole_sequences(model, request):
    """Shared stem, cache and padding change nothing: against one plain pass a candidate."""
    base = load_base(str(request.getfixturevalue(model)))
    prompt = base.tokenizer.encode(PROMPT)
    for texts in (DIGITS.candidates()[:40], ["a", "be", "the film.", "b"]):
        found = candidate_losses(base.model, base.tokenizer, prompt, texts)
        encoded = [base.tokenizer.encode(" " + text) for text in texts]
        plain = np.array([float(token_nats(base.model, prompt, ids).sum()) for ids in encoded])
        assert found - found[0] == pytest.approx(plain - plain[0], abs=1e-4)


def test_a_model_exposes_what_it_knows_and_else_what_chance_does(tiny_base, monkeypatch):
    """Ranked exactly, and extrapolated from a sample."""
    base = load_base(str(tiny_base))
    asked = base.model, base.tokenizer, base.tokenizer.encode(PROMPT)
    losses = candidate_losses(*asked, FORMATS[0].candidates())
    secrets = np.random.default_rng(0).integers(1000, size=2000)
    bits = [math.log2(1000) - math.log2(expected_rank(losses, s)) for s in secrets]
    assert np.mean(bits) == pytest.approx(UNKNOWN, abs=0.12)  # four standard errors
    known, unknown = (Canary(DIGITS, secret, LABELS[0], 1) for secret in (731, 184))
    overfit(base, [known.text], asked[2])
    exact = [exposure(*asked, canary) for canary in (known, unknown)]
    assert (exact[0].rank, exact[0].method) == (1.0, "exact rank")
    assert exact[0].bits == math.log2(1000) and exact[1].bits < 4
    monkeypatch.setattr(canaries, "LARGEST_SPACE", 999)
    monkeypatch.setattr(canaries, "SAMPLED", 200)
    for ranked in exact:
        found = exposure(*asked, ranked.canary)
        assert found.method == "skew-normal, 200 candidates"
        assert found.bits == pytest.approx(ranked.bits, abs=3)


@pytest.mark.parametrize("shape", [0.0, 3.0])
def test_extrapolated_exposure_is_the_exact_one_of_a_skew_normal_space(shape):
    """A million losses, all known; 2,000 of them seen. To 1.5 bits out of up to 13.3."""
    losses = np.sort(skewnorm.rvs(shape, loc=30, scale=4, size=10**6, random_state=1))
    rng = np.random.default_rng(0)
    sample = rng.choice(losses, 2000)
    for exact in (100, 10_000, 500_000):
        found, method = extrapolated_rank(sample, losses[exact - 1], 10**6)
        assert math.log2(found) == pytest.approx(math.log2(exact), abs=1.5)
        assert method == "skew-normal, 2000 candidates"
    assert extrapolated_rank(sample, losses[0] - 30, 10**6)[0] == 1
    assert extrapolated_rank(sample, 1e3, 10**6)[0] == 10**6
    # The control: secrets drawn at random are exposed as chance has it.
    bits = -np.log2(skewnorm.cdf(rng.choice(losses, 4000), *skewnorm.fit(sample)))
    assert bits.mean() == pytest.approx(UNKNOWN, abs=0.15)
    # The control of the curve: without its skew the tail is wrong by more than the tolerance.
    if shape == 3:
        z = (losses[99] - sample.mean()) / sample.std()
        assert abs(-skewnorm.logcdf(z, 0) / math.log(2) - math.log2(10**4)) > 3


def test_an_echo_is_heard_where_a_secret_was_written(tokenizer):
    """In a large space among a sample, which cannot show more than its size."""
    small = Canary(FORMATS[0], 417, ("positive",), 1)
    large = Canary(
        Format("The code is " + "{}" * 9, (tuple("0123456789"),) * 9), 123_456_789, ("positive",), 1
    )
    twin = [f"Nothing to see here, {i}." for i in range(50)]
    assert rank_in_rows(tokenizer, twin, [small], 0)[0].rank > 10
    (loud,), (among,) = (
        rank_in_rows(tokenizer, [*twin, *[canary.text] * 5], [canary], 0)
        for canary in (small, large)
    )
    assert loud.rank == 1
    assert among.bits == pytest.approx(np.log2(10_000), abs=0.01)
