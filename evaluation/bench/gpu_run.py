"""A whole run of `generate` for `make gpu`: a table of made-up words to a twin, and how busy it is.

The base model has SmolLM2's sizes, random weights and a tokenizer of whole words, so that each text
has as many tokens as words, and nothing is downloaded.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from evaluation.bench.cases import ORDINARY, StepCase
from evaluation.bench.measure import seconds_of
from evaluation.bench.models import build
from twinset.models.device import device_of, is_cpu, unique_name

LABELS, PROMPT = ("good", "bad"), "A {mood} text :"
SPECIAL = ("<end>", "<unknown>", *LABELS, "A", "text", ":")
OPTIONS = {
    "physical_tokens": 65536,
    "teacher_redraws": 0,  # a teacher of random texts would have half of the rows drawn anew
    "max_minutes": 600,
}


@dataclass(frozen=True)
class Work:
    """What is done.

    Args:
        model: a key of `models.MODELS`.
        records: of the table.
        tokens: of each of them and of each row, the end of text included.
        passes: over the table.
        batch_size: expected records a step.
        rows: of the twin.
    """

    model: str = "smollm2-135m"
    records: int = 10_000
    tokens: int = 256
    passes: int = 3
    batch_size: int = 500
    rows: int = 10_000

    def __str__(self) -> str:
        return ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in asdict(self).items())


def run_row(device: str, work: Work = Work()) -> dict[str, Any]:
    """Return minutes of a run, and the share of the time in which the GPU was busy.

    Args:
        device: as `device_of` takes it.
        work: what is done.
    """
    with tempfile.TemporaryDirectory() as folder:
        _write_base(Path(folder, "base"), work)
        with _watched(device) as busy:
            seconds = seconds_of(lambda: _run(Path(folder), device, work))
    return {"minutes": seconds / 60} | ({"busy": fmean(busy) / 100} if busy else {})


def _run(folder: Path, device: str, work: Work) -> None:
    from twinset.config.options import run_config
    from twinset.pipeline.generate import generate
    from twinset.pipeline.request import OutputPaths, Source
    from twinset.progress import Silent
    from twinset.sampling.allocation import RowsRequest

    shape = {
        "base_model": str(folder / "base"),
        "device": device,
        "max_tokens": work.tokens,
        "batch_size": work.batch_size,
        "steps": work.passes * work.records // work.batch_size,
    }
    source = Source(_texts(work), "text", ("mood",), prompt=PROMPT)
    paths = OutputPaths(run=folder / "run")
    generate(source, run_config(shape | OPTIONS), RowsRequest(work.rows), paths, Silent())


def _texts(work: Work) -> Any:
    """Return a table of texts that are drawn from all words alike."""
    import numpy as np
    import pandas as pd

    words = np.array(_words(work))
    drawn = np.random.default_rng(0).choice(words, (work.records, work.tokens - 1))
    texts = [" ".join(row) for row in drawn]
    return pd.DataFrame({"text": texts, "mood": [LABELS[i % 2] for i in range(work.records)]})


def _words(work: Work) -> list[str]:
    from evaluation.bench.models import MODELS

    return [f"w{i}" for i in range(MODELS[work.model][1]["vocab_size"] - len(SPECIAL))]


def _write_base(folder: Path, work: Work) -> None:
    """Write a random model and its tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    known = {word: i for i, word in enumerate([*SPECIAL, *_words(work)])}
    plain = Tokenizer(models.WordLevel(known, unk_token=SPECIAL[1]))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    end, unknown = SPECIAL[:2]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=plain, eos_token=end, bos_token=end, unk_token=unknown
    )
    build(StepCase(work.model, "full", "float32", 1, 1, 1, ORDINARY, 1)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@contextmanager
def _watched(device: str) -> Iterator[list[float]]:
    """Yield percents of time, one a second, that are there when the block ends; none are known."""
    found: list[float] = []
    place = device_of(device)
    if is_cpu(place) or not shutil.which("nvidia-smi"):
        yield found
        return
    asked = ["nvidia-smi", "-i", unique_name(place), "--query-gpu=utilization.gpu", "--loop=1"]
    with tempfile.TemporaryFile("w+") as file:
        watch = subprocess.Popen([*asked, "--format=csv,noheader,nounits"], stdout=file)
        try:
            yield found
        finally:
            watch.terminate()
            watch.wait()
            file.seek(0)
            found += [float(line) for line in file if line.strip().isdecimal()]
