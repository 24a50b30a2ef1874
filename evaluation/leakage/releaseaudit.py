"""Does what was released leak? `twinset audit RUN|TWIN`: every attack on a twin, and on its model.

Members are rows the twin was made from, non-members rows of the same kind that it was not made
from. What only the twin is needed for is done without a model.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evaluation.embeddings import SentenceEncoder
from evaluation.findings import Curve, Findings, Measured
from evaluation.leakage.membership import find_base, model_attacks
from evaluation.leakage.overlap import overlap
from evaluation.leakage.replay import replay
from evaluation.leakage.roc import Attack, separation
from evaluation.leakage.shift import shift, without_shared
from evaluation.leakage.textmembership import text_attacks
from evaluation.policydata import take
from evaluation.release import FinishedRun, Release
from twinset.errors import InputError
from twinset.formats import read_frame
from twinset.progress import Progress
from twinset.records import Records, records_from_frame
from twinset.twinmodel import TwinModel

FILE = "audit.json"
ROWS = 1000  # of members and of non-members that attacks look at


@dataclass(frozen=True)
class Wanted:
    """What is attacked, with which rows.

    Args:
        members: the private table.
        non_members: real rows held out.
        text: text column; None: the run's, or a guess.
        attributes: label columns; empty: the run's, or a guess.
        rows: at most so many members, and so many non-members, are looked at by attacks.
        seed: of what is drawn.
    """

    members: Path
    non_members: Path
    text: str | None = None
    attributes: tuple[str, ...] = ()
    rows: int = ROWS
    seed: int = 0


def audit_release(release: Release, wanted: Wanted, command: str, progress: Progress) -> Findings:
    """Attack a release.

    Raises:
        InputError: a table cannot be used.
    """
    text, attributes = release.columns(wanted.text, wanted.attributes)
    members, non_members, notes = _rows(wanted, text, attributes)
    texts = [str(cell) for cell in release.twin.frame[text].dropna()]
    if not texts:
        raise InputError(f"{release.path}: the twin has no texts; give another file")
    encoder = SentenceEncoder(progress.say)
    rng = np.random.default_rng(wanted.seed)
    known, unknown = (_some(rows, wanted.rows, rng) for rows in (members, non_members))
    measured, curves = _membership(
        release.run, texts, known, unknown, encoder, wanted.seed, progress, notes
    )
    shifted, shift_notes = shift(members.texts, non_members.texts, wanted.seed)
    measured += [] if shifted is None else [shifted]
    measured += overlap(
        texts, members.texts, non_members.texts, encoder, seed=wanted.seed, progress=progress
    )
    replayed, replay_notes = replay(texts, members.texts, non_members.texts, progress=progress)
    measured += replayed
    notes += [*shift_notes, *replay_notes]
    for note in notes:
        progress.warn(note)
    about = release.about(command, wanted.members) | {
        "seed": wanted.seed,
        "rows": {"twin": len(texts), "members": len(members), "non-members": len(non_members)},
        "tried": wanted.rows,
    }
    return Findings("audit", about, tuple(measured), tuple(curves), (), tuple(notes))


def _rows(wanted: Wanted, text: str, attributes: list[str]) -> tuple[Records, Records, list[str]]:
    """Read both tables, without what is in both."""
    tables = []
    for path in (wanted.members, wanted.non_members):
        frame = read_frame(path)
        records, _ = records_from_frame(frame, text, attributes, source=str(path), drop_empty=True)
        tables.append(records)
    members, non_members, notes = without_shared(*tables)
    return members, non_members, list(notes)


def _some(records: Records, rows: int, rng: np.random.Generator) -> Records:
    return take(records, rng.permutation(len(records))[:rows])


def _membership(
    run: FinishedRun | None,
    texts: list[str],
    members: Records,
    non_members: Records,
    encoder: SentenceEncoder,
    seed: int,
    progress: Progress,
    notes: list[str],
) -> tuple[list[Measured], list[Curve]]:
    attacks: list[Attack] = []
    if run is None:
        notes.append("the model was not attacked: name its run folder")
    else:
        model = TwinModel.load(run.root)
        base = find_base(model.base_origin, progress.say)
        found, told = model_attacks(model, base, members, non_members, progress)
        attacks += found
        notes += told
    attacks += text_attacks(texts, members.texts, non_members.texts, encoder.encode, progress)
    judged = separation(attacks, seed)
    notes += judged.notes
    return list(judged.measured), [judged.curve]
