"""Uniform noise: the Gaussian mechanism of DP-SGD (Abadi et al. 2016)."""

from __future__ import annotations

from twinset.policies.policy import POLICIES, NoisePolicy, register


@register
class Uniform(NoisePolicy):
    """z ~ N(0, σ²C²I) added to the clipped sum of one Poisson batch.

    For what it guarantees see `twinset.privacy.statement.theorems`, UNIFORM.
    """

    name = "uniform"
    needs_steps = False  # without steps its options are those of no noise at all


POLICIES["uniform", "published"] = Uniform  # both forms are one
