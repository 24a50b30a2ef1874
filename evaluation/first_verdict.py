"""What a run says of its twin at its end, in five lines: quick measures on the rows held out.

The rules are the report's. Everything except the guarantee is computed on private rows and is for
their owner alone. `twinset evaluate` and `twinset audit` measure all the rest.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from evaluation.fidelity import fidelity
from evaluation.leakage.copies import overlap
from evaluation.leakage.membership import model_attacks, text_attacks
from evaluation.leakage.roc import draw_sides, separation
from evaluation.release import (
    FEW_ROWS,
    Release,
    Tables,
    records_to_frame,
    split_held_out,
    take_records,
)
from evaluation.report.verdicts import (
    TOO_FEW,
    Verdict,
    judge_fidelity,
    judge_hand_over,
    judge_leakage,
    judge_use,
)
from evaluation.utility.classifiers import make_classifiers
from evaluation.utility.usefulness import Usefulness
from twinset.models.device import AUTO
from twinset.progress import Progress
from twinset.run.request import Source
from twinset.run.run_folder import HELD_OUT
from twinset.sampling.twin_model import TwinModel
from twinset.table.read import STDIN, UNNAMED
from twinset.table.records import Records

MOST, ATTACKED = 5_000, 200  # rows of each table; members, and others, that attacks look at
INDENT = "  "  # of a command, which is not broken into lines
PRIVATE = "Computed on private rows: the first four lines are for you alone."
NOT_HELD_OUT = (
    "No rows were held out to judge the twin by: `hold_out=0.2` keeps some back. With other real "
    "rows this measures it now:",
    INDENT + "twinset evaluate {run} --train {table} --test OTHERS",
)
READ_ONCE = "No verdict: standard input is read once only. Save the table as {table} for it."


def judge_finished_run(
    run: Path, source: Source, progress: Progress, device: str = AUTO
) -> list[str]:
    """Return the five lines, or what to do to get them.

    Args:
        run: its folder.
        source: the private table.
        progress: is notified of what happens.
        device: that reads rows with the run's model.

    Raises:
        InputError: the private table cannot be read again.
    """
    is_read_once = str(source.data) == STDIN
    table_file = UNNAMED if is_read_once else shlex.quote(source.name)
    names = {"run": shlex.quote(str(run)), "table": table_file}
    following = [  # commands to paste, each in a line of its own
        f"{'What next?':<22}All measures, all attacks, and one page with both:",
        f"{INDENT}twinset evaluate {names['run']} --train {names['table']}",
        f"{INDENT}twinset audit {names['run']} --members {names['table']}",
        f"{INDENT}twinset report {names['run']}",
    ]
    if not (run / "internal" / HELD_OUT).is_file():
        return [line.format(**names) for line in NOT_HELD_OUT]
    if is_read_once:
        return [READ_ONCE.format(**names), *following]
    release = Release.read(run, device=device)
    rng = np.random.default_rng(0)
    trained, held = (
        take_records(records, rng.permutation(len(records))[:MOST])
        if len(records) > MOST
        else records
        for records in split_held_out(run, source)
    )
    verdicts = list(_judge(release, trained, held, progress))
    lines = [f"{v.question:<22}{v.answer}: {v.line}" for v in verdicts]
    return [*lines, *following, PRIVATE]


def _judge(
    release: Release, trained: Records, held: Records, progress: Progress
) -> Iterator[Verdict]:
    """Yield the verdicts on use, fidelity, leakage and handing over, each when it is known."""
    schema = trained.schema
    names = tuple(attribute.name for attribute in schema.attributes)
    twin = release.twin.frame
    twin = twin.sample(min(MOST, len(twin)), random_state=0)
    is_enough = min(len(twin), len(held)) >= FEW_ROWS

    def of_few(verdict: Verdict) -> Verdict:
        return verdict if is_enough else replace(verdict, answer=TOO_FEW, tone="unknown")

    tables = Tables(records_to_frame(trained), records_to_frame(held), twin, schema.text, names)
    progress.say("judging the twin by the rows held out: quick measures")
    # No text of the base model here: writing it takes longer than all the rest.
    found = Usefulness(tables, make_classifiers(["tfidf"]), [0], progress).measured()
    use = of_few(judge_use(list(found)))
    yield use
    yield of_few(judge_fidelity(fidelity(tables, None, seed=0, progress=progress)[0]))
    assert release.run is not None
    model = TwinModel.load(release.run.root, release.device)
    texts = twin[schema.text].astype(str).tolist()
    tried = draw_sides(trained, held, ATTACKED, 0)
    attacks, _ = model_attacks(model, None, tried.members, tried.non_members, progress)
    attacks += text_attacks(texts, tried.members.texts, tried.non_members.texts, None, progress)
    shared = overlap(texts, trained.texts, held.texts, None, seed=0, progress=progress)
    leaks = judge_leakage([*separation(attacks, 0).measured, *tried.measured, *shared])
    leaks = of_few(leaks) if leaks.tone == "good" else leaks  # what was found is found
    yield leaks
    yield judge_hand_over(model.guarantee, use, leaks)
