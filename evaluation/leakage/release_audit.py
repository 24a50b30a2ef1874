"""Does what was released leak? `twinset audit RUN|TWIN`: every attack on a twin, and on its model.

Members are rows the twin was made from, non-members rows of the same kind that it was not made
from. What only the twin is needed for is done without a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from evaluation.findings import ATTACKED, Findings, Measured
from evaluation.leakage.membership import find_base, model_attacks
from evaluation.leakage.names import mean_reciprocal_rank, phone_exposure
from evaluation.leakage.overlap import overlap
from evaluation.leakage.replay import replay
from evaluation.leakage.roc import Attack, separation
from evaluation.leakage.shift import Sides, sides
from evaluation.leakage.text_membership import text_attacks
from evaluation.release import FinishedRun, Release
from evaluation.utility.embeddings import SentenceEncoder
from twinset.bounds import SEEDS, check_options, within
from twinset.errors import InputError
from twinset.models.base_model import BaseModel
from twinset.progress import Progress
from twinset.sampling.twin_model import TwinModel
from twinset.table.columns import with_joined_text
from twinset.table.read import read_frame
from twinset.table.records import Records, records_from_frame
from twinset.table.text_files import Layout
from twinset.table.tokenization import prompt_tokens

FILE = "audit.json"
ROWS = 1000  # of members and of non-members that attacks look at


@dataclass(frozen=True)
class AuditRequest:
    """What is attacked, with which rows.

    Args:
        members: the private table.
        non_members: real rows held out.
        text: text column, or the template by which it was joined; None: the run's, or a guess.
        attributes: label columns; empty: the run's, or a guess.
        rows: at most so many members, and so many non-members, are looked at by attacks.
        seed: of what is drawn.
        layout: of the files of real rows, where it is not to be detected.
    """

    members: Path
    non_members: Path
    text: str | None = None
    attributes: tuple[str, ...] = ()
    rows: int = within(ROWS, ATTACKED)
    seed: int = within(0, SEEDS)
    layout: Layout = Layout()

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_options(self)


def audit_release(
    release: Release,
    request: AuditRequest,
    command: str,
    progress: Progress,
    model: TwinModel | None = None,
) -> Findings:
    """Attack a release: its model, where there is one, and the twin alone.

    Args:
        release: a twin, with its run folder where there is one.
        request: what it is attacked with.
        command: that leads here.
        progress: is notified of what happens.
        model: that wrote the twin; None: the run folder's.

    Raises:
        InputError: a table cannot be used.
    """
    notes: list[str] = []
    paths = request.members, request.non_members
    real = [read_frame(path, layout=request.layout) for path in paths]
    (members_frame, joined, _), (others_frame, _, _) = (
        with_joined_text(frame, request.text, list(frame)) for frame in real
    )
    text, attributes = release.columns(joined, request.attributes, notes)
    twin = [str(cell) for cell in release.twin.frame[text].dropna()]
    if not twin:
        raise InputError(f"{release.path}: the twin has no texts; give another file")
    members, others = (
        _records(frame, str(path), text, attributes, release.run)
        for path, frame in zip(paths, (members_frame, others_frame), strict=True)
    )
    tried = sides(members, others, request.rows, request.seed)
    found = _Found(notes=[*notes, *tried.notes])
    if release.run is not None and model is None:
        model = TwinModel.load(release.run.root, release.device)
    if model is None:
        found.notes.append("the model was not attacked: name its run folder")
    else:
        base = _base_of(release.run, model, progress)
        _attack_model(model, base, tried, request.seed, found, progress)
    found.measured += tried.measured
    encoder = SentenceEncoder(progress.say, release.device)
    _attack_twin(twin, members.texts, others.texts, tried, encoder, request.seed, found, progress)
    judged = separation(found.attacks, request.seed)
    rows = {"twin": len(twin), "members": len(members), "non-members": len(others)}
    about = {"seed": request.seed, "rows": rows, "tried": request.rows}
    notes = [*found.notes, *judged.notes]
    return Findings(
        "audit",
        release.about(command, request.members) | about,
        (*judged.measured, *found.measured),  # what attacks are worth comes first
        (judged.curve,),
        notes=tuple(notes),
    )


@dataclass
class _Found:
    """What attacks found so far."""

    attacks: list[Attack] = field(default_factory=list)
    measured: list[Measured] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def _base_of(run: FinishedRun | None, model: TwinModel, progress: Progress) -> BaseModel | None:
    """Return what the model was before; None where nobody says which one that is."""
    if run is None:
        return None
    training, device = run.config.training, run.config.speed.device
    return find_base(training.base_model, model.base_origin, progress.say, device)


def _attack_model(
    model: TwinModel,
    base: BaseModel | None,
    tried: Sides,
    seed: int,
    found: _Found,
    progress: Progress,
) -> None:
    attacks, notes = model_attacks(model, base, tried.members, tried.non_members, progress)
    found.attacks += attacks
    found.notes += notes
    for rows, records in (("train", tried.members), ("held-out", tried.non_members)):
        _ask_for_persons(model, records, rows, seed, found, progress)
    found.notes = list(dict.fromkeys(found.notes))


def _attack_twin(
    twin: Sequence[str],
    members: Sequence[str],
    others: Sequence[str],
    tried: Sides,
    encoder: SentenceEncoder,
    seed: int,
    found: _Found,
    progress: Progress,
) -> None:
    known, unknown = tried.members.texts, tried.non_members.texts
    found.attacks += text_attacks(twin, known, unknown, encoder.encode, progress)
    found.measured += overlap(twin, members, others, encoder, seed=seed, progress=progress)
    replayed, notes = replay(twin, members, others, progress=progress)
    found.measured += replayed
    found.notes += notes


def _ask_for_persons(
    model: TwinModel, records: Records, rows: str, seed: int, found: _Found, progress: Progress
) -> None:
    """Ask for the names and telephone numbers that stand in texts (paper 001's measures)."""
    by_label = prompt_tokens(model.template, model.schema.combinations, model.tokenizer)
    prompts = [by_label[label] for label in records.labels]
    given = (model.model, model.tokenizer, records.texts, prompts)
    asked: dict[str, Any] = {"rows": rows, "max_tokens": model.text_tokens}
    asked |= {"seed": seed, "progress": progress}
    found.measured += phone_exposure(*given, **asked)
    try:
        ranked = mean_reciprocal_rank(*given, **asked)
    except InputError as error:
        found.notes.append(f"names were not asked for: {error}")
    else:
        found.measured += [] if ranked is None else [ranked]


def _records(
    frame: pd.DataFrame, name: str, text: str, attributes: list[str], run: FinishedRun | None
) -> Records:
    frame = frame if run is None else run.public_rows(frame)
    return records_from_frame(frame, text, attributes, source=name, drop_empty=True)[0]
