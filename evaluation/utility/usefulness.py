"""Is the twin useful? What classifiers learn from it, beside what they learn from other tables.

Train on one table, test on real rows that nobody trained on, for each attribute and for all
together. Everything here reads private rows and stays with their owner.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from evaluation.findings import Curve, Measured, Score
from evaluation.private_table import PRIVATE_CLASSIFIER, REAL, TWIN, Tables, names_of
from evaluation.utility.classification import Predictions, classification_scores, scores_by_label
from evaluation.utility.classifiers import SLOW_CLASSIFIERS, Classifier
from evaluation.utility.train_and_test import (
    Target,
    commonest_label,
    predictions,
    targets,
    train_on,
)
from twinset.progress import Progress

SMALLEST = 100  # rows where the curve begins


@dataclass(frozen=True)
class Usefulness:
    """Measures tables by the classifiers that learn from them.

    Args:
        tables: what is trained on and tested on.
        makers: classifiers by name.
        seeds: each classifier is trained with each of them, and real rows are drawn by them.
        dp_classifiers: classifiers that learn from the real rows with the twin's own ε and δ.
        progress: is notified of each classifier trained.
    """

    tables: Tables
    makers: Mapping[str, Classifier]
    seeds: Sequence[int]
    progress: Progress
    dp_classifiers: Mapping[str, Classifier] = field(default_factory=dict)

    def measured(self) -> Iterator[Measured]:
        """Yield accuracy, macro-F1 and F1 by label of every table, and label fidelity."""
        tables, wanted = self.tables, targets(self.tables.attributes)
        for number, target in enumerate(wanted):
            for nth, classifier in enumerate(self.makers, start=1):
                models = self._models(target, classifier)
                done, total = number * len(self.makers) + nth, len(wanted) * len(self.makers)
                self.progress.count("classifiers trained on each table", done, total)
                for source, trained in models.items():
                    found = predictions(trained, tables.heldout, tables.text, target)
                    place = _place(source, target, classifier)
                    yield from (_utility(s, place) for s in classification_scores(found))
                    yield from _by_label(found, "F1", place)
                for source, frame in tables.written.items():
                    # Judges err too: a perfect twin reaches their accuracy on real rows, not 1.
                    found = predictions(models[REAL], frame, tables.text, target)
                    agreed = replace(classification_scores(found)[0], name="label fidelity")
                    place = _place(source, target, classifier)
                    yield _utility(agreed, place)
                    yield from _by_label(found, "label fidelity, F1", place)
            score = commonest_label(tables.train, tables.heldout, tables.text, target)
            yield _utility(score, _place("the commonest label", target, "none"))

    def curves(self) -> Iterator[Curve]:
        """Yield accuracy by the number of rows trained on, of the twin and of the real table."""
        for target in targets(self.tables.attributes):
            series = {
                f"{source}, {name}": self._by_size(frame, target, maker)
                for name, maker in self.makers.items()
                if name not in SLOW_CLASSIFIERS
                for source, frame in ((TWIN, self.tables.twin), (REAL, self.tables.train))
            }
            title = f"accuracy by rows of the twin: {names_of(target)}"
            yield Curve("utility", title, "rows", "accuracy", series, log="x")

    def by_epsilon(self, twins: Mapping[float, pd.DataFrame]) -> Iterator[Curve]:
        """Yield accuracy by ε, given a twin of each."""
        for target in targets(self.tables.attributes):
            series: dict[str, list[tuple[float, ...]]] = {
                name: [
                    (epsilon, *self._accuracy([self._trained(twin, target, maker)], target))
                    for epsilon, twin in sorted(twins.items())
                ]
                for name, maker in self.makers.items()
            }
            title = f"accuracy by epsilon: {names_of(target)}"
            yield Curve("utility", title, "epsilon", "accuracy", series, log="x")

    def _models(self, target: Target, classifier: str) -> dict[str, list[Any]]:
        """Return by source the classifiers trained on it, one a seed."""
        models: dict[str, list[Any]] = {}
        maker = self.makers[classifier]
        for seed in self.seeds:
            for source, frame in self.tables.training_tables(seed).items():
                models.setdefault(source, []).append(self._trained(frame, target, maker, seed))
            if private_maker := self.dp_classifiers.get(classifier):
                private = self._trained(self.tables.train, target, private_maker, seed)
                models.setdefault(PRIVATE_CLASSIFIER, []).append(private)
        return models

    def _by_size(
        self, frame: pd.DataFrame, target: Target, maker: Classifier
    ) -> list[tuple[float, ...]]:
        points: list[tuple[float, ...]] = []
        for rows in sizes(min(len(frame), len(self.tables.twin))):
            some = (frame.sample(rows, random_state=seed) for seed in self.seeds)
            models = [self._trained(drawn, target, maker) for drawn in some]
            points.append((rows, *self._accuracy(models, target)))
        return points

    def _trained(
        self, frame: pd.DataFrame, target: Target, maker: Classifier, seed: int = 0
    ) -> Any:
        return train_on(frame, self.tables.text, target, maker, seed)

    def _accuracy(self, models: Sequence[Any], target: Target) -> tuple[float, float, float]:
        found = predictions(models, self.tables.heldout, self.tables.text, target)
        score = classification_scores(found)[0]
        return score.value, score.low, score.high


def sizes(rows: int) -> list[int]:
    """Return the numbers of rows at which a curve has points: doubling, and all.

    >>> sizes(1000), sizes(60)
    ([100, 200, 400, 800, 1000], [60])
    """
    found = []
    size = SMALLEST
    while size < rows:
        found.append(size)
        size *= 2
    return [*found, rows]


def _by_label(found: Predictions, name: str, place: dict[str, str]) -> Iterator[Measured]:
    for label, score in scores_by_label(found).items():
        yield _utility(replace(score, name=name), place | {"value": label})


def _utility(score: Score, place: dict[str, str]) -> Measured:
    return Measured("utility", score, place)


def _place(source: str, target: Target, classifier: str) -> dict[str, str]:
    return {"rows": source, "label": names_of(target), "classifier": classifier}
