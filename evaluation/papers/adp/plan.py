"""What paper 000's experiment would do, in lines: model, steps, noise and ε. Trains nothing."""

from __future__ import annotations

from collections.abc import Iterator

from evaluation.audit.mechanism import LEAST_SHARE
from evaluation.papers.adp.cases import MODELS, PLANTED
from evaluation.papers.adp.noise import DP_SGD, NO_DP, SOUND, multiplier_of
from evaluation.papers.adp.sizes import DELTA, Size
from evaluation.papers.learning import plan_of
from evaluation.papers.models import parameters
from twinset.plan import Plan
from twinset.privacy.accountant import epsilon
from twinset.privacy.events import IndividualGaussian, SubsampledGaussian
from twinset.privacy.rounding import up_decimals

# Numbers kept for each weight: weight, gradient, clipped sum, Adam's two moments.
_COPIES, _BYTES = 5, 4


def plan(size: Size, vocabulary: int, lines: int) -> Iterator[str]:
    """Yield a line for the model, for the weighing, and for each way of training.

    Args:
        size: of the experiment.
        vocabulary: tokens.
        lines: to train on.
    """
    weights = parameters(size.shape, vocabulary)
    yield (
        f"transformer decoder: {size.shape.layers} layers of {size.shape.width}, "
        f"{size.shape.heads} heads, {size.shape.context} tokens of a line; {weights:,} parameters, "
        f"{vocabulary:,} tokens, weights with sums and optimiser "
        f"{weights * _COPIES * _BYTES / 2**30:.2f} GiB"
    )
    yield (
        f"privacy weights: {lines:,} lines, up to {size.weighed_tokens} tokens of each, by "
        f"{size.weigher}; constants from up to {size.scale_lines:,} public lines"
    )
    yield (
        f"each model with a canary planted {', '.join(map(str, PLANTED))} times; exposure among "
        + ("all secrets" if size.candidates is None else f"{size.candidates:,} of its secrets")
    )
    for form, sigma in MODELS:
        yield f"  {form}: {_phase(size, lines, form, sigma)}"


def _phase(size: Size, lines: int, form: str, sigma: float) -> str:
    plan, recipe = plan_of(lines, size.recipe, sigma), size.recipe
    return (
        f"{plan.steps:,} steps of {plan.batch_size} expected from {lines:,} lines, "
        f"q = {plan.sample_rate:.3g}, σ = {sigma:g}, C = {recipe.max_grad_norm:g}, learning rate "
        f"{recipe.learning_rate:g}, {_epsilon(form, sigma, plan)}"
    )


def _epsilon(form: str, sigma: float, plan: Plan) -> str:
    if form == DP_SGD:
        spent = epsilon([SubsampledGaussian(sigma, plan.sample_rate, plan.steps)], DELTA)
        return f"ε = {up_decimals(spent)} at δ = {DELTA:g}"
    if form != SOUND:
        return "ε = none" + ("" if form == NO_DP else "; nominal, by the weights of each batch")
    rate, steps = plan.sample_rate, plan.steps
    event = IndividualGaussian(multiplier_of(form, sigma), rate, steps, LEAST_SHARE)
    most, least = (up_decimals(epsilon([event], DELTA, weight)) for weight in (1.0, 0.0))
    return f"ε = {most} (most protected) to {least} (least) at δ = {DELTA:g}"
