"""Is the twin useful? Compares what classifiers learn from it and from other tables.

Train on one table, test on real rows that no classifier was trained on, for each attribute and for
all together. Tables are data frames, private or synthetic. All are treated alike, and rows without
a text or a label are left out. Everything here reads private rows and stays with their owner.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from twinset.errors import InputError
from twinset.progress import Progress
from twinset.run.request import Source
from twinset.table.labels import LabelRules
from twinset.table.read import read_frame, write_frame

from ..findings import Curve, Measured, Score, proportion
from ..policy_runs import train_twin
from ..release import PRIVATE_CLASSIFIER, REAL, REAL_SMALL, TWIN, TWIN_SMALL, Tables, labelled
from .classifiers import SLOW_CLASSIFIERS, Classifier

if TYPE_CHECKING:
    from ..release import FinishedRun, Twin

RESAMPLES = 1000  # of the bootstrap
BY_CHANCE = 1e-4  # that guessing is never right
SMALLEST = 100  # rows where the curve begins

Target = tuple[str, ...]  # the label columns a classifier predicts together


def targets(attributes: Sequence[str]) -> list[Target]:
    """Return the prediction targets: each attribute, and all together if there are several."""
    single: list[Target] = [(name,) for name in attributes]
    return single + ([tuple(attributes)] if len(single) > 1 else [])


def train_on(
    frame: pd.DataFrame, text: str, target: Target, classifier: Classifier, seed: int = 0
) -> Any:
    """Fit a classifier to the table's texts. With one label only, it always predicts that."""
    from sklearn.dummy import DummyClassifier

    texts, labels = labelled(frame, text, target)
    learner = classifier(seed) if len(set(labels)) > 1 else DummyClassifier()
    return learner.fit(texts, labels)


def predict_labels(
    models: Sequence[Any], frame: pd.DataFrame, text: str, target: Target
) -> tuple[list[str], list[list[str]]]:
    """Return the true labels (n,) of a table's rows, and each classifier's predictions (S, n)."""
    texts, labels = labelled(frame, text, target)
    return labels, [[str(p) for p in model.predict(texts)] for model in models]


def score_agreement(name: str, model: Any, frame: pd.DataFrame, text: str, target: Target) -> Score:
    """Return the share of a table's rows on whose label a classifier agrees.

    For held-out rows this is the classifier's accuracy. For a twin's rows and a classifier of real
    ones it is label fidelity. That classifier makes errors too, so a perfect twin reaches its
    accuracy on real rows, not 1.
    """
    labels, (said,) = predict_labels([model], frame, text, target)
    return proportion(name, sum(map(str.__eq__, said, labels)), len(labels))


def classification_scores(
    labels: Sequence[str], predicted: Sequence[Sequence[str]]
) -> tuple[list[Score], dict[str, Score]]:
    """Return accuracy and macro-F1, and the F1 of every true label.

    All in 0 to 1, higher is better. Macro-F1 is the mean of the F1 of all labels that the true rows
    have. Intervals are 95 % percentiles of a bootstrap that draws rows *and* a classifier. So they
    are about another held-out table and another seed, not about another twin. They include Wilson's
    too, because the bootstrap has no width if all rows are right.

    `labels` (n,) are the true ones. `predicted` (S, n) are those of S classifiers that differ in
    their seed alone.
    """
    classes, numbers = np.unique([*labels, *np.ravel(predicted)], return_inverse=True)
    n, k, rng = len(labels), len(classes), np.random.default_rng(0)
    true, said = numbers[:n], numbers[n:].reshape(-1, n)
    cells = true * k + said  # (S, n): each row's place in the table of (true, predicted)
    draws = [cells.ravel()]
    for _ in range(RESAMPLES):
        draws.append(cells[rng.integers(len(cells)), rng.integers(n, size=n)])
    counts = np.array([np.bincount(drawn, minlength=k * k) for drawn in draws], float)
    counts = counts.reshape(-1, k, k)  # (1 + R, k, k): of all rows, then of the resamples
    hits = np.diagonal(counts, axis1=1, axis2=2)  # (1 + R, k)
    either = counts.sum(1) + counts.sum(2)
    f1 = np.divide(2 * hits, either, out=np.zeros_like(hits), where=either > 0)
    rows = counts[0].sum(1) / len(cells)  # (k,) that have each label

    def score(name: str, values: np.ndarray, n: int) -> Score:
        middle, (low, high) = float(values[0]), np.quantile(values[1:], [0.025, 0.975])
        wilson = proportion(name, round(middle * n), n)
        low, high = min(middle, float(low), wilson.low), max(middle, float(high), wilson.high)
        return Score(name, middle, low, high, "maximise", 0.0, 1.0, n)

    by_label = {
        str(label): score("F1", f1[:, i], round(float(rows[i])))
        for i, label in enumerate(classes)
        if rows[i]
    }
    accuracy = score("accuracy", hits.sum(1) / counts.sum((1, 2)), n)
    return [accuracy, score("macro-F1", f1[:, rows > 0].mean(1), n)], by_label


