"""Where a step's time goes, by kind of operator: written beside every figure that has a goal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

import torch

from evaluation.markdown import table

OTHER = "elementwise and other"
# part of an operator's name → its kind
KINDS = {
    "mm|linear_pointwise": "matrix products",
    "attention": "attention",
    "softmax": "softmax",
    "randn|normal": "noise",
    "adam": "optimiser",
    "copy|cat|index|gather": "copies",
}


def shares(step: Callable[[], object]) -> dict[str, float]:
    """Take a step; return the share of processor time by kind of operator, the largest first."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        step()
    spent: dict[str, float] = defaultdict(float)
    for event in profiler.key_averages():
        spent[_kind(event.key)] += event.self_cpu_time_total
    total = sum(spent.values())
    ordered = sorted(spent, key=spent.__getitem__, reverse=True)
    return {kind: round(spent[kind] / total, 3) for kind in ordered}


def _kind(operator: str) -> str:
    """Return the kind of an operator.

    >>> _kind("aten::addmm"), _kind("aten::mul")
    ('matrix products', 'elementwise and other')
    """
    found = (k for parts, k in KINDS.items() if any(p in operator for p in parts.split("|")))
    return next(found, OTHER)


def shares_line(found: Mapping[str, float]) -> str:
    """Return them in one line.

    >>> shares_line({"matrix products": 0.8, "noise": 0.2})
    'of its time matrix products 80%, noise 20%'
    """
    return "of its time " + ", ".join(f"{kind} {share:.0%}" for kind, share in found.items())


def shares_table(title: str, found: Mapping[str, float]) -> list[str]:
    """Return the lines of a table."""
    return table([title, "share"], [[kind, f"{share:.0%}"] for kind, share in found.items()])
