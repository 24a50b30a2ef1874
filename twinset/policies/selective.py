"""Protection of flagged spans only (Shi et al. 2022, selective DP), in its two-phase form.

Phase 1 trains without noise on texts whose flagged spans are masked, phase 2 with uniform noise on
the texts as they are. For transformers the paper's own form is this one (its section 6). What may
be claimed of it differs: see `twinset.privacy.statement.theorems`.
"""

from __future__ import annotations

from twinset.policies.policy import MechanismParams, NoisePolicy, register
from twinset.privacy.accounting.events import MaskedAccess
from twinset.privacy.statement.theorems import SELECTIVE, SELECTIVE_PUBLISHED


class MaskedPhase(NoisePolicy):
    """Phase 1: clipped sums of masked texts as they are, without noise.

    For what it guarantees see `twinset.privacy.statement.theorems`, MASKED_PHASE.
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

    For what it guarantees see `twinset.privacy.statement.theorems`, SELECTIVE.
    """

    name = "selective"
    theorem = SELECTIVE
    before = (MaskedPhase,)
    budget = "ε = {target:g} for what the detector flags, nothing for the rest"


@register
class PublishedSelective(Selective):
    """The same two phases. The paper's claim is about replacing what was flagged.

    For what it guarantees see `twinset.privacy.statement.theorems`, SELECTIVE_PUBLISHED.
    """

    form = "published"
    theorem = SELECTIVE_PUBLISHED
