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
from typing import Any, Literal, get_args

from evaluation.private_output import OWNER_ONLY
from evaluation.scores import Goal, Score, Where
from twinset.errors import DAMAGED, InputError
from twinset.files.atomic import write_json
from twinset.files.limits import read_text

SCHEMA = 1
_DEEPEST = 10  # of objects in one another, about what was measured
_LARGEST = 1e100  # of a number, and of a count the next: nothing measured is near
_MOST = 10**18
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
            ValueError: another schema, or a value that is none of those known.
            KeyError, TypeError: something is missing or is not of its type.
        """
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema {data['schema']} is not known here")
        return cls(
            kind=_text(data["kind"]),
            about=_about(data["about"]),
            measured=tuple(map(_measured, _items(data["measured"]))),
            curves=tuple(map(_curve, _items(data["curves"]))),
            histograms=tuple(map(_histogram, _items(data["histograms"]))),
            notes=tuple(map(_text, _items(data["notes"]))),
        )

    def save(self, path: Path) -> None:
        """Write JSON that its owner alone may read: it was computed on private rows."""
        write_json(path, self.to_dict(), mode=OWNER_ONLY)

    @classmethod
    def load(cls, path: Path) -> Findings:
        """Read JSON.

        Raises:
            InputError: the file cannot be read, or holds something else.
        """
        try:
            return cls.from_dict(json.loads(read_text(path)))
        except DAMAGED as error:
            raise InputError(
                f"{path}: holds no findings of twinset ({type(error).__name__}); measure again"
            ) from error


def _measured(data: Mapping[str, Any]) -> Measured:
    place = {_text(name): _text(value) for name, value in data["place"].items()}
    return Measured(_one_of(data["question"], Question), _score(data["score"]), place)


def _score(data: Mapping[str, Any]) -> Score:
    return Score(
        name=_text(data["name"]),
        value=_number(data["value"], math.nan),
        low=_number(data["low"], -math.inf),
        high=_number(data["high"], math.inf),
        goal=_one_of(data["goal"], Goal),
        minimum=_number(data["minimum"], -math.inf),
        maximum=_number(data["maximum"], math.inf),
        n=_whole(data["n"]),
        where=_one_of(data["where"], Where),
    )


def _curve(data: Mapping[str, Any]) -> Curve:
    names = {name: _text(data[name]) for name in ("name", "x", "y", "log")}
    lines = {_text(name): list(map(_point, _items(v))) for name, v in data["series"].items()}
    return Curve(_one_of(data["question"], Question), **names, series=lines)


def _point(data: Any) -> tuple[Any, ...]:
    """Return (x, y) or (x, y, low, high); what was not finite stays None."""
    point = tuple(None if v is None else _number(v, None) for v in _items(data))
    if len(point) not in (2, 4):
        raise ValueError("a point has two numbers, or four")
    return point


def _histogram(data: Mapping[str, Any]) -> Histogram:
    bins = list(map(_text, _items(data["bins"])))
    series = {
        _text(name): [_number(share, math.nan) for share in _items(shares)]
        for name, shares in data["series"].items()
    }
    if any(len(shares) != len(bins) for shares in series.values()):
        raise ValueError("a share for each bin")
    names = {name: _text(data[name]) for name in ("name", "x")}
    return Histogram(_one_of(data["question"], Question), **names, bins=bins, series=series)


def _about(data: Any, depth: int = _DEEPEST) -> dict[str, Any]:
    if not isinstance(data, dict) or not depth:
        raise TypeError
    return {k: _about(v, depth - 1) if isinstance(v, dict) else v for k, v in data.items()}


def _items(value: Any) -> list[Any] | tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise TypeError
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _MOST:
        raise TypeError
    return value


def _number(value: Any, absent: Any) -> Any:
    """Return a number; `absent` for the null that stands for one that was not finite."""
    if value is None:
        return absent
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    if not abs(value) < _LARGEST:
        raise ValueError("no number that a page could show")
    return value


def _one_of(value: Any, kind: Any) -> Any:
    if not isinstance(value, str) or value not in get_args(kind):
        raise ValueError("none of the words that are known here")
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value
