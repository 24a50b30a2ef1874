"""Run an experiment of arms and seeds: a CSV that grows, a table with intervals, a picture.

A paper's file defines its arms, how one arm is measured with one seed, and which arms are compared.
Everything else is here. A stopped study continues where it was: rows in the CSV with the same
settings are not computed again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from twinset.errors import InputError

from ..findings import mean

if TYPE_CHECKING:
    import pandas as pd

SIZES = ("tiny", "cpu", "full")
KEY = ["arm", "seed", "settings"]


@dataclass(frozen=True)
class Comparison:
    """Two arms and the figure in which they are compared, seed by seed.

    Args:
        figure: a column of the CSV.
        ours: the arm that the paper's claim is about.
        theirs: the arm that it is compared with.
        as_ratio: compare by ours ÷ theirs, as for perplexities, instead of ours − theirs.
        claim: the paper's claim, in its own words or numbers.
    """

    figure: str
    ours: str
    theirs: str
    as_ratio: bool = False
    claim: str = ""


@dataclass(frozen=True)
class Study:
    """One paper's experiment.

    Args:
        name: of the files of its results.
        title: authors, year and subject.
        claim: the sentence of the paper that is tested.
        files: help of each option that names a file of data.
        sizes: the numbers of each size, "tiny" (minutes), "cpu" (hours) and "full" (as published).
        arms: return the names of the arms for a size.
        load: read the files once. Takes paths by name and the size's numbers.
        measure: train and measure one arm with one seed. Takes the arm, the seed, the result of
            `load` and the size's numbers. Returns numbers only.
        comparisons: what the table compares.
        picture: the figure that is drawn, a column of the CSV.
        logarithmic: whether the picture's axis is logarithmic, as for perplexities.
    """

    name: str
    title: str
    claim: str
    files: Mapping[str, str]
    sizes: Mapping[str, Mapping[str, Any]]
    arms: Callable[[Mapping[str, Any]], Sequence[str]]
    load: Callable[[Mapping[str, Path], Mapping[str, Any]], Any]
    measure: Callable[[str, int, Any, Mapping[str, Any]], Mapping[str, float | str | None]]
    comparisons: Sequence[Comparison]
    picture: str
    logarithmic: bool = False
    notes: Sequence[str] = field(default=())


def main(study: Study) -> None:
    """Run the command of a study. Bad input ends it with one line and exit code 2."""
    try:
        run_study(study)
    except InputError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)


def run_study(study: Study, arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Run the command of a study: compute the missing rows, then table and picture.

    Args:
        study: the experiment.
        arguments: of the command line. None takes those of the process.

    Returns:
        One row for each arm and seed. Empty after `--dry-run`.

    Raises:
        InputError: a file is missing or cannot be read.
    """
    import pandas as pd

    name = f"python -m evaluation.papers.{study.name}"
    parser = argparse.ArgumentParser(name, description=f"{study.title}. {study.claim}")
    for option, text in study.files.items():
        flag = f"--{option.replace('_', '-')}"
        parser.add_argument(flag, type=Path, metavar="FILE", help=text)
    parser.add_argument("--size", choices=SIZES, default="cpu", help="how large; default cpu")
    parser.add_argument("--seeds", type=int, default=3, help="rows of each arm; default 3")
    where = Path("runs") / study.name
    parser.add_argument("--output", type=Path, default=where, help=f"folder; default {where}")
    parser.add_argument("--dry-run", action="store_true", help="print numbers and arms only")
    options = parser.parse_args(arguments)
    size = study.sizes[options.size]
    keys = [(arm, seed) for seed in range(options.seeds) for arm in study.arms(size)]
    if options.dry_run:
        typer.echo(f"{study.title}\n{json.dumps(dict(size), indent=1)}")
        typer.echo("\n".join(study.arms(size)) + f"\n{len(keys)} rows with {options.seeds} seeds")
        return pd.DataFrame()
    paths = {name: getattr(options, name) for name in study.files}
    for name, path in paths.items():
        if path is None or not path.is_file():
            raise InputError(f"--{name.replace('_', '-')}: name a file; {study.files[name]}")
    data = study.load(paths, size)
    # A short hash of the numbers of the size and of the contents of the files.
    digest = hashlib.sha256(json.dumps(dict(size), sort_keys=True).encode())
    for path in paths.values():
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    settings = digest.hexdigest()[:12]
    options.output.mkdir(parents=True, exist_ok=True)
    table = options.output / f"{study.name}.csv"
    rows = pd.read_csv(table) if table.exists() else pd.DataFrame(columns=KEY)
    known = set(rows[rows["settings"] == settings][["arm", "seed"]].itertuples(index=False))
    for number, (arm, seed) in enumerate(keys, start=1):
        if (arm, seed) in known:
            continue
        typer.echo(f"row {number}/{len(keys)} | {arm} | seed {seed}")
        row = {"arm": arm, "seed": seed, "settings": settings}
        row |= study.measure(arm, seed, data, size)
        rows = pd.concat([rows, pd.DataFrame([row])], ignore_index=True)
        rows.to_csv(table, index=False)  # after each row, so that nothing is lost
    rows = rows[rows["settings"] == settings]
    page = "\n".join(report_lines(study, rows, size))
    (options.output / f"{study.name}-table.md").write_text(page + "\n", encoding="utf-8")
    draw_arms(study, rows, options.output / f"{study.name}.png")
    typer.echo(page)
    return rows


