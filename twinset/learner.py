"""The base model made ready to learn: its precision, kernels and adapters, and the loop run on it.

Knows no private record beyond passing them on, and nothing of what a run spends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from twinset.adapters import merged, with_lora
from twinset.basemodel import BaseModel
from twinset.config import RunConfig
from twinset.errors import InputError
from twinset.kernels import fuse
from twinset.plan import Plan
from twinset.policies import NoisePolicy
from twinset.precision import execution, frozen_dtype, is_isolated
from twinset.privacy.clipping.capture import UnsupportedModule
from twinset.privacy.events import Event
from twinset.progress import Progress
from twinset.tokens import TokenisedRecords
from twinset.training import train

NOT_ISOLATED = (
    "in bfloat16 this machine rounds a record's gradient by the records computed beside it, which "
    "no theorem covers; training in float32 instead"
)


class Learner:
    """A model that can be trained in one or several phases.

    Args:
        base: the base model, which is changed.
        config: the run's options.
        private: whether records must leave one another's gradients alone.
        progress: is told of each step.
    """

    def __init__(
        self, base: BaseModel, config: RunConfig, private: bool, progress: Progress
    ) -> None:
        self._name, self._config, self._progress = base.name, config, progress
        self._dtype, self._how = frozen_dtype(config), execution(config)
        self.model = _adapted(fuse(base.model.to(self._dtype)), config)
        low = torch.bfloat16 in (self._dtype, self._how.autocast)
        if low and private and not is_isolated(self.model, config.privacy.max_grad_norm, self._how):
            progress.warn(NOT_ISOLATED)
            self.model, self._dtype = self.model.float(), torch.float32
            self._how = replace(self._how, autocast=None)

    def train(
        self,
        records: TokenisedRecords,
        batches: Sequence[np.ndarray],
        plan: Plan,
        policy: NoisePolicy,
        record_event: Callable[[Event], object],
    ) -> None:
        """Train for one step a batch; without noise in the plan, without clipping too."""
        config = self._config
        try:
            train(
                self.model,
                records,
                batches,
                plan,
                config.training,
                config.speed,
                self._how,
                policy,
                config.privacy.max_grad_norm if plan.noise_multiplier else math.inf,
                record_event,
                lambda report: self._progress.step(report, plan),
            )
        except UnsupportedModule as error:
            raise InputError(f"{self._name}: {error}") from error

    @property
    def trained(self) -> list[str]:
        """Names of what is trained, in the order of the engine's parameters."""
        return [name for name, p in self.model.named_parameters() if p.requires_grad]

    def finished(self) -> Any:
        """Return the plain model, in the precision in which it is saved and sampled."""
        return merged(self.model).to(self._dtype)


def _adapted(model: Any, config: RunConfig) -> Any:
    """Return what is trained; the adapters' start is drawn from the run's seed."""
    if config.training.method == "full":
        return model
    with torch.random.fork_rng():
        torch.manual_seed(config.training.seed)
        return with_lora(model, config.training.lora_rank)
