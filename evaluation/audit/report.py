"""`twinset audit mechanism`: both experiments, and what they say of the claim."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from evaluation.audit.faults import FAULTS
from evaluation.audit.lower_bound import CONFIDENCE
from evaluation.audit.mechanism import Finding, Step, Target, audit_run, audit_step
from evaluation.audit.neighbours import worst_case
from twinset.config import PolicyConfig
from twinset.config.bounds import bounded, check_options
from twinset.errors import InputError
from twinset.models.device import AUTO, check_device


@dataclass(frozen=True)
class MechanismAudit:
    """What to attack, and how hard.

    Args:
        policy: whose step, in which form, with which options.
        fault: a key of `FAULTS`: attack a step that is broken on purpose. `None`: the real one.
        noise_multiplier: σ.
        steps: of the short run.
        sample_rate: q, of the short run.
        trials: outputs with the target, and as many without.
        delta: δ. A small one leaves few outputs beyond the threshold, and so a weak bound.
        device: that computes the step; on a GPU its noise is another cipher's.
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
        if self.fault is not None and self.fault not in FAULTS:
            raise InputError(f"--fault: {self.fault!r} is none of {', '.join(FAULTS)}")

    def run(self, on_output: Callable[[], object] = lambda: None) -> list[Finding]:
        """Return what was found for one step and for a run, by the target's privacy weight."""
        return [finding for weight in self._weights for finding in self._attack(weight, on_output)]

    def _attack(self, weight: float, on_output: Callable[[], object]) -> list[Finding]:
        kind = FAULTS[self.fault] if self.fault else Step
        step = kind(worst_case(self.device), Target(self.policy, self.noise_multiplier, weight))
        try:
            return [
                audit_step(step, self.trials, self.delta, on_output),
                audit_run(step, self.steps, self.sample_rate, self.trials, self.delta, on_output),
            ]
        finally:
            step.engine.close()

    @property
    def outputs(self) -> int:
        """How often `on_output` will be called."""
        return 4 * self.trials * len(self._weights)

    @property
    def _weights(self) -> tuple[float, ...]:
        """The most and the least private record, and of published noise the one that halts it."""
        if self.policy.noise_policy != "adaptive":
            return (1.0,)  # which knows no difference
        return (1.0, 0.0) if self.policy.weighs else (0.0,)

    def to_dict(self, findings: list[Finding]) -> dict[str, Any]:
        """Return plain values: what was attacked, and what was found."""
        found = [
            asdict(finding)
            | {"holds": finding.holds, "guaranteed": guaranteed_for_json(finding.guaranteed)}
            for finding in findings
        ]
        return asdict(self) | {"confidence": CONFIDENCE, "findings": found}


def finding_line(finding: Finding) -> str:
    """Return one line.

    >>> finding_line(Finding("one step", 2.32, 1.6, 0.01, 20000))
    'one step: claimed epsilon 2.32, shown at least 1.60 (delta 0.01, 2 × 20,000 outputs): holds'
    """
    return (
        f"{finding.what}: claimed epsilon {finding.claimed:.2f}, shown at least "
        f"{finding.lower_bound:.2f} (delta {finding.delta:g}, 2 × {finding.trials:,} outputs): "
        + ("holds" if finding.holds else "REFUTED")
        + _theorem(finding.guaranteed)
    )


def _theorem(guaranteed: float | None) -> str:
    if guaranteed is None:
        return ""
    if math.isinf(guaranteed):
        return "; the claim is nominal, and no theorem covers this form"
    return f"; the claim is nominal, a theorem covers epsilon {guaranteed:.2f}"


def guaranteed_for_json(guaranteed: float | None) -> float | str | None:
    """Return the ε of a theorem; "none" for infinity, which JSON does not know."""
    return "none" if guaranteed is not None and math.isinf(guaranteed) else guaranteed
