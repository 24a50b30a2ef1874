"""The whole: what each twin scores beside a second real sample, and what may be published."""

import math
import random
from functools import cache
from zlib import crc32

import numpy as np
import pandas as pd
import pytest

from evaluation.fidelity.measures import SECOND, fidelity
from evaluation.fidelity.texts import public_perplexity
from evaluation.findings import Findings
from evaluation.release import Tables
from twinset.progress import Silent

THINGS = {
    "film": "plot actor scene director story camera ending dialogue".split(),
    "pan": "handle lid oven steel heat kitchen price cooking".split(),
    "garden": "soil flower hose spade seed lawn hedge rain".split(),
}
MOODS = {
    "good": "great lovely fine superb moving bright".split(),
    "bad": "dull poor weak awful boring grim".split(),
}
PATTERNS = (
    "the {thing} of this {product} was {mood} and the {other} was {mood2}",
    "i found its {thing} {mood} though my sister liked the {other}",
    "a {mood} {product} with a {mood2} {thing} if you ask me about {other}",
    "nobody told me that the {thing} and the {other} would be so {mood}",
    "{mood} {thing}",
)
GRAMS = {"distinct-1", "distinct-2", "distinct-3", "n-gram diversity", "self-BLEU"}
RELEASE_ALONE = {"mean length", "median length", "duplicate rate", *GRAMS}
RELEASE_ALONE |= {"perplexity under a public model"}
AGAINST_TRAIN = {"total variation distance of labels", "MAUVE", "Fréchet distance of embeddings"}
AGAINST_TRAIN |= {"words known to train", "words of train covered"}
AGAINST_TRAIN |= {"Jensen–Shannon divergence of words"}
AGAINST_TRAIN |= {"precision of embeddings", "recall of embeddings"}


class WordEncoder:
    """A stand-in for sentence embeddings: words and pairs of words, each in a random direction."""

    def encode(self, texts):
        return np.stack([self._vector(text.split()) for text in texts])

    def _vector(self, words):
        pairs = map(" ".join, zip(words, words[1:], strict=False))
        vector = sum(map(direction, [*words, *pairs]))
        return vector / np.linalg.norm(vector)


@cache
def direction(thing):
    return np.random.default_rng(crc32(thing.encode())).normal(size=24)


def made_up(rows, seed, products=("film", "pan")):
    rng = random.Random(seed)
    table = []
    for _ in range(rows):
        product, mood = rng.choice(products), rng.choice(list(MOODS))
        thing, other = rng.sample(THINGS[product], 2)
        one, two = rng.sample(MOODS[mood], 2)
        pattern = rng.choice(PATTERNS)
        text = pattern.format(thing=thing, other=other, product=product, mood=one, mood2=two)
        table.append((product, mood, text))
    return pd.DataFrame(table, columns=["product", "mood", "text"])


TRAIN, HELD_OUT = made_up(400, seed=1), made_up(300, seed=2)


def measure(twin, train=TRAIN, heldout=HELD_OUT, **options):
    options = {"seed": 0, "progress": Silent()} | options
    tables = Tables(train, heldout, twin, "text", ("mood", "product"))
    measured, histograms = fidelity(tables, WordEncoder().encode, **options)
    return Findings("evaluation", {}, tuple(measured), histograms=tuple(histograms))


def shuffled(frame):
    """All words of the table, anywhere in it; lengths stay."""
    words = " ".join(frame["text"]).split()
    random.Random(0).shuffle(words)
    remaining = iter(words)
    texts = [" ".join(next(remaining) for _ in text.split()) for text in frame["text"]]
    return frame.assign(text=texts)


FAITHFUL = made_up(300, seed=3)
BAD = {
    "shuffled words": shuffled(FAITHFUL),
    "one sentence": FAITHFUL.assign(text=TRAIN["text"][0]),
    "another domain": made_up(300, seed=3, products=("garden",)),
}


@pytest.fixture(scope="module")
def public_model(tiny_base):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(tiny_base).eval()
    return model, AutoTokenizer.from_pretrained(tiny_base)


@pytest.fixture(scope="module")
def found(public_model):
    faithful = measure(FAITHFUL, public_model=public_model)
    return {"faithful": faithful} | {name: measure(twin) for name, twin in BAD.items()}


def apart(findings, name, **more):
    """How far the twin is below the ceiling; the intervals must not meet for it to count."""
    ours, ceiling = (findings.find(name, rows=rows, **more) for rows in ("twin", SECOND))
    if ours.low <= ceiling.high and ceiling.low <= ours.high:
        return 0
    return np.sign(ours.value - ceiling.value)


def test_a_faithful_twin_scores_at_the_ceiling(found):
    names = {m.score.name for m in found["faithful"].measured}
    assert names == RELEASE_ALONE | AGAINST_TRAIN
    for name in names:
        assert apart(found["faithful"], name) == 0, name
    assert found["faithful"].find("MAUVE", rows="twin").value > 0.9


@pytest.mark.parametrize(
    ("twin", "name", "direction"),
    [
        ("shuffled words", "self-BLEU", -1),
        ("shuffled words", "Fréchet distance of embeddings", 1),
        ("one sentence", "duplicate rate", 1),
        ("one sentence", "recall of embeddings", -1),
        ("another domain", "words known to train", -1),
        ("another domain", "precision of embeddings", -1),
    ],
)
def test_a_bad_twin_is_off_the_ceiling(found, twin, name, direction):
    assert apart(found[twin], name) == direction


def test_only_what_the_twin_says_of_itself_is_publishable(found, public_model):
    """Other private tables leave those numbers as they are."""
    one = found["faithful"]
    published = {m.score.name: m.score for m in one.publishable()}
    assert published.keys() == RELEASE_ALONE
    assert all(m.place == {"rows": "twin"} for m in one.publishable())
    private = [made_up(40, seed, products=("garden", "pan")) for seed in (8, 9)]
    other = measure(FAITHFUL, *private, public_model=public_model)
    assert {m.score.name: m.score for m in other.publishable()} == published
    for name in AGAINST_TRAIN:  # the control: these do change
        assert other.find(name, rows="twin") != one.find(name, rows="twin")


def test_perplexity_is_exp_of_the_mean_loss(public_model):
    import torch

    model, tokenizer = public_model
    texts = FAITHFUL["text"].head(7).tolist()
    score = public_perplexity(texts, model, tokenizer, lambda done, total: None)
    nats = tokens = 0
    for text in texts:
        ids = torch.tensor([[tokenizer.bos_token_id, *tokenizer(text)["input_ids"]]])
        with torch.inference_mode():
            loss = model(input_ids=ids, labels=ids).loss
        nats, tokens = nats + float(loss) * (ids.shape[1] - 1), tokens + ids.shape[1] - 1
    assert score.value == pytest.approx(math.exp(nats / tokens), rel=1e-5)
    assert score.n == 7


def test_tiny_twins_are_measured_and_the_seed_decides(rows=1):
    train, heldout = TRAIN.head(30), HELD_OUT.head(30)
    found = measure(made_up(rows, seed=4), train, heldout)
    assert all(m.score.low <= m.score.value <= m.score.high for m in found.measured)
    assert found.find("MAUVE", rows=SECOND).n == rows  # the ceiling is of as many rows
    assert found == measure(made_up(rows, seed=4), train, heldout)
