"""`python -m evaluation.bench.arms`: the page of all arms, or the part of it that is asked for.

The same command resumes; one that asks for other parts adds to what its output holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import typer

from evaluation.bench.arms.measuring import Measuring
from evaluation.bench.arms.page import Page
from evaluation.bench.arms.plan import ONCE, Measurement, Stated, check_known
from evaluation.bench.arms.runs import take_finished
from evaluation.bench.arms.tables import SPLITS, Table, read_table
from evaluation.bench.growing_page import write_page
from evaluation.results_store import ResultsStore, check_settings
from evaluation.run_command import command, command_line, resumable, run_command
from twinset.errors import InputError
from twinset.progress import Progress

TAKEN = "default"  # the run of arms.toml that a finished run folder may stand for


@dataclass(frozen=True)
class Part:
    """What of the page is asked for; empty: all of it."""

    tables: Sequence[str] = ()
    epsilons: Sequence[float] = ()
    seeds: Sequence[int] = ()
    rows: Sequence[str] = ()
    arms: Sequence[str] = ()

    def check(self, stated: Stated) -> None:
        """Refuse what the page does not hold.

        Raises:
            InputError: it names what it does.
        """
        check_known("`only`", self.tables, stated.tables)
        check_known("`epsilon`", self.epsilons, stated.size["epsilons"])
        check_known("`seed`", self.seeds, stated.size["seeds"])
        check_known("`rows`", self.rows, stated.size["rows"])
        check_known("`arm`", self.arms, [arm.name for arm in stated.arms])

    def holds(self, key: Measurement, stated: Stated) -> bool:
        """Whether a measurement is asked for; what no ε or seed moves is part of each."""
        curve = key.rows in stated.size["rows"]
        return (
            key.table in (self.tables or [key.table])
            and key.arm in (self.arms or [key.arm])
            and (not curve or key.rows in (self.rows or [key.rows]))
            and (key.epsilon == ONCE or key.epsilon in (self.epsilons or [key.epsilon]))
            and (key.epsilon == ONCE and key.seed == 0 or key.seed in (self.seeds or [key.seed]))
        )


def main(
    tables: Annotated[Path | None, typer.Option(help="Folder of the public tables.")] = None,
    output: Annotated[Path, typer.Option(help="Folder of runs and their rows.")] = Path(
        "runs/arms"
    ),
    results: Annotated[
        Path | None, typer.Option(help="Of arms.json, which grows, and arms.md; else `--output`.")
    ] = None,
    size: Annotated[str, typer.Option(help="tiny, small, usual or full; see arms.toml.")] = "usual",
    only: Annotated[list[str] | None, typer.Option(help="A table; repeat it.")] = None,
    epsilon: Annotated[list[float] | None, typer.Option(help="Repeat it.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Repeat it.")] = None,
    rows: Annotated[list[str] | None, typer.Option(help="600, N or 2N; repeat it.")] = None,
    arm: Annotated[list[str] | None, typer.Option(help="An arm; repeat it.")] = None,
    student: Annotated[
        list[str] | None, typer.Option(help="Instead of the size's; later ones are added.")
    ] = None,
    split: Annotated[str, typer.Option(help="test; dev: training rows, for tuning.")] = "test",
    base_model: Annotated[str | None, typer.Option(help="Instead of the default.")] = None,
    run_folder: Annotated[
        Path | None, typer.Option(help="Finished run of the one cell asked for, made alike.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be run.")] = False,
    page: Annotated[
        bool, typer.Option("--page", help="Write the page again, run nothing.")
    ] = False,
) -> None:
    """Measure all arms on all tables, and write the page."""
    stated, part = (
        Stated.read(size),
        Part(only or (), epsilon or (), seed or (), rows or (), arm or ()),
    )
    if student:
        stated = replace(stated, size={**stated.size, "students": student})
    part.check(stated)
    check_known("`split`", [split], SPLITS)
    options = stated.size["options"] | ({"base_model": base_model} if base_model else {})
    fixed = {name: value for name, value in stated.size.items() if name != "students"}
    settings = {"size": size, "sizes": fixed, "split": split, "options": options}
    kept, line = results or output, command_line("evaluation.bench.arms")
    store = ResultsStore.resume(kept / "arms.json", settings, line, elsewhere=True)
    wanted = [m for m in stated.measurements() if part.holds(m, stated)]
    if dry_run:
        typer.echo("\n".join(" | ".join(map(str, key)) for _, key in store.missing(wanted)))
        return
    if page:
        store.commands.remove(line)  # it makes no row
    else:
        output.mkdir(parents=True, exist_ok=True)
        asked = wanted, tables, split, run_folder
        with resumable() as progress:
            Work(stated, store, options, output, progress).run(*asked)
    write_page(store, lambda found: Page(found, stated))


@dataclass(frozen=True)
class Work:
    """Fills a store with what is missing, table by table."""

    stated: Stated
    store: ResultsStore
    options: dict[str, Any]
    output: Path
    progress: Progress

    def run(
        self,
        wanted: Sequence[Measurement],
        folder: Path | None,
        split: str,
        run_folder: Path | None,
    ) -> None:
        """Make every measurement that is missing; a table that is not there is left out.

        Raises:
            InputError: no folder of tables is named, or the run folder fits no single cell.
        """
        if folder is None:
            raise InputError("`tables`: name the folder of the public tables")
        cells = {(m.table, m.epsilon, m.seed) for m in wanted if m.epsilon != ONCE}
        if run_folder and len(cells) != 1:
            raise InputError("`run_folder` is of one cell: name it by `only`, `epsilon` and `seed`")
        for name in dict.fromkeys(m.table for m in wanted):
            try:
                found = self.stated, self.stated.tables[name], self.stated.size
                table = read_table(name, found[1], folder, found[2], split, self.progress.say)
            except InputError as error:
                self.progress.warn(f"{name} is left out: {error}")
                continue
            self._measure(table, [m for m in wanted if m.table == name], run_folder)

    def _measure(
        self, table: Table, wanted: Sequence[Measurement], run_folder: Path | None
    ) -> None:
        known: dict[str, Any] = self.store.facts.setdefault("tables", {})
        check_settings(self.store.path, table.facts(), known.get(table.name, table.facts()))
        known[table.name] = table.facts()
        place = self.output / table.name
        place.mkdir(parents=True, exist_ok=True)
        measuring = Measuring(table, self.stated, self.options, place, self.progress)
        if run_folder:
            epsilon, seed = next((m.epsilon, m.seed) for m in wanted if m.epsilon != ONCE)
            cell = measuring.cell(epsilon, seed)
            take_finished(run_folder, cell, TAKEN, self.stated.runs[TAKEN])
        rows = self.store.rows
        left = [m for m in wanted if m not in rows or measuring.lacking(rows[m])]
        for number, key in enumerate(left, start=1):
            turn, began = f"{number} of {len(left)}", monotonic()
            self.progress.say(f"{turn}: {' | '.join(map(str, key))}")
            found = rows.get(key)
            # What was made elsewhere is made again: its rows are not at hand, and would differ.
            ours = found if found and self.store.was_made_here(found) else None
            self.store.add(tuple(key), measuring.row(key, ours))
            self.progress.say(f"{turn}: took {(monotonic() - began) / 60:.1f} minutes")


if __name__ == "__main__":
    run_command(command(main))
