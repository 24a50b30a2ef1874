"""The feed-forward model of paper 003: what it sees, and whether the engine clips whole lines."""

import oracle
import pytest
import torch
from torch.nn.functional import cross_entropy

from evaluation.papers.kerrigan.feedforward import FeedForward
from evaluation.papers.learning import tokenised
from evaluation.papers.words import Words
from twinset.mismatch import MismatchLoss
from twinset.privacy.clipping import ClippingEngine

PREVIOUS, HIDDEN = 4, (7, 6, 5)
LINES = ["so it goes so it goes so", "it it it it it it it it", "and so on", "on"]  # with ties
C = 0.5


def model_of(tokens, embedding):
    torch.manual_seed(0)
    return FeedForward(tokens.size, embedding, HIDDEN, PREVIOUS).double()


def window_by_window(model, line):
    """The same loss written again: one word at a time, its window laid out by hand."""
    layers, table, losses = model.base_model.layers, model.base_model.table, []
    seen = [0]  # begin
    for word in line:
        shown = [None] * (PREVIOUS - len(seen[-PREVIOUS:])) + seen[-PREVIOUS:]
        width = table.embedding_dim if table else 1
        zeros = torch.zeros(width, dtype=torch.float64)
        numbers = [zeros if w is None else _vector(table, w) for w in shown]
        hidden = torch.cat(numbers)
        for layer in layers:
            hidden = (layer.weight @ hidden + layer.bias).clamp(min=0)
        weight, bias = model.head.weight[:, :-1], model.head.weight[:, -1]
        losses.append(cross_entropy((weight @ hidden + bias)[None], torch.tensor([word])))
        seen.append(word)
    return torch.stack(losses).mean()


def _vector(table, word):
    return table.weight[word] if table else torch.tensor([float(word)], dtype=torch.float64)


@pytest.mark.parametrize("embedding", [3, 0], ids=["vectors", "numbers"])
@pytest.mark.parametrize("norm", [C, 1e9], ids=["clipped", "whole"])
def test_the_clipped_sum_is_that_of_whole_lines(embedding, norm):
    tokens = Words.of(LINES)
    records = tokenised(LINES, tokens, 64)
    model = model_of(tokens, embedding)
    parameters = list(model.parameters())
    gradients = [
        list(torch.autograd.grad(window_by_window(model, line), parameters))
        for line in records.texts
    ]
    names = [name for name, _ in model.named_parameters()]
    expected = oracle.clip_and_sum(gradients, names, norm)
    assert norm > 1 or max(expected.norms) > C, "nothing was clipped"

    engine = ClippingEngine(model, norm)
    engine.zero()
    reports = [  # several physical batches, padded in different ways
        engine.add(records.sequences(part, 0, (0, 0)), MismatchLoss(0.0, "bounded"))
        for part in ([0, 2], [1], [3])
    ]
    engine.close()
    norms = torch.cat([report.norms for report in reports])[[0, 2, 1, 3]].tolist()
    found = oracle.Clipped(norms, dict(zip(names, engine.sums, strict=True)))
    assert oracle.largest_error(found, expected) < 1e-5


def test_words_clipped_one_by_one_would_be_another_sum():
    """A negative control: the unit is the line, not its windows."""
    tokens = Words.of(LINES)
    model, records = model_of(tokens, 3), tokenised(LINES[:1], tokens, 64)
    engine = ClippingEngine(model, C)
    engine.zero()
    engine.add(records.sequences([0], 0, (0, 0)), MismatchLoss(0.0, "bounded"))
    engine.close()
    assert oracle.norm(engine.sums) <= C * (1 + 1e-6)
    line, parameters, total = records.texts[0], list(model.parameters()), 0.0
    for end in range(1, len(line) + 1):
        loss = window_by_window(model, line[:end]) * end
        loss = loss - (window_by_window(model, line[: end - 1]) * (end - 1) if end > 1 else 0)
        found = torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])
        total = total + found * min(1.0, C / float(found.norm()))
    assert float(total.norm()) > 1.5 * C


@pytest.mark.parametrize("embedding", [3, 0], ids=["vectors", "numbers"])
def test_a_position_sees_its_window_and_nothing_else(embedding):
    model = model_of(Words.of(LINES), embedding)
    ids = torch.tensor([[0, 1, 2, 3, 4, 1, 2]])
    before = model(ids).logits
    for place in range(ids.shape[1]):
        changed = ids.clone()
        changed[0, place] = 5
        moved = (model(changed).logits != before).any(-1)[0].nonzero().squeeze(1).tolist()
        assert set(moved) <= set(range(place, place + PREVIOUS))
        assert place in moved


def test_the_output_layer_has_a_bias():
    model = model_of(Words.of(LINES), 3)
    with torch.no_grad():
        model.head.weight[:, :-1] = 0
    logits = model(torch.tensor([[0, 1]])).logits[0]
    assert torch.equal(logits, model.head.weight[:, -1].expand(2, -1))
