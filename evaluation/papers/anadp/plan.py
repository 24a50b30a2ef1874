"""What paper 001's experiment would do, in lines: model, steps, noise and ε. Trains nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from evaluation.fitting import Recipe
from evaluation.papers.anadp.corpora import SETS
from evaluation.papers.anadp.noise import FORMS
from evaluation.papers.anadp.published import DELTA, EPSILON, RANK
from evaluation.papers.anadp.sizes import Size
from evaluation.papers.anadp.tuning import METHODS
from evaluation.papers.learning import plan_of
from evaluation.papers.models import parameters
from twinset.privacy.accountant import epsilon
from twinset.privacy.calibration import calibrate_noise_multiplier
from twinset.privacy.events import SubsampledGaussian
from twinset.privacy.rounding import up_decimals

EMAILS = 3_000  # passages that the plan counts without files: of half a million e-mails, few
_COPIES, _BYTES = 5, 4  # numbers kept for each weight: itself, gradient, sum, Adam's two moments


def assumed(size: Size) -> dict[str, int]:
    """Return the rows of the sets as they were published, as many as the size takes."""
    return {name: min(size.rows or labels.rows, labels.rows) for name, labels in SETS.items()}


def plan(size: Size, rows: Mapping[str, int], passages: int) -> Iterator[str]:
    """Yield a line for each model, and for each way of training it.

    Args:
        size: of the experiment.
        rows: to train on, by set.
        passages: of e-mails to train on.
    """
    tables = "" if size.tables else " but for its tables"
    yield (
        f"encoder: {size.encoder_name}, {size.tokens} tokens of a text; trained are all of it"
        f"{tables}, LoRA of rank {RANK}, or adapters of rank {RANK}; each with "
        f"{'; '.join(FORMS)}"
    )
    for dataset, many in rows.items():
        for method in METHODS:
            yield f"  {dataset}, {method}: {_phase(many, size.recipes[method].private)}"
    weights = parameters(size.shape, size.vocabulary)
    yield (
        f"language model of e-mails: {size.shape.layers} layers of {size.shape.width}, "
        f"{size.shape.context} tokens; {weights:,} parameters, weights with sums and optimiser "
        f"{weights * _COPIES * _BYTES / 2**30:.2f} GiB; begins from public text"
    )
    yield f"  {_phase(passages, size.recipe)}"


def _phase(records: int, recipe: Recipe) -> str:
    plan = plan_of(records, recipe, 0.0)
    sigma = calibrate_noise_multiplier(EPSILON, DELTA, plan.sample_rate, plan.steps)
    spent = epsilon([SubsampledGaussian(sigma, plan.sample_rate, plan.steps)], DELTA)
    return (
        f"{plan.steps:,} steps of {plan.batch_size} expected from {records:,}, q = "
        f"{plan.sample_rate:.3g}, learning rate {recipe.learning_rate:g}, C = "
        f"{recipe.max_grad_norm:g}, σ = {sigma:.3f}, ε = {up_decimals(spent)} at δ = {DELTA:g}"
    )
