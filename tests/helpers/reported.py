"""A run folder with findings such as an evaluation and an audit leave: made up, for tests."""

import json
import math
from dataclasses import replace
from itertools import product
from pathlib import Path

from evaluation.findings import Curve, Findings, Histogram, Measured, Score, proportion
from tests.helpers import handover

SOURCES = {
    "real": 0.836,
    "real, no more rows than the twin": 0.755,
    "DP classifier on real rows": 0.61,
    "non-private twin": 0.72,
    "twin": 0.71,
    "twin, no more rows than the base": 0.69,
    "no private data": 0.63,
}
MOODS = ["negative", "positive"]
SECOND, SAMPLE = "real, a second sample", "train, as many rows as held-out"


def share(name, value, n=800, goal="maximise"):
    return proportion(name, round(value * n), n, goal)


def around(name, value, half, goal="match", most=math.inf, n=600):
    return Score(name, value, value - half, value + half, goal, 0.0, most, n)


def utility():
    for label, lift in (("sentiment", 0.0), ("product", 0.12)):
        for classifier, better in (("tfidf", 0.0), ("minilm", 0.02)):
            place = {"label": label, "classifier": classifier}
            for rows, value in SOURCES.items():
                where = {"rows": rows, **place}
                value = value + lift + better
                yield Measured("utility", share("accuracy", value), where)
                yield Measured("utility", share("macro-F1", value - 0.02), where)
                for each in MOODS:
                    yield Measured("utility", share("F1", value), where | {"value": each})
            for rows, value in (("twin", 0.74), ("no private data", 0.87)):
                yield Measured("utility", share("label fidelity", value), {"rows": rows, **place})
        chance = {"rows": "the commonest label", "label": label, "classifier": "none"}
        yield Measured("utility", share("accuracy", 0.5 + lift / 2), chance)


def fidelity():
    for rows, lift in (("twin", -9.0), ("train", 0.4), (SECOND, 0.0)):
        where = "release alone" if rows == "twin" else "private rows"
        lengths = replace(around("mean length", 82 + lift, 3.1), where=where)
        distinct = around("distinct-2", 0.61 + lift / 60, 0.012, most=1.0)
        yield from (Measured("fidelity", score, {"rows": rows}) for score in (lengths, distinct))
    for rows, value in (("twin", 0.71), (SECOND, 0.96)):
        score = around("MAUVE", value, 0.03, "maximise", 1.0)
        yield Measured("fidelity", score, {"rows": rows})


def leakage():
    for attack, sees, area in (
        ("loss", "model", 0.512),
        ("calibrated loss", "model", 0.521),
        ("nearest row, 3-grams", "released rows", 0.503),
        ("words of the row", "neither model nor released rows", 0.507),
    ):
        place = {"attack": attack, "sees": sees}
        yield Measured("leakage", around("AUROC", area, 0.025, "minimise", 1.0, 2000), place)
        if not sees.startswith("neither"):
            yield Measured("leakage", share("TPR at 1 % FPR", 0.012, 1000, "minimise"), place)
    for table, copied in (("train", 0.021), ("held-out", 0.017), (SAMPLE, 0.018)):
        place = {"against": table}
        for name in ("near-duplicates", *["rows nearly repeated"] * (table != SAMPLE)):
            yield Measured("leakage", share(name, copied, 600, "minimise"), place)
        longest = Score("longest verbatim run", 11, 9, math.inf, "minimise", 0, math.inf, 600)
        yield Measured("leakage", longest, place)
    for rows, value in (("train", 0.02), ("train only", 0.01), ("held-out only", 0.0)):
        place = {"kind": "person's name", "rows": rows, "occurrences": "1"}
        yield Measured("leakage", share("replayed", value, 300, "minimise"), place)


