"""Selective privacy: Shi, Cui, Li, Jia and Yu 2022, through `Twinset`.

"Selective Differential Privacy for Language Modeling": only what a detector flags is protected.
Phase 1 trains without noise on texts with masked spans, phase 2 with noise on the original texts.
The paper's LSTMs, with noise on the hidden state, are on the published page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from .lines import exposure, fit_lines, perplexity, read_lines, write_base
from .study import Comparison, Study, main

NO_DP, DP_SGD, REDACTED, SELECTIVE = "no privacy", "uniform", "redacted only", "selective"
ARMS: dict[str, dict[str, Any]] = {
    NO_DP: {"epsilon": None},
    DP_SGD: {},
    REDACTED: {"epsilon": None, "redact_only": True, "detector": "patterns"},
    SELECTIVE: {"noise_policy": "selective", "detector": "patterns"},
}
PATTERN, SECRET, DIGITS, COPIES = "My ID is {}.", 341_752, 6, 10  # the authors' canary
EPSILON, DELTA = 2.58, 8e-5  # of the paper's Table 3

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {
        "lines": 120,
        "scored_lines": 60,
        "shape": {"vocabulary": 300, "width": 16, "layers": 1, "heads": 2, "context": 48},
        "candidates": 50,
        "training": {"steps": 3, "batch_size": 40, "learning_rate": 5e-3, "max_tokens": 40},
    },
    "cpu": {
        "lines": 6_000,
        "scored_lines": 1_000,
        "shape": {"vocabulary": 2048, "width": 128, "layers": 2, "heads": 4, "context": 64},
        "candidates": 10_000,
        "training": {"steps": 280, "batch_size": 64, "learning_rate": 1e-3, "max_tokens": 56},
    },
    "full": {
        "lines": None,
        "scored_lines": None,
        "shape": {"vocabulary": 50_257, "width": 768, "layers": 12, "heads": 12, "context": 256},
        "candidates": 100_000,
        "training": {"steps": 5_000, "batch_size": 64, "learning_rate": 1e-3, "max_tokens": 240},
    },
}


def list_arms(size: Mapping[str, Any]) -> list[str]:
    """Return the four ways of training."""
    return list(ARMS)


def load_lines(paths: Mapping[str, Path], size: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return public lines, private lines with the planted canary, and lines to score."""
    column = "dialog"  # CustomerSim has its dialogues there, everybody else a column text
    found = {}
    for name, path in paths.items():
        most = size["scored_lines"] if name == "private_test" else size["lines"]
        is_dialogue = "customersim" in str(path)
        found[name] = read_lines(path, most, column if is_dialogue else "text")
    found["private_train"] += [PATTERN.format(SECRET)] * COPIES
    return found


def measure_arm(
    arm: str, seed: int, lines: Mapping[str, Sequence[str]], size: Mapping[str, Any]
) -> dict[str, float | None]:
    """Return perplexity, the canary's exposure, and the guaranteed ε of one way of training."""
    with TemporaryDirectory() as folder:
        base = write_base(Path(folder), lines["public"], size["shape"], seed)
        options = {"epsilon": EPSILON, "delta": DELTA, **size["training"], **ARMS[arm]}
        fitted = fit_lines(base, lines["private_train"], seed, **options)
        return {
            "perplexity": perplexity(fitted.model, lines["private_test"]),
            "exposure": exposure(fitted.model, PATTERN, SECRET, DIGITS, size["candidates"]),
            "epsilon": fitted.guarantee.epsilon,
        }


STUDY = Study(
    name="sdp",
    title="Selective privacy: Shi, Cui, Li, Jia and Yu (2022)",
    claim="training with Selective-DPSGD improves the model utility while remaining safe to the "
    "attacks",
    files={
        "public": "text that anyone may have: it decides the tokens",
        "private_train": "private text, WikiText-2 or CustomerSim's table",
        "private_test": "private text to measure perplexity on",
    },
    sizes=SIZES,
    arms=list_arms,
    load=load_lines,
    measure=measure_arm,
    comparisons=[
        Comparison("perplexity", SELECTIVE, DP_SGD, True, "0.523 (WikiText-2)"),
        Comparison("perplexity", SELECTIVE, REDACTED, True),
        Comparison("exposure", SELECTIVE, NO_DP),
    ],
    picture="perplexity",
    logarithmic=True,
    notes=[
        "`selective` protects what the detector flags and nothing else. Without privacy, and for "
        "redacted text, nothing is guaranteed. Published rows: [sdp](sdp.md).",
    ],
)

if __name__ == "__main__":
    main(STUDY)
