"""How much a twin's use depends on ε: further twins, made as a run made its own.

Twins are kept in the run's `internal/` as soon as they are made: each takes as long as the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from evaluation.policy_runs import train_twin
from evaluation.private_table import Tables
from evaluation.release import FinishedRun, Twin
from twinset.progress import Progress
from twinset.run.request import Source
from twinset.table.labels import LabelRules
from twinset.table.read import read_frame, write_frame


def twins_by_epsilon(
    budgets: Sequence[float], run: FinishedRun, tables: Tables, twin: Twin, progress: Progress
) -> dict[float, pd.DataFrame]:
    """Train a twin for each ε, with the run's other options; the run's own is among them.

    And behind its prompt, even if that was chosen by what was counted at its ε.
    """
    own = {} if twin.epsilon is None else {twin.epsilon: twin.frame}
    return own | {epsilon: _twin_at(epsilon, run, tables, progress) for epsilon in budgets}


def _twin_at(epsilon: float, run: FinishedRun, tables: Tables, progress: Progress) -> pd.DataFrame:
    path = run.internal / f"twin-epsilon-{epsilon:g}.parquet"
    if path.is_file() and len(known := read_frame(path)) == len(tables.twin):
        return known
    progress.say(f"a twin at ε = {epsilon:g}")
    config = replace(run.config, privacy=replace(run.config.privacy, target_epsilon=epsilon))
    known, prompt = LabelRules().settled(run.schema, {}), run.template
    source = Source(tables.train, tables.text, tables.attributes, prompt=prompt, labels=known)
    _, made = train_twin(source, config, len(tables.twin), progress)
    write_frame(made.frame, path)
    return made.frame
