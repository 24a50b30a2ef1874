"""The data-set card that goes with a twin: a YAML header that `datasets` reads, and Markdown.

All it says follows from the ledger, the schema, the options and the twin itself. It knows no
private record and no file of the user's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from twinset.config import SamplingConfig
from twinset.data.formats import FORMULA_STARTS
from twinset.data.schema import Combination, Schema
from twinset.data.templates import Template
from twinset.privacy.accounting.events import (
    Event,
    GaussianRelease,
    IndividualGaussian,
    MaskedAccess,
    NonPrivateAccess,
    SubsampledGaussian,
)
from twinset.privacy.accounting.rounding import up_decimals, up_digits
from twinset.privacy.statement.guarantee import Guarantee, guarantee
from twinset.privacy.statement.ledger import FLAGGED_UNIT, OWNER_UNIT, Ledger
from twinset.release.card_header import render_header, stated_numbers
from twinset.release.markdown import bullets, code, plain

LONGEST_LIST = 200  # label combinations; more are summed up


@dataclass(frozen=True)
class TwinDescription:
    """How a twin was made, as far as the ledger does not say it. All of it is public.

    Args:
        base_model: where the base model came from; no path of this machine.
        template: the prompts.
        schema: the table's columns and label values.
        sampling: how rows were drawn.
        title: the card's; the private file's name is never taken for it unasked.
        licence: of the twin, as a hub identifier.
    """

    base_model: str
    template: Template
    schema: Schema
    sampling: SamplingConfig = SamplingConfig()
    title: str = "Synthetic twin"
    licence: str = "unknown"


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
    claim = guarantee(ledger)
    parts = (
        _header(description, ledger, claim, contents),
        _opening(description, claim),
        _summary(description, claim, contents),
        _promises(claim),
        _making(description, ledger, contents),
        _columns(description.schema, contents),
        _CHECKING,
    )
    return "\n".join(parts)


def _header(
    description: TwinDescription, ledger: Ledger, claim: Guarantee, contents: TwinContents
) -> str:
    return render_header(
        description.title,
        description.licence,
        contents.format,
        bool(description.schema.attributes),
        stated_numbers(ledger.to_dict(), claim, contents.rows),
    )


def _opening(description: TwinDescription, claim: Guarantee) -> str:
    warning, how = _WARNINGS[_protection(claim)]
    text = (
        f"The rows were written by a language model that was fine-tuned {how} on a private table. "
        "What they say may be false, biased or offensive."
    )
    return _block([f"# {plain(description.title)}", "", warning + text])


def _protection(claim: Guarantee) -> str:
    if claim.epsilon is None:
        return "none"
    return "flagged" if claim.unit == FLAGGED_UNIT else "records"


_WARNINGS = {
    "none": (
        "**There is NO privacy guarantee for this data set: treat it as private.** ",
        "WITHOUT a privacy guarantee",
    ),
    "flagged": (
        "**Only what a detector flagged is protected here; all other words of the private records "
        "may be repeated.** ",
        "with selective differential privacy",
    ),
    "records": ("", "with differential privacy"),
}


def _summary(description: TwinDescription, claim: Guarantee, contents: TwinContents) -> str:
    epsilon, delta, unit, rows = stated_lines(claim, contents.rows)[:4]
    lines = [
        "| | |",
        "|---|---|",
        epsilon,
        delta,
        unit,
        rows,
        f"| Columns | {len(description.schema.columns)} |",
        f"| Base model | {plain(description.base_model)} |",
    ]
    return _block(lines)


def _promises(claim: Guarantee) -> str:
    return _block(
        [
            "## What is guaranteed",
            "",
            plain(claim.sentence),
            "",
            *_by_weight(claim),
            "## What this covers",
            "",
            *(bullets(map(plain, claim.covers)) or ["Nothing."]),
            "",
            "## What it does not cover",
            "",
            *(bullets(map(plain, claim.excludes)) or ["Everything."]),
        ]
    )


def _by_weight(claim: Guarantee) -> list[str]:
    """Return the table of ε by privacy weight; nothing where all records have one ε."""
    if not claim.by_weight:
        return []
    rows = (f"| {weight:g} | {eps:.2f} | {share:.0%} |" for weight, eps, share in claim.by_weight)
    return [
        "| privacy weight | ε | public reference texts about here |",
        "|---:|---:|---:|",
        *rows,
        "",
    ]


def _making(description: TwinDescription, ledger: Ledger, contents: TwinContents) -> str:
    policy = f"Noise policy: {plain(ledger.policy)}, {plain(ledger.policy_form)} form"
    lines = [
        "## How it was made",
        "",
        *bullets(
            [
                f"Base model: {plain(description.base_model)}",
                f"Prompt: {code(description.template.pattern)}",
                *_wording(description.template),
                *(
                    f"Values of {code(a.name)}: {', '.join(map(code, a.values))}"
                    for a in description.schema.attributes
                ),
                f"Private {'owners' if ledger.unit == OWNER_UNIT else 'records'}: {ledger.records}",
                f"Batches: {plain(ledger.sampler)} sampling",
                f"Clipping: norm {ledger.max_grad_norm:g}; {plain(ledger.clipping)}",
                policy,
                *map(_event, ledger.events),
                f"Randomness: {plain(ledger.randomness)}",
                f"Sampling: {_sampling(description.sampling)}",
            ]
        ),
        *_label_rows(description.schema, contents),
    ]
    return _block(lines)


def _wording(template: Template) -> Iterator[str]:
    for name, words in template.wording.items():
        shown = ", ".join(f"{code(value)} as {code(word)}" for value, word in words.items())
        yield f"Wording of {code(name)}: {shown}"


def _event(event: Event) -> str:
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


def _sampling(sampling: SamplingConfig) -> str:
    settings = {
        "top-p": sampling.top_p,
        "temperature": sampling.temperature,
        "guidance": sampling.guidance,
        "typical-p": sampling.typical_p,
        "longest text in tokens": sampling.max_new_tokens,
    }
    shown = [f"{name} {value:g}" for name, value in settings.items() if value is not None]
    if sampling.engine == "vllm":
        shown.append("by vLLM")
    return ", ".join(shown)


def _label_rows(schema: Schema, contents: TwinContents) -> list[str]:
    if not schema.attributes:
        return []
    counts = list(contents.label_rows.items())
    lines = [f"{_combination(schema, c)}: {rows}" for c, rows in counts[:LONGEST_LIST]]
    if rest := counts[LONGEST_LIST:]:
        lines.append(f"{len(rest)} more combinations: {sum(rows for _, rows in rest)}")
    return ["", "Rows of the twin for each label:", "", *bullets(lines)]


def _combination(schema: Schema, combination: Combination) -> str:
    pairs = zip(schema.attributes, combination, strict=True)
    return ", ".join(f"{code(a.name)} = {code(value)}" for a, value in pairs)


def _columns(schema: Schema, contents: TwinContents) -> str:
    lines = [
        f"In this order: {', '.join(map(code, schema.columns))}",
        "Whether the private table has others, and what they are called, is not told",
        _guard(contents),
        *_guarded_names(schema, contents),
    ]
    return _block(["## Columns", "", *bullets(line for line in lines if line)])


def _guard(contents: TwinContents) -> str:
    if contents.format.split(".")[0] not in ("csv", "tsv"):
        return ""
    starts = ", ".join(code(start) for start in FORMULA_STARTS if start.strip())
    what = f"that start with {starts}, a tab or a line break"
    if contents.guarded is None:
        return f"Cells {what} are NOT guarded: a spreadsheet may run them as formulas"
    return (
        f"Cells {what} begin with an added apostrophe, so that no spreadsheet runs them as "
        f"formulas: {contents.guarded}"
    )


def _guarded_names(schema: Schema, contents: TwinContents) -> Iterator[str]:
    for name, written in zip(schema.columns, contents.names or schema.columns, strict=True):
        if name != written:
            yield f"In the file, for the same reason, {code(name)} is called {code(written)}"


_CHECKING = """## How to check it

    twinset verify FOLDER

with the folder of this card, or the twin's file where the card stands beside it under the file's
name. This recomputes ε from the ledger in `privacy.json` alone, and fails where card and ledger
disagree or a file was altered. It is no signature: who made the files, and that the training was
run as the ledger says, it cannot show.
"""


def _block(lines: Iterable[str]) -> str:
    return "\n".join(lines) + "\n"
