"""From a clipped sum to changed weights: noise, the ledger, the optimiser, in this order.

Every private training takes its steps here, of language models and of classifiers alike. Knows
neither what was summed nor who chose the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from twinset.files.signals import uninterrupted
from twinset.policies import NoisePolicy
from twinset.privacy.accounting.events import Event


class PrivateOptimizer:
    """Takes steps along noisy sums, and holds all that a step changes.

    For what it guarantees see `twinset.privacy.statement.theorems`, TRAINING.

    Args:
        parameters: what is trained.
        policy: turns clipped sums into noisy ones.
        batch_size: L, the *expected* number of units in a batch; noisy sums are divided by it.
        optimizer: of the parameters.
        schedule: of its learning rate, a step at a time.
        record_event: the ledger's.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        policy: NoisePolicy,
        batch_size: float,
        optimizer: Optimizer,
        schedule: LRScheduler,
        record_event: Callable[[Event], object],
    ) -> None:
        self._parameters, self._policy, self._batch_size = parameters, policy, batch_size
        self._optimizer, self._schedule = optimizer, schedule
        self._record_event = record_event
        self.done = 0  # steps

    def step(self, sums: list[Tensor], units: Sequence[int]) -> None:
        """Take a step: what it spends is recorded before it is used, and nothing stops between.

        Args:
            sums: Σᵢ ĝᵢ of the batch, one for each parameter; overwritten.
            units: the batch's, as the policy knows them.
        """
        with uninterrupted():
            noisy, event = self._policy.release(sums, units)
            self._record_event(event)
            self.apply([total.div_(self._batch_size) for total in noisy])

    def apply(self, gradients: list[Tensor]) -> None:
        """Change the parameters along released gradients."""
        self._policy.update_statistics(self._parameters, gradients)
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient.to(parameter.dtype)
        self._optimizer.step()
        self._schedule.step()
        self._optimizer.zero_grad()
        self.done += 1

    def state(self) -> dict[str, Any]:
        """Return all that the next step needs, for `torch.save`."""
        return {
            "done": self.done,
            "parameters": [p.detach() for p in self._parameters],
            "optimizer": self._optimizer.state_dict(),
            "schedule": self._schedule.state_dict(),
            "policy": self._policy.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take back what `state` returned."""
        with torch.no_grad():
            for parameter, kept in zip(self._parameters, state["parameters"], strict=True):
                parameter.copy_(kept)
        self._optimizer.load_state_dict(state["optimizer"])
        self._schedule.load_state_dict(state["schedule"])
        self._policy.restore(_moved(state["policy"], self._parameters[0].device))
        self.done = state["done"]


def _moved(state: Any, device: torch.device) -> Any:
    """Return plain values with all tensors in them on a device: another one may have kept them."""
    match state:
        case Tensor():
            return state.to(device)
        case list():
            return [_moved(value, device) for value in state]
        case dict():
            return {name: _moved(value, device) for name, value in state.items()}
    return state
