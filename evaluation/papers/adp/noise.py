"""The ways of training that paper 000's experiment compares, as policies of the project.

At the same σ a text of privacy weight 1 has the same noise over the largest change that it can
make, whether noise is uniform or adaptive in its sound form. Knows no text.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import Tensor

from evaluation.audit.mechanism import LEAST_SHARE
from twinset.config import PolicyConfig
from twinset.policies import NoisePolicy, Setting, make_policy
from twinset.policies.adaptive import normalised_over
from twinset.privacy.accountant import epsilon
from twinset.privacy.weightscale import WeightScale

NO_DP, DP_SGD = "No-DP", "DP-SGD"
PUBLISHED, LOGARITHMIC = "adaptive, published", "adaptive, published, of logarithms"
SOUND = "adaptive, sound"
_POLICIES = {
    PUBLISHED: PolicyConfig("adaptive", "published"),
    LOGARITHMIC: PolicyConfig("adaptive", "published"),
    SOUND: PolicyConfig("adaptive", "sound"),
}


def policy_of(form: str) -> PolicyConfig:
    """Return the project's options for one of them."""
    return _POLICIES.get(form, PolicyConfig())


def multiplier_of(form: str, sigma: float) -> float:
    """Return the noise over the largest change that *any* text can make.

    In the sound form texts of weight 0 can change a sum by C, those of weight 1 by `LEAST_SHARE` of
    it. What σ is said of is the latter.
    """
    return sigma * LEAST_SHARE if form == SOUND else sigma


def weights_of(form: str, nats: Tensor, scale: WeightScale) -> Tensor | None:
    """(N,) nats per token → (N,) privacy weights, where noise is adaptive.

    The published form normalises perplexities over the private texts: to the letter, which leaves
    one odd text to decide all weights, or their logarithms. The sound one has public constants.
    """
    if form not in _POLICIES:
        return None
    if form == SOUND:
        return scale.weights(nats)
    return normalised_over(nats.exp() if form == PUBLISHED else nats)


@dataclass
class Maker:
    """Makes one policy, and keeps it.

    Args:
        form: which of them.
        weights: (N,) privacy weights, where noise is adaptive.
    """

    form: str
    weights: Tensor | None
    policy: NoisePolicy = field(init=False)

    def __call__(self, setting: Setting) -> NoisePolicy:
        """See `evaluation.papers.learning.MakePolicy`."""
        share = LEAST_SHARE if self.form == SOUND else 1.0
        options = policy_of(self.form)
        self.policy = make_policy(
            replace(setting, options=options, least_share=share, weights=self.weights)
        )
        return self.policy

    def nominal(self, delta: float) -> float | None:
        """Return the ε that the paper would state for the noise so far; None but of its form."""
        return epsilon(spent, delta) if (spent := self.policy.nominal) else None

    def mean_noise(self) -> float:
        """Return the mean standard deviation of the noise so far, over σC."""
        scales: list[float] = self.policy.state().get("scales", [])
        return sum(scales) / len(scales) if scales else multiplier_of(self.form, 1.0)
