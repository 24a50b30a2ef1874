"""The base model made ready to learn: its precision, kernels and adapters, and the loop run on it.

Knows no private record beyond passing them on, and nothing of what a run spends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch

from twinset.adapters import merged, trainable
from twinset.basemodel import BaseModel
from twinset.clippedsum import WrongPrompts
from twinset.config import RunConfig
from twinset.errors import InputError
from twinset.kernels import fuse
from twinset.plan import Plan
from twinset.policies import NoisePolicy
from twinset.precision import execution, frozen_dtype, is_isolated
from twinset.privacy.clipping.capture import UnsupportedModule
from twinset.privacy.events import Event
from twinset.progress import Progress
from twinset.team import END, Team
from twinset.tokens import TokenisedRecords
from twinset.training import Keeper, RecordsOf, one_each, train

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
        team: processes that form sums together; None: this one alone.
    """

    def __init__(
        self,
        base: BaseModel,
        config: RunConfig,
        private: bool,
        progress: Progress,
        team: Team | None = None,
    ) -> None:
        self._team = team
        self._name, self._config, self._progress = base.name, config, progress
        self._dtype, self.how = frozen_dtype(config), execution(config)
        self._fallen_back = False
        self.model = trainable(fuse(base.model.to(self._dtype)), config.training)
        low = torch.bfloat16 in (self._dtype, self.how.autocast)
        if low and private and not is_isolated(self.model, config.privacy.max_grad_norm, self.how):
            progress.warn(NOT_ISOLATED)
            self.fall_back()

    def fall_back(self) -> None:
        """Compute in float32 from now on, with the weights as they are by now: rounded."""
        self.model, self._dtype = self.model.float(), torch.float32
        self.how = replace(self.how, autocast=None)
        self._fallen_back = True

    def train(
        self,
        records: TokenisedRecords,
        batches: Sequence[np.ndarray],
        plan: Plan,
        policy: NoisePolicy,
        record_event: Callable[[Event], object],
        begun: dict[str, Any] | None = None,
        keeper: Keeper | None = None,
        records_of: RecordsOf = one_each,
    ) -> None:
        """Train for one step a batch; without noise in the plan, without clipping too.

        With a team, `records` must lie in a folder.
        """
        config = self._config
        norm = config.privacy.max_grad_norm if plan.noise_multiplier else math.inf
        if self._team:
            self._team.tell(self.job(records, plan))
        try:
            train(
                self.model,
                records,
                batches,
                plan,
                config.training,
                config.speed,
                self.how,
                policy,
                norm,
                record_event,
                lambda report: self._progress.step(report, plan),
                begun,
                keeper,
                self._team,
                records_of,
            )
        except UnsupportedModule as error:
            raise InputError(f"{self._name}: {error}") from error
        if self._team:
            self._team.tell(END)

    def job(self, records: TokenisedRecords, plan: Plan) -> dict[str, Any]:
        """Return what others must know to form parts of the sums, with the very same weights."""
        config = self._config
        low = self._fallen_back or torch.bfloat16 in (self._dtype, self.how.autocast)
        speed = replace(config.speed, precision="bfloat16" if low else "float32")
        return {
            "job": "train",
            "config": replace(config, speed=speed).to_dict(),
            "fallen_back": self._fallen_back,
            "tokens": str(records.folder),
            "is_clipped": plan.noise_multiplier > 0,
            "wrong": asdict(WrongPrompts.of(plan, config.training)),
        }

    @property
    def trained(self) -> list[str]:
        """Names of what is trained, in the order of the engine's parameters."""
        return [name for name, p in self.model.named_parameters() if p.requires_grad]

    def finished(self) -> Any:
        """Return the plain model, in the precision in which it is saved and sampled."""
        return merged(self.model).to(self._dtype)
