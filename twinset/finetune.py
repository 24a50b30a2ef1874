"""From private records to a model that may write their twin: the run's one private stage.

Everything it releases is a noisy label histogram and the noisy gradients of training; both go
through the ledger. What it returns holds nothing else.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from twinset.adapters import merged, with_lora
from twinset.basemodel import BaseModel, context_length, load_base
from twinset.config import RunConfig
from twinset.errors import InputError
from twinset.kernels import fuse
from twinset.plan import Plan, make_plan
from twinset.policies import NoisePolicy, policy_named
from twinset.precision import execution, frozen_dtype, is_isolated
from twinset.privacy.clipping.capture import UnsupportedModule
from twinset.privacy.labelcounts import release_label_counts
from twinset.privacy.ledger import Ledger
from twinset.privacy.randomness import Randomness
from twinset.progress import Progress, Silent
from twinset.records import Records
from twinset.schema import Combination
from twinset.templates import Template
from twinset.tokens import TokenisedRecords, text_room, tokenise
from twinset.training import train
from twinset.twinmodel import TwinModel

NOT_ISOLATED = (
    "in bfloat16 this machine rounds a record's gradient by the records computed beside it, which "
    "no theorem covers; training in float32 instead"
)


def finetune(
    records: Records,
    template: Template,
    config: RunConfig,
    base: BaseModel | None = None,
    progress: Progress | None = None,
) -> TwinModel:
    """Fine-tune the base model on the records with the privacy that `config` asks for.

    Guarantee:
        The returned model, its label counts included, is the output of mechanisms that its ledger
        lists completely; `TwinModel.guarantee` states what that amounts to.

    Args:
        records: the private records.
        template: renders their prompts.
        config: the run's options.
        base: a loaded base model, which is changed; `None` loads `config.training.base_model`.
        progress: is told what happens; it alone sees figures computed on private records.

    Raises:
        InputError: the plan cannot be made, or the prompts do not fit into the model's context.
    """
    progress = progress or Silent()
    make_policy = policy_named(config.privacy.noise_policy)
    plan = make_plan(len(records), config.privacy, config.training)
    for warning in plan.warnings:
        progress.warn(warning)
    base = base or load_base(config.training.base_model, say=progress.say)
    context = context_length(base.model)
    tokens = tokenise(records, template, base.tokenizer, context, config.training.max_tokens)
    if tokens.truncated:
        progress.say(f"{tokens.truncated} texts are cut at the longest length (--max-tokens)")
    randomness = _randomness(config)
    policy = make_policy(
        plan.noise_multiplier, config.privacy.max_grad_norm, plan.sample_rate, randomness
    )
    ledger = _open_ledger(plan, config, base, template, policy, randomness)
    counts = _label_counts(records, plan, ledger, randomness)
    model = _train(base.model, tokens, plan, config, policy, randomness, ledger, progress)
    return TwinModel(
        model,
        base.tokenizer,
        records.schema,
        template,
        counts,
        text_room(tokens.prompts, context, config.training.max_tokens),
        ledger,
        base.origin,
    )


def _randomness(config: RunConfig) -> Randomness:
    seed = config.privacy.insecure_noise_seed
    return Randomness.from_os() if seed is None else Randomness.for_tests(seed)


def _open_ledger(
    plan: Plan,
    config: RunConfig,
    base: BaseModel,
    template: Template,
    policy: NoisePolicy,
    randomness: Randomness,
) -> Ledger:
    return Ledger.open(
        records=plan.records,
        target_epsilon=plan.target_epsilon,
        delta=plan.target_delta,
        sample_rate=plan.sample_rate,
        max_grad_norm=config.privacy.max_grad_norm,
        policy=policy.name,
        policy_form=policy.form,
        randomness=randomness,
        public_inputs=(
            "the names, order and types of the columns, and the set of label values",
            "the number of records",
            f"the prompt template {template.pattern!r} with its wording",
            f"the base model {base.origin} and everything it was trained on",
            f"the longest text kept, {config.training.max_tokens} tokens",
            "all options of the run",
        ),
    )


def _label_counts(
    records: Records, plan: Plan, ledger: Ledger, randomness: Randomness
) -> dict[Combination, float]:
    combinations = records.schema.combinations
    if plan.target_epsilon is None:
        counts = [float(records.labels.count(c)) for c in combinations]
        return dict(zip(combinations, counts, strict=True))  # training records the access
    noisy, event = release_label_counts(
        records.labels, combinations, plan.label_count_noise, randomness
    )
    ledger.record(event)
    return dict(zip(combinations, noisy, strict=True))


def _train(
    model: Any,
    tokens: TokenisedRecords,
    plan: Plan,
    config: RunConfig,
    policy: NoisePolicy,
    randomness: Randomness,
    ledger: Ledger,
    progress: Progress,
) -> Any:
    """Train and return the plain model, in the precision in which it is saved and sampled."""
    private = plan.target_epsilon is not None
    max_grad_norm = config.privacy.max_grad_norm if private else float("inf")
    dtype, how = frozen_dtype(config), execution(config)
    adapted = _adapted(fuse(model.to(dtype)), config)
    low = torch.bfloat16 in (dtype, how.autocast)
    if low and private and not is_isolated(adapted, max_grad_norm, how):
        progress.warn(NOT_ISOLATED)
        adapted, dtype, how = adapted.float(), torch.float32, replace(how, autocast=None)
    try:
        train(
            adapted,
            tokens,
            plan,
            config.training,
            config.speed,
            how,
            policy,
            randomness,
            max_grad_norm,
            ledger.record,
            lambda report: progress.step(report, plan),
        )
    except UnsupportedModule as error:
        raise InputError(f"{config.training.base_model}: {error}") from error
    return merged(adapted).to(dtype)


def _adapted(model: Any, config: RunConfig) -> Any:
    """Return what is trained; the adapters' start is drawn from the run's seed."""
    if config.training.method == "full":
        return model
    with torch.random.fork_rng():
        torch.manual_seed(config.training.seed)
        return with_lora(model, config.training.lora_rank)
