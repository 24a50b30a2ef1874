"""How a classifier is fitted, with differential privacy where a budget is given.

One loop for both: Poisson batch → exact clipped sum → noise of a policy → Adam. Knows no text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from twinset.policies import NoisePolicy, Setting, make_policy
from twinset.privacy.accountant import compose
from twinset.privacy.batches import poisson_batches
from twinset.privacy.calibration import calibrate_noise_multiplier
from twinset.privacy.clipping import ClassifierClipping, LabelledRows
from twinset.privacy.events import Event
from twinset.privacy.randomness import Randomness

Count = Callable[[int, int], object]  # is told how many steps are done, of how many
MakePolicy = Callable[[Setting], NoisePolicy]


def unheard(done: int, total: int) -> None:
    """Count nothing."""


@dataclass(frozen=True)
class Recipe:
    """How long and how fast a classifier learns.

    Args:
        batch_size: expected rows a step; infinite: all of them.
        epochs: visits of each row, on average.
        learning_rate: Adam's, falling to nothing.
        max_grad_norm: C, where there is a budget.
    """

    batch_size: float
    epochs: float
    learning_rate: float
    max_grad_norm: float = 1.0


@dataclass(frozen=True)
class Budget:
    """ε and δ, for adding or removing one row; the set of labels and the number of rows are public.

    Args:
        epsilon: ε.
        delta: δ.
    """

    epsilon: float
    delta: float


@dataclass(frozen=True)
class Fitting:
    """Fits models by one recipe.

    Guarantee:
        With a budget and uniform noise, the weights that `fit` leaves are (ε, δ)-differentially
        private for adding or removing one row: T Poisson-subsampled Gaussian releases of sums
        clipped to C, divided by the *expected* batch size. σ is that of uniform noise whichever
        policy draws it: of another one, what the events that `fit` returns say. Without a budget:
        none.

    Args:
        recipe: how long and how fast.
        budget: ε and δ; None learns without privacy.
        seed: of the batches without a budget. With one, neither batches nor noise is ever seeded.
        count: is told of each step.
        make: makes the policy of a setting; uniform noise where left out.
    """

    recipe: Recipe
    budget: Budget | None = None
    seed: int = 0
    count: Count = unheard
    make: MakePolicy = make_policy

    def fit(
        self,
        model: nn.Module,
        rows: int,
        labelled: Callable[[Sequence[int]], Iterable[LabelledRows]],
    ) -> list[Event]:
        """Train a model and return what that spent.

        Args:
            model: what `ClassifierClipping` takes, trained in place.
            rows: N.
            labelled: returns the rows of these numbers, cut into physical batches.

        Raises:
            ValueError: the policy clips some records to less than others, which nothing here does.
        """
        batch = int(min(self.recipe.batch_size, rows))
        steps = max(1, round(self.recipe.epochs * rows / batch))
        setting = self._setting(batch / rows, steps)
        policy, spent = self.make(setting), list[Event]()
        clipping = ClassifierClipping(model, setting.max_grad_norm)
        optimizer = torch.optim.Adam(clipping.parameters, lr=self.recipe.learning_rate, fused=True)
        fall = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 1e-3, steps)
        batches = poisson_batches(rows, setting.sample_rate, steps, setting.randomness)
        try:
            for step, drawn in enumerate(batches, start=1):
                members = drawn.tolist()
                clipping.zero()
                if policy.limits(members) is not None:
                    raise ValueError("a classifier's records are all clipped to the same norm")
                if scales := policy.scales():
                    clipping.rescale(scales)
                for some in labelled(members):
                    clipping.add(some)
                noisy, event = policy.release(clipping.sums, members)
                spent = list(compose([*spent, event]))
                gradients = [total.div_(batch) for total in noisy]
                policy.learn(clipping.parameters, gradients)
                for parameter, gradient in zip(clipping.parameters, gradients, strict=True):
                    parameter.grad = gradient.to(parameter.dtype)
                optimizer.step()
                fall.step()
                self.count(step, steps)
        finally:
            clipping.close()
        return spent

    def _setting(self, rate: float, steps: int) -> Setting:
        if self.budget is None:
            return Setting(0.0, math.inf, rate, Randomness.for_tests(self.seed))
        sigma = calibrate_noise_multiplier(self.budget.epsilon, self.budget.delta, rate, steps)
        return Setting(sigma, self.recipe.max_grad_norm, rate, Randomness.from_os())
