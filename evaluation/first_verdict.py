"""What a run says of its twin at its end, in five lines: quick measures on the rows held out.

Everything but the guarantee is computed on private rows and is for their owner alone.
`twinset evaluate` and `twinset audit` measure all the rest.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from evaluation.fidelity import fidelity
from evaluation.findings import Measured
from evaluation.leakage.copies import overlap
from evaluation.leakage.membership import model_attacks, text_attacks
from evaluation.leakage.roc import draw_sides, separation
from evaluation.private_table import FEW_ROWS, REAL, TWIN, Tables
from evaluation.release import Release, records_to_frame, split_held_out, take_records
from evaluation.report.groups import COMMONEST
from evaluation.report.handing_over import may_hand_over
from evaluation.report.verdicts import TOO_FEW, Verdict, faithful, leaking
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


def first_verdict(run: Path, source: Source, progress: Progress, device: str = AUTO) -> list[str]:
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
    if not (run / "internal" / HELD_OUT).is_file():
        return [line.format(**names) for line in NOT_HELD_OUT]
    if is_read_once:
        return [READ_ONCE.format(**names), *_next(names)]
    release = Release.read(run, device=device)
    trained, held = (_some(records, MOST) for records in split_held_out(run, source))
    judged = list(_judged(release, trained, held, progress))
    lines = [f"{v.question:<22}{v.answer}: {v.line}" for v in judged]
    return [*lines, *_next(names), PRIVATE]


def _judged(
    release: Release, trained: Records, held: Records, progress: Progress
) -> Iterator[Verdict]:
    schema = trained.schema
    names = tuple(attribute.name for attribute in schema.attributes)
    twin = release.twin.frame
    twin = twin.sample(min(MOST, len(twin)), random_state=0)
    rows = min(len(twin), len(held))
    tables = Tables(records_to_frame(trained), records_to_frame(held), twin, schema.text, names)
    progress.say("judging the twin by the rows held out: quick measures")
    found = Usefulness(tables, make_classifiers(["tfidf"]), [0], progress).measured()
    use = useful_beside_guessing([m for m in found if m.score.name == "accuracy"])
    use = use if rows >= FEW_ROWS else _of_few(use)
    yield use
    likeness = faithful(fidelity(tables, None, seed=0, progress=progress)[0])
    yield likeness if rows >= FEW_ROWS else _of_few(likeness)
    texts = twin[schema.text].astype(str).tolist()
    assert release.run is not None
    model = TwinModel.load(release.run.root, release.device)
    leaks = leaking(_attacked(model, texts, trained, held, progress))
    if rows < FEW_ROWS and leaks.tone == "good":
        leaks = _of_few(leaks)
    yield leaks
    yield may_hand_over(model.guarantee, use, leaks)


def _of_few(verdict: Verdict) -> Verdict:
    return replace(verdict, answer=TOO_FEW, tone="unknown")


def useful_beside_guessing(accuracies: Sequence[Measured]) -> Verdict:
    """Judge whether classifiers learn more from the twin than which label is commonest.

    The report's verdict asks for more: rows made with no private data, which take long to write.
    """
    found: dict[str, dict[str, Measured]] = {}
    for m in accuracies:
        found.setdefault(m.place["label"], {})[m.place["rows"]] = m
    scores = [
        tuple(by_rows[name].score for name in (TWIN, REAL, COMMONEST)) for by_rows in found.values()
    ]
    well = sum(twin.low > guess.high for twin, _, guess in scores)
    said = "; ".join(
        f"{label}: {twin.value:.2f} trained on the twin, {real.value:.2f} on real rows, "
        f"{guess.value:.2f} by guessing"
        for label, (twin, real, guess) in zip(found, scores, strict=True)
    )
    question = "Is it useful?"
    if well == len(scores):
        return Verdict(question, "More than guessing", said, "good")
    return Verdict(question, "In part" if well else "Not seen", said, "mixed" if well else "bad")


def _attacked(
    model: TwinModel, twin: Sequence[str], trained: Records, held: Records, progress: Progress
) -> list[Measured]:
    tried = draw_sides(trained, held, ATTACKED, 0)
    attacks, _ = model_attacks(model, None, tried.members, tried.non_members, progress)
    attacks += text_attacks(twin, tried.members.texts, tried.non_members.texts, None, progress)
    shared = overlap(twin, trained.texts, held.texts, None, seed=0, progress=progress)
    return [*separation(attacks, 0).measured, *tried.measured, *shared]


def _next(names: dict[str, str]) -> list[str]:
    """Return commands to paste, each in a line of its own."""
    run, data = names["run"], names["table"]
    return [
        f"{'What next?':<22}All measures, all attacks, and one page with both:",
        f"{INDENT}twinset evaluate {run} --train {data}",
        f"{INDENT}twinset audit {run} --members {data}",
        f"{INDENT}twinset report {run}",
    ]


def _some(records: Records, most: int) -> Records:
    if len(records) <= most:
        return records
    return take_records(records, np.random.default_rng(0).permutation(len(records))[:most])
