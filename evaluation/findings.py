"""What an evaluation or an audit found: scores, curves, histograms, and how they are stored.

A `Score` is a number with everything needed to read it. `Findings` is one flat list of scores,
each with its place ("rows" → "twin", "classifier" → "tfidf"), with curves and histograms for the
eye and notes that every reader should see. Every question has the same shape, so the report, the
terminal and a reader of the JSON need to know only this one. Nothing here measures anything.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import statistics
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal, Self, get_args, get_origin, get_type_hints

from twinset.bounds import Bounds
from twinset.errors import DAMAGED, InputError
from twinset.files.atomic import write_json, write_text
from twinset.files.environment import LIBRARIES, machine, versions
from twinset.files.limits import read_text

Question = Literal["utility", "fidelity", "leakage"]
Goal = Literal["maximise", "minimise", "match"]  # match: as near as can be to real rows' value
# What a value was computed from. Only the twin and its model go into "release alone": that is
# post-processing of something differentially private and may be published. All else is private.
Where = Literal["private rows", "release alone"]
Place = Mapping[str, str]

OWNER_ONLY = 0o600  # who may read and write a file of figures that come from private rows
Z_95 = 1.959963984540054  # two-sided 95 % quantile of the standard normal
SCHEMA = 1
_DEEPEST = 10  # objects within one another, in what a file says about itself
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
    """One value with its 95 % interval, the way it should go, its range and its sample size."""

    name: str  # the measure
    value: float  # what was found
    low: float  # lower end of the interval
    high: float  # upper end
    goal: Goal  # the way it should go
    minimum: float  # least possible value
    maximum: float  # greatest possible value. It may be ∞.
    n: int  # what the interval counts: rows, pairs or runs
    where: Where = "private rows"  # what it was computed from

    def __str__(self) -> str:
        """Return "0.812 [0.794, 0.829]"."""
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def proportion(name: str, hits: int, n: int, goal: Goal = "maximise") -> Score:
    """Return hits / n with Wilson's interval (Wilson 1927), which holds near 0 and 1 too.

    The interval is about the n rows that were counted, not about training again.

    Raises:
        ValueError: n is 0, or hits is not within 0 … n.

    >>> print(proportion("accuracy", 90, 100))
    0.900 [0.826, 0.945]
    """
    from scipy.stats import binomtest

    if not 0 <= hits <= n or n == 0:
        raise ValueError(f"{hits} of {n} is no proportion")
    found = binomtest(hits, n).proportion_ci(0.95, "wilson")
    p = hits / n
    low, high = min(p, float(found.low)), max(p, float(found.high))  # by rounding p may be outside
    return Score(name, p, low, high, goal, 0.0, 1.0, n)


def mean(name: str, values: Sequence[float], goal: Goal, minimum: float, maximum: float) -> Score:
    """Return the mean of repetitions with Student's t interval, cut at the range.

    The interval is about repeating everything. A single value has none: it is the whole range.

    Raises:
        ValueError: there is no value.

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

    question: Question  # what it helps to answer
    score: Score
    # Which one it is: dimension → value. Always in words, never private text.
    place: Place = field(default_factory=dict)


@dataclass(frozen=True)
class Curve:
    """Lines to be drawn."""

    question: Question  # what they help to answer
    name: str  # title
    x: str  # what the abscissa is, with its unit
    y: str  # what the ordinate is
    # By name, points (x, y) or (x, y, low, high) in rising x
    series: Mapping[str, list[tuple[Any, ...]]]
    log: str = ""  # "x", "y", "xy" or "": the axes that are logarithmic


@dataclass(frozen=True)
class Histogram:
    """Shares by bin, for several tables side by side."""

    question: Question  # what they help to answer
    name: str  # title
    x: str  # what is counted, with its unit
    bins: list[str]  # the bins' names
    series: Mapping[str, list[float]]  # by table, the share of its rows in every bin


