"""Public text first: Kerrigan, Slack and Tuyls 2020, through `Twinset`.

"Differentially Private Language Models Benefit from Public Pre-training": a model is trained on
public text alone, on private text alone, or on public and then private text. Private training uses
DP-SGD with two noise levels, or no noise. The published page has the paper's feed-forward models
too. Here the model is a GPT-2 of any size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from .lines import fit_lines, load_corpus, perplexity, write_base
from .study import Comparison, Study, main

PUBLIC, PRIVATE, BOTH = "public only", "private only", "public, then private"
# Appendix D of the paper: σ = 1.1 spends ε = 9.75, σ = 0.1 spends 107.3. ε is what `Twinset` takes.
EPSILONS = {"ε = 9.75": 9.75, "ε = 107.3": 107.3, "no privacy": None}
DELTA = 1e-5

SMALL = {"vocabulary": 2048, "width": 128, "layers": 2, "heads": 4, "context": 64}
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {
        "public_lines": 200,
        "private_lines": 120,
        "scored_lines": 60,
        "shape": {"vocabulary": 300, "width": 16, "layers": 1, "heads": 2, "context": 48},
        "public_epochs": 2,
        "training": {"steps": 4, "batch_size": 40, "learning_rate": 1e-2, "max_tokens": 40},
    },
    "cpu": {
        "public_lines": 40_000,
        "private_lines": 20_000,
        "scored_lines": 2_000,
        "shape": SMALL,
        "public_epochs": 1,
        "training": {"steps": 320, "batch_size": 64, "learning_rate": 1e-3, "max_tokens": 56},
    },
    # Five epochs of each text with batches of 64, as the paper has them.
    "full": {
        "public_lines": None,
        "private_lines": None,
        "scored_lines": None,
        "shape": SMALL | {"vocabulary": 50_257, "width": 768, "layers": 12, "heads": 12},
        "public_epochs": 5,
        "training": {"steps": 2_400, "batch_size": 64, "learning_rate": 1e-3, "max_tokens": 56},
    },
}


def list_arms(size: Mapping[str, Any]) -> list[str]:
    """Return what is trained on which text, under which ε."""
    noisy = [f"{start}, {privacy}" for start in (PRIVATE, BOTH) for privacy in EPSILONS]
    return [PUBLIC, *noisy]


def measure_arm(
    arm: str, seed: int, lines: Mapping[str, Sequence[str]], size: Mapping[str, Any]
) -> dict[str, float | None]:
    """Return the test perplexity of one arm, and the ε that its model guarantees."""
    start, _, privacy = arm.rpartition(", ")
    with TemporaryDirectory() as folder:
        epochs = 0.0 if start == PRIVATE else size["public_epochs"]
        base = write_base(Path(folder), lines["public"], size["shape"], seed, epochs)
        if arm == PUBLIC:
            from transformers import AutoModelForCausalLM, AutoTokenizer

            read = AutoModelForCausalLM.from_pretrained(base), AutoTokenizer.from_pretrained(base)
            return {"perplexity": perplexity(read, lines["private_test"]), "epsilon": 0.0}
        options = {**size["training"], "epsilon": EPSILONS[privacy], "delta": DELTA}
        fitted = fit_lines(base, lines["private_train"], seed, **options)
        found = perplexity(fitted.model, lines["private_test"])
    return {"perplexity": found, "epsilon": fitted.guarantee.epsilon}


STUDY = Study(
    name="kerrigan",
    title="Public text first: Kerrigan, Slack and Tuyls (2020)",
    claim="DP fine-tuning not only boosts the performance of DP language modeling, but makes it "
    "possible",
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
        Comparison("perplexity", f"{BOTH}, ε = 9.75", PUBLIC, True, "0.930"),
        Comparison("perplexity", f"{BOTH}, ε = 107.3", PUBLIC, True, "0.935"),
        Comparison("perplexity", f"{BOTH}, no privacy", PUBLIC, True, "0.655"),
        Comparison("perplexity", f"{PRIVATE}, ε = 9.75", PUBLIC, True, "useless"),
    ],
    picture="perplexity",
    logarithmic=True,
    notes=["Published rows, with the feed-forward models too: [kerrigan](kerrigan.md)."],
)

if __name__ == "__main__":
    main(STUDY)
