"""What is made with private data for one table, ε and seed: a model for each run of arms.toml.

A run folder that is whole is not made again; one that was stopped goes on. Knows no arm.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

from evaluation.bench.arms.tables import Table
from evaluation.bench.measure import peak_bytes, reset_peak
from twinset.config import RunConfig
from twinset.config.options import run_config
from twinset.errors import InputError
from twinset.files.atomic import write_json
from twinset.pipeline.generate import finetune_only
from twinset.pipeline.prepare import Prepared, prepare
from twinset.pipeline.request import OutputPaths
from twinset.pipeline.run_folder import is_finished, is_unfinished
from twinset.pipeline.run_settings import known_settings
from twinset.progress import Progress
from twinset.sampling.twin_model import TwinModel

COST = "cost.json"  # beside what it was spent on
_COMPARED = ("privacy", "policy", "training")  # groups of options


@dataclass(frozen=True)
class Cell:
    """What the runs of a table, an ε and a seed share.

    Args:
        table: the table.
        epsilon: total ε.
        seed: of everything that is drawn.
        options: of all runs; they go before the table's.
        folder: where the runs of the table are.
        progress: is notified of what happens.
    """

    table: Table
    epsilon: float
    seed: int
    options: Mapping[str, Any]
    folder: Path
    progress: Progress

    def path(self, name: str) -> Path:
        """Return where a run of this ε and seed is."""
        return self.folder / f"epsilon-{self.epsilon:g}-seed-{self.seed}" / name

    def config(self, stated: Mapping[str, Any]) -> RunConfig:
        """Return a run's options; no clock chooses steps, so that all machines take as many."""
        options = {**self.table.options, **self.options, **self.table.always}
        asked = {**options, **stated.get("options", {})}
        config = run_config(asked | {"epsilon": self.epsilon, "seed": self.seed})
        return replace(config, training=replace(config.training, max_minutes=None))

    def model(self, name: str, stated: Mapping[str, Any]) -> TwinModel:
        """Return the model of a run, made where it is not there yet.

        Args:
            name: of the run.
            stated: what arms.toml says of it.

        Raises:
            InputError: the run cannot be made, or what stands there was made otherwise.
        """
        folder, config = self.path(name), self.config(stated)
        folder.parent.mkdir(parents=True, exist_ok=True)
        if not is_finished(folder.resolve()):
            self._finetune(folder, config)
        check_same(folder, prepare(self.table.source, config))
        return TwinModel.load(folder)

    def _finetune(self, folder: Path, config: RunConfig) -> None:
        resume = is_unfinished(folder.resolve())
        paths = OutputPaths(run=folder, overwrite=not resume, resume=resume)
        with measured(cost_of(folder)):
            finetune_only(self.table.source, config, paths, self.progress)


def check_same(folder: Path, prepared: Prepared) -> None:
    """Refuse a run folder that was made from another table or with other options.

    Options that it does not record count as what they are by default; what may differ is rows,
    sampling and speed, and the time that chose the steps, as these are compared themselves.

    Raises:
        InputError: it names what differs.
    """
    ours = prepared.config
    wanted = {
        "table": prepared.records.fingerprint(),
        "prompt": prepared.template.to_dict(),
        "plan": asdict(prepared.plan),
        **{group: asdict(getattr(ours, group)) for group in _COMPARED},
    }
    wanted = json.loads(json.dumps(wanted))
    try:
        recorded = known_settings(folder / "internal")
        config = RunConfig.from_dict(recorded)
        theirs = {
            **recorded,
            "plan": wanted["plan"] | recorded["plan"],
            **{group: asdict(getattr(config, group)) for group in _COMPARED},
        }
        theirs["training"]["max_minutes"] = ours.training.max_minutes
    except (OSError, LookupError, TypeError, ValueError) as error:
        raise InputError(f"{folder}: is no finished run ({type(error).__name__})") from None
    if other := [name for name in wanted if theirs.get(name) != wanted[name]]:
        raise InputError(f"{folder}: was made with other settings ({', '.join(other)})")


def take_finished(folder: Path, cell: Cell, name: str, stated: Mapping[str, Any]) -> None:
    """Let a finished run stand for one of this cell, if it was made as the cell's would be.

    Raises:
        InputError: it is not finished, was made otherwise, or the cell has a run of its own.
    """
    place = cell.path(name)
    if not is_finished(folder.resolve()):
        raise InputError(f"`run_folder`: {folder} is no finished run")
    check_same(folder, prepare(cell.table.source, cell.config(stated)))
    if place.exists() and place.resolve() != folder.resolve():
        raise InputError(f"`run_folder`: {place} is there already; take it away first")
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(folder.resolve())
        write_json(cost_of(place), {"note": "taken from a finished run; not measured here"})


def cost_of(path: Path) -> Path:
    """Return where the cost of making a file or folder is."""
    return path.with_name(f"{path.name}.{COST}")


@contextmanager
def measured(path: Path) -> Iterator[None]:
    """Add minutes and peak memory of the block to a file; also where it is stopped."""
    before = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    reset_peak()
    began = monotonic()
    try:
        yield
    finally:
        minutes = before.get("minutes", 0.0) + (monotonic() - began) / 60
        peak = max(before.get("peak GiB", 0.0), peak_bytes() / 2**30)
        write_json(path, {"minutes": minutes, "peak GiB": peak})
