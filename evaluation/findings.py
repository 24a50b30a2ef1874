"""What an evaluation or an audit found, in the form in which it is stored and drawn.

One flat list of scores, each with its place ("rows" → "twin", "classifier" → "tfidf"), curves and
histograms for the eye, and notes that nobody should miss. The same for every question, so that
the report, the terminal and a reader of the JSON need to know one shape. Computes nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from evaluation.scores import Score
from twinset.artefact import write_json
from twinset.errors import DAMAGED, InputError

SCHEMA = 1
Question = Literal["utility", "fidelity", "leakage"]
Place = Mapping[str, str]


@dataclass(frozen=True)
class Measured:
    """A score, the question it answers, and its place among those of the same name.

    Args:
        question: what it helps to answer.
        score: the score.
        place: which one it is: dimension → value. Always in words, never private text.
    """

    question: Question
    score: Score
    place: Place = field(default_factory=dict)


@dataclass(frozen=True)
class Curve:
    """Lines to be drawn.

    Args:
        question: what they help to answer.
        name: title.
        x: what the abscissa is, with its unit.
        y: what the ordinate is.
        series: by name, points (x, y) or (x, y, low, high) in rising x.
        log: "x", "y", "xy" or "": the axes that are logarithmic.
    """

    question: Question
    name: str
    x: str
    y: str
    series: Mapping[str, list[tuple[float, ...]]]
    log: str = ""


@dataclass(frozen=True)
class Histogram:
    """Shares by bin, for several tables side by side.

    Args:
        question: what they help to answer.
        name: title.
        x: what is counted, with its unit.
        bins: the bins' names.
        series: by table, the share of its rows in every bin.
    """

    question: Question
    name: str
    x: str
    bins: list[str]
    series: Mapping[str, list[float]]


@dataclass(frozen=True)
class Findings:
    """Everything that one command found.

    Args:
        kind: "evaluation", "audit" or "canaries".
        about: how to do it again: command, seed, tables with rows, versions, machine, guarantee.
        measured: the scores.
        curves: to be drawn.
        histograms: to be drawn.
        notes: what a reader must know: overlaps, rows left out, what could not be measured.
    """

    kind: str
    about: Mapping[str, Any]
    measured: tuple[Measured, ...] = ()
    curves: tuple[Curve, ...] = ()
    histograms: tuple[Histogram, ...] = ()
    notes: tuple[str, ...] = ()

    def of(self, question: Question) -> list[Measured]:
        """Return the scores that help to answer a question."""
        return [m for m in self.measured if m.question == question]

    def find(self, name: str, **place: str) -> Score | None:
        """Return the first score of that name whose place agrees; None where there is none."""
        for m in self.measured:
            if m.score.name == name and place.items() <= dict(m.place).items():
                return m.score
        return None

    def publishable(self) -> list[Measured]:
        """Return the scores that were computed from the release alone."""
        return [m for m in self.measured if m.score.where == "release alone"]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON; what is not finite becomes null."""
        found: dict[str, Any] = _plain({"schema": SCHEMA} | asdict(self))
        return found

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Findings:
        """Read what `to_dict` returned.

        Raises:
            ValueError: another schema.
            KeyError, TypeError: something is missing or is not what it should be.
        """
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema {data['schema']} is not known here")
        return cls(
            kind=data["kind"],
            about=data["about"],
            measured=tuple(
                Measured(m["question"], _score(m["score"]), m["place"]) for m in data["measured"]
            ),
            curves=tuple(Curve(**curve) for curve in data["curves"]),
            histograms=tuple(Histogram(**histogram) for histogram in data["histograms"]),
            notes=tuple(data["notes"]),
        )

    def save(self, path: Path) -> None:
        """Write JSON that its owner alone may read: it was computed on private rows."""
        write_json(path, self.to_dict(), mode=0o600)

    @classmethod
    def load(cls, path: Path) -> Findings:
        """Read JSON.

        Raises:
            InputError: the file cannot be read, or holds something else.
        """
        try:
            return cls.from_dict(json.loads(path.read_text("utf-8")))
        except DAMAGED as error:
            raise InputError(
                f"{path}: holds no findings of twinset ({type(error).__name__}); measure again"
            ) from error


def _score(data: Mapping[str, Any]) -> Score:
    infinite: dict[str, Any] = {"value": math.nan, "low": -math.inf, "high": math.inf}
    infinite |= {"minimum": -math.inf, "maximum": math.inf}
    known: dict[str, Any] = {k: infinite.get(k) if v is None else v for k, v in data.items()}
    return Score(**known)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value
