"""Finished rows of an experiment in one JSON file, its Markdown, and how its command ends.

The file grows row by row under one set of settings. A command that was stopped resumes with the
rows that are missing, several commands may add to one file at once, and rows of other settings are
refused. Nothing here knows what a row holds.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import typer

from twinset.commandline.entry_point import with_flags
from twinset.errors import InputError
from twinset.files.atomic import write_json
from twinset.files.environment import LIBRARIES, machine, versions

Key = tuple[str | float, ...]
Row = dict[str, Any]


@dataclass
class ResultsStore:
    """All rows made under the same settings.

    Args:
        path: of the file.
        settings: everything that a row depends on, except its key.
        commands: that the rows came from.
        facts: what else a reader should know.
        rows: by key, which is a case and last its seed where it has one: plain values for JSON.
        mode: who may read the file. None: everybody who may read its folder.

    Example::

        store = ResultsStore.open(Path("runs.json"), {"rows": 8}, "twinset compare …")
        for turn, key in store.missing([("uniform", 0), ("uniform", 1)]):
            store.add(key, {"accuracy": 0.8})
    """

    path: Path
    settings: Mapping[str, Any]
    commands: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    rows: dict[Key, Row] = field(default_factory=dict)
    mode: int | None = None

    @classmethod
    def load(cls, path: Path, mode: int | None = None) -> Self:
        """Read a file of results.

        Raises:
            InputError: it does not hold results.
        """
        try:
            kept = json.loads(path.read_text("utf-8"))
            rows = {tuple(row.pop("key")): row for row in kept["rows"]}
            settings, commands, facts = dict(kept["settings"]), kept["commands"], kept["facts"]
        except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
            raise InputError(f"{path}: holds no results; name another `output`") from error
        return cls(path, settings, commands, facts, rows, mode)

    @classmethod
    def open(
        cls, path: Path, settings: Mapping[str, Any], command: str, mode: int | None = None
    ) -> Self:
        """Return the results that a file holds, or empty ones if there is no file yet.

        Raises:
            InputError: it does not hold results, or its rows were made under other settings.
        """
        settings = json.loads(json.dumps(settings))  # as they come back from a file
        if not path.exists():
            return cls(path, settings, [command], mode=mode)
        found = cls.load(path, mode)
        check_settings(path, settings, found.settings)
        found.commands = list(dict.fromkeys([*found.commands, command]))
        return found

    def missing(self, keys: Iterable[Key]) -> Iterator[tuple[str, Key]]:
        """Yield the keys that have no row yet, each behind its turn: "2 of 5"."""
        missing = [key for key in keys if key not in self.rows]
        for number, key in enumerate(missing, start=1):
            yield f"{number} of {len(missing)}", key

    def add(self, key: Key, row: Mapping[str, Any]) -> None:
        """Add a row and write the file, together with what other processes have written to it.

        Raises:
            InputError: the file no longer holds results, or it holds results of other settings.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # The lock is on the folder: the file itself is replaced at each write, and a lock file
        # would stay behind.
        descriptor = os.open(self.path.parent, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if self.path.exists():
                found = type(self).load(self.path)
                check_settings(self.path, json.loads(json.dumps(self.settings)), found.settings)
                self.rows |= found.rows  # the file may have newer rows in the place of ours
                self.commands = list(dict.fromkeys([*found.commands, *self.commands]))
                self.facts = found.facts | self.facts
            self.rows[key] = dict(row)
            self.write()
        finally:
            os.close(descriptor)

    def write(self, **more: Any) -> None:
        """Write the file whole or not at all, with further values next to the rows."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.path, {**more, **self.to_dict()}, self.mode)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        rows = [{"key": list(key)} | row for key, row in self.rows.items()]
        stated = {"settings": self.settings, "facts": self.facts, "commands": self.commands}
        return {**stated, "rows": rows}


def check_settings(path: Path, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Refuse to add to results that were made under other settings.

    Raises:
        InputError: it names the settings that differ.
    """
    if names := [n for n in {**ours, **theirs} if ours.get(n) != theirs.get(n)]:
        raise InputError(
            f"{path}: its rows were made with other settings ({', '.join(names)}); "
            "name another `output`, or take the file away"
        )


def about(libraries: Iterable[str] = LIBRARIES) -> dict[str, str]:
    """Return versions and machine, a line each."""
    here = machine()
    return {
        "versions": ", ".join(f"{name} {v}" for name, v in versions(libraries).items()),
        "machine": f"{here['cpu']}, {here['cores']} cores",
    }


def markdown_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1
) -> list[str]:
    """Return the lines of a Markdown table, whose first columns are aligned to the left.

    Args:
        header: Markdown.
        rows: Markdown, a sequence of cells each.
        left: how many columns hold words and not numbers.

    >>> markdown_table(["", "time"], [["step", "2 s"]])
    ['|  | time |', '| --- | ---: |', '| step | 2 s |']
    """
    rule = ["---"] * left + ["---:"] * (len(header) - left)
    return [f"| {' | '.join(cells)} |" for cells in (header, rule, *rows)]


def run_as_command(function: Callable[..., None]) -> None:
    """Run a function as `python -m …` does, its parameters as options.

    Bad input ends it with one line and exit code 2, as with `twinset` itself.
    """
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(function)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # of libraries, to developers. -W default shows them
    try:
        app()
    except InputError as error:
        typer.echo(f"error: {with_flags(str(error))}", err=True)
        raise SystemExit(2) from None
