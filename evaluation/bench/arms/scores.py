"""What an arm's rows are worth: students that learn from them, and how like real rows they are.

Knows no run and no model that writes. All students are tested on the same held-out rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import pandas as pd

from evaluation.bench.arms.tables import DRAW, Table
from evaluation.fidelity.label_words import Labelled, log_odds_correlation
from evaluation.fidelity.lengths import length_scores, lengths
from evaluation.fidelity.mauve import mauve
from evaluation.fidelity.measures import EMBEDDED_ROWS
from evaluation.private_table import labelled, names_of
from evaluation.utility.classifiers import Classifier, make_classifiers
from evaluation.utility.embeddings import SentenceEncoder
from evaluation.utility.hidden_states import HiddenStates, hidden_state_classifier
from evaluation.utility.train_and_test import accuracy, label_fidelity, targets, train_on
from twinset.models.assets import Say

HIDDEN = "hidden"
ACCURACY, FIDELITY, LOG_ODDS = "accuracy", "label fidelity", "log-odds correlation"
MAUVE, LENGTH, MEDIAN = "MAUVE", "mean length", "median length"
TEACHER = "teacher"  # in the place of students
ByTarget = dict[str, dict[str, float]]  # by label columns, then by student


class Scorer:
    """Measures the arms of one table.

    Args:
        table: real rows to compare with, and to test on.
        students: names in `classifiers.make_classifiers`, or `HIDDEN`; the first is the judge.
        base_model: whose hidden states students read.
        longest: tokens of a text that they read.
        say: called before an asset is downloaded.
    """

    def __init__(
        self, table: Table, students: Sequence[str], base_model: str, longest: int, say: Say
    ) -> None:
        self._table, self._encoder = table, SentenceEncoder(say)
        states = HiddenStates(base_model, table.attributes, longest)
        named = [name for name in students if name != HIDDEN]
        makers = make_classifiers(named, say, embeddings=self._encoder)
        self._makers: Mapping[str, Classifier] = {
            name: hidden_state_classifier(states) if name == HIDDEN else makers[name]
            for name in students
        }

    def worth(self, frame: pd.DataFrame, seed: int, students: Collection[str]) -> ByTarget:
        """Return how well students that learn from rows do on held-out ones."""
        text, test = self._table.text, self._table.heldout
        return {
            names_of(target): {
                name: accuracy(train_on(frame, text, target, maker, seed), test, text, target).value
                for name, maker in self._makers.items()
                if name in students
            }
            for target in targets(self._table.attributes)
        }

    def agreement(self, given: pd.DataFrame) -> ByTarget:
        """Return how often labels given to the held-out rows, in their order, are theirs."""
        found = {}
        for target in targets(self._table.attributes):
            names, test = list(target), self._table.heldout
            same = test[names].astype(str).to_numpy() == given[names].astype(str).to_numpy()
            found[names_of(target)] = {TEACHER: float(same.all(1).mean())}
        return found

    def likeness(self, frame: pd.DataFrame) -> dict[str, Any]:
        """Return how like the training rows other rows are."""
        text = self._table.text
        return {
            FIDELITY: {
                names_of(target): label_fidelity(frame, text, target, judge).value
                for target, judge in self._judges.items()
            },
            LOG_ODDS: {
                name: log_odds_correlation(self._words_of(frame, name), self._real_words[name])
                for name in self._table.attributes
            },
            MAUVE: self._mauve(frame[text].tolist()),
        }

    def lengths(self, frame: pd.DataFrame) -> dict[str, float]:
        """Return mean and median number of words."""
        found = length_scores(lengths(frame[self._table.text].tolist()))
        return dict(zip((LENGTH, MEDIAN), (score.value for score in found), strict=True))

    def _mauve(self, texts: Sequence[str]) -> float:
        real = self._table.train[self._table.text].sample(frac=1, random_state=DRAW)
        many = min(len(texts), len(real), EMBEDDED_ROWS)
        ours, theirs = (self._encoder.encode(list(rows)[:many]) for rows in (texts, real))
        return mauve(ours, theirs, DRAW).value

    def _words_of(self, frame: pd.DataFrame, attribute: str) -> Labelled:
        return labelled(frame, self._table.text, (attribute,))

    @cached_property
    def _real_words(self) -> dict[str, Labelled]:
        return {name: self._words_of(self._table.train, name) for name in self._table.attributes}

    @cached_property
    def _judges(self) -> dict[Any, Any]:
        train, judge = self._table.train, next(iter(self._makers.values()))
        return {
            t: train_on(train, self._table.text, t, judge) for t in targets(self._table.attributes)
        }
