"""A program of somebody else, as its author types it: checked under `mypy --strict`, never run."""

from pathlib import Path

import pandas as pd

from twinset import Twinset, generate
from twinset.errors import InputError


def guaranteed(frame: pd.DataFrame) -> tuple[float | None, str]:
    model = Twinset(epsilon=8, seed=1).fit(frame, text="review", attributes=["stars"], owner="who")
    claim = model.guarantee
    return claim.epsilon, claim.sentence


def twin_of(table: Path, model: Path, rows: int) -> pd.DataFrame | None:
    try:
        fitted = Twinset("gpt2-mini", prompt="A {stars} review:").fit(table, attributes="stars")
    except InputError:
        return None
    fitted.save(model)
    twin = Twinset.load(model, temperature=0.8).sample(rows)
    scores = fitted.evaluate(twin, table, pd.DataFrame(), classifiers=["tfidf"], seeds=2)
    attacked = fitted.audit(twin, table, pd.DataFrame(), rows=100)
    shared: Path = fitted.share(twin, "shared")
    return twin if len(scores) and len(attacked) and shared else None


def texts_and_labels(texts: list[str], labels: list[int]) -> float | None:
    model = Twinset().fit(texts, labels)
    seconds: float | None = model.plan(records=100).seconds
    return seconds


def run_of(table: str) -> Path | None:
    made = generate(table, "review", ["stars"], rows=100, run=Path("run"), output="twin.csv")
    assert made.rows + 1 and made.guarantee.sentence.endswith(".")
    return made.run


def wrong() -> None:
    Twinset().sample("many")  # type: ignore[arg-type]
    generate("table.csv", rows="many")  # type: ignore[arg-type]
    Twinset().evaluate(pd.DataFrame(), "a.csv", "b.csv", seeds="many")  # type: ignore[arg-type]
