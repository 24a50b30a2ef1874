"""What is handed over: the twin, its card, a page to look at, and `privacy.json`.

Everything written here follows from the twin, the ledger and public choices. No private record, no
figure computed from one without noise, no path and no file name comes near it. `privacy.json` names
the other files by their roles, so that the three may also stand under other names (see `publish`).
The numbers of the page are the guarantee's, the ledger's, and counts of the twin's own rows: what
was measured on private or held-out rows is in the owner's report alone, which evaluation writes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pandas as pd

from twinset import __version__
from twinset.errors import DAMAGED, InputError
from twinset.files.atomic import open_as_folder, sha256_file, write_text
from twinset.files.limits import read_text
from twinset.privacy.accounting.accountant import up_decimals, up_digits
from twinset.privacy.statement.guarantee import Guarantee, belief_sentence, guarantee
from twinset.privacy.statement.ledger import FORMAT_VERSION, Ledger, format_fault
from twinset.release.card import CARD, TwinContents, TwinDescription, render_card, template
from twinset.table.read import FORMATS, write_frame, written_names
from twinset.table.schema import Combination, Schema

PRIVACY, PAGE = "privacy.json", "report.html"
ROWS, LETTERS, BARS = 20, 700, 10  # of the page: rows, letters of each, bars of a chart

Bar = tuple[str, int]  # what is counted, how many rows


@dataclass(frozen=True)
class SharePaths:
    """Where the shared files stand: the twin, what it is and guarantees, and a page to look at."""

    twin: Path
    card: Path
    privacy: Path
    page: Path


def write_share(
    folder: Path,
    frame: pd.DataFrame,
    ledger: Ledger,
    description: TwinDescription,
    format: str = "parquet",
    guard_formulas: bool = True,
) -> SharePaths:
    """Write the twin, its card and its `privacy.json` into a folder that exists.

    Args:
        folder: the run's `share/`.
        frame: the twin; its columns are those of the schema, and no other.
        ledger: what was spent on the model that wrote it.
        description: how it was made, for the card.
        format: an ending of `FORMATS` without its dot: "parquet", "csv", "jsonl.gz" …
        guard_formulas: see `write_frame`.

    Raises:
        InputError: unknown format, or the file system refuses.
        ValueError: the table has other columns than the schema.
    """
    if f".{format}" not in FORMATS:
        known = ", ".join(ending.removeprefix(".") for ending in FORMATS)
        raise InputError(f"`format={format}`: unknown; choose one of {known}")
    if tuple(frame.columns) != description.schema.columns:
        raise ValueError("the twin's columns are not the schema's; nothing was written")
    paths = SharePaths(folder / f"twin.{format}", folder / CARD, folder / PRIVACY, folder / PAGE)
    guarded = write_frame(frame, paths.twin, guard_formulas=guard_formulas)
    label_rows = _label_rows(frame, description.schema)
    names = tuple(written_names(frame, format if guard_formulas else "parquet"))
    contents = TwinContents(
        format, len(frame), label_rows, guarded if guard_formulas else None, names
    )
    write_text(paths.card, render_card(description, ledger, contents))
    page = render_share_page(
        description.title, description.base_model, frame, description.schema, ledger
    )
    write_text(paths.page, page)
    twin = {
        "format": format,
        "sha256": sha256_file(paths.twin),
        "rows": len(frame),
        "columns": list(names),
    }
    statement = {
        "format_version": FORMAT_VERSION,
        "guarantee": claim_to_dict(guarantee(ledger)),
        "ledger": ledger.to_dict(),
        "files": {
            "twin": twin,
            "card": {"sha256": sha256_file(paths.card)},
            "page": {"sha256": sha256_file(paths.page)},
        },
    }
    write_text(paths.privacy, statement_text(statement))
    open_as_folder(folder)
    return paths


def claim_to_dict(claim: Guarantee) -> dict[str, Any]:
    """Return a guarantee as plain values, as JSON gives them back."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(claim).items()}


