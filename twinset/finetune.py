"""From private records to a model that may write their twin: the run's one private stage.

Everything it releases is a noisy label histogram and the noisy gradients of training; both go
through the ledger. What it returns holds nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from twinset.basemodel import BaseModel, context_length, load_base
from twinset.config import RunConfig
from twinset.detectors import detector_named
from twinset.errors import InputError
from twinset.learner import Learner
from twinset.masking import Masked
from twinset.nf4 import check_method
from twinset.openledger import open_ledger
from twinset.plan import Plan, make_plan, without_noise
from twinset.policies import NoisePolicy, Setting, make_policy
from twinset.policies.adaptive import normalised_over
from twinset.policies.importance import Importance
from twinset.policies.selective import MaskedPhase
from twinset.privacy.accountant import epsilon
from twinset.privacy.batches import poisson_batches
from twinset.privacy.events import GaussianRelease
from twinset.privacy.labelcounts import release_label_counts
from twinset.privacy.ledger import Ledger
from twinset.privacy.randomness import Randomness
from twinset.privacy.weightscale import WeightScale
from twinset.progress import Progress, Silent
from twinset.ragged import Picked
from twinset.records import Records
from twinset.schema import Combination
from twinset.templates import Template
from twinset.tokens import TokenisedRecords, text_room, tokenise
from twinset.twinmodel import TwinModel
from twinset.weights import text_nats, weight_scale
from twinset.workplace import Workplace

OWNERS_AT_ONCE = 10_000


def finetune(
    records: Records,
    template: Template,
    config: RunConfig,
    base: BaseModel | None = None,
    progress: Progress | None = None,
    place: Workplace | None = None,
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
        place: where it is done; `None`: in memory, by this process alone.

    Raises:
        InputError: the plan cannot be made, the prompts do not fit into the model's context, or
            what was kept cannot be gone on from.
    """
    check_method(config.training)
    progress = progress or Silent()
    plan = make_plan(len(records.units(config)), config)
    for warning in plan.warnings:
        progress.warn(warning)
    base = base or load_base(config.training.base_model, say=progress.say)
    return _Run(records, template, config, base, plan, progress, place or Workplace()).model()


