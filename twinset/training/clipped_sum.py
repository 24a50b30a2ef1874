"""What each process of a training holds: the model, and the clipped sum of its part of a batch.

Knows neither who chose the batch nor what becomes of the sum. How many units are computed at once
follows from public facts and a unit's own size, and nothing else. If the rest of the batch decided,
one more record would change how its neighbours are rounded. See `twinset.privacy.clipping.models`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from twinset.config import MismatchForm, RunConfig, SpeedConfig, TrainingConfig
from twinset.config.plan import Plan
from twinset.config.run_config import PHYSICAL_TOKENS
from twinset.models.adapters import merge_adapters, prepare_trainable
from twinset.models.base_model import BaseModel
from twinset.models.device import GPU_TOKENS, device_of, is_cpu
from twinset.models.layers import choose_execution, frozen_dtype, fuse, is_batch_invariant
from twinset.privacy.clipping import ClippingEngine, Scale, UnitReport
from twinset.privacy.clipping.engine import is_out_of_memory
from twinset.privacy.clipping.models import BatchShape
from twinset.progress import Progress
from twinset.table.tokenization import TokenisedRecords, batches_of_one_length

# Half a physical batch of each padded length is filler. A step's records lie in about eight of
# these lengths, so this many physical batches of its expected size keep the filler to about a
# quarter. A product is then still large enough for its fixed cost. On a GPU that takes many more.
FEWEST_BATCHES, GPU_FEWEST_BATCHES = 16, 2
NOT_BATCH_INVARIANT = (
    "in bfloat16 this device rounds a record's gradient by the records computed beside it, which "
    "no theorem covers; training in float32 instead"
)

Width = tuple[int, int]  # records of a unit, and the tokens that their rows are padded to


# --- the model ----------------------------------------------------------------------------------


class Trainer:
    """The base model made ready to train, in one or several phases: device, precision, adapters.

    Args:
        base: the base model, which is changed.
        config: the run's options.
        shapes: of physical batches in which records must leave one another's gradients alone;
            none: without privacy.
        progress: is notified where the precision is not what was asked for.

    Attributes:
        name: of the base model.
        model: what is trained.
        execution: memory against time, and number formats.
    """

    def __init__(
        self, base: BaseModel, config: RunConfig, shapes: Sequence[BatchShape], progress: Progress
    ) -> None:
        self.name, self._config = base.name, config
        self._dtype, self.execution = frozen_dtype(config), choose_execution(config)
        self._is_low = torch.bfloat16 in (self._dtype, self.execution.autocast)
        self._fallen_back = False
        device = device_of(config.speed.device)
        fused = fuse(base.model.to(device, self._dtype))
        self.model = prepare_trainable(fused, config.training).to(device)
        if self._is_low and shapes:
            norm = config.privacy.max_grad_norm
            if not is_batch_invariant(self.model, norm, self.execution, shapes):
                progress.warn(NOT_BATCH_INVARIANT)
                self.fall_back()

    def fall_back(self) -> None:
        """Compute in float32 from now on, with the weights as they are by now: rounded."""
        self.model, self._dtype = self.model.float(), torch.float32
        self.execution = replace(self.execution, autocast=None)
        self._fallen_back = True

    def worker_options(self) -> dict[str, Any]:
        """Return what other ranks need to make a trainer with the very same weights."""
        # of weights that were rounded once, others must be rounded too
        speed = replace(self._config.speed, precision="bfloat16" if self._is_low else "float32")
        config = replace(self._config, speed=speed).to_dict()
        return {"config": config, "fallen_back": self._fallen_back}

    @property
    def trained(self) -> list[str]:
        """Names of what is trained, in the order of the engine's parameters."""
        return [name for name, p in self.model.named_parameters() if p.requires_grad]

    def finished(self) -> Any:
        """Return the plain model, in the precision in which it is saved and sampled."""
        return merge_adapters(self.model).to(self._dtype)


# --- the loss -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class MismatchLoss:
    """ℓ = NLL(x | right) + λ · penalty, as a function of one record's K mean token losses.

    A text should be likely under its own prompt, not under others. Source: Mattern et al. 2022,
    "Differentially Private Language Models for Secure Data Sharing". Both forms are of one record
    alone. The authors' code subtracts a batch mean, which would mix records.

    published: penalty = -mean_w NLL(x | w), unbounded below.
    bounded: penalty = mean_w softplus(n · (NLL(x | right) - NLL(x | w))) / n with n tokens. Times
    n, each term is -log of the probability that the text belongs to its own prompt rather than to
    w, if both were equally likely before. It is zero once the text tells them apart, so nothing
    runs away.

    Args:
        weight: λ ≥ 0; 0 leaves the plain likelihood.
        form: which penalty.
    """

    weight: float
    form: MismatchForm

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


@dataclass(frozen=True)
class WrongPrompts:
    """How records are set against wrong prompts: λ and form of the loss, prompts a record, seed."""

    weight: float
    form: MismatchForm
    count: int
    seed: int

    @classmethod
    def from_plan(cls, plan: Plan, training: TrainingConfig) -> WrongPrompts:
        """Return what a plan and its options say."""
        count = training.mismatch_prompts if plan.mismatch_weight else 0
        return cls(plan.mismatch_weight, training.mismatch_form, count, training.seed)

    def shapes(self, records: TokenisedRecords, speed: SpeedConfig, batch_size: int) -> BatchShapes:
        """Return the shapes of physical batches of records with these prompts."""
        # K: there may be fewer other label combinations
        per_record = 1 + min(self.count, len(records.prompts) - 1)
        return BatchShapes(speed, batch_size, per_record)


