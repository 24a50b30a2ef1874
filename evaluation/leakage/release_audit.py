"""Does what was released leak? `twinset audit RUN|TWIN`: every attack on a twin, and on its model.

Members are rows the twin was made from, non-members rows of the same kind that it was not made
from. What only the twin is needed for is done without a model.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from twinset.bounds import SEEDS, check_options, within
from twinset.errors import InputError
from twinset.progress import Progress
from twinset.sampling.twin_model import TwinModel
from twinset.table.read import Layout, read_frame
from twinset.table.records import records_from_frame, with_joined_text

from ..findings import ATTACKED, Findings, Measured
from ..release import Release
from ..utility.classifiers import SentenceEncoder
from .copies import overlap
from .membership import find_base, model_attacks, text_attacks
from .names import mean_reciprocal_rank, phone_exposure, replay
from .roc import Attack, draw_sides, separation

FILE = "audit.json"
ROWS = 1000  # of members and of non-members that attacks look at


@dataclass(frozen=True)
class AuditRequest:
    """What is attacked, with which rows."""

    members: Path  # the private table
    non_members: Path  # real rows held out
    text: str | None = None  # column, or the template it was joined by. None: the run's, or a guess
    attributes: tuple[str, ...] = ()  # label columns. Empty: the run's, or a guess.
    rows: int = within(ROWS, ATTACKED)  # members, and non-members, that attacks look at, at most
    seed: int = within(0, SEEDS)
    layout: Layout = Layout()  # of the files of real rows, where it is not to be detected

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
    """Attack a release: its model, or else that of its run folder, and the twin alone.

    Raises:
        InputError: a table cannot be used.
    """
    notes: list[str] = []
    run, seed = release.run, request.seed
    paths = request.members, request.non_members
    joined = [
        with_joined_text(frame, request.text, list(frame))[:2]
        for frame in (read_frame(path, layout=request.layout) for path in paths)
    ]
    text, attributes = release.columns(joined[0][1], request.attributes, notes)
    twin = [str(cell) for cell in release.twin.frame[text].dropna()]
    if not twin:
        raise InputError(f"{release.path}: the twin has no texts; give another file")
    members, others = (
        records_from_frame(
            frame if run is None else run.public_rows(frame),
            text,
            attributes,
            source=str(path),
            drop_empty=True,
        )[0]
        for path, (frame, _) in zip(paths, joined, strict=True)
    )
    sides = draw_sides(members, others, request.rows, seed)
    notes += sides.notes
    attacks: list[Attack] = []
    measured: list[Measured] = []
    if run is not None and model is None:
        model = TwinModel.load(run.root, release.device)
    if model is None:
        notes.append("the model was not attacked: name its run folder")
    else:
        base = None  # without a run nothing says which model it was before
        if run is not None:
            training, device = run.config.training, run.config.speed.device
            base = find_base(training.base_model, model.base_origin, progress.say, device)
        attacks, more = model_attacks(model, base, sides.members, sides.non_members, progress)
        for rows, records in (("train", sides.members), ("held-out", sides.non_members)):
            measured += phone_exposure(model, records, rows, seed=seed, progress=progress)
            try:
                measured += mean_reciprocal_rank(model, records, rows, seed=seed, progress=progress)
            except InputError as error:
                more.append(f"names were not asked for: {error}")
        notes += dict.fromkeys(more)
    measured += sides.measured
    encoder = SentenceEncoder(progress.say, release.device)
    tried = sides.members.texts, sides.non_members.texts
    attacks += text_attacks(twin, *tried, encoder.encode, progress)
    measured += overlap(twin, members.texts, others.texts, encoder, seed=seed, progress=progress)
    replayed, more = replay(twin, members.texts, others.texts, progress=progress)
    judged = separation(attacks, seed)
    counted = {"twin": len(twin), "members": len(members), "non-members": len(others)}
    return Findings(
        "audit",
        release.about(command, request.members)
        | {"seed": seed, "rows": counted, "tried": request.rows},
        (*judged.measured, *measured, *replayed),  # what attacks are worth comes first
        (judged.curve,),
        notes=tuple([*notes, *more, *judged.notes]),
    )
