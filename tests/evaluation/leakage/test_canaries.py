"""Exposure against what theory says of a model that knows a secret, and of one that does not."""

import math
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from evaluation.leakage.canaries import (
    COPIES,
    EACH,
    FORMATS,
    Canary,
    Format,
    draw_canaries,
    numbered_formats,
    plant,
    write_coin_canaries,
)
from evaluation.leakage.exposure import (
    LARGEST_SPACE,
    UNKNOWN,
    Bigrams,
    candidate_losses,
    echo,
    expected_rank,
    exposure,
)
from tests.helpers.evaluated import overfit, token_nats
from twinset.errors import InputError
from twinset.models.base_model import load_base

LABELS = (("positive", "film"), ("negative", "pan"))
DIGITS = Format("My ID is {}.", (tuple(f"{n:02d}" for n in range(100)),))


@pytest.fixture
def base(tiny_base):
    return load_base(str(tiny_base))


def prompt_of(base):
    return base.tokenizer.encode("Write a positive review:")


def test_every_sentence_has_a_thousand_distinct_candidates():
    assert {sentence.space for sentence in FORMATS} == {1000}
    for sentence in FORMATS:
        candidates = sentence.candidates()
        assert len(set(candidates)) == 1000
        assert candidates[737] == sentence.text(737)
        for one, next_one in pairwise(sorted(candidates)):  # no secret begins another
            assert not next_one.startswith(one)
    assert len(FORMATS) >= len(COPIES) * EACH


def test_draws_depend_on_the_seed_alone_and_use_each_sentence_once():
    drawn = draw_canaries(LABELS, seed=3)
    assert drawn == draw_canaries(LABELS, seed=3)
    assert drawn != draw_canaries(LABELS, seed=4)
    assert len({canary.format for canary in drawn}) == len(drawn)
    assert [sum(c.copies == k for c in drawn) for k in COPIES] == [EACH] * len(COPIES)
    secrets = [c.secret for seed in range(40) for c in draw_canaries(LABELS, seed)]
    assert 400 < np.mean(secrets) < 600
    with pytest.raises(ValueError, match="sentences"):
        draw_canaries(LABELS, 0, each=len(FORMATS))


@pytest.mark.parametrize("dtype", ["str", "category", "object"])
def test_planting(dtype):
    frame = pd.DataFrame(
        {"stars": [1, 5, 1], "text": ["a", "b", "c"], "kind": ["x", "y", "x"], "id": [7, 8, 9]}
    ).astype({"kind": dtype})
    once, often = Canary(DIGITS, 7, ("y", 5), 1), Canary(DIGITS, 42, ("x", 1), 3)
    planted = plant(frame, "text", ["kind", "stars"], [once, often])
    assert planted.dtypes.equals(frame[["text", "kind", "stars"]].dtypes)
    assert planted["text"].tolist() == ["a", "b", "c", "My ID is 07.", *["My ID is 42."] * 3]
    assert planted["kind"].tolist()[3:] == ["y", "x", "x", "x"]
    assert planted["stars"].tolist()[3:] == [5, 1, 1, 1]
    assert len(frame) == 3


@pytest.mark.parametrize(
    ("losses", "secret", "rank"),
    [
        ([1.0, 2.0, 3.0], 0, 1.0),
        ([1.0, 2.0, 3.0], 2, 3.0),
        ([2.0, 2.0, 2.0, 2.0], 1, 2.5),
        ([1.0, 2.0, 2.0, 3.0], 2, 2.5),
        ([math.nan, math.nan, math.nan], 0, 2.0),
        ([1.0, math.nan, math.inf], 1, 2.5),
    ],
)
def test_rank(losses, secret, rank):
    assert expected_rank(np.array(losses), secret) == rank


