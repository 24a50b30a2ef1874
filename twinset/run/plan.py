"""A run's time, planned from public facts and one measured speed, and a plan in words.

`twinset.config.plan` makes the plan's numbers (σ, steps, batch size) from N and the options. This
module fits them into `max_minutes`. Neither reads a record. The length of texts is private, so each
text is assumed to have three quarters of the maximum length, after the longest prompt. The speed is
that of one private step on made-up tokens. The real time of the private phases depends on private
texts, so the time for rows is fixed here, before any text is read.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from twinset.config import RunConfig
from twinset.config.plan import FEW, FEWEST_VISITS, MOST_READ, Plan, make_plan, size_for, sized
from twinset.errors import InputError
from twinset.models.adapters import prepare_trainable
from twinset.models.base_model import BaseModel, context_length
from twinset.models.device import (
    computing_with,
    give_memory_back,
    is_out_of_memory,
    on_free_cores,
    wait_for,
)
from twinset.models.hidden_states import PHASE as TEACHER_PHASE
from twinset.models.layers import choose_execution, copy_in, fuse
from twinset.privacy.accounting import accountant
from twinset.privacy.accounting.events import GaussianRelease
from twinset.privacy.clipping import ClippingEngine, Sequences
from twinset.privacy.mechanism.noise import add_gaussian_to_each_
from twinset.privacy.mechanism.randomness import Randomness
from twinset.progress import Progress
from twinset.sampling import tilt_fitting as tilting
from twinset.table.tokenization import padded
from twinset.training.clipped_sum import MismatchLoss, units_at_once
from twinset.training.distributed import world_size

PLANNED_SHARE = 0.9  # of `max_minutes` (the rest is for reading, accounting and saving)
ROWS_SHARE = 0.4  # of that, at least, if no number of rows is requested
SLOWEST = 2e9  # multiply-adds a second: no machine that can hold the model is slower
SPEED_PHASE, PROBES = "speed measured", 4  # as progress calls it: records, and the noise
PROBE_SECONDS = 2.0  # of one timing: a record takes half as long in a physical batch as alone
WRITING = 2.0  # times as long to write a row as to read it: tokens come one after the other
DRAWN_AGAIN = 0.45  # rows that a teacher rejects, for each row of the twin

LIKE_YOURS = "makes texts more like yours, but classifiers may learn less"  # see learning.md
HARDLY_WORTH = 1_000  # records times ε (measured were 200, 400 and 2,000: see tuning.md)

Phases = tuple[tuple[str, float], ...]  # as progress calls them, in order, with their seconds


@dataclass(frozen=True)
class Workload:
    """Public facts that decide a run's time, in addition to N, options and base model."""

    longest_prompt: int  # in tokens, of all label combinations
    rows: int  # of the twin (0: none are written)
    rows_are_exact: bool = True  # somebody asked for this number of rows, so all are written
    most_records: int = 1  # of an owner that take part in a step (1 without owners)
    prompts: int = 0  # number of prompts to choose from (0: no choice)

    def tokens(self, config: RunConfig, base: BaseModel) -> int:
        """Return the assumed number of tokens of a record, with its prompt."""
        room = max(1, context_length(base.model) - self.longest_prompt)
        return self.longest_prompt + -(-3 * min(config.training.max_tokens, room) // 4)

    def phases(
        self, plan: Plan, config: RunConfig, record_seconds: float, noise_seconds: float
    ) -> Phases:
        """Return the run's phases, given a speed from `measure_step`."""
        privacy, training = config.privacy, config.training
        each = (1 + self.most_records) / 2  # assumed records of a unit: half of the maximum
        # A gradient takes three passes over each of a record's sequences, reading takes one.
        reading = record_seconds / (3 * (1 + MismatchLoss.from_plan(plan, training).count))
        row = WRITING * reading
        drawn = 1 + DRAWN_AGAIN * config.sampling.is_judged(bool(privacy.teacher_share))
        visits = plan.batch_size * each / world_size(config.speed.processes)
        step = visits * record_seconds + noise_seconds
        policy = config.policy.policy_class
        weighed = plan.records * (1 - (1 - plan.sample_rate) ** plan.steps) * policy.weighs
        count, fits = bool(privacy.marginal_share), bool(privacy.teacher_share)
        phases = (
            (tilting.WEIGHT_PHASE, count * min(tilting.WEIGHT_ROWS, plan.records) * row),
            (tilting.PROMPT_PHASE, self.prompts * min(tilting.PROMPT_ROWS, plan.records) * row),
            ("texts weighed", weighed * reading),
            *[("training", plan.steps * step)] * len(policy.phases()),
            (
                tilting.REFERENCE_PHASE,
                (count or fits) * min(tilting.REFERENCE_ROWS, plan.records) * row,
            ),
            (TEACHER_PHASE, fits * min(MOST_READ, plan.records) * each * reading),
            ("rows", self.rows * drawn * row),
        )
        return tuple((name, seconds) for name, seconds in phases if seconds)


def plan_time(
    plan: Plan,
    config: RunConfig,
    base: BaseModel,
    work: Workload,
    progress: Progress,
    always: bool = False,
) -> tuple[Plan, Phases, float | None]:
    """Fit a plan into `max_minutes`: fewer visits of records, and a time limit for rows.

    Values that the options set are never changed. The speed is measured if some machine would need
    longer than `max_minutes`, or if `always` is set. Returns the plan, its phases (none if nothing
    was measured) and the seconds for rows. None means no limit: all rows are written.
    """
    limit, tokens = config.training.max_minutes, work.tokens(config, base)
    # Would the slowest machine there is need longer than the run may take?
    weights = sum(p.numel() for p in base.model.parameters())
    sequences = 1 + MismatchLoss.from_plan(plan, config.training).count
    phases_of_steps = len(plan.policy_class.phases())
    visits = plan.steps * plan.batch_size * work.most_records * phases_of_steps
    read = 3 * visits * sequences + 2 * (work.rows + work.prompts * tilting.PROMPT_ROWS)
    slowest = read * tokens * weights / SLOWEST
    if not always and (limit is None or slowest <= 60 * PLANNED_SHARE * limit):
        return plan, (), None
    progress.say("measuring speed on this machine")
    progress.count(SPEED_PHASE, 0, PROBES)
    speed = measure_step(base, config, plan, tokens, progress)
    phases = work.phases(plan, config, *speed)
    if limit is None:
        return plan, phases, None
    left = 60 * PLANNED_SHARE * limit
    rows = sum(seconds for name, seconds in phases if name == "rows")
    training = sum(seconds for name, seconds in phases if name == "training")
    other = sum(seconds for _, seconds in phases) - training - rows
    # The default number of rows keeps its share of the time, whatever it is expected to need. How
    # fast rows are written is the least certain figure.
    fits = left - other - (rows if work.rows_are_exact else ROWS_SHARE * left)
    fitted = plan
    if config.training.is_timed and training > fits:
        usual = plan.steps * plan.batch_size
        visits = min(usual, max(FEWEST_VISITS, int(usual * fits / training)))
        with suppress(InputError):  # so few visits at a time would drown in noise
            size = size_for(plan.records, visits)
            selections = plan.selection, plan.column_selection, bool(plan.column_noise)
            fitted = make_plan(plan.records, sized(config, *size), *selections)
    if fitted != plan:
        progress.say(
            f"{plan.steps} steps of {plan.batch_size} records do not fit into "
            f"`max_minutes={limit:g}` with the rows. There will be {fitted.steps} of "
            f"{fitted.batch_size}. A smaller `max_tokens` makes room for more."
        )
        phases = work.phases(fitted, config, *speed)
        training = sum(seconds for name, seconds in phases if name == "training")
    clock = None
    if not work.rows_are_exact:
        clock = max(ROWS_SHARE * left, left - other - training)
        rows = min(rows, clock)
        phases = tuple((name, rows if name == "rows" else seconds) for name, seconds in phases)
    total = sum(seconds for _, seconds in phases)
    if total > 60 * limit:
        remedy = "a smaller `max_tokens`"
        if work.rows_are_exact and rows > training:
            remedy = "fewer rows"
        elif training:
            remedy += ", or fewer steps"
        elif work.prompts:
            remedy += ", or name a `prompt`"
        progress.warn(
            f"the run may take about {say_duration(total)}, longer than `max_minutes={limit:g}`. "
            f"Take {remedy}."
        )
    return fitted, phases, clock


def measure_step(
    base: BaseModel, config: RunConfig, plan: Plan, tokens: int, progress: Progress
) -> tuple[float, float]:
    """Time one private step on made-up records of `tokens` tokens, with a copy of the model.

    Returns the seconds to clip one record's gradient in a physical batch, and those of one release.
    """
    device, span = base.model.device, context_length(base.model)
    tokens = max(4, min(tokens, span - 1))
    loss = MismatchLoss.from_plan(plan, config.training)
    sequences, length = 1 + loss.count, padded(tokens, span)
    units = units_at_once(config.speed, plan.batch_size, sequences * length)
    generator = torch.Generator().manual_seed(0)  # a run's draws do not depend on a probe
    shape = units * sequences, length
    ids = torch.randint(base.model.config.vocab_size, shape, generator=generator)
    mask = torch.zeros_like(ids, dtype=torch.bool)
    mask[:, max(1, tokens // 4) : tokens] = True  # the text, after a prompt
    processes = config.speed.processes
    threads = max(1, (os.cpu_count() or 1) // processes)
    dtype, execution = choose_execution(config)
    model = prepare_trainable(fuse(copy_in(base.model, dtype)), config.training)
    engine = ClippingEngine(model, config.privacy.max_grad_norm, execution)

    done = 0

    def add(records: int) -> float:
        nonlocal done
        began, rows = time.monotonic(), records * sequences
        engine.add(Sequences(ids[:rows], mask[:rows], sequences), loss)
        wait_for(device)
        progress.count(SPEED_PHASE, done := done + 1, PROBES)
        return (time.monotonic() - began) / records

    try:
        with on_free_cores(progress.say) if processes == 1 else computing_with(threads):
            add(1)  # warms up
            record_seconds = add(1)
            together = min(units, max(1, int(PROBE_SECONDS / max(record_seconds, 1e-9))))
            while together > 1:
                try:
                    record_seconds = min(record_seconds, add(together))
                    break
                except RuntimeError as error:  # a run would halve its physical batch as well
                    if not is_out_of_memory(error):
                        raise
                    together //= 2
            began = time.monotonic()
            add_gaussian_to_each_(engine.sums, 1.0, Randomness.from_os())
            noise_seconds = time.monotonic() - began
            progress.count(SPEED_PHASE, PROBES, PROBES)
    finally:
        engine.close()
        give_memory_back(device)
    return record_seconds, noise_seconds


def say_duration(seconds: float) -> str:
    """Format a duration for a plan.

    >>> say_duration(20), say_duration(1800), say_duration(9000)
    ('20 s', '30 min', '2 h 30 min')
    """
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    hours, rest = divmod(round(seconds / 60), 60)
    return f"{hours} h {rest:02} min" if hours else f"{rest} min"


# -- what people are shown -----------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class PlanReport:
    """A plan as shown to people: its numbers, its time, and what other policies need."""

    plan: Plan
    phases: Phases = ()  # none where nothing was measured
    policies: Mapping[str, Plan | None] = field(default_factory=dict)  # None: too few records
    owned: int | None = None  # records that owners have, where these are protected
    most: int = 1  # records that an owner may have in a count (1 without owners)

    @property
    def seconds(self) -> float:
        """Time of the whole run on this machine."""
        return sum(seconds for _, seconds in self.phases)

    def budget_of(self, plan: Plan) -> str:
        """Return ε in words, per record or per owner."""
        if plan.target_epsilon is None:
            return "none: no noise, no guarantee"
        unit = "record" if self.owned is None else "owner"
        return plan.policy_class.budget.format(
            target=plan.target_epsilon,
            spent=accountant.up_decimals(plan.epsilon),
            highest=plan.highest_epsilon,
            unit=unit,
        )

    def __str__(self) -> str:
        """Return the plan as text."""
        plan = self.plan
        lines = [f"records N              {plan.records:,}"]
        if self.owned is not None:
            lines = [f"owners N               {plan.records:,}, of {self.owned:,} records"]
        lines.append(f"budget                 {self.budget_of(plan)}")
        if plan.target_epsilon is not None:
            lines[-1] += f", δ = {accountant.up_digits(plan.target_delta)}"
        events = plan.events_after(plan.steps)
        if plan.group_size is not None and events:
            spent = accountant.group_epsilon(events, plan.target_delta, plan.group_size)
            says = spent + math.log(plan.target_delta) < 0  # as in the guarantee's words
            line = f"{f'{plan.group_size} records together':<23}ε = {accountant.up_decimals(spent)}"
            lines.append(line if says else f"{line}: no guarantee")
        phases = plan.policy_class.phases()
        if plan.steps:
            reads = ", then ".join(each.reads for each in phases)
            lines += [
                f"noise policy           {plan.policy[0]}, {plan.policy[1]} form",
                *[f"phases                 {reads}, {plan.steps} steps each"] * (len(phases) > 1),
                f"noise multiplier σ     {plan.noise_multiplier:.3f}",
                f"batch L, rate q        {plan.batch_size}, {plan.sample_rate:.4g}",
                f"steps T                {plan.steps}",
                f"learning rate, λ       {plan.learning_rate:g}, {plan.mismatch_weight:g}",
            ]
        else:
            lines.append("steps T                0: nothing is trained")
        noise = plan.label_count_noise * self.most
        lines.append(f"noise on label counts  ± {noise:.1f} records (one standard deviation)")
        if plan.selection is not None:
            unit = "records" if self.owned is None else "records of owners"
            least, noise = plan.selection.threshold, plan.selection.deviation
            lines.append(f"label values           held by {least} {unit} or more, ± {noise:.1f}")
        once = [r for r in plan.releases if isinstance(r, GaussianRelease)]
        lines += [f"{r.what:<23}σ = {r.noise_multiplier:.2f}, once" for r in once[1:]]
        if self.phases:
            parts = ", ".join(f"{name} {say_duration(seconds)}" for name, seconds in self.phases)
            total = say_duration(self.seconds)
            lines.append(f"time in all            about {total} on this machine: {parts}")
        for name, other in self.policies.items():
            line = "would need more records"
            if other is not None:
                count = len(other.policy_class.phases())
                more = f", {count} times the steps" if count > 1 else ""
                line = f"σ = {other.noise_multiplier:.3f}{more}, {self.budget_of(other)}"
            lines.append(f"{f'`noise_policy={name}`':<27}{line}")
        return "\n".join(lines)

    __repr__ = __str__  # a notebook shows it as a text, too

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        plans = {
            name: None if plan is None else asdict(plan) | {"sample_rate": plan.sample_rate}
            for name, plan in {"": self.plan, **self.policies}.items()
        }
        own, phases = plans.pop("") or {}, [list(phase) for phase in self.phases]
        return {**own, "seconds": self.seconds, "phases": phases, "policies": plans}


def size_notes(plan: Plan, batch_size: int | None = None) -> Iterator[str]:
    """Yield notes for the owner on N and ε, which are public, and on the requested batch size."""
    if plan.steps and batch_size is not None and batch_size > plan.batch_size:
        yield (
            f"`batch_size={batch_size}` is more than the {plan.records:,} there are to protect, "
            "so each step uses all"
        )
    epsilon = plan.target_epsilon
    if epsilon is None:
        return
    if not plan.policy_class.needs_steps and plan.records * epsilon < FEW:
        yield f"{plan.records} records are few for ε = {epsilon:g}: " + (
            f"training {LIKE_YOURS}. `steps=0` skips it."
            if plan.steps
            else "no fine-tuning. Noisy word counts and a private classifier get all of ε. "
            f"`steps=8` {LIKE_YOURS}."
        )
    if plan.records * epsilon < HARDLY_WORTH:
        yield (
            "the twin may teach nothing about the labels. With 50 records at ε = 8 it taught no "
            "more than text of the base model without private data. An evaluation compares both."
        )
