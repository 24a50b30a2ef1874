"""Paper 000's numbers and ours side by side: perplexity and ε, exposure, attacks and weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from evaluation.exposure import UNKNOWN
from evaluation.papers.adp.cases import ADAPTIVE, ATTACKED, MODELS, NO_COPIES, PLANTED
from evaluation.papers.adp.found import LARGEST_EXPOSURE, Found
from evaluation.papers.adp.noise import DP_SGD, NO_DP, SOUND
from evaluation.papers.adp.published import (
    ADP,
    COPIES,
    DIGITS,
    SECRET,
    SENTENCE,
    SIGMAS,
    TABLE_1,
    Line,
    relative,
)
from evaluation.papers.adp.sizes import DELTA
from evaluation.papers.page import table
from evaluation.papers.report import Section
from twinset.markdown import bullets, plain

_UTILITY = (
    "trained with",
    "σ",
    "loss, nats a token",
    "perplexity, test",
    "÷ DP-SGD",
    "noise ÷ σC",
    "ε, nominal",
    "ε guaranteed, ρ = 1",
    "ε guaranteed, ρ = 0",
    "paper: loss",
    "paper: PPL",
    "paper: ÷ DP-SGD",
    "paper: ε",
    "seeds",
    "lines/s",
)
_EXPOSURE = ("trained with", "σ", *(f"planted {copies}×" for copies in PLANTED), "seeds")
_ATTACK = ("attack on", "σ", "experiment", "claimed ε", "shown, at least", "ε of a theorem")
_WEIGHTS = ("weights of", "10 %", "median", "90 %", "mean", "canary")


def sections(found: Found) -> Iterator[Section]:
    """Yield the page's tables."""
    yield Section("Loss, perplexity and ε", _utility(found))
    yield Section("Exposure of the canary, in bits", _exposure(found))
    yield Section("What the noise gives away", _attacks(found))
    yield Section("Privacy weights ρ", _weights(found))


def _utility(found: Found) -> list[str]:
    facts = found.rows.facts
    notes = (
        f"Tokens: {facts['tokens']}. A blind guess has perplexity {facts['vocabulary']:,}.",
        f"Lines to train on: {facts['private lines']:,} with {facts['private tokens']:,} tokens, "
        f"of which {facts['private lines cut']:,} lines are cut at {facts['context']} tokens; "
        f"test: {facts['test lines']:,} with {facts['test tokens']:,} tokens.",
        f"δ = {DELTA:g}; the largest ε over seeds. No canary was planted for this table.",
    )
    body = (_utility_cells(found, *model) for model in MODELS)
    return [*bullets(map(plain, notes)), "", *table(_UTILITY, body)]


def _utility_cells(found: Found, form: str, sigma: float) -> list[str]:
    rows = found.of(form, sigma)
    speeds = [row["records_per_second"] for row in rows]
    compared = form != NO_DP
    return [
        form,
        f"{sigma:g}",
        str(found.loss(form, sigma)),
        found.perplexity(form, sigma).text(1),
        str(found.relative(form, sigma)) if compared else "",
        f"{found.noise(form, sigma):.3g}" if compared else "",
        _nominal(found, form, sigma),
        *(found.spent(form, sigma, f"{which}_protected") for which in ("most", "least")),
        *_published(form, sigma),
        str(len(rows)),
        f"{sum(speeds) / len(speeds):.0f}",
    ]


def _nominal(found: Found, form: str, sigma: float) -> str:
    """Return the ε of the paper's accounting: of DP-SGD the guaranteed one."""
    if form in (NO_DP, SOUND):
        return ""
    return found.spent(form, sigma, "least_protected" if form == DP_SGD else "nominal")


def _published(form: str, sigma: float) -> list[str]:
    """Return the cells of the paper; its one form stands beside all forms of adaptive noise."""
    line: Line = TABLE_1[ADP if form in ADAPTIVE else form, sigma]
    share = f"{relative(sigma):.3f}" if form in ADAPTIVE else ""
    spent = "" if line.epsilon is None else f"{line.epsilon:g}"
    return [f"{line.loss:.2f}", f"{line.perplexity:.2f}", share, spent]


def _exposure(found: Found) -> list[str]:
    methods = sorted({row["method"] for model in MODELS for row in _planted(found, *model)})
    notes = (
        f"“{SENTENCE} {SECRET}”, of {10**DIGITS:,} secrets: {LARGEST_EXPOSURE:.2f} bits are a "
        f"secret known by heart, {UNKNOWN:.2f} the mean of secrets that a model does not know. "
        "“Planted 0×” is that same secret where it was not planted.",
        f"Ranks: {', '.join(methods)}.",
        "A canary that was planted k times is k records: ε of one record says little of it.",
        "The paper draws its exposures and gives no number.",
    )
    body = (_exposure_cells(found, *model) for model in MODELS)
    return [*bullets(map(plain, notes)), "", *table(_EXPOSURE, body)]


def _planted(found: Found, form: str, sigma: float) -> list[dict[str, Any]]:
    return [row for copies in PLANTED for row in found.of(form, sigma, copies)]


def _exposure_cells(found: Found, form: str, sigma: float) -> list[str]:
    bits = (found.exposure(form, sigma, copies).text(1) for copies in PLANTED)
    return [form, f"{sigma:g}", *bits, str(len(found.of(form, sigma)))]


def _attacks(found: Found) -> list[str]:
    body = [
        [form, f"{sigma:g}", str(one["what"]), f"{one['claimed']:.2f}", f"{one['lower_bound']:.2f}"]
        + [_theorem(one)]
        for form, sigma, one in found.all_attacks()
    ]
    one = found.attacks(ATTACKED[0], SIGMAS[0])[0]
    note = (
        "The project's own noise step on made-up records, seen by somebody who knows all records "
        f"but one: lower bounds of ε at 95 % confidence and δ = {one['delta']:g}, from "
        f"{one['trials']:,} outputs with the record and as many without. In the published form the "
        "length of the noise tells who was in the batch, whatever σ is."
    )
    return [plain(note), "", *table(_ATTACK, body)]


def _theorem(finding: dict[str, Any]) -> str:
    stated = finding["guaranteed"]
    return f"{finding['claimed']:.2f}" if stated is None else str(stated)


def _weights(found: Found) -> list[str]:
    body = [[form, *_weight_cells(found, form)] for form in ADAPTIVE]
    note = (
        "Of the private lines; where weights are normalised over them, without canaries. The "
        f"canary's is that where it was planted {COPIES[0]} times. The published form draws noise "
        "by the mean of a batch, so that a canary's own weight hardly protects it."
    )
    return [plain(note), "", *table(_WEIGHTS, body)]


def _weight_cells(found: Found, form: str) -> list[str]:
    (row, *_), (planted, *_) = (
        found.of(form, SIGMAS[0], copies) for copies in (NO_COPIES, COPIES[0])
    )
    weights = row["weights"] | {"canary": planted["weights"]["canary"]}
    return [f"{weights[name]:.3g}" for name in _WEIGHTS[1:]]
