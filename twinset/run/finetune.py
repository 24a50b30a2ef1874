"""From private records to a model that may write their twin: the run's one private stage.

Everything it releases is noisy counts of labels and tokens, the noisy gradients of training and,
where one is asked for, a teacher; all of it goes through the ledger. What it returns holds nothing
else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from twinset.config.plan import Plan, without_noise
from twinset.detectors import detector_named
from twinset.detectors.masking import Masked
from twinset.models.base_model import context_length
from twinset.models.device import give_memory_back
from twinset.models.teacher import Teacher
from twinset.models.threads import on_free_cores
from twinset.policies import MechanismParams, NoisePolicy
from twinset.privacy.accounting.accountant import epsilon
from twinset.privacy.mechanism.randomness import Randomness, poisson_batches
from twinset.privacy.statement.ledger import Ledger
from twinset.progress import Progress, Silent
from twinset.run.finetuning_run import FinetuningRun
from twinset.run.fit_teacher import fit_teacher, teacher_event
from twinset.run.noisy_counts import NoisyCounts, noisy_counts
from twinset.run.open_ledger import open_ledger
from twinset.run.prepare import Prepared
from twinset.run.prompt_choice import chosen_line
from twinset.sampling.naive_bayes import NaiveBayes
from twinset.sampling.text_lengths import TextLengths
from twinset.sampling.twin_model import TwinModel
from twinset.sampling.untilted_rows import tilt_towards
from twinset.table.arrow_columns import Picked
from twinset.table.tokenization import TokenisedRecords, tokenise
from twinset.training.clipped_sum import WrongPrompts
from twinset.training.loop import NothingKept, StepContext, run_training
from twinset.training.record_weights import text_nats
from twinset.training.resume import RunContext
from twinset.training.trainer import Trainer


def finetune(
    prepared: Prepared, progress: Progress | None = None, context: RunContext | None = None
) -> TwinModel:
    """Fine-tune the base model on the records with the privacy that was asked for.

    For what it guarantees see `twinset.privacy.statement.theorems`, RUN; `TwinModel.guarantee` says
    what that is in numbers.

    Args:
        prepared: of `prepare` or `prepare_records`, and of no earlier fine-tuning: its base model
            is changed.
        progress: is notified of what happens; it alone sees figures computed on private records.
        context: where it runs; `None`: in memory, in this process alone.

    Raises:
        InputError: what was kept cannot be resumed.
        RuntimeError: a model was fine-tuned from `prepared` before, so that this one would start
            from its weights, and its ledger would not say so.
    """
    prepared.use()
    run = _begin(prepared, progress or Silent(), context or RunContext())
    with on_free_cores(run.progress.say):
        return _released(run)


def _released(run: FinetuningRun) -> TwinModel:
    """Count, train and fit the teacher: the model with all that is released with it."""
    prepared, counts = run.prepared, noisy_counts(run)
    run = run.behind(counts.template)
    trainer = _trainer(run)
    *earlier, last = prepared.config.policy.policy_class.phases()
    for phase, kind in enumerate(earlier):
        _train_earlier(run, trainer, counts, phase, kind)
    policy = _train_private(run, trainer, counts, len(earlier), last)
    if prepared.candidates:  # of what is released, nothing is shown before it is kept
        run.progress.say(chosen_line(counts.template))
    model = run.twin_model(trainer.finished(), counts.labels)
    give_memory_back(model.model.device)  # what a step needed is more than rows do
    if counts.marginals is not None:
        model.lengths = TextLengths.of(run.length_bins, counts.marginals)
        tilt_towards(model, counts.marginals, run.progress)
    if prepared.config.privacy.teacher_share:
        model.teacher = _teacher(run, policy, model)
        if counts.marginals is not None:
            model.words = NaiveBayes.of(counts.marginals)
    return model


def _begin(prepared: Prepared, progress: Progress, context: RunContext) -> FinetuningRun:
    """Read what is resumed, open the ledger of what is not, and turn records into tokens."""
    for warning in prepared.plan.warnings:
        progress.warn(warning)
    resumed = context.resumption.resume_state() if context.resumption else None
    if resumed and resumed.template:  # it was chosen before
        prepared = replace(prepared, template=resumed.template)
    seed = prepared.config.privacy.insecure_noise_seed
    randomness = Randomness.from_os() if seed is None else Randomness.for_tests(seed)
    ledger = resumed.ledger if resumed else _new_ledger(prepared, randomness)
    units, texts = prepared.records.units(prepared.config), prepared.records.texts
    if prepared.config.policy.redact_only:
        texts = _masked(prepared, progress)
    tokens = _tokens(prepared, progress, texts, context.tokens("texts"))
    return FinetuningRun(prepared, tokens, progress, context, resumed, units, randomness, ledger)


def _new_ledger(prepared: Prepared, randomness: Randomness) -> Ledger:
    config, plan = prepared.config, prepared.plan
    by_owner, origin = prepared.records.owners is not None, prepared.base.origin
    whose, templates = prepared.records.whose, prepared.candidates or (prepared.template,)
    return open_ledger(plan, config, templates, origin, by_owner, randomness, prepared.scale, whose)


def _masked(prepared: Prepared, progress: Progress) -> Sequence[str]:
    """Return all texts as the detector leaves them."""
    detector = detector_named(prepared.config.policy.detector)
    return Masked(prepared.records.texts, detector, partial(progress.count, "texts masked"))


def _tokens(
    prepared: Prepared, progress: Progress, texts: Sequence[str], folder: Path | None
) -> TokenisedRecords:
    records, base = replace(prepared.records, texts=texts), prepared.base
    longest, context = prepared.config.training.max_tokens, context_length(base.model)
    tokens = tokenise(records, prepared.template, base.tokenizer, context, longest, folder)
    if tokens.truncated:
        progress.say(f"{tokens.truncated} texts are cut at the longest length (`max_tokens`)")
    return tokens


def _trainer(run: FinetuningRun) -> Trainer:
    """Return what trains; the shapes it is checked in follow from public facts alone."""
    config, plan, prepared = run.prepared.config, run.prepared.plan, run.prepared
    if plan.target_epsilon is None or not plan.steps:
        return Trainer(prepared.base, config, [], run.progress)
    wrong = WrongPrompts.from_plan(plan, config.training)
    shapes = wrong.shapes(run.tokens, config.speed, plan.batch_size)
    most = 1 if prepared.records.owners is None else config.privacy.max_records_per_owner
    every = shapes.all(run.tokens.padded_lengths(run.longest_text), most)
    return Trainer(prepared.base, config, every, run.progress)


def _train_earlier(
    run: FinetuningRun, trainer: Trainer, counts: NoisyCounts, phase: int, kind: type[NoisePolicy]
) -> None:
    """A phase before the last one, such as selective noise on masked texts."""
    if run.resume_state and run.resume_state.phase > phase:
        return
    used, plan = run, run.prepared.plan
    if kind.reads_masked:
        texts, folder = _masked(run.prepared, run.progress), run.context.tokens("masked")
        used = replace(run, tokens=_tokens(run.prepared, run.progress, texts, folder))
    if not kind.adds_noise:
        plan = without_noise(plan)
    _say_phase(run, phase)
    policy = kind(_params(run, plan))
    run_training(trainer, _batches(run, phase), _step_context(used, phase, plan, policy, counts))
    _say_phase(run, phase + 1)


def _say_phase(run: FinetuningRun, phase: int) -> None:
    phases = run.prepared.config.policy.policy_class.phases()
    run.progress.say(f"phase {phase + 1} of {len(phases)}: {phases[phase].reads}")


def _train_private(
    run: FinetuningRun, trainer: Trainer, counts: NoisyCounts, phase: int, kind: type[NoisePolicy]
) -> NoisePolicy:
    """The phase whose steps spend ε: the last, and with most policies the only one."""
    plan, batches = run.prepared.plan, _batches(run, phase)
    policy = kind(_params(run, plan, _weights(run, trainer, batches)))
    _count_others(run, policy)
    run_training(trainer, batches, _step_context(run, phase, plan, policy, counts))
    _count_others(run, policy)  # who trained meanwhile; the model is not written yet
    _report_noise(run, policy, trainer)
    return policy


def _teacher(run: FinetuningRun, policy: NoisePolicy, model: TwinModel) -> Teacher | None:
    """Return the teacher that a resumed run has released, or release one."""
    if run.resume_state and (folder := run.resume_state.teacher):
        return model.read_teacher(folder)
    teacher = fit_teacher(run, model)
    if run.context.resumption:
        run.context.resumption.keep_teacher(teacher.save, run.ledger)
        _count_others(run, policy)
    return teacher


def _batches(run: FinetuningRun, phase: int) -> list[np.ndarray]:
    """Draw the batches that a phase lacks; as many numbers as records are visited."""
    plan, state = run.prepared.plan, run.resume_state
    left = plan.steps - (state.steps_of(phase) if state else 0)
    if not left:
        return []
    return list(poisson_batches(plan.records, plan.sample_rate, left, run.randomness))


def _step_context(
    run: FinetuningRun, phase: int, plan: Plan, policy: NoisePolicy, counts: NoisyCounts
) -> StepContext:
    """Return what the steps of a phase work with; without noise nothing is clipped."""
    config, resumption, resumed = run.prepared.config, run.context.resumption, run.resume_state
    return StepContext(
        records=run.tokens,
        plan=plan,
        policy=policy,
        max_grad_norm=config.privacy.max_grad_norm if plan.noise_multiplier else math.inf,
        record_event=run.ledger.record,
        training=config.training,
        speed=config.speed,
        observe=lambda report: run.progress.step(report, plan),
        records_of=partial(run.units.draw, stream=run.randomness.sampling),
        resume_state=resumed.state if resumed and resumed.phase == phase else None,
        checkpoints=resumption.callback(
            phase, run.ledger, counts.labels, counts.marginals, counts.template
        )
        if resumption
        else NothingKept(),
        group=run.context.group,
    )


def _count_others(run: FinetuningRun, policy: NoisePolicy) -> None:
    """Count what other processes did from a state of this run, and left something of."""
    if run.context.resumption:
        teacher = teacher_event(run)
        run.context.resumption.count_others(policy.event, teacher, run.ledger.record)


def _params(run: FinetuningRun, plan: Plan, weights: Tensor | None = None) -> MechanismParams:
    config = run.prepared.config
    return MechanismParams(
        plan.noise_multiplier,
        config.privacy.max_grad_norm,
        plan.sample_rate,
        run.randomness,
        config.policy,
        plan.least_share,
        weights,
    )


def _weights(run: FinetuningRun, trainer: Trainer, batches: list[np.ndarray]) -> Tensor | None:
    """Return privacy weights where the policy has them. Kept in memory only, and shown to nobody.

    The model still is the base model: adapters begin as nothing.
    """
    policy = run.prepared.config.policy.policy_class
    if policy.weighs and run.prepared.plan.target_epsilon is None:
        return torch.ones(len(run.tokens), dtype=torch.float64)
    drawn = np.unique(np.concatenate(batches)).tolist() if batches else []

    def nats(places: Sequence[int]) -> Tensor:
        count = partial(run.progress.count, "texts weighed")
        texts = Picked(run.tokens.texts, places)
        return text_nats(trainer.model, run.prepared.base.tokenizer, texts, count)

    # the ledger's scale: what is stated is what is used
    return policy.privacy_weights(len(run.tokens), drawn, nats, run.ledger.weight_scale)


def _report_noise(run: FinetuningRun, policy: NoisePolicy, trainer: Trainer) -> None:
    """Show the owner where noise went, and what a paper would claim without a theorem."""
    if policy.mean_noise:
        run.progress.noise(dict(zip(trainer.trained, policy.mean_noise, strict=True)))
    if policy.nominal:
        plan = run.prepared.plan
        nominal = epsilon([*plan.releases, *policy.nominal], plan.target_delta)
        run.progress.warn(f"nominal ε, by the paper's own accounting and no theorem: {nominal:.2f}")
