"""A run's inputs, its state and its result. This module reads no file and loads no torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from twinset.bounds import check_number
from twinset.config import EPSILON, HOLD_OUT, RunConfig
from twinset.errors import InputError
from twinset.progress import Progress, Silent
from twinset.table.columns import table_of, whole_characters
from twinset.table.kinds import ColumnRules
from twinset.table.labels import LabelRules
from twinset.table.read import FORMATS, STDIN, format_of, read_frame
from twinset.table.templates import Template
from twinset.table.text_formats import Layout

if TYPE_CHECKING:
    from twinset.config.plan import Plan
    from twinset.models.base_model import BaseModel
    from twinset.privacy.accounting.events import Event, LabelSelection
    from twinset.privacy.mechanism.counts import TokenMarginals
    from twinset.privacy.mechanism.gate import Gate
    from twinset.privacy.mechanism.randomness import Randomness
    from twinset.privacy.mechanism.units import Units, WeightScale
    from twinset.privacy.statement.guarantee import Guarantee
    from twinset.privacy.statement.ledger import Ledger
    from twinset.run.budget import Account
    from twinset.run.run_folder import RunFolder
    from twinset.sampling.allocation import RowsRequest
    from twinset.sampling.column_model import ColumnModel
    from twinset.sampling.twin_model import TwinModel
    from twinset.table.records import Records
    from twinset.table.schema import Combination, LabelValue
    from twinset.table.tokenization import TokenisedRecords
    from twinset.training.clipped_sum import Trainer
    from twinset.training.distributed import ProcessGroup


ACCOUNT = ".budget.json"  # ending of a table's account, next to it


@dataclass(frozen=True)
class Source:
    """The private table, and how it becomes prompts."""

    data: pd.DataFrame | str | Path  # the table, or a file, a folder of `datasets`, a hub name
    text: str | None = None  # column, or a template that joins several (None guesses)
    attributes: tuple[str, ...] = ()  # label columns (none guesses one)
    split: str | None = None  # of a data set, or an Excel file's sheet
    _: KW_ONLY
    drop_empty: bool = False  # leave out all rows without text or label, not only a few
    prompt: Template | str | Path | None = None  # a name, a `.toml` file or the prompt itself
    owner: str | None = None  # column with the owner of a record (None: records are protected)
    each_row_is_someone: bool = False  # whatever a column looks like, no person has several rows
    labels: LabelRules = LabelRules()  # which label values are public
    columns: ColumnRules = ColumnRules(())  # which other columns are kept, and how they are read
    delimiter: str | None = None  # of a CSV (None detects it)
    encoding: str | None = None  # of a file of text (None detects it)
    multiline: bool = False  # lines within quotes are text, though they look like rows
    strict: bool = False  # refuse rows without text or label, and control characters
    hold_out: float | None = 0.0  # share of rows kept from the run (None: see `held_share`)
    budget: float | None = None  # limit of the table's account (None: as it states)
    budget_file: str | Path | None = None  # the account (None: the one next to the table, if any)

    def __post_init__(self) -> None:
        """Refuse a missing file, and file options for a table in memory."""
        if self.hold_out is not None:
            check_number("`hold_out`", self.hold_out, HOLD_OUT)
        if self.budget is not None:
            check_number("`budget`", self.budget, EPSILON)
        _ = self.layout  # it checks itself
        check_there(self.data)
        given = [n for n in ("split", "delimiter", "encoding") if getattr(self, n) is not None]
        if isinstance(self.data, pd.DataFrame) and given:
            raise InputError(f"`{given[0]}`: a table in memory has none. Leave it out.")

    @classmethod
    def of(
        cls,
        data: Any,
        text: str | Sequence[Any] | None,
        attributes: str | Sequence[str],
        owner: str | None,
        prompt: Template | str | Path | None,
        hold_out: float | None,
        reading: Mapping[str, Any],
    ) -> Source:
        """Return a table given from Python, see `twinset.Twinset.fit` and `twinset.api.Reading`.

        Raises:
            InputError: it is no table, or the numbers of texts and labels differ.
            TypeError: there is no such option for reading.
        """
        parts = data.values() if isinstance(data, Mapping) else ()
        if any(hasattr(part, name) for part in parts for name in ("columns", "column_names")):
            splits = ", ".join(map(str, data))
            raise InputError(f"the data set has splits. Give one of them: {splits}")
        data = table_of(data)
        kind = type(data)  # a table's columns may be attributes, too
        is_arrow = hasattr(kind, "__arrow_c_stream__") and hasattr(kind, "schema")
        if is_arrow or hasattr(kind, "with_format"):  # or a `datasets.Dataset`
            data = read_frame(data)
        elif hasattr(kind, "to_pandas"):
            data = data.to_pandas()
        if isinstance(data, pd.DataFrame | str | Path):
            if text is not None and not isinstance(text, str):
                raise InputError(
                    "`text` must be the name of a column. Labels go with a list of texts only."
                )
        elif text is None or isinstance(text, str) or len(text) != len(data):
            raise InputError("a list of texts needs one label each: `fit(texts, labels)`")
        else:  # texts and their labels. As objects, so that a gap changes no other label.
            label = pd.Series(list(text), dtype=object)
            texts = [whole_characters(t) if isinstance(t, str) else t for t in data]
            data, text = pd.DataFrame({"text": texts, "label": label}), "text"
        how = {"prompt": prompt, "owner": owner, "hold_out": hold_out, **reading}
        declared, bins = (how.pop(name, None) or {} for name in ("labels", "bins"))
        merge, drop = (bool(how.pop(name, False)) for name in ("merge_labels", "drop_undeclared"))
        rules = "columns", "kinds", "ranges", "values"
        columns = ColumnRules.of(*(how.pop(name, None) for name in rules))
        listed: Any = attributes if pd.api.types.is_list_like(attributes) else [attributes]
        names = tuple(name for name in listed if name is not None)
        labels = LabelRules(declared, bins, merge, drop)
        return cls(data, text, names, labels=labels, columns=columns, **how)

    @property
    def layout(self) -> Layout:
        """How to read a text file."""
        return Layout(self.encoding, self.delimiter, self.strict, multiline=self.multiline)

    @property
    def account_file(self) -> Path | None:
        """The file of the table's account, or None if the table has no account and needs none.

        Every path and symbolic link that leads to the table leads to the same account. A copy, a
        hard link and a table that was renamed have none.

        Raises:
            InputError: a limit is stated for a table without a file, or another account is named
                than the one next to the table.
        """
        named = None if self.budget_file is None else Path(self.budget_file)
        usual = None
        if not isinstance(self.data, pd.DataFrame) and Path(self.data).exists():
            table = Path(self.data).resolve()
            usual = table.with_name(table.name + ACCOUNT)
            if os.path.lexists(usual):
                if named and named.resolve() != usual.resolve():
                    raise InputError(f"{usual}: is this table's account. Leave out `budget_file`.")
                return usual
        if self.budget is None or named:
            return named
        if usual is None:
            raise InputError("`budget`: this table has no file. Name its account: `budget_file`.")
        return usual

    def open_account(self, command: str, progress: Progress, writes: bool = True) -> Account | None:
        """Return the account that a run of this command counts in, if there is one."""
        from twinset.run.budget import Account

        given = self.budget, self.owner, command, progress, writes
        return None if self.account_file is None else Account(self.account_file, *given)

    @property
    def reading(self) -> dict[str, Any]:
        """Where the texts are in a file, as plain values, for reading it in the same way again."""
        return {
            n: getattr(self, n) for n in ("text", "split", "delimiter", "encoding", "multiline")
        }

    @property
    def name(self) -> str:
        """The table's name in messages. The run is named after it."""
        if isinstance(self.data, pd.DataFrame):
            return "table"
        return "standard input" if str(self.data) == STDIN else str(self.data)


