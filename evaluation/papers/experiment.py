"""What an experiment is, and how any is run: its plan, or its rows and then page and figure.

A command that was stopped goes on with the row it was at. Knows no paper.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import typer

from evaluation.command import command_line
from evaluation.papers.options import Options
from evaluation.papers.page import as_markdown
from evaluation.papers.report import Paper, Report
from evaluation.papers.rows import Key, Rows
from evaluation.papers.workshop import Workshop
from twinset.artefact import sha256_file, write_text, writing
from twinset.console import Console
from twinset.errors import InputError
from twinset.progress import Progress

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Case(Protocol):
    """One row that there should be; as text it says all of it in words."""

    @property
    def key(self) -> Key:
        """What names the row; the seed is last."""
        ...


AnyCase = TypeVar("AnyCase", bound=Case)


class Experiment(Protocol[AnyCase]):
    """A paper's main experiment, of one size, on some files.

    `plan` and `cases` must do without files. All that `report` and `figure` say, they compute from
    the rows and their facts.
    """

    @property
    def name(self) -> str:
        """Name of its package and of its files."""
        ...

    @property
    def paper(self) -> Paper:
        """The paper that is put to the test."""
        ...

    @property
    def size(self) -> str:
        """Name of its size."""
        ...

    def plan(self) -> Iterable[str]:
        """Yield what would be done, a line for each model and phase; nothing is trained."""
        ...

    def cases(self, seeds: int) -> Iterable[AnyCase]:
        """Yield all rows there should be; what others begin from comes first."""
        ...

    def sources(self) -> Mapping[str, str]:
        """Return each file or hub data set by its part, in words; see `described`."""
        ...

    def settings(self) -> Mapping[str, Any]:
        """Return everything else that a row depends on, but its key: ready for JSON."""
        ...

    def facts(self) -> Mapping[str, Any]:
        """Return what else `report` needs of the data: ready for JSON."""
        ...

    def row(self, case: AnyCase, workshop: Workshop) -> Mapping[str, Any]:
        """Make one row: plain values, ready for JSON."""
        ...

    def report(self, rows: Rows) -> Report:
        """Return what was found; every row is there."""
        ...

    def figure(self, rows: Rows) -> Figure:
        """Draw it; every row is there."""
        ...


def run(experiment: Experiment[AnyCase], options: Options) -> None:
    """Print the plan; or make the rows that the results lack, then page and figure.

    Raises:
        InputError: a file cannot be used, or the results there are of other settings.
    """
    cases = list(experiment.cases(options.seeds))
    if options.dry_run:
        for line in experiment.plan():
            typer.echo(line)
        typer.echo(f"{len(cases)} rows with {options.seeds} seeds")
        return
    rows = _open(experiment, options.output)
    rows.facts = dict(experiment.facts())
    with Console() as progress:
        _make(experiment, cases, rows, progress)
    typer.echo(_publish(experiment, rows), nl=False)


def described(path: Path) -> str:
    """Return the name of a file or folder, with what tells its contents from others'.

    Raises:
        InputError: it cannot be read.
    """
    try:
        if not path.is_dir():
            return f"{path.name}, SHA-256 {sha256_file(path)}"
        files = sorted(p for p in path.rglob("*") if p.is_file())
        hashes = [f"{sha256_file(p)}  {p.relative_to(path)}" for p in files]
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path") from None
    joined = hashlib.sha256("\n".join(hashes).encode()).hexdigest()
    return f"{path.name}/, {len(hashes)} files, SHA-256 of their list {joined}"


def _open(experiment: Experiment[AnyCase], output: Path) -> Rows:
    """Return the rows there are.

    Raises:
        InputError: they are of other settings, or there can be no such folder.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--output {output}: no folder ({error.strerror})") from None
    settings = {"size": experiment.size, "sources": experiment.sources(), **experiment.settings()}
    command = command_line(f"evaluation.papers.{experiment.name}")
    return Rows.open(output / f"{experiment.name}.json", settings, command)


def _make(
    experiment: Experiment[AnyCase], cases: list[AnyCase], rows: Rows, progress: Progress
) -> None:
    """Make every row that is missing; what they share is kept until none is."""
    digest = hashlib.sha256(json.dumps(rows.settings).encode()).hexdigest()[:16]
    workshop = Workshop(progress, rows.path.with_name(f".{experiment.name}-{digest}"))
    todo = [case for case in cases if case.key not in rows.rows]
    for number, case in enumerate(todo, start=1):
        progress.say(f"row {number} of {len(todo)}: {case}")
        rows.add(case.key, experiment.row(case, workshop))
    shutil.rmtree(workshop.folder, ignore_errors=True)


def _publish(experiment: Experiment[AnyCase], rows: Rows) -> str:
    """Write rows, page and figure; return the page."""
    report, figure = experiment.report(rows), rows.path.with_suffix(".png")
    rows.summary = report.summary(experiment.paper).to_dict()
    rows.write()
    page = as_markdown(experiment.paper, report, rows, figure.name)
    write_text(rows.path.with_suffix(".md"), page)
    with writing(figure):
        experiment.figure(rows).savefig(figure, dpi=150)
    return page