@dataclass(frozen=True)
class Findings:
    """Everything that one command found.

    Example:
        >>> found = Findings("evaluation", {}, (Measured("utility", proportion("f", 1, 2)),))
        >>> Findings.from_dict(found.to_dict()) == found
        True
    """

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
        """Return the first score of that name whose place agrees, or None."""
        for m in self.measured:
            if m.score.name == name and place.items() <= dict(m.place).items():
                return m.score
        return None

    def publishable(self) -> list[Measured]:
        """Return the scores that were computed from the release alone."""
        return [m for m in self.measured if m.score.where == "release alone"]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON. What is not finite becomes null."""

        def to_plain(value: Any) -> Any:
            if isinstance(value, float):
                return value if math.isfinite(value) else None
            if isinstance(value, Mapping):
                return {key: to_plain(each) for key, each in value.items()}
            return [*map(to_plain, value)] if isinstance(value, list | tuple) else value

        found: dict[str, Any] = to_plain({"schema": SCHEMA} | asdict(self))
        return found

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Findings:
        """Read what `to_dict` returned.

        Every value is checked against the type of its field, because the file may be damaged or
        come from somewhere else, and the report prints and draws all of it.

        Raises:
            ValueError: another schema, or a value that is none of those known.
            KeyError, TypeError: something is missing or is not of its type.
        """
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema {data['schema']} is not known here")
        found: Findings = _read_as(cls, data)
        if any(
            len(p) not in (2, 4) for c in found.curves for line in c.series.values() for p in line
        ):
            raise ValueError("a point has two numbers, or four")
        if any(len(s) != len(h.bins) for h in found.histograms for s in h.series.values()):
            raise ValueError("a share for each bin")
        return found

    def save(self, path: Path) -> None:
        """Write JSON that only its owner may read: it was computed from private rows."""
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


def _read_as(kind: Any, data: Any, name: str = "", depth: int = _DEEPEST) -> Any:
    """Return JSON data as a value of a type: a dataclass, or whatever its fields are made of.

    Args:
        kind: the type.
        data: what JSON gave.
        name: of the field, which decides what a null stands for.
        depth: how many objects may still be nested. Otherwise a file could nest without end.
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


class KeptFindings:
    """Findings in a file, written each time they grow. Earlier ones are kept under another name."""

    def __init__(self, path: Path | None) -> None:
        self.path, self._has_begun = path, False
        self.earlier: Path | None = None

    def save(self, findings: Findings) -> None:
        """Write what was found so far."""
        if self.path is None:
            return
        # Only the first writing meets earlier findings. Later ones replace our own.
        if not self._has_begun and self.path.exists():
            self.earlier = find_free_name(self.path)
            write_text(self.earlier, read_text(self.path), OWNER_ONLY)
        self._has_begun = True
        findings.save(self.path)


def find_free_name(path: Path) -> Path:
    """Return a free name for findings that newer ones replace.

    >>> print(find_free_name(Path("runs/r/internal/evaluation.json")))
    runs/r/internal/evaluation.earlier-1.json
    """
    names = (path.with_suffix(f".earlier-{n}{path.suffix}") for n in count(1))
    return next(name for name in names if not name.exists())


def check_output(output: Path) -> None:
    """Refuse a file that findings must not go to.

    Raises:
        InputError: the place is meant for others, there is no such folder, or the file holds
            something else.
    """
    check_private_place(output)
    if output.exists():
        try:
            Findings.load(output)
        except InputError:
            raise InputError(
                f"`output={output}`: exists and holds no findings; name another file"
            ) from None


def check_private_place(output: Path) -> None:
    """Refuse a file that figures of private rows must not go to.

    Raises:
        InputError: the place is meant for others, or there is no such folder.
    """
    folder = output.resolve().parent
    if (folder / "privacy.json").exists() or folder.name == "share":
        raise InputError(f"`output={output}`: share/ is for others, and these figures are not")
    if not output.parent.is_dir():
        raise InputError(f"`output={output}`: its folder does not exist; create it")


Key = tuple[str | float, ...]


