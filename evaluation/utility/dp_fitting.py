"""How a classifier is fitted, with differential privacy where a budget is given.

Poisson batch → exact clipped sum → `PrivateOptimizer`, as language models are trained. Knows no
text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from twinset.policies import MechanismParams, NoisePolicy, make_policy
from twinset.privacy.accounting.accountant import calibrate_noise_multiplier
from twinset.privacy.clipping import ClassifierClipping, LabelledRows
from twinset.privacy.mechanism.randomness import Randomness, poisson_batches
from twinset.privacy.statement.guarantee import Guarantee, guarantee
from twinset.privacy.statement.ledger import Ledger, MechanismRun
from twinset.privacy.statement.wording import CLASSIFIER, caveats
from twinset.training.loop import PrivateOptimizer

Count = Callable[[int, int], object]  # is notified of how many steps are done, of how many
MakePolicy = Callable[[MechanismParams], NoisePolicy]
PUBLIC_INPUTS = (
    "the number of rows",
    "the set of labels",
    "the encoder and its training data",
    "hyper-parameters, chosen without the private rows",
)


def no_op(done: int, total: int) -> None:
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


class PrivatelyFitted:
    """What a classifier's training spent."""

    ledger: Ledger | None = None  # of the last `fit`; none without a budget

    @property
    def guarantee(self) -> Guarantee | None:
        """What holds of the weights, by the ledger alone."""
        return guarantee(self.ledger, CLASSIFIER) if self.ledger else None

    @property
    def epsilon(self) -> float:
        """ε of the guarantee, at the budget's δ; infinite where there is none."""
        given = self.guarantee
        return math.inf if given is None or given.epsilon is None else given.epsilon


@dataclass(frozen=True)
class Fitting:
    """Fits models by one recipe.

    For what it guarantees see `twinset.privacy.statement.theorems`, CLASSIFIER.

    Args:
        recipe: how long and how fast.
        budget: ε and δ; None learns without privacy.
        seed: of the batches without a budget. With one, neither batches nor noise is ever seeded.
        count: is notified of each step.
        make: makes the policy; uniform noise where left out.
    """

    recipe: Recipe
    budget: Budget | None = None
    seed: int = 0
    count: Count = no_op
    make: MakePolicy = make_policy

    def fit(
        self,
        model: nn.Module,
        rows: int,
        labelled: Callable[[Sequence[int]], Iterable[LabelledRows]],
    ) -> Ledger | None:
        """Train a model and return what that spent; nothing without a budget.

        Args:
            model: what `ClassifierClipping` takes, trained in place.
            rows: N.
            labelled: returns the rows of these numbers, cut into physical batches.

        Raises:
            ValueError: the policy clips some records to less than others, which nothing here does.
        """
        batch = int(min(self.recipe.batch_size, rows))
        steps = max(1, round(self.recipe.epochs * rows / batch))
        params = self._params(batch / rows, steps)
        policy = self.make(params)
        ledger = _opened(self.budget, policy, params, rows) if self.budget else None
        clipping = ClassifierClipping(model, params.max_grad_norm)
        adam = torch.optim.Adam(clipping.parameters, lr=self.recipe.learning_rate, fused=True)
        fall = torch.optim.lr_scheduler.LinearLR(adam, 1.0, 1e-3, steps)
        record = ledger.record if ledger else _not_recorded
        optimizer = PrivateOptimizer(clipping.parameters, policy, batch, adam, fall, record)
        try:
            for drawn in poisson_batches(rows, params.sample_rate, steps, params.randomness):
                members = drawn.tolist()
                _sum(clipping, policy, members, labelled)
                optimizer.step(clipping.sums, members)
                self.count(optimizer.done, steps)
        finally:
            clipping.close()
        return ledger

    def _params(self, rate: float, steps: int) -> MechanismParams:
        if self.budget is None:
            return MechanismParams(0.0, math.inf, rate, Randomness.for_tests(self.seed))
        sigma = calibrate_noise_multiplier(self.budget.epsilon, self.budget.delta, rate, steps)
        return MechanismParams(sigma, self.recipe.max_grad_norm, rate, Randomness.from_os())


def _opened(budget: Budget, policy: NoisePolicy, params: MechanismParams, rows: int) -> Ledger:
    run = MechanismRun(
        delta=budget.delta,
        target_epsilon=budget.epsilon,
        records=rows,
        sample_rate=params.sample_rate,
        max_grad_norm=params.max_grad_norm,
        randomness=params.randomness,
        policy=policy.name,
        policy_form=policy.form,
    )
    return Ledger.open(run, PUBLIC_INPUTS, caveats(policy.name, policy.form))


def _sum(
    clipping: ClassifierClipping,
    policy: NoisePolicy,
    members: list[int],
    labelled: Callable[[Sequence[int]], Iterable[LabelledRows]],
) -> None:
    """Leave the clipped sum over some rows in `clipping`."""
    if policy.limits(members) is not None:
        raise ValueError("a classifier's records are all clipped to the same norm")
    clipping.zero()
    if scales := policy.scales():
        clipping.rescale(scales)
    for some in labelled(members):
        clipping.add(some)


def _not_recorded(event: object) -> None:
    """Training without a budget spends what no ledger counts."""
