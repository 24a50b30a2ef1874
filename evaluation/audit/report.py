"""`twinset audit mechanism`, and `python -m evaluation.audit.report`: every audit many times over.

The latter writes the table of evaluation/audit/results/mechanism.md, from made-up data only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from twinset.bounds import bounded, check_options
from twinset.config import PolicyConfig
from twinset.errors import InputError
from twinset.files.atomic import write_text
from twinset.models.device import AUTO, check_device
from twinset.policies import POLICIES

from ..findings import about, markdown_table
from .faults import FAULTS, RELEASE_FAULTS
from .mechanism import (
    CONFIDENCE,
    RELEASES,
    Finding,
    Step,
    Target,
    audit_release,
    audit_step,
    worst_case,
)

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class MechanismAudit:
    """What to attack, and how hard: a policy's steps, and the one-time releases of every run.

    With a fault it attacks only the mechanism that the fault breaks.
    """

    policy: PolicyConfig = PolicyConfig()
    fault: str | None = None  # a key of `FAULTS` or `RELEASE_FAULTS`
    noise_multiplier: float = bounded(1.0, 0.01, 100)  # σ
    steps: int = bounded(6, 1, 10_000)  # of the short run
    sample_rate: float = bounded(0.5, 1e-6, 0.999)  # q, of the short run
    trials: int = bounded(20_000, 100, 10**8)  # outputs with the target, and without
    # A small δ leaves few outputs beyond the threshold, and so a weak bound.
    delta: float = bounded(0.05, 1e-9, 0.999)
    device: str = AUTO  # On a GPU the noise is another cipher's.

    def __post_init__(self) -> None:
        """Refuse an unknown fault, numbers out of range, and a missing device."""
        check_options(self)
        check_device(self.device, 1)
        known = (*FAULTS, *RELEASE_FAULTS)
        if self.fault is not None and self.fault not in known:
            raise InputError(f"`fault={self.fault}`: is none of {', '.join(known)}")

    @property
    def weights(self) -> tuple[float, ...]:
        """The privacy weights of the records through which a step is attacked."""
        return () if self.fault in RELEASE_FAULTS else self.policy.policy_class.attacked_weights

    @property
    def outputs(self) -> int:
        """How many outputs `on_outputs` will report."""
        releases = len(RELEASES) if self.fault is None else self.fault in RELEASE_FAULTS
        return self.trials * (4 * len(self.weights) + 2 * releases)

    def run_steps(
        self, on_outputs: Callable[[int], object] = lambda count: None, is_single: bool = False
    ) -> list[Finding]:
        """Return the findings for a single step and for a run, by the target's privacy weight."""
        findings = []
        for weight in self.weights:
            target = Target(self.policy, self.noise_multiplier, weight)
            step = FAULTS.get(self.fault or "", Step)(worst_case(self.device), target)
            try:
                for many in ((),) if is_single else ((), (self.steps, self.sample_rate)):
                    taken = step, self.trials, self.delta, on_outputs
                    findings.append(audit_step(*taken, *many))
            finally:
                step.engine.close()
        return findings

    def run_releases(
        self, on_outputs: Callable[[int], object] = lambda count: None
    ) -> list[Finding]:
        """Return the findings for the one-time releases of a run, with any policy."""
        kinds = RELEASES if self.fault is None else RELEASE_FAULTS
        return [
            audit_release(kind(self.noise_multiplier), self.trials, self.delta, on_outputs)
            for name, kind in kinds.items()
            if self.fault in (None, name)
        ]

    def to_dict(self, findings: list[Finding]) -> dict[str, Any]:
        """Return the attacked mechanisms and the findings as plain values for JSON."""
        found = [
            asdict(finding)
            | {"holds": finding.holds}
            # JSON does not know infinity, which stands for no theorem.
            | ({"guaranteed": "none"} if finding.guaranteed == math.inf else {})
            for finding in findings
        ]
        return asdict(self) | {"confidence": CONFIDENCE, "findings": found}


def finding_line(finding: Finding) -> str:
    """Return one line for the terminal.

    >>> finding_line(Finding("one step", 2.32, 1.6, 0.01, 20000))
    'one step: claimed epsilon 2.32, shown at least 1.60 (delta 0.01, 2 × 20,000 outputs): holds'
    """
    theorem, guaranteed = "", finding.guaranteed
    if guaranteed is not None:
        theorem = " (the claim is nominal, and no theorem covers this form)"
        if math.isfinite(guaranteed):
            theorem = f" (the claim is nominal, a theorem covers epsilon {guaranteed:.2f})"
    return (
        f"{finding.what}: claimed epsilon {finding.claimed:.2f}, shown at least "
        f"{finding.lower_bound:.2f} (delta {finding.delta:g}, 2 × {finding.trials:,} outputs): "
        + ("holds" if finding.holds else "REFUTED")
        + theorem
    )


def main(
    repetitions: Annotated[int, typer.Option(min=1)] = 20,
    trials: Annotated[int, typer.Option(min=100)] = 3000,
    fault_trials: Annotated[int, typer.Option(min=100)] = 20_000,
    delta: float = 0.05,
    output: Path = RESULTS / "mechanism.md",
) -> None:
    """Audit everything many times over. This takes some minutes on one core."""
    # Every registered policy, once for each form that differs, then what a run releases once, and
    # last what is broken on purpose, by a single step.
    cases: dict[str, Callable[[], list[Finding]]] = {}
    for policy in dict.fromkeys(POLICIES.values()):
        attacked = PolicyConfig(policy.name, policy.form)
        audit = MechanismAudit(attacked, trials=trials, delta=delta)
        cases[f"{policy.name}, {policy.form}"] = audit.run_steps
    cases["releases"] = MechanismAudit(trials=trials, delta=delta).run_releases
    for fault in (*FAULTS, *RELEASE_FAULTS):
        audit = MechanismAudit(fault=fault, trials=fault_trials, delta=delta)
        single = partial(audit.run_steps, is_single=True)
        cases[f"fault: {fault}"] = single if fault in FAULTS else audit.run_releases
    rows = []
    for case, run in cases.items():
        typer.echo(case, err=True)
        rounds = [run() for _ in range(repetitions)]
        for found in zip(*rounds, strict=True):
            bounds, claimed = [finding.lower_bound for finding in found], found[0].claimed
            covered = claimed if found[0].guaranteed is None else found[0].guaranteed
            is_unknown = case.startswith("fault") or math.isinf(covered)
            held = f"{sum(finding.holds for finding in found)} of {repetitions}"
            shown = f"{median(bounds):.2f}, {max(bounds):.2f}"
            covers = "nothing" if is_unknown else f"{covered:.2f}"
            rows.append([case, found[0].what, f"{claimed:.2f}", shown, held, covers])
    header = "step | experiment | claimed ε | shown: median, most | claim held | a theorem covers"
    made_on = about()
    made = (
        f"σ = 1, δ = {delta:g}. Lower bounds at 95 % confidence. {trials:,} outputs each with "
        f"and without the target, of faults {fault_trials:,}. {made_on['machine']}. "
        f"{made_on['versions']}."
    )
    command = "    python -m evaluation.audit.report"
    table = markdown_table(header.split(" | "), rows, 2)
    write_text(output, "\n".join([*table, "", made, "", command, ""]))


if __name__ == "__main__":
    typer.run(main)
