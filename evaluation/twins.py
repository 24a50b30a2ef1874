"""A twin to be measured: made here, or read from where an earlier run left it."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas as pd

from twinset.config import PrivacyConfig, RunConfig
from twinset.config.plan import with_steps
from twinset.errors import InputError
from twinset.files.atomic import sha256_file
from twinset.privacy.statement.guarantee import guarantee, protects_whole_records
from twinset.privacy.statement.ledger import Ledger
from twinset.progress import Progress
from twinset.release.publish import beside
from twinset.release.run_format import check_format
from twinset.release.share import PRIVACY
from twinset.run.finetune import finetune
from twinset.run.prepare import prepare
from twinset.run.request import Source
from twinset.sampling.allocation import proportional
from twinset.sampling.twin_model import TwinModel
from twinset.table.columns import choose_columns
from twinset.table.formats import read_frame
from twinset.table.label_codes import label_cells
from twinset.table.schema import Combination, Schema

Seconds = dict[str, float]  # wall time by phase
TRAINED_ALL_THE_SAME = (
    "these models are trained, where `twinset generate` trains nothing on so few records; "
    "`--steps 0` trains nothing here either, `generate --steps 40` does there"
)


@dataclass(frozen=True)
class Twin:
    """A twin's rows and what may be claimed of them.

    Args:
        frame: the rows.
        epsilon: ε; None without a guarantee.
        delta: its δ.
        sentence: the guarantee in words.
        unit: whose presence it protects; "" without one.
        seconds: how long making it took.
    """

    frame: pd.DataFrame
    epsilon: float | None = None
    delta: float | None = None
    sentence: str = "unknown: the twin came without its privacy.json"
    seconds: Seconds = field(default_factory=dict)
    unit: str = ""

    @property
    def is_of_whole_records(self) -> bool:
        """Whether something is guaranteed, and of all that a record says, not of spans alone."""
        return protects_whole_records(self.epsilon, self.unit)


def train_twin(
    source: Source, config: RunConfig, rows: int, progress: Progress
) -> tuple[TwinModel, Twin]:
    """Fine-tune once and sample once, with the parts that `twinset generate` is made of.

    Rows are protected one by one. It is one of several models that are compared, so the clock
    chooses no steps. It is trained even where a run alone would train nothing, and says so.
    """
    asked = config
    of_records = PrivacyConfig().max_records_per_owner  # without effect
    config = replace(
        config,
        privacy=replace(config.privacy, max_records_per_owner=of_records),
        training=replace(config.training, max_minutes=None),
    )
    seconds: Seconds = {}
    prepared = prepare(source, config)
    if with_steps(asked, len(prepared.records)) != asked:
        progress.say(TRAINED_ALL_THE_SAME)
    with timed(seconds, "fine-tuning"):
        model = finetune(prepared, progress)
    with timed(seconds, "sampling"):
        counts = proportional(model.label_counts, rows)
        frame = model.sample(counts, config.sampling, progress)
    return model, _twin(frame, model.ledger, seconds)


def read_twin(path: Path) -> Twin:
    """Read a twin with the `privacy.json` beside it: in `share/`, or as `--output` leaves it.

    Raises:
        InputError: the table or its `privacy.json` cannot be read.
    """
    frame = read_frame(path)
    file = next((f for f in (beside(path)[1], path.with_name(PRIVACY)) if f.is_file()), None)
    if file is None:
        return Twin(frame)
    try:
        described = json.loads(file.read_text("utf-8"))
        check_format(file, described["format_version"])
        if described["files"]["twin"]["sha256"] != sha256_file(path):
            return Twin(frame, sentence=f"unknown: {file.name} describes another file")
        return _twin(frame, Ledger.from_dict(described["ledger"]))
    except InputError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file}: holds no ledger; restore it, or take it away") from error


def _twin(frame: pd.DataFrame, ledger: Ledger, seconds: Seconds | None = None) -> Twin:
    claim = guarantee(ledger)
    return Twin(frame, claim.epsilon, claim.delta, claim.sentence, seconds or {}, unit=claim.unit)


def rows_per_label(twin: pd.DataFrame, schema: Schema) -> dict[Combination, int]:
    """Count a twin's rows of every combination of the schema.

    Raises:
        InputError: a column or a label of the twin is not the private table's.
    """
    names = [attribute.name for attribute in schema.attributes]
    choose_columns(twin, schema.text, names, "the twin", [])
    cells = (label_cells(twin[name], f"the twin: column {name!r}") for name in names)
    found = Counter(zip(*cells, strict=True))
    if not found.keys() <= set(schema.combinations):
        raise InputError("the twin has labels that the training table lacks; give its own table")
    return {combination: found[combination] for combination in schema.combinations}


@contextmanager
def timed(seconds: Seconds, phase: str) -> Iterator[None]:
    """Note how long the block takes."""
    began = time.monotonic()
    yield
    seconds[phase] = time.monotonic() - began
