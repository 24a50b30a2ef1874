"""A plan that ends in time: chosen by this machine's speed and by public facts alone.

It is given no record. How long texts are is private, so three quarters of the longest that the
options keep are supposed, behind the longest prompt: many tables' texts are cut there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from twinset.config import RunConfig
from twinset.config.plan import FEWEST_VISITS, Plan, make_plan, size_for, sized
from twinset.errors import InputError
from twinset.models.base_model import BaseModel, context_length
from twinset.progress import Progress
from twinset.run.estimate import Estimate, Speed, measure
from twinset.sampling.untilted_rows import PROMPT_ROWS
from twinset.training.clipped_sum import WrongPrompts

PLANNED_SHARE = 0.9  # of the time; the rest is for reading, accounting and saving
ROWS_SHARE = 0.4  # of that, at most, where nobody asks for a number of rows
SLOWEST = 2e9  # multiply-adds a second: no machine that can hold the model is slower


@dataclass(frozen=True)
class PublicFacts:
    """All of a run that its time is planned with, beside options, N and base model.

    Args:
        longest_prompt: in tokens, of all label combinations.
        rows: of the twin; 0 where none are written.
        may_be_fewer: nobody asked for so many rows.
        prompts: that one is chosen from; 0: none is.
        most_records: of an owner that take part in a step; 1 without owners.
    """

    longest_prompt: int
    rows: int
    most_records: int = 1
    may_be_fewer: bool = False
    prompts: int = 0

    @property
    def records_each(self) -> float:
        """Number of records that a unit is supposed to have: half of what it may."""
        return (1 + self.most_records) / 2

    def tokens(self, config: RunConfig, base: BaseModel) -> int:
        """Return how many tokens a record is supposed to have: see the module."""
        room = max(1, context_length(base.model) - self.longest_prompt)
        return self.longest_prompt + -(-3 * min(config.training.max_tokens, room) // 4)

    def speed(self, plan: Plan, config: RunConfig, base: BaseModel, progress: Progress) -> Speed:
        """Measure this machine."""
        tokens = self.tokens(config, base)
        speed = measure(base, config, plan, tokens, self.records_each, progress.say)
        return replace(speed, prompts=self.prompts)


def plan_in_time(
    plan: Plan,
    config: RunConfig,
    base: BaseModel,
    facts: PublicFacts,
    progress: Progress,
) -> tuple[Plan, int, Speed | None]:
    """Return a plan of fewer visits, and of fewer rows, where this one takes longer than it may.

    Args:
        plan: what the options and N ask for.
        config: the run's options. Steps, batch size or rows that they name are never changed.
        base: the base model, which stays as it is.
        facts: about the table.
        progress: is notified of what was changed.

    Returns:
        The plan, the number of rows, and what was measured: nothing where no machine needs longer
        than there is.
    """
    if not may_take_longer(plan, config, base, facts):
        return plan, facts.rows, None
    progress.say("measuring speed on this machine")
    speed = facts.speed(plan, config, base, progress)
    rows = rows_in_time(plan, config, speed, facts)
    chosen = fitted(plan, config, speed, rows)
    if rows < facts.rows:
        progress.say(
            f"{facts.rows:,} rows do not fit into `max_minutes={config.training.max_minutes:g}` "
            f"if texts are long: there are {rows:,}, or more once their lengths were counted; more "
            "can be sampled from the model later"
        )
    if chosen != plan:
        progress.say(
            f"{plan.steps} steps of {plan.batch_size} records do not fit into "
            f"`max_minutes={config.training.max_minutes:g}` with the rows, if texts with their "
            f"prompts have {speed.tokens} tokens: there are {chosen.steps} of "
            f"{chosen.batch_size}; a smaller `max_tokens` makes room for more"
        )
    return chosen, rows, speed


def rows_in_time(plan: Plan, config: RunConfig, speed: Speed, facts: PublicFacts) -> int:
    """Return how many rows there is time for, beside the whole training or in their share of it."""
    limit, cost = config.training.max_minutes, speed.estimate(plan, facts.rows)
    if limit is None or not facts.may_be_fewer:
        return facts.rows
    time = 60 * PLANNED_SHARE * limit
    left = max(ROWS_SHARE * time, time - (cost.seconds - cost.sampling_seconds))
    return max(1, min(facts.rows, int(facts.rows * left / cost.sampling_seconds)))


def rows_by_length(planned: int, usual: int, plan: Plan, speed: Speed, tokens: float) -> int:
    """Return how many rows the time of the planned ones is for, once their length was released.

    Nothing else is: how long the training took depends on private texts.

    Args:
        planned: rows, of texts as long as was supposed.
        usual: rows where time does not matter.
        plan: of the run.
        speed: of this machine, for texts as long as was supposed.
        tokens: of a row with its prompt.
    """
    seconds = speed.estimate(plan, planned).sampling_seconds
    all_of_them = speed.at(max(1, round(tokens))).estimate(plan, usual).sampling_seconds
    return max(planned, min(usual, int(usual * seconds / all_of_them)))


def may_take_longer(plan: Plan, config: RunConfig, base: BaseModel, facts: PublicFacts) -> bool:
    """Return whether the slowest machine there is would need longer than the run may take."""
    limit = config.training.max_minutes
    if limit is None:
        return False
    weights = sum(p.numel() for p in base.model.parameters())
    visits = (
        plan.steps * plan.batch_size * facts.most_records * len(config.policy.policy_class.phases())
    )
    rows = facts.rows + facts.prompts * PROMPT_ROWS
    read = 3 * visits * (1 + WrongPrompts.from_plan(plan, config.training).count) + 2 * rows
    seconds = read * facts.tokens(config, base) * weights / SLOWEST
    return seconds > 60 * PLANNED_SHARE * limit


def fitted(plan: Plan, config: RunConfig, speed: Speed, rows: int) -> Plan:
    """Return a plan of as many visits of records as there is time for beside so many rows.

    No more than `plan` has, and no fewer than `FEWEST_VISITS`.
    """
    training, estimate = config.training, speed.estimate(plan, rows)
    if training.max_minutes is None or not training.is_timed:
        return plan
    rest = estimate.seconds - estimate.training_seconds
    left = 60 * PLANNED_SHARE * training.max_minutes - rest
    if estimate.training_seconds <= left:
        return plan
    usual = plan.steps * plan.batch_size
    visits = max(FEWEST_VISITS, int(usual * left / estimate.training_seconds))
    try:
        return make_plan(plan.records, sized(config, *size_for(plan.records, min(usual, visits))))
    except InputError:  # so few visits at a time drown in noise
        return plan


def late_warnings(plan: Plan, config: RunConfig, speed: Speed, rows: int) -> list[str]:
    """Return what to tell the owner where the time does not suffice."""
    limit, cost = config.training.max_minutes, speed.estimate(plan, rows)
    if limit is None or cost.seconds <= 60 * limit:
        return []
    late = f"the run may take about {minutes(cost.seconds)}, and not `max_minutes={limit:g}`"
    return [f"{late}: {_remedy(cost, limit, rows)}"]


def _remedy(cost: Estimate, limit: float, rows: int) -> str:
    """Name the option that would help most."""
    if cost.sampling_seconds < cost.training_seconds:
        return "training takes most of it; take a smaller `max_tokens`, or fewer and smaller steps"
    fit = int(rows * 60 * PLANNED_SHARE * limit / 2 / cost.sampling_seconds)
    return (
        f"writing {rows} rows alone takes about {minutes(cost.sampling_seconds)}; "
        f"`rows={max(1, fit)}` would take half of the time"
    )


def minutes(seconds: float) -> str:
    """Return a duration as people plan with it.

    >>> minutes(20), minutes(1800), minutes(9000)
    ('20 s', '30 min', '2 h 30 min')
    """
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    hours, rest = divmod(round(seconds / 60), 60)
    return f"{hours} h {rest:02} min" if hours else f"{rest} min"
