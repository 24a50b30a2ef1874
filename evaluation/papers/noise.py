"""Noise policies in an experiment: made and kept for what they say of themselves, and attacked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from evaluation.audit.report import MechanismAudit, guaranteed_for_json
from evaluation.papers.study_rows import Results
from evaluation.results_store import Key
from evaluation.utility.dp_fitting import MakePolicy
from twinset.config import PolicyConfig
from twinset.policies import MechanismParams, NoisePolicy, make_policy
from twinset.privacy.accounting.accountant import epsilon

ATTACK = "attack"  # kind of a row


class PolicyMaker:
    """Makes the policy of one way of training, and keeps it.

    Args:
        options: of the policy; None for uniform noise.
        make: makes it.
        changes: of the other parameters of the mechanism, by their names.
    """

    policy: NoisePolicy
    params: MechanismParams

    def __init__(
        self, options: PolicyConfig | None, make: MakePolicy = make_policy, **changes: Any
    ) -> None:
        self._make = make
        self._changes = changes | {"options": options or PolicyConfig()}

    def __call__(self, params: MechanismParams) -> NoisePolicy:
        """See `evaluation.utility.dp_fitting.MakePolicy`."""
        self.params = replace(params, **self._changes)
        self.policy = self._make(self.params)
        return self.policy

    def nominal(self, delta: float) -> float | None:
        """Return the ε that the paper would state for the noise so far; None but of its form."""
        return epsilon(spent, delta) if (spent := self.policy.nominal) else None


def attack_row(policy: PolicyConfig, sigma: float, trials: int) -> dict[str, Any]:
    """Return what an attack on a single step, and on a few, showed of ε; made-up records only."""
    found = MechanismAudit(policy, noise_multiplier=sigma, trials=trials).run_steps()
    return {
        "findings": [
            asdict(one) | {"guaranteed": guaranteed_for_json(one.guaranteed)} for one in found
        ]
    }


def attack_tables(results: Results, targets: Mapping[Key, dict[str, str]]) -> dict[str, Any]:
    """Return `attacked`, a table of claimed ε and the ε shown, and `attack`, one of the findings.

    Args:
        results: with rows of `attack_row`.
        targets: the first cells of the lines, what was attacked, by the row's key but for its seed.
    """
    findings = {level: results.first(level)["findings"] for level in targets}
    lines = [targets[level] | _line(one) for level, several in findings.items() for one in several]
    return {"attacked": lines, "attack": next(iter(findings.values()))[0]}


def _line(finding: Mapping[str, Any]) -> dict[str, str]:
    theorem = finding["guaranteed"] or finding["claimed"]
    return {
        "experiment": finding["what"],
        "claimed ε": f"{finding['claimed']:.2f}",
        "shown, at least": f"{finding['lower_bound']:.2f}",
        "ε of a theorem": theorem if isinstance(theorem, str) else f"{theorem:.2f}",
    }
