"""The small language models of the papers: texts, tokens, private training, perplexity."""

import gzip
import math

import pytest
import torch

from evaluation.papers.feedforward import feed_forward
from evaluation.papers.language_model import (
    nats_of_groups,
    perplexity,
    plan_of,
    tokenised,
    train_model,
)
from evaluation.papers.texts import Words, drawn, read_lines
from evaluation.utility.dp_fitting import Recipe
from twinset.errors import InputError
from twinset.policies import make_policy
from twinset.privacy.accounting.events import NonPrivateAccess, SubsampledGaussian

LINES = [f"so it goes {word}" for word in "and so on for all we know".split() * 6]
SIGMA, NORM = 0.7, 0.3


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", b"one\n\n two\n"),
        ("a.txt.gz", gzip.compress(b"one\n\n two\n", mtime=0)),
        ("a.csv", b'id,text\n1,"one\n"\n2," two"\n'),
    ],
)
def test_lines_are_records(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    assert read_lines(tmp_path / name) == ["one", " two"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.txt", None, "cannot be read"),
        ("a.csv", None, "no such file"),
        ("a.txt", b"\n \n", "holds no text"),
        ("a.txt", b"\xff\xfe", "not UTF-8"),
        ("a.txt.gz", b"none", "copy it again"),
        ("a.csv", b"words\nsecret\n", "no column 'text'"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path, name, content, said):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=said) as caught:
        read_lines(tmp_path / name)
    assert "secret" not in str(caught.value)


def test_some_lines_are_drawn_in_the_order_of_the_file():
    lines = [str(n) for n in range(100)]
    some = drawn(lines, 10)
    assert len(some) == 10 and some == sorted(some, key=int) and some == drawn(lines, 10)
    assert some != lines[:10]
    assert drawn(lines, None) == drawn(lines, 100) == lines


def test_a_vocabulary_is_of_its_own_lines_and_others_words_are_left_out():
    words = Words.of(["It goes, it went", "it goes"], 2)
    assert words.size == 3
    assert words.encode("WENT it private goes a it") == [1, 2, 1]
    records = tokenised(["private", "it goes it goes"], words, 4)
    assert records.texts == [[1, 2, 1]]
    assert records.truncated == 1


@pytest.fixture
def setting():
    torch.manual_seed(0)
    words = Words.of(LINES)
    return feed_forward(words.size, 4, (8, 6)), tokenised(LINES, words, 64)


class Spy:
    """Keeps what a policy adds to the sums that it is given."""

    def __init__(self, policy, scale=1.0):
        self._policy, self._scale, self.noise = policy, scale, []

    def __getattr__(self, name):
        return getattr(self._policy, name)

    def release(self, sums, records):
        before = [total.clone() for total in sums]
        noisy, event = self._policy.release(sums, records)
        for total, old in zip(noisy, before, strict=True):
            total.copy_(old + self._scale * (total - old))
        self.noise += [(total - old).flatten() for total, old in zip(noisy, before, strict=True)]
        return noisy, event


def noise_std(setting, scale):
    spies = []

    def spied(made):
        spies.append(Spy(make_policy(made), scale))
        return spies[-1]

    train_model(*setting, Recipe(8, 20, 1e-3, NORM), SIGMA, seed=0, make=spied)
    return float(torch.cat(spies[0].noise).std())


def has_the_stated_size(std):
    return abs(std / (SIGMA * NORM) - 1) < 0.05  # over 30,000 draws: 12 standard errors


@pytest.mark.parametrize("scale", [1.0, 2 / 3, 0.5, 1.5])
def test_the_noise_of_a_step_has_the_stated_size(setting, scale):
    """Three negative controls: noise of another size is told apart."""
    assert has_the_stated_size(noise_std(setting, scale)) is (scale == 1.0)


def test_what_is_spent_is_what_was_done(setting):
    recipe = Recipe(8, 2, 1e-3, NORM)
    plan = plan_of(len(LINES), recipe, SIGMA)
    counted = []
    events = train_model(*setting, recipe, SIGMA, 0, lambda *done: counted.append(done))
    assert events == [SubsampledGaussian(SIGMA, 8 / len(LINES), plan.steps)]
    assert counted[-1] == (plan.steps, plan.steps)


def test_without_noise_there_is_no_guarantee_and_a_seed_repeats_it(setting):
    model, records = setting
    start, found = model.state_dict(), []
    start = {name: value.clone() for name, value in start.items()}
    for seed, sigma in ((0, 0.0), (0, 0.0), (0, SIGMA), (0, SIGMA)):
        model.load_state_dict(start)
        events = train_model(model, records, Recipe(8, 2, 1e-2, NORM), sigma, seed)
        found.append(model.head.weight.detach().clone())
        assert isinstance(events[0], NonPrivateAccess) == (sigma == 0)
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[2], found[3])  # private noise is never seeded


@pytest.mark.parametrize("clip", [True, False])
def test_without_noise_gradients_are_clipped_if_asked_for(setting, clip):
    lengths = []

    class Lengths(Spy):
        def release(self, sums, records):
            lengths.append((float(torch.cat([s.flatten() for s in sums]).norm()), len(records)))
            return self._policy.release(sums, records)

    def make(params):
        return Lengths(make_policy(params))

    events = train_model(*setting, Recipe(8, 5, 1e-3, NORM), 0.0, 0, make=make, clip=clip)
    assert isinstance(events[0], NonPrivateAccess)
    assert all(length <= NORM * many * 1.0001 for length, many in lengths) is clip


def test_perplexity_is_that_of_the_model(setting):
    model, records = setting
    nats = tokens = 0.0
    for text in records.texts:
        logits = model(torch.tensor([[0, *text]])).logits[0, :-1].detach().double()
        nats -= float(logits.log_softmax(-1)[range(len(text)), text].sum())
        tokens += len(text)
    found = nats_of_groups(model, records, 0)
    assert found[:, 1].sum() == tokens
    assert perplexity(found) == pytest.approx(math.exp(nats / tokens), rel=1e-5)


def test_a_broken_model_has_a_number_all_the_same(setting):
    model, records = setting
    with torch.no_grad():
        model.head.weight.fill_(math.nan)
    assert math.isfinite(perplexity(nats_of_groups(model, records, 0)))
