"""`twinset audit mechanism`: both experiments, and what they say of the claim."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from evaluation.audit.faults import FAULTS
from evaluation.audit.lowerbound import CONFIDENCE
from evaluation.audit.mechanism import Finding, Step, audit_run, audit_step
from evaluation.audit.neighbours import worst_case
from twinset.errors import InputError
from twinset.policies import policy_named


@dataclass(frozen=True)
class MechanismAudit:
    """What to attack, and how hard.

    Args:
        policy: a key of `POLICIES`.
        fault: a key of `FAULTS`: attack a step that is broken on purpose. `None`: the real one.
        noise_multiplier: σ.
        steps: of the short run.
        sample_rate: q, of the short run.
        trials: outputs with the target, and as many without.
        delta: δ. A small one leaves few outputs beyond the threshold, and so a weak bound.
    """

    policy: str = "uniform"
    fault: str | None = None
    noise_multiplier: float = 1.0
    steps: int = 6
    sample_rate: float = 0.5
    trials: int = 20_000
    delta: float = 0.05

    def run(self, tick: Callable[[], object] = lambda: None) -> list[Finding]:
        """Return what was found for one step and for a run.

        Raises:
            InputError: no such policy or fault, or a number out of range.
        """
        self._check()
        step = (FAULTS[self.fault] if self.fault else Step)(
            worst_case(), self.policy, self.noise_multiplier
        )
        try:
            return [
                audit_step(step, self.trials, self.delta, tick),
                audit_run(step, self.steps, self.sample_rate, self.trials, self.delta, tick),
            ]
        finally:
            step.engine.close()

    @property
    def ticks(self) -> int:
        """How often `tick` will be called."""
        return 4 * self.trials

    def _check(self) -> None:
        policy_named(self.policy)
        if self.fault is not None and self.fault not in FAULTS:
            raise InputError(f"--fault: {self.fault!r} is none of {', '.join(FAULTS)}")
        if not (0 < self.delta < 1 and 0 < self.sample_rate < 1 and self.noise_multiplier > 0):
            raise InputError(
                "--delta and --sample-rate lie between 0 and 1, --noise-multiplier above 0"
            )

    def to_dict(self, findings: list[Finding]) -> dict[str, Any]:
        """Return plain values: what was attacked, and what was found."""
        found = [asdict(finding) | {"holds": finding.holds} for finding in findings]
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
    )
