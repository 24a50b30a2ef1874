"""Lines of text learnt by the project's own private loop, and what one of them costs afterwards.

Poisson batch → exact clipped sum of whole lines → noise of a policy → Adam. One loop for public
text and for private text, with noise and without. Knows no table and no paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from evaluation.fitting import Count, MakePolicy, Recipe, unheard
from evaluation.papers.words import Tokens
from twinset.config import SpeedConfig, TrainingConfig
from twinset.perplexity import nats_per_token
from twinset.plan import Plan
from twinset.policies import Setting, make_policy
from twinset.privacy.accountant import compose
from twinset.privacy.batches import poisson_batches
from twinset.privacy.clipping import Execution
from twinset.privacy.events import Event
from twinset.privacy.randomness import Randomness
from twinset.tokens import TokenisedRecords
from twinset.training import StepReport, train

GROUPS = 100  # of scored lines, over which a bootstrap draws
LARGEST_NATS = 700.0  # a token; e to a larger power is no float


def tokenised(lines: Iterable[str], tokens: Tokens, context: int) -> TokenisedRecords:
    """Return lines as records without labels; those without a single known word are left out.

    Args:
        lines: texts.
        tokens: how they become numbers.
        context: most tokens of a line, `begin` included; the rest is left out.
    """
    encoded = [ids for ids in map(tokens.encode, lines) if ids]
    cut = sum(len(ids) >= context for ids in encoded)
    texts = [ids[: context - 1] for ids in encoded]
    return TokenisedRecords(texts, [()] * len(texts), {(): [tokens.begin]}, cut, context)


def plan_of(records: int, recipe: Recipe, noise_multiplier: float) -> Plan:
    """Return what `learn` will do with so many records."""
    batch = int(min(recipe.batch_size, records))
    steps = max(1, round(recipe.epochs * records / batch))
    rate = recipe.learning_rate
    return Plan(records, None, 0.5, batch, steps, noise_multiplier, 0.0, rate, 0.0)


def learn(
    model: Any,
    records: TokenisedRecords,
    recipe: Recipe,
    noise_multiplier: float,
    seed: int,
    count: Count = unheard,
    make: MakePolicy = make_policy,
) -> list[Event]:
    """Train a model in place and return what that spent.

    Guarantee:
        With noise, the weights come from T releases of the policy, of Poisson-sampled sums in which
        each line, all its words together, counts at most C; the events say which. The number of
        lines is taken as public. Without noise there is no clipping and no guarantee.

    Args:
        model: what `ClippingEngine` takes.
        records: lines; one is one unit of privacy.
        recipe: how long and how fast.
        noise_multiplier: σ; 0 without privacy.
        seed: of the batches without privacy. With it, neither batches nor noise is ever seeded.
        count: is told of each step.
        make: makes the policy; of the setting's own options it makes uniform noise.
    """
    plan, spent = plan_of(len(records), recipe, noise_multiplier), list[Event]()
    private = noise_multiplier > 0
    randomness = Randomness.from_os() if private else Randomness.for_tests(seed)
    norm = recipe.max_grad_norm if private else math.inf

    def tell(report: StepReport) -> None:
        count(report.step, plan.steps)

    policy = make(Setting(noise_multiplier, norm, plan.sample_rate, randomness))
    train(
        model,
        records,
        list(poisson_batches(len(records), plan.sample_rate, plan.steps, randomness)),
        plan,
        TrainingConfig(),
        SpeedConfig(),
        Execution(),
        policy,
        norm,
        spent.append,
        tell,
    )
    return list(compose(spent))


def nats_of_groups(
    model: Any, records: TokenisedRecords, begin: int, count: Callable[[int, int], object] = unheard
) -> np.ndarray:
    """Return (G, 2): nats and tokens of each of up to `GROUPS` groups of lines, dealt in turn.

    A line of which a broken model says nothing finite costs `LARGEST_NATS` a token.
    """
    lengths = np.array([len(text) for text in records.texts], dtype=float)
    found = nats_per_token(model.eval(), records.texts, begin, count).numpy()
    nats = np.nan_to_num(found, nan=LARGEST_NATS, posinf=LARGEST_NATS).clip(max=LARGEST_NATS)
    group = np.arange(len(lengths)) % GROUPS
    return np.column_stack([np.bincount(group, weights=w) for w in (nats * lengths, lengths)])


def perplexity(groups: np.ndarray) -> float:
    """Return e to the mean nats of a token, of groups (G, 2) of nats and tokens."""
    nats, tokens = groups.sum(0)
    return math.exp(min(nats / tokens, LARGEST_NATS))