# --- batches ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BatchShapes:
    """The shape of a physical batch, for units of any size, K sequences to a record.

    `batch_size` is the number of units that a step is expected to have.
    """

    speed: SpeedConfig
    batch_size: int
    sequences: int

    def units(self, records: int, tokens: int) -> int:
        """Return how many units form one batch, each of `records` records padded to `tokens`."""
        usual, fewest = GPU_TOKENS, GPU_FEWEST_BATCHES
        if is_cpu(device_of(self.speed.device)):
            usual, fewest = PHYSICAL_TOKENS, FEWEST_BATCHES
        if self.speed.physical_batch:  # asked for, whatever the batch
            return self.speed.physical_batch
        fit = (self.speed.physical_tokens or usual) // (self.sequences * records * tokens)
        return max(1, min(fit, self.batch_size // fewest))

    def all(self, padded_lengths: Iterable[int], most_records: int = 1) -> list[BatchShape]:
        """Return every shape that can come, with units of up to `most_records` records."""
        return [
            BatchShape(self.units(records, tokens), records * self.sequences, tokens)
            for tokens in padded_lengths
            for records in range(1, most_records + 1)
        ]


@dataclass(frozen=True)
class Batch:
    """What a step asks for.

    Args:
        step: 1 … T.
        units: of the logical batch, each the numbers of its records.
        limits: (B,) norm that each of them is clipped to; None: C.
        scales: geometry to clip in, a scale for each parameter; empty: the plain one.
    """

    step: int
    units: list[list[int]]
    limits: Tensor | None = None
    scales: list[Scale] = field(default_factory=list)

    def part(self, places: list[int]) -> Batch:
        """Return the same of some of its units, by their places in `units`."""
        limits = None if self.limits is None else self.limits[places]
        return Batch(self.step, [self.units[i] for i in places], limits, self.scales)


class ClippedSum:
    """Fills an engine's sums with Σᵢ ĝᵢ of a logical batch."""

    def __init__(
        self,
        engine: ClippingEngine,
        records: TokenisedRecords,
        wrong: WrongPrompts,
        shapes: BatchShapes,
    ) -> None:
        self.engine, self._records, self._shapes, self._wrong = engine, records, shapes, wrong
        self._loss = MismatchLoss(wrong.weight, wrong.form)
        self._fewer: dict[Width, int] = {}  # units at once, where memory ran out before

    def compute_clipped_sum(self, batch: Batch) -> UnitReport:
        """Leave Σᵢ ĝᵢ of a batch in `engine.sums`; when out of memory, start again with less.

        Physical batches are halved. Where one unit is too much, layers keep their inputs only.
        Returns losses, norms and clipping scales of units in the order of computation, which are
        private.
        """
        widths = [(len(unit), max(map(self._records.padded_length, unit))) for unit in batch.units]
        numbers = range(len(widths))
        while True:
            tried: Width | None = None
            reports = []
            try:
                self.engine.zero()
                if batch.scales:
                    self.engine.rescale(batch.scales)
                # Physical batches hold units of one width.
                for tried, places in batches_of_one_length(
                    numbers, widths.__getitem__, self._units
                ):
                    reports.append(self.add_physical_batch(batch.part(places), tried))
                return join_reports(reports)
            except RuntimeError as error:
                if tried is None or not is_out_of_memory(error):
                    raise
                units = self._units(tried)
                if units == 1 and not self.engine.checkpoint_layers():
                    raise
                self._fewer[tried] = max(1, units // 2)

    def add_physical_batch(self, batch: Batch, width: Width) -> UnitReport:
        """Add one physical batch to the sums, filled up with units that count for nothing."""
        each, _ = width
        records, seed = list(chain.from_iterable(batch.units)), (self._wrong.seed, batch.step)
        rows = self._records.sequences(records, self._wrong.count, seed)
        units = replace(rows, per_unit=rows.per_unit * each).filled(self._units(width))

        def unit_loss(means: Tensor, counts: Tensor) -> Tensor:
            """(B, m·K) means and counts, record by record its K → (B,) sums of m losses."""
            sequences = means.shape[1] // each
            losses = self._loss(means.reshape(-1, sequences), counts.reshape(-1, sequences))
            return losses.view(-1, each).sum(1)

        return self.engine.add(units, unit_loss, batch.limits)

    def digest(self, unit: list[int]) -> int:
        """Return a number that the first of a unit's records alone decides."""
        return self._records.digest(unit[0])

    def _units(self, width: Width) -> int:
        return self._fewer.get(width) or self._shapes.units(*width)


def join_reports(reports: list[UnitReport]) -> UnitReport:
    """Return one report of all units."""
    if not reports:
        return UnitReport(torch.zeros(0), torch.zeros(0).double(), torch.zeros(0).double())
    figures = ([getattr(r, name) for r in reports] for name in ("losses", "norms", "scales"))
    return UnitReport(*map(torch.cat, figures))
