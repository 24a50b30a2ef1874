"""What is handed over: the twin, its card, a page to look at, and `privacy.json`.

Everything written here follows from the twin, the ledger and public choices. No private record, no
exact figure computed from one, no path and no file name comes here. `privacy.json` names the other
files by their roles, so they may be renamed together (see `publish`). The page shows the guarantee,
the ledger, and counts of the twin's own rows. Measurements on private or held-out rows are only in
the owner's report, which `evaluation` writes.
"""

from __future__ import annotations

import json
import math
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
from twinset.privacy.statement.guarantee import (
    Guarantee,
    belief_sentence,
    guarantee,
    most_belief,
    percent_up,
)
from twinset.privacy.statement.ledger import FORMAT_VERSION, Ledger
from twinset.privacy.statement.wording import one_of
from twinset.release.card import CARD, TwinDescription, describe_event, render_card, template
from twinset.release.registries import (
    CROISSANT,
    DEPLOYMENT,
    describe_data_set,
    draft_deployment,
)
from twinset.table.cells import FLOATING, Cells, have_commas, read_date, read_number
from twinset.table.columns import as_texts
from twinset.table.kinds import TEXT, Column
from twinset.table.read import FORMATS, FORMULA_STARTS, format_of, write_frame, written_names
from twinset.table.schema import Schema

PRIVACY, PAGE = "privacy.json", "report.html"
# What is next to twin and ledger, by its role in `privacy.json`. `verify` needs the card alone.
COMPANIONS = {"card": CARD, "page": PAGE, "croissant": CROISSANT, "deployment": DEPLOYMENT}
LEDGER = "ledger.json"  # of a model folder, and of a checkpoint
ROWS, LETTERS, BARS = 20, 700, 10  # of the page: rows, letters of each, bars of a chart
CHARTS = 24  # of other columns
MARKS = (0.25, 0.5, 1, 2, 4, 8)  # of the scale of ε


@dataclass(frozen=True)
class SharePaths:
    """The paths of the shared files: the twin, its card, its guarantee, and a page to look at."""

    twin: Path
    card: Path
    privacy: Path
    page: Path


def find_twins(share: Path) -> list[Path]:
    """Return the twin of a `share/`, or nothing. A backup next to it is none.

    Further twins are listed too, and `verify` refuses them. The first is the one whose format
    `privacy.json` names, so that all commands mean the same file.
    """
    try:
        named = f"twin.{json.loads(read_text(share / PRIVACY))['files']['twin']['format']}"
    except DAMAGED:  # `verify` says what is wrong with it
        named = ""
    twins = [file for file in share.glob("twin.*") if format_of(file)]
    return sorted(twins, key=lambda file: (file.name != named, file.name))


def write_share(
    folder: Path,
    frame: pd.DataFrame,
    ledger: Ledger,
    description: TwinDescription,
    format: str = "parquet",
    guard_formulas: bool = True,
    model: str | None = None,
) -> SharePaths:
    """Write the twin, its card, its page and its `privacy.json` into an existing folder.

    Args:
        folder: the run's `share/`.
        frame: the twin. Its columns are exactly those of the schema.
        ledger: the spending of the model that wrote it.
        description: how it was made, for the card.
        format: an ending of `FORMATS` without its dot, such as "parquet", "csv" or "jsonl.gz".
        guard_formulas: see `write_frame`.
        model: SHA-256 of the checksums of the saved model that wrote it, if there is one.

    Raises:
        InputError: the format is unknown, or the file system refuses.
        ValueError: the table has other columns than the schema.
    """
    schema = description.schema
    if f".{format}" not in FORMATS:
        known = ", ".join(ending.removeprefix(".") for ending in FORMATS)
        raise InputError(f"`format={format}`: unknown. Choose one of {known}.")
    if tuple(frame.columns) != schema.columns:
        raise ValueError("the twin's columns are not the schema's. Nothing was written.")
    paths = SharePaths(folder / f"twin.{format}", folder / CARD, folder / PRIVACY, folder / PAGE)
    unchanged = [attribute.name for attribute in schema.attributes]
    unchanged += [c.name for c in description.columns if not _may_run(c)]
    decimals = {c.name: c.decimals for c in description.columns if 0 < c.decimals < FLOATING}
    guarded = write_frame(frame, paths.twin, None, guard_formulas, unchanged, decimals)
    names = written_names(frame, format if guard_formulas else "parquet")  # Parquet has no guard
    found = Counter(zip(*(frame[a.name].tolist() for a in schema.attributes), strict=True))
    card = render_card(
        description,
        ledger,
        format,
        len(frame),
        label_rows={combination: found[combination] for combination in schema.combinations},
        guarded=guarded if guard_formulas else None,
        names=names,
    )
    write_text(paths.card, card)
    page = render_share_page(description.title, description.base_model, frame, schema, ledger)
    write_text(paths.page, page)
    digest = sha256_file(paths.twin)
    types = [getattr(frame[name].dtype, "categories", frame[name]).dtype.kind for name in frame]
    columns = dict(zip(frame, zip(names, types, strict=True), strict=True))
    for name, text in (
        (CROISSANT, describe_data_set(description, ledger, format, len(frame), digest, columns)),
        (DEPLOYMENT, draft_deployment(description, ledger, len(frame))),
    ):
        if text is None:  # of an earlier twin with a guarantee
            (folder / name).unlink(missing_ok=True)
        else:
            write_text(folder / name, text)
    written = {role: folder / name for role, name in COMPANIONS.items()}
    statement = {
        "format_version": FORMAT_VERSION,
        "guarantee": claim_to_dict(guarantee(ledger)),
        "ledger": ledger.to_dict(),
        "files": {
            "twin": {
                "format": format,
                "sha256": digest,
                "rows": len(frame),
                "columns": list(names),
            },
            **{r: {"sha256": sha256_file(path)} for r, path in written.items() if path.is_file()},
            **({"model": {"sha256": model}} if model else {}),
        },
    }
    write_text(paths.privacy, statement_text(statement))
    open_as_folder(folder)
    return paths


