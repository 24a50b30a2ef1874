"""What the size of a table and ε are worth, and from which size on training pays.

    python -m evaluation.bench.sizes --train train.csv --test heldout.csv

The arms are tables of several sizes: all their real rows, and 1,000 rows of twins at ε = 1 and 8,
without training and with eight large private steps of the same ε. One more arm is rows of the base
model without private data. `python -m evaluation.bench.sizes draw CSV SVG` draws the picture of the
docs from the CSV that a run leaves.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from twinset.errors import InputError

from ..papers.study import Comparison, Study, main
from .arms import CPU, DEFAULT, NONE, REAL, TRAINED, load_cut_tables
from .arms import measure_arm as measure_part

RECORDS, EPSILONS = (400, 1_600, 6_400, 12_500), (8.0, 1.0)
FIGURES = {
    "accuracy, all labels, tfidf": "accuracy of a classifier on words",
    "accuracy, all labels, minilm": "of one on sentence embeddings",
    "MAUVE": "MAUVE, logarithmic",
}
SMALL: dict[str, Any] = {
    **CPU,
    "prompt": "Write a {sentiment} review:",
    "records": max(RECORDS),
    "tested": 1_000,
    "rows": 1_000,
}
SIZES = {
    "tiny": SMALL | {"records": min(RECORDS), "tested": 60, "rows": 16, "max_tokens": 16},
    "cpu": SMALL,
    "full": SMALL | {"base_model": "smollm2-135m-text", "rows": 6_400},
}
# By the name of a kind of arm, what it is made by, and its ε. Real rows have none.
KINDS: dict[str, tuple[str, float | None]] = {REAL: (REAL, None)}
for each in EPSILONS:
    KINDS[f"twin, ε = {each:g}"] = DEFAULT, each
    KINDS[f"trained twin, ε = {each:g}"] = TRAINED, each
# By the name of an arm, the same and its records.
ARMS = {f"{kind}, {n} records": (*made, n) for n in RECORDS for kind, made in KINDS.items()}
ARMS[NONE] = NONE, None, min(RECORDS)


def measure_arm(
    arm: str, seed: int, tables: Mapping[str, pd.DataFrame], size: Mapping[str, Any]
) -> dict[str, float | None]:
    """Return students' accuracies on real test rows, MAUVE, and the guaranteed ε."""
    part, epsilon, records = ARMS[arm]
    kept = tables["train"].sample(frac=1, random_state=seed).index[:records]
    some = {name: tables[name].loc[kept] for name in ("private", "train")}
    rows = records if part == REAL else size["rows"]
    return measure_part(part, seed, {**tables, **some}, {**size, "epsilon": epsilon, "rows": rows})


def load_large_tables(paths: Mapping[str, Path], size: Mapping[str, Any]) -> dict[str, Any]:
    """Read the tables that arms are cut from. InputError: one is smaller than the largest arm."""
    tables = load_cut_tables(paths, size)
    if (rows := len(tables["train"])) < size["records"]:
        raise InputError(f"--train: has {rows} rows with labels. Arms need {size['records']}.")
    return tables


def draw_curves(table: Path, picture: Path) -> None:
    """Draw each figure against the number of records: means over seeds, each seed as a dot."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = "twinset"  # the same file from the same numbers
    rows = pd.read_csv(table)
    figure, panels = pyplot.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
    colours = {None: "#444b63", 8.0: "#4f5fa8", 1.0: "#c2553d"}
    for axes, (name, title) in zip(panels, FIGURES.items(), strict=True):
        figures = rows.groupby("arm")[name]
        for kind, (part, epsilon) in KINDS.items():
            arms = {n: figures.get_group(f"{kind}, {n} records") for n in RECORDS}
            colour, style = colours[epsilon], "--" if part == DEFAULT else "-"
            means = [values.mean() for values in arms.values()]
            axes.plot([*arms], means, style, label=kind, color=colour)
            for records, values in arms.items():
                axes.plot([records] * len(values), values, "o", markersize=3, color=colour)
        axes.axhline(figures.get_group(NONE).mean(), color="#8b90a5", linestyle=":", label=NONE)
        axes.set(xscale="log", title=title, xlabel="records in the table")
        axes.set_yscale("log" if name == "MAUVE" else "linear")
        axes.set_xticks(RECORDS, [f"{n:,}" for n in RECORDS], fontsize=8)
        axes.minorticks_off()
        axes.grid(axis="y", alpha=0.3)
    panels[-1].legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(picture, metadata={"Date": None})
    pyplot.close(figure)


STUDY = Study(
    name="sizes",
    title="What the size of a table and ε are worth",
    claim="more records help at any ε",
    files={
        "train": f"a table with text and sentiment, of at least {max(RECORDS):,} rows. If there is "
        "a column 'product', labels are joined and the prompt is `product-review`",
        "test": "real rows that no twin is made of",
    },
    sizes=SIZES,
    arms=lambda size: [arm for arm, (*_, records) in ARMS.items() if records <= size["records"]],
    load=load_large_tables,
    measure=measure_arm,
    comparisons=[
        Comparison(figure, ours, theirs)
        for figure in FIGURES
        for e in EPSILONS
        for n in RECORDS
        for twin in [f"twin, ε = {e:g}, {n} records"]
        for ours, theirs in (
            (twin, NONE),
            (twin, f"{REAL}, {n} records"),
            (f"trained {twin}", twin),
        )
    ],
    picture="accuracy, all labels, tfidf",
)

if __name__ == "__main__":
    if sys.argv[1:2] == ["draw"]:
        draw_curves(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        main(STUDY)
