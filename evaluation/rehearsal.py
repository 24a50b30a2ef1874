"""How long a run will take here: a little of it is done, on the same code, and the clock read."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from evaluation.embeddings import SentenceEncoder
from twinset.allocation import proportional
from twinset.config import PrivacyConfig, RunConfig
from twinset.finetune import finetune
from twinset.plan import Plan
from twinset.progress import Silent
from twinset.records import records_from_frame
from twinset.templates import load_template
from twinset.training import StepReport

RECORDS = 32  # trained on in the rehearsal
NEW_TOKENS = 6  # written of each of its rows
TEXTS = 64  # embedded


class _Clock(Silent):
    """Keeps the last step's report."""

    def step(self, report: StepReport, plan: Plan) -> None:
        """See `Progress`."""
        self.seconds_per_record = report.seconds / max(1, report.records)


def training_and_sampling(
    public: pd.DataFrame,
    text: str,
    attributes: Sequence[str],
    config: RunConfig,
    prompt: str | None,
    rows: int,
) -> tuple[float, float]:
    """Estimate the seconds of training, and of writing `rows` rows of full length.

    Guarantee: none. The rehearsal trains on a few records without noise and throws the model away;
    yet the estimate, and thus what is said of it, depends on them. Give it public records.

    Args:
        public: a table shaped like the private one, without anything private in it.
        text: its text column.
        attributes: its label columns.
        config: of the run to come; steps and batch size must be set.
        prompt: the template, as `load_template` takes it.
        rows: to be written.
    """
    assert config.training.steps and config.training.batch_size
    few = public.sample(min(RECORDS, len(public)), random_state=0)
    records, _ = records_from_frame(few, text, attributes)
    clock = _Clock()
    model = finetune(records, load_template(prompt, records.schema), _little(config), None, clock)
    batch = config.sampling.batch_size
    began = time.monotonic()
    model.sample(proportional(model.label_counts, batch), _little(config).sampling)
    seconds_per_token = (time.monotonic() - began) / NEW_TOKENS
    trained = config.training.steps * config.training.batch_size
    written = -(-rows // batch) * model.text_tokens
    return trained * clock.seconds_per_record, written * seconds_per_token


def _little(config: RunConfig) -> RunConfig:
    return replace(
        config,
        privacy=PrivacyConfig(target_epsilon=None),
        training=replace(config.training, steps=1, batch_size=RECORDS),
        sampling=replace(config.sampling, max_new_tokens=NEW_TOKENS),
    )


def embedding(texts: Sequence[str], rows: int) -> float:
    """Estimate the seconds of embedding `rows` texts like these."""
    encoder = SentenceEncoder()
    encoder.encode(texts[:1])  # loads the encoder
    began = time.monotonic()
    encoder.encode(texts[1 : TEXTS + 1])
    return rows * (time.monotonic() - began) / len(texts[1 : TEXTS + 1])
