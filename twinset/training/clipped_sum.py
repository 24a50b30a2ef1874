"""One process of a training: the model, and the clipped sum of its part of a batch.

This module does not choose the batch or use the sum. How many units are computed at once follows
from public facts and a unit's own size alone. If it depended on the rest of the batch, an added
record would change how its neighbours are rounded. See `twinset.privacy.clipping.engine`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import torch
from torch import Tensor
from torch.nn.functional import softplus

from twinset.config import PHYSICAL_TOKENS, MismatchForm, RunConfig, SpeedConfig, TrainingConfig
from twinset.config.plan import Plan
from twinset.models.adapters import prepare_trainable
from twinset.models.base_model import BaseModel
from twinset.models.device import GPU_TOKENS, device_of, is_cpu, is_out_of_memory
from twinset.models.layers import (
    BatchShape,
    choose_execution,
    fuse,
    is_batch_invariant,
)
from twinset.privacy.clipping import ClippingEngine, Scale, UnitReport
from twinset.progress import Count, Progress
from twinset.table.tokenization import TokenisedRecords, batches_of_one_length

# Half a physical batch of each padded length is filler. A step's records have about eight of
# these lengths, so this many physical batches of its expected size keep the filler to about a
# quarter. A product is then still large enough for its fixed cost. On a GPU that takes many more.
FEWEST_BATCHES, GPU_FEWEST_BATCHES = 16, 2
NOT_BATCH_INVARIANT = (
    "in bfloat16 the rounding of a record's gradient depends on the other records of its batch on "
    "this device, which no theorem covers. Training in float32 instead."
)

Width = tuple[int, int]  # records of a unit, and the tokens that their rows are padded to


# --- the model ----------------------------------------------------------------------------------


class Trainer:
    """The base model made ready to train, in one or several phases: device, precision, adapters.

    It is changed in place. In physical batches of these `shapes`, records must not affect one
    another's gradients. Without privacy there are none.
    """

    def __init__(
        self, base: BaseModel, config: RunConfig, shapes: Sequence[BatchShape], progress: Progress
    ) -> None:
        self.name, self.config = base.name, config
        # The format is of weights that are frozen, and of the model that is saved and sampled.
        self.dtype, self.execution = choose_execution(config)
        # Weights were rounded to bfloat16 once, and are computed with in float32 all the same.
        self.is_low = torch.bfloat16 in (self.dtype, self.execution.autocast)
        self.has_fallen_back = False
        device = device_of(config.speed.device)
        fused = fuse(base.model.to(device, self.dtype))
        self.model = prepare_trainable(fused, config.training).to(device)
        if self.is_low and shapes:
            progress.say(f"checking {len(shapes)} shapes of batches: records must not mix")
            norm = config.privacy.max_grad_norm
            if not is_batch_invariant(self.model, norm, self.execution, shapes):
                progress.warn(NOT_BATCH_INVARIANT)
                self.fall_back()

    def fall_back(self) -> None:
        """Compute in float32 from now on, with the weights as they are by now: rounded."""
        self.model, self.dtype = self.model.float(), torch.float32
        self.execution = replace(self.execution, autocast=None)
        self.has_fallen_back = True


# --- the loss -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class MismatchLoss:
    """ℓ = NLL(x | right) + λ · penalty, as a function of one record's K mean token losses.

    A text should be likely under its own prompt, not under others. Source: Mattern et al. 2022,
    "Differentially Private Language Models for Secure Data Sharing". Both forms depend on one
    record alone. The authors' code subtracts a batch mean, which would mix records.

    published: penalty = -mean_w NLL(x | w), unbounded below.
    bounded: penalty = mean_w softplus(n · (NLL(x | right) - NLL(x | w))) / n with n tokens. Times
    n, each term is -log of the probability that the text belongs to its own prompt rather than to
    w, if both were equally likely before. It is zero once the text tells them apart, so it cannot
    diverge.
    """

    weight: float  # λ ≥ 0 (0 leaves the plain likelihood)
    form: MismatchForm  # which penalty
    count: int = 1  # wrong prompts that a record is set against
    seed: int = 0  # of their draw

    @classmethod
    def from_plan(cls, plan: Plan, training: TrainingConfig) -> MismatchLoss:
        """Return the loss of a plan and its options."""
        count = training.mismatch_prompts if plan.mismatch_weight else 0
        return cls(plan.mismatch_weight, training.mismatch_form, count, training.seed)

    def __call__(self, means: Tensor, counts: Tensor) -> Tensor:
        """(B, K) mean losses, right prompt first, and (B, K) token counts → (B,) losses."""
        right = means[:, 0]
        if means.shape[1] == 1 or self.weight == 0:
            return right
        if self.form == "published":
            return right - self.weight * means[:, 1:].mean(1)
        tokens = counts[:, :1]
        gap = softplus(tokens * (means[:, :1] - means[:, 1:])) / tokens
        return right + self.weight * gap.mean(1)


# --- batches ------------------------------------------------------------------------------------


def units_at_once(speed: SpeedConfig, batch_size: int, tokens: int) -> int:
    """Return how many units of `tokens` tokens, padding included, form one physical batch.

    `batch_size` is the expected number of units in a step.
    """
    if speed.physical_batch:  # asked for, whatever the batch
        return speed.physical_batch
    usual, fewest = GPU_TOKENS, GPU_FEWEST_BATCHES
    if is_cpu(device_of(speed.device)):
        usual, fewest = PHYSICAL_TOKENS, FEWEST_BATCHES
    return max(1, min((speed.physical_tokens or usual) // tokens, batch_size // fewest))


@dataclass(frozen=True)
class Batch:
    """The inputs of a step."""

    step: int  # 1 … T
    units: list[list[int]]  # of the logical batch, each the numbers of its records
    limits: Tensor | None = None  # (B,) norm that each unit is clipped to (None: C)
    scales: list[Scale] = field(default_factory=list)  # one a parameter (empty: plain geometry)

    def part(self, places: list[int]) -> Batch:
        """Return some of its units, given their places in `units`."""
        limits = None if self.limits is None else self.limits[places]
        return replace(self, units=[self.units[i] for i in places], limits=limits)


class ClippedSum:
    """Fills an engine's sums with Σᵢ ĝᵢ of a logical batch."""

    def __init__(
        self,
        engine: ClippingEngine,
        records: TokenisedRecords,  # private
        loss: MismatchLoss,
        speed: SpeedConfig,  # size of physical batches
        batch_size: int,  # number of units that a step is expected to have
    ) -> None:
        self.engine, self.records, self._loss = engine, records, loss
        self._speed, self._batch_size = speed, batch_size
        self._fewer: dict[Width, int] = {}  # units at once, where memory ran out before
        self.count: Count | None = None  # is called with the units that are done, and all

    def compute_clipped_sum(self, batch: Batch) -> UnitReport:
        """Leave Σᵢ ĝᵢ of a batch in `engine.sums`. If memory runs out, start again with less.

        Physical batches are halved. If one unit is too much, layers keep their inputs only.
        Returns losses, norms and clipping scales of units in the order of computation, which are
        private.
        """
        records, loss = self.records, self._loss
        sequences = 1 + min(loss.count, len(records.prompts) - 1)  # K, of each record
        widths = [(len(unit), max(map(records.padded_length, unit))) for unit in batch.units]

        def at_once(width: Width) -> int:
            usual = units_at_once(self._speed, self._batch_size, sequences * width[0] * width[1])
            return self._fewer.get(width) or usual

        def unit_loss(means: Tensor, counts: Tensor) -> Tensor:
            """(B, m·K) means and counts, record by record its K → (B,) sums of m losses."""
            of_each = loss(means.reshape(-1, sequences), counts.reshape(-1, sequences))
            return of_each.view(len(means), -1).sum(1)

        while True:
            tried: Width | None = None
            reports, done = [], 0
            try:
                self.engine.zero()
                if batch.scales:
                    self.engine.rescale(batch.scales)
                # Physical batches hold units of one width, filled up with some that count for
                # nothing.
                for tried, places in batches_of_one_length(
                    range(len(widths)), widths.__getitem__, at_once
                ):
                    part = batch.part(places)
                    rows = records.sequences(
                        list(chain.from_iterable(part.units)), loss.count, (loss.seed, batch.step)
                    )
                    units = replace(rows, per_unit=rows.per_unit * tried[0]).filled(at_once(tried))
                    reports.append(self.engine.add(units, unit_loss, part.limits))
                    done += len(places)
                    if self.count is not None:
                        self.count(done, len(widths))
                return join_reports(reports)
            except RuntimeError as error:
                if tried is None or not is_out_of_memory(error):
                    raise
                fewer = at_once(tried)
                if fewer == 1 and not self.engine.checkpoint_layers():
                    raise
                self._fewer[tried] = max(1, fewer // 2)


def join_reports(reports: list[UnitReport]) -> UnitReport:
    """Return one report of all units."""
    if not reports:
        return UnitReport(torch.zeros(0), torch.zeros(0).double(), torch.zeros(0).double())
    figures = ([getattr(r, name) for r in reports] for name in ("losses", "norms", "scales"))
    return UnitReport(*map(torch.cat, figures))
