"""The rows that a run was trained on, and those that it held out; see `pipeline.hold_out`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from evaluation.policy_runs import table
from evaluation.release import FinishedRun
from twinset.errors import InputError
from twinset.progress import Silent
from twinset.run.hold_out import HELD_OUT, kept_rows
from twinset.run.prepare import read_source
from twinset.run.request import Source
from twinset.table.formats import format_of, read_frame, write_frame
from twinset.table.records import Records
from twinset.table.text_files import Layout


def has_held_out(run: Path) -> bool:
    """Tell whether a run folder holds rows that were held out."""
    return (run / "internal" / HELD_OUT).is_file()


def parts(run: Path, source: Source) -> tuple[Records, Records]:
    """Return the records that a run was trained on, and those that it held out.

    Args:
        run: its folder.
        source: the private table that it was made from, with the columns that it took.

    Raises:
        InputError: it held none out, or the table is another one.
    """
    internal = run / "internal"
    _, records, _ = read_source(source, Silent(), internal)  # where it is large
    trained, held = records.split(kept_rows(internal))
    if held is None:
        raise InputError(f"{run}: no rows were held out (`hold_out`)")
    if list(held.texts) != read_frame(internal / HELD_OUT)[records.schema.text].tolist():
        raise InputError(f"{source.name}: is not the table that {run} was made from")
    return trained, held


@dataclass(frozen=True)
class RealRows:
    """Files of real rows, and how they are read.

    Args:
        known: of rows that were trained on.
        others: of rows that were not.
        text: their text column, or the template that joins several; None: the run's, or a guess.
        layout: of the files, where it is not to be detected.
    """

    known: Path
    others: Path
    text: str | None
    layout: Layout


@contextmanager
def real_rows(
    run: FinishedRun | None, data: Path, others: Path | None, text: str | None, layout: Layout
) -> Iterator[RealRows]:
    """Yield rows that were trained on, and others: those that the run held out, if none are named.

    Args:
        run: made from the table, which is read as it was then; None: there is none.
        data: the table, which is taken as it is where others are named.
        others: real rows that were not trained on; None: those that the run held out.
        text: see `RealRows`, as for the table.
        layout: of the table, and of others.

    Raises:
        InputError: there are none.
    """
    reading = dict(run.reading) if run is not None else {}
    text = text or reading.get("text")
    kept = Layout(
        layout.encoding or reading.get("encoding"), layout.delimiter or reading.get("delimiter")
    )
    if others is not None:
        is_alike = format_of(others) == format_of(data)
        yield RealRows(data, others, text, kept if is_alike else layout)
        return
    if run is None or not has_held_out(run.root):
        raise InputError(
            "real rows that nothing was trained on are needed: name a file, or make a run with "
            "`hold_out=0.2`, which keeps some back"
        )
    source = Source(
        str(data),
        text or run.schema.text,
        tuple(attribute.name for attribute in run.schema.attributes),
        reading.get("split"),
        drop_empty=True,
        labels=run.labels,
        delimiter=kept.delimiter,
        encoding=kept.encoding,
    )
    with TemporaryDirectory(dir=run.internal, prefix=f"{data.name}-") as folder:
        found = Path(folder, "trained-on.parquet"), Path(folder, HELD_OUT)
        for path, records in zip(found, parts(run.root, source), strict=True):
            write_frame(table(records), path)
        yield RealRows(*found, None, Layout())
