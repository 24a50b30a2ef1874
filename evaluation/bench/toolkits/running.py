"""Runs a toolkit on a job, as a process of its own, and keeps its rows and what they took."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

import pandas as pd

from twinset.files.atomic import replacing, write_json

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
JOB, ROWS, FACTS, LOG = "job.json", "rows.parquet", "facts.json", "log.txt"


class Failed(Exception):
    """A toolkit wrote no rows."""


@dataclass(frozen=True)
class Job:
    """What every toolkit is given, whatever it is.

    Args:
        table: Parquet file of the private rows.
        text: name of the text column.
        attributes: names of the label columns.
        prompt: what asks a language model for a text; holds each attribute in braces.
        epsilon: total ε.
        delta: δ.
        rows: how many to write.
        tokens: at most, of a text; the private ones have no more.
        seed: of everything that is drawn.
        base_model: folder of a Hugging Face model.
        encoder: folder of a sentence encoder.
        copy: folder of the toolkit's repository; "" where it is a package.
        options: of this toolkit.
        libraries: whose versions are facts.
    """

    table: str
    text: str
    attributes: list[str]
    prompt: str
    epsilon: float
    delta: float
    rows: int
    tokens: int
    seed: int
    base_model: str
    encoder: str
    copy: str
    options: Mapping[str, Any]
    libraries: list[str]


def rows_of(
    job: Job, writer: Path, python: Path, folder: Path, own: bool
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return a toolkit's rows and facts; those that the same job left in `folder` are taken.

    Args:
        job: what is asked for.
        writer: the toolkit's script.
        python: of its environment.
        folder: where its rows are kept.
        own: whether its environment is this process's, which imports this project.

    Raises:
        Failed: its process ended without rows; its last words are in a log beside `folder`.
    """
    asked = json.loads(json.dumps(asdict(job)))
    if not (folder / JOB).is_file() or json.loads((folder / JOB).read_text("utf-8")) != asked:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with replacing(folder) as new, TemporaryDirectory(dir=folder.parent) as scratch:
            facts = _run(asked, writer, python, Path(scratch), folder.with_suffix(".log"), own)
            (Path(scratch) / ROWS).rename(new / ROWS)
            write_json(new / FACTS, facts)
            write_json(new / JOB, asked)
    return pd.read_parquet(folder / ROWS), json.loads((folder / FACTS).read_text("utf-8"))


def _run(
    asked: Mapping[str, Any], writer: Path, python: Path, scratch: Path, log: Path, own: bool
) -> dict[str, Any]:
    job = scratch / JOB
    write_json(job, {**asked, "folder": str(scratch)})
    command = [str(python), str(HERE / "child.py"), str(writer), str(job)]
    began = monotonic()
    with log.open("w", encoding="utf-8") as lines:
        ended = subprocess.run(command, stdout=lines, stderr=lines, env=_variables(own))
    minutes = (monotonic() - began) / 60
    if ended.returncode or not (scratch / FACTS).is_file():
        raise Failed(f"its process ended with {ended.returncode}: {_last_words(log)}")
    return {**json.loads((scratch / FACTS).read_text("utf-8")), "wall minutes": minutes}


def _variables(own: bool) -> dict[str, str]:
    """Return what a child finds: one thread, no hub, and this project only where it is ours."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    threads = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    path = {"PYTHONPATH": str(ROOT)} if own else {}
    return {**kept, **threads, **path, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}


def _last_words(log: Path) -> str:
    """Return the kind of error that ended it, without what it says: that may quote a row."""
    lines = log.read_text("utf-8", errors="replace").strip().splitlines() or ["nothing was said"]
    return lines[-1].partition(":")[0][:80]
