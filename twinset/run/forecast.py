"""What a run will spend and cost, before anything private happens: what `twinset plan` shows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from twinset.bounds import check_number
from twinset.config import RECORDS, PolicyConfig, RunConfig
from twinset.config.plan import Plan, make_plan, settled, sized
from twinset.config.run_config import HOLD_OUT
from twinset.errors import InputError
from twinset.models.base_model import load_base
from twinset.policies import policy_names
from twinset.progress import Progress
from twinset.run.choices import Choice, choices
from twinset.run.estimate import Estimate, Speed
from twinset.run.hold_out import held_out_line, share_of
from twinset.run.plan_in_time import PublicFacts, late_warnings, plan_in_time
from twinset.run.plan_lines import (
    choice_lines,
    plan_lines,
    plan_to_dict,
    policy_line,
    time_lines,
    unit_of,
)
from twinset.run.prepare import prepare
from twinset.run.prompt_choice import chooses_prompt
from twinset.run.request import Source
from twinset.run.table_notes import size_notes
from twinset.sampling.allocation import RowsRequest, usual_rows
from twinset.table.templates import kinds_of_text

BUDGETS = (1.0, 3.0, 8.0)
PROMPT_TOKENS = 16  # where there is no table whose labels would say


@dataclass(frozen=True)
class Forecast:
    """A plan with what it costs.

    Args:
        plan: the plan.
        estimate: its cost, as measured.
        noise_by_epsilon: σ that the same steps would need for other ε; None where no use; empty
            without steps.
        policies: a plan for each noise policy in its sound form, None where the records are too
            few; empty without privacy or steps.
        choices: plans of less and more time.
        owned: number of the records that owners have, where these are protected; None: records are.
    """

    plan: Plan
    estimate: Estimate
    noise_by_epsilon: Mapping[float, float | None]
    policies: Mapping[str, Plan | None] = field(default_factory=dict)
    choices: Sequence[Choice] = ()
    owned: int | None = None

    @property
    def noise_to_signal(self) -> float:
        """σ·√p / L: the length of a step's noise over the longest its mean gradient can be."""
        p = self.estimate.trained_parameters
        return self.plan.noise_multiplier * math.sqrt(p) / self.plan.batch_size

    def __str__(self) -> str:
        """Return it for people, as a text."""
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """Return it for people."""
        estimate, unit = self.estimate, unit_of(self.owned)
        return [
            *plan_lines(self.plan, self.owned),
            *self._signal_lines(),
            *time_lines(estimate),
            f"memory                 about {estimate.memory_gb:.1f} GB",
            *choice_lines(self.choices),
            *self._budget_lines(),
            *(
                f"{f'`noise_policy={name}`':<27}{policy_line(p, unit)}"
                for name, p in self.policies.items()
            ),
        ]

    def _signal_lines(self) -> Iterator[str]:
        if self.plan.steps:
            ratio, p = self.noise_to_signal, self.estimate.trained_parameters
            yield f"noise to signal        {ratio:.3g}  (σ·√p/L, p = {p:,} trained numbers)"

    def _budget_lines(self) -> Iterator[str]:
        """Yield what the same steps would need for other ε."""
        needed = [
            f"ε = {epsilon:g}: {'more records' if sigma is None else f'σ = {sigma:.3f}'}"
            for epsilon, sigma in self.noise_by_epsilon.items()
        ]
        if needed:
            yield f"other budgets          {'; '.join(needed)}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {
            **plan_to_dict(self.plan),
            **asdict(self.estimate),
            "noise_to_signal": self.noise_to_signal,
            "noise_by_epsilon": {f"{e:g}": s for e, s in self.noise_by_epsilon.items()},
            "choices": {choice.name: choice.to_dict() for choice in self.choices},
            "policies": {n: plan and plan_to_dict(plan) for n, plan in self.policies.items()},
        }


