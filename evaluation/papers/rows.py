"""An experiment's finished rows: a JSON file that grows row by row, of one set of settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from twinset.artefact import write_json
from twinset.errors import InputError
from twinset.surroundings import machine, versions

Key = tuple[str | float, ...]


@dataclass
class Rows:
    """All rows made under the same settings.

    Args:
        path: where they are kept.
        settings: everything that a row depends on, but its key.
        commands: that the rows came from.
        facts: what else a reader should know.
        rows: by key, whose last is the seed: plain values, ready for JSON.
        summary: the line in a table of all papers, once all rows are there.
    """

    path: Path
    settings: Mapping[str, Any]
    commands: list[str]
    facts: dict[str, Any] = field(default_factory=dict)
    rows: dict[Key, dict[str, Any]] = field(default_factory=dict)
    summary: dict[str, str] | None = None

    @classmethod
    def open(cls, path: Path, settings: Mapping[str, Any], command: str) -> Rows:
        """Take in the rows that a file holds, if there is one.

        Raises:
            InputError: it is none of ours, or its rows were made under other settings.
        """
        settings = json.loads(json.dumps({**settings, "about": about()}))
        if not path.exists():
            return cls(path, settings, [command])
        try:
            kept = json.loads(path.read_text("utf-8"))
            rows = {tuple(row.pop("key")): row for row in kept["rows"]}
            theirs, commands, facts = kept["settings"], kept["commands"], kept["facts"]
            names = [n for n in settings | theirs if settings.get(n) != theirs.get(n)]
        except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
            raise InputError(f"{path}: holds no results; name another --output") from error
        if names:
            raise InputError(
                f"{path}: its rows were made with other settings ({', '.join(names)}); name "
                "another --output, or take the file away"
            )
        return cls(path, settings, list(dict.fromkeys([*commands, command])), facts, rows)

    def by_seed(self, *level: str | float) -> dict[int, dict[str, Any]]:
        """Return the rows whose key is `level` and then a seed."""
        return {int(key[-1]): row for key, row in self.rows.items() if key[:-1] == level}

    def add(self, key: Key, row: Mapping[str, Any]) -> None:
        """Add a row, and write the file."""
        self.rows[key] = dict(row)
        self.write()

    def write(self) -> None:
        """Write the file whole, or not at all."""
        rows = [{"key": list(key)} | row for key, row in self.rows.items()]
        kept = {
            "summary": self.summary,
            "settings": self.settings,
            "facts": self.facts,
            "commands": self.commands,
            "rows": rows,
        }
        write_json(self.path, kept, mode=0o600)


def about() -> dict[str, str]:
    """Return versions and machine, a line each."""
    here = machine()
    return {
        "versions": ", ".join(f"{name} {version}" for name, version in versions().items()),
        "machine": f"{here['cpu']}, {here['cores']} cores",
    }
