"""Adaptive noise: Wu, Gong and Xiong 2022, through `Twinset`.

"Adaptive Differential Privacy for Language Modeling": noise follows how unusual a public model
finds a text. A canary, "My ID is 955320", is planted and its exposure measured. The paper compares
at equal σ. This experiment also compares at equal ε, which is the cost to a user.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from .lines import exposure, fit_lines, load_corpus, perplexity, write_base
from .study import Comparison, Study, main

NO_DP, DP_SGD = "no privacy", "uniform"
PUBLISHED, SOUND = "adaptive, published", "adaptive, sound"
POLICIES = {
    NO_DP: {},
    DP_SGD: {"noise_policy": "uniform"},
    PUBLISHED: {"noise_policy": "adaptive", "policy_form": "published"},
    SOUND: {"noise_policy": "adaptive", "policy_form": "sound"},
}
PATTERN, SECRET, DIGITS = "My ID is {}", 955_320, 6  # section 5.2 of the paper
COPIES = (0, 100)
DELTA = 1e-5

SHAPE = {"vocabulary": 2048, "width": 128, "layers": 2, "heads": 4, "context": 48}
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {
        "public_lines": 200,
        "private_lines": 120,
        "scored_lines": 60,
        "shape": {"vocabulary": 300, "width": 16, "layers": 1, "heads": 2, "context": 40},
        "epsilons": [8.0],
        "candidates": 50,
        "training": {"steps": 3, "batch_size": 40, "learning_rate": 1e-2, "max_tokens": 32},
    },
    "cpu": {
        "public_lines": 20_000,
        "private_lines": 6_000,
        "scored_lines": 1_000,
        "shape": SHAPE,
        "epsilons": [4.0, 8.0],
        "candidates": 2_000,
        "training": {"steps": 94, "batch_size": 256, "learning_rate": 3e-3, "max_tokens": 40},
    },
    # Section 5.1: 12 layers, width 1024, batches of 4096, 20 epochs, learning rate 5e-5.
    "full": {
        "public_lines": None,
        "private_lines": None,
        "scored_lines": None,
        "shape": SHAPE | {"vocabulary": 50_257, "width": 1024, "layers": 12, "heads": 16},
        "epsilons": [4.22, 8.0],
        "candidates": 20_000,
        "training": {"steps": 8_000, "batch_size": 4_096, "learning_rate": 5e-5, "max_tokens": 40},
    },
}


def name_arm(policy: str, epsilon: float | None, copies: int) -> str:
    """Return an arm's name: policy, ε and how often the canary was planted."""
    privacy = "" if epsilon is None else f", ε = {epsilon:g}"
    return f"{policy}{privacy}, planted {copies}"


def list_arms(size: Mapping[str, Any]) -> list[str]:
    """Return every policy at every ε, with and without the canary."""
    private = [p for p in POLICIES if p != NO_DP]
    return [
        name_arm(policy, epsilon, copies)
        for copies in COPIES
        for policy, epsilon in [(NO_DP, None), *((p, e) for e in size["epsilons"] for p in private)]
    ]


def measure_arm(
    arm: str, seed: int, lines: Mapping[str, Sequence[str]], size: Mapping[str, Any]
) -> dict[str, float | None]:
    """Return perplexity, the canary's exposure, and the guaranteed ε of one arm."""
    known = {
        name_arm(policy, epsilon, copies): (policy, epsilon, copies)
        for copies in COPIES
        for policy in POLICIES
        for epsilon in (None, *size["epsilons"])
    }
    policy, epsilon, copies = known[arm]
    private = [*lines["private_train"], *[PATTERN.format(SECRET)] * copies]
    with TemporaryDirectory() as name:
        folder = Path(name)
        base = write_base(folder / "base", lines["public"], size["shape"], seed)
        options = {**size["training"], **POLICIES[policy], "epsilon": epsilon, "delta": DELTA}
        if policy == SOUND:  # it weighs by public constants, fitted for the base
            table, scale = folder / "public.csv", folder / "scale.json"
            pd.DataFrame({"text": lines["public"][:400]}).to_csv(table, index=False)
            command = [sys.executable, "-m", "twinset", "weight-scale", str(table)]
            command += ["--text", "text", "--base-model", str(base), "--output", str(scale)]
            subprocess.run([*command, "--quiet"], check=True)
            options["weight_scale"] = str(scale)
            # Records of weight 1 get ε. Those of weight 0, at most twice that, as by default.
        fitted = fit_lines(base, private, seed, **options)
        model = fitted.model
        return {
            "perplexity": perplexity(model, lines["private_test"]),
            "exposure": exposure(model, PATTERN, SECRET, DIGITS, size["candidates"]),
            "epsilon": fitted.guarantee.epsilon,
        }


STUDY = Study(
    name="adp",
    title="Adaptive noise: Wu, Gong and Xiong (2022)",
    claim="our ADP improves differentially private language modeling to achieve good protection "
    "from canary attackers",
    files={
        "public": "text that anyone may have, one record a line, or a table with a column text",
        "private_train": "private text to train on",
        "private_test": "private text to measure perplexity on",
    },
    sizes=SIZES,
    arms=list_arms,
    load=load_corpus,
    measure=measure_arm,
    comparisons=[
        Comparison("perplexity", f"{form}, ε = 8, planted 0", f"{DP_SGD}, ε = 8, planted 0", True)
        for form in (PUBLISHED, SOUND)
    ]
    + [
        Comparison("exposure", f"{form}, ε = 8, planted 100", f"{NO_DP}, planted 100")
        for form in (DP_SGD, PUBLISHED, SOUND)
    ],
    picture="perplexity",
    logarithmic=True,
    notes=[
        "The published form guarantees nothing. Its nominal ε is refuted by `twinset audit "
        "mechanism`. Published rows: [adp](adp.md).",
    ],
)

if __name__ == "__main__":
    main(STUDY)
