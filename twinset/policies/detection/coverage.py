"""What a detector flags in a table, how well it finds known secrets, and what it leaves.

The figures are computed from private records and are for their owner alone. Knows no model, no
noise and no budget.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from twinset.errors import InputError
from twinset.files.atomic import write_text, writing
from twinset.policies.detection.detectors import Detector, Span
from twinset.policies.detection.masking import OnProgress, detect, masked, private_runs
from twinset.table.columns import check_table, show, text_cells
from twinset.table.labels import label_cells
from twinset.table.read import read_frame, row_name

NOT_PROTECTED = (
    "Whatever this detector does not flag is not protected at all: selective privacy lets a model "
    "learn it, and a twin repeat it, word for word."
)
_WORD = re.compile(r"\w+")

Secrets = Mapping[str, Sequence[str | None]]


@dataclass(frozen=True)
class Texts:
    """A table as the measurement needs it.

    Args:
        rows: of the table, from 0, those that have a text.
        texts: one for each of them.
        secrets: by column, the cell of each of them; None where it is empty.
        total: rows of the table, with a text or without.
        row_name: what to call a row.
    """

    rows: list[int]
    texts: list[str]
    secrets: Secrets
    total: int
    row_name: Callable[[int], str] = str


@dataclass
class SecretCounts:
    """How the cells of one secret column fared.

    Args:
        cells: cells that are not empty.
        not_in_text: those that do not occur in their row's text.
        occurrences: of the others, in their row's text.
        flagged: occurrences of which every letter and digit is flagged.
    """

    cells: int = 0
    not_in_text: int = 0
    occurrences: int = 0
    flagged: int = 0

    @property
    def recall(self) -> float | None:
        """Return the share of occurrences wholly flagged; None where there are none."""
        return _share(self.flagged, self.occurrences)


@dataclass
class Coverage:
    """Counts over all texts. A flagged character is one that masking takes away.

    Args:
        secrets: by column.
        flagged_secret_characters: flagged ones that lie inside an occurrence of a secret.
    """

    secrets: dict[str, SecretCounts]
    records: int = 0
    flagged_records: int = 0
    words: int = 0
    flagged_words: int = 0
    characters: int = 0
    flagged_characters: int = 0
    flagged_secret_characters: int = 0

    @property
    def precision(self) -> float | None:
        """Return the share of flagged characters inside a secret; None without secrets."""
        if not self.secrets:
            return None
        return _share(self.flagged_secret_characters, self.flagged_characters)

    def to_dict(self) -> dict[str, Any]:
        """Return counts and shares, ready for JSON."""
        secrets = {
            name: vars(found) | {"recall": found.recall} for name, found in self.secrets.items()
        }
        return vars(self) | {"secrets": secrets, "precision": self.precision}

    def lines(self) -> Iterator[str]:
        """Yield the same for people."""
        yield f"records with anything flagged: {_of(self.flagged_records, self.records)}"
        yield f"words flagged: {_of(self.flagged_words, self.words)}"
        yield f"characters flagged: {_of(self.flagged_characters, self.characters)}"
        for name, found in self.secrets.items():
            missing = f"{found.not_in_text:,} of {found.cells:,} cells are not in their text"
            yield f"recall of {name!r}: {_of(found.flagged, found.occurrences)} ({missing})"
        if self.secrets:
            inside = _of(self.flagged_secret_characters, self.flagged_characters)
            yield f"precision, flagged characters that belong to one of these: {inside}"


def measure_coverage(
    texts: Sequence[str], secrets: Secrets, detector: Detector, on_progress: OnProgress
) -> Coverage:
    """Run the detector over all texts and count.

    Args:
        texts: of the private table.
        secrets: by column, what is known to be private in each text: None or blank where nothing.
            An occurrence is the cell, letter for letter, with no letter or digit beside it.
        detector: what is measured.
        on_progress: called after each text.
    """
    coverage = Coverage({name: SecretCounts() for name in secrets})
    for row, (text, spans) in enumerate(detect(texts, detector, on_progress)):
        flags = _mark(bytearray(len(text)), private_runs(text, spans))
        known = bytearray(len(text))
        for name, cells in secrets.items():
            _mark(known, _find(coverage.secrets[name], cells[row], text, flags))
        words = [match.span() for match in _WORD.finditer(text)]
        coverage.records += 1
        coverage.flagged_records += bool(spans)
        coverage.words += len(words)
        coverage.flagged_words += sum(any(flags[start:end]) for start, end in words)
        coverage.characters += len(text)
        coverage.flagged_characters += sum(flags)
        coverage.flagged_secret_characters += sum(map(int.__and__, flags, known))
    return coverage


def read_texts(data: str, text: str, secrets: Sequence[str], split: str | None = None) -> Texts:
    """Read the text column and the columns of known secrets; rows without a text are left out.

    Raises:
        InputError: the table or one of its columns cannot be used.
    """
    frame = read_frame(data, split)
    check_table(frame, data)
    for name in (text, *secrets):
        if name not in frame.columns:
            raise InputError(f"{data}: no column {name!r}; it has {show(list(frame), frame)}")
    if text in secrets:
        raise InputError(f"{data}: {text!r} is both `text` and `secret`; choose one of them")
    cells = text_cells(frame[text], f"{data}: {show([text], frame)}")
    rows = [row for row, cell in enumerate(cells) if cell is not None]
    if not rows:
        raise InputError(f"{data}: every {text!r} is blank; choose another column with `text`")
    columns = {name: label_cells(frame[name], f"{data}: {show([name], frame)}") for name in secrets}
    return Texts(
        rows=rows,
        texts=[cell for cell in cells if cell is not None],
        secrets={
            name: [None if column[row] is None else str(column[row]) for row in rows]
            for name, column in columns.items()
        },
        total=len(cells),
        row_name=partial(row_name, frame),
    )


def check_samples(path: Path, overwrite: bool, data: str) -> None:
    """Refuse a place where samples cannot go, before any work.

    Raises:
        InputError: it is the private table, exists and may not be replaced, or has no folder.
    """
    if path.exists() and Path(data).exists() and path.samefile(data):
        raise InputError(f"`samples={path}`: is the private table itself; name another file")
    if path.is_dir() or (path.exists() and not overwrite):
        raise InputError(f"`samples={path}`: exists; `overwrite` to replace it, or another file")
    if not path.absolute().parent.is_dir():
        raise InputError(f"`samples={path}`: there is no such folder; make it first")


def write_samples(path: Path, table: Texts, detector: Detector, number: int, seed: int) -> int:
    """Write masked texts of rows chosen by seed, for the owner's eyes, and return how many.

    What the detector missed stands there in the clear: the file may be read by its owner alone.
    """
    size = min(number, len(table.texts))
    chosen = sorted(np.random.default_rng(seed).choice(len(table.texts), size, replace=False))
    texts = masked([table.texts[i] for i in chosen], detector, lambda done, total: None)
    rows = [table.row_name(table.rows[i]) for i in chosen]
    with (
        writing(path),
        tempfile.TemporaryDirectory(prefix=".", dir=path.absolute().parent) as private,
    ):
        whole = Path(private, path.name)  # a file is as open as its folder
        pieces = (f"--- {row}\n{text}\n" for row, text in zip(rows, texts, strict=True))
        write_text(whole, "\n".join(pieces))
        os.replace(whole, path)
    return size


def _find(found: SecretCounts, cell: str | None, text: str, flags: bytearray) -> list[Span]:
    """Count a cell's occurrences in its text, and return them."""
    if cell is None or not cell.strip():
        return []
    beside = r"[^\W_]"
    pattern = rf"(?<!{beside}){re.escape(cell.strip())}(?!{beside})"
    occurrences = [match.span() for match in re.finditer(pattern, text)]
    found.cells += 1
    found.not_in_text += not occurrences
    found.occurrences += len(occurrences)
    found.flagged += sum(
        all(flags[i] or not text[i].isalnum() for i in range(*span)) for span in occurrences
    )
    return occurrences


def _mark(marks: bytearray, spans: Sequence[Span]) -> bytearray:
    for start, end in spans:
        marks[start:end] = b"\1" * (end - start)
    return marks


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _of(part: int, whole: int) -> str:
    """Return a share with the n it rests on.

    >>> _of(1, 4), _of(0, 0)
    ('1 of 4 (25.0%)', 'none of 0')
    """
    return f"{part:,} of {whole:,} ({part / whole:.1%})" if whole else "none of 0"
