"""The cards of what is handed over: a twin's, and a model's. A YAML header, then Markdown.

All they say follows from the ledger, the schema, the options and the twin itself. They know no
private record and no file of the user's. Whatever a user may have named goes through `plain` or
`code` in Markdown, and is escaped in HTML: no mark-up, link or new line may come of what it holds.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from typing import Any

from twinset.config import SamplingConfig
from twinset.privacy.accounting.accountant import up_decimals, up_digits
from twinset.privacy.accounting.events import (
    Event,
    GaussianRelease,
    IndividualGaussian,
    MaskedAccess,
    NonPrivateAccess,
    SubsampledGaussian,
)
from twinset.privacy.statement.guarantee import (
    Guarantee,
    belief_sentence,
    guarantee,
    protects_whole_records,
)
from twinset.privacy.statement.ledger import Ledger
from twinset.privacy.statement.theorems import FLAGGED_UNIT, OWNER_UNIT
from twinset.table.read import FORMULA_STARTS
from twinset.table.schema import Combination, Schema
from twinset.table.templates import Template

# -- any value as Markdown ----------------------------------------------------------------------


def one_line(value: object) -> str:
    r"""Return a value as one visible line: what is no printable character is escaped.

    >>> one_line("a\n---\x07b")
    'a\\n---\\x07b'
    """
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(value))
    return "".join(escaped)


def plain(value: object) -> str:
    r"""Return a value as Markdown that shows its characters and means nothing by them.

    >>> plain("<b> *x* | [y](z)")
    '\\<b\\> \\*x\\* \\| \\[y\\](z)'
    >>> plain("1. x"), plain("- x"), plain(0.5)
    ('1\\. x', '\\- x', '0.5')
    """
    line = re.sub(r"([\\`*_{}\[\]<>#|!~$&])", r"\\\1", one_line(value).strip())
    return re.sub(r"^((?=[-+=:])|\d+(?=[.)](\s|$)))", r"\1\\", line)  # a list, a rule, a heading


def code(value: object) -> str:
    r"""Return a value as a Markdown code span, whatever back-ticks and blanks it holds.

    >>> code("fresh"), code("a`b"), code(" ")
    ('`fresh`', '`` a`b ``', '`" "`')
    """
    line = one_line(value)
    if line != line.strip() or not line:
        line = json.dumps(line, ensure_ascii=False)  # a code span would drop the blanks
    longest = max(map(len, re.findall("`+", line)), default=0)
    fence, pad = "`" * (longest + 1), " " if longest else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def bullets(items: Iterable[str]) -> list[str]:
    """Return the lines of a list whose items are Markdown already."""
    return [f"- {item}" for item in items]


# -- templates ----------------------------------------------------------------------------------


@lru_cache
def template(name: str) -> Any:
    """Return a template of this folder: `*.md.jinja` is Markdown, `*.html.jinja` escapes."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(
            lambda file: files("twinset.release").joinpath(file).read_text("utf-8")
        ),
        autoescape=name.endswith(".html.jinja"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "plain": plain,
        "code": code,
        "described": described,
        "worded": lambda pair: f"{code(pair[0])} as {code(pair[1])}",
    }
    return environment.get_template(name)


def described(event: Event) -> str:
    """Return an event of a ledger as a line of Markdown."""
    match event:
        case SubsampledGaussian(sigma, rate, steps):
            noise = f"noise multiplier σ = {sigma:g}, sample rate q = {rate:g}"
            return f"Training: {steps} steps, {noise}"
        case IndividualGaussian(sigma, rate, steps, share):
            noise = f"noise multiplier σ = {sigma:g}, sample rate q = {rate:g}"
            return f"Training: {steps} steps, {noise}; σ / {share:.4g} at privacy weight 1"
        case MaskedAccess(detector):
            return f"**Training without noise** on texts masked by the detector {code(detector)}"
        case GaussianRelease(sigma, what):
            return f"Noisy release of {plain(what)}: noise multiplier σ = {sigma:g}"
        case NonPrivateAccess(reason):
            return f"**Access without privacy**: {plain(reason)}"


# -- the header of a twin's card ----------------------------------------------------------------


