"""The base model made ready to learn: its precision, kernels and adapters, and the loop run on it.

Knows no private record beyond passing them on, and nothing of what a run spends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch

from twinset.config import RunConfig
from twinset.distributed import END
from twinset.errors import InputError
from twinset.models.base_model import BaseModel
from twinset.models.lora import merged, trainable
from twinset.models.precision import execution, frozen_dtype, fuse, is_batch_invariant
from twinset.privacy.clipping.hooks import UnsupportedModule
from twinset.progress import Progress
from twinset.training.clipped_sum import WrongPrompts
from twinset.training.loop import StepContext, train

NOT_BATCH_INVARIANT = (
    "in bfloat16 this machine rounds a record's gradient by the records computed beside it, which "
    "no theorem covers; training in float32 instead"
)


class Trainer:
    """A model that can be trained in one or several phases.

    Args:
        base: the base model, which is changed.
        config: the run's options.
        private: whether records must leave one another's gradients alone.
        progress: is notified where the precision is not what was asked for.
    """

    def __init__(
        self, base: BaseModel, config: RunConfig, private: bool, progress: Progress
    ) -> None:
        self._name, self._config = base.name, config
        self._dtype, self.execution = frozen_dtype(config), execution(config)
        self._fallen_back = False
        self.model = trainable(fuse(base.model.to(self._dtype)), config.training)
        low, norm = self._is_low, config.privacy.max_grad_norm
        if low and private and not is_batch_invariant(self.model, norm, self.execution):
            progress.warn(NOT_BATCH_INVARIANT)
            self.fall_back()

    @property
    def _is_low(self) -> bool:
        return torch.bfloat16 in (self._dtype, self.execution.autocast)

    def fall_back(self) -> None:
        """Compute in float32 from now on, with the weights as they are by now: rounded."""
        self.model, self._dtype = self.model.float(), torch.float32
        self.execution = replace(self.execution, autocast=None)
        self._fallen_back = True

    def train(self, batches: Sequence[np.ndarray], context: StepContext) -> None:
        """Train for one step a batch; with a group, the records must lie in a folder.

        Raises:
            InputError: the model holds a layer whose gradients cannot be clipped.
        """
        group = context.group
        if group:
            group.broadcast_message(self.message(context))
        try:
            train(self.model, batches, context, self.execution)
        except UnsupportedModule as error:
            raise InputError(f"{self._name}: {error}") from error
        if group:
            group.broadcast_message(END)

    def message(self, context: StepContext) -> dict[str, Any]:
        """Return what other ranks need to form parts of the sums, with the very same weights."""
        config, low = self._config, self._fallen_back or self._is_low
        speed = replace(config.speed, precision="bfloat16" if low else "float32")
        norm = context.max_grad_norm
        return {
            "task": "train",
            "config": replace(config, speed=speed).to_dict(),
            "fallen_back": self._fallen_back,
            "tokens": str(context.records.folder),
            "max_grad_norm": norm if math.isfinite(norm) else None,
            "wrong": asdict(WrongPrompts.of(context.plan, context.training)),
        }

    @property
    def trained(self) -> list[str]:
        """Names of what is trained, in the order of the engine's parameters."""
        return [name for name, p in self.model.named_parameters() if p.requires_grad]

    def finished(self) -> Any:
        """Return the plain model, in the precision in which it is saved and sampled."""
        return merged(self.model).to(self._dtype)
