"""Plans of one run by how much time there is, and what as much training was worth elsewhere.

The figures are public, and few: what nobody measured has none.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twinset.config import RunConfig
from twinset.config.plan import FEWEST_VISITS, Plan, make_plan, size_for, sized
from twinset.errors import InputError
from twinset.run.estimate import Estimate, Speed
from twinset.run.plan_in_time import PublicFacts, fitted, minutes


@dataclass(frozen=True)
class Choice:
    """A plan with what it costs and buys.

    Args:
        name: "untrained", "quick", "usual" or "best".
        plan: the plan.
        estimate: its cost.
        rows: of the twin, where they differ from the usual; None: they are what was asked for.
        worth: what as much training was worth where that was measured, else empty.
    """

    name: str
    plan: Plan
    estimate: Estimate
    worth: str
    rows: int | None = None

    def lines(self, command: str = "") -> list[str]:
        """Return it for people, with what asks for it: a command's further options."""
        options, noise = "`steps=0`", "ε for counts and teacher alone"
        if self.plan.steps:
            size = f"`steps={self.plan.steps}` `batch_size={self.plan.batch_size}`"
            options = f"{size} `learning_rate={self.plan.learning_rate:.3g}`"
            noise = f"σ = {self.plan.noise_multiplier:.3f}"
        rows = f" `rows={self.rows}`" if self.rows else ""
        worth = f"; {self.worth}" if self.worth else ""
        return [
            f"{self.name:<23}about {minutes(self.estimate.seconds)}, {noise}{worth}",
            f"  {f'{command} {options}{rows}'.strip()}",
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {
            "steps": self.plan.steps,
            "batch_size": self.plan.batch_size,
            "learning_rate": self.plan.learning_rate,
            "noise_multiplier": self.plan.noise_multiplier,
            "rows": self.rows,
            "seconds": self.estimate.seconds,
            "worth": self.worth,
        }


def choices(
    records: int, config: RunConfig, speed: Speed, facts: PublicFacts, tokens: int | None = None
) -> list[Choice]:
    """Return the plans that N and the time ask for, whatever steps the options name.

    `untrained` takes no step, as a run does by itself where records are few for ε; `usual` is what
    it takes elsewhere; `quick` has a quarter of its visits of records, and of rows that nobody
    asked for, and `best` four times the visits of a run that has the time. What would drown in
    noise, or says what another says, is left out. Which plans these are follows from `speed`, so
    from public facts.

    Args:
        records: N.
        config: the run's options.
        speed: of this machine, for the length that a plan is chosen with.
        facts: with the rows that there is time for.
        tokens: length for which their times are shown; None: the same.
    """
    free = sized(config, None, None)
    try:
        whole = make_plan(records, free)
    except InputError:
        return []
    usual, rows = fitted(whole, free, speed, facts.rows), facts.rows
    visits = usual.steps * usual.batch_size
    sizes = {
        "untrained": (0, usual.batch_size),
        "quick": size_for(records, min(visits, max(FEWEST_VISITS, visits // 4))),
        "usual": (usual.steps, usual.batch_size),
        "best": size_for(records, 4 * whole.steps * whole.batch_size),
    }
    shown = speed if tokens is None else speed.at(tokens)
    found: list[Choice] = []
    for name, size in sizes.items():
        try:
            plan = make_plan(records, sized(config, *size))
        except InputError:  # or of a noise policy, which has steps
            continue
        few = max(1, rows // 4) if name == "quick" and facts.may_be_fewer else None
        cost = shown.estimate(plan, few or rows)
        found.append(Choice(name, plan, cost, worth(plan, config), few))
    usual_plan = next((choice.plan for choice in found if choice.name == "usual"), None)
    return [choice for choice in found if choice.name == "usual" or choice.plan != usual_plan]


def worth(plan: Plan, config: RunConfig) -> str:
    """Return what was measured with as many visits of records, or up to half as many."""
    table, visits = published(), plan.steps * plan.batch_size
    if config.training.base_model != table["base_model"]:
        return ""
    near = [
        (one["steps"] * one["batch_size"], one["accuracy"])
        for one in table["measured"]
        if visits / 2 <= one["steps"] * one["batch_size"] <= visits
    ]
    if not near:
        return ""
    seen, accuracy = max(near)
    return (
        f"{seen:,} visits gave {accuracy:.3f}, and no private data "
        f"{table['without_private_data']:.3f}, {table['where']}"
    )


def published() -> dict[str, Any]:
    """Return the figures that docs/tuning.md shows."""
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
