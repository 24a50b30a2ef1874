"""Twins of labelled reviews: Mattern, Jin, Weggenmann, Schölkopf and Sachan 2022, by `Twinset`.

"Differentially Private Language Models for Secure Data Sharing": a twin of 25, 50 or all records at
ε = 3, 8 and without privacy. A classifier of the twin is compared with one of the real table, and
with one of rows that the base model writes without any private data.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from twinset import Twinset

from .study import Comparison, Study, main

REAL, NONE, TWIN = "real rows", "no private data", "twin"
RECORDS = ("25", "50", "all")
EPSILONS = {"ε = 3": 3.0, "ε = 8": 8.0, "no privacy": None}
ATTRIBUTES = ("sentiment", "product")  # those of these that the table has

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {
        "base_model": "gpt2-mini",
        "records": 60,
        "tested": 40,
        "rows": 12,
        "training": {"steps": 2, "batch_size": 16, "max_tokens": 16, "max_redraws": 1_000},
    },
    "cpu": {
        "base_model": "gpt2-mini",
        "records": 2_500,
        "tested": 600,
        "rows": 200,
        "training": {"steps": 16, "max_tokens": 40, "learning_rate": 8e-3},
    },
    # The scripts: GPT-2, batches of 8, three passes, learning rate 8e-6, C = 0.1, 500 tokens.
    "full": {
        "base_model": "gpt2",
        "records": 5_000,
        "tested": None,
        "rows": 6_000,
        "training": {"steps": 1_875, "batch_size": 8, "max_tokens": 500, "learning_rate": 8e-6},
    },
}


def list_arms(size: Mapping[str, Any]) -> list[str]:
    """Return real rows, rows without private data, and each twin."""
    twins = [f"{TWIN} of {n}, {privacy}" for n in RECORDS for privacy in EPSILONS]
    return [*(f"{REAL}, {n}" for n in RECORDS), NONE, *twins]


def load_tables(paths: Mapping[str, Path], size: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """Return the reviews to train on and to test on, with their label columns."""
    found = {}
    for name, most in (("train", size["records"]), ("test", size["tested"])):
        frame = pd.read_csv(paths[name])
        columns = ["text", *(a for a in ATTRIBUTES if a in frame)]
        frame = frame[columns].dropna()
        found[name] = frame.sample(min(most or len(frame), len(frame)), random_state=0)
    return found


def draw_balanced(train: pd.DataFrame, records: int, seed: int) -> pd.DataFrame:
    """Return this many rows, with label combinations as balanced as possible."""
    labels = list(train.columns[1:])
    mixed = train.sample(frac=1, random_state=seed)
    turn = mixed.groupby(labels).cumcount().sort_values(kind="stable")
    return mixed.loc[turn.index[:records]]


def measure_arm(
    arm: str, seed: int, tables: Mapping[str, pd.DataFrame], size: Mapping[str, Any]
) -> dict[str, float | None]:
    """Return the accuracy of a TF-IDF classifier for each label, trained on the arm's rows."""
    train, test = tables["train"], tables["test"]
    labels, epsilon = list(train.columns[1:]), None
    if arm.startswith(REAL):
        records = arm.rpartition(", ")[2]
        rows = train if records == "all" else draw_balanced(train, int(records), seed)
    else:
        what, _, privacy = arm.rpartition(", ")
        records = what.rpartition(" ")[2]
        few = arm == NONE or records == "all"
        private = train if few else draw_balanced(train, int(records), seed)
        options = {"epsilon": EPSILONS.get(privacy), "method": "lora", **size["training"]}
        if arm == NONE:  # one spends as little as it can, and trains nothing
            options |= {"epsilon": 1e-3, "steps": 0}
        elif "batch_size" not in options:
            options["batch_size"] = max(1, len(private) // 4 if few else len(private))
        twinset = Twinset(
            base_model=size["base_model"],
            private=options["epsilon"] is not None,
            prompt="product-review" if "product" in labels else "film-review",
            marginal_share=0.0,  # the paper releases no counts of words
            teacher_share=0.0,
            max_minutes=None,
            seed=seed,
            **options,
        )
        twinset.fit(private, "text", labels)
        combinations = [tuple(c) for c in train[labels].drop_duplicates().to_numpy()]
        # Equally many rows of each combination: noisy counts of 25 records say nothing.
        counts = dict.fromkeys(combinations, size["rows"] // len(combinations))
        rows = twinset.model.sample(counts, twinset.config.sampling)
        epsilon = None if arm == NONE else twinset.guarantee.epsilon
    found = {f"accuracy, {label}": score_classifier(rows, test, label) for label in labels}
    return {**found, "epsilon": epsilon}


def score_classifier(rows: pd.DataFrame, test: pd.DataFrame, label: str) -> float:
    """Return the accuracy on real rows of TF-IDF and logistic regression trained on others."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    if rows[label].nunique() < 2:
        return float((test[label] == rows[label].iloc[0]).mean())
    model = make_pipeline(TfidfVectorizer(sublinear_tf=True), LogisticRegression(max_iter=1_000))
    model.fit(rows["text"], rows[label])
    return float(model.score(test["text"], test[label]))


STUDY = Study(
    name="mattern",
    title="Twins of labelled reviews: Mattern, Jin, Weggenmann, Schölkopf and Sachan (2022)",
    claim="from only a very limited amount of training samples such as 25 or 50, our generated "
    "data is of high quality and the classifiers trained on it achieve accuracies only ∼3% lower "
    "than those trained on the full original dataset",
    files={
        "train": "reviews to train on: a table with text, sentiment and perhaps product",
        "test": "reviews to test on",
    },
    sizes=SIZES,
    arms=list_arms,
    load=load_tables,
    measure=measure_arm,
    comparisons=[
        Comparison("accuracy, sentiment", f"{TWIN} of {n}, {privacy}", other, claim=claim)
        for n, privacy in (("25", "ε = 8"), ("50", "ε = 8"), ("all", "ε = 8"), ("50", "ε = 3"))
        for other, claim in ((f"{REAL}, all", "−0.03" if n != "all" else ""), (NONE, ""))
    ],
    picture="accuracy, sentiment",
    notes=["Published rows, with the mismatch loss and attacks: [mattern](mattern.md)."],
)

if __name__ == "__main__":
    main(STUDY)
