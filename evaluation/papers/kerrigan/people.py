"""What training on lines means for people with several of them: paper 003's rule beside a bound."""

from __future__ import annotations

from collections.abc import Iterator

from evaluation.papers.kerrigan.published import DELTA, GROUP_RULE
from evaluation.papers.page import table
from evaluation.papers.report import Section
from evaluation.papers.rows import Rows
from twinset.markdown import plain
from twinset.privacy.accountant import epsilon
from twinset.privacy.events import SubsampledGaussian, event_from_dict
from twinset.privacy.groups import group_bound, group_epsilon
from twinset.privacy.rounding import up_decimals, up_digits

SIZES = (1, 2, 5, 10)
HEADER = (
    "σ",
    "q",
    "steps",
    "lines of a person, γ",
    f"paper: {GROUP_RULE}",
    "γε",
    "with δ of",
    f"ε at δ = {DELTA:g}",
)


def people(rows: Rows) -> Section:
    """Return a table: a line for each noisy training there was and each number of lines."""
    body = [cells for step in _steps(rows) for cells in _cells(step)]
    return Section("People with several lines", [plain(_NOTE), "", *table(HEADER, body)])


_NOTE = (
    "Noise protects one line. Of a person with γ lines the paper says that ε becomes ε ÷ γ "
    "(sections 3.1 and 3.2; all its figures are for γ = 1), as if more lines were safer. That "
    "is the ε that one line would need for γ of them to have ε. It is the other way round: γ lines "
    "together have γε, and δ grows with it (a δ of 1 says nothing); or, with δ kept, the ε of the "
    "last column, an upper bound that need not be the least."
)


def _steps(rows: Rows) -> list[SubsampledGaussian]:
    """Return every kind of noisy training once, the least noise first."""
    events = {event_from_dict(event) for row in rows.rows.values() for event in row["events"]}
    steps = (event for event in events if isinstance(event, SubsampledGaussian))
    return sorted(steps, key=lambda e: (e.noise_multiplier, e.sample_rate, e.steps))


def _cells(step: SubsampledGaussian) -> Iterator[list[str]]:
    alone = epsilon([step], DELTA)
    for size in SIZES:
        spent, delta = group_bound(alone, DELTA, size)
        yield [
            f"{step.noise_multiplier:g}",
            f"{step.sample_rate:.3g}",
            f"{step.steps:,}",
            str(size),
            up_decimals(alone / size),
            up_decimals(spent),
            up_digits(delta),
            up_decimals(group_epsilon([step], DELTA, size)),
        ]