def claim_to_dict(claim: Guarantee) -> dict[str, Any]:
    """Return a guarantee as plain values, as read back from JSON."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(claim).items()}


def statement_text(statement: Any) -> str:
    """Return the exact text of `privacy.json` for these values."""
    return json.dumps(statement, indent=2, ensure_ascii=False) + "\n"


def render_share_page(
    title: str, base_model: str, frame: pd.DataFrame, schema: Schema, ledger: Ledger
) -> str:
    """Return the page as one text. It loads nothing and runs nothing."""
    claim = guarantee(ledger)
    budget = None  # ε and δ in digits, rounded up
    if claim.epsilon is not None and claim.delta is not None:
        budget = up_decimals(claim.epsilon), up_digits(claim.delta)

    texts = as_texts(frame)
    # One chart for each attribute. Rare values are summed up as "others".
    charts = []
    for attribute in schema.attributes:
        bars = Counter(texts[attribute.name]).most_common(BARS)
        rest = len(frame) - sum(rows for _, rows in bars)
        charts.append((attribute.name, [*bars, *([("others", rest)] if rest else [])]))
    others = schema.others[:CHARTS]
    charts += [(name, bars) for name in others if (bars := count_cells(frame[name]))]
    words = [len(text.split()) for text in texts[schema.text]]

    # The same rows at each call for one twin, and none of them twice.
    different = texts.drop_duplicates()
    drawn = different.sample(min(ROWS, len(different)), random_state=0).to_dict("records")
    labels = [name for name in schema.columns if name != schema.text]
    day = f"{date.today():%d %B %Y}".lstrip("0")
    text: str = template("share_page.html.jinja").render(
        title=title,
        facts=[f"{len(frame):,} rows", f"written by {base_model}", day, f"twinset {__version__}"],
        claim=claim,
        budget=budget,
        label=label_parts(ledger),
        one=one_of(ledger),
        here=place_on_scale(claim.epsilon or 0.0),
        marks=[(m, percent_up(most_belief(m, 0.0)), place_on_scale(m)) for m in MARKS]
        + [("16+", "", 100.0)],
        belief=belief_sentence(claim),
        charts=[*charts, ("Words a text", count_steps(words))],
        rows=[
            (
                ", ".join(f"{name}: {row[name]}" for name in labels if row[name]),
                row[schema.text][:LETTERS],
            )
            for row in drawn
        ],
        total=len(frame),
    )
    return text


def label_parts(ledger: Ledger) -> list[tuple[str, str]]:
    """Return seven parts of the privacy label, as name and words. The template has the others.

    Source: what twelve experts ask a label to disclose, in Dibia et al. 2025, "Toward an
    Expert-Informed Privacy Label for Differential Privacy", arXiv 2507.15997. Who answers for it,
    the attacks and the command are ours.
    """
    claim, one = guarantee(ledger), one_of(ledger)
    if claim.epsilon is None:
        protected = "Nothing. Treat twin and model as private"
    elif claim.is_of_whole_records:
        protected = f"All that one {one} says, in the twin and in everything drawn from the model"
    else:
        protected = "What a detector flagged. All other words, and every label, are not"
    marks = dict.fromkeys(map(ord, "\\*`"))  # of Markdown
    events = (describe_event(event).split(": ")[0].translate(marks) for event in ledger.events)
    mechanism = "; ".join(dict.fromkeys(events))
    left = (
        "What is public, what the whole table says, people named in the records of others, and "
        "what the base model had read. The full list is below"
    )
    if claim.epsilon is None:
        left = "Everything"
    else:
        if not claim.is_of_whole_records:
            unflagged = "All words that no detector flagged, every label, and who is in the table"
            left = f"{unflagged}. {left}"
        mechanism = f"Gaussian noise by a trusted owner of the table. {mechanism}"
    return [
        ("Who answers for it", "The files do not say. verify shows whose key signed them"),
        ("What is protected", protected),
        ("Unit of privacy", f"{claim.unit.capitalize()}, one of {ledger.records:,} {one}s"),
        ("Neighbouring tables", claim.neighbouring.capitalize()),
        ("What is not protected", left),
        ("Mechanism", mechanism),
        (
            "Attacks tried",
            "Not in these files, because results of attacks come from private rows. Ask the sender "
            "for the audit, and for how useful and faithful the twin is",
        ),
    ]


def place_on_scale(epsilon: float) -> float:
    """Return where an ε stands between the ends of the label's scale, in percent of its length.

    >>> place_on_scale(0.25), place_on_scale(2.0), place_on_scale(1e9), place_on_scale(0.0)
    (0.0, 50.0, 100.0, 0.0)
    """
    steps = math.log2(max(epsilon, 0.25) / 0.25)  # doublings, of which the scale has six
    return round(100 * min(1.0, steps / 6), 1)


def count_cells(column: pd.Series) -> list[tuple[str, int]]:
    """Return bars of a column: frequent values, or steps of numbers and years. Empty: a text.

    >>> count_cells(pd.Series(["a", "b", "a", None]))
    [('a', 2), ('b', 1), ('gap', 1)]
    """
    cells = Cells.of(column)
    counts = Counter(cells.places.tolist())
    gaps, commas = counts.pop(-1, 0), have_commas(cells.texts)
    numbers = [whole_number(text, commas) for text in cells.texts]
    if len(numbers) <= BARS:
        bars = [(cells.texts[place], rows) for place, rows in counts.most_common()]
    elif None not in numbers and len(set(numbers)) > 1:
        bars = count_steps([numbers[place] or 0 for place in counts.elements()])
    elif len(numbers) > counts.total() / 2:  # they hardly repeat
        return []
    else:
        bars = [(cells.texts[place], rows) for place, rows in counts.most_common(BARS)]
        bars.append(("others", counts.total() - sum(rows for _, rows in bars)))
    return [*bars, *([("gap", gaps)] if gaps else [])]


def whole_number(text: str, commas: bool) -> int | None:
    """Return a number without its fraction, or the year of a date, or None."""
    number, seconds = read_number(text, commas), next(iter(read_date(text).meanings.values()), None)
    if number is not None or seconds is None:
        return None if number is None else math.floor(number[0])
    return pd.Timestamp(seconds, unit="s").year


def count_steps(numbers: Sequence[int]) -> list[tuple[str, int]]:
    """Return how many whole numbers are in each of about BARS equal steps."""
    least, most = min(numbers, default=0), max(numbers, default=0)
    step = -(-(most - least + 1) // BARS)  # rounded up
    counts = Counter((number - least) // step for number in numbers)
    return [
        (str(start) if step == 1 else f"{start}–{start + step - 1}", counts[place])
        for place, start in enumerate(range(least, most + 1, step))
    ]


def check_file_format(path: Path) -> None:
    """Refuse a ledger or `privacy.json` of another format. Its reader finds any other fault.

    Raises:
        InputError: it is. The message names both formats and the remedy.
    """
    try:
        stated = json.loads(read_text(path))["format_version"]
    except DAMAGED:
        return
    if isinstance(stated, int) and not isinstance(stated, bool) and stated != FORMAT_VERSION:
        older = "Use the older twinset that wrote it, or make the run again"
        remedy = older if stated < FORMAT_VERSION else "Upgrade twinset"
        said = f"has format_version {stated}, and this twinset reads {FORMAT_VERSION}"
        raise InputError(f"{path}: {said}. {remedy}.")


def _may_run(column: Column) -> bool:
    """Return whether a spreadsheet may run cells of a column. Numbers and dates are not run.

    >>> _may_run(Column("a", "category", values=("+", "-49"))), _may_run(Column("a", TEXT))
    (False, True)
    """
    starts = [str(v) for v in column.values if str(v).startswith(FORMULA_STARTS)]
    return column.kind == TEXT or any(v[0] == "=" or set(v) & set("(|!") for v in starts)
