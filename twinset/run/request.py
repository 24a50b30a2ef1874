"""What a run is asked for, how far it is, and what it made.

`Source` and `OutputPaths` are plain, validated data. `Run` is what the eight functions of
`twinset.run.story` pass along. This module reads no file and loads no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from twinset.bounds import check_number
from twinset.config import RunConfig
from twinset.config.run_config import HOLD_OUT
from twinset.errors import InputError
from twinset.progress import Progress, Silent
from twinset.table.labels import LabelRules
from twinset.table.read import FORMATS, STDIN, format_of
from twinset.table.templates import Template
from twinset.table.text_files import Layout

if TYPE_CHECKING:
    from twinset.config.plan import Plan
    from twinset.models.base_model import BaseModel
    from twinset.privacy.mechanism.counts import TokenMarginals
    from twinset.privacy.mechanism.randomness import Randomness
    from twinset.privacy.mechanism.units import Units, WeightScale
    from twinset.privacy.statement.guarantee import Guarantee
    from twinset.privacy.statement.ledger import Ledger
    from twinset.run.checkpoint import Checkpoints, ResumeState
    from twinset.run.run_folder import RunFolder
    from twinset.sampling.allocation import RowsRequest
    from twinset.sampling.twin_model import TwinModel
    from twinset.table.records import Records
    from twinset.table.schema import Combination
    from twinset.table.tokenization import TokenisedRecords
    from twinset.training.distributed import ProcessGroup
    from twinset.training.trainer import Trainer


@dataclass(frozen=True)
class Source:
    """The private table and how it becomes prompts.

    Args:
        data: the table itself, or a file, folder of `datasets`, or hub name.
        text: text column, or a template that joins several; `None` guesses.
        attributes: label columns; empty guesses one.
        split: of a folder or hub data set, or an Excel file's sheet.
        drop_empty: leave all rows without text or label out, not only where they are few.
        prompt: a built-in template, a `.toml` file, or the prompt itself; a `Template` is taken as
            it is.
        owner: column that says whose a record is; `None`: each record is protected by itself.
        labels: which label values are public.
        delimiter: of a CSV; `None`: it is detected.
        encoding: of a file of text; `None`: it is detected.
        strict: refuse rows without text or label, and control characters, instead of leaving them
            out.
        hold_out: share of the rows that is kept from the run; `None`: see `run_folder.held_share`.
    """

    data: pd.DataFrame | str | Path
    text: str | None = None
    attributes: tuple[str, ...] = ()
    split: str | None = None
    _: KW_ONLY
    drop_empty: bool = False
    prompt: Template | str | Path | None = None
    owner: str | None = None
    labels: LabelRules = LabelRules()
    delimiter: str | None = None
    encoding: str | None = None
    strict: bool = False
    hold_out: float | None = 0.0

    def __post_init__(self) -> None:
        """Refuse a file that is not there, and options of files for a table in memory."""
        if self.hold_out is not None:
            check_number("`hold_out`", self.hold_out, HOLD_OUT)
        _ = self.layout  # it checks itself
        check_there(self.data)
        given = [n for n in ("split", "delimiter", "encoding") if getattr(self, n) is not None]
        if isinstance(self.data, pd.DataFrame) and given:
            raise InputError(f"`{given[0]}`: a table in memory has none; leave it out")

    @property
    def layout(self) -> Layout:
        """How a file of text is to be read."""
        return Layout(self.encoding, self.delimiter, self.strict)

    @property
    def reading(self) -> dict[str, str | None]:
        """What was said of where the texts are in a file: plain values, to read it so again."""
        return {n: getattr(self, n) for n in ("text", "split", "delimiter", "encoding")}

    @property
    def name(self) -> str:
        """What to call the table in messages, and a run after it."""
        if isinstance(self.data, pd.DataFrame):
            return "table"
        return "standard input" if str(self.data) == STDIN else str(self.data)


def check_there(data: pd.DataFrame | str | Path) -> None:
    """Refuse a file that is not there, at once; what has no file's ending may be on the hub.

    Raises:
        InputError: there is no such file.
    """
    if isinstance(data, pd.DataFrame) or format_of(data) is None or Path(data).exists():
        return
    raise InputError(f"{data}: no such file; check the path")


@dataclass(frozen=True)
class OutputPaths:
    """Where results go.

    Args:
        run: the run folder; `None` names one after the table.
        output: a file beside which card and ledger stand too; `None` for `share/` alone.
        format: of the twin; `None` takes it from `output`'s ending, else from the table's.
        overwrite: whether an existing run or file may be replaced.
        guard_formulas: see `twinset.table.read.write_frame`.
        resume: whether to resume a run that was killed or stopped.
        accept_spend: whether to take steps again that were released before, and count both.
    """

    run: Path | None = None
    output: Path | None = None
    format: str | None = None
    overwrite: bool = False
    guard_formulas: bool = True
    resume: bool = False
    accept_spend: bool = False

    def __post_init__(self) -> None:
        """Refuse an unknown format and an ending that says another."""
        if self.accept_spend and not self.resume:
            raise InputError("`accept_spend` does nothing without `resume`; leave it out")
        named = ending_of(self.output) if self.output else None
        known = ", ".join(ending.removeprefix(".") for ending in FORMATS)
        if self.format is not None and f".{self.format}" not in FORMATS:
            raise InputError(f"`format={self.format}`: unknown; choose one of {known}")
        if self.output and named is None and self.format is None:
            raise InputError(
                f"`output={self.output}`: unknown ending; give `format`, or end it in {known}"
            )
        if self.format is not None and named not in (None, self.format):
            raise InputError(
                f"`output={self.output}` ends in .{named}, but `format` is {self.format}; "
                "leave one of them out"
            )

    def twin_format(self, data: str = "") -> str:
        """Return the twin's format, an ending without its dot; `data` is the private table's name.

        >>> OutputPaths().twin_format("reviews.csv.gz"), OutputPaths().twin_format("some/hub-name")
        ('csv', 'parquet')
        """
        chosen = self.format or (ending_of(self.output) if self.output else None)
        alike = {"xlsx": "csv", "json": "jsonl"}.get(format_of(data) or "", "parquet")
        return chosen or (ending_of(data) or alike).removesuffix(".gz")


def ending_of(path: str | Path) -> str | None:
    """Return the ending of `FORMATS` that a file's name has, without its dot.

    >>> ending_of("twin.csv.gz"), ending_of("notes.docx")
    ('csv.gz', None)
    """
    name = Path(path).name.lower()
    return next((e.removeprefix(".") for e in FORMATS if name.endswith(e)), None)


@dataclass
class Run:
    """One run, as far as it is: each function of the story fills what the next ones need.

    It is good for one fine-tuning, which changes the base model.

    Args:
        config: the run's options; `plan` settles what they leave to N.
        source: the private table; None: records are in hand.
        rows: of the twin, as asked for; None: no twin is written.
        paths: where results go.
        progress: is notified of what happens; it alone sees figures computed on private records.

    Attributes:
        folder: the run folder under construction; None: nothing is kept.
        tokens_folder: private to its owner, for tokens; None: they are kept in memory.
        group: processes that form clipped sums together; None: this one alone.
        records: the private records, without those held out. Set by `read`, as the next ones.
        held_out: records that are kept from the run; None: none.
        template: renders the prompts; `count` may choose another of `candidates`.
        base: the base model.
        counts: rows by label, where they were asked for so; None: in proportion to records.
        notes: about the table, for its owner alone: guesses, rows and columns left out.
        plan: noise, steps and learning rate. Set by `plan`, as the next ones.
        scale: public scale of privacy weights, where records have them.
        candidates: templates of which one is chosen by what is counted; none: it is `template`.
        phases: the parts of the run and their seconds, as planned; none: not measured.
        rows_seconds: time for rows, fixed before private text is read; None: as long as they take.
        resumed: where the run resumes; None: at its beginning. Set by `count`, as the next ones.
        checkpoints: what a stopped run resumes from; None: nothing is kept.
        units: whose records are protected together.
        randomness: of batches and noise.
        ledger: of what is spent.
        tokens: what is trained on, records cut to the longest text.
        label_counts: noisy number of records of each label combination.
        marginals: noisy counts of tokens and lengths; None: not asked for.
        trainer: the model in training. Set by `train`.
        model: what writes rows, with all that was released. Set by `teach`.
        frame: the twin's rows. Set by `sample`.
        redrawn: how many texts were drawn again, by reason.
        twin: the twin's file. Set by `share`.
        seconds: of each function of the story that has ended.
    """

    config: RunConfig
    source: Source | None = None
    rows: RowsRequest | None = None
    paths: OutputPaths = OutputPaths()
    progress: Progress = field(default_factory=Silent)
    folder: RunFolder | None = None
    tokens_folder: Path | None = None
    group: ProcessGroup | None = None
    records: Records = field(init=False)
    held_out: Records | None = None
    template: Template = field(init=False)
    base: BaseModel = field(init=False)
    counts: dict[Combination, int] | None = None
    notes: tuple[str, ...] = ()
    plan: Plan = field(init=False)
    scale: WeightScale | None = None
    candidates: tuple[Template, ...] = ()
    phases: tuple[tuple[str, float], ...] = ()
    rows_seconds: float | None = None
    resumed: ResumeState | None = None
    checkpoints: Checkpoints | None = None
    units: Units = field(init=False)
    randomness: Randomness = field(init=False)
    ledger: Ledger = field(init=False)
    tokens: TokenisedRecords = field(init=False)
    label_counts: dict[Combination, int] = field(init=False)
    marginals: TokenMarginals | None = None
    trainer: Trainer = field(init=False)
    model: TwinModel = field(init=False)
    frame: pd.DataFrame = field(init=False)
    redrawn: Mapping[str, int] = field(default_factory=dict)
    twin: Path | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    is_used: bool = False

    @property
    def owned(self) -> int | None:
        """Number of records that owners have; None: each record is protected by itself."""
        return None if self.records.owners is None else len(self.records)

    def settings(self) -> dict[str, Any]:
        """Return what the run is made from, as plain values; `internal/` keeps it."""
        from twinset.sampling.allocation import RowsRequest

        rows = asdict(self.rows or RowsRequest()) | {"seconds": self.rows_seconds}
        reading: Mapping[str, str | None] = self.source.reading if self.source else {}
        return {
            **self.config.to_dict(),
            "plan": asdict(self.plan),
            "rows": rows,
            "prompt": self.template.to_dict(),
            "candidates": [template.pattern for template in self.candidates],
            "labels": (self.source.labels if self.source else LabelRules()).to_dict(),
            "reading": dict(reading),
            "hold_out": self.source.hold_out if self.source else None,
            "base": self.base.origin,
            "scale": self.scale and self.scale.to_dict(),
            "table": self.records.fingerprint(),  # private, as all of `internal/` is
        }


@dataclass(frozen=True)
class Result:
    """What a command made.

    Args:
        guarantee: of everything it made, taken together.
        run: the run folder; None where none was made.
        twin: the twin's file; None where only a model was trained.
        rows: the twin's.
    """

    guarantee: Guarantee
    run: Path | None = None
    twin: Path | None = None
    rows: int = 0
