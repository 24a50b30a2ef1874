"""Protection of flagged spans only (Shi et al. 2022, selective DP), in its two-phase form.

Phase 1 trains without noise on texts whose flagged spans are masked, phase 2 with uniform noise on
the texts as they are. For transformers the paper's own form is this one (its section 6); what
differs is what may be claimed of it, and that is told elsewhere.
"""

from __future__ import annotations

from twinset.policies.setting import Setting
from twinset.policies.uniform import Uniform
from twinset.privacy.events import MaskedAccess


class MaskedPhase(Uniform):
    """Phase 1: clipped sums of masked texts as they are, without noise.

    Guarantee:
        None but this: it reads masked texts only, so it is the same whatever was masked.
    """

    name = "selective"

    def __init__(self, setting: Setting) -> None:
        if setting.noise_multiplier:
            raise ValueError("masked texts are read without noise")
        super().__init__(setting)
        self.event = MaskedAccess(setting.options.detector)


class Selective(Uniform):
    """Phase 2: uniform noise.

    Guarantee:
        That of `Uniform` for using or leaving out one record's unmasked text, where all masked
        texts and labels are known. What no detector flagged has no protection at all.
    """

    name = "selective"


class PublishedSelective(Selective):
    """The same two phases; the paper's claim is about replacing what was flagged."""

    form = "published"