def report_lines(study: Study, rows: pd.DataFrame, size: Mapping[str, Any]) -> Iterator[str]:
    """Yield a page in Markdown: arms, comparisons, and how they were made.

    An interval is Student's, 95 %, over seeds. With one seed there is none.
    """
    yield f"# {study.title}\n\nThe claim: “{study.claim}”\n\n## Arms\n"
    figures = [c for c in rows.columns if c not in KEY and rows[c].dtype.kind in "fi"]
    yield "| arm | " + " | ".join(figures) + " | seeds |"
    yield "| --- |" + " ---: |" * (len(figures) + 1)
    for arm, group in rows.groupby("arm", sort=False):
        cells = (format_interval(*mean_interval(group[f].dropna().tolist())) for f in figures)
        yield f"| {arm} | " + " | ".join(cells) + f" | {len(group)} |"
    yield "\n## Comparisons\n"
    yield "| figure | arm | compared with | difference or ratio | the paper |"
    yield "| --- | --- | --- | ---: | --- |"
    for one in study.comparisons:
        interval = format_interval(*compare_arms(rows, one))
        yield f"| {one.figure} | {one.ours} | {one.theirs} | {interval} | {one.claim} |"
    yield f"\n![{study.title}]({study.name}.png)\n"
    yield from (f"- {note}" for note in study.notes)
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "opacus"))
    yield f"- settings: `{json.dumps(dict(size))}`"
    yield f"- versions: {packages}; machine: {platform.machine()}, {platform.system()}"


def compare_arms(rows: pd.DataFrame, one: Comparison) -> tuple[float, float, float]:
    """Return ours less theirs, or ours ÷ theirs, with its interval over the seeds of both.

    Seeds are paired, so variation that both arms share does not widen the interval.
    """
    ours, theirs = (
        rows[rows["arm"] == arm].set_index("seed")[one.figure] for arm in (one.ours, one.theirs)
    )
    seeds = sorted(ours.dropna().index.intersection(theirs.dropna().index))
    pairs = [(float(ours[seed]), float(theirs[seed])) for seed in seeds]
    if not one.as_ratio:
        return mean_interval([a - b for a, b in pairs])
    # A ratio is averaged as a logarithm: half as much and twice as much cancel.
    value, low, high = mean_interval([math.log(a / b) for a, b in pairs])
    return math.exp(value), math.exp(low), math.exp(min(high, 700.0))


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean with its 95 % interval by Student's t.

    >>> mean_interval([1.0, 1.0, 1.0])
    (1.0, 1.0, 1.0)
    >>> mean_interval([2.0])
    (2.0, -inf, inf)
    """
    if not values:
        return math.nan, -math.inf, math.inf
    score = mean("difference", values, "match", -math.inf, math.inf)
    return score.value, score.low, score.high


def format_interval(value: float, low: float, high: float) -> str:
    r"""Return "0.81 \[0.79, 0.83\]", or the value alone where there is no interval."""
    if math.isnan(value):
        return ""
    return f"{value:.3g}" if math.isinf(low) else rf"{value:.3g} \[{low:.3g}, {high:.3g}\]"


def draw_arms(study: Study, rows: pd.DataFrame, path: Path) -> None:
    """Draw one dot for each seed and a line for each arm, into a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    arms = list(dict.fromkeys(rows["arm"]))
    figure, axes = pyplot.subplots(figsize=(8, 1 + 0.35 * len(arms)), layout="constrained")
    for place, arm in enumerate(arms):
        values = rows[rows["arm"] == arm][study.picture].dropna().tolist()
        axes.plot(values, [place] * len(values), "o", color="C0", alpha=0.6)
        if values:
            axes.plot([sum(values) / len(values)], [place], "|", color="black", markersize=18)
    axes.set_yticks(range(len(arms)), arms)
    axes.invert_yaxis()
    axes.set_xlabel(study.picture)
    if study.logarithmic:
        axes.set_xscale("log")
    axes.grid(axis="x", alpha=0.3)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
