"""What a run is asked for beside its options: which table, and where results go.

Plain, validated data; reads no file and knows no model.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path

import pandas as pd

from twinset.bounds import check_number
from twinset.config.run_config import HOLD_OUT
from twinset.errors import InputError
from twinset.table.labels import LabelRules
from twinset.table.read import FORMATS, STDIN, format_of
from twinset.table.templates import Template
from twinset.table.text_files import Layout


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
        hold_out: share of the rows that is kept from the run; `None`: see `pipeline.hold_out`.
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
        """Refuse a file that is not there, and what is of files alone where there is none."""
        if self.hold_out is not None:
            check_number("`hold_out`", self.hold_out, HOLD_OUT)
        _ = self.layout
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
        accept_spend: whether to resume from where a run was resumed before, and count both.
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
        if self.format is not None and f".{self.format}" not in FORMATS:
            raise InputError(f"`format={self.format}`: unknown; choose one of {_known()}")
        if self.output and named is None and self.format is None:
            raise InputError(
                f"`output={self.output}`: unknown ending; give `format`, or end it in {_known()}"
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


def _known() -> str:
    return ", ".join(ending.removeprefix(".") for ending in FORMATS)
