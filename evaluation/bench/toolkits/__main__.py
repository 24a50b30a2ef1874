"""`python -m evaluation.bench.toolkits`: other toolkits beside twinset, or a part of the page.

The same command resumes; one that asks for other parts adds to what its output holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from evaluation.bench.arms.plan import ONCE, check_known
from evaluation.bench.arms.tables import read_table
from evaluation.bench.growing_page import write_page
from evaluation.bench.toolkits.measuring import REAL, Measuring
from evaluation.bench.toolkits.page import Page
from evaluation.bench.toolkits.plan import Measurement, Stated
from evaluation.bench.toolkits.running import Failed
from evaluation.results_store import ResultsStore, check_settings
from evaluation.run_command import command, command_line, resumable, run_command
from twinset.errors import InputError
from twinset.progress import Progress

FAILED, ASKED = "failed", "asked"
BASE = "gpt2-mini"  # quick enough for every toolkit on two cores


def main(
    tables: Annotated[Path | None, typer.Option(help="Folder of the public tables.")] = None,
    output: Annotated[Path, typer.Option(help="Folder of environments and rows.")] = Path(
        "runs/toolkits"
    ),
    results: Annotated[
        Path | None,
        typer.Option(help="Of toolkits.json, which grows, and the page; else `--output`."),
    ] = None,
    copies: Annotated[Path, typer.Option(help="Folder with copies of repositories.")] = Path(
        "runs/copies"
    ),
    size: Annotated[str, typer.Option(help="tiny or usual; see toolkits.toml.")] = "usual",
    only: Annotated[list[str] | None, typer.Option(help="A table; repeat it.")] = None,
    epsilon: Annotated[list[float] | None, typer.Option(help="Repeat it.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Repeat it.")] = None,
    toolkit: Annotated[list[str] | None, typer.Option(help="Repeat it.")] = None,
    base_model: Annotated[str, typer.Option(help="Of all toolkits that take one.")] = BASE,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be run.")] = False,
    page: Annotated[
        bool, typer.Option("--page", help="Write the page again, run nothing.")
    ] = False,
) -> None:
    """Measure all toolkits on all tables, and write the page."""
    stated = Stated.read(size)
    part = Part(only or (), epsilon or (), seed or (), toolkit or ())
    part.check(stated)
    settings = {"size": size, "sizes": dict(stated.size), "base model": base_model}
    kept, line = results or output, command_line("evaluation.bench.toolkits")
    store = ResultsStore.resume(kept / "toolkits.json", settings, line, elsewhere=True)
    wanted = [key for key in stated.measurements() if part.holds(key)]
    left = [key for key in wanted if needs_run(store, stated, key)]
    if dry_run:
        typer.echo("\n".join(" | ".join(map(str, key)) for key in left))
        return
    if page:
        store.commands.remove(line)  # it makes no row
    else:
        output.mkdir(parents=True, exist_ok=True)
        made_by = stated, store, base_model, copies, output
        with resumable() as progress:
            Work(*made_by, progress).run(left, tables)
    write_page(store, lambda found: Page(found, stated))


@dataclass(frozen=True)
class Part:
    """What of the page is asked for; empty: all of it."""

    tables: Sequence[str]
    epsilons: Sequence[float]
    seeds: Sequence[int]
    toolkits: Sequence[str]

    def check(self, stated: Stated) -> None:
        """Refuse what the page does not hold.

        Raises:
            InputError: it names what it does.
        """
        check_known("`only`", self.tables, stated.tables)
        check_known("`epsilon`", self.epsilons, stated.size["epsilons"])
        check_known("`seed`", self.seeds, stated.size["seeds"])
        check_known("`toolkit`", self.toolkits, [toolkit.name for toolkit in stated.run])

    def holds(self, key: Measurement) -> bool:
        """Whether a measurement is asked for; what has no ε is part of each."""
        return (
            key.table in (self.tables or [key.table])
            and key.toolkit in (self.toolkits or [key.toolkit])
            and (key.epsilon == ONCE or key.epsilon in (self.epsilons or [key.epsilon]))
            and key.seed in (self.seeds or [key.seed])
        )


def needs_run(store: ResultsStore, stated: Stated, key: Measurement) -> bool:
    """Whether a measurement is missing, failed, or was made with other options."""
    known = store.rows.get(tuple(key), {FAILED: ""})
    return FAILED in known or known[ASKED] != stated.options(stated.toolkit(key.toolkit))


@dataclass(frozen=True)
class Work:
    """Fills a store with what is missing, table by table."""

    stated: Stated
    store: ResultsStore
    base_model: str
    copies: Path
    output: Path
    progress: Progress

    def run(self, left: Sequence[Measurement], folder: Path | None) -> None:
        """Make every measurement that is left; one that fails is named on the page.

        Raises:
            InputError: no folder of tables is named.
        """
        if folder is None:
            raise InputError("`tables`: name the folder of the public tables")
        for name in dict.fromkeys(key.table for key in left):
            stated, size = self.stated.tables[name], self.stated.size
            table = read_table(name, stated, folder, size, "test", self.progress.say)
            known: dict[str, Any] = self.store.facts.setdefault("tables", {})
            check_settings(self.store.path, table.facts(), known.get(name, table.facts()))
            known[name] = table.facts()
            args = self.stated, self.base_model, self.copies, self.output, self.progress
            measuring = Measuring(table, *args)
            for key in (key for key in left if key.table == name):
                self._real(measuring, key.table, key.seed)
                self._add(measuring, key)

    def _real(self, measuring: Measuring, table: str, seed: int) -> None:
        key = table, ONCE, REAL, seed
        if key not in self.store.rows:
            self.store.add(key, measuring.real(seed))

    def _add(self, measuring: Measuring, key: Measurement) -> None:
        self.progress.say(" | ".join(map(str, key)))
        asked = self.stated.options(self.stated.toolkit(key.toolkit))
        try:
            row = measuring.row(key)
        except (Failed, InputError) as error:
            self.progress.warn(f"{key.toolkit}: {error}")
            row = {FAILED: str(error)}
        self.store.add(tuple(key), {ASKED: asked, **row})


if __name__ == "__main__":
    run_command(command(main))
