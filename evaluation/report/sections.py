"""What the page has under each of its headings, ready to be written out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from evaluation.findings import Curve, Findings, Question
from evaluation.report.figures import Figure, curve_figure, figures_of, histogram_figure, not_drawn
from evaluation.report.groups import is_exposure
from evaluation.report.meanings import MISSING, SECTIONS
from evaluation.report.reading import Run
from evaluation.report.tables import by_value, single_scores

_MADE_BY: dict[Question, tuple[str, ...]] = {
    "utility": ("evaluation",),
    "fidelity": ("evaluation",),
    "leakage": ("audit", "canaries"),
}


def sections(run: Run) -> Iterator[dict[str, Any]]:
    """Yield all about utility, fidelity and leakage, in this order."""
    for question in get_args(Question):
        measured = run.measured(question)
        yield {
            "anchor": question,
            **SECTIONS[question],
            "figures": [*figures_of(measured), *_drawn(run, question)],
            "tables": by_value(measured),
            "single": single_scores(not_drawn(measured)),
            "missing": [MISSING[kind] for kind in _MADE_BY[question] if kind not in run.findings],
        }


def about(findings: Findings) -> list[tuple[str, str]]:
    """Return how findings were made, as pairs of words."""
    return list(_flat(findings.about))


def _drawn(run: Run, question: Question) -> Iterator[Figure]:
    for findings in run.findings.values():
        curves: list[Curve] = [c for c in findings.curves if c.question == question]
        if any(map(is_exposure, findings.measured)):  # drawn from the scores, with references
            curves = [c for c in curves if not c.name.startswith("exposure")]
        histograms = [h for h in findings.histograms if h.question == question]
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
