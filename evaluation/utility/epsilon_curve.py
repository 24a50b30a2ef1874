"""How much a twin's use depends on ε: further twins, made as a run made its own.

Twins are kept in the run's `internal/` as soon as they are made: each takes as long as the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pandas as pd

from evaluation.findings import Curve
from evaluation.private_table import Tables, names_of
from evaluation.release import FinishedRun
from evaluation.twins import Twin, train_twin
from evaluation.utility.classification import classification_scores
from evaluation.utility.classifiers import Classifier
from evaluation.utility.train_and_test import Target, predictions, targets, train_on
from twinset.data.formats import read_frame, write_frame
from twinset.pipeline.request import Source
from twinset.progress import Progress


def epsilon_curves(
    budgets: Sequence[float],
    run: FinishedRun,
    tables: Tables,
    makers: Mapping[str, Classifier],
    twin: Twin,
    progress: Progress,
) -> Iterator[Curve]:
    """Train and score a twin for each ε, with the run's other options.

    Args:
        budgets: the ε.
        run: whose options are taken.
        tables: what is trained on and tested on.
        makers: classifiers by name.
        twin: the run's own, which has its place on the curve.
        progress: is notified of what happens.
    """
    frames: dict[float, pd.DataFrame] = {} if twin.epsilon is None else {twin.epsilon: twin.frame}
    frames |= {epsilon: _twin_at(epsilon, run, tables, progress) for epsilon in budgets}
    for target in targets(tables.attributes):
        series: dict[str, list[tuple[float, ...]]] = {
            name: [
                (epsilon, *_accuracy(frame, tables, target, maker))
                for epsilon, frame in sorted(frames.items())
            ]
            for name, maker in makers.items()
        }
        title = f"accuracy by epsilon: {names_of(target)}"
        yield Curve("utility", title, "epsilon", "accuracy", series, log="x")


def _twin_at(epsilon: float, run: FinishedRun, tables: Tables, progress: Progress) -> pd.DataFrame:
    path = run.internal / f"twin-epsilon-{epsilon:g}.parquet"
    if path.is_file() and len(known := read_frame(path)) == len(tables.twin):
        return known
    progress.say(f"a twin at ε = {epsilon:g}")
    config = replace(run.config, privacy=replace(run.config.privacy, target_epsilon=epsilon))
    source = Source(tables.train, tables.text, tables.attributes, prompt=run.template)
    _, made = train_twin(source, config, len(tables.twin), progress)
    write_frame(made.frame, path)
    return made.frame


def _accuracy(
    frame: pd.DataFrame, tables: Tables, target: Target, maker: Classifier
) -> tuple[float, float, float]:
    model = train_on(frame, tables.text, target, maker)
    score = classification_scores(predictions([model], tables.heldout, tables.text, target))[0]
    return score.value, score.low, score.high
