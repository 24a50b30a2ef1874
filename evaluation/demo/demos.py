"""The demos by name: which table plays the private one, and how its twin is made and measured.

Knows no training and no measure: `demo` does what is written here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from evaluation.demo_tables.film_reviews import demo_reviews
from evaluation.demo_tables.support_dialogues import (
    SATISFIED,
    SECRETS,
    TEXT,
    TOPIC,
    support_dialogues,
)
from twinset.config import PrivacyConfig, RunConfig, SamplingConfig, TrainingConfig
from twinset.errors import InputError
from twinset.models.assets import GPT2_MINI, Say

if TYPE_CHECKING:
    from pandas import DataFrame

EPSILON = 8.0


@dataclass(frozen=True)
class Demo:
    """One demo.

    Args:
        name: as `--data` takes it.
        noun: what its real rows are, for people.
        tables: makes or fetches the private and the held-out table; is called with what it fetches.
        text: text column.
        attributes: label columns.
        prompt: built-in template.
        base_model: that it takes unless another is named.
        training: recipe for any base model but gpt2-mini.
        mini: recipe for gpt2-mini.
        rows_per_label: rows of the twin for each combination of labels.
        known_rows: of the private table, those the real classifier learns from.
        heldout_rows: held-out rows that classifiers are tested on.
        classifiers: by name; the last is the judge of labels.
        embedded: whether texts are compared by embeddings, which are an asset.
        secrets: column of what was planted in a row: JSON, kind → value. None: nothing was.
        privacy: what may move the guarantee.
        sampling: how rows are drawn.
    """

    name: str
    noun: str
    tables: Callable[[Say], tuple[DataFrame, DataFrame]]
    text: str
    attributes: tuple[str, ...]
    prompt: str
    base_model: str
    training: TrainingConfig
    mini: TrainingConfig
    rows_per_label: int
    known_rows: int
    heldout_rows: int
    classifiers: tuple[str, ...]
    embedded: bool = True
    secrets: str | None = None
    # No teacher: in the time of a demo it cannot read thousands of texts.
    privacy: PrivacyConfig = PrivacyConfig(target_epsilon=EPSILON, teacher_share=0.0)
    sampling: SamplingConfig = SamplingConfig()

    def config(self, base_model: str | None = None) -> RunConfig:
        """Return the options of its run; without a base model, the demo's own."""
        name = self.base_model if base_model is None else base_model
        recipe = self.mini if name == GPT2_MINI else self.training
        training = replace(recipe, base_model=name, max_minutes=None)  # it says what it takes
        return RunConfig(privacy=self.privacy, training=training, sampling=self.sampling)

    def planted(self, rows: DataFrame) -> list[dict[str, str]]:
        """Return by row what was planted in it: kind → value."""
        return [json.loads(cell) for cell in rows[self.secrets]] if self.secrets else []


# As many record visits as fit into the time. Spent in few large steps, with a larger rate, they
# drown in less noise: docs/tuning.md has the figures.
_REVIEWS = TrainingConfig(steps=4, batch_size=252, learning_rate=0.012, max_tokens=48)

REVIEWS = Demo(
    name="reviews",
    noun="real reviews",
    tables=demo_reviews,
    text="review",
    attributes=("verdict",),
    prompt="film-verdict",
    base_model="smollm2-135m-text",
    training=_REVIEWS,
    mini=replace(_REVIEWS, steps=10, batch_size=1008, learning_rate=0.008),
    rows_per_label=300,  # as many of either: how they are mixed differs from film to film
    known_rows=1500,
    heldout_rows=2500,
    classifiers=("tfidf", "minilm"),
)

SUPPORT_ROWS, SUPPORT_HELD_OUT = 8000, 2000
SUPPORT_SEED = 1  # the dialogues of seed 0 were looked at while the recipe was chosen


def _dialogues(say: Say) -> tuple[DataFrame, DataFrame]:
    table = support_dialogues(SUPPORT_ROWS + SUPPORT_HELD_OUT, SUPPORT_SEED)
    return table[:SUPPORT_ROWS], table[SUPPORT_ROWS:].reset_index(drop=True)


SUPPORT = Demo(
    name="support",
    noun="support dialogues",
    tables=_dialogues,
    text=TEXT,
    attributes=(TOPIC, SATISFIED),
    prompt="support-dialogue",
    base_model=GPT2_MINI,
    training=replace(_REVIEWS, max_tokens=192),
    # All weights: in as many steps, adapters of so small a model learn half as much. Wrong prompts
    # would cost half the visits, and taught no label either. The longest dialogue has 184 tokens.
    mini=TrainingConfig(
        method="full",
        steps=10,
        batch_size=400,
        learning_rate=0.0025,
        max_tokens=192,
        mismatch_weight=0.0,
    ),
    rows_per_label=40,
    known_rows=1500,
    heldout_rows=SUPPORT_HELD_OUT,
    classifiers=("tfidf",),
    embedded=False,
    secrets=SECRETS,
)

DEMOS = {demo.name: demo for demo in (REVIEWS, SUPPORT)}


def demo_named(name: str) -> Demo:
    """Return a demo.

    Raises:
        InputError: there is none of that name.
    """
    if name not in DEMOS:
        raise InputError(f"`data={name}`: is none of {', '.join(DEMOS)}")
    return DEMOS[name]