@dataclass(frozen=True)
class Usefulness:
    """Measures tables by the classifiers that learn from them."""

    tables: Tables
    makers: Mapping[str, Classifier]  # by name
    seeds: Sequence[int]  # of each classifier, and of the real rows drawn
    progress: Progress
    # These learn from the real rows with the twin's own ε and δ.
    dp_classifiers: Mapping[str, Classifier] = field(default_factory=dict)

    def measured(self) -> Iterator[Measured]:
        """Yield accuracy, macro-F1 and F1 by label of every table, and label fidelity.

        All are in 0 to 1, and higher is better. Compare a twin's accuracy with that of equally many
        real rows (the limit for a perfect twin) and of rows made without private data (free of
        privacy cost). The last one is always guessing the most frequent training label.

        Raises:
            InputError: a classifier of the twin or of the real rows is never right, although
                guessing would be. Then labels were not read alike.
        """
        from sklearn.dummy import DummyClassifier

        tables, wanted, done = self.tables, targets(self.tables.attributes), 0
        for target in wanted:
            label = " × ".join(target)
            for name, maker in self.makers.items():
                models: dict[str, list[Any]] = {}  # by table, one a seed
                for seed in self.seeds:
                    # Real rows cut to the twin's number, and the twin to the base's. More rows
                    # teach more, whatever their source.
                    train, twin, base = tables.train, tables.twin, tables.baseline
                    small = train.sample(min(len(twin), len(train)), random_state=seed)
                    learned = {REAL: train, REAL_SMALL: small, **tables.written}
                    if base is not None and len(base) < len(twin):
                        learned[TWIN_SMALL] = twin.sample(len(base), random_state=seed)
                    taught = [(source, frame, maker) for source, frame in learned.items()]
                    if private := self.dp_classifiers.get(name):
                        taught.append((PRIVATE_CLASSIFIER, tables.train, private))
                    for source, frame, make in taught:
                        model = train_on(frame, tables.text, target, make, seed)
                        models.setdefault(source, []).append(model)
                done += 1
                total = len(wanted) * len(self.makers)
                self.progress.count("classifiers trained on each table", done, total)
                tested = [(source, each, tables.heldout) for source, each in models.items()]
                judged = [(source, models[REAL], frame) for source, frame in tables.written.items()]
                for which, (source, each, frame) in enumerate([*tested, *judged]):
                    place = {"rows": source, "label": label, "classifier": name}
                    true, said = found = predict_labels(each, frame, tables.text, target)
                    # Not one row right is a fault of reading, where guessing would find some.
                    kinds = max(2, len(set(true)))
                    if (
                        source in (REAL, TWIN)
                        and (1 - 1 / kinds) ** len(true) < BY_CHANCE
                        and any(len(set(row)) > 1 for row in said)  # one label may be rare
                        and not any(label in row for label, *row in zip(true, *said, strict=True))
                    ):
                        raise InputError(
                            f"`test`: none of {len(true):,} rows has the {label} that a classifier "
                            f"of the {source} rows predicts, although guessing finds some. Spell "
                            "labels alike in both tables."
                        )
                    scores, by_label = classification_scores(*found)
                    f1 = "F1"
                    if which >= len(tested):
                        # Judges err too: a perfect twin reaches their accuracy on real rows, not 1.
                        scores = [replace(scores[0], name="label fidelity")]
                        f1 = "label fidelity, F1"
                    yield from (Measured("utility", score, place) for score in scores)
                    for value, score in by_label.items():
                        named = replace(score, name=f1)
                        yield Measured("utility", named, place | {"value": value})
            always = train_on(tables.train, tables.text, target, lambda seed: DummyClassifier())
            score = score_agreement("accuracy", always, tables.heldout, tables.text, target)
            place = {"rows": "the commonest label", "label": label, "classifier": "none"}
            yield Measured("utility", score, place)

    def curves(self) -> Iterator[Curve]:
        """Yield accuracy by the number of training rows, of the twin and of the real table."""
        tables = self.tables
        quick = {n: maker for n, maker in self.makers.items() if n not in SLOW_CLASSIFIERS}
        for target in targets(tables.attributes):
            series: dict[str, list[tuple[float, ...]]] = {}
            for name, maker in quick.items():
                for source, frame in ((TWIN, tables.twin), (REAL, tables.train)):
                    points = series.setdefault(f"{source}, {name}", [])
                    most = min(len(frame), len(tables.twin))
                    sizes = (SMALLEST << power for power in range(most.bit_length()))
                    for rows in [*(size for size in sizes if size < most), most]:  # doubling, all
                        drawn = [frame.sample(rows, random_state=seed) for seed in self.seeds]
                        points.append((rows, *self._train_and_test(drawn, target, maker)))
            title = f"accuracy by rows of the twin: {' × '.join(target)}"
            yield Curve("utility", title, "rows", "accuracy", series, log="x")

    def curves_by_epsilon(
        self, budgets: Sequence[float], run: FinishedRun, twin: Twin
    ) -> Iterator[Curve]:
        """Train a twin for each ε, with the run's other options, and yield accuracy by ε.

        The run's own twin is among them. All use the run's prompt, even if that was chosen by
        counts at the run's ε. Each takes as long as the run, so it is kept in the run's `internal/`
        as soon as it is finished.
        """
        tables = self.tables
        twins = {} if twin.epsilon is None else {twin.epsilon: twin.frame}
        for budget in budgets:
            path = run.internal / f"twin-epsilon-{budget:g}.parquet"
            if path.is_file() and len(kept := read_frame(path)) == len(tables.twin):
                twins[budget] = kept
                continue
            self.progress.say(f"a twin at ε = {budget:g}")
            privacy = replace(run.config.privacy, target_epsilon=budget)
            known = LabelRules().settled(run.schema, {})
            source = Source(
                tables.train, tables.text, tables.attributes, prompt=run.template, labels=known
            )
            config = replace(run.config, privacy=privacy)
            _, trained = train_twin(source, config, len(tables.twin), self.progress)
            write_frame(trained.frame, path)
            twins[budget] = trained.frame
        by_epsilon = sorted(twins.items())
        for target in targets(tables.attributes):
            series: dict[str, list[tuple[float, ...]]] = {}
            for (name, maker), (epsilon, frame) in product(self.makers.items(), by_epsilon):
                point = (epsilon, *self._train_and_test([frame], target, maker))
                series.setdefault(name, []).append(point)
            title = f"accuracy by epsilon: {' × '.join(target)}"
            yield Curve("utility", title, "epsilon", "accuracy", series, log="x")

    def _train_and_test(
        self, frames: Sequence[pd.DataFrame], target: Target, maker: Classifier
    ) -> tuple[float, float, float]:
        """Return the accuracy, with its interval, of one classifier for each table."""
        text = self.tables.text
        models = [train_on(frame, text, target, maker) for frame in frames]
        found = predict_labels(models, self.tables.heldout, text, target)
        accuracy = classification_scores(*found)[0][0]
        return accuracy.value, accuracy.low, accuracy.high
