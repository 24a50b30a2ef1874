"""Protection of flagged spans only (Shi et al. 2022, selective DP), in its two-phase form.

Phase 1 trains without noise on texts with masked spans. Phase 2 trains with uniform noise on the
original texts. For transformers this is the paper's own form (its section 6). What may be claimed
differs: see `twinset.privacy.statement.theorems`.
"""

from __future__ import annotations

from twinset.policies.policy import MechanismParams, NoisePolicy, register
from twinset.privacy.accounting.events import MaskedAccess
from twinset.privacy.statement.theorems import SELECTIVE, SELECTIVE_PUBLISHED


class MaskedPhase(NoisePolicy):
    """Phase 1: clipped sums of masked texts, without noise.

    For its guarantee see `twinset.privacy.statement.theorems`, MASKED_PHASE.
    """

    name = "selective"
    adds_noise = False
    reads_masked = True
    reads = "masked texts, without noise"

    def __init__(self, params: MechanismParams) -> None:
        if params.noise_multiplier:
            raise ValueError("masked texts are read without noise")
        super().__init__(params)
        self.event = MaskedAccess(params.options.detector)


@register
class Selective(NoisePolicy):
    """Phase 2: uniform noise. Its claim is about flagged spans only.

    For its guarantee see `twinset.privacy.statement.theorems`, SELECTIVE.
    """

    name = "selective"
    theorem = SELECTIVE
    before = (MaskedPhase,)
    budget = "ε = {target:g} for what the detector flags, nothing for the rest"


@register
class PublishedSelective(Selective):
    """The same two phases. The paper's claim is about replacing flagged spans.

    For its guarantee see `twinset.privacy.statement.theorems`, SELECTIVE_PUBLISHED.
    """

    form = "published"
    theorem = SELECTIVE_PUBLISHED