def forecast(
    source: Source | None,
    records: int | None,
    config: RunConfig,
    rows: int | None,
    progress: Progress,
    hold_out: float | None = 0.0,
) -> Forecast:
    """Plan a run and measure what it will cost, from a table or from a number of records.

    Args:
        source: of the table; None: there is only a number.
        records: of a table that is not there yet.
        config: the run's options.
        rows: of the twin; None: as many as usual, if there is time.
        progress: is notified of what is read and found.
        hold_out: share of so many records that the run keeps from training, as `share_of` has it.

    Raises:
        InputError: something cannot be used, or neither is given.
    """
    if source is not None:
        if records is not None:
            raise InputError("give a table or `records`, not both")
        plan, speed, facts, tokens, owned = _of_table(source, config, RowsRequest(rows), progress)
    else:
        owned = None
        trained = _trained_on(records, hold_out, progress)
        plan, speed, facts, tokens = _of_number(trained, config, rows, progress)
    for warning in plan.warnings:
        progress.warn(warning)
    config = speed.config  # with a teacher or without
    same = sized(config, plan.steps, plan.batch_size)
    return Forecast(
        plan,
        speed.at(tokens).estimate(plan, facts.rows),
        noise_by_epsilon(plan.records, same) if plan.steps else {},
        policies_side_by_side(plan.records, same) if plan.steps else {},
        choices(plan.records, config, speed, facts, tokens),
        owned,
    )


def _of_table(
    source: Source, config: RunConfig, rows: RowsRequest, progress: Progress
) -> tuple[Plan, Speed, PublicFacts, int, int | None]:
    """Return plan, speed, what it was measured with, tokens of a usual record, records owned."""
    prepared = prepare(source, config, rows, progress)
    plan, base, facts = prepared.plan, prepared.base, prepared.public_facts()
    speed = prepared.speed or facts.speed(plan, config, base, progress)
    return plan, speed, facts, prepared.usual_tokens, prepared.owned


def _trained_on(records: int | None, hold_out: float | None, progress: Progress) -> int:
    """Return how many of a table's records are trained on: in the mean, where some are held out."""
    if hold_out is not None:
        check_number("`hold_out`", hold_out, HOLD_OUT)
    if records is None:
        raise InputError("give a table, or `records` with a number")
    check_number("`records`", records, RECORDS, is_whole=True)
    if held := round(records * share_of(hold_out, records)):
        progress.say(held_out_line(held))
    return records - held


def _of_number(
    records: int, config: RunConfig, rows: int | None, progress: Progress
) -> tuple[Plan, Speed, PublicFacts, int]:
    """Return the same of a table that is not there yet, and has no owners."""
    config = settled(config, records)
    plan = make_plan(records, config)
    prompts = len(kinds_of_text()) if chooses_prompt(plan, config) else 0
    rows_asked = rows or usual_rows(records)
    facts = PublicFacts(PROMPT_TOKENS, rows_asked, may_be_fewer=rows is None, prompts=prompts)
    base = load_base(config.training.base_model, device=config.speed.device, say=progress.say)
    plan, most, speed = plan_in_time(plan, config, base, facts, progress)
    facts = replace(facts, rows=most)
    speed = speed or facts.speed(plan, config, base, progress)
    for warning in late_warnings(plan, config, speed, facts.rows):
        progress.warn(warning)
    for note in size_notes(plan, config.training.batch_size):
        progress.say(note)
    return plan, speed, facts, speed.tokens


def policies_side_by_side(records: int, config: RunConfig) -> dict[str, Plan | None]:
    """Return a plan for each policy in its sound form, with this budget; none without privacy."""
    if config.privacy.target_epsilon is None:
        return {}
    found: dict[str, Plan | None] = {}
    for name in policy_names():
        policy = replace(config.policy, noise_policy=name, policy_form="sound", redact_only=False)
        try:
            found[name] = make_plan(records, replace(config, policy=policy))
        except InputError:
            found[name] = None
    return found


def noise_by_epsilon(records: int, config: RunConfig) -> dict[float, float | None]:
    """Return σ for each ε of `BUDGETS`; None where the records are too few for it."""
    found: dict[float, float | None] = {}
    for target in BUDGETS:
        try:
            privacy = replace(config.privacy, target_epsilon=target)
            uniform = replace(config, privacy=privacy, policy=PolicyConfig())
            found[target] = make_plan(records, uniform).noise_multiplier
        except InputError:
            found[target] = None
    return found
