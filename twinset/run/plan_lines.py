"""A plan in words: what it spends, what it costs, and what else could be run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from twinset.config.plan import Plan
from twinset.files.environment import run_line
from twinset.privacy.accounting.accountant import (
    group_epsilon,
    says_something,
    up_decimals,
    up_digits,
)
from twinset.progress import Progress
from twinset.run.choices import Choice, choices
from twinset.run.estimate import Estimate
from twinset.run.plan_in_time import minutes
from twinset.run.prepare import Prepared


def report_plan(prepared: Prepared, progress: Progress) -> None:
    """Show a plan with its time and what else could be run; `finetune` shows its warnings."""
    for line in plan_lines(prepared.plan, prepared.owned):
        progress.say(line)
    report_cost(prepared, progress)


def report_cost(prepared: Prepared, progress: Progress) -> None:
    """Show what a plan is for, its time and what else could be run.

    Args:
        prepared: with the plan.
        progress: is notified, of the phases' time too.
    """
    if prepared.owned is not None:
        owned = f"{prepared.plan.records} owners of {prepared.owned} records"
        progress.say(f"each of {owned} is protected as one")
    for line in _cost_lines(prepared, progress):
        progress.say(line)


def _cost_lines(prepared: Prepared, progress: Progress) -> Iterator[str]:
    """Yield the time, and the other choices; nothing where it was not measured."""
    plan, config, speed = prepared.plan, prepared.config, prepared.speed
    if speed is None:
        return
    tokens, facts = prepared.usual_tokens, prepared.public_facts()
    estimate = speed.at(tokens).estimate(plan, facts.rows)
    progress.expect(estimate.phases(len(config.policy.policy_class.phases())))
    yield from time_lines(estimate)
    found = choices(plan.records, config, speed, facts, tokens)
    yield from choice_lines([choice for choice in found if choice.plan != plan])


def time_lines(estimate: Estimate) -> list[str]:
    """Return how long all of it takes, and what of it, as progress calls the parts."""
    parts = ", ".join(f"{phase} {minutes(seconds)}" for phase, seconds in estimate.phases(1))
    return [
        f"time in all            about {minutes(estimate.seconds)} on this machine",
        f"  of it                {parts}; {estimate.tokens} tokens a record",
    ]


def choice_lines(found: Sequence[Choice]) -> Iterator[str]:
    """Yield plans by time, rows included, and how each is asked for."""
    command = run_line("steps", "batch_size", "learning_rate")  # each says its own
    for choice in found:
        yield from choice.lines(command)


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """Return a plan as plain values, ready for JSON."""
    return {**asdict(plan), "sample_rate": plan.sample_rate}


def plan_lines(plan: Plan, owned: int | None = None) -> list[str]:
    """Return a plan for people; of owners with so many records, or of records."""
    private, unit = plan.target_epsilon is not None, unit_of(owned)
    return [
        f"records N              {plan.records:,}"
        if owned is None
        else f"owners N               {plan.records:,}, of {owned:,} records",
        f"budget                 {_budget(plan, unit)}, δ = {up_digits(plan.target_delta)}"
        if private
        else "budget                 none: no noise, no guarantee",
        *_group(plan),
        *(_step_lines(plan) if plan.steps else ["steps T                0: nothing is trained"]),
        f"noise on label counts  ± {plan.label_count_noise:.1f} records (one standard deviation)",
        *(f"{r.what:<23}σ = {r.noise_multiplier:.2f}, once" for r in plan.releases[1:]),
    ]


def _step_lines(plan: Plan) -> list[str]:
    """Return what is said of training."""
    return [
        f"noise policy           {plan.policy[0]}, {plan.policy[1]} form",
        *_phases(plan),
        f"noise multiplier σ     {plan.noise_multiplier:.3f}",
        f"batch L, rate q        {plan.batch_size}, {plan.sample_rate:.4g}",
        f"steps T                {plan.steps}",
        f"learning rate, λ       {plan.learning_rate:g}, {plan.mismatch_weight:g}",
    ]


def _group(plan: Plan) -> list[str]:
    """Return what holds for several records together, where that is asked for."""
    if plan.group_size is None or not plan.events:
        return []
    spent = group_epsilon(plan.events, plan.target_delta, plan.group_size)
    useless = "" if says_something(spent, plan.target_delta) else ": no guarantee"
    return [f"{f'{plan.group_size} records together':<23}ε = {up_decimals(spent)}{useless}"]


def unit_of(owned: int | None) -> str:
    """Return what is protected as one."""
    return "record" if owned is None else "owner"


def _budget(plan: Plan, unit: str = "record") -> str:
    """Return whom which ε is for."""
    target, highest = plan.target_epsilon, plan.highest_epsilon
    assert target is not None
    return plan.policy_class.budget_line(target, plan.epsilon, highest, unit)


def _phases(plan: Plan) -> list[str]:
    phases = plan.policy_class.phases()
    if len(phases) == 1:
        return []
    reads = "; then ".join(phase.reads for phase in phases)
    return [f"phases                 {reads}; {plan.steps} steps each"]


def policy_line(plan: Plan | None, unit: str = "record") -> str:
    """Return what a policy needs and promises, in one line."""
    if plan is None:
        return "would need more records"
    phases = len(plan.policy_class.phases())
    times = f", {phases} times the steps" if phases > 1 else ""
    return f"σ = {plan.noise_multiplier:.3f}{times}; {_budget(plan, unit)}"
