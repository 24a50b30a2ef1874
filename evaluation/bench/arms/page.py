"""The page of all arms, made of finished rows alone; what was not run is named as not run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from evaluation.bench.arms.curves import Curves
from evaluation.bench.arms.findings import Case, Findings, Row, accuracy_of
from evaluation.bench.arms.measuring import EPSILON, MADE, NUMBER, SCORING
from evaluation.bench.arms.picture import draw
from evaluation.bench.arms.plan import ALL_ROWS, ONCE, Stated
from evaluation.bench.arms.scores import FIDELITY, LENGTH, LOG_ODDS, MAUVE, MEDIAN
from evaluation.bench.arms.summary import NOT_RUN, Summary
from evaluation.markdown import page, table
from evaluation.results_store import ABOUT, ResultsStore
from evaluation.scores import mean
from twinset.privacy.accounting.rounding import up_decimals
from twinset.release.markdown import code


class Page:
    """Shows what was found beside what should be.

    Args:
        store: the rows.
        stated: what there should be.
    """

    def __init__(self, store: ResultsStore, stated: Stated) -> None:
        self._store, self._stated = store, stated
        self._wanted, self._found = list(stated.measurements()), Findings(store, stated)

    def text(self) -> str:
        """Return it."""
        tables = (self._table(name) for name in self._stated.tables if name in self._found.tables)
        summary = Summary(self._found, self._stated).text()
        return page(
            "Twins beside the base, a teacher and real rows, all at one ε",
            _INTRODUCTION,
            ["## Summary", "", *summary, "", "![Accuracy by arm, ε and rows](arms.png)"],
            *tables,
            ["## What it took", "", *self._costs()],
            ["## Not run", "", *self._not_run()],
            ["## How it was made", "", *self._made()],
        )

    def picture(self, path: Path) -> None:
        """Draw what each arm's rows teach, if anything was measured."""
        if panels := Curves(self._found, self._stated).panels():
            draw(path, panels, f"accuracy, all labels, student {self._found.students[0]}")

    def _cases(self, name: str) -> list[Case]:
        cases: list[Case] = [(*m[:3], m.rows) for m in self._wanted if m.table == name]
        place = {arm.name: number for number, arm in enumerate(self._stated.arms)}
        sizes = [*self._stated.size["rows"], ALL_ROWS]

        def order(case: Case) -> tuple[int, float, int]:
            return place[case[2]], case[1], sizes.index(case[3])

        return sorted(dict.fromkeys(cases), key=order)

    def _table(self, name: str) -> list[str]:
        facts = self._found.tables[name].items()
        said = ", ".join(f"{what}: {value}" for what, value in facts if what != "SHA-256")
        return [
            *(f"## {name}", "", said, ""),
            *("### Accuracy of students on real rows", "", *self._accuracies(name), ""),
            *("### How like real rows", "", *self._likeness(name)),
        ]

    def _accuracies(self, name: str) -> list[str]:
        columns = [
            (t, student) for t in self._found.targets(name) for student in self._found.students
        ]
        values = [accuracy_of(target, student) for target, student in columns]
        header = [f"{target}: {student}" for target, student in columns]
        cases = [c for c in self._cases(name) if self._stated.arm(c[2]).use != "second"]
        return self._lines(cases, header, values, NOT_RUN)

    def _likeness(self, name: str) -> list[str]:
        joint, attributes = self._found.targets(name)[-1], self._stated.tables[name]["attributes"]
        values: dict[str, Callable[[Row], float | None]] = {
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
        values: Sequence[Callable[[Row], float | None]],
        blank: str,
    ) -> list[str]:
        lines = []
        for case in cases:
            rows = self._found.rows(case)
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
    "- real rows, cut: at as many tokens as those that a run reads; test rows are whole for all",
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


def _log_odds_of(attribute: str) -> Callable[[Row], float | None]:
    return lambda row: row.get(LOG_ODDS, {}).get(attribute)


def _cell(values: Iterable[float | None], blank: str) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return blank
    score = mean("", known, "match", float("-inf"), float("inf"))
    digits = 3 if abs(score.value) <= 1 else 1
    middle, low, high = (f"{v:.{digits}f}" for v in (score.value, score.low, score.high))
    return middle if len(known) == 1 else f"{middle} [{low}, {high}]"


def _number(rows: list[Row]) -> str:
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
