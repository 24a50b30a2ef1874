"""What the owner of a table should hear before a run: that it is small, or in another language.

Computed from private records and told to their owner alone: no choice of a run depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator

from twinset.config.plan import Plan

FEW = 4000  # records times ε; below, noise outweighs nearly all that texts could teach
UNTRAINED = (  # docs/results.md
    "; `steps=0` trains nothing, takes minutes, and taught as much on tables of 3,000 records at "
    "ε = 1"
)
HARDLY_READ = 3.2  # times the tokens a character of English; clinical notes and Polish take 2.5


def table_notes(plan: Plan, times_english: float) -> Iterator[str]:
    """Yield notes, if there is anything to say."""
    epsilon = plan.target_epsilon
    if epsilon is not None and plan.records * epsilon < FEW:
        yield (
            f"{plan.records} records are few for ε = {epsilon:g}: the twin will have about the "
            "right share of each label, and texts much like the base model's own; some "
            f"{max(1000, round(FEW / epsilon, -3)):,.0f} records are a start"
            f"{UNTRAINED if plan.steps else ''}"
        )
    if times_english > HARDLY_READ:
        yield (
            f"the base model takes {times_english:.0f} times as many tokens for a character of "
            "these texts as for English: it has hardly read their language, and the twin will not "
            "read well; choose another `base_model`"
        )
