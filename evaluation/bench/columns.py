"""How faithful the other columns are, without any text: releases and draws alone.

    python -m evaluation.bench.columns reviews.csv --text review --attribute sentiment

It prints a Markdown table: how far drawn rows are from the table, by single columns and by pairs,
for several ε and seeds, with the time. Two halves of the real table are the ceiling.

Other tools are measured by the same code. `--parts parts.csv` writes the table that they are given,
cut into the parts that are compared. `--twins twin.csv …` measures tables in such parts.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd

from twinset.config import PrivacyConfig, RunConfig
from twinset.config.plan import default_delta, make_plan, plan_selection
from twinset.privacy.accounting.accountant import epsilon
from twinset.privacy.accounting.events import COLUMNS, Event, GaussianRelease
from twinset.privacy.mechanism.gate import Gate
from twinset.privacy.mechanism.randomness import Randomness
from twinset.run.columns import ColumnRelease
from twinset.table.kinds import ColumnRules
from twinset.table.read import read_frame

from ..fidelity.columns import column_distances
from ..utility.columns import Cut
from .runner import publish


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table")
    parser.add_argument("--text", required=True)
    parser.add_argument("--attribute", required=True)
    parser.add_argument("--records", type=int, default=10**9)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[8.0, 1.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--parts", type=Path)
    parser.add_argument("--twins", type=Path, nargs="+", default=[])
    given = parser.parse_args()
    frame = read_frame(given.table)
    frame = frame[frame[given.text].notna() & frame[given.attribute].notna()]
    frame = frame.sample(frac=1, random_state=0).iloc[: given.records].reset_index(drop=True)
    numbers, values = pd.factorize(frame[given.attribute], sort=True)
    others = frame.drop(columns=[given.text, given.attribute])
    if given.parts or given.twins:
        measure_twins(frame.drop(columns=given.text), given.attribute, given.parts, given.twins)
        return
    half, found_names = len(frame) // 2, set[str]()
    lines = [
        f"{len(frame):,} records, {len(values)} labels.",
        "",
        "| ε | of it for columns | seed | one column | worst | two | worst | seconds |",
        "|---:|---:|---:|---:|---|---:|---|---:|",
    ]
    for target in given.epsilons:
        for seed in range(given.seeds):
            privacy = PrivacyConfig(target)
            chosen = plan_selection(len(frame), privacy, others.shape[1], 1, of_labels=False)
            plan = make_plan(len(frame), RunConfig(privacy), None, chosen)
            began, spent = time.perf_counter(), list[Event]()
            gate = Gate(spent.append)
            release = ColumnRelease(
                {str(name): others[name] for name in others},
                numbers.astype(np.int64),
                len(values),
                [[row] for row in range(len(frame))],
                ColumnRules(),
                plan.column_noise,
                chosen,
                gate,
                Randomness.for_tests(seed),
            )
            with gate.parts_of(GaussianRelease(plan.column_noise, COLUMNS)):
                model = release.find_model(np.bincount(numbers).tolist())
            assert model is not None
            # no text is written here: a cell has one or a gap
            texts = [["a line"] * len(model.texts)] * len(numbers)
            twin = model.draw(numbers, seed, texts)
            seconds = time.perf_counter() - began
            own = epsilon(spent, default_delta(len(frame)))
            found = show_distances(*column_distances(others, twin))
            lines.append(f"| {target:g} | {own:.2f} | {seed} | {found} | {seconds:.0f} |")
            found_names |= set(twin)
    kept = others[[name for name in others if name in found_names]]
    ceiling = column_distances(kept.iloc[:half], kept.iloc[half:])
    lines.append(f"| two real halves | | | {show_distances(*ceiling)} | |")
    publish("Other columns", lines, given.output)


def measure_twins(real: pd.DataFrame, label: str, parts: Path | None, twins: list[Path]) -> None:
    """Write a table in parts, and print how far tables in such parts are from it, labels apart."""
    cut = pd.DataFrame({name: Cut.of(real[name]).parts(real[name]) for name in real})
    if parts is not None:
        cut.to_csv(parts, index=False)
    for path in twins:
        twin = pd.read_csv(path, dtype=str, keep_default_na=False).drop(columns=label)
        found = show_distances(*column_distances(cut.drop(columns=label), twin))
        sys.stdout.write(f"| {path.stem} | {found} |\n")


def show_distances(one: dict[str, float], two: dict[tuple[str, str], float]) -> str:
    """Return the means and the largest of one column and of two."""
    worst, pair = max(one, key=lambda n: one[n]), max(two, key=lambda n: two[n])
    return (
        f"{np.mean([*one.values()]):.4f} | {worst} {one[worst]:.3f} | "
        f"{np.mean([*two.values()]):.4f} | {' × '.join(pair)} {two[pair]:.3f}"
    )


if __name__ == "__main__":
    main()
