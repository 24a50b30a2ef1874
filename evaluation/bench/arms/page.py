"""The page of all arms, made of finished rows alone; what was not run is named as not run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from evaluation.bench.arms.measuring import EPSILON, MADE, NUMBER, SCORING
from evaluation.bench.arms.picture import Line, draw
from evaluation.bench.arms.plan import ALL_ROWS, ONCE, WHOLE, Stated
from evaluation.bench.arms.scores import (
    ACCURACY,
    FIDELITY,
    LENGTH,
    LOG_ODDS,
    MAUVE,
    MEDIAN,
    TEACHER,
)
from evaluation.markdown import page, table
from evaluation.private_table import names_of
from evaluation.results_store import ABOUT, ResultsStore
from evaluation.scores import mean
from twinset.config.plan import is_few
from twinset.privacy.accounting.rounding import up_decimals
from twinset.release.markdown import code

NOT_RUN = "not run"
TEACHER_ARM, BASE_ARM, REAL = "teacher itself", "base", "real rows"
TWIN, UNTRAINED = "twin + tilt + teacher", "base + released words + teacher"
_STEPS = {TWIN: "trained", UNTRAINED: "none"}
_DIFFERENCES = ["real − twin", "twin − base", "best twin − teacher"]
_SUMMARY = ["table", "ε", "steps", "real", "twin", *_DIFFERENCES, MAUVE]

Rows = list[dict[str, Any]]  # of one case, one a seed
Values = list[float | None]
Case = tuple[str, float, str, str]  # a measurement but for its seed


class Page:
    """Shows what was found beside what should be.

    Args:
        store: the rows.
        stated: what there should be.
    """

    def __init__(self, store: ResultsStore, stated: Stated) -> None:
        self._store, self._stated = store, stated
        self._wanted = list(stated.measurements())
        found = (student for row in store.rows.values() for student in _students_of(row))
        self._students = list(dict.fromkeys([*stated.size["students"], *found]))

    def text(self) -> str:
        """Return it."""
        tables = (self._table(name) for name in self._stated.tables if name in self._facts)
        return page(
            "Twins beside the base, a teacher and real rows, all at one ε",
            _INTRODUCTION,
            ["## Summary", "", *self._summary(), "", "![Accuracy by arm and ε](arms.png)"],
            *tables,
            ["## What it took", "", *self._costs()],
            ["## Not run", "", *self._not_run()],
            ["## How it was made", "", *self._made()],
        )

    def picture(self, path: Path) -> None:
        """Draw what the most rows of each arm teach: a panel for each table that has any."""
        student, most = self._students[0], self._stated.size["rows"][-1]
        panels = {
            name: lines for name in self._facts if (lines := list(self._drawn(name, most, student)))
        }
        if panels:
            draw(path, panels, f"accuracy, all labels, student {student}")

    def _drawn(self, name: str, most: str, student: str) -> Iterator[Line]:
        value = _accuracy_of(self._targets(name)[-1], student)
        for arm in self._stated.arms:
            wanted = {"real": self._real, "classify": ALL_ROWS}.get(arm.use, most)
            asked = self._stated.size["epsilons"] if arm.is_private else [ONCE]
            rows = {epsilon: self._rows((name, epsilon, arm.name, wanted)) for epsilon in asked}
            found = {e: [v for row in some if (v := value(row))] for e, some in rows.items()}
            if known := {epsilon: values for epsilon, values in found.items() if values}:
                yield Line(arm.name, known, not arm.is_private)

    @property
    def _facts(self) -> Mapping[str, Any]:
        """Of each table of which anything was measured."""
        found: Mapping[str, Any] = self._store.facts.get("tables", {})
        return found

    def _rows(self, case: Case) -> Rows:
        found = (self._store.rows.get((*case, seed)) for seed in self._stated.size["seeds"])
        return [row for row in found if row is not None]

    def _cases(self, name: str) -> list[Case]:
        cases: list[Case] = [(*m[:3], m.rows) for m in self._wanted if m.table == name]
        place = {arm.name: number for number, arm in enumerate(self._stated.arms)}
        sizes = [*self._stated.size["rows"], ALL_ROWS]

        def order(case: Case) -> tuple[int, float, int]:
            return place[case[2]], case[1], sizes.index(case[3])

        return sorted(dict.fromkeys(cases), key=order)

    def _targets(self, name: str) -> list[str]:
        attributes = self._stated.tables[name]["attributes"]
        return [*attributes, names_of(attributes)] if len(attributes) > 1 else list(attributes)

    @property
    def _real(self) -> str:
        """How many real rows a twin is compared with."""
        rows = self._stated.size["rows"]
        return WHOLE if WHOLE in rows else str(rows[-1])

    def _summary(self) -> list[str]:
        most, student = self._stated.size["rows"][-1], self._students[0]
        cases = [
            (name, epsilon)
            for epsilon in self._stated.size["epsilons"]
            for name in self._facts
            if any(key[:2] == (name, epsilon) for key in self._store.rows)
        ]
        found = {case: self._compared(*case) for case in cases}
        lines = [
            [name, f"{epsilon:g}", _STEPS[self._default(name, epsilon)], *map(_three, values)]
            for (name, epsilon), values in found.items()
        ]
        lines += self._means(found)
        explained = (
            f"All labels together, student {student}; twin: what `twinset generate` makes of so "
            "many records by default, trained by this size's options or not at all, "
            f"{most} rows beside {self._real} real rows. “best” is the best student of the twin, "
            "“teacher” the teacher alone at the same total ε. Means of the seeds that were run; a "
            "table that is another in a new form, or that lacks a column, is not in the mean of "
            "tables."
        )
        return [explained, "", *table(_SUMMARY, lines, 3)]

    def _means(self, found: Mapping[tuple[str, float], Values]) -> Iterator[list[str]]:
        for epsilon in dict.fromkeys(epsilon for _, epsilon in found):
            values = [
                those
                for (name, of), those in found.items()
                if of == epsilon and "folder" not in self._stated.tables[name] and None not in those
            ]
            if values:
                means = (_three(_mean(column)) for column in zip(*values, strict=True))
                yield ["mean of tables", f"{epsilon:g}", "", *means]

    def _default(self, name: str, epsilon: float) -> str:
        """Return the arm that a run of so many records is by default."""
        return UNTRAINED if is_few(self._facts[name]["training rows"], epsilon) else TWIN

    def _compared(self, name: str, epsilon: float) -> Values:
        most, student = self._stated.size["rows"][-1], self._students[0]
        target, arm = self._targets(name)[-1], self._default(name, epsilon)

        def students(epsilon: float, arm: str, rows: str, of: Sequence[str]) -> Values:
            cases = self._rows((name, epsilon, arm, rows))
            return [_mean(_accuracy(row, target, one) for row in cases) for one in of]

        (real,) = students(ONCE, REAL, self._real, [student])
        (base,) = students(ONCE, BASE_ARM, most, [student])
        (twin,) = students(epsilon, arm, most, [student])
        (teacher,) = students(epsilon, TEACHER_ARM, ALL_ROWS, [TEACHER])
        best = max((v for v in students(epsilon, arm, most, self._students) if v), default=None)
        mauve = _mean(row.get(MAUVE) for row in self._rows((name, epsilon, arm, most)))
        return [real, twin, _less(real, twin), _less(twin, base), _less(best, teacher), mauve]

    def _table(self, name: str) -> list[str]:
        facts = self._facts[name].items()
        said = ", ".join(f"{what}: {value}" for what, value in facts if what != "SHA-256")
        return [
            *(f"## {name}", "", said, ""),
            *("### Accuracy of students on real rows", "", *self._accuracies(name), ""),
            *("### How like real rows", "", *self._likeness(name)),
        ]

    def _accuracies(self, name: str) -> list[str]:
        columns = [(t, student) for t in self._targets(name) for student in self._students]
        values = [_accuracy_of(target, student) for target, student in columns]
        header = [f"{target}: {student}" for target, student in columns]
        cases = [c for c in self._cases(name) if self._stated.arm(c[2]).use != "second"]
        return self._lines(cases, header, values, NOT_RUN)

    def _likeness(self, name: str) -> list[str]:
        joint, attributes = self._targets(name)[-1], self._stated.tables[name]["attributes"]
        values: dict[str, Callable[[dict[str, Any]], float | None]] = {
            f"{FIDELITY}, {joint}": lambda row: row.get(FIDELITY, {}).get(joint),
            **{f"{LOG_ODDS}, {one}": _log_odds_of(one) for one in attributes},
            MAUVE: lambda row: row.get(MAUVE),
            f"words: {LENGTH}": lambda row: row.get(LENGTH),
            MEDIAN: lambda row: row.get(MEDIAN),
        }
        cases = [c for c in self._cases(name) if self._stated.arm(c[2]).use != "classify"]
        return self._lines(cases, list(values), list(values.values()), "–")

    def _lines(
        self,
        cases: Sequence[Case],
        header: Sequence[str],
        values: Sequence[Callable[[dict[str, Any]], float | None]],
        blank: str,
    ) -> list[str]:
        lines = []
        for case in cases:
            rows = self._rows(case)
            if not rows:  # it is named at the end
                continue
            _, epsilon, arm, wanted = case
            spent = max((row[EPSILON] for row in rows if row[EPSILON] is not None), default=None)
            star = " \\*" if any(map(self._store.is_elsewhere, rows)) else ""
            left = [f"{arm}{star}", "none" if epsilon == ONCE else f"{epsilon:g}", wanted]
            facts = [str(len(rows)), "" if spent is None else up_decimals(spent), _number(rows)]
            shown = (_cell([value(row) for row in rows], blank) for value in values)
            lines.append([*left, *facts, *shown])
        return table(["arm", "ε", "rows", "seeds", "ε spent", "rows kept", *header], lines, 3)

    def _costs(self) -> list[str]:
        """Return what each kind of part took: the mean of its minutes, the most of its memory."""
        spent: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
        for key, row in self._store.rows.items():
            for what, cost in row[MADE].items():
                kind, one = what.rpartition("/")[2], str(key) if what == SCORING else what
                spent.setdefault((str(key[0]), kind), {})[one] = cost
        lines = [[*kind, *_cost(list(costs.values()))] for kind, costs in spent.items()]
        note = (
            "Wall time and peak resident memory of the process, of whatever machine made it. What "
            "several arms share was made once. A part that was killed counts from its last start."
        )
        return [note, "", *table(["table", "what", "parts", "minutes", "peak GiB"], lines, 2)]

    def _not_run(self) -> Iterator[str]:
        """Yield what is missing, by table and ε: arms that lack the same stand together."""
        missing = [m for m in self._wanted if tuple(m) not in self._store.rows]
        if not missing:
            yield "Nothing: all was run."
        for (name, epsilon), group in groupby(missing, lambda m: (m.table, m.epsilon)):
            by_arm: dict[str, dict[str, list[int]]] = {}
            for m in group:
                by_arm.setdefault(m.arm, {}).setdefault(m.rows, []).append(m.seed)
            alike: dict[str, list[str]] = {}
            for arm, rows in by_arm.items():
                lacking = "; ".join(f"{each} ({_seeds(seeds)})" for each, seeds in rows.items())
                alike.setdefault(lacking, []).append(arm)
            said = "; ".join(f"{', '.join(arms)}: rows {of}" for of, arms in alike.items())
            yield f"- {name}, {_shown(epsilon)}: {said}"

    def _made(self) -> Iterator[str]:
        for name, facts in self._store.facts.get("tables", {}).items():
            sums = ", ".join(f"{file} {digest}" for file, digest in facts["SHA-256"].items())
            yield f"- {name}: SHA-256 {sums}"
        for what, value in self._store.settings.items():
            if what != ABOUT:
                yield f"- {what}: {value}"
        yield from (f"- {what}: {said}" for what, said in self._store.made())
        yield f"- seeds: {', '.join(map(str, self._stated.size['seeds']))}"
        yield from (f"- command: {code(command)}" for command in self._store.commands)


_INTRODUCTION = [
    "Students learn from an arm's rows and are tested on real rows that nothing was trained on. "
    "Every private arm has the whole of ε for all of its releases together. Rows are the first of "
    "one generation.",
    "",
    "- base: behind the same prompts with the same decoding, without private data; label shares "
    "are the real ones",
    "- base + released words: tilted towards noisy counts of words; nothing is trained",
    "- base + released words + teacher: all but the training, which pays for less noise; rows "
    "whose labels the teacher of the base model denies are drawn again; the default where records "
    "are few for ε",
    "- twin: trained, and no more; it has paid for tilt and teacher too",
    "- twin + tilt: its words tilted towards noisy counts; no teacher judges rows",
    "- twin + tilt + teacher: the default where records are many; rows whose labels the run's own "
    "teacher denies are drawn again",
    "- teacher: a private classifier on hidden states, by itself of the base model; “relabelled”: "
    "rows get its labels; “kept”: only those rows on whose labels it agrees; “itself”: no students",
    "",
    "Label fidelity: how often the first student, trained on real rows, finds the labels; that of "
    "the second real sample, the held-out rows, is what real rows reach. Log-odds correlation: of "
    "words between labels, with the training rows. MAUVE is that of docs/results.md. With several "
    "seeds: mean and 95 % t interval. A star: made by other versions or on another "
    "machine, in part or whole; the last section says by which.",
]


def _shown(epsilon: Any) -> str:
    return "no ε" if epsilon == ONCE else f"ε {epsilon:g}"


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


def _students_of(row: Mapping[str, Any]) -> list[str]:
    known: dict[str, float] = next(iter(row.get(ACCURACY, {}).values()), {})
    return [student for student in known if student != TEACHER]


def _accuracy(row: Mapping[str, Any], target: str, student: str) -> float | None:
    found = row.get(ACCURACY, {}).get(target, {})
    value: float | None = found.get(student)
    return value


def _accuracy_of(target: str, student: str) -> Callable[[dict[str, Any]], float | None]:
    """Return what reads a student's accuracy; a teacher is its own student."""

    def value(row: dict[str, Any]) -> float | None:
        found = _accuracy(row, target, TEACHER)
        return _accuracy(row, target, student) if found is None else found

    return value


