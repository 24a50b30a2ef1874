"""What a run promises and costs, before anything private happens: the lines of `twinset plan`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, get_args

from twinset.config import RECORDS, NoisePolicyName, PolicyConfig, RunConfig
from twinset.config.bounds import check_number
from twinset.config.plan import Plan, make_plan, settled, sized
from twinset.config.run_config import HOLD_OUT
from twinset.errors import InputError
from twinset.files.environment import run_line
from twinset.models.base_model import load_base
from twinset.pipeline.choices import Choice, choices
from twinset.pipeline.estimate import Estimate, Speed
from twinset.pipeline.hold_out import held_out_line, share_of
from twinset.pipeline.plan_in_time import PublicFacts, late_warnings, minutes, plan_in_time
from twinset.pipeline.prepare import Prepared, prepare
from twinset.pipeline.request import Source
from twinset.pipeline.table_notes import size_notes
from twinset.privacy.accounting.group_privacy import group_epsilon, says_something
from twinset.privacy.accounting.rounding import up_decimals, up_digits
from twinset.progress import Progress
from twinset.sampling.allocation import RowsRequest, usual_rows

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
        estimate, unit = self.estimate, _unit(self.owned)
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
    speed = prepared.speed or facts.speed(plan, config, base)
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
    facts = PublicFacts(PROMPT_TOKENS, rows or usual_rows(records), may_be_fewer=rows is None)
    base = load_base(config.training.base_model, device=config.speed.device, say=progress.say)
    plan, most, speed = plan_in_time(plan, config, base, facts, progress)
    facts = replace(facts, rows=most)
    speed = speed or facts.speed(plan, config, base)
    for warning in late_warnings(plan, config, speed, facts.rows):
        progress.warn(warning)
    for note in size_notes(plan, config.training.batch_size):
        progress.say(note)
    return plan, speed, facts, speed.tokens


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
    progress.expect(estimate.phases(config.policy.phases))
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
    private, unit = plan.target_epsilon is not None, _unit(owned)
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


def _unit(owned: int | None) -> str:
    """Return what is protected as one."""
    return "record" if owned is None else "owner"


def _budget(plan: Plan, unit: str = "record") -> str:
    """Return whom which ε is for."""
    target = f"ε = {plan.target_epsilon:g}"
    if not plan.is_covered:
        return f"{target} is nominal, as if all privacy weights were 1: no theorem covers this form"
    if plan.highest_epsilon is not None:
        return f"{target} at privacy weight 1, ε = {plan.highest_epsilon:g} for any record"
    if plan.least_noise < 1:
        return f"{target} is nominal, guaranteed is ε = {up_decimals(plan.epsilon)}"
    if plan.policy[0] == "selective":
        return f"{target} for what the detector flags, nothing for the rest"
    return f"{target} for every {unit}"


def _phases(plan: Plan) -> list[str]:
    if plan.policy[0] != "selective":
        return []
    steps = f"{plan.steps} steps each"
    return [f"phases                 masked texts without noise, then texts as they are; {steps}"]


def policy_line(plan: Plan | None, unit: str = "record") -> str:
    """Return what a policy needs and promises, in one line."""
    if plan is None:
        return "would need more records"
    twice = ", twice the steps" if plan.policy[0] == "selective" else ""
    return f"σ = {plan.noise_multiplier:.3f}{twice}; {_budget(plan, unit)}"


def policies_side_by_side(records: int, config: RunConfig) -> dict[str, Plan | None]:
    """Return a plan for each policy in its sound form, with this budget; none without privacy."""
    if config.privacy.target_epsilon is None:
        return {}
    found: dict[str, Plan | None] = {}
    for name in get_args(NoisePolicyName):
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
