"""Our numbers of paper 001's experiment: accuracies, leakage, attacks, and where noise went."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from evaluation.papers.anadp.corpora import SETS, SST2
from evaluation.papers.anadp.found import EXPOSURE, MEASURES, RANKS, Found, gap_closed
from evaluation.papers.anadp.noise import FORMS, IMPORTANCE, NO_DP, PUBLISHED, UNIFORM
from evaluation.papers.anadp.published import DELTA, EPSILON, LAYERS, LEAKAGE, OUTCOME
from evaluation.papers.anadp.training import DIGITS, PARTS
from evaluation.papers.anadp.tuning import METHODS
from evaluation.papers.page import table
from evaluation.papers.report import Section
from twinset.markdown import bullets, plain
from twinset.noisemap import OUTSIDE

_ACCURACY = (
    "method",
    "noise",
    "accuracy, test",
    "less uniform",
    "ε stated",
    "ε guaranteed",
    "σ",
    "numbers trained",
    "seeds",
    "rows/s",
)
_GAP = ("method", "noise", "mean accuracy less uniform", "of the gap to no privacy, won back")
_LEAKAGE = (
    "noise",
    *(f"{MEASURES[m]}: {part}" for m in (RANKS, EXPOSURE) for part in PARTS),
    "ε stated",
    "ε guaranteed",
    "seeds",
)
_ATTACK = ("attack on", "experiment", "claimed ε", "shown, at least", "ε of a theorem")


def sections(found: Found) -> Iterator[Section]:
    """Yield the page's tables."""
    for dataset in SETS:
        yield Section(f"Accuracy on {dataset}", _accuracies(found, dataset))
    yield Section("What importance wins back, over the three sets", _gaps(found))
    yield Section("Leakage from e-mails", _leakage(found))
    yield Section("What the noise gives away", _attacks(found))
    yield Section(f"Where noise went, on {SST2}", _layers(found))


def _accuracies(found: Found, dataset: str) -> list[str]:
    facts = found.rows.facts["sets"][dataset]
    note = (
        f"{facts['train']:,} rows to train on, {facts['test']:,} to test on, {facts['classes']} "
        f"labels; a guess is right in {facts['guess']:.1%}. δ = {DELTA:g}."
    )
    body = (_accuracy(found, dataset, method, form) for method in METHODS for form in FORMS)
    return [*bullets([plain(note)]), "", *table(_ACCURACY, body, left=2)]


def _accuracy(found: Found, dataset: str, method: str, form: str) -> list[str]:
    rows = found.of(dataset, method, form)
    speeds = [row["rows_per_second"] for row in rows]
    return [
        method,
        form,
        str(found.accuracy(dataset, method, form)),
        "" if form == UNIFORM else str(found.gain(dataset, method, form)),
        *_epsilons(found, form, rows),
        f"{rows[0]['noise_multiplier']:.3f}",
        f"{rows[0]['trained']:,}",
        str(len(rows)),
        f"{sum(speeds) / len(speeds):.0f}",
    ]


def _epsilons(found: Found, form: str, rows: list[dict[str, Any]]) -> list[str]:
    """Return the ε of the paper's accounting, and that of a theorem; one but of published noise."""
    guaranteed = found.spent(rows)
    if form == NO_DP:
        return ["", guaranteed]
    stated = found.spent(rows, "epsilon_nominal") if form == PUBLISHED else guaranteed
    return [stated, guaranteed]


def _gaps(found: Found) -> list[str]:
    body = [_gap(found, method, form) for method in METHODS for form in IMPORTANCE]
    note = f"Paper: {OUTCOME}."
    return [*bullets([plain(note)]), "", *table(_GAP, body, left=2)]


def _gap(found: Found, method: str, form: str) -> list[str]:
    share = gap_closed(found, method, form)
    said = "uniform noise cost nothing" if share is None else f"{share:.0%}"
    return [method, form, str(found.mean_gain(method, form)), said]


def _leakage(found: Found) -> list[str]:
    facts = found.rows.facts["e-mails"]
    known = found.leaking(NO_DP)[0]["known"]
    scored = ", ".join(f"{known[part]['numbers']} ({part})" for part in PARTS)
    notes = (
        f"Passages that end with a telephone number: {facts['passages']['train']:,} to learn from, "
        f"{facts['passages']['held-out']:,} with other numbers held out; names in them: "
        f"{facts['names']['train']:,} and {facts['names']['held-out']:,}; cut: {facts['cut']:,}.",
        f"Exposures are of numbers of {DIGITS} digits, scored: {scored}. ε = {EPSILON:g} at δ = "
        f"{DELTA:g} for one passage; a number in k passages is k of them.",
        f"Paper: {LEAKAGE}.",
    )
    body = (_leak(found, form) for form in FORMS)
    return [*bullets(map(plain, notes)), "", *table(_LEAKAGE, body)]


def _leak(found: Found, form: str) -> list[str]:
    rows = found.leaking(form)
    values = (found.known(m, form, part) for m in (RANKS, EXPOSURE) for part in PARTS)
    said = ["" if value is None else str(value) for value in values]
    return [form, *said, *_epsilons(found, form, rows), str(len(rows))]


def _attacks(found: Found) -> list[str]:
    body = [
        [form, str(one["what"]), f"{one['claimed']:.2f}", f"{one['lower_bound']:.2f}"]
        + [_theorem(one)]
        for form in IMPORTANCE
        for one in found.attacks(form)
    ]
    one = found.attacks(PUBLISHED)[0]
    note = (
        "The project's own noise step on made-up records, seen by somebody who knows all records "
        f"but one: lower bounds of ε at 95 % confidence and δ = {one['delta']:g}, from "
        f"{one['trials']:,} outputs with the record and as many without. The record stands where "
        "released gradients said that parameters matter: there the published form has least noise."
    )
    return [plain(note), "", *table(_ATTACK, body, left=2)]


def _theorem(finding: dict[str, Any]) -> str:
    stated = finding["guaranteed"]
    return f"{finding['claimed'] if stated is None else stated:.2f}"


def _layers(found: Found) -> list[str]:
    """Return the noise of each layer over that of uniform noise: mean over its kinds of weights."""
    columns = [(method, form) for form in IMPORTANCE for method in METHODS]
    maps = [_by_layer(found.cells(SST2, *column)) for column in columns]
    layers = sorted(
        {layer for one in maps for layer in one}, key=lambda x: (x == OUTSIDE, x.zfill(4))
    )
    header = ("layer", *(f"{form.split(', ')[1]}: {method}" for method, form in columns))
    body = [
        ["outside" if layer == OUTSIDE else layer]
        + [f"{one[layer]:.2f}" if layer in one else "" for one in maps]
        for layer in layers
    ]
    note = (
        "Standard deviation over that of uniform noise, mean over releases, parameters and seeds; "
        f"1 is as much. Paper: {LAYERS}."
    )
    return [plain(note), "", *table(header, body)]


def _by_layer(cells: dict[tuple[str, str], float]) -> dict[str, float]:
    layers: dict[str, list[float]] = {}
    for (layer, _), factor in cells.items():
        layers.setdefault(layer, []).append(factor)
    return {layer: sum(values) / len(values) for layer, values in layers.items()}
