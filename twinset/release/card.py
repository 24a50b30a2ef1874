"""The data-set card that goes with a twin: a YAML header that `datasets` reads, and Markdown.

All it says follows from the ledger, the schema, the options and the twin itself. It knows no
private record and no file of the user's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from twinset.config import SamplingConfig
from twinset.privacy.accounting.accountant import up_decimals, up_digits
from twinset.privacy.statement.guarantee import Guarantee, belief_sentence, guarantee
from twinset.privacy.statement.ledger import Ledger
from twinset.privacy.statement.theorems import FLAGGED_UNIT, OWNER_UNIT
from twinset.release.card_header import render_header, stated_numbers
from twinset.release.markdown import bullets, code, plain
from twinset.release.rendering import template
from twinset.table.read import FORMULA_STARTS
from twinset.table.schema import Combination, Schema
from twinset.table.templates import Template

TEMPLATE = "card.md.jinja"
LONGEST_LIST = 200  # label combinations; more are summed up
WRITTEN = (
    "The rows were written by a language model that was fitted {} to a private table. What "
    "they say may be false, biased or offensive."
)


_FILTERED = {
    "debris": "web debris or instructions to a writer",
    "vulgar": "vulgar words or slurs",
    "all": "web debris, instructions to a writer, vulgar words or slurs",
}
_READERS = {  # in CSV and TSV "NA" and "null" are texts
    "csv": ("read_csv", ", keep_default_na=False"),
    "tsv": ("read_csv", ', sep="\\t", keep_default_na=False'),
    "jsonl": ("read_json", ", lines=True"),
    "parquet": ("read_parquet", ""),
}


@dataclass(frozen=True)
class TwinDescription:
    """How a twin was made, as far as the ledger does not say it. All of it is public.

    Args:
        base_model: what the base model is called; no path of this machine.
        template: the prompts.
        schema: the table's columns and label values.
        sampling: how rows were drawn.
        title: the card's; the private file's name is never taken for it unasked.
        licence: of the twin, as a hub identifier.
        base_origin: where the base model came from; no path of this machine.
        redrawn: how many texts were drawn again, as `RowGroups.redrawn` says; empty: not known.
    """

    base_model: str
    template: Template
    schema: Schema
    sampling: SamplingConfig = SamplingConfig()
    title: str = "Synthetic twin"
    licence: str = "unknown"
    base_origin: str = ""
    redrawn: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class TwinContents:
    """What is in the twin's file.

    Args:
        format: an ending of `FORMATS` without its dot.
        rows: number of rows.
        label_rows: number of rows of every label combination.
        guarded: number of cells guarded against spreadsheet formulas; None where no guard was set.
        names: of the columns in the file, which may be guarded too; empty: those of the schema.
    """

    format: str
    rows: int
    label_rows: Mapping[Combination, int] = field(default_factory=dict)
    guarded: int | None = None
    names: tuple[str, ...] = ()


def stated_lines(claim: Guarantee, rows: int) -> list[str]:
    """Return the lines on privacy that the card of this guarantee has, for `verify` to compare."""
    return [
        f"| ε | {'none' if claim.epsilon is None else up_decimals(claim.epsilon)} |",
        f"| δ | {'none' if claim.delta is None else up_digits(claim.delta)} |",
        f"| Unit | {plain(claim.unit)} ({plain(claim.neighbouring)}) |",
        f"| Rows | {rows} |",
        plain(claim.sentence),
        *bullets(map(plain, claim.covers)),
        *bullets(map(plain, claim.excludes)),
    ]


def render_card(description: TwinDescription, ledger: Ledger, contents: TwinContents) -> str:
    """Return the card as one text: YAML header and Markdown."""
    claim, schema = guarantee(ledger), description.schema
    numbers = stated_numbers(ledger.to_dict(), claim, contents.rows)
    labelled = bool(schema.attributes)
    text: str = template(TEMPLATE).render(
        description=description,
        ledger=ledger,
        claim=claim,
        schema=schema,
        header=render_header(
            description.title, description.licence, contents.format, labelled, numbers
        ),
        written=WRITTEN.format,
        stated=stated_lines(claim, contents.rows),
        belief=belief_sentence(claim),
        reading=_reading(contents.format),
        sampling=_sampling(description.sampling),
        redrawn=list(_redrawn(description)),
        label_rows=_label_rows(schema, contents),
        guards=[*_guarded_cells(contents), *_guarded_names(schema, contents)],
        FLAGGED_UNIT=FLAGGED_UNIT,
        OWNER_UNIT=OWNER_UNIT,
    )
    return text


def _sampling(sampling: SamplingConfig) -> str:
    settings = {
        "top-p": sampling.top_p,
        "temperature": sampling.temperature,
        "guidance": sampling.guidance,
        "tilt": sampling.tilt,
        "longest text in tokens": sampling.max_new_tokens,
    }
    shown = [f"{name} {value:g}" for name, value in settings.items() if value is not None]
    if sampling.endings != "keep":
        shown.append("unfinished rows cut at their last sentence")
    return ", ".join(shown)


def _redrawn(description: TwinDescription) -> Iterator[str]:
    """Say what was drawn again; how often tells of the model alone, as the lists are public."""
    sampling, redrawn = description.sampling, description.redrawn
    if what := _FILTERED.get(sampling.filter):
        yield f"Texts with {what}, by public lists, were drawn again{_of(redrawn, 'filtered')}"
    if sampling.endings == "redraw":
        yield (
            "Texts that reached the longest length without an end were drawn again, so that short "
            f"texts are more frequent here than the model writes them{_of(redrawn, 'unfinished')}"
        )

    if redrawn.get("denied"):
        yield (
            "Texts of which the model's private teacher, together with its noisy counts of tokens "
            "where it has them, would say another label were drawn again, up to "
            f"{sampling.teacher_redraws} times{_of(redrawn, 'denied')}"
        )


def _of(redrawn: Mapping[str, int], why: str) -> str:
    return f": {redrawn[why]} of them" if why in redrawn else ""


def _reading(format: str) -> list[str]:
    """Return the three lines that load the twin."""
    name, options = _READERS[format.split(".")[0]]
    return ["import pandas as pd", f'twin = pd.{name}("twin.{format}"{options})', "twin.head()"]


def _label_rows(schema: Schema, contents: TwinContents) -> list[str]:
    counts = list(contents.label_rows.items())
    lines = [f"{_combination(schema, c)}: {rows}" for c, rows in counts[:LONGEST_LIST]]
    if rest := counts[LONGEST_LIST:]:
        lines.append(f"{len(rest)} more combinations: {sum(rows for _, rows in rest)}")
    return lines


def _combination(schema: Schema, combination: Combination) -> str:
    pairs = zip(schema.attributes, combination, strict=True)
    return ", ".join(f"{code(a.name)} = {code(value)}" for a, value in pairs)


def _guarded_cells(contents: TwinContents) -> Iterator[str]:
    if contents.format.split(".")[0] not in ("csv", "tsv"):
        return
    starts = ", ".join(code(start) for start in FORMULA_STARTS if start.strip())
    what = f"Cells that start with {starts}, a tab or a line break"
    if contents.guarded is None:
        yield f"{what} are NOT guarded: a spreadsheet may run them as formulas"
    else:
        yield (
            f"{what} begin with an added apostrophe, so that no spreadsheet runs them as "
            f"formulas: {contents.guarded}"
        )


def _guarded_names(schema: Schema, contents: TwinContents) -> Iterator[str]:
    for name, written in zip(schema.columns, contents.names or schema.columns, strict=True):
        if name != written:
            yield f"In the file, for the same reason, {code(name)} is called {code(written)}"
