"""The page of toolkits, made of finished rows alone; what was not run is named with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from evaluation.bench.arms.plan import ONCE
from evaluation.bench.arms.scores import ACCURACY, FIDELITY, MAUVE, MEDIAN
from evaluation.bench.toolkits.measuring import REAL
from evaluation.bench.toolkits.picture import Point, draw
from evaluation.bench.toolkits.plan import Stated, Toolkit
from evaluation.markdown import page, table
from evaluation.private_table import names_of
from evaluation.results_store import ResultsStore
from evaluation.scores import mean
from twinset.release.markdown import code

Rows = list[dict[str, Any]]  # of one case, one a seed
NOT_RUN = "not run"


class Page:
    """Shows what was found beside what should be.

    Args:
        store: the rows.
        stated: what there should be.
    """

    def __init__(self, store: ResultsStore, stated: Stated) -> None:
        self._store, self._stated = store, stated

    def text(self) -> str:
        """Return it."""
        return page(
            "Other toolkits beside twinset",
            ["## Where another toolkit does better", "", *self._better()],
            ["![Quality against minutes](toolkits.png)"],
            self._introduction(),
            *(self._table(name) for name in self._stated.tables),
            ["## What each ε covers", "", *self._covers()],
            ["## Not run", "", *self._not_run()],
            ["## How it was made", "", *self._made()],
        )

    def picture(self, path: Path) -> None:
        """Draw quality against minutes: a panel for each table and ε that has rows."""
        student = self._stated.size["students"][0]
        panels = {
            f"{name}, ε = {epsilon:g}": points
            for name in self._stated.tables
            for epsilon in self._epsilons()
            if (points := list(self._points(name, epsilon, student)))
        }
        if panels:
            draw(path, panels, f"accuracy of student {student}")

    def _points(self, name: str, epsilon: float, student: str) -> Iterator[Point]:
        """Yield a point for each toolkit, where any was asked for this ε."""
        found = [(t, self._rows(name, epsilon, t.name)) for t in self._stated.run if t.private]
        if not any(rows for _, rows in found):
            return
        found += [(t, self._rows(name, ONCE, t.name)) for t in self._stated.run if not t.private]
        for toolkit, rows in found:
            if rows:
                worth = _middle(rows, self._accuracy(name, student))
                yield Point(toolkit.name, _middle(rows, _minutes), worth, toolkit.ours)

    def _epsilons(self) -> list[float]:
        return list(self._stated.size["epsilons"])

    def _rows(self, name: str, epsilon: float, toolkit: str) -> Rows:
        keys = ((name, epsilon, toolkit, seed) for seed in self._stated.size["seeds"])
        found = (self._store.rows.get(key) for key in keys)
        return [row for row in found if row is not None and ACCURACY in row]

    def _target(self, name: str) -> str:
        return names_of(self._stated.tables[name]["attributes"])

    def _accuracy(self, name: str, student: str) -> Callable[[Mapping[str, Any]], float]:
        return lambda row: float(row[ACCURACY][self._target(name)][student])

    def _better(self) -> Iterator[str]:
        """Yield each case in which another toolkit's rows teach more than twinset's best."""
        said = False
        for name in self._stated.tables:
            for epsilon in self._epsilons():
                yield from self._compared(name, epsilon)
                for student in self._stated.size["students"]:
                    for line in self._beaten(name, epsilon, student):
                        said = True
                        yield line
        if not said:
            yield "In no case that was run: see the tables."

    def _compared(self, name: str, epsilon: float) -> Iterator[str]:
        """Yield which other private toolkits have been run: of the others nothing is known."""
        others = [t.name for t in self._stated.run if t.private and not t.ours]
        known = [other for other in others if self._rows(name, epsilon, other)]
        if known:
            lacking = "; ".join(other for other in others if other not in known) or "none"
            yield f"- {name}, ε = {epsilon:g}: run {'; '.join(known)}; not yet run {lacking}"

    def _beaten(self, name: str, epsilon: float, student: str) -> Iterator[str]:
        values = {
            toolkit.name: (toolkit, _middle(rows, self._accuracy(name, student)))
            for toolkit in self._stated.run
            for rows in [self._rows(name, epsilon if toolkit.private else ONCE, toolkit.name)]
            if rows
        }
        ours = [(v, t.name) for t, v in values.values() if t.ours and t.private]
        if not ours:
            return
        best, by = max(ours)
        for toolkit, value in values.values():
            if not toolkit.ours and value > best:
                kind = "" if toolkit.private else " (it has no guarantee)"
                yield (
                    f"- {name}, ε = {epsilon:g}, student {student}: **{toolkit.name}**{kind} "
                    f"{value:.3f}, twinset's best ({by}) {best:.3f}"
                )

    def _introduction(self) -> Iterator[str]:
        size = self._stated.size
        base = self._store.settings["base model"]
        yield (
            f"Each toolkit was given the same table, every text cut after {size['tokens']} tokens, "
            f"the same ε and δ, one thread, and base model {base} where it takes one; it wrote "
            f"{size['rows']} rows. Students learn from these rows and are tested on held-out real "
            "rows, cut alike. Minutes are the processor time of its process, of one thread, from "
            "its start to its last row, since the machine had other work too; memory is its peak. "
            "Nothing was tuned for any toolkit on this table: options are its own defaults, or "
            "what is said under “What each ε covers”. Minutes with a star are of another machine, "
            "and do not compare with the others. But twinset's defaults were chosen by "
            "this project on such tables, these among them (docs/tuning.md); no others' were."
        )
        yield ""
        yield (
            "Accuracy, label fidelity and MAUVE are those of the page of arms: label fidelity is "
            "how often a student of real rows finds a row's labels. Rows without a text, or with a "
            "label that the table lacks, teach nothing: “usable” counts the others. "
            f"“{REAL}” are as many real ones. One seed has no interval; two cases less than "
            "about 0.03 apart are then not told apart."
        )

    def _table(self, name: str) -> list[str]:
        facts = self._store.facts.get("tables", {}).get(name)
        if facts is None:
            return [f"## {name}", "", f"{NOT_RUN}."]
        said = ", ".join(f"{what}: {facts[what]}" for what in ("training rows", "test rows"))
        students = self._stated.size["students"]
        header = ["toolkit", "ε asked", "seeds", "ε it states", "usable"]
        header += [f"{self._target(name)}: {student}" for student in students]
        header += [FIDELITY, MAUVE, "median words", "minutes", "peak GiB"]
        lines = [self._line(name, epsilon, toolkit) for epsilon, toolkit in self._cases(name)]
        return [f"## {name}", "", said, "", *table(header, [li for li in lines if li], 1)]

    def _cases(self, name: str) -> Iterator[tuple[float, Toolkit]]:
        yield ONCE, Toolkit(REAL, "")
        for toolkit in self._stated.run:
            if not toolkit.private:
                yield ONCE, toolkit
        for epsilon in self._epsilons():
            yield from ((epsilon, toolkit) for toolkit in self._stated.run if toolkit.private)

    def _line(self, name: str, epsilon: float, toolkit: Toolkit) -> list[str]:
        rows = self._rows(name, epsilon, toolkit.name)
        if not rows:
            return []
        target = self._target(name)
        values: list[Callable[[Mapping[str, Any]], Any]] = [
            *(self._accuracy(name, student) for student in self._stated.size["students"]),
            lambda row: row.get(FIDELITY, {}).get(target),
            lambda row: row.get(MAUVE),
            lambda row: row.get(MEDIAN),
            _minutes,
            lambda row: row.get("peak GiB"),
        ]
        spent = max((row["epsilon"] for row in rows if row.get("epsilon")), default=None)
        shown = f"**{toolkit.name}**" if toolkit.ours else toolkit.name
        left = [shown, "none" if epsilon == ONCE else f"{epsilon:g}", str(len(rows))]
        facts = ["none" if spent is None else f"{spent:.2f}"]
        facts.append(str(min(row["usable"] for row in rows)))
        cells = [_cell([value(row) for row in rows]) for value in values]
        if any(map(self._store.is_elsewhere, rows)):
            cells[values.index(_minutes)] += "\\*"
        return [*left, *facts, *cells]

    def _covers(self) -> list[str]:
        header = [
            "toolkit",
            "what it is",
            "sampling against accounting",
            "unit",
            "not covered by ε",
        ]
        shown = (toolkit for toolkit in self._stated.run)
        lines = [[t.name, t.about, t.sampling, t.unit, t.uncovered] for t in shown]
        return [*table(header, lines, 5), "", *self._settings()]

    def _settings(self) -> Iterator[str]:
        for key, row in self._store.rows.items():
            if "settings" in row:
                name, epsilon, toolkit, seed = key
                said = ", ".join(f"{what} {_plain(v)}" for what, v in row["settings"].items())
                yield f"- {name}, {toolkit}, ε {epsilon:g}, seed {seed}: {said}"

    def _not_run(self) -> Iterator[str]:
        for toolkit in self._stated.toolkits:
            if not toolkit.writer:
                yield f"- {toolkit.name}: {toolkit.about}. {toolkit.reason}"
        for key in self._stated.measurements():
            row = self._store.rows.get(tuple(key), {ACCURACY: {}})
            if ACCURACY not in row:
                yield f"- {key.table}, {key.toolkit}, ε {key.epsilon:g}: {row['failed']}"
        yield from self._missing()

    def _missing(self) -> Iterator[str]:
        """Yield what was not come to, by table and ε: seeds that lack the same stand together."""
        keys = [key for key in self._stated.measurements() if tuple(key) not in self._store.rows]
        if keys:
            yield "- not come to yet, for want of time; the same command runs them:"
        for (name, epsilon), of_both in groupby(sorted(keys), lambda key: key[:2]):
            seeds: dict[str, list[str]] = {}
            for key in of_both:
                seeds.setdefault(key.toolkit, []).append(str(key.seed))
            by_seeds: dict[str, list[str]] = {}
            for toolkit, lacking in seeds.items():
                by_seeds.setdefault(", ".join(lacking), []).append(toolkit)
            said = (f"{'; '.join(names)} (seeds {of})" for of, names in by_seeds.items())
            shown = "no ε" if epsilon == ONCE else f"ε {epsilon:g}"
            yield f"  - {name}, {shown}: {'; '.join(said)}"

    def _made(self) -> Iterator[str]:
        for name, facts in self._store.facts.get("tables", {}).items():
            sums = ", ".join(f"{file} {digest}" for file, digest in facts["SHA-256"].items())
            yield f"- {name}: SHA-256 {sums}"
        yield from (f"- {what}: {value}" for what, value in self._store.made())
        found = {
            key[2]: row["versions"] for key, row in self._store.rows.items() if "versions" in row
        }
        for toolkit, versions in found.items():
            yield f"- {toolkit}: {', '.join(f'{n} {v}' for n, v in versions.items())}"
        yield from (f"- command: {code(line)}" for line in self._store.commands)


def _minutes(row: Mapping[str, Any]) -> float | None:
    minutes: float | None = row.get("minutes")
    return minutes


def _middle(rows: Rows, value: Callable[[Mapping[str, Any]], float | None]) -> float:
    known = [found for found in map(value, rows) if found is not None]
    return sum(known) / len(known)


def _cell(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    digits = 3 if max(map(abs, known)) <= 1 else 1
    score = mean("", known, "match", float("-inf"), float("inf"))
    middle, low, high = (f"{v:.{digits}f}" for v in (score.value, score.low, score.high))
    return middle if len(known) == 1 else f"{middle} [{low}, {high}]"


def _plain(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