def check_there(data: pd.DataFrame | str | Path) -> None:
    """Refuse a missing file. A name without a file's ending may be on the hub."""
    if isinstance(data, pd.DataFrame) or format_of(data) is None or Path(data).exists():
        return
    raise InputError(f"{data}: no such file. Check the path.")


@dataclass(frozen=True)
class OutputPaths:
    """Where results are written."""

    run: Path | None = None  # the run folder (None names one after the table)
    output: Path | None = None  # the twin's file, with card and ledger next to it (None: `share/`)
    format: str | None = None  # of the twin (None takes it from `output`, else from the table)
    overwrite: bool = False  # replace an existing run or file
    guard_formulas: bool = True  # see `twinset.table.read.write_frame`
    resume: bool = False  # a run that was killed or stopped
    accept_spend: bool = False  # take steps again that were released before, and count both

    def __post_init__(self) -> None:
        """Refuse an unknown format, and a file ending that contradicts the format."""
        if self.accept_spend and not self.resume:
            raise InputError("`accept_spend` does nothing without `resume`. Leave it out.")
        named = ending_of(self.output) if self.output else None
        known = ", ".join(ending.removeprefix(".") for ending in FORMATS)
        if self.format is not None and f".{self.format}" not in FORMATS:
            raise InputError(f"`format={self.format}`: unknown. Choose one of {known}.")
        if self.output and named != self.format and None not in (named, self.format):
            raise InputError(f"`output={self.output}` is not {self.format}. Leave `format` out.")
        if self.output and named is None and self.format is None:
            raise InputError(f"`output={self.output}`: end it in {known}, or give `format`")

    def twin_format(self, data: str = "") -> str:
        """Return the twin's format, an ending without its dot. `data` names the private table.

        >>> [OutputPaths().twin_format(d) for d in ("t.csv.gz", "t.ndjson", "some/hub-name")]
        ['csv', 'jsonl', 'parquet']
        """
        chosen = self.format or (ending_of(self.output) if self.output else None)
        kind = format_of(data) or ""
        written = kind if f".{kind}" in FORMATS else "parquet"
        alike = {"xlsx": "csv", "json": "jsonl"}.get(kind, written)
        return chosen or (ending_of(data) or alike).removesuffix(".gz")