def statement_text(statement: Any) -> str:
    """Return the one text that `privacy.json` has for these values."""
    return json.dumps(statement, indent=2, ensure_ascii=False) + "\n"


def _label_rows(frame: pd.DataFrame, schema: Schema) -> dict[Combination, int]:
    """Count the twin's rows, those of combinations that got none included."""
    counts = Counter(zip(*(frame[a.name].tolist() for a in schema.attributes), strict=True))
    return {combination: counts[combination] for combination in schema.combinations}


def render_share_page(
    title: str, base_model: str, frame: pd.DataFrame, schema: Schema, ledger: Ledger
) -> str:
    """Return the page as one text that fetches nothing and runs nothing."""
    claim = guarantee(ledger)
    day = f"{date.today():%d %B %Y}".lstrip("0")
    text: str = template("share_page.html.jinja").render(
        title=title,
        facts=[f"{len(frame):,} rows", f"written by {base_model}", day, f"twinset {__version__}"],
        claim=claim,
        budget=_budget(claim),
        belief=belief_sentence(claim),
        charts=[
            *_charts(frame, schema),
            ("Words a text", _lengths(frame[schema.text].tolist())),
        ],
        rows=_rows(frame, schema.text),
        total=len(frame),
    )
    return text


def _budget(claim: Guarantee) -> tuple[str, str] | None:
    """Return ε and δ in digits, rounded up; None where nothing is guaranteed."""
    if claim.epsilon is None or claim.delta is None:
        return None
    return up_decimals(claim.epsilon), up_digits(claim.delta)


def _charts(frame: pd.DataFrame, schema: Schema) -> list[tuple[str, list[Bar]]]:
    """Count the rows of each value of each attribute, the commonest ones by themselves."""
    charts = []
    for attribute in schema.attributes:
        counts = Counter(map(str, frame[attribute.name]))
        bars = counts.most_common(BARS)
        rest = len(frame) - sum(rows for _, rows in bars)
        charts.append((attribute.name, [*bars, *([("others", rest)] if rest else [])]))
    return charts


def _lengths(texts: Sequence[str]) -> list[Bar]:
    """Count the rows by number of words, in about `BARS` equal steps.

    >>> _lengths(["one", "one two", "one two three"])
    [('1', 1), ('2', 1), ('3', 1)]
    """
    words = [len(text.split()) for text in texts]
    least, most = min(words, default=0), max(words, default=0)
    step = -(-(most - least + 1) // BARS)
    starts = range(least, most + 1, step)
    counts = Counter((count - least) // step for count in words)
    names = (str(s) if step == 1 else f"{s}–{s + step - 1}" for s in starts)
    return [(name, counts[place]) for place, name in enumerate(names)]


def _rows(frame: pd.DataFrame, text: str) -> list[tuple[str, str]]:
    """Return the labels and the text of some rows, none of them twice; the same of one twin."""
    different = frame.astype(str).drop_duplicates()
    drawn = different.sample(min(ROWS, len(different)), random_state=0)
    labels = [name for name in drawn.columns if name != text]
    return [
        (", ".join(f"{name}: {row[name]}" for name in labels), row[text][:LETTERS])
        for row in drawn.to_dict("records")
    ]


# -- formats of files ------------------------------------------------------------------------------

LEDGER = "ledger.json"  # of a model folder, and of a checkpoint


def check_format(path: Path, stated: object) -> None:
    """Refuse a file that says it is of another format than this twinset's.

    Raises:
        InputError: it does; the line names both, and what to do.
    """
    if wrong := format_fault(stated):
        raise InputError(f"{path}: {wrong}")


def check_file_format(path: Path) -> None:
    """Refuse a ledger or `privacy.json` of another format; what else is wrong is for its reader.

    Raises:
        InputError: see `check_format`.
    """
    try:
        stated = json.loads(read_text(path))["format_version"]
    except DAMAGED:
        return
    check_format(path, stated)
