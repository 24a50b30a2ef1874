"""The runner of all benchmarks: contestants in turn, their ratios, and a table.

Every contestant is measured in its own process, `contestant.py`, which prints JSON. Rounds go over
all contestants in turn, so a machine that becomes slower does so for all. A ratio is taken within a
round. Its median and range over rounds are shown.

`--against CHECKOUT` adds the same measurement of another checkout of twinset, through the public
interface that both have.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import typer

from twinset.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
CONTESTANT = Path(__file__).with_name("contestant.py")
RESULTS = Path(__file__).with_name("results")


@dataclass(frozen=True)
class Contestant:
    """One row of the table.

    Args:
        name: in the table.
        task: a function of `contestant.py`.
        options: its keyword arguments, as plain values for JSON.
        checkout: the folder that twinset is imported from.
    """

    name: str
    task: str
    options: Mapping[str, Any]
    checkout: Path = ROOT


def measure_contestant(one: Contestant, threads: int) -> dict[str, Any]:
    """Run one contestant in its own process. Return its printed result, or why it failed.

    Args:
        one: the contestant.
        threads: of PyTorch and BLAS.

    Returns:
        The result of its function in `contestant.py`, or `{"failed": reason}`.
    """
    counts = {f"{name}_NUM_THREADS": str(threads) for name in ("OMP", "OPENBLAS", "MKL")}
    # A folder on PYTHONPATH comes before an installed twinset, so the checkout decides.
    environment = os.environ | counts | {"PYTHONPATH": str(one.checkout)}
    command = [sys.executable, str(CONTESTANT), one.task, json.dumps(dict(one.options))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["no output"])[-1][:120]}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def run_rounds(
    contestants: Sequence[Contestant], rounds: int, threads: int
) -> dict[str, list[dict[str, Any]]]:
    """Measure every contestant once in each round. Return the results by name."""
    found: dict[str, list[dict[str, Any]]] = {one.name: [] for one in contestants}
    for turn in range(rounds):
        for one in contestants:
            result = measure_contestant(one, threads)
            found[one.name].append(result)
            shown = result.get("failed") or f"{result['rate']:.3g} {result['unit']}"
            typer.echo(f"round {turn + 1}/{rounds} | {one.name} | {shown}", err=True)
    return found


def format_table(found: Mapping[str, Sequence[Mapping[str, Any]]], base: str) -> list[str]:
    """Return a table in Markdown: rates, and ratios to the first contestant, round by round.

    >>> rows = {"a": [{"rate": 2.0, "unit": "x"}], "b": [{"rate": 4.0, "unit": "x"}]}
    >>> format_table(rows, "a")[-1]
    '| b | 4 x | 2.00 (2.00 to 2.00) | |'
    """
    lines = ["| | median rate | ÷ " + base + " (range) | note |", "| --- | ---: | ---: | --- |"]
    for name, results in found.items():
        pairs = [
            (result["rate"], first["rate"])
            for result, first in zip(results, found[base], strict=True)
            if "rate" in result and "rate" in first
        ]
        if not pairs:
            lines.append(f"| {name} | not measured | | {results[0].get('failed', '')} |")
            continue
        ratios = [ours / theirs for ours, theirs in pairs]
        rate = f"{median(ours for ours, _ in pairs):.3g} {results[0]['unit']}"
        ratio = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        lines.append(
            f"| {name} | {rate} | {ratio} | {results[0].get('note', '')} |".replace("  ", " ")
        )
    return lines


def publish(name: str, lines: Sequence[str], output: Path | None) -> None:
    """Print a page, and write it into a folder if one is given.

    Args:
        name: of the page.
        lines: the results.
        output: a folder. None only prints.

    Raises:
        InputError: the folder cannot be written.
    """
    page = "\n".join([f"# {name}", "", *lines, "", *describe_machine()])
    typer.echo(page)
    if output is not None:
        try:
            output.mkdir(parents=True, exist_ok=True)
            (output / f"{name}.md").write_text(page + "\n", encoding="utf-8")
        except OSError as error:
            raise InputError(f"{output}: cannot be written ({error.strerror})") from None


def describe_machine() -> list[str]:
    """Return the conditions of a measurement: command, commit, versions and processor."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    info = Path("/proc/cpuinfo")
    fields = {}
    if info.is_file():
        rows = (line.partition(":") for line in info.read_text().splitlines() if ":" in line)
        fields = {key.strip(): value.strip() for key, _, value in rows}
    units = [u for u in ("amx_tile", "avx512f", "avx2") if u in fields.get("flags", "").split()]
    processor = fields.get("model name", platform.machine())
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "opacus"))
    spec = sys.modules["__main__"].__spec__
    words = [spec.name if spec else sys.argv[0], *sys.argv[1:]]
    return [
        f"- command: `python -m {' '.join(words)}`",
        f"- commit {commit}; {versions}; Python {platform.python_version()}",
        f"- {os.cpu_count()} cores, {processor} ({units[0] if units else 'no AVX2'})",
    ]
