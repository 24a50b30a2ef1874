import math

import pytest
import torch

from evaluation.leakage.membership import perplexity
from tests.helpers.evaluated import token_nats
from twinset.models.base_model import load_base
from twinset.table.records import Records
from twinset.table.schema import Attribute, Schema
from twinset.table.templates import load_template
from twinset.table.tokenization import tokenise

SCHEMA = Schema("text", "str", (Attribute("mood", "str", ("bad", "good")),), ("text", "mood"))
TEXTS = ["Fine.", "The story was dull, and the film was long; I could not finish it.", "A pan."]


def tokenised(base, max_tokens, texts=TEXTS):
    labels = [(("bad", "good")[i % 2],) for i in range(len(texts))]
    template = load_template("Write a {mood} review:", SCHEMA)
    return tokenise(Records(texts, labels, SCHEMA), template, base.tokenizer, 128, max_tokens)


@pytest.mark.parametrize("model", ["tiny_base", "tiny_llama"])
@pytest.mark.parametrize("max_tokens", [64, 6])
def test_perplexity_is_that_of_one_text_after_the_other(model, max_tokens, request):
    base = load_base(str(request.getfixturevalue(model)))
    tokens = tokenised(base, max_tokens)
    nats = count = 0
    for text, label in zip(tokens.texts, tokens.labels, strict=True):
        nats += float(token_nats(base.model, tokens.prompts[label], text).sum())
        count += len(text)
    assert bool(tokens.truncated) == (max_tokens == 6)
    assert perplexity(base.model, tokens) == pytest.approx(math.exp(nats / count))


def test_a_model_that_knows_nothing_is_as_perplexed_as_the_vocabulary_is_large(tiny_base):
    base = load_base(str(tiny_base))
    torch.nn.init.zeros_(base.model.transformer.wte.weight)  # tied: all logits are equal
    assert perplexity(base.model, tokenised(base, 64)) == pytest.approx(len(base.tokenizer))


def test_training_on_the_texts_makes_them_less_perplexing(tiny_base):
    base = load_base(str(tiny_base))
    tokens = tokenised(base, 64)
    before, rows = perplexity(base.model, tokens), tokens.sequences(range(3), 0, (0, 0))
    optimizer = torch.optim.Adam(base.model.parameters(), 3e-3)
    for _ in range(10):
        optimizer.zero_grad()
        base.model(rows.input_ids, labels=rows.input_ids).loss.backward()
        optimizer.step()
    assert perplexity(base.model, tokens) < before / 1.5


def test_a_diverged_model_has_a_number_still(tiny_base):
    base = load_base(str(tiny_base))
    with torch.no_grad():
        for weight in base.model.parameters():
            weight.mul_(1e4)
    assert math.isfinite(perplexity(base.model, tokenised(base, 64)))
