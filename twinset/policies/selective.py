"""Protection of flagged spans only (Shi et al. 2022, selective DP), in its two-phase form.

Phase 1 trains without noise on texts whose flagged spans are masked, phase 2 with uniform noise on
the texts as they are. For transformers the paper's own form is this one (its section 6); what
differs is what may be claimed of it: see `twinset.privacy.statement.theorems`.
"""

from __future__ import annotations

from twinset.policies.mechanism_params import MechanismParams
from twinset.policies.uniform import Uniform
from twinset.privacy.accounting.events import MaskedAccess


class MaskedPhase(Uniform):
    """Phase 1: clipped sums of masked texts as they are, without noise.

    For what it guarantees see `twinset.privacy.statement.theorems`, MASKED_PHASE.
    """

    name = "selective"

    def __init__(self, params: MechanismParams) -> None:
        if params.noise_multiplier:
            raise ValueError("masked texts are read without noise")
        super().__init__(params)
        self.event = MaskedAccess(params.options.detector)


class Selective(Uniform):
    """Phase 2: uniform noise.

    For what it guarantees see `twinset.privacy.statement.theorems`, SELECTIVE.
    """

    name = "selective"


class PublishedSelective(Selective):
    """The same two phases; the paper's claim is about replacing what was flagged.

    For what it guarantees see `twinset.privacy.statement.theorems`, SELECTIVE_PUBLISHED.
    """

    form = "published"
