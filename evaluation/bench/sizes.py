"""What the size of a table and ε are worth: accuracy of classifiers that learn from twins.

    python -m evaluation.bench.sizes --train train.csv --test heldout.csv

The arms are tables of several sizes: real rows, and their twins at ε = 1 and 8. One more arm is
rows of the base model without private data. `python -m evaluation.bench.sizes draw CSV SVG` draws
the picture of the docs from the CSV that a run leaves.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from twinset import Twinset

from ..papers.mattern import load_tables
from ..papers.study import Comparison, Study, main
from ..utility.classifiers import make_classifiers
from .arms import ARMS as PARTS
from .arms import NONE, REAL

RECORDS, EPSILONS = (400, 1_600, 6_400), (8.0, 1.0)
CLASSIFIERS = {"tfidf": "words", "minilm": "sentence embeddings"}
CPU: dict[str, Any] = {
    "base_model": "gpt2-mini",
    "records": max(RECORDS),
    "tested": 1_000,
    "rows": 600,
    "max_tokens": 64,
}
SIZES = {
    "tiny": CPU | {"tested": 60, "rows": 16, "max_tokens": 16},
    "cpu": CPU,
    "full": CPU | {"base_model": "smollm2-135m-text", "rows": 6_400},
}


def name_arm(records: int, epsilon: float | None = None) -> str:
    """Return the name of a twin's arm, or of real rows if there is no ε."""
    made = REAL if epsilon is None else f"twin, ε = {epsilon:g}"
    return f"{made}, {records} records"


# By the name of an arm, its records and its ε. Real rows have none.
ARMS = {name_arm(n, e): (n, e) for n in RECORDS for e in (None, *EPSILONS)}
ARMS[NONE] = min(RECORDS), PARTS[NONE]["epsilon"]


def measure_arm(
    arm: str, seed: int, tables: Mapping[str, pd.DataFrame], size: Mapping[str, Any]
) -> dict[str, float | None]:
    """Return the accuracy on real test rows for each classifier, and the guaranteed ε."""
    train, test, (records, epsilon) = tables["train"], tables["test"], ARMS[arm]
    label = train.columns[1]
    values = sorted(train[label].unique())
    rows = train.sample(frac=1, random_state=seed)[:records]
    if epsilon is not None:
        # nothing is fine-tuned, as in a default run of a table of these sizes
        options = PARTS[NONE] if arm == NONE else {"epsilon": epsilon, "steps": 0}
        twinset = Twinset(
            base_model=size["base_model"],
            prompt="film-review",
            max_tokens=size["max_tokens"],
            max_minutes=None,
            seed=seed,
            **options,
        )
        twinset.fit(rows, "text", labels={label: values})
        if arm == NONE:  # equally many rows of each label: its counts of labels are all noise
            counts = dict.fromkeys(zip(values), size["rows"] // len(values))
            rows, epsilon = twinset.model.sample(counts, twinset.config.sampling), None
        else:
            rows, epsilon = twinset.sample(size["rows"]), twinset.guarantee.epsilon
    found = {
        f"accuracy, {CLASSIFIERS[name]}": float(
            (make(seed).fit(rows["text"], rows[label]).predict(test["text"]) == test[label]).mean()
        )
        for name, make in make_classifiers([*CLASSIFIERS]).items()
    }
    return {**found, "epsilon": epsilon}


def draw_curves(table: Path, picture: Path) -> None:
    """Draw accuracy against the number of records: the mean over seeds, and each seed as a dot."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = "twinset"  # the same file from the same numbers
    rows = pd.read_csv(table)
    figure, panels = pyplot.subplots(1, 2, figsize=(8, 3.6), sharey=True, layout="constrained")
    for axes, name in zip(panels, CLASSIFIERS.values(), strict=True):
        figures = rows.groupby("arm")[f"accuracy, {name}"]
        colours = {None: "#444b63", 8.0: "#4f5fa8", 1.0: "#c2553d"}
        for epsilon, colour in colours.items():
            arms = {n: figures.get_group(name_arm(n, epsilon)) for n in RECORDS}
            title = "real rows" if epsilon is None else f"twin, ε = {epsilon:g}"
            axes.plot([*arms], [v.mean() for v in arms.values()], color=colour, label=title)
            for records, values in arms.items():
                axes.plot([records] * len(values), values, "o", color=colour, markersize=4)
        nothing = figures.get_group(NONE).mean()
        axes.axhline(nothing, color="#8b90a5", linestyle="--", label="no private data")
        axes.set(xscale="log", title=f"classifier on {name}", xlabel="records in the table")
        axes.set_xticks(RECORDS, [f"{n:,}" for n in RECORDS])
        axes.minorticks_off()
        axes.grid(axis="y", alpha=0.3)
    panels[0].set_ylabel("accuracy on real rows")
    panels[1].legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(picture, metadata={"Date": None})
    pyplot.close(figure)


STUDY = Study(
    name="sizes",
    title="What the size of a table and ε are worth",
    claim="more records help at any ε",
    files={
        "train": "a table with text and sentiment, of at least 6,400 rows",
        "test": "real rows that no twin is made of",
    },
    sizes=SIZES,
    arms=lambda size: [*ARMS],
    load=load_tables,
    measure=measure_arm,
    comparisons=[
        Comparison(f"accuracy, {name}", name_arm(n, e), other)
        for name in CLASSIFIERS.values()
        for e in EPSILONS
        for n in RECORDS
        for other in (NONE, name_arm(n))
    ],
    picture="accuracy, words",
)

if __name__ == "__main__":
    if sys.argv[1:2] == ["draw"]:
        draw_curves(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        main(STUDY)
