"""What each part of a twin adds: accuracy of a classifier that learns from its rows.

    python -m evaluation.bench.arms --train train.csv --test heldout.csv

The arms are real rows, rows of the base model without private data, and three twins: of noisy word
counts alone, of counts and the private teacher (the default for small tables), and with training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from twinset import Twinset

from ..papers.mattern import load_tables, score_classifier
from ..papers.study import Comparison, Study, main

REAL, NONE, WORDS, DEFAULT, TRAINED = (
    "real rows",
    "no private data",
    "word counts",
    "word counts and teacher",
    "word counts, teacher and training",
)
ARMS: dict[str, dict[str, Any]] = {
    NONE: {"epsilon": 1e-3, "steps": 0, "marginal_share": 0.0, "teacher_share": 0.0},
    WORDS: {"steps": 0, "teacher_share": 0.0},
    DEFAULT: {"steps": 0},
    TRAINED: {"steps": 8},
}
SMALL: dict[str, Any] = {
    "base_model": "gpt2-mini",
    "records": 120,
    "tested": 60,
    "rows": 16,
    "epsilon": 8.0,
    "max_tokens": 16,
}
SIZES: dict[str, dict[str, Any]] = {
    "tiny": SMALL,
    "cpu": SMALL | {"records": 3_200, "tested": 600, "rows": 600, "max_tokens": 64},
    "full": SMALL
    | {
        "base_model": "smollm2-135m-text",
        "records": 3_200,
        "tested": None,
        "rows": 600,
        "max_tokens": 64,
    },
}


def measure_arm(
    arm: str, seed: int, tables: Mapping[str, pd.DataFrame], size: Mapping[str, Any]
) -> dict[str, float | None]:
    """Return TF-IDF's accuracy on real test rows for each label, and the guaranteed ε."""
    train, test = tables["train"], tables["test"]
    labels, epsilon = list(train.columns[1:]), None
    if arm == REAL:
        rows = train
    else:
        options = {"epsilon": size["epsilon"], **ARMS[arm]}
        twinset = Twinset(
            base_model=size["base_model"],
            prompt="product-review" if "product" in labels else "film-review",
            max_tokens=size["max_tokens"],
            max_redraws=1_000,
            max_minutes=None,
            seed=seed,
            **options,
        )
        twinset.fit(train, "text", labels)
        rows = twinset.sample(size["rows"])
        epsilon = twinset.guarantee.epsilon
    accuracies = {f"accuracy, {name}": score_classifier(rows, test, name) for name in labels}
    return {**accuracies, "epsilon": epsilon}


STUDY = Study(
    name="arms",
    title="What each part of a twin is worth",
    claim="small tables are best learned by noisy word counts and a private classifier",
    files={
        "train": "a table to make twins of, with text, sentiment and perhaps product",
        "test": "real rows that no twin is made of",
    },
    sizes=SIZES,
    arms=lambda size: (REAL, *ARMS),
    load=load_tables,
    measure=measure_arm,
    comparisons=[
        Comparison("accuracy, sentiment", ours, theirs)
        for ours, theirs in ((DEFAULT, REAL), (DEFAULT, NONE), (DEFAULT, WORDS), (TRAINED, DEFAULT))
    ],
    picture="accuracy, sentiment",
)

if __name__ == "__main__":
    main(STUDY)