def _log_odds_of(attribute: str) -> Callable[[dict[str, Any]], float | None]:
    return lambda row: row.get(LOG_ODDS, {}).get(attribute)


def _cell(values: Iterable[float | None], blank: str) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return blank
    score = mean("", known, "match", float("-inf"), float("inf"))
    digits = 3 if abs(score.value) <= 1 else 1
    middle, low, high = (f"{v:.{digits}f}" for v in (score.value, score.low, score.high))
    return middle if len(known) == 1 else f"{middle} [{low}, {high}]"


def _number(rows: Rows) -> str:
    kept = sorted({row[NUMBER] for row in rows if row[NUMBER]})
    return "–".join(f"{number:,}" for number in dict.fromkeys((*kept[:1], *kept[-1:])))


def _cost(costs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return how many parts were measured, the mean of their minutes, and the most of memory."""
    known = [cost for cost in costs if "note" not in cost]
    if not known:
        return [str(len(costs)), costs[0]["note"], ""]
    minutes = sum(cost["minutes"] for cost in known) / len(known)
    most = max(cost["peak GiB"] for cost in known)
    return [str(len(known)), f"{minutes:.1f}", f"{most:.2f}"]


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _three(value: float | None) -> str:
    return NOT_RUN if value is None else f"{value:.3f}"


def _less(ours: float | None, theirs: float | None) -> float | None:
    return None if ours is None or theirs is None else ours - theirs
