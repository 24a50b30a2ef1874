"""Paper 004's numbers and ours side by side."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from evaluation.papers.intervals import geometric_mean, mean_of
from evaluation.papers.page import table
from evaluation.papers.report import Section
from evaluation.papers.rows import Rows
from evaluation.papers.sdp import published
from evaluation.papers.sdp.attacks import HELD_OUT, SWAPPED
from evaluation.papers.sdp.cases import LSTMS, TRANSFORMERS
from evaluation.papers.sdp.published import DELTA, NOISE, TRANSFORMER, WIKITEXT
from twinset.markdown import bullets, plain
from twinset.privacy.rounding import up_decimals

UTILITY = (
    "model",
    "perplexity",
    "top-1",
    "private tokens: perplexity",
    "σ",
    "C",
    "ε",
    "what ε is",
    "paper: perplexity",
    "paper: top-1",
    "paper: σ",
    "paper: ε",
    "seeds",
)
ATTACKS = (
    "model",
    "exposure, bits",
    "how found",
    f"accuracy: {SWAPPED}",
    f"AUROC: {SWAPPED}",
    f"accuracy: {HELD_OUT}",
    f"AUROC: {HELD_OUT}",
)
PROVED = ("model", "σ", "nominal ε", "private stretches of one record", "ε that can be proved")
TABLE_3 = (
    "model",
    "flagged",
    "perplexity",
    "σ",
    "ε",
    "what ε is",
    "paper: flagged",
    "paper: perplexity",
    "paper: ε",
    "seeds",
)
_PROVED = (
    "No theorem covers the nominal ε of S-DPSGD: it is what the paper's code adds up, each private "
    "update as one Poisson-subsampled step of multiplier σ. The last column is a bound that holds: "
    "for changing what is flagged in one record, with as many tokens in the same places, to who "
    "knows everything else. It counts the sensitivity of a change (2C, not C), the noisy states, "
    "and no amplification by subsampling, for regular updates show who is in a batch."
)


def sections(rows: Rows) -> Iterator[Section]:
    """Yield all tables."""
    for text, models in LSTMS.items():
        facts = bullets(map(plain, _facts(rows.facts["texts"][text], text)))
        body = [_utility(rows, text, model) for model in models]
        yield Section(f"{text}: utility, δ = {DELTA:g}", [*facts, "", *table(UTILITY, body)])
        body = [_attacks(rows, text, model) for model in models]
        yield Section(f"{text}: attacks", table(ATTACKS, body))
    body = [
        cells for text, models in LSTMS.items() for m in models for cells in _proved(rows, text, m)
    ]
    yield Section("What ε of S-DPSGD is worth", [plain(_PROVED), "", *table(PROVED, body)])
    body = [_two_phases(rows, model) for model in TRANSFORMERS]
    note = bullets([plain(rows.facts["transformer"])])
    yield Section("Transformers with two phases", [*note, "", *table(TABLE_3, body)])


def _facts(facts: Mapping[str, Any], text: str) -> Iterator[str]:
    yield (
        f"Training rows: {facts['rows']:,}, as {facts['records']:,} records with the canaries; "
        f"held-out rows: {facts['heldout']:,} with {facts['tokens']:,} tokens; vocabulary: "
        f"{facts['vocabulary']:,}."
    )
    yield (
        f"Private tokens: {facts['share']:.1%} of the training tokens; paper: "
        f"{published.FLAGGED[text]:.1%}."
    )
    if facts["source"]:
        yield facts["source"]


def _utility(rows: Rows, text: str, model: str) -> list[str]:
    found = list(rows.by_seed(text, model).values())
    return [
        model,
        geometric_mean([row["perplexity"] for row in found]).text(2),
        mean_of([row["accuracy"] for row in found], 0.0, 1.0).text(3),
        geometric_mean([row["private_perplexity"] for row in found]).text(1),
        _sigma(found),
        f"{found[0]['max_grad_norm']:g}" if "max_grad_norm" in found[0] else "",
        *_epsilon(found),
        *_published(text, model),
        str(len(found)),
    ]


def _sigma(found: list[dict[str, Any]]) -> str:
    """Return σ, from the least to the largest where seeds differ."""
    values = sorted({f"{row['noise_multiplier']:.3f}" for row in found})
    return (
        ""
        if not found[0]["noise_multiplier"]
        else " to ".join(dict.fromkeys(values[:: len(values) - 1 or 1]))
    )


def _epsilon(found: list[dict[str, Any]]) -> list[str]:
    """Return the largest ε, rounded up, and what it is."""
    spent = [row["epsilon"] for row in found]
    return ["none" if None in spent else up_decimals(max(spent)), found[0]["says"]]


def _published(text: str, model: str) -> list[str]:
    known, noise = published.TABLE_2.get((text, model)), NOISE.get((text, model))
    utility = [f"{known[0]:.2f} ± {known[1]:.2f}", f"{known[2]:.2f}"] if known else ["", ""]
    spent = [f"{noise.noise_multiplier:g}", f"{noise.epsilon:g}"] if noise else ["", ""]
    return utility + spent


def _attacks(rows: Rows, text: str, model: str) -> list[str]:
    found = list(rows.by_seed(text, model).values())
    exposed = mean_of([row["exposure"] for row in found], 0.0, math.log2(found[0]["candidates"]))
    cells = [model, exposed.text(2), found[0]["method"]]
    for side in (SWAPPED, HELD_OUT):
        for name in ("accuracy", "value"):
            values = [row["membership"][side][name] for row in found]
            cells.append(mean_of(values, 0.0, 1.0).text(3))
    return cells


def _proved(rows: Rows, text: str, model: str) -> Iterator[list[str]]:
    found = [row for row in rows.by_seed(text, model).values() if "proved" in row]
    if found:
        proved = [row["proved"] for row in found]
        yield [
            f"{text}: {model}",
            _sigma(found),
            _epsilon(found)[0],
            str(max(row["releases"] for row in found)),
            "none" if None in proved else up_decimals(max(proved)),
        ]


def _two_phases(rows: Rows, model: str) -> list[str]:
    found = list(rows.by_seed(WIKITEXT, model).values())
    name, _, policy = model.removeprefix(f"{TRANSFORMER}, ").partition(", ")
    perplexity, spent = published.TABLE_3[name, policy]
    return [
        model.removeprefix(f"{TRANSFORMER}, "),
        f"{found[0]['share']:.1%}" if "share" in found[0] else "",
        geometric_mean([row["perplexity"] for row in found]).text(2),
        _sigma(found),
        *_epsilon(found),
        f"{published.TABLE_3_FLAGGED[policy]:.1%}" if policy else "",
        f"{perplexity:.2f}",
        "" if spent is None else f"{spent:g}",
        str(len(found)),
    ]
