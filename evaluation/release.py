"""What was released, as an evaluation finds it: a twin's file, or a run folder with its options.

Reads no weights and writes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from evaluation.twins import Twin, read_twin
from twinset.config import RunConfig, SpeedConfig
from twinset.errors import DAMAGED, InputError
from twinset.files.atomic import sha256_file
from twinset.files.environment import machine, versions
from twinset.files.limits import read_text
from twinset.models.device import AUTO, check_device
from twinset.release.run_format import LEDGER, check_file_format
from twinset.run.run_folder import SETTINGS
from twinset.sampling.twin_model import DESCRIPTION, twin_frame
from twinset.table.columns import choose_columns
from twinset.table.formats import FORMATS, written_names
from twinset.table.label_rules import LabelRules
from twinset.table.records import records_from_frame
from twinset.table.schema import Schema
from twinset.table.templates import Template


@dataclass(frozen=True)
class FinishedRun:
    """What a run left.

    Args:
        root: its folder.
        config: its options, with the steps, batch size and rate that were chosen for it.
        schema: shape of the private table.
        template: its prompts.
        labels: by which rows of the table's kind get labels of the schema.
        reading: how its table was read; see `Source.reading`.
    """

    root: Path
    config: RunConfig
    schema: Schema
    template: Template
    labels: LabelRules = LabelRules()
    reading: Mapping[str, str | None] = field(default_factory=dict)

    @classmethod
    def read(cls, root: Path, device: str = AUTO) -> FinishedRun:
        """Read a run folder.

        Args:
            root: the run folder.
            device: of what is computed from now on: of this machine, not of the run's.

        Raises:
            InputError: the folder is none, is damaged, or is of another format.
        """
        check_file_format(root / "model" / LEDGER)
        try:
            made_from = _json(root / "internal" / SETTINGS)
            plan = made_from["plan"]
            config = RunConfig.from_dict(made_from)
            chosen = {name: plan[name] for name in ("steps", "batch_size", "learning_rate")}
            config = replace(
                config,
                training=replace(config.training, **chosen),
                speed=replace(config.speed, device=device),
            )
            described = _json(root / "model" / DESCRIPTION)
            schema = Schema.from_dict(described["schema"])
            template = Template.from_dict(described["template"])
            labels = LabelRules(**made_from.get("labels", {})).settled(schema, {})
        except InputError as error:
            raise InputError(f"{root}: {error}") from None
        except DAMAGED as error:
            raise InputError(
                f"{root} is no complete run folder of twinset ({type(error).__name__})"
            ) from error
        return cls(root, config, schema, template, labels, made_from.get("reading", {}))

    def public_rows(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return a table's rows with the labels that the run gave them; others are left out."""
        return public_rows(frame, self.schema, self.labels)

    @property
    def internal(self) -> Path:
        """The folder that stays with the owner."""
        return self.root / "internal"

    @property
    def twin_path(self) -> Path:
        """The twin in `share/`.

        Raises:
            InputError: there is none yet.
        """
        for ending in FORMATS:
            if (path := self.root / "share" / f"twin{ending}").is_file():
                return path
        raise InputError(f"{self.root}/share holds no twin yet; run `twinset sample {self.root}`")


@dataclass(frozen=True)
class Release:
    """A twin, with its run folder where there is one.

    Args:
        path: the twin's file, or the run folder.
        file: the file of the twin's rows.
        twin: its rows, and what is guaranteed of them.
        run: the run folder.
        device: that computes what is measured, as `device_of` takes it.
    """

    path: Path
    file: Path
    twin: Twin
    run: FinishedRun | None
    device: str = AUTO

    @classmethod
    def read(cls, path: Path, run: Path | None = None, device: str = AUTO) -> Release:
        """Read a run folder, or a twin's file with or without its run folder.

        Raises:
            InputError: something cannot be read, or the device is not there.
        """
        check_device(SpeedConfig(device=device).device, 1)
        is_run = (path / "model" / DESCRIPTION).is_file()
        if is_run and run is not None:
            raise InputError(f"{path} is a run folder; `run` is for a twin given as a file")
        root = run or (path if is_run else None)
        finished = None if root is None else FinishedRun.read(root, device)
        file = finished.twin_path if finished is not None and is_run else path
        twin = read_twin(file)
        if finished is not None:
            twin = replace(twin, frame=_unguarded(twin.frame, finished.schema))
        return cls(path, file, twin, finished, device)

    def columns(
        self, text: str | None, attributes: Sequence[str], notes: list[str]
    ) -> tuple[str, list[str]]:
        """Return text and label columns: as given, else the run's, else guessed and noted."""
        names = list(attributes)
        if self.run is not None:
            text = text or self.run.schema.text
            names = names or [attribute.name for attribute in self.run.schema.attributes]
        return choose_columns(self.twin.frame, text, names, str(self.path), notes)

    def about(self, command: str, table: Path) -> dict[str, Any]:
        """Return what a reader of findings must know to do it again."""
        return {
            "command": command,
            "data": "/".join(table.parts[-2:]),
            "epsilon": self.twin.epsilon,
            "delta": self.twin.delta,
            "guarantee": self.twin.sentence,
            "twin_sha256": sha256_file(self.file),
            "versions": versions(),
            "machine": machine(),
        }


def public_rows(frame: pd.DataFrame, schema: Schema, rules: LabelRules) -> pd.DataFrame:
    """Return a table's rows with labels of a schema, by settled rules; others are left out."""
    if not rules.changes_rows:
        return frame
    names, rules = [a.name for a in schema.attributes], replace(rules, drop=True)
    records, _ = records_from_frame(frame, schema.text, names, drop_empty=True, rules=rules)
    return twin_frame(schema, records.texts, records.labels)


def _unguarded(twin: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    """Return a twin under the schema's names, where a CSV has them guarded against spreadsheets."""
    named = pd.DataFrame(columns=list(schema.columns))
    is_guarded = list(twin.columns) == written_names(named, "csv")
    return twin.set_axis(list(schema.columns), axis="columns") if is_guarded else twin


def _json(path: Path) -> Any:
    return json.loads(read_text(path))
