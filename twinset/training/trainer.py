"""The base model made ready to train: its device, precision, kernels and adapters.

Knows no private record, and nothing of what a run spends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from twinset.config import RunConfig
from twinset.models.adapters import merge_adapters, prepare_trainable
from twinset.models.base_model import BaseModel
from twinset.models.device import device_of
from twinset.models.layers import choose_execution, frozen_dtype, fuse, is_batch_invariant
from twinset.privacy.clipping.models import BatchShape
from twinset.progress import Progress

NOT_BATCH_INVARIANT = (
    "in bfloat16 this device rounds a record's gradient by the records computed beside it, which "
    "no theorem covers; training in float32 instead"
)


class Trainer:
    """A model that can be trained in one or several phases.

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
        self,
        base: BaseModel,
        config: RunConfig,
        shapes: Sequence[BatchShape],
        progress: Progress,
    ) -> None:
        self.name, self._config = base.name, config
        self._dtype, self.execution = frozen_dtype(config), choose_execution(config)
        self._fallen_back = False
        device = device_of(config.speed.device)
        self.model = prepare_trainable(
            fuse(base.model.to(device, self._dtype)), config.training
        ).to(device)
        low, norm = self._is_low, config.privacy.max_grad_norm
        if low and shapes and not is_batch_invariant(self.model, norm, self.execution, shapes):
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

    def worker_options(self) -> dict[str, Any]:
        """Return what other ranks need to make a trainer with the very same weights."""
        low = self._fallen_back or self._is_low
        speed = replace(self._config.speed, precision="bfloat16" if low else "float32")
        config = replace(self._config, speed=speed).to_dict()
        return {"config": config, "fallen_back": self._fallen_back}

    @property
    def trained(self) -> list[str]:
        """Names of what is trained, in the order of the engine's parameters."""
        return [name for name, p in self.model.named_parameters() if p.requires_grad]

    def finished(self) -> Any:
        """Return the plain model, in the precision in which it is saved and sampled."""
        return merge_adapters(self.model).to(self._dtype)
