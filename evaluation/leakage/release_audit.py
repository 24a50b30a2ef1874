"""Does what was released leak? `twinset audit RUN|TWIN`: every attack on a twin, and on its model.

Members are rows the twin was made from, non-members rows of the same kind that it was not made
from. What only the twin is needed for is done without a model.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evaluation.findings import Findings, Measured
from evaluation.leakage.membership import find_base, model_attacks
from evaluation.leakage.names import mean_reciprocal_rank, phone_exposure
from evaluation.leakage.overlap import overlap
from evaluation.leakage.replay import replay
from evaluation.leakage.roc import Attack, roc_curve, separation
from evaluation.leakage.shift import shift, without_shared
from evaluation.leakage.text_membership import text_attacks
from evaluation.limits import ATTACKED
from evaluation.policy_runs import take
from evaluation.release import FinishedRun, Release
from evaluation.utility.embeddings import SentenceEncoder
from twinset.config.bounds import SEEDS, check_options, within
from twinset.data.formats import read_frame
from twinset.data.records import Records, records_from_frame
from twinset.data.tokenization import prompt_tokens
from twinset.errors import InputError
from twinset.progress import Progress
from twinset.sampling.twin_model import TwinModel

FILE = "audit.json"
ROWS = 1000  # of members and of non-members that attacks look at


@dataclass(frozen=True)
class AuditRequest:
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
    rows: int = within(ROWS, ATTACKED)
    seed: int = within(0, SEEDS)

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_options(self)


def audit_release(
    release: Release, request: AuditRequest, command: str, progress: Progress
) -> Findings:
    """Attack a release: its model, where there is a run folder, and the twin alone.

    Raises:
        InputError: a table cannot be used.
    """
    attacker = _Attacker(release, request, progress)
    if release.run is None:
        attacker.notes.append("the model was not attacked: name its run folder")
    else:
        attacker.ask_model(release.run)
    attacker.read_twin()
    about = release.about(command, request.members) | {
        "seed": request.seed,
        "rows": attacker.rows,
        "tried": request.rows,
    }
    measured, curves = attacker.judged(), (roc_curve(attacker.attacks),)
    for note in attacker.notes:
        progress.warn(note)
    return Findings("audit", about, measured, curves, (), tuple(attacker.notes))


class _Attacker:
    """Collects what attacks find.

    Args:
        release: what is attacked.
        request: with which rows.
        progress: is notified of what happens.
    """

    def __init__(self, release: Release, request: AuditRequest, progress: Progress) -> None:
        self._progress, self._seed = progress, request.seed
        guesses: list[str] = []
        text, attributes = release.columns(request.text, request.attributes, guesses)
        self._twin = [str(cell) for cell in release.twin.frame[text].dropna()]
        if not self._twin:
            raise InputError(f"{release.path}: the twin has no texts; give another file")
        members, others = (
            _records(path, text, attributes) for path in (request.members, request.non_members)
        )
        self._all_members, self._all_others = members.texts, others.texts
        self._members, self._others, notes = without_shared(members, others)
        rng = np.random.default_rng(request.seed)
        self._known, self._unknown = (
            take(rows, rng.permutation(len(rows))[: request.rows])
            for rows in (self._members, self._others)
        )
        self._encoder = SentenceEncoder(progress.say)
        self._measured: list[Measured] = []
        self.attacks: list[Attack] = []
        self.notes = [*guesses, *notes]

    @property
    def rows(self) -> dict[str, int]:
        """Number of rows of each table."""
        members, others = len(self._all_members), len(self._all_others)
        return {"twin": len(self._twin), "members": members, "non-members": others}

    def ask_model(self, run: FinishedRun) -> None:
        """Attack the model."""
        model = TwinModel.load(run.root)
        name = run.config.training.base_model
        base = find_base(name, model.base_origin, self._progress.say)
        attacks, notes = model_attacks(model, base, self._known, self._unknown, self._progress)
        self.attacks += attacks
        self.notes += notes
        self._ask_for_persons(model, self._known, "train")
        self._ask_for_persons(model, self._unknown, "held-out")

    def read_twin(self) -> None:
        """Attack the twin alone."""
        members, others = self._all_members, self._all_others
        progress, seed, known, unknown = self._progress, self._seed, self._known, self._unknown
        self.attacks += text_attacks(
            self._twin, known.texts, unknown.texts, self._encoder.encode, progress
        )
        shifted, shift_notes = shift(self._members.texts, self._others.texts, seed)
        self._measured += [] if shifted is None else [shifted]
        self._measured += overlap(
            self._twin, members, others, self._encoder, seed=seed, progress=progress
        )
        replayed, replay_notes = replay(self._twin, members, others, progress=progress)
        self._measured += replayed
        self.notes += [*shift_notes, *replay_notes]

    def judged(self) -> tuple[Measured, ...]:
        """Return all scores; what attacks are worth comes first."""
        found = separation(self.attacks, self._seed)
        self.notes += found.notes
        return (*found.measured, *self._measured)

    def _ask_for_persons(self, model: TwinModel, records: Records, rows: str) -> None:
        """Ask for the names and telephone numbers that stand in texts (paper 001's measures)."""
        by_label = prompt_tokens(model.template, model.schema.combinations, model.tokenizer)
        prompts = [by_label[label] for label in records.labels]
        asked: dict[str, Any] = {
            "rows": rows,
            "max_tokens": model.text_tokens,
            "seed": self._seed,
            "progress": self._progress,
        }
        given = (model.model, model.tokenizer, records.texts, prompts)
        self._measured += phone_exposure(*given, **asked)
        try:
            ranked = mean_reciprocal_rank(*given, **asked)
        except InputError as error:
            self.notes = list(dict.fromkeys([*self.notes, f"names were not asked for: {error}"]))
        else:
            self._measured += [] if ranked is None else [ranked]


def _records(path: Path, text: str, attributes: list[str]) -> Records:
    frame = read_frame(path)
    return records_from_frame(frame, text, attributes, source=str(path), drop_empty=True)[0]
