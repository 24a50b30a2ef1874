"""Is the twin useful? What classifiers learn from it, beside what they learn from other tables.

Train on one table, test on real rows that no classifier trained on, for each attribute and for all
together. Everything here reads private rows and stays with their owner.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pandas as pd

from evaluation.findings import Curve, Measured
from evaluation.policy_runs import train_twin
from evaluation.release import PRIVATE_CLASSIFIER, REAL, TWIN, Tables, names_of
from evaluation.utility.classification import (
    Target,
    classification_scores,
    predict_labels,
    score_agreement,
    scores_by_label,
    targets,
    train_on,
)
from evaluation.utility.classifiers import SLOW_CLASSIFIERS, Classifier
from twinset.progress import Progress
from twinset.run.request import Source
from twinset.table.labels import LabelRules
from twinset.table.read import read_frame, write_frame

if TYPE_CHECKING:
    from evaluation.release import FinishedRun, Twin

SMALLEST = 100  # rows where the curve begins


@dataclass(frozen=True)
class Usefulness:
    """Measures tables by the classifiers that learn from them.

    Args:
        tables: what is trained on and tested on.
        makers: classifiers by name.
        seeds: each classifier is trained with each of them, and real rows are drawn by them.
        progress: is notified of each classifier trained.
        dp_classifiers: classifiers that learn from the real rows with the twin's own ε and δ.
    """

    tables: Tables
    makers: Mapping[str, Classifier]
    seeds: Sequence[int]
    progress: Progress
    dp_classifiers: Mapping[str, Classifier] = field(default_factory=dict)

    def measured(self) -> Iterator[Measured]:
        """Yield accuracy, macro-F1 and F1 by label of every table, and label fidelity.

        All are in 0 to 1, and higher is better. Read a twin's accuracy beside the one of as many
        real rows (what a perfect twin reaches) and of rows made without private data (what costs no
        privacy). Last comes what always answering the commonest label of training gives.
        """
        from sklearn.dummy import DummyClassifier

        tables, wanted = self.tables, targets(self.tables.attributes)
        for number, target in enumerate(wanted):
            label = names_of(target)
            for nth, name in enumerate(self.makers, start=1):
                models = self._train_on_each_table(target, name)
                done, total = number * len(self.makers) + nth, len(wanted) * len(self.makers)
                self.progress.count("classifiers trained on each table", done, total)
                tested = [(source, each, tables.heldout) for source, each in models.items()]
                judged = [(source, models[REAL], frame) for source, frame in tables.written.items()]
                for which, (source, each, frame) in enumerate([*tested, *judged]):
                    place = {"rows": source, "label": label, "classifier": name}
                    found = predict_labels(each, frame, tables.text, target)
                    scores, f1 = classification_scores(found), "F1"
                    if which >= len(tested):
                        # Judges err too: a perfect twin reaches their accuracy on real rows, not 1.
                        scores = [replace(scores[0], name="label fidelity")]
                        f1 = "label fidelity, F1"
                    yield from (Measured("utility", score, place) for score in scores)
                    for value, score in scores_by_label(found).items():
                        named = replace(score, name=f1)
                        yield Measured("utility", named, place | {"value": value})
            always = self._train(tables.train, target, lambda seed: DummyClassifier())
            score = score_agreement("accuracy", always, tables.heldout, tables.text, target)
            place = {"rows": "the commonest label", "label": label, "classifier": "none"}
            yield Measured("utility", score, place)

    def curves(self) -> Iterator[Curve]:
        """Yield accuracy by the number of rows trained on, of the twin and of the real table."""
        for target in targets(self.tables.attributes):
            series: dict[str, list[tuple[float, ...]]] = {}
            quick = {n: maker for n, maker in self.makers.items() if n not in SLOW_CLASSIFIERS}
            for name, maker in quick.items():
                for source, frame in ((TWIN, self.tables.twin), (REAL, self.tables.train)):
                    points = series.setdefault(f"{source}, {name}", [])
                    for rows in curve_sizes(min(len(frame), len(self.tables.twin))):
                        drawn = (frame.sample(rows, random_state=seed) for seed in self.seeds)
                        models = [self._train(some, target, maker) for some in drawn]
                        points.append((rows, *self._accuracy(models, target)))
            title = f"accuracy by rows of the twin: {names_of(target)}"
            yield Curve("utility", title, "rows", "accuracy", series, log="x")

    def by_epsilon(self, twins: Mapping[float, pd.DataFrame]) -> Iterator[Curve]:
        """Yield accuracy by ε, given a twin of each."""
        for target in targets(self.tables.attributes):
            series: dict[str, list[tuple[float, ...]]] = {
                name: [
                    (epsilon, *self._accuracy([self._train(twin, target, maker)], target))
                    for epsilon, twin in sorted(twins.items())
                ]
                for name, maker in self.makers.items()
            }
            title = f"accuracy by epsilon: {names_of(target)}"
            yield Curve("utility", title, "epsilon", "accuracy", series, log="x")

    def _train_on_each_table(self, target: Target, classifier: str) -> dict[str, list[Any]]:
        """Return by source the classifiers trained on it, one a seed."""
        models: dict[str, list[Any]] = {}
        for seed in self.seeds:
            for source, frame in self.tables.training_tables(seed).items():
                model = self._train(frame, target, self.makers[classifier], seed)
                models.setdefault(source, []).append(model)
            if dp_maker := self.dp_classifiers.get(classifier):
                model = self._train(self.tables.train, target, dp_maker, seed)
                models.setdefault(PRIVATE_CLASSIFIER, []).append(model)
        return models

    def _train(self, frame: pd.DataFrame, target: Target, maker: Classifier, seed: int = 0) -> Any:
        return train_on(frame, self.tables.text, target, maker, seed)

    def _accuracy(self, models: Sequence[Any], target: Target) -> tuple[float, float, float]:
        found = predict_labels(models, self.tables.heldout, self.tables.text, target)
        score = classification_scores(found)[0]
        return score.value, score.low, score.high


def curve_sizes(rows: int) -> list[int]:
    """Return the numbers of rows at which a curve has points: doubling, and all.

    >>> curve_sizes(1000), curve_sizes(60)
    ([100, 200, 400, 800, 1000], [60])
    """
    found = []
    size = SMALLEST
    while size < rows:
        found.append(size)
        size *= 2
    return [*found, rows]


def train_twins_by_epsilon(
    budgets: Sequence[float], run: FinishedRun, tables: Tables, twin: Twin, progress: Progress
) -> dict[float, pd.DataFrame]:
    """Train a twin for each ε, with the run's other options. The run's own is among them.

    All are written behind the run's prompt, even if that was chosen by what was counted at its ε.
    Each takes as long as the run, so it is kept in the run's `internal/` as soon as it is there.
    """
    found = {} if twin.epsilon is None else {twin.epsilon: twin.frame}
    for epsilon in budgets:
        path = run.internal / f"twin-epsilon-{epsilon:g}.parquet"
        if path.is_file() and len(kept := read_frame(path)) == len(tables.twin):
            found[epsilon] = kept
            continue
        progress.say(f"a twin at ε = {epsilon:g}")
        config = replace(run.config, privacy=replace(run.config.privacy, target_epsilon=epsilon))
        known = LabelRules().settled(run.schema, {})
        source = Source(
            tables.train, tables.text, tables.attributes, prompt=run.template, labels=known
        )
        _, trained = train_twin(source, config, len(tables.twin), progress)
        write_frame(trained.frame, path)
        found[epsilon] = trained.frame
    return found