@dataclass
class ResultsStore:
    """Finished rows of an experiment in one JSON file, all made under the same settings.

    The file grows row by row. A command that was stopped resumes with the rows that are missing,
    several commands may add to one file at once, and rows of other settings are refused.

    Example::

        store = ResultsStore.open(Path("runs.json"), {"rows": 8}, "twinset compare …")
        for turn, key in store.missing([("uniform", 0), ("uniform", 1)]):
            store.add(key, {"accuracy": 0.8})
    """

    path: Path  # of the file
    settings: Mapping[str, Any]  # everything that a row depends on, except its key
    commands: list[str] = field(default_factory=list)  # that the rows came from
    facts: dict[str, Any] = field(default_factory=dict)  # what else a reader should know
    # By key, which is a case and last its seed where it has one: plain values for JSON
    rows: dict[Key, dict[str, Any]] = field(default_factory=dict)
    mode: int | None = None  # who may read the file. None: everybody who may read its folder.

    @classmethod
    def open(
        cls, path: Path, settings: Mapping[str, Any], command: str, mode: int | None = None
    ) -> Self:
        """Return the results that a file holds, or empty ones if there is no file yet.

        Raises:
            InputError: it does not hold results, or its rows were made under other settings.
        """
        settings = json.loads(json.dumps(settings))  # as they come back from a file
        store = cls(path, settings, [command], mode=mode)
        store._read()
        return store

    def _read(self) -> None:
        """Take over what the file holds by now."""
        if not self.path.exists():
            return
        try:
            kept = json.loads(self.path.read_text("utf-8"))
            rows = {tuple(row.pop("key")): row for row in kept["rows"]}
            settings, commands, facts = dict(kept["settings"]), kept["commands"], kept["facts"]
        except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
            raise InputError(f"{self.path}: holds no results; name another `output`") from error
        check_settings(self.path, self.settings, settings)
        self.rows |= rows  # the file may have newer rows in the place of ours
        self.commands = list(dict.fromkeys([*commands, *self.commands]))
        self.facts = facts | self.facts

    def missing(self, keys: Iterable[Key]) -> Iterator[tuple[str, Key]]:
        """Yield the keys that have no row yet, each behind its turn: "2 of 5"."""
        missing = [key for key in keys if key not in self.rows]
        for number, key in enumerate(missing, start=1):
            yield f"{number} of {len(missing)}", key

    def add(self, key: Key, row: Mapping[str, Any]) -> None:
        """Add a row and write the file, together with what other processes have written to it.

        Raises:
            InputError: the file no longer holds results, or it holds results of other settings.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # The lock is on the folder: the file itself is replaced at each write, and a lock file
        # would stay behind.
        descriptor = os.open(self.path.parent, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            self._read()
            self.rows[key] = dict(row)
            self.write()
        finally:
            os.close(descriptor)

    def write(self, **more: Any) -> None:
        """Write the file whole or not at all, with further values next to the rows."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.path, {**more, **self.to_dict()}, self.mode)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        rows = [{"key": list(key)} | row for key, row in self.rows.items()]
        stated = {"settings": self.settings, "facts": self.facts, "commands": self.commands}
        return {**stated, "rows": rows}


def check_settings(path: Path, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Refuse to add to results that were made under other settings.

    Raises:
        InputError: it names the settings that differ.
    """
    if names := [n for n in {**ours, **theirs} if ours.get(n) != theirs.get(n)]:
        raise InputError(
            f"{path}: its rows were made with other settings ({', '.join(names)}); "
            "name another `output`, or take the file away"
        )


def about(libraries: Iterable[str] = LIBRARIES) -> dict[str, str]:
    """Return versions and machine, a line each."""
    here = machine()
    return {
        "versions": ", ".join(f"{name} {v}" for name, v in versions(libraries).items()),
        "machine": f"{here['cpu']}, {here['cores']} cores",
    }


def markdown_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1
) -> list[str]:
    """Return the lines of a Markdown table, whose first columns are aligned to the left.

    >>> markdown_table(["", "time"], [["step", "2 s"]])
    ['|  | time |', '| --- | ---: |', '| step | 2 s |']
    """
    rule = ["---"] * left + ["---:"] * (len(header) - left)
    return [f"| {' | '.join(cells)} |" for cells in (header, rule, *rows)]


def run_as_command(function: Callable[..., None]) -> None:
    """Run a function as `python -m …` does, its parameters as options.

    Bad input ends it with one line and exit code 2, as with `twinset` itself.
    """
    import typer

    from twinset.commandline.entry_point import with_flags

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(function)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # of libraries, to developers. -W default shows them
    try:
        app()
    except InputError as error:
        typer.echo(f"error: {with_flags(str(error))}", err=True)
        raise SystemExit(2) from None
