"""What the owner of a table should hear before a run: that it is small, or in another language.

Computed from private records and told to their owner alone: no choice of a run depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator

from twinset.config.plan import Plan, is_few

HARDLY_WORTH = 1_000  # records times ε; measured were 200, 400 and 2,000: see docs/tuning.md
MEASURED = "where it was measured (8,400 records at ε = 8, 3,200 at ε = 1)"  # see docs/tuning.md
HARDLY_READ = 3.2  # times the tokens a character of English; clinical notes and Polish take 2.5


def table_notes(plan: Plan, times_english: float, batch_size: int | None = None) -> Iterator[str]:
    """Yield notes, if there is anything to say; `batch_size` as it was asked for."""
    yield from size_notes(plan, batch_size)
    if times_english > HARDLY_READ:
        yield (
            f"the base model takes {times_english:.0f} times as many tokens for a character of "
            "these texts as for English: it has hardly read their language, and the twin will not "
            "read well; choose another `base_model`"
        )


def size_notes(plan: Plan, batch_size: int | None = None) -> Iterator[str]:
    """Yield what follows from N, ε and the batch size asked for, which are public."""
    if plan.steps and batch_size is not None and batch_size > plan.batch_size:
        yield (
            f"`batch_size={batch_size}` is more than the {plan.records:,} there are to protect: "
            "each step has all of them"
        )
    epsilon = plan.target_epsilon
    needs_steps = plan.policy_class.needs_steps
    if epsilon is not None and not needs_steps and is_few(plan.records, epsilon):
        yield f"{plan.records} records are few for ε = {epsilon:g}: " + (
            f"`steps=0` trains nothing, takes less time, and taught as much {MEASURED}"
            if plan.steps
            else f"nothing is trained, as that taught no more {MEASURED} and takes longer; counts "
            "of words and, where it would know enough, a teacher have all of ε; `steps=40` trains "
            "all the same, and without it options of training have no effect"
        )
    if epsilon is not None and plan.records * epsilon < HARDLY_WORTH:
        yield (
            "a twin may not be worth making for its labels: of 50 records at ε = 8 it taught "
            "classifiers no more than rows of the base model without private data, where that was "
            "measured; an evaluation shows both"
        )
