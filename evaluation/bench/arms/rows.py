"""The rows of each arm: written, labelled by a teacher, kept, and read again.

What an arm writes is written in blocks, each with random numbers of its own, so that the first rows
are the same however many follow, and a file of a finished block is never made again.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from evaluation.bench.arms.runs import Cell, cost_of, measured
from evaluation.untrained_baseline import untrained_twin
from twinset.config import RunConfig
from twinset.data.schema import Combination, Schema
from twinset.files.atomic import replacing
from twinset.pipeline.prepare import read_source, template_of
from twinset.privacy.statement.guarantee import guarantee
from twinset.privacy.statement.ledger import Ledger
from twinset.progress import Silent
from twinset.release.run_format import LEDGER
from twinset.sampling.allocation import proportional
from twinset.sampling.sampler import RowGroups
from twinset.sampling.twin_model import TwinModel

BASE = "base"  # a writer that knows no private data
BLOCKS = 100  # at most, of an arm: distance between the seeds of two cells
ROWS = "rows.parquet"


@dataclass(frozen=True)
class Arm:
    """One arm of arms.toml.

    Args:
        name: as the page has it.
        writer: of its rows: `BASE` or a run; "": nobody writes any.
        teacher: of which run; "": none.
        use: relabel, keep, classify; real, second; "": rows are taken as they are written.
        sampling: options of decoding that differ from the cell's.
        cut: whether texts are cut where a run cuts those that it reads.
    """

    name: str
    writer: str = ""
    teacher: str = ""
    use: str = ""
    sampling: Mapping[str, Any] | None = None
    cut: bool = False

    @property
    def runs(self) -> tuple[str, ...]:
        """Return the runs it needs."""
        named = (self.writer, self.teacher)
        return tuple(dict.fromkeys(name for name in named if name not in ("", BASE)))

    @property
    def is_private(self) -> bool:
        """Whether it depends on ε and on a run's seed."""
        return bool(self.runs)

    @property
    def written_as(self) -> str:
        """Return a name of its rows before any teacher: arms that share them share it."""
        options = "".join(f"-{name}-{value}" for name, value in (self.sampling or {}).items())
        return re.sub(r"[^\w.-]", "-", f"{self.writer}{options}")


