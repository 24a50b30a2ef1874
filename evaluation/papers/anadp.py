"""Noise by importance: Li, Zmigrod, Ma, Liu and Zhu 2024, through `Twinset`.

"Fine-Tuning Language Models with Differential Privacy through Adaptive Noise Allocation": weights
that matter more get less noise. The paper fine-tunes encoders. Here the fine-tuned model is the
prompt-conditioned one, and it classifies by Bayes' rule: the label whose prompt makes the text
likeliest. The published page has encoders with three ways of fine-tuning.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from twinset import Twinset

from .lines import line_nats
from .study import Comparison, Study, main

ARMS: dict[str, dict[str, Any]] = {
    "no privacy": {"epsilon": None},
    "uniform": {},
    "importance, sound": {"noise_policy": "importance"},
    "importance, published": {"noise_policy": "importance", "policy_form": "published"},
}
METHODS = ("lora", "full")
EPSILON = 8.0

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {
        "base_model": "gpt2-mini",
        "train": 80,
        "test": 40,
        "methods": ["lora"],
        "training": {"steps": 2, "batch_size": 20, "max_tokens": 24},
    },
    "cpu": {
        "base_model": "gpt2-mini",
        "train": 3_600,
        "test": 500,
        "methods": list(METHODS),
        "training": {"steps": 60, "batch_size": 600, "max_tokens": 48},
    },
    "full": {
        "base_model": "smollm2-135m-text",
        "train": None,
        "test": None,
        "methods": list(METHODS),
        "training": {"steps": 200, "batch_size": 1_000, "max_tokens": 128},
    },
}


def list_arms(size: Mapping[str, Any]) -> list[str]:
    """Return every policy under every way of fine-tuning."""
    return [f"{arm}, {method}" for method in size["methods"] for arm in ARMS]


def load_tables(paths: Mapping[str, Path], size: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """Return the texts and labels to train on and to classify."""
    found = {}
    for name in ("train", "test"):
        frame = pd.read_csv(paths[name])
        label = "topic" if "topic" in frame else "sentiment"
        frame = frame[["text", label]].dropna().rename(columns={label: "label"})
        most = size[name]
        found[name] = frame.sample(min(most or len(frame), len(frame)), random_state=0)
    return found


def measure_arm(
    arm: str, seed: int, tables: Mapping[str, pd.DataFrame], size: Mapping[str, Any]
) -> dict[str, float | None]:
    """Return how often the fine-tuned model finds the label of a test row, and its ε."""
    policy, _, method = arm.rpartition(", ")
    options = {"epsilon": EPSILON, **size["training"], **ARMS[policy]}
    twinset = Twinset(
        base_model=size["base_model"],
        private=options["epsilon"] is not None,
        prompt="A text with the label {label}:",
        method=method,
        seed=seed,
        marginal_share=0.0,  # the paper releases nothing but the model
        teacher_share=0.0,
        max_minutes=None,
        **options,
    )
    twinset.fit(tables["train"], "text", ["label"])
    # A row gets the label whose prompt makes its text likeliest.
    test = tables["test"]
    texts, labels = test["text"].tolist(), sorted(test["label"].unique())
    nats = [
        line_nats(twinset.model, texts, f"A text with the label {label}:")[:, 0] for label in labels
    ]
    chosen = np.stack(nats).argmin(0)  # (L, N) → (N,)
    hits = [labels[i] == known for i, known in zip(chosen, test["label"], strict=True)]
    return {"accuracy": float(np.mean(hits)), "epsilon": twinset.guarantee.epsilon}


STUDY = Study(
    name="anadp",
    title="Noise by importance: Li, Zmigrod, Ma, Liu and Zhu (2024)",
    claim="ANADP narrows the performance gap between regular fine-tuning and traditional DP-SGD "
    "based fine-tuning on a series of datasets while maintaining the required privacy constraints",
    files={
        "train": "a table with a column text and a column sentiment or topic, to train on",
        "test": "the same, to classify",
    },
    sizes=SIZES,
    arms=list_arms,
    load=load_tables,
    measure=measure_arm,
    comparisons=[
        Comparison("accuracy", f"importance, {form}, {method}", f"uniform, {method}")
        for method in METHODS
        for form in ("sound", "published")
    ],
    picture="accuracy",
    notes=[
        "The published form's nominal ε is refuted by `twinset audit mechanism`. Published rows: "
        "[anadp](anadp.md).",
    ],
)

if __name__ == "__main__":
    main(STUDY)
