"""Twins made from several base models, side by side.

    python -m evaluation.base_models.compare FOLDER

Reads what `twinset evaluate` wrote of each (`TABLE.BASE.json`), and computes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from evaluation.findings import Findings
from evaluation.markdown import table
from evaluation.private_table import BASELINE, REAL, TWIN, TWIN_SMALL
from evaluation.run_command import command, run_command
from twinset.errors import InputError
from twinset.privacy.accounting.accountant import up_decimals
from twinset.release.markdown import plain

HEADER = ("table", "label", "classifier", "base model", "ε", "real", "twin", "no private data")
FIDELITY = "label fidelity"


def bases(
    folder: Annotated[Path, typer.Argument(help="Of TABLE.BASE.json, as `evaluate` writes them.")],
) -> None:
    """Print a Markdown table, then the commands."""
    found = list(_found(folder))
    typer.echo("\n".join(as_markdown(found)))


def as_markdown(found: Sequence[tuple[str, str, Findings]]) -> Iterator[str]:
    """Yield lines.

    Args:
        found: table, base model, and what `twinset evaluate` said of its twin.
    """
    rows = [[*map(plain, row)] for row in sorted(row for one in found for row in _rows(*one))]
    yield from table((*HEADER, FIDELITY), rows, left=4)
    yield ""
    yield from (f"    {findings.about['command']}" for _, _, findings in found)


def _rows(name: str, base: str, findings: Findings) -> Iterator[tuple[str, ...]]:
    epsilon = findings.about["epsilon"]
    spent = "none" if epsilon is None else up_decimals(epsilon)
    for measured in findings.measured:
        place = dict(measured.place)
        if measured.score.name != "accuracy" or place["rows"] != TWIN:
            continue
        where = {key: place[key] for key in ("label", "classifier")}
        real, twin, small, baseline = (
            _cell(findings, "accuracy", rows, where) for rows in (REAL, TWIN, TWIN_SMALL, BASELINE)
        )
        cells = real, twin, f"{baseline}; twin of as many rows {small}" if small else baseline
        fidelity = _cell(findings, FIDELITY, TWIN, where)
        yield (name, *where.values(), base, spent, *cells, fidelity)


def _cell(findings: Findings, score: str, rows: str, where: dict[str, str]) -> str:
    found = findings.find(score, rows=rows, **where)
    return f"{found.value:.3f} ± {(found.high - found.low) / 2:.3f}" if found else ""


def _found(folder: Path) -> Iterator[tuple[str, str, Findings]]:
    files = sorted(folder.glob("*.*.json"))
    if not files:
        raise InputError(f"{folder}: holds no TABLE.BASE.json; name a folder of evaluations")
    for file in files:
        name, _, base = file.name.removesuffix(".json").partition(".")
        yield name, base, Findings.load(file)


if __name__ == "__main__":
    run_command(command(bases))