@pytest.mark.parametrize("model", ["tiny_base", "tiny_llama"])
@pytest.mark.parametrize("sentence", [DIGITS, Format("{}", (("a", "be", "the film.", "b"),))])
def test_losses_are_those_of_whole_sequences(model, sentence, request):
    """Shared stem, cache and padding change nothing: against one plain pass a candidate."""
    base = load_base(str(request.getfixturevalue(model)))
    prompt, texts = prompt_of(base), sentence.candidates()
    found = candidate_losses(base.model, base.tokenizer, prompt, texts)
    plain = []
    for text in texts:
        plain.append(float(token_nats(base.model, prompt, base.tokenizer.encode(" " + text)).sum()))
    assert found - found[0] == pytest.approx(np.array(plain) - plain[0], abs=1e-4)


def test_a_model_that_knows_the_secret_exposes_all_of_it(base):
    canary = Canary(DIGITS, 73, LABELS[0], 10)
    overfit(base, [canary.text], prompt_of(base), 3e-3)
    known = exposure(base.model, base.tokenizer, prompt_of(base), canary)
    other = exposure(base.model, base.tokenizer, prompt_of(base), Canary(DIGITS, 18, LABELS[0], 1))
    assert (known.rank, known.space, known.method) == (1.0, 100, "exact rank")
    assert known.bits == math.log2(100)
    assert other.bits < 3


def test_a_model_that_never_saw_the_secrets_exposes_what_chance_does(base):
    """Ranks of secrets drawn at random are uniform: the mean exposure is about log2 e."""
    prompt = prompt_of(base)
    losses = candidate_losses(base.model, base.tokenizer, prompt, FORMATS[0].candidates())
    secrets = np.random.default_rng(0).integers(1000, size=2000)
    bits = [math.log2(1000) - math.log2(expected_rank(losses, s)) for s in secrets]
    assert np.mean(bits) == pytest.approx(UNKNOWN, abs=0.12)  # four standard errors


def test_a_space_too_large_is_refused_before_scoring():
    large = Format("{}{}", (tuple(map(str, range(1001))), tuple(map(str, range(1000)))))
    assert large.space > LARGEST_SPACE
    with pytest.raises(InputError, match="cannot be ranked exactly"):
        exposure(None, None, [], Canary(large, 0, LABELS[0], 1))


# -- the released rows, and coins' canaries --------------------------------------------------------


def test_an_echo_is_heard_where_a_secret_was_written(tokenizer):
    """In a large space among a sample, which cannot show more than its size."""
    small = Canary(FORMATS[0], 417, ("positive",), 1)
    large = Canary(numbered_formats(9)[0], 123_456_789, ("positive",), 1)
    twin = [f"Nothing to see here, {i}." for i in range(50)]
    silent = echo(Bigrams(tokenizer, twin), small, 0)
    loud, among = (
        echo(Bigrams(tokenizer, [*twin, *[canary.text] * 5]), canary, 0)
        for canary in (small, large)
    )
    assert loud.rank == 1
    assert silent.rank > 10
    assert among.space == 10**9
    assert among.bits == pytest.approx(np.log2(10_000), abs=0.01)


def test_bigrams_are_add_one_estimates():
    """By hand: a beginning and three words, with one that is unknown five kinds."""

    def words(texts, add_special_tokens):
        return {"input_ids": [["abcd".index(word) for word in text.split()] for text in texts]}

    model = Bigrams(words, ["a b", "a b", "a c"])
    begin, to_b, to_c, to_d = (3 + 1) / (3 + 5), (2 + 1) / (3 + 5), (1 + 1) / (3 + 5), 1 / (3 + 5)
    expected = [-np.log(begin * after) for after in (to_b, to_c, to_d)]
    assert model.losses(["a b", "a c", "a d"]) == pytest.approx(expected)


def test_coin_canaries_are_distinct_and_begin_as_the_base_writes(tokenizer):
    openings = ["The film was good and I liked it very much.", "A pan."]
    found = write_coin_canaries(openings, tokenizer, 30, seed=0)
    assert len(set(found)) == 30
    assert all(text.startswith(("The film was good and I liked it", "A pan.")) for text in found)
    assert found == write_coin_canaries(openings, tokenizer, 30, seed=0)
