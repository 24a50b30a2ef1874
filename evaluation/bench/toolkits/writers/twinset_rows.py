"""Twinset's own rows, by the same job as the other toolkits'."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from twinset import generate
from twinset.config.options import run_config
from twinset.data.records import Records
from twinset.data.schema import Combination
from twinset.pipeline.prepare import read_source, template_of
from twinset.pipeline.request import Source
from twinset.progress import Silent
from twinset.sampling.allocation import proportional

Rows = tuple[pd.DataFrame, dict[str, Any]]


def write_rows(job: dict[str, Any]) -> Rows:
    """Return what the job's `kind` asks for: a twin, rows of the base model, or masked rows."""
    kinds = {"twin": _twin, "base": _base, "redact": _redacted}
    return kinds[job["options"].pop("kind")](job)


def _twin(job: dict[str, Any]) -> Rows:
    run = Path(job["folder"], "run")
    made = generate(
        pd.read_parquet(job["table"]),
        job["text"],
        job["attributes"],
        prompt=job["prompt"],
        rows=job["rows"],
        run=run,
        hold_out=0.0,
        overwrite=True,
        base_model=job["base_model"],
        epsilon=job["epsilon"],
        delta=job["delta"],
        seed=job["seed"],
        max_tokens=job["tokens"],
        **job["options"],
    )
    steps = json.loads((run / "internal" / "config.json").read_text("utf-8"))["plan"]
    facts = {"epsilon": made.guarantee.epsilon, "settings": _plain(steps)}
    return pd.read_parquet(made.twin), facts


def _plain(plan: dict[str, Any]) -> dict[str, Any]:
    wanted = ("steps", "batch_size", "learning_rate", "noise_multiplier")
    return {name: plan[name] for name in wanted if name in plan}


def _base(job: dict[str, Any]) -> Rows:
    """Rows without private data but for their labels' shares, which are the real ones."""
    from evaluation.untrained_baseline import untrained_twin

    source = _source(job)
    _, records, _ = read_source(source, Silent())
    asked = {"base_model": job["base_model"], "max_tokens": job["tokens"], "seed": job["seed"]}
    config = run_config(asked | job["options"])
    counts = _counts(records, job["rows"])
    template = template_of(source, records.schema)
    frame = untrained_twin(config, records.schema, template, counts, Silent())
    return frame, {"epsilon": None}


def _counts(records: Records, rows: int) -> dict[Combination, int]:
    real = {c: list(records.labels).count(c) for c in records.schema.combinations}
    return dict(proportional(real, rows))


def _source(job: dict[str, Any]) -> Source:
    table = pd.read_parquet(job["table"])
    return Source(table, job["text"], tuple(job["attributes"]), prompt=job["prompt"])


def _redacted(job: dict[str, Any]) -> Rows:
    from twinset.detectors import detector_named
    from twinset.detectors.masking import masked

    table = pd.read_parquet(job["table"])
    table = table.sample(min(job["rows"], len(table)), random_state=job["seed"])
    texts = masked(table[job["text"]].tolist(), detector_named(job["options"]["detector"]), _silent)
    return table.assign(**{job["text"]: texts}), {"epsilon": None}


def _silent(done: int, of: int) -> None:
    """Say nothing."""
