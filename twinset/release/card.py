"""The cards of a twin and of a model: a YAML header, then Markdown.

Everything on a card follows from the ledger, the schema, the options and the twin itself. No
private record and no file of the user's comes here. All names that a user may have chosen go
through `plain` or `code` in Markdown and are escaped in HTML. They add no mark-up, link or line.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
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
    LabelSelection,
    MaskedAccess,
    NonPrivateAccess,
    SubsampledGaussian,
)
from twinset.privacy.statement.guarantee import (
    Guarantee,
    belief_sentence,
    guarantee,
)
from twinset.privacy.statement.ledger import Ledger
from twinset.privacy.statement.theorems import FLAGGED_UNIT, OWNER_UNIT
from twinset.table.kinds import TEXT, Column
from twinset.table.read import FORMULA_STARTS
from twinset.table.schema import Combination, Schema
from twinset.table.schema import plain as spell
from twinset.table.templates import Template

CARD = "README.md"  # of a share, and of a model folder
LONGEST_LIST = 200  # label combinations. More are summed up.

# -- any value as Markdown ----------------------------------------------------------------------


def one_line(value: object) -> str:
    r"""Return a value as one visible line, with unprintable characters escaped.

    >>> one_line("a\n---\x07b")
    'a\\n---\\x07b'
    """
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(value))
    return "".join(escaped)


def plain(value: object) -> str:
    r"""Return Markdown that shows a value's characters without any special meaning.

    >>> plain("<b> *x* | [y](z)")
    '\\<b\\> \\*x\\* \\| \\[y\\](z)'
    >>> plain("1. x"), plain("- x"), plain(0.5)
    ('1\\. x', '\\- x', '0.5')
    """
    line = re.sub(r"([\\`*_{}\[\]<>#|!~$&])", r"\\\1", one_line(value).strip())
    return re.sub(r"^((?=[-+=:])|\d+(?=[.)](\s|$)))", r"\1\\", line)  # a list, a rule, a heading


def code(value: object) -> str:
    r"""Return a value as a Markdown code span, whatever backticks and blanks it has.

    >>> code("fresh"), code("a`b"), code(" ")
    ('`fresh`', '`` a`b ``', '`" "`')
    """
    line = one_line(value)
    if line != line.strip() or not line:
        line = json.dumps(line, ensure_ascii=False)  # a code span would drop the blanks
    longest = max(map(len, re.findall("`+", line)), default=0)
    fence, pad = "`" * (longest + 1), " " if longest else ""
    return f"{fence}{pad}{line}{pad}{fence}"


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
        undefined=StrictUndefined,  # a misspelt name must not leave a hole in a guarantee
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "plain": plain,
        "spell": spell,
        "code": code,
        "described": describe_event,
        "worded": lambda pair: f"{code(pair[0])} as {code(pair[1])}",
    }
    return environment.get_template(name)


def describe_event(event: Event) -> str:
    """Return an event of a ledger as a line of Markdown."""
    match event:
        case SubsampledGaussian(sigma, rate, steps):
            return (
                f"Training: {steps} steps, noise multiplier σ = {sigma:g}, sample rate q = {rate:g}"
            )
        case IndividualGaussian(sigma, rate, steps, share):
            noise = f"noise multiplier σ = {sigma:g}, sample rate q = {rate:g}"
            return f"Training: {steps} steps, {noise}, σ / {share:.4g} at privacy weight 1"
        case MaskedAccess(detector):
            return f"**Training without noise** on texts masked by the detector {code(detector)}"
        case GaussianRelease(sigma, what):
            return f"Noisy release of {plain(what)}: noise multiplier σ = {sigma:g}"
        case LabelSelection(sigma, threshold, columns):
            of = f"public values of {columns} column{'s' if columns > 1 else ''}"
            least = f"those that {threshold} records or more have by noisy counts"
            return f"Selection of {of}, {least}: noise multiplier σ = {sigma:g}"
        case NonPrivateAccess(reason):
            return f"**Access without privacy**: {plain(reason)}"


# -- the header of a twin's card ----------------------------------------------------------------

# How pandas reads each format. In CSV and TSV "NA" and "null" are texts. JSON states its types.
_READERS: dict[str, tuple[str, dict[str, Any]]] = {
    "csv": ("read_csv", {"keep_default_na": False}),
    "tsv": ("read_csv", {"sep": "\t", "keep_default_na": False}),
    "jsonl": ("read_json", {"lines": True, "dtype": False, "convert_dates": False}),
    "parquet": ("read_parquet", {}),
}


def stated_numbers(ledger: Mapping[str, Any], claim: Guarantee, rows: int) -> dict[str, Any]:
    """Return the values under `privacy` in the card's header. `verify` compares them."""
    plain_values = json.dumps(ledger, sort_keys=True).encode()  # in whatever order its fields are
    return {
        "epsilon": claim.epsilon,
        "delta": claim.delta,
        "unit": claim.unit,
        "neighbouring": claim.neighbouring,
        "rows": rows,
        "ledger_sha256": hashlib.sha256(plain_values).hexdigest(),
    }


