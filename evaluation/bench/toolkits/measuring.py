"""One measurement of the page: a toolkit is given its job, and its rows are scored."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from evaluation.bench.arms.scores import ACCURACY, Scorer
from evaluation.bench.arms.tables import Table
from evaluation.bench.toolkits.environments import environment
from evaluation.bench.toolkits.plan import PROJECT, Measurement, Stated, Toolkit
from evaluation.bench.toolkits.running import HERE, Failed, Job, rows_of
from twinset.config.plan import default_delta
from twinset.errors import InputError
from twinset.files.atomic import replacing
from twinset.models.assets import asset_path
from twinset.models.base_model import BaseModel, load_base
from twinset.progress import Progress

REAL = "real rows"
LIBRARIES = (
    "torch transformers opacus peft numpy pandas mostlyai-engine invink sentence-transformers"
)
COST = ("minutes", "peak GiB")


@dataclass
class Measuring:
    """Makes the measurements of one table.

    Args:
        table: texts whole; they are shortened here, for all toolkits alike.
        stated: what toolkits.toml says.
        base_model: as `load_base` takes it.
        copies: folder with copies of repositories.
        output: folder of everything.
        progress: is notified of what happens.
    """

    table: Table
    stated: Stated
    base_model: str
    copies: Path
    output: Path
    progress: Progress

    def real(self, seed: int) -> dict[str, Any]:
        """Return the scores of as many real rows as the toolkits write: what they could reach."""
        rows = min(self.stated.size["rows"], len(self._short.train))
        frame = self._short.train.sample(rows, random_state=seed)
        worth = self._scorer.worth(frame, seed, self.stated.size["students"])
        return {"usable": rows, **self._scorer.lengths(frame), ACCURACY: worth}

    def row(self, key: Measurement) -> dict[str, Any]:
        """Return what a toolkit's rows are worth and what they took.

        Raises:
            Failed: it wrote none.
            InputError: its environment or the copy of its repository is not there.
        """
        toolkit = self.stated.toolkit(key.toolkit)
        asked = self.stated.environments.get(toolkit.environment, ())
        own = toolkit.environment == PROJECT
        places = self.output / "environments" / toolkit.environment
        python = Path(sys.executable) if own else environment(places, asked, self.progress.say)
        place = f"epsilon-{key.epsilon:g}-seed-{key.seed}", re.sub(r"[^\w.-]", "-", key.toolkit)
        folder = self.output / key.table / "/".join(place)
        writer = HERE / "writers" / f"{toolkit.writer}.py"
        frame, facts = rows_of(self._job(toolkit, key), writer, python, folder, own)
        frame = usable(frame, self._short)
        if frame.empty:
            raise Failed("no row had a text and labels that the table knows")
        worth = self._scorer.worth(frame, key.seed, self.stated.size["students"])
        likeness = {**self._scorer.lengths(frame), **self._scorer.likeness(frame)}
        return {"usable": len(frame), **likeness, ACCURACY: worth, **facts}

    def _job(self, toolkit: Toolkit, key: Measurement) -> Job:
        copy = self.copies / toolkit.copy
        if toolkit.copy and not copy.is_dir():
            raise InputError(f"`copies`: {copy} is not there: a copy of {toolkit.copy}")
        size, table = self.stated.size, self._short
        return Job(
            str(self._private),
            table.text,
            list(table.attributes),
            str(table.source.prompt),
            key.epsilon,
            default_delta(len(table.train)),
            size["rows"],
            size["tokens"],
            key.seed,
            str(self._base_folder),
            str(asset_path("minilm", self.progress.say)),
            str(copy) if toolkit.copy else "",
            self.stated.options(toolkit),
            LIBRARIES.split(),
        )

    @cached_property
    def _base(self) -> BaseModel:
        return load_base(self.base_model, say=self.progress.say)

    @cached_property
    def _base_folder(self) -> Path:
        """Save the base model as every toolkit can load it."""
        folder = self.output / f"base-{re.sub(r'[^A-Za-z0-9.-]', '-', Path(self.base_model).name)}"
        if not folder.is_dir():
            with replacing(folder) as new:
                self._base.model.save_pretrained(new)
                self._base.tokenizer.save_pretrained(new)
        return folder.resolve()

    @cached_property
    def _short(self) -> Table:
        """Return the table with each text cut after its first tokens."""
        train, heldout = (self._cut(frame) for frame in (self.table.train, self.table.heldout))
        source = replace(self.table.source, data=train)
        return replace(self.table, train=train, heldout=heldout, source=source)

    def _cut(self, frame: pd.DataFrame) -> pd.DataFrame:
        tokenizer, most = self._base.tokenizer, self.stated.size["tokens"]
        ids = tokenizer(frame[self.table.text].tolist(), add_special_tokens=False).input_ids
        texts = tokenizer.batch_decode([row[:most] for row in ids])
        return frame.assign(**{self.table.text: [text.strip() for text in texts]})

    @cached_property
    def _private(self) -> Path:
        path = self.output / self.table.name / f"private-{self.stated.size['tokens']}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._short.train.to_parquet(path)
        return path.resolve()

    @cached_property
    def _scorer(self) -> Scorer:
        size = self.stated.size
        say = self.progress.say
        return Scorer(self._short, size["students"], self.base_model, size["tokens"], say)


def usable(frame: pd.DataFrame, table: Table) -> pd.DataFrame:
    """Return the rows that have a text, and labels that the table has."""
    columns = [table.text, *table.attributes]
    frame = frame[columns].dropna().astype(str)
    known: Mapping[str, Sequence[str]] = {
        name: table.train[name].astype(str).unique().tolist() for name in table.attributes
    }
    kept = frame[table.text].str.strip() != ""
    for name, values in known.items():
        kept &= frame[name].isin(values)
    return frame[kept].reset_index(drop=True)
