"""`python -m evaluation.audit.table`: every policy and every fault audited many times over.

What the table of docs/mechanism-audit.md is made of. Made-up data only.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from evaluation.audit.faults import FAULTS, RELEASE_FAULTS
from evaluation.audit.mechanism import Finding, Target, audit_step, worst_case
from evaluation.audit.report import MechanismAudit, guaranteed_for_json
from evaluation.findings import ResultsStore, about, markdown_table, run_as_command
from twinset.config import PolicyConfig
from twinset.files.atomic import write_text
from twinset.files.environment import shell_line
from twinset.policies import forms_of, policy_names

RESULTS = Path(__file__).parent / "results"
# Every registered policy, once for each form that differs.
POLICIES = tuple(
    PolicyConfig(name, policy.form) for name in policy_names() for policy in forms_of(name)
)


@dataclass(frozen=True)
class Effort:
    """How often, with how many outputs, and at which δ."""

    repetitions: int
    trials: int
    fault_trials: int
    delta: float


def audit_case(case: str, effort: Effort) -> list[Finding]:
    """Audit one case once: a policy in full, all releases, or a fault with a single step."""
    kind, _, name = case.partition(": ")
    usual: dict[str, Any] = {"trials": effort.trials, "delta": effort.delta}
    if kind == "fault" and name in FAULTS:
        step = FAULTS[name](worst_case(), Target())
        try:
            return [audit_step(step, effort.fault_trials, effort.delta, lambda: None)]
        finally:
            step.engine.close()
    if kind == "fault":
        more = usual | {"trials": effort.fault_trials}
        return MechanismAudit(fault=name, **more).run_releases()
    if kind == "releases":
        return MechanismAudit(**usual).run_releases()
    policy: dict[str, Any] = dict(
        zip(("noise_policy", "policy_form"), case.split(", "), strict=False)
    )
    return MechanismAudit(PolicyConfig(**policy), **usual).run_steps()


def as_markdown(store: ResultsStore) -> str:
    """Return the table with how it was made."""
    effort = store.settings
    header = "step | experiment | claimed ε | shown: median, most | claim held | a theorem covers"
    rows = []
    for (case,), row in store.rows.items():
        for line in row["experiments"]:
            bounds, claimed, guaranteed = line["bounds"], line["claimed"], line["guaranteed"]
            held = sum(bound <= claimed for bound in bounds)
            shown = f"{median(bounds):.2f}, {max(bounds):.2f}"
            covered = claimed if guaranteed is None else guaranteed
            unknown = str(case).startswith("fault") or covered == "none"
            theorem = "nothing" if unknown else f"{covered:.2f}"
            how_often = f"{held} of {len(bounds)}"
            rows.append([str(case), line["what"], f"{claimed:.2f}", shown, how_often, theorem])
    made = (
        f"σ = 1, δ = {effort['delta']:g}; lower bounds at 95 % confidence; {effort['trials']:,} "
        f"outputs with the target and as many without, of faults {effort['fault_trials']:,}. "
        f"{effort['about']['machine']}; {effort['about']['versions']}"
    )
    commands = [f"    {command}" for command in store.commands]
    return "\n".join([*markdown_table(header.split(" | "), rows, 2), "", made, "", *commands, ""])


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
    cases = [f"{policy.noise_policy}, {policy.policy_form}" for policy in POLICIES]
    cases += ["releases", *(f"fault: {name}" for name in (*FAULTS, *RELEASE_FAULTS))]
    for turn, (case,) in store.missing([(case,) for case in cases]):
        typer.echo(f"{turn}: {case}", err=True)
        rounds = [audit_case(str(case), effort) for _ in range(repetitions)]
        experiments = [
            {
                "what": found[0].what,
                "claimed": found[0].claimed,
                # ε of a theorem, where the claim is nominal
                "guaranteed": guaranteed_for_json(found[0].guaranteed),
                "bounds": [finding.lower_bound for finding in found],
            }
            for found in zip(*rounds, strict=True)
        ]
        store.add((case,), {"experiments": experiments})
    write_text(output.with_suffix(".md"), as_markdown(store))


if __name__ == "__main__":
    run_as_command(main)
