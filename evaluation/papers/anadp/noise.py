"""The ways of training that paper 001's experiment compares, as policies of the project.

All private ones draw noise of the same σ, which gives uniform noise the stated ε. Knows no text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from twinset.config import PolicyConfig
from twinset.policies import NoisePolicy, Setting, make_policy
from twinset.policies.importance import Importance
from twinset.privacy.accountant import epsilon

NO_DP, UNIFORM = "no privacy", "uniform"
PUBLISHED, SOUND = "importance, published", "importance, sound"
IMPORTANCE = (PUBLISHED, SOUND)
PRIVATE = (UNIFORM, *IMPORTANCE)
FORMS = (NO_DP, *PRIVATE)
_POLICIES = {
    PUBLISHED: PolicyConfig("importance", "published"),
    SOUND: PolicyConfig("importance", "sound"),
}


def policy_of(form: str) -> PolicyConfig:
    """Return the project's options for one of them."""
    return _POLICIES.get(form, PolicyConfig())


@dataclass
class Maker:
    """Makes one policy, and keeps it.

    Args:
        form: which of them.
    """

    form: str
    policy: NoisePolicy = field(init=False)
    setting: Setting = field(init=False)

    def __call__(self, setting: Setting) -> NoisePolicy:
        """See `evaluation.fitting.MakePolicy`."""
        self.setting = replace(setting, options=policy_of(self.form))
        self.policy = make_policy(self.setting)
        return self.policy

    def nominal(self, delta: float) -> float | None:
        """Return the ε that the paper would state for the noise so far; None but of its form."""
        return epsilon(spent, delta) if (spent := self.policy.nominal) else None

    def mean_noise(self, names: Sequence[str]) -> dict[str, float]:
        """Return by parameter where noise went: 1 is as much as `uniform` draws; else nothing.

        Args:
            names: of the trained parameters, in their order.
        """
        if not isinstance(self.policy, Importance):
            return {}
        return dict(zip(names, self.policy.mean_noise, strict=True))


def finite(value: float | None) -> float | None:
    """Return a value, None for infinity, which JSON does not know."""
    return None if value is None or math.isinf(value) else value
