"""Findings of an evaluation or an audit: scores, curves, histograms, and how they are stored.

A `Score` is a number with everything needed to read it. `Findings` is one flat list of scores,
each with its place ("rows" → "twin", "classifier" → "tfidf"), with curves and histograms for the
eye and notes that every reader should see. Every question has the same shape, so the report, the
terminal and a reader of the JSON need to know only this one. Nothing here measures anything.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from twinset.bounds import Bounds
from twinset.errors import DAMAGED, InputError
from twinset.files.atomic import write_json, write_text
from twinset.files.environment import machine, versions
from twinset.files.limits import read_text

Question = Literal["utility", "fidelity", "leakage"]
Goal = Literal["maximise", "minimise", "match"]  # match: as near as can be to real rows' value
# What a value was computed from. Only the twin and its model go into "release alone": that is
# post-processing of something differentially private and may be published. All else is private.
Where = Literal["private rows", "release alone"]
Place = Mapping[str, str]

OWNER_ONLY = 0o600  # who may read and write a file of figures that come from private rows
Z_95 = 1.959963984540054  # two-sided 95 % quantile of the standard normal
FIRST = "first-{}.json"  # in `internal/`: findings of a kind at the end of a run
SCHEMA = 1
_DEEPEST = 10  # nesting depth of objects in a file
# Larger values can't come from a measurement. They would only break the page's axes.
_LARGEST_NUMBER, _LARGEST_COUNT = 1e100, 10**18

# Which number a null stands for, by the field that holds it. Elsewhere it is "not a number".
_NOT_FINITE = {"low": -math.inf, "minimum": -math.inf, "high": math.inf, "maximum": math.inf}

# Bounds of options that several commands take.
RUNS = Bounds(1, 1000)  # of each policy or classifier
ATTACKED = Bounds(2, 10**8)  # members, and the same number of others
SECRETS = Bounds(1, 1000)  # of each number of copies
PLANTED = Bounds(0, 10**5)  # copies of a secret
LENGTHS = Bounds(1, 18)  # digits of a secret
CANARIES = Bounds(0, 10**6)


@dataclass(frozen=True)
class Score:
    """One value with its 95 % interval, its desired direction, its range and its sample size."""

    name: str  # the measure
    value: float  # the result
    low: float  # lower end of the interval
    high: float  # upper end
    goal: Goal  # the way it should go
    minimum: float  # least possible value
    maximum: float  # greatest possible value. It may be ∞.
    n: int  # unit of the interval: rows, pairs or runs
    where: Where = "private rows"  # its data

    def __str__(self) -> str:
        """Return "0.812 [0.794, 0.829]"."""
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def proportion(name: str, hits: int, n: int, goal: Goal = "maximise") -> Score:
    """Return hits / n with Wilson's interval (Wilson 1927), which is valid near 0 and 1 too.

    The interval is about the n counted rows, not about training again.

    >>> print(proportion("accuracy", 90, 100))
    0.900 [0.826, 0.945]
    """
    from scipy.stats import binomtest

    found = binomtest(hits, n).proportion_ci(0.95, "wilson")
    p = hits / n
    low, high = min(p, float(found.low)), max(p, float(found.high))  # by rounding p may be outside
    return Score(name, p, low, high, goal, 0.0, 1.0, n)


def mean(name: str, values: Sequence[float], goal: Goal, minimum: float, maximum: float) -> Score:
    """Return the mean of repetitions with Student's t interval, cut at the range.

    The interval is about repeating everything. For a single value it is the whole range.

    >>> print(mean("accuracy", [0.8, 0.9, 0.85], "maximise", 0.0, 1.0))
    0.850 [0.726, 0.974]
    """
    from scipy.stats import t

    n, middle = len(values), statistics.fmean(values)
    half = math.inf
    if n > 1:
        half = float(t.ppf(0.975, n - 1)) * statistics.stdev(values) / math.sqrt(n)
    low, high = max(minimum, middle - half), min(maximum, middle + half)
    return Score(name, middle, low, high, goal, minimum, maximum, n)


@dataclass(frozen=True)
class Measured:
    """A score, the question it answers, and its place among those of the same name."""

    question: Question  # the question it helps to answer
    score: Score
    # Which one it is: dimension → value. Always in words, never private text.
    place: Place = field(default_factory=dict)

    @property
    def part(self) -> str:
        """The dimension that makes it one of many (a label's value, a column, a pair), or ""."""
        return next((each for each in ("value", "column", "pair") if each in self.place), "")


@dataclass(frozen=True)
class Curve:
    """Lines to draw."""

    question: Question  # the question they help to answer
    name: str  # title
    x: str  # name and unit of the abscissa
    y: str  # name of the ordinate
    # By name, points (x, y) or (x, y, low, high) in rising x
    series: Mapping[str, list[tuple[Any, ...]]]
    log: str = ""  # "x", "y", "xy" or "": the axes that are logarithmic


@dataclass(frozen=True)
class Histogram:
    """Shares by bin, for several tables side by side."""

    question: Question  # the question they help to answer
    name: str  # title
    x: str  # the counted things, with their unit
    bins: list[str]  # the bins' names
    series: Mapping[str, list[float]]  # by table, the share of its rows in every bin


@dataclass(frozen=True)
class Findings:
    """Everything that one command found."""

    kind: str  # "evaluation", "audit" or "canaries"
    # How to do it again: command, seed, tables with rows, versions, machine, guarantee
    about: Mapping[str, Any]
    measured: tuple[Measured, ...] = ()  # the scores
    curves: tuple[Curve, ...] = ()  # to be drawn
    histograms: tuple[Histogram, ...] = ()  # to be drawn
    # What a reader must know: overlaps, rows left out, what could not be measured
    notes: tuple[str, ...] = ()

    def of(self, question: Question) -> list[Measured]:
        """Return the scores that help to answer a question."""
        return [m for m in self.measured if m.question == question]

    def find(self, name: str, **place: str) -> Score | None:
        """Return the first score with that name and a matching place, or None."""
        for m in self.measured:
            if m.score.name == name and place.items() <= dict(m.place).items():
                return m.score
        return None

    def publishable(self) -> list[Measured]:
        """Return the scores that were computed from the release alone."""
        return [m for m in self.measured if m.score.where == "release alone"]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON. Numbers that are not finite become null."""
        written = json.dumps({"schema": SCHEMA} | asdict(self))
        found: dict[str, Any] = json.loads(written, parse_constant=lambda name: None)
        return found

    def save(self, path: Path) -> None:
        """Write JSON that only its owner may read, because it was computed from private rows."""
        write_json(path, self.to_dict(), mode=OWNER_ONLY)

    @classmethod
    def load(cls, path: Path) -> Findings:
        """Read JSON. A file that cannot be read, or has other content, is refused.

        Every value is checked against the type of its field, because the file may be damaged or
        come from somewhere else, and the report prints and draws all of it.
        """
        try:
            data = json.loads(read_text(path))
            if data["schema"] != SCHEMA:
                raise ValueError(f"schema {data['schema']} is not known here")
            found: Findings = _read_as(cls, data)
            lines = [line for curve in found.curves for line in curve.series.values()]
            if any(len(point) not in (2, 4) for line in lines for point in line):
                raise ValueError("a point has two numbers, or four")
            if any(len(s) != len(h.bins) for h in found.histograms for s in h.series.values()):
                raise ValueError("a share for each bin")
            return found
        except DAMAGED as error:
            raise InputError(
                f"{path}: holds no findings of twinset ({type(error).__name__}). Measure again."
            ) from error


def _read_as(kind: Any, data: Any, name: str = "", depth: int = _DEEPEST) -> Any:
    """Return JSON data as a value of a type: a dataclass, or the types of its fields.

    The field's name decides the meaning of a null. `depth` limits how deep objects may be nested.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{f.name: _read_as(hints[f.name], data[f.name], f.name) for f in fields(kind)})
    if origin is Literal:
        if not isinstance(data, str) or data not in inner:
            raise ValueError("none of the words that are known here")
        return data
    if origin in (list, tuple) and isinstance(data, list | tuple):
        return origin(_read_as(inner[0], each, name) for each in data)
    if isinstance(data, dict) and depth and (origin is Mapping or name == "about"):
        below = inner[1] if inner else Any
        return {_read_as(str, k): _read_as(below, v, name, depth - 1) for k, v in data.items()}
    if origin is not None or isinstance(data, dict):  # no such container, or nested too deep
        raise TypeError
    if name == "about":  # anything: it is shown as words and never computed with
        return data
    if kind is str:
        fits = isinstance(data, str)
    elif kind is int:
        fits = type(data) is int and 0 <= data < _LARGEST_COUNT
    elif data is None:  # a point keeps its None, so that the line has a gap there
        return None if kind is Any else _NOT_FINITE.get(name, math.nan)
    else:
        fits = type(data) in (int, float) and abs(data) < _LARGEST_NUMBER
    if not fits:
        raise TypeError
    return data


@dataclass
class KeptFindings:
    """Findings in a file, written each time they grow. Earlier ones are kept under another name."""

    path: Path | None
    earlier: Path | None = None
    has_begun: bool = False

    def save(self, findings: Findings) -> None:
        """Write the findings so far."""
        if self.path is None:
            return
        # Only the first writing meets earlier findings. Later ones replace our own.
        if not self.has_begun and self.path.exists():
            names = (self.path.with_suffix(f".earlier-{n}{self.path.suffix}") for n in count(1))
            self.earlier = next(name for name in names if not name.exists())
            write_text(self.earlier, read_text(self.path), OWNER_ONLY)
        self.has_begun = True
        findings.save(self.path)


def check_output(output: Path) -> None:
    """Refuse a file in a place that is meant for others, and one with other content."""
    check_private_place(output)
    if output.exists():
        try:
            Findings.load(output)
        except InputError:
            raise InputError(
                f"`output={output}`: exists and holds no findings. Name another file."
            ) from None


def check_private_place(output: Path) -> None:
    """Refuse a file in a place that must not have figures of private rows, or in no folder."""
    folder = output.resolve().parent
    if (folder / "privacy.json").exists() or folder.name == "share":
        raise InputError(f"`output={output}`: is for others. Keep these figures elsewhere.")
    if not output.parent.is_dir():
        raise InputError(f"`output={output}`: its folder does not exist. Create it.")


def check_settings(path: Path, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Refuse to add to results that were made under other settings, and name these."""
    if names := [n for n in {**ours, **theirs} if ours.get(n) != theirs.get(n)]:
        raise InputError(
            f"{path}: its rows were made with other settings ({', '.join(names)}). "
            "Name another `output`, or remove the file."
        )


def about() -> dict[str, str]:
    """Return versions and machine, one per line."""
    here = machine()
    return {
        "versions": ", ".join(f"{name} {v}" for name, v in versions().items()),
        "machine": f"{here['cpu']}, {here['cores']} cores",
    }


def markdown_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1
) -> list[str]:
    """Return the lines of a Markdown table with left-aligned first columns."""
    rule = ["---"] * left + ["---:"] * (len(header) - left)
    return [f"| {' | '.join(cells)} |" for cells in (header, rule, *rows)]
