"""What commands share: their arguments, the options of a run, and how results are printed.

Knows nothing of any single command.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from twinset.config import RunConfig
    from twinset.run.request import OutputPaths, Result, Source
    from twinset.sampling.allocation import RowsRequest
    from twinset.table.read import Layout

Data = Annotated[
    str,
    typer.Argument(
        help="CSV, TSV, Excel, Parquet, Feather, JSON or JSONL file, data-set folder or hub name; "
        "- reads standard input."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Stop after the plan; write nothing.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
OF_REAL_ROWS = ("text", "attribute", "delimiter", "encoding")  # options of what measures a twin
LogFile = Annotated[
    Path | None, typer.Option(help="Append progress to this file: for the table's owner alone.")
]
Policies = Annotated[str, typer.Option(help="Noise policies; none: without privacy.")]
Test = Annotated[str | None, typer.Option(help="Real rows, held out; else a fifth.")]


def listed(text: str) -> tuple[str, ...]:
    """Return the names between commas, each once.

    >>> listed("uniform, none,uniform")
    ('uniform', 'none')
    """
    return tuple(dict.fromkeys(name.strip() for name in text.split(",")))


def source_of(data: str, given: dict[str, Any]) -> Source:
    """Return the table that the options name."""
    from twinset.commandline.flags import read_columns
    from twinset.run.request import Source
    from twinset.table.labels import LabelRules

    labels = LabelRules(
        read_columns(given.get("labels", ()), "labels"),
        read_columns(given.get("bins", ()), "bins"),
        given.get("merge_labels", False),
        given.get("drop_undeclared", False),
    )
    # `--attribute` is given once for each label column, hence the singular
    same = "text split drop_empty prompt owner delimiter encoding strict hold_out".split()
    names = {name: name for name in same} | {"attribute": "attributes"}
    return Source(data, **{names[k]: v for k, v in given.items() if k in names}, labels=labels)


def request_of(
    given: dict[str, Any], any_policy: bool = False
) -> tuple[RunConfig, RowsRequest, OutputPaths]:
    """Return the options of the model, how many rows are asked for, and where results go."""
    from twinset.config.options import run_config, run_options
    from twinset.run.request import OutputPaths
    from twinset.sampling.allocation import RowsRequest

    config = run_config(run_options(given), any_policy)
    same = ("format", "overwrite", "resume", "accept_spend")
    places: dict[str, Any] = {name: given[name] for name in same if name in given}
    places |= {name: Path(given[name]) for name in ("run", "output") if name in given}
    paths = OutputPaths(**places, guard_formulas=not given.get("no_formula_guard", False))
    rows = RowsRequest(given.get("rows"), given.get("rows_per_label", ()), given.get("plan_file"))
    return config, rows, paths


def layout_of(given: dict[str, Any]) -> Layout:
    """Return how files of real rows are to be read."""
    from twinset.table.read import Layout

    return Layout(given.get("encoding"), given.get("delimiter"))


def check_tables_there(*paths: Path | None) -> None:
    """Refuse missing files before anything slow is imported."""
    from twinset.run.request import check_there

    for path in filter(None, paths):
        check_there(path)


def show(data: Any, lines: Iterable[str], as_json: bool) -> None:
    """Print plain values as JSON, or the lines that say the same to people."""
    typer.echo(json.dumps(data, ensure_ascii=False, default=str) if as_json else "\n".join(lines))


def show_result(result: Result, as_json: bool) -> None:
    """Print what a run made and what is guaranteed of it."""
    from twinset.privacy.statement.wording import paragraphs

    claim = result.guarantee
    made: dict[str, Any] = {"run": result.run, "twin": result.twin, "rows": result.rows}
    lines = [f"{name}: {value}" for name, value in made.items() if value]
    stated = {"epsilon": claim.epsilon, "delta": claim.delta, "guarantee": claim.sentence}
    show(made | stated, [*lines, *paragraphs(claim.sentence)], as_json)