def canaries():
    for policy, bits, claim, bound, area in (
        ("uniform", (1.2, 1.5, 1.9), 8.0, 0.31, 0.51),
        ("none", (3.1, 8.2, 9.97), math.inf, 2.9, 0.91),
    ):
        place = {"policy": policy}
        for copies, value in zip((1, 10, 100), bits, strict=True):
            where = place | {"copies": str(copies), "sees": "model"}
            low = max(0, value - 0.9)
            score = Score("exposure", value, low, value, "minimise", 0.0, 9.97, 5)
            yield Measured("leakage", score, where)
        claimed = Score("claimed epsilon", claim, claim, claim, "minimise", 0.0, math.inf, 1)
        yield Measured("leakage", claimed, place)
        found = Score("lower bound of ε", bound, bound, math.inf, "minimise", 0.0, math.inf, 500)
        yield Measured("leakage", found, {"attack": "one run", "sees": "model", **place})
        attack = {"attack": "loss", "sees": "model"}
        yield Measured("leakage", around("AUROC", area, 0.03, "minimise", 1.0), place | attack)


def evaluation(**changes) -> Findings:
    by_size = {
        f"{rows}, tfidf": [(n, *(v - 20 / n + off for off in (0, -0.03, 0.03))) for n in (100, 600)]
        for rows, v in (("twin", 0.71), ("real", 0.8))
    }
    by_epsilon = {"tfidf": [(e, 0.6 + 0.03 * e, 0.56, 0.85) for e in (1, 2, 4, 8)]}
    lengths = {"twin": [0.1, 0.5, 0.4], "train": [0.2, 0.3, 0.5], SECOND: [0.2, 0.4, 0.4]}
    labels = {"twin": [0.52, 0.48], "train": [0.5, 0.5], SECOND: [0.51, 0.49]}
    command = "twinset evaluate runs/reviews-1 --train train.csv --test test.csv"
    rows = {"real": 3128, "twin": 600, "held out": 800}
    of_rows, of_epsilon = (f"accuracy by {what}: sentiment" for what in ("rows", "epsilon"))
    found = Findings(
        "evaluation",
        {"command": command, "rows": rows, "seeds": 1, "epsilon": 8.0},
        (*utility(), *fidelity()),
        (
            Curve("utility", of_rows, "rows", "accuracy", by_size, "x"),
            Curve("utility", of_epsilon, "epsilon", "accuracy", by_epsilon, "x"),
        ),
        (
            Histogram("fidelity", "length", "words", ["0–9", "10–19", "20 or more"], lengths),
            Histogram("fidelity", "labels: sentiment", "sentiment", MOODS, labels),
        ),
        ("12 test rows occur in train too. `exclude_overlap=True` leaves them out.",),
    )
    return replace(found, **changes)


def audit(**changes) -> Findings:
    rates = [10 ** (-3 + k / 20) for k in range(61)]
    roc = {name: [(p, p**power) for p in rates] for name, power in (("loss", 0.97), ("guess", 1.0))}
    x, y = "non-members taken for members (share)", "members found (share)"
    curve = Curve("leakage", "Members found by attack", x, y, roc, "xy")
    found = Findings("audit", {"command": "twinset audit runs/reviews-1"}, (*leakage(),), (curve,))
    return replace(found, **changes)


def run_in(folder: Path, *findings: Findings, ledger=None, name="reviews-1") -> Path:
    """A run with everything but what is left out of the findings."""
    run = bare(folder, *findings, ledger=ledger, name=name)
    weight = "base_model.model.model.layers.{}.self_attn.{}_proj.lora_{}.default.weight"
    shape = {weight.format(*place): 1.5 for place in product(range(12), "qv", "AB")}
    (run / "internal" / "noise.json").write_text(json.dumps(shape | {"wte.weight": 0.6}))
    with (run / "internal" / "metrics.jsonl").open("w") as file:
        for step in range(1, 61):
            loss = None if step == 7 else 3.2 + 1.6 * math.exp(-step / 12)
            spent = {"step": step, "records": 90, "loss": loss, "seconds": step}
            file.write(json.dumps(spent | {"clipped": 1 - step / 120}) + "\n")
    return run


def bare(folder: Path, *findings: Findings, ledger=None, name="reviews-1") -> Path:
    """A run of which nothing is known but these findings and its ledger."""
    run = folder / name
    (run / "internal").mkdir(parents=True)
    handover.hand_over(run / "share", ledger)
    for each in findings:
        each.save(run / "internal" / f"{each.kind}.json")
    return run
