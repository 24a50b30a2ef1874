"""One measurement of the page: an arm's rows are made, and scored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from evaluation.bench.arms.plan import ALL_ROWS, ONCE, Measurement, Stated, number_of
from evaluation.bench.arms.rows import Arm, Writing
from evaluation.bench.arms.runs import Cell, cost_of, measured
from evaluation.bench.arms.scores import ACCURACY, TEACHER, Scorer
from evaluation.bench.arms.tables import Table
from twinset.models.base_model import load_base
from twinset.progress import Progress

NUMBER, EPSILON, MADE, SCORING = "rows", "epsilon", "made", "scoring"


class Measuring:
    """Makes the measurements of one table.

    Args:
        table: the table.
        stated: what arms.toml says.
        options: of all runs.
        folder: for the table's runs and rows.
        progress: is notified of what happens.
    """

    def __init__(
        self,
        table: Table,
        stated: Stated,
        options: Mapping[str, Any],
        folder: Path,
        progress: Progress,
    ) -> None:
        self._table, self._stated, self._options = table, stated, options
        self._folder, self._progress = folder, progress
        self._writing: Writing | None = None

    def cell(self, epsilon: float, seed: int) -> Cell:
        """Return what the runs of an ε and seed share; what needs no ε may be of any."""
        epsilon = self._stated.size["epsilons"][0] if epsilon == ONCE else epsilon
        return Cell(self._table, epsilon, seed, self._options, self._folder, self._progress)

    def lacking(self, row: Mapping[str, Any]) -> list[str]:
        """Return the students that are asked for and that a finished row lacks."""
        known = next(iter(row.get(ACCURACY, {}).values()), {TEACHER: 0.0})
        return [s for s in self._stated.size["students"] if not {s, TEACHER} & known.keys()]

    def row(self, key: Measurement, known: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return what a measurement found, and what it took; of a known row what is new in it."""
        arm, writing = self._stated.arm(key.arm), self._writing_of(key)
        if arm.use == "classify":
            given = writing.classified(arm, self._table.heldout[self._table.text].tolist())
            found: dict[str, Any] = {NUMBER: 0, ACCURACY: self._scorer.agreement(given)}
            return {**found, EPSILON: writing.epsilon(arm), MADE: writing.costs(arm, 0)}
        wanted = 0 if key.rows == ALL_ROWS else number_of(key.rows, len(self._table.train))
        frame = self._frame(arm, writing, wanted, key.seed)
        cost = cost_of(self._folder / SCORING)
        cost.unlink(missing_ok=True)
        with measured(cost):
            found = self._scores(arm, frame, key.seed, known)
        spent = json.loads(cost.read_text("utf-8"))
        if known:
            spent["minutes"] += known[MADE][SCORING]["minutes"]
        made = {**writing.costs(arm, wanted), SCORING: spent}
        return {NUMBER: len(frame), **found, EPSILON: writing.epsilon(arm), MADE: made}

    def _frame(self, arm: Arm, writing: Writing, wanted: int, seed: int) -> pd.DataFrame:
        if arm.use == "second":
            return self._table.heldout
        if arm.use == "real":
            train = self._table.train
            found = train.sample(min(wanted, len(train)), random_state=seed)
            return self._cut(found) if arm.cut else found
        return writing.rows(arm, wanted)

    def _cut(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return rows with texts as long as a run reads them: their end is a token, too."""
        training, text = self.cell(ONCE, 0).config({}).training, self._table.text
        tokenizer = load_base(training.base_model, say=self._progress.say).tokenizer
        ids = tokenizer([f" {t.strip()}" for t in frame[text]], add_special_tokens=False)
        most = training.max_tokens - 1
        cut = [tokenizer.decode(row[:most]).strip() for row in ids["input_ids"]]
        return frame.assign(**{text: cut})

    def _scores(
        self, arm: Arm, frame: pd.DataFrame, seed: int, known: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """Return an arm's scores; real rows are not compared with themselves."""
        if frame.empty:
            return {}
        if known:
            more = self._scorer.worth(frame, seed, self.lacking(known))
            return {**known, ACCURACY: {t: known[ACCURACY][t] | more[t] for t in more}}
        found: dict[str, Any] = self._scorer.lengths(frame)
        if arm.use != "real":
            found |= self._scorer.likeness(frame)
        if arm.use != "second":
            found[ACCURACY] = self._scorer.worth(frame, seed, self._stated.size["students"])
        return found

    def _writing_of(self, key: Measurement) -> Writing:
        cell = self.cell(key.epsilon, key.seed)
        if self._writing is None or self._writing.cell != cell:
            numbers = {number_of(r, len(self._table.train)) for r in self._stated.size["rows"]}
            self._writing = Writing(cell, self._stated.runs, sorted(numbers))
        return self._writing

    @cached_property
    def _scorer(self) -> Scorer:
        training = self.cell(ONCE, 0).config({}).training
        students, longest = self._stated.size["students"], training.max_tokens
        say = self._progress.say
        return Scorer(self._table, students, training.base_model, longest, say)