_HEADER = re.compile(r"---\n(.*?\n)---\n", re.DOTALL)
_MOST_DEPTH = 20  # ours have 3
_MOST_HEADER = 20_000  # characters; ours have 700
_SIZES = (("n<1K", 10**3), ("1K<n<10K", 10**4), ("10K<n<100K", 10**5), ("100K<n<1M", 10**6))
_READ_AS_WRITTEN: dict[str, dict[str, Any]] = {  # in CSV and TSV "NA" and "null" are texts
    "csv": {"keep_default_na": False},
    "tsv": {"sep": "\t", "keep_default_na": False},
}


def ledger_digest(ledger: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a ledger's plain values; the order of its fields does not count."""
    return hashlib.sha256(json.dumps(ledger, sort_keys=True).encode()).hexdigest()


def stated_numbers(ledger: Mapping[str, Any], claim: Guarantee, rows: int) -> dict[str, Any]:
    """Return what the card's header says under `privacy`, for `verify` to compare."""
    return {
        "epsilon": claim.epsilon,
        "delta": claim.delta,
        "unit": claim.unit,
        "neighbouring": claim.neighbouring,
        "rows": rows,
        "ledger_sha256": ledger_digest(ledger),
    }


def render_header(
    title: str, licence: str, format: str, labelled: bool, numbers: Mapping[str, Any]
) -> str:
    """Return the header with the lines of dashes around it.

    Args:
        title: shown by a hub.
        licence: a hub's identifier for it.
        format: the twin's, an ending of `FORMATS` without its dot.
        labelled: whether the twin has label columns.
        numbers: of `stated_numbers`.
    """
    import yaml

    private = protects_whole_records(numbers["epsilon"], numbers["unit"])
    options = _READ_AS_WRITTEN.get(format.split(".")[0], {})
    header = {
        "pretty_name": one_line(title),
        "license": one_line(licence),
        "tags": ["synthetic", *(["differential-privacy"] if private else [])],
        **({"task_categories": ["text-classification"]} if labelled else {}),
        "size_categories": [
            next((name for name, limit in _SIZES if numbers["rows"] < limit), "n>1M")
        ],
        "configs": [{"config_name": "default", "data_files": f"twin.{format}", **options}],
        "privacy": dict(numbers),
    }
    text = yaml.safe_dump(header, allow_unicode=True, sort_keys=False, width=float("inf"))
    return f"---\n{text}---\n"


def read_header(card: str) -> dict[str, Any]:
    """Return the YAML header of a card as plain values.

    Raises:
        ValueError: there is none, or it is not a YAML mapping.
    """
    import yaml

    found = _HEADER.match(card)
    try:
        header = _plain_yaml(found[1]) if found and len(found[1]) <= _MOST_HEADER else None
    except (yaml.YAMLError, ValueError, ArithmeticError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise ValueError("the card has no readable YAML header")
    return header


def _plain_yaml(text: str) -> Any:
    """Read YAML without what lets a few lines stand for a great many, or for other than values.

    Raises:
        ValueError: it has an anchor, an alias, a merge or a tag, or is deep: the time that the
            parser takes grows with the square of the depth.
    """
    import yaml

    depth = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        refers = isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None
        tagged = getattr(event, "tag", None) is not None or getattr(event, "value", "") == "<<"
        if refers or tagged or depth > _MOST_DEPTH:
            raise ValueError("the header must hold plain values")
    return yaml.safe_load(text)


def data_file(header: Mapping[str, Any]) -> Any:
    """Return the file that a header has `datasets` read, or None where it is not just one."""
    match header.get("configs"):
        case [{"data_files": file}]:
            return file
    return None


# -- a twin's card ------------------------------------------------------------------------------


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


# -- a model's card -----------------------------------------------------------------------------


CARD = "README.md"  # of a share, and of a model folder


def render_model_card(base_name: str, base_origin: str, ledger: Ledger) -> str:
    """Return the card as one text: YAML header and Markdown.

    Args:
        base_name: what the base model is called; "" where nobody said.
        base_origin: where it came from.
        ledger: what training spent.
    """
    claim = guarantee(ledger)
    text: str = template("model_card.md.jinja").render(
        base_name=base_name or base_origin,
        base_origin=base_origin,
        ledger=ledger,
        claim=claim,
        belief=belief_sentence(claim),
        FLAGGED_UNIT=FLAGGED_UNIT,
    )
    return text