class _Run:
    """One fine-tuning, step by step; `model` is its story."""

    def __init__(
        self,
        records: Records,
        template: Template,
        config: RunConfig,
        base: BaseModel,
        plan: Plan,
        progress: Progress,
        place: Workplace,
    ) -> None:
        self._place = place
        self._begun = place.resumption.begun() if place.resumption else None
        self._records, self._template, self._config = records, template, config
        self._units = records.units(config)
        self._base, self._plan, self._progress = base, plan, progress
        self._context = context_length(base.model)
        seed = config.privacy.insecure_noise_seed
        self._randomness = Randomness.from_os() if seed is None else Randomness.for_tests(seed)
        self._ledger = self._begun.ledger if self._begun else self._open_ledger()

    def model(self) -> TwinModel:
        policy, plan = self._config.policy, self._plan
        masked_texts = self._masked() if policy.masks else self._records.texts
        tokens = self._tokens(masked_texts if policy.redact_only else self._records.texts)
        counts = self._begun.counts if self._begun else self._label_counts()
        private = plan.target_epsilon is not None
        learner = Learner(self._base, self._config, private, self._progress, self._place.team)
        if policy.noise_policy == "selective":
            self._learn_masked(learner, self._tokens(masked_texts, "masked"), counts)
        batches = self._batches(policy.phases - 1)
        noise = make_policy(self._setting(plan, self._weights(learner, tokens, batches)))
        self._count_steps_taken_elsewhere(noise)
        self._train(policy.phases - 1, learner, tokens, batches, plan, noise, counts)
        self._tell_noise(noise, learner)
        room = text_room(tokens.prompts, self._context, self._config.training.max_tokens)
        return TwinModel(
            learner.finished(),
            self._base.tokenizer,
            self._records.schema,
            self._template,
            counts,
            room,
            self._ledger,
            self._base.origin,
        )

    def _open_ledger(self) -> Ledger:
        weighs = self._config.policy.weighs and self._plan.target_epsilon is not None
        scale = self._scale() if weighs else None
        given = (self._records, self._template, self._config, self._base.origin, self._plan)
        return open_ledger(*given, self._randomness, scale)

    def _masked(self) -> Sequence[str]:
        """Return all texts as the detector leaves them."""
        detector = detector_named(self._config.policy.detector)
        tick = partial(self._progress.count, "texts masked")
        return Masked(self._records.texts, detector, tick)

    def _tokens(self, texts: Sequence[str], name: str = "texts") -> TokenisedRecords:
        records, longest = replace(self._records, texts=texts), self._config.training.max_tokens
        tokenizer, folder = self._base.tokenizer, self._place.tokens(name)
        tokens = tokenise(records, self._template, tokenizer, self._context, longest, folder)
        if tokens.truncated:
            self._progress.say(
                f"{tokens.truncated} texts are cut at the longest length (--max-tokens)"
            )
        return tokens

    def _label_counts(self) -> dict[Combination, float]:
        labels, combinations = self._records.labels, self._records.schema.combinations
        if self._records.owners is not None:
            labels = [labels[i] for i in self._counted().tolist()]
        if self._plan.target_epsilon is None:
            counts = Counter(labels)
            return {c: float(counts[c]) for c in combinations}  # training records the access
        most = 1 if self._records.owners is None else self._config.privacy.max_records_per_owner
        noisy, event = release_label_counts(
            labels, combinations, self._plan.label_count_noise, self._randomness, most
        )
        self._ledger.record(event)
        return dict(zip(combinations, noisy, strict=True))

    def _counted(self) -> np.ndarray:
        """Draw the records that are counted: of each owner as many as take part in a step."""
        drawn = (
            record
            for start in range(0, len(self._units), OWNERS_AT_ONCE)
            for records in self._units.draw(
                np.arange(start, min(start + OWNERS_AT_ONCE, len(self._units))),
                self._randomness.sampling,
            )
            for record in records
        )
        return np.fromiter(drawn, np.int64)

    def _batches(self, phase: int) -> list[np.ndarray]:
        """Draw the batches that a phase lacks; as many numbers as records are visited."""
        plan = self._plan
        begun = self._state(phase)
        left = plan.steps - (begun["done"] if begun else 0)
        if not left:
            return []
        return list(poisson_batches(plan.records, plan.sample_rate, left, self._randomness))

    def _state(self, phase: int) -> dict[str, Any] | None:
        """Return the state that a phase goes on from."""
        return self._begun.state if self._begun and self._begun.phase == phase else None

    def _train(
        self,
        phase: int,
        learner: Learner,
        tokens: TokenisedRecords,
        batches: list[np.ndarray],
        plan: Plan,
        policy: NoisePolicy,
        counts: dict[Combination, float],
    ) -> None:
        kept = self._place.resumption
        keeper = kept.keeper(phase, self._ledger, counts) if kept else None
        record, begun = self._ledger.record, self._state(phase)
        draw = partial(self._units.draw, stream=self._randomness.sampling)
        learner.train(tokens, batches, plan, policy, record, begun, keeper, draw)

    def _count_steps_taken_elsewhere(self, policy: NoisePolicy) -> None:
        """Count steps that were taken from the same state before, and left something."""
        for _ in range(self._begun.taken_elsewhere if self._begun else 0):
            self._ledger.record(policy.event)

    def _learn_masked(
        self, learner: Learner, tokens: TokenisedRecords, counts: dict[Combination, float]
    ) -> None:
        """Phase 1 of selective noise: masked texts, without noise."""
        if self._begun and self._begun.phase:
            return
        self._progress.say("phase 1 of 2: masked texts, without noise")
        open_plan = without_noise(self._plan)
        policy = MaskedPhase(self._setting(open_plan))
        self._train(0, learner, tokens, self._batches(0), open_plan, policy, counts)
        self._progress.say("phase 2 of 2: texts as they are")

    def _setting(self, plan: Plan, weights: Tensor | None = None) -> Setting:
        config = self._config
        return Setting(
            plan.noise_multiplier,
            config.privacy.max_grad_norm,
            plan.sample_rate,
            self._randomness,
            config.policy,
            plan.least_share,
            weights,
        )

    def _scale(self) -> WeightScale:
        return weight_scale(self._base, self._config.policy.weight_scale)

    def _weights(
        self, learner: Learner, tokens: TokenisedRecords, batches: list[np.ndarray]
    ) -> Tensor | None:
        """Return privacy weights where noise is adaptive. Kept in memory only, and told to nobody.

        The model still is the base model: adapters begin as nothing. The published form normalises
        over the table, and so needs all records; the sound one those that are drawn.
        """
        policy = self._config.policy
        if policy.noise_policy != "adaptive":
            return None
        weights = torch.ones(len(tokens), dtype=torch.float64)
        if self._plan.target_epsilon is None:
            return weights
        published = not policy.weighs
        drawn = np.unique(np.concatenate(batches)).tolist() if batches else []
        wanted = range(len(tokens)) if published else drawn
        tick = partial(self._progress.count, "texts weighed")
        texts = Picked(tokens.texts, wanted)
        nats = text_nats(learner.model, self._base.tokenizer, texts, tick)
        found = normalised_over(nats.exp()) if published else self._scale().weights(nats)
        weights[list(wanted)] = found
        return weights

    def _tell_noise(self, policy: NoisePolicy, learner: Learner) -> None:
        """Tell the owner where noise went, and what a paper would claim without a theorem."""
        if isinstance(policy, Importance):
            self._progress.noise(dict(zip(learner.trained, policy.mean_noise, strict=True)))
        if policy.nominal:
            counts = GaussianRelease(self._plan.label_count_noise, "label counts")
            nominal = epsilon([counts, *policy.nominal], self._plan.target_delta)
            self._progress.warn(
                f"nominal ε, by the paper's own accounting and no theorem: {nominal:.2f}"
            )


def check_policy(config: RunConfig, base: BaseModel, records: Records) -> None:
    """Refuse, before anything slow, what a policy lacks.

    Raises:
        InputError: there is no such detector, or no weight scale for the base model, or the policy
            is about records and not about their owners.
    """
    policy = config.policy
    if records.owners is not None and policy.noise_policy in ("adaptive", "selective"):
        raise InputError(
            f"--noise-policy {policy.noise_policy} treats records by what they say, and no theorem "
            "here makes that a guarantee for owners; take uniform or importance with --owner"
        )
    if policy.masks:
        detector_named(policy.detector)
    if policy.weighs and config.privacy.target_epsilon is not None:
        weight_scale(base, policy.weight_scale)
