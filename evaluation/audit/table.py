"""`python -m evaluation.audit.table`: every policy and every fault audited many times over.

What the table of docs/mechanism-audit.md is made of. Made-up data only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from evaluation.audit.faults import FAULTS, RELEASE_FAULTS
from evaluation.audit.mechanism import Finding, Step, Target, audit_step, worst_case
from evaluation.audit.report import MechanismAudit, guaranteed_for_json
from evaluation.results import ResultsStore, about, markdown_table, run_as_command
from twinset.config import PolicyConfig
from twinset.files.atomic import write_text
from twinset.files.environment import shell_line

RESULTS = Path(__file__).parent / "results"
POLICIES = (
    PolicyConfig("uniform"),
    PolicyConfig("adaptive"),
    PolicyConfig("selective"),
    PolicyConfig("importance"),
    PolicyConfig("adaptive", "published"),
    PolicyConfig("importance", "published"),
)


@dataclass(frozen=True)
class Effort:
    """How often, with how many outputs, and at which δ."""

    repetitions: int
    trials: int
    fault_trials: int
    delta: float


def audits(effort: Effort) -> dict[str, Callable[[], list[dict[str, Any]]]]:
    """Return what audits each case: policies in full, faulty steps by a single one."""
    made: dict[str, Callable[[], list[Finding]]] = {}
    for policy in POLICIES:
        audit = MechanismAudit(policy, trials=effort.trials, delta=effort.delta)
        made[f"{policy.noise_policy}, {policy.policy_form}"] = audit.run_steps
    made["releases"] = MechanismAudit(trials=effort.trials, delta=effort.delta).run_releases
    for name, kind in FAULTS.items():
        made[f"fault: {name}"] = partial(_fault, kind, effort)
    for name in RELEASE_FAULTS:
        broken = MechanismAudit(fault=name, trials=effort.fault_trials, delta=effort.delta)
        made[f"fault: {name}"] = broken.run_releases
    return {case: partial(_repeated, make, effort.repetitions) for case, make in made.items()}


def _fault(kind: type[Step], effort: Effort) -> list[Finding]:
    step = kind(worst_case(), Target())
    try:
        return [audit_step(step, effort.fault_trials, effort.delta, lambda: None)]
    finally:
        step.engine.close()


def _repeated(make: Callable[[], list[Finding]], repetitions: int) -> list[dict[str, Any]]:
    """Return each experiment of a case, with a lower bound for each repetition.

    Its `guaranteed` is ε of a theorem, where the claim is nominal; "none" where there is none.
    """
    rounds = [make() for _ in range(repetitions)]
    return [
        {
            "what": found[0].what,
            "claimed": found[0].claimed,
            "guaranteed": guaranteed_for_json(found[0].guaranteed),
            "bounds": [finding.lower_bound for finding in found],
        }
        for found in zip(*rounds, strict=True)
    ]


def as_markdown(store: ResultsStore) -> str:
    """Return the table with how it was made."""
    effort = store.settings
    header = "step | experiment | claimed ε | shown: median, most | claim held | a theorem covers"
    rows = [
        _cells(str(case), line)
        for (case,), row in store.rows.items()
        for line in row["experiments"]
    ]
    made = (
        f"σ = 1, δ = {effort['delta']:g}; lower bounds at 95 % confidence; {effort['trials']:,} "
        f"outputs with the target and as many without, of faults {effort['fault_trials']:,}. "
        f"{effort['about']['machine']}; {effort['about']['versions']}"
    )
    commands = [f"    {command}" for command in store.commands]
    return "\n".join([*markdown_table(header.split(" | "), rows, 2), "", made, "", *commands, ""])


def _cells(case: str, line: dict[str, Any]) -> list[str]:
    bounds, claimed, guaranteed = line["bounds"], line["claimed"], line["guaranteed"]
    held = sum(bound <= claimed for bound in bounds)
    shown = f"{median(bounds):.2f}, {max(bounds):.2f}"
    covered = claimed if guaranteed is None else guaranteed
    unknown = case.startswith("fault") or covered == "none"
    theorem = "nothing" if unknown else f"{covered:.2f}"
    return [case, line["what"], f"{claimed:.2f}", shown, f"{held} of {len(bounds)}", theorem]


def main(
    repetitions: Annotated[int, typer.Option(min=1)] = 20,
    trials: Annotated[int, typer.Option(min=100)] = 3000,
    fault_trials: Annotated[int, typer.Option(min=100)] = 20_000,
    delta: float = 0.05,
    output: Path = RESULTS / "mechanism.json",
) -> None:
    """Audit everything many times over: about an hour on one core. Resumes from its output."""
    effort = Effort(repetitions, trials, fault_trials, delta)
    settings = asdict(effort) | {"about": about()}
    store = ResultsStore.open(
        output, settings, shell_line("python", "-m", "evaluation.audit.table")
    )
    cases = audits(effort)
    for turn, (case,) in store.missing([(case,) for case in cases]):
        typer.echo(f"{turn}: {case}", err=True)
        store.add((case,), {"experiments": cases[str(case)]()})
    write_text(output.with_suffix(".md"), as_markdown(store))


if __name__ == "__main__":
    run_as_command(main)