@dataclass
class Writing:
    """Makes and keeps the rows of one cell's arms.

    Args:
        cell: of what table, ε and seed.
        runs: what arms.toml says of runs.
        sizes: numbers of rows, rising: one block ends at each.
    """

    cell: Cell
    runs: Mapping[str, Mapping[str, Any]]
    sizes: Sequence[int]
    _loaded: tuple[str, TwinModel] | None = None  # one at a time: each is a model

    def rows(self, arm: Arm, wanted: int) -> pd.DataFrame:
        """Return an arm's first rows; fewer where its teacher kept fewer."""
        parts = [self._block(arm, place) for place in self._blocks(wanted)]
        return pd.concat(parts, ignore_index=True)

    def classified(self, arm: Arm, texts: Sequence[str]) -> pd.DataFrame:
        """Return the labels that an arm's teacher gives to texts."""
        path = self._classified_at(arm)
        if not path.is_dir():
            self._model(arm.teacher)  # before its use is timed
        return _kept(path, lambda: self._model(arm.teacher).classify(texts))

    def costs(self, arm: Arm, wanted: int) -> dict[str, Any]:
        """Return minutes and peak memory of each folder that an arm's rows rest on, by its path."""
        paths = [self.cell.path(name) for name in arm.runs]
        for place in self._blocks(wanted) if arm.writer else ():
            paths += [self._written_at(arm, place)]
            paths += [self._labelled_at(arm, place)] if arm.teacher else []
        if arm.use == "classify":
            paths.append(self._classified_at(arm))
        known = {path: cost_of(path) for path in paths if cost_of(path).is_file()}
        return {
            path.relative_to(self.cell.folder).as_posix(): json.loads(cost.read_text("utf-8"))
            for path, cost in known.items()
        }

    def epsilon(self, arm: Arm) -> float | None:
        """Return ε of everything that an arm's rows were made from; None: of nothing private."""
        return max((self._spent(name) for name in arm.runs), default=None)

    def _spent(self, name: str) -> float:
        folder = self.cell.path(name)
        ledger = next(f / LEDGER for f in (folder / "model", folder) if (f / LEDGER).is_file())
        spent = guarantee(Ledger.load(ledger)).epsilon
        return math.inf if spent is None else spent

    def _blocks(self, wanted: int) -> range:
        return range(1 + list(self.sizes).index(wanted))

    def _block(self, arm: Arm, place: int) -> pd.DataFrame:
        rows = self._written(arm, place)
        if not arm.teacher:
            return rows
        path, texts = self._labelled_at(arm, place), rows[self.cell.table.text].tolist()
        if not path.is_dir():
            self._model(arm.teacher)
        given = _kept(path, lambda: self._model(arm.teacher).classify(texts))
        return _taught(rows, given, arm.use)

    def _written(self, arm: Arm, place: int) -> pd.DataFrame:
        path = self._written_at(arm, place)
        if not path.is_dir() and arm.writer != BASE:
            self._model(arm.writer)
        unfinished = path.with_name(f".{path.name}-unfinished")
        left = self.sizes[place] - (self.sizes[place - 1] if place else 0)
        rows = _kept(path, lambda: self._write(arm, place, left, RowGroups(unfinished)))
        shutil.rmtree(unfinished, ignore_errors=True)
        return rows

    def _classified_at(self, arm: Arm) -> Path:
        return self.cell.path(f"{arm.teacher}-classified")

    def _written_at(self, arm: Arm, place: int) -> Path:
        name = f"{arm.written_as}-to-{self.sizes[place]}"
        return self.cell.folder / name if arm.writer == BASE else self.cell.path(name)

    def _labelled_at(self, arm: Arm, place: int) -> Path:
        return self.cell.path(f"{arm.written_as}-by-{arm.teacher}-to-{self.sizes[place]}")

    def _write(self, arm: Arm, place: int, rows: int, groups: RowGroups) -> pd.DataFrame:
        of = self.cell.config(self.runs.get(arm.writer, {}))
        seed = place if arm.writer == BASE else BLOCKS * self.cell.seed + place
        alike = of.sampling.settled(teacher=True)  # as the default's, with one or without
        sampling = replace(alike, **{"seed": seed, **(arm.sampling or {})})
        if arm.writer != BASE:
            model = self._model(arm.writer)
            counts = proportional(model.label_counts, rows)
            return model.sample(counts, sampling, self.cell.progress, groups)
        return self._write_base(replace(of, sampling=sampling), rows, groups)

    def _write_base(self, config: RunConfig, rows: int, groups: RowGroups) -> pd.DataFrame:
        """Return rows of the base model, in the proportions that the real labels have."""
        schema, labels = self._shape
        counts = proportional({c: labels[c] for c in schema.combinations}, rows)
        template = template_of(self.cell.table.source, schema)
        frame = untrained_twin(config, schema, template, counts, self.cell.progress, groups)
        return frame.sample(frac=1, random_state=config.sampling.seed).reset_index(drop=True)

    @cached_property
    def _shape(self) -> tuple[Schema, Counter[Combination]]:
        _, records, _ = read_source(self.cell.table.source, Silent())
        return records.schema, Counter(records.labels)

    def _model(self, name: str) -> TwinModel:
        if self._loaded is None or self._loaded[0] != name:
            self._loaded = None  # its memory first
            self._loaded = name, self.cell.model(name, self.runs[name])
        return self._loaded[1]


def _kept(folder: Path, make: Callable[[], pd.DataFrame]) -> pd.DataFrame:
    """Return rows that are kept there, made first where they are not."""
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with measured(cost_of(folder)), replacing(folder) as new:
            make().to_parquet(new / ROWS)
    return pd.read_parquet(folder / ROWS)


def _taught(rows: pd.DataFrame, given: pd.DataFrame, use: str) -> pd.DataFrame:
    """Return the rows with the teacher's labels, or those that bear them already.

    >>> rows = pd.DataFrame({"text": ["a", "b"], "mood": ["good", "bad"]})
    >>> given = pd.DataFrame({"mood": ["good", "good"]})
    >>> _taught(rows, given, "relabel")["mood"].tolist(), len(_taught(rows, given, "keep"))
    (['good', 'good'], 1)
    """
    names = list(given.columns)
    if use == "relabel":
        return rows.assign(**{name: given[name].to_numpy() for name in names})
    agree = (rows[names].astype(str).to_numpy() == given.astype(str).to_numpy()).all(1)
    return rows[agree].reset_index(drop=True)
