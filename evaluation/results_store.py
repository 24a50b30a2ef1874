"""Finished rows of an experiment: one JSON file that grows row by row, of one set of settings.

A command that was stopped resumes with the rows that are missing, several may add to one file at
once, and rows of other settings are refused. Knows nothing of what a row holds.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self

from twinset.errors import InputError
from twinset.files.atomic import write_json
from twinset.files.environment import LIBRARIES, machine, versions

Key = tuple[str | float, ...]
Row = dict[str, Any]
ABOUT = "about"  # in settings and rows: versions and machine
COMMIT = "commit"  # in rows: of the code that made them
HERE = Path(__file__).resolve().parents[1]  # of this project
CODE, RESULTS = ("twinset", "evaluation", "prompts"), "evaluation/*/results/*"  # of the repository


@dataclass
class ResultsStore:
    """All rows made under the same settings.

    Args:
        path: of the file.
        settings: everything that a row depends on, but its key.
        commands: that the rows came from.
        facts: what else a reader should know.
        rows: by key, a case and last its seed where it has one: plain values, ready for JSON.
        mode: who may read the file; None: whoever may its folder.
        here: versions and machine of rows that are added, see `resume`; None: nobody asked.
    """

    path: Path
    settings: Mapping[str, Any]
    commands: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    rows: dict[Key, Row] = field(default_factory=dict)
    mode: int | None = None
    here: Mapping[str, str] | None = None

    kept_for: ClassVar[int | None] = None  # `mode` of what is resumed

    @classmethod
    def load(cls, path: Path, mode: int | None = None) -> Self:
        """Read a file of results.

        Raises:
            InputError: it is none of ours.
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
        """Take in the rows that a file holds, if there is one.

        Raises:
            InputError: it is none of ours, or its rows were made under other settings.
        """
        settings = json.loads(json.dumps(settings))
        if not path.exists():
            return cls(path, settings, [command], mode=mode)
        found = cls.load(path, mode)
        check_settings(path, settings, found.settings)
        found.commands = list(dict.fromkeys([*found.commands, command]))
        return found

    @classmethod
    def resume(
        cls,
        path: Path,
        settings: Mapping[str, Any],
        command: str,
        elsewhere: bool = False,
    ) -> Self:
        """Return the results that a file holds, or none yet, with versions and machine of each row.

        Args:
            path: of the file.
            settings: everything that a row depends on, but its key, versions and machine.
            command: that adds rows.
            elsewhere: the rows there may be of other versions or of another machine.

        Raises:
            InputError: the file holds no results, or results of other settings.
        """
        first = here = about()
        commit()  # now: the code may be changed while it runs
        if elsewhere and path.exists():
            first = cls.load(path).settings.get(ABOUT, here)
        found = cls.open(path, {**settings, ABOUT: first}, command, cls.kept_for)
        found.here = here
        return found

    @property
    def digest(self) -> str:
        """Return what tells these settings from others, in hexadecimal."""
        return hashlib.sha256(json.dumps(self.settings).encode()).hexdigest()[:16]

    def by_seed(self, *case: str | float) -> dict[int, Row]:
        """Return the rows whose key is `case` and then a seed."""
        return {int(key[-1]): row for key, row in self.rows.items() if key[:-1] == case}

    def missing(self, keys: Iterable[Key]) -> Iterator[tuple[str, Key]]:
        """Yield the keys that have no row yet, each behind its turn: "2 of 5"."""
        missing = [key for key in keys if key not in self.rows]
        for number, key in enumerate(missing, start=1):
            yield f"{number} of {len(missing)}", key

    def add(self, key: Key, row: Mapping[str, Any]) -> None:
        """Add a row with what made it, and write the file.

        What other processes have written meanwhile is taken in.

        Raises:
            InputError: the file holds no results any more, or results of other settings.
        """
        row = {**self._stamp(), **row}  # one that grows is of what made its first values
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with locked(self.path.parent):
            self.refresh()
            self.rows[key] = row
            self.write()

    def _stamp(self) -> Row:
        """Return which commit makes rows, and where if others were made elsewhere."""
        if self.here is None:
            return {}
        moved = {ABOUT: dict(self.here)} if self.here != self.settings[ABOUT] else {}
        return {COMMIT: commit(), **moved}

    def refresh(self) -> None:
        """Take in what the file holds now; it may have newer rows in the place of ours.

        Raises:
            InputError: the file holds no results any more, or results of other settings.
        """
        if not self.path.exists():
            return
        found = type(self).load(self.path)
        check_settings(self.path, json.loads(json.dumps(self.settings)), found.settings)
        self.rows |= found.rows
        self.commands = list(dict.fromkeys([*found.commands, *self.commands]))
        self.facts = merged(found.facts, self.facts)

    def is_elsewhere(self, row: Mapping[str, Any]) -> bool:
        """Whether a row is of other versions or of another machine than those that added first."""
        return row.get(ABOUT, self.settings[ABOUT]) != self.settings[ABOUT]

    def was_made_here(self, row: Mapping[str, Any]) -> bool:
        """Whether a row is of the versions and the machine of rows that are added now."""
        return row.get(ABOUT, self.settings[ABOUT]) == self.here

    def made(self) -> Iterator[tuple[str, str]]:
        """Yield versions and machine, by name; where there are several, of so many rows each."""
        first = self.settings[ABOUT]
        of_rows = [row.get(ABOUT, first) for row in self.rows.values()] or [first]
        several = [one for n, one in enumerate(of_rows) if one not in of_rows[:n]]
        for one in several:
            rows = f", {of_rows.count(one)} of {len(of_rows)} rows" if len(several) > 1 else ""
            yield from ((f"{name}{rows}", value) for name, value in one.items())
        commits = Counter(row[COMMIT] for row in self.rows.values() if row.get(COMMIT))
        if commits:
            yield COMMIT, ", ".join(f"{name} ({count} rows)" for name, count in commits.items())

    def write(self, **more: Any) -> None:
        """Write the file whole or not at all, with further values beside the rows."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.path, {**more, **self.to_dict()}, self.mode)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        rows = [{"key": list(key)} | row for key, row in self.rows.items()]
        return {
            "settings": self.settings,
            "facts": self.facts,
            "commands": self.commands,
            "rows": rows,
        }


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Be the only process in this block; the others wait, and no file is left behind."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return both; where both have a name the second's value, or what both say by name.

    >>> merged({"tables": {"a": 1, "b": 2}, "n": 3}, {"tables": {"b": 4}, "n": 5})
    {'tables': {'a': 1, 'b': 4}, 'n': 5}
    """
    both = {**first, **second}
    for name in first.keys() & second.keys():
        if isinstance(first[name], dict) and isinstance(second[name], dict):
            both[name] = first[name] | second[name]
    return both


@cache
def commit() -> str:
    """Return which commit of this project runs, and whether its code was changed since.

    It is asked once, before anything is made. Versions alone do not tell two states of one version
    apart. Returns "" outside of a checkout, and within that of another project.
    """
    try:
        if Path(_git("rev-parse", "--show-toplevel")) != HERE:
            return ""
        name = _git("rev-parse", "--short=7", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no", *CODE, f":!{RESULTS}")
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"{name}-dirty" if changed else name


def _git(*arguments: str) -> str:
    asked = ["git", "-C", str(HERE), *arguments]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


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
