"""What the page has under each of its headings, ready to be written out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evaluation.findings import Curve, Findings, Histogram, Question
from evaluation.report.charts.numbers import power
from evaluation.report.figures import (
    Figure,
    curve_figure,
    figures_of,
    histogram_figure,
    not_drawn,
)
from evaluation.report.groups import is_exposure
from evaluation.report.reading import Run
from evaluation.report.tables import Table, by_value, single_scores
from twinset.privacy.accounting.rounding import up_decimals, up_digits
from twinset.privacy.statement.guarantee import Guarantee

_QUESTIONS: tuple[tuple[Question, str, str], ...] = (
    ("utility", "Utility", "What the twin is good for: classifiers trained on it, tested on real "
     "rows that nobody trained on."),
    ("fidelity", "Fidelity", "Whether the twin is like the real rows, beside how like them a "
     "second real sample is: nothing can be expected to come closer."),
    ("leakage", "Leakage", "What an attacker finds. These are attacks, which can show a leak and "
     "cannot show that there is none."),
)  # fmt: skip
EVALUATE = "twinset evaluate RUN --train TRAIN --test HELDOUT"
AUDIT = "twinset audit RUN --members TRAIN --non-members HELDOUT"
CANARIES = "twinset audit canaries TRAIN"
# By kind of findings: what is missing without them, and the command that gets them.
_MISSING = {
    "evaluation": (
        "Utility and fidelity have not been measured yet. This does it:",
        EVALUATE,
    ),
    "audit": ("Leakage has not been measured yet. This attacks the run:", AUDIT),
    "canaries": (
        "No canaries have been planted yet. This plants some:",
        CANARIES,
    ),
}
_MADE_BY: dict[Question, tuple[str, ...]] = {
    "utility": ("evaluation",),
    "fidelity": ("evaluation",),
    "leakage": ("audit", "canaries"),
}


@dataclass(frozen=True)
class Missing:
    """Something that is not there yet, and the command that makes it."""

    line: str
    command: str


@dataclass(frozen=True)
class Section:
    """All about one question."""

    anchor: str
    title: str
    introduction: str
    figures: tuple[Figure, ...]
    tables: tuple[Table, ...]
    single: Table | None
    missing: tuple[Missing, ...]


@dataclass(frozen=True)
class Claim:
    """The guarantee as it is shown.

    Args:
        epsilon: in digits, rounded up; None where nothing is guaranteed.
        delta: likewise.
        sentence: all of it in words.
        unit: whose presence is protected, and against what.
        covers: what it is true of.
        excludes: what it is not true of.
        by_weight: adaptive: (weight, ε, share of public texts), in words.
    """

    epsilon: str | None
    delta: str | None
    sentence: str
    unit: str = ""
    covers: Sequence[str] = ()
    excludes: Sequence[str] = ()
    by_weight: tuple[tuple[str, str, str], ...] = ()


def sections(run: Run) -> list[Section]:
    """Return utility, fidelity and leakage, in this order."""
    return [_section(run, *question) for question in _QUESTIONS]


def claim_of(guaranteed: Guarantee | None) -> Claim:
    """Return a guarantee in digits and words; None is a run without its ledger."""
    if guaranteed is None:
        return Claim(
            None, None, "Unknown: this run has no share/privacy.json. Treat it as private."
        )
    epsilon, delta = guaranteed.epsilon, guaranteed.delta
    is_given = epsilon is not None and delta is not None
    return Claim(
        epsilon=up_decimals(epsilon) if is_given and epsilon is not None else None,
        delta=power(up_digits(delta)) if is_given and delta is not None else None,
        sentence=guaranteed.sentence,
        unit=f"{guaranteed.unit} ({guaranteed.neighbouring})",
        covers=guaranteed.covers,
        excludes=guaranteed.excludes,
        by_weight=tuple(
            (f"{weight:g}", up_decimals(eps), f"{share:.0%}")
            for weight, eps, share in guaranteed.by_weight
        ),
    )


def about(findings: Findings) -> list[tuple[str, str]]:
    """Return how findings were made, as pairs of words."""
    return list(_flat(findings.about))


def _section(run: Run, question: Question, title: str, introduction: str) -> Section:
    measured = run.measured(question)
    figures = [*figures_of(measured), *_drawn(run, question)]
    return Section(
        question,
        title,
        introduction,
        tuple(figures),
        tuple(by_value(measured)),
        single_scores(not_drawn(measured)),
        tuple(Missing(*_MISSING[k]) for k in _MADE_BY[question] if k not in run.findings),
    )


def _drawn(run: Run, question: Question) -> Iterator[Figure]:
    for findings in run.findings.values():
        curves: list[Curve] = [c for c in findings.curves if c.question == question]
        if any(map(is_exposure, findings.measured)):  # drawn from the scores, with references
            curves = [c for c in curves if not c.name.startswith("exposure")]
        histograms: list[Histogram] = [h for h in findings.histograms if h.question == question]
        made = [*map(curve_figure, curves), *map(histogram_figure, histograms)]
        yield from (figure for figure in made if figure is not None)


def _flat(about: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for key, value in about.items():
        name = f"{above} {key}".strip()
        if isinstance(value, Mapping):
            yield from _flat(value, name)
        elif isinstance(value, list | tuple):
            yield name, ", ".join(map(str, value))
        else:
            yield name, "none" if value is None else str(value)
