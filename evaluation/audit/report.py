"""`twinset audit mechanism`: all experiments, and what they say of the claims."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from evaluation.audit.faults import FAULTS, RELEASE_FAULTS
from evaluation.audit.mechanism import (
    CONFIDENCE,
    RELEASES,
    Finding,
    Release,
    Step,
    Target,
    audit_release,
    audit_run,
    audit_step,
    worst_case,
)
from twinset.bounds import bounded, check_options
from twinset.config import PolicyConfig
from twinset.errors import InputError
from twinset.models.device import AUTO, check_device


def _ignore() -> None:
    """Report no progress."""


@dataclass(frozen=True)
class MechanismAudit:
    """What to attack, and how hard.

    Example:
        `MechanismAudit(PolicyConfig("adaptive"), trials=2000).run()` attacks adaptive noise, and
        what every run releases once.

    Args:
        policy: whose step, in which form, with which options.
        fault: a key of `FAULTS` or `RELEASE_FAULTS`: attack a step, or a release, that is broken on
            purpose, and nothing else. `None`: the real ones.
        noise_multiplier: σ.
        steps: of the short run.
        sample_rate: q, of the short run.
        trials: outputs with the target, and the same number without.
        delta: δ. A small one leaves few outputs beyond the threshold, and so a weak bound.
        device: that computes the step. On a GPU its noise is another cipher's.
    """

    policy: PolicyConfig = PolicyConfig()
    fault: str | None = None
    noise_multiplier: float = bounded(1.0, 0.01, 100)
    steps: int = bounded(6, 1, 10_000)
    sample_rate: float = bounded(0.5, 1e-6, 0.999)
    trials: int = bounded(20_000, 100, 10**8)
    delta: float = bounded(0.05, 1e-9, 0.999)
    device: str = AUTO

    def __post_init__(self) -> None:
        """Refuse a fault that is none, numbers out of range, and a device that is not there."""
        check_options(self)
        check_device(self.device, 1)
        known = (*FAULTS, *RELEASE_FAULTS)
        if self.fault is not None and self.fault not in known:
            raise InputError(f"`fault={self.fault}`: is none of {', '.join(known)}")

    def run(self, on_output: Callable[[], object] = _ignore) -> list[Finding]:
        """Return what was found of steps and of releases."""
        return [*self.run_steps(on_output), *self.run_releases(on_output)]

    def run_steps(self, on_output: Callable[[], object] = _ignore) -> list[Finding]:
        """Return what was found for one step and for a run, by the target's privacy weight."""
        kind = FAULTS[self.fault] if self.fault in FAULTS else Step
        findings = []
        for weight in self._weights:
            step = kind(worst_case(self.device), Target(self.policy, self.noise_multiplier, weight))
            taken = self.trials, self.delta, on_output
            try:
                findings.append(audit_step(step, *taken))
                findings.append(audit_run(step, self.steps, self.sample_rate, *taken))
            finally:
                step.engine.close()
        return findings

    def run_releases(self, on_output: Callable[[], object] = _ignore) -> list[Finding]:
        """Return what was found of what a run releases once, whatever its policy."""
        releases = [kind(self.noise_multiplier) for kind in self._releases]
        return [audit_release(one, self.trials, self.delta, on_output) for one in releases]

    @property
    def outputs(self) -> int:
        """How often `on_output` will be called."""
        return self.trials * (4 * len(self._weights) + 2 * len(self._releases))

    @property
    def _weights(self) -> tuple[float, ...]:
        """The privacy weights of the records through which the policy is attacked."""
        return () if self.fault in RELEASE_FAULTS else self.policy.policy_class.attacked_weights

    @property
    def _releases(self) -> list[type[Release]]:
        if self.fault in FAULTS:
            return []
        return [RELEASE_FAULTS[self.fault]] if self.fault else list(RELEASES.values())

    def to_dict(self, findings: list[Finding]) -> dict[str, Any]:
        """Return plain values: what was attacked, and what was found."""
        found = [
            asdict(finding)
            | {"holds": finding.holds, "guaranteed": guaranteed_for_json(finding.guaranteed)}
            for finding in findings
        ]
        return asdict(self) | {"confidence": CONFIDENCE, "findings": found}


def finding_line(finding: Finding) -> str:
    """Return one line for the terminal.

    >>> finding_line(Finding("one step", 2.32, 1.6, 0.01, 20000))
    'one step: claimed epsilon 2.32, shown at least 1.60 (delta 0.01, 2 × 20,000 outputs): holds'
    """
    theorem, guaranteed = "", finding.guaranteed
    if guaranteed is not None and math.isinf(guaranteed):
        theorem = "; the claim is nominal, and no theorem covers this form"
    elif guaranteed is not None:
        theorem = f"; the claim is nominal, a theorem covers epsilon {guaranteed:.2f}"
    return (
        f"{finding.what}: claimed epsilon {finding.claimed:.2f}, shown at least "
        f"{finding.lower_bound:.2f} (delta {finding.delta:g}, 2 × {finding.trials:,} outputs): "
        + ("holds" if finding.holds else "REFUTED")
        + theorem
    )


def guaranteed_for_json(guaranteed: float | None) -> float | str | None:
    """Return the ε of a theorem, or "none" for infinity, which JSON does not know."""
    return "none" if guaranteed is not None and math.isinf(guaranteed) else guaranteed