def ending_of(path: str | Path) -> str | None:
    """Return the ending of a file name if it is one of `FORMATS`, without its dot.

    >>> ending_of("twin.csv.gz"), ending_of("notes.docx")
    ('csv.gz', None)
    """
    name = Path(path).name.lower()
    return next((e.removeprefix(".") for e in FORMATS if name.endswith(e)), None)


@dataclass(frozen=True)
class ResumeState:
    """Where a fine-tuning resumes."""

    phase: int  # of training (0 is the first)
    state: dict[str, Any]  # of the training loop
    teacher: Path | None  # its folder (None: not released yet)


@dataclass
class Run:
    """The state of one run. It serves one fine-tuning, because that changes the base model."""

    config: RunConfig  # `plan` settles options that depend on N
    source: Source
    rows: RowsRequest | None = None  # as asked for (None: no twin is written)
    paths: OutputPaths = OutputPaths()
    progress: Progress = field(default_factory=Silent)  # alone sees private figures
    folder: RunFolder | None = None  # None: nothing is kept
    tokens_folder: Path | None = None  # private to its owner (None: tokens are in memory)
    group: ProcessGroup | None = None  # processes that form clipped sums (None: this one alone)
    account: Account | None = None  # the table's (None: it has none, or nothing is spent)
    # set by `read`
    records: Records = field(init=False)  # private, without those held out
    held_out: Records | None = None
    held_rows: list[int] = field(default_factory=list)  # their numbers in the table
    base: BaseModel = field(init=False)
    question: str = ""  # to the owner, before anything is spent
    notes: tuple[str, ...] = ()  # for the owner alone: guesses, rows and columns left out
    # set by `select`
    randomness: Randomness = field(init=False)  # of batches and noise
    gate: Gate = field(init=False)  # which all releases pass
    waiting: list[Event] = field(default_factory=list)  # events before there is a ledger
    selection: LabelSelection | None = None  # planned (None: all values are declared)
    # selected values by column, and their noisy counts (None: nothing was released)
    selected: dict[str, dict[LabelValue, int]] | None = None
    # planned, of the other columns' values (None: there are no columns, or all are declared)
    column_selection: LabelSelection | None = None
    template: Template = field(init=False)  # `count` may choose another of the `candidates`
    counts: dict[Combination, int] | None = None  # rows by label (None: in proportion to records)
    # set by `plan`
    plan: Plan = field(init=False)
    scale: WeightScale | None = None  # public scale of privacy weights
    candidates: tuple[Template, ...] = ()  # the counts choose one of them
    phases: tuple[tuple[str, float], ...] = ()  # parts of the run and their seconds, if measured
    rows_seconds: float | None = None  # fixed before private text is read (None: no limit)
    # set by `generate`: its `Checkpoints`, a class that knows `Run` (None: nothing is kept)
    checkpoints: Any = None
    # set by `count`
    resumed: ResumeState | None = None  # None: the run begins
    units: Units = field(init=False)  # which records are protected together
    ledger: Ledger = field(init=False)
    tokens: TokenisedRecords = field(init=False)  # cut to the longest text
    label_counts: dict[Combination, int] = field(init=False)  # noisy
    marginals: TokenMarginals | None = None  # noisy counts of tokens and lengths
    columns: ColumnModel | None = None  # noisy tables of the other columns
    left_out: tuple[str, ...] = ()  # columns that the releases say cannot be kept
    trainer: Trainer = field(init=False)  # set by `train`
    model: TwinModel = field(init=False)  # set by `teach`
    frame: pd.DataFrame = field(init=False)  # the twin's rows, set by `sample`
    redrawn: Mapping[str, int] = field(default_factory=dict)  # texts drawn again, by reason
    twin: Path | None = None  # the twin's file, set by `share`
    seconds: dict[str, float] = field(default_factory=dict)  # of each function that has ended
    is_used: bool = False

    @property
    def owned(self) -> int | None:
        """Number of records that have owners, or None if each record is protected on its own."""
        return None if self.records.owners is None else len(self.records)

    @property
    def most(self) -> int:
        """Maximum number of records per unit: those of an owner in a step or count, else 1."""
        return 1 if self.owned is None else self.config.privacy.max_records_per_owner

    @property
    def undeclared_columns(self) -> int:
        """Number of other columns without declared values."""
        others, declared = self.records.others, self.source.columns.values
        return 0 if others is None else sum(name not in declared for name in others)

    def tell(self, *notes: str) -> None:
        """Show notes to the owner, and keep them for `internal/notes.txt`."""
        self.notes = (*self.notes, *notes)
        for note in notes:
            self.progress.say(note)

    def keep_columns(self, columns: ColumnModel | None) -> None:
        """Keep the released model of the other columns. The twin has these columns, and no others.

        `records` keep the private cells no longer, except further texts that steps will read.
        """
        self.columns, schema = columns, self.records.schema
        kept = {schema.text, *(attribute.name for attribute in schema.attributes)}
        kept |= {column.name for column in columns.columns} if columns else set()
        self.left_out = tuple(name for name in schema.columns if name not in kept)
        schema = replace(schema, columns=tuple(n for n in schema.columns if n in kept))
        others = self.records.others
        texts = [column.name for column in columns.texts] if columns else []
        if others is not None:
            others = others[texts] if texts and self.plan.steps else None
        self.records = replace(self.records, schema=schema, others=others)

    def settings(self) -> dict[str, Any]:
        """Return the run's inputs as plain values. `internal/` keeps them."""
        from twinset.sampling.allocation import RowsRequest

        rows = asdict(self.rows or RowsRequest()) | {"seconds": self.rows_seconds}
        return {
            **asdict(self.config),
            "plan": asdict(self.plan),
            "rows": rows,
            "prompt": asdict(self.template),
            "candidates": [template.pattern for template in self.candidates],
            "labels": self.source.labels.to_dict(),
            "columns": self.source.columns.to_dict(),
            # pairs, as JSON has no names that are numbers
            "selected": self.selected and {n: [*v.items()] for n, v in self.selected.items()},
            "reading": self.source.reading,
            "hold_out": self.source.hold_out,
            "base": self.base.origin,
            "weights": self.base.weights,
            "scale": self.scale and asdict(self.scale),
            "table": self.records.fingerprint(),  # private, as all of `internal/` is
        }


@dataclass(frozen=True, repr=False)
class Result:
    """What a command made."""

    guarantee: Guarantee  # of everything it made, taken together
    run: Path | None = None  # the run folder, if any
    twin: Path | None = None  # the twin's file (None where only a model was trained)
    rows: int = 0  # of the twin

    def __repr__(self) -> str:
        """Return the place and the guarantee in one line."""
        what = f"{self.rows:,} rows in {self.twin}" if self.twin else f"a model in {self.run}/model"
        return f"<twinset: {what}, {self.guarantee!r}>"
