"""A tiny run of made-up reviews, and a sentence encoder that needs no download."""

import random

import pandas as pd
import torch
from sklearn.feature_extraction.text import HashingVectorizer
from torch.nn.functional import cross_entropy

from evaluation.utility.classifiers import SentenceEncoder
from tests.helpers.commands import call
from tests.helpers.handover import ledger
from twinset.privacy.mechanism.randomness import Randomness
from twinset.sampling.twin_model import TwinModel
from twinset.table.records import Records
from twinset.table.schema import Attribute, Schema
from twinset.table.templates import load_template

MOODS = {"positive": ["great", "good", "lovely"], "negative": ["dull", "poor", "grim"]}
ENDS = "of wood and iron;under the old bridge;for my sister;near the sea;at noon".split(";")
REDRAWS = 1000  # two of three rows of a random byte-level model hold a control character
OPTIONS = ("--steps", "2", "--batch-size", "8", "--max-tokens", "12", "--quiet")


def reviews(rows: int, seed: int) -> pd.DataFrame:
    rng = random.Random(seed)
    table = []
    for number in range(rows):
        mood, product = list(MOODS)[number % 2], ["film", "pan"][number // 2 % 2]
        opinion, end = rng.choice(MOODS[mood]), rng.choice(ENDS)
        text = f"It was {opinion}: the {product} {end} number {rng.randrange(10_000)}."
        table.append((product, text, mood))
    return pd.DataFrame(table, columns=["product", "text", "sentiment"])


def tables_in(folder, train=80, test=40) -> None:
    reviews(train, seed=0).to_csv(folder / "train.csv", index=False)
    reviews(test, seed=1).to_csv(folder / "test.csv", index=False)


def without_downloads(monkeypatch) -> None:
    """Encode texts as unit vectors of words and pairs of words: close where they share many."""
    options = {"n_features": 64, "alternate_sign": False, "ngram_range": (1, 2)}
    hashed = HashingVectorizer(**options)
    monkeypatch.setattr(
        SentenceEncoder, "encode", lambda self, texts: hashed.transform([*texts]).toarray()
    )


def quickly(monkeypatch) -> None:
    """Take fewer resamples, and look for no names: their pipeline takes seconds to load."""
    monkeypatch.setattr("evaluation.utility.usefulness.RESAMPLES", 50)
    monkeypatch.setattr("evaluation.leakage.roc.RESAMPLES", 50)
    monkeypatch.setattr("evaluation.leakage.names.names_in", lambda texts: ([] for _ in texts))


def small_world_in(folder, monkeypatch, **tables) -> None:
    """Work in a folder with two tables, without downloads."""
    monkeypatch.chdir(folder)
    without_downloads(monkeypatch)
    quickly(monkeypatch)
    tables_in(folder, **tables)


def small_run(base, *columns) -> str:
    """Make a twin of `train.csv`, and return its run folder."""
    given = ("train.csv", *columns, "--base-model", base, "--run", "run", "--rows", "20")
    made = call("generate", *given, *OPTIONS)
    assert made.code == 0, made.err
    return "run"


MOOD = Attribute("mood", "str", ("bad", "good"))
SCHEMA = Schema("text", "str", (MOOD,), ("text", "mood"))
PROMPT = "Write bad:"  # that records of mood "bad" stand behind


def records_of(texts, moods=("bad",)) -> Records:
    texts = list(texts)
    return Records(texts, [(moods[i % len(moods)],) for i in range(len(texts))], SCHEMA)


def twin_of(base, max_tokens=64) -> TwinModel:
    """A twin's model that was not trained."""
    known = Randomness.for_tests(0)
    spent = ledger((), target_epsilon=None, records=60, randomness=known)
    given = base.model, base.tokenizer, SCHEMA, load_template("Write {mood}:", SCHEMA)
    return TwinModel(*given, {("bad",): 30.0}, max_tokens, spent, base.origin)


def token_nats(model, prompt, text) -> torch.Tensor:
    """What each token of a text costs behind its prompt, by one plain pass."""
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *text]])).logits[0, len(prompt) - 1 : -1]
    return cross_entropy(logits, torch.tensor(text), reduction="none")


def overfit(base, texts, prompt) -> None:
    """Let a model learn texts by heart."""
    rows = [torch.tensor([[*prompt, *base.tokenizer.encode(" " + text)]]) for text in texts]
    optimizer = torch.optim.Adam(base.model.parameters(), 5e-3)
    base.model.train()
    for _ in range(40):
        optimizer.zero_grad()
        for row in rows:
            base.model(row, labels=row).loss.backward()
        optimizer.step()
    base.model.eval()
