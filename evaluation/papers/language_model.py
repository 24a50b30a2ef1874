"""Small language models: trained by the project's own private loop, and their perplexity.

Poisson batch → exact clipped sum of whole lines → noise of a policy → Adam. One loop for public
text and for private text, with noise and without. Knows no table and no paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from evaluation.papers.study_rows import finite
from evaluation.papers.texts import Tokens
from evaluation.utility.dp_fitting import Count, MakePolicy, Recipe, no_op
from twinset.config.plan import Plan
from twinset.data.tokenization import TokenisedRecords
from twinset.models.perplexity import nats_per_token
from twinset.policies import MechanismParams, make_policy
from twinset.privacy.accounting.accountant import compose, epsilon
from twinset.privacy.accounting.calibration import calibrate_noise_multiplier
from twinset.privacy.accounting.events import Event, event_to_dict
from twinset.privacy.clipping import Execution
from twinset.privacy.mechanism.poisson import poisson_batches
from twinset.privacy.mechanism.randomness import Randomness
from twinset.progress import StepReport
from twinset.training.loop import StepContext, train

GROUPS = 100  # of scored lines, over which a bootstrap draws
LARGEST_NATS = 700.0  # a token; e to a larger power is no float


class Shape(NamedTuple):
    """A model that is not yet built, as functions of the number of tokens.

    Args:
        build: returns the model with random weights.
        start: returns what training on public text begins from.
    """

    build: Callable[[int], Any]
    start: Callable[[int], Any]


def gpt2_shape(width: int, layers: int, heads: int, context: int) -> Shape:
    """Return a GPT-2 of any size, which reads at most `context` tokens; it starts at random."""

    def build(vocabulary: int) -> Any:
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            vocab_size=vocabulary,
            n_positions=context,
            n_embd=width,
            n_layer=layers,
            n_head=heads,
            bos_token_id=0,
            eos_token_id=0,
        )
        return GPT2LMHeadModel(config)

    return Shape(build, build)


def folder_shape(folder: Path) -> Shape:
    """Return a trained GPT-2 with tokens of its own, from whose weights training begins."""

    def build(vocabulary: int) -> Any:
        from transformers import AutoConfig, AutoModelForCausalLM

        from twinset.models.model_files import ModelFiles

        with ModelFiles.of(folder, folder.name).alone() as alone:
            config = AutoConfig.from_pretrained(alone, local_files_only=True)
        return AutoModelForCausalLM.from_config(config).float()

    def start(vocabulary: int) -> Any:
        from twinset.models.base_model import load_base

        return load_base(str(folder)).model.float()

    return Shape(build, start)


def seeded(build: Any, vocabulary: int, seed: int) -> Any:
    """Build a model from a seed, and leave the generators of others alone."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build(vocabulary)


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
    """Return what `train_model` will do with so many records."""
    batch = int(min(recipe.batch_size, records))
    steps = max(1, round(recipe.epochs * records / batch))
    rate = recipe.learning_rate
    return Plan(records, None, 0.5, batch, steps, noise_multiplier, 0.0, rate, 0.0)


def noise_for(records: int, recipe: Recipe, target: float, delta: float) -> float:
    """Return σ with which `train_model` spends ε = `target` at δ."""
    plan = plan_of(records, recipe, 1.0)
    return calibrate_noise_multiplier(target, delta, plan.sample_rate, plan.steps)


def train_model(
    model: Any,
    records: TokenisedRecords,
    recipe: Recipe,
    noise_multiplier: float,
    seed: int,
    count: Count = no_op,
    make: MakePolicy = make_policy,
    *,
    clip: bool = False,
) -> list[Event]:
    """Train a model in place and return what that spent.

    For what it guarantees see `twinset.privacy.statement.theorems`, TRAINING. A unit is one line,
    all its words together; the number of lines is taken as public. Without noise nothing is
    clipped, unless asked for.

    Args:
        model: what `ClippingEngine` takes.
        records: lines; one is one unit of privacy.
        recipe: how long and how fast.
        noise_multiplier: σ; 0 without privacy.
        seed: of the batches without privacy. With noise, neither batches nor noise is ever seeded.
        count: called with (done, total) after each step.
        make: makes the policy; uniform noise where left out.
        clip: clip without noise too, which guarantees nothing.
    """
    plan, spent = plan_of(len(records), recipe, noise_multiplier), list[Event]()
    private = noise_multiplier > 0
    randomness = Randomness.from_os() if private else Randomness.for_tests(seed)
    norm = recipe.max_grad_norm if private or clip else math.inf

    def notify(report: StepReport) -> None:
        count(report.step, plan.steps)

    policy = make(MechanismParams(noise_multiplier, norm, plan.sample_rate, randomness))
    batches = list(poisson_batches(len(records), plan.sample_rate, plan.steps, randomness))
    context = StepContext(
        records=records,
        plan=plan,
        policy=policy,
        max_grad_norm=norm,
        record_event=spent.append,
        observe=notify,
    )
    train(model, batches, context, Execution())
    return list(compose(spent))


def spending(events: Sequence[Event], delta: float) -> dict[str, Any]:
    """Return the values of a row that say what a training spent: ε, None where it has none."""
    return {
        "epsilon": finite(epsilon(events, delta)),
        "events": [event_to_dict(event) for event in events],
    }


def nats_of_groups(
    model: Any, records: TokenisedRecords, begin: int, count: Count = no_op
) -> np.ndarray:
    """Return (G, 2): nats and tokens of each of up to `GROUPS` groups of lines, dealt in turn.

    A line of which a broken model says nothing finite costs `LARGEST_NATS` a token.
    """
    lengths = np.array([len(text) for text in records.texts], dtype=float)
    nats = bounded_nats(nats_per_token(model.eval(), records.texts, begin, count).numpy())
    return in_groups(nats * lengths, lengths)


def bounded_nats(nats: np.ndarray) -> np.ndarray:
    """Return nats per token, of which a broken model's are not finite, as at most the largest."""
    return np.nan_to_num(nats, nan=LARGEST_NATS, posinf=LARGEST_NATS).clip(max=LARGEST_NATS)


def in_groups(*sums: np.ndarray) -> np.ndarray:
    """Return the sums (N,) of each line over up to `GROUPS` groups of lines, dealt in turn."""
    group = np.arange(len(sums[0])) % GROUPS
    return np.column_stack([np.bincount(group, weights=values) for values in sums])


def perplexity(groups: np.ndarray) -> float:
    """Return e to the mean nats of a token, of groups (G, 2) of nats and tokens."""
    nats, tokens = groups.sum(0)
    return math.exp(min(nats / tokens, LARGEST_NATS))