MOST_HEADER = 20_000  # characters. Ours have 700.
MOST_DEPTH = 20  # of nested values. Ours have 3.


def read_header(card: str) -> dict[str, Any]:
    """Return the YAML header of a card as plain values.

    Anchors, aliases, merges and tags are refused, because a few lines of them can expand to
    billions of values, or to other things than values. Depth is limited because the parser's time
    grows with its square.

    Raises:
        ValueError: there is no header, or it is not a YAML mapping of plain values.
    """
    import yaml

    found = re.match(r"---\n(.*?\n)---\n", card, re.DOTALL)
    header, depth = None, 0
    try:
        if found and len(found[1]) <= MOST_HEADER:
            for event in yaml.parse(found[1], yaml.SafeLoader):
                depth += isinstance(event, yaml.CollectionStartEvent)
                depth -= isinstance(event, yaml.CollectionEndEvent)
                if (
                    depth > MOST_DEPTH
                    or isinstance(event, yaml.AliasEvent)
                    or getattr(event, "anchor", None) is not None
                    or getattr(event, "tag", None) is not None
                    or getattr(event, "value", "") == "<<"
                ):
                    raise ValueError("not plain values")
            header = yaml.safe_load(found[1])
    except (yaml.YAMLError, ValueError, ArithmeticError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise ValueError("the card has no readable YAML header")
    return header


# What may hold mark-up in a card: lines that fold the guarantee, with a blank line after them, one
# block of code, an escaped character, and a span of code. A span ends in its line.
_BLOCKS = re.compile(
    r"^<details>\n<summary>[\w ,]+</summary>\n$|^</details>\n$"
    r"|^```python\nimport pandas as pd\ntwin = .*\ntwin\.head\(\)\n```$",
    re.MULTILINE,
)
_SPANS = re.compile(r"\\.|(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)")


def may_hide(card: str) -> bool:
    """Return whether a card has HTML, links, formulas or blocks that could hide what it states."""
    lines = _BLOCKS.sub("", card.partition("\n---\n")[2]).splitlines()
    return any(set("<[$~`") & set(_SPANS.sub("", line)) for line in lines)


# -- a twin's card ------------------------------------------------------------------------------

WRITTEN = (
    "The rows were written by a language model that was fitted {} to a private table. What "
    "they say may be false, biased or offensive."
)


def say_how_fitted(claim: Guarantee) -> str:
    """Return the words for what fitted the model, which never say more than is guaranteed."""
    if claim.epsilon is None:
        return "WITHOUT a privacy guarantee"
    return f"with {'' if claim.is_of_whole_records else 'selective '}differential privacy"


_FILTERED = {
    "debris": "web debris or instructions to a writer",
    "vulgar": "vulgar words or slurs",
    "all": "web debris, instructions to a writer, vulgar words or slurs",
}


@dataclass(frozen=True)
class TwinDescription:
    """How a twin was made, as far as the ledger does not say it. All of it is public.

    Args:
        base_model: name of the base model. No path of this machine.
        template: the prompts.
        schema: the table's columns and label values.
        sampling: how rows were drawn.
        title: the card's. The private file's name never becomes the title unless the user says so.
        licence: of the twin, as a hub identifier.
        base_origin: where the base model came from. No path of this machine.
        redrawn: how many texts were drawn again, from `RowGroups.redrawn`. Empty if unknown.
        columns: the other columns.
    """

    base_model: str
    template: Template
    schema: Schema
    sampling: SamplingConfig = SamplingConfig()
    title: str = "Synthetic twin"
    licence: str = "unknown"
    base_origin: str = ""
    redrawn: Mapping[str, int] = field(default_factory=dict)
    columns: tuple[Column, ...] = ()


def stated_lines(claim: Guarantee, rows: int) -> list[str]:
    """Return the lines on privacy that a card with this guarantee has. `verify` compares them."""
    return [
        f"| ε | {'none' if claim.epsilon is None else up_decimals(claim.epsilon)} |",
        f"| δ | {'none' if claim.delta is None else up_digits(claim.delta)} |",
        f"| Unit | {plain(claim.unit)} ({plain(claim.neighbouring)}) |",
        f"| Rows | {rows} |",
        plain(claim.sentence),
        *(f"- {plain(line)}" for line in (*claim.covers, *claim.excludes)),
    ]


def render_card(
    description: TwinDescription,
    ledger: Ledger,
    format: str,
    rows: int,
    label_rows: Mapping[Combination, int] | None = None,
    guarded: int | None = None,
    names: Iterable[str] = (),
) -> str:
    """Return the card as one text: YAML header and Markdown.

    Args:
        description: how the twin was made.
        ledger: the spending of the model that wrote it.
        format: of the twin's file, an ending of `FORMATS` without its dot.
        rows: number of the twin's rows.
        label_rows: number of rows of every label combination.
        guarded: number of cells guarded against spreadsheet formulas. None if no guard was set.
        names: of the columns in the file, which may be guarded too. Empty: those of the schema.
    """
    import yaml

    claim, schema, sampling = guarantee(ledger), description.schema, description.sampling
    kind = format.split(".")[0]  # "csv.gz" is read as "csv" is
    reader, options = _READERS[kind]
    in_file = dict(zip(schema.columns, tuple(names) or schema.columns, strict=True))
    texts: dict[str, str] = {}
    if reader == "read_csv":
        # labels and cells that pandas would take for numbers, truths or dates
        columns = description.columns
        found = [(a.name, a.values, False) for a in schema.attributes]
        found += [(c.name, c.values, c.kind == TEXT or c.dtype == "str") for c in columns]
        texts = {
            in_file[name]: "str"
            for name, values, is_text in found
            if is_text or any(isinstance(value, str) for value in values)
        }
        gaps = {in_file[column.name]: [""] for column in columns}
        options = options | ({"na_values": gaps} if gaps else {})

    # The header is for hubs. `verify` finds these numbers in it, and `stated_lines` in the text.
    config = {"config_name": "default", "data_files": f"twin.{format}"}
    header = {
        "pretty_name": one_line(description.title),
        "license": one_line(description.licence),
        "tags": ["synthetic", *(["differential-privacy"] if claim.is_of_whole_records else [])],
        **({"task_categories": ["text-classification"]} if schema.attributes else {}),
        # `datasets` takes these options of pandas for CSV but no types, and none for the others
        "configs": [config | (options if reader == "read_csv" else {})],
        "privacy": stated_numbers(ledger.to_dict(), claim, rows),
    }
    lines = yaml.safe_dump(header, allow_unicode=True, sort_keys=False, width=float("inf"))
    stated = options | ({"dtype": texts} if texts else {})
    arguments = [f'"twin.{format}"', *(f"{name}={value!r}" for name, value in stated.items())]

    settings = {
        "top-p": sampling.top_p,
        "temperature": sampling.temperature,
        "guidance": sampling.guidance,
        "tilt": sampling.tilt,
        "longest text in tokens": sampling.max_new_tokens,
    }
    drawn = [f"{name} {value:g}" for name, value in settings.items() if value is not None]
    if sampling.endings != "keep":
        drawn.append("unfinished rows cut at their last sentence")

    # How often rows were redrawn tells of the model alone: the lists of words are public.
    again = {}
    if what := _FILTERED.get(sampling.filter):
        again["filtered"] = f"Texts with {what}, by public lists, were drawn again"
    if sampling.endings == "redraw":
        again["unfinished"] = (
            "Texts that reached the longest length without an end were drawn again, so short texts "
            "are more frequent here than the model writes them"
        )
    if description.redrawn.get("denied"):
        again["denied"] = (
            "Texts were drawn again, up to "
            f"{sampling.teacher_redraws} times, if the model's private teacher and its noisy token "
            "counts (where it has them) suggest another label"
        )
    counts = description.redrawn
    redrawn = [f"{line}: {counts[w]} of them" if w in counts else line for w, line in again.items()]

    by_label = []
    for combination, number in (label_rows or {}).items():
        pairs = zip(schema.attributes, combination, strict=True)
        by_label.append((", ".join(f"{code(a.name)} = {code(spell(v))}" for a, v in pairs), number))
    label_lines = [f"{labels}: {number}" for labels, number in by_label[:LONGEST_LIST]]
    if rest := by_label[LONGEST_LIST:]:
        label_lines.append(f"{len(rest)} more combinations: {sum(number for _, number in rest)}")

    guards = []
    if kind in ("csv", "tsv"):
        starts = ", ".join(code(start) for start in FORMULA_STARTS if start.strip())
        how = (
            "are NOT guarded: a spreadsheet may run them as formulas"
            if guarded is None
            else "begin with an added apostrophe, so no spreadsheet runs them as formulas: "
            f"{guarded}"
        )
        guards.append(f"Texts that start with {starts}, a tab or a line break {how}")
        guards.append(
            "Labels are written as they are, whatever they start with. A spreadsheet may take "
            f"{code('+1')} for a number. Load the file as above, or import its columns as text"
        )
        if texts:
            guards.append(
                f"{code('datasets')} guesses the types of CSV, so that it may read 3.10 as 3.1. "
                f"Load the file as above, then call {code('Dataset.from_pandas')}"
            )
    for name, written in in_file.items():
        if name != written:
            guards.append(
                f"In the file, for the same reason, {code(name)} is called {code(written)}"
            )

    text: str = template("card.md.jinja").render(
        description=description,
        ledger=ledger,
        claim=claim,
        schema=schema,
        header=f"---\n{lines}---\n",
        written=WRITTEN.format(say_how_fitted(claim)),
        stated=stated_lines(claim, rows),
        belief=belief_sentence(claim),
        call=f"pd.{reader}({', '.join(arguments)})",
        sampling=", ".join(drawn),
        redrawn=redrawn,
        label_rows=label_lines,
        guards=guards,
        FLAGGED_UNIT=FLAGGED_UNIT,
        OWNER_UNIT=OWNER_UNIT,
    )
    return text


def render_model_card(base_name: str, base_origin: str, ledger: Ledger) -> str:
    """Return the card of a model folder as one text: YAML header and Markdown.

    Args:
        base_name: name of the base model, or "" if unknown.
        base_origin: where it came from.
        ledger: the spending of the training.
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
