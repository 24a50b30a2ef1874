"""One run of a comparison of noise policies: made, and scored against the same held-out rows.

Knows nothing of what was run before, and of tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from evaluation.comparison.results import (
    PERPLEXITY,
    REAL_ROWS,
    PolicyRun,
    accuracy,
    exposed,
    fidelity,
)
from evaluation.leakage.canaries import COPIES, FORMATS, Canary, draw_canaries, plant
from evaluation.leakage.exposure import Exposure, exposure
from evaluation.leakage.membership import perplexity
from evaluation.policy_runs import (
    ComparisonRequest,
    Data,
    policy_config,
    read_data,
    timed,
    write_untrained_twin,
)
from evaluation.release import Seconds, records_to_frame, take_records
from evaluation.utility.classification import score_agreement, targets, train_on
from evaluation.utility.classifiers import SentenceEncoder, make_classifiers
from twinset.config import RunConfig
from twinset.config.plan import with_teacher
from twinset.errors import InputError
from twinset.models.base_model import BaseModel, context_length, load_base, special_token_strings
from twinset.models.layers import frozen_dtype
from twinset.progress import Progress, Silent
from twinset.sampling.allocation import proportional
from twinset.sampling.twin_model import TwinModel
from twinset.table.tokenization import TokenisedRecords, prompt_tokens, text_budget, tokenise

PERPLEXITY_ROWS = 250
JUDGE_ROWS = 4000  # at most, that judges of label fidelity learn from


class PolicyTrials:
    """Makes runs and scores them, all against the same held-out rows.

    Args:
        data: the rows.
        request: what is compared.
        config: the options that all runs share.
        progress: is notified of what happens.

    Raises:
        InputError: the base model cannot be used, or cuts the canaries off.
    """

    def __init__(
        self, data: Data, request: ComparisonRequest, config: RunConfig, progress: Progress
    ) -> None:
        self._data, self._rows, self._config, self._progress = data, request.rows, config, progress
        self._train, self._heldout = records_to_frame(data.train), records_to_frame(data.heldout)
        base = load_base(config.training.base_model, say=progress.say)
        for policy in (policy_config(config, name).policy for name in request.policies):
            policy.policy_class.weight_scale(policy, base)  # or it is refused, before any run
        reserved = special_token_strings(base.tokenizer)
        read_data(request, config.training.seed, Silent(), reserved)  # for these characters alone
        self._prompts = prompt_tokens(data.template, data.train.schema.combinations, base.tokenizer)
        self._probes = self._tokenised(base)
        _check_canaries(base, self._prompts, config.training.max_tokens)
        embeddings = SentenceEncoder(progress.say, config.speed.device)
        self._makers = make_classifiers(request.classifiers, progress.say, embeddings=embeddings)
        self._target = targets(data.attributes)[-1]
        progress.say("training classifiers on real rows")
        known = self._train.sample(frac=1, random_state=config.training.seed).head(JUDGE_ROWS)
        self._judges = {
            name: train_on(known, data.text, self._target, maker)
            for name, maker in self._makers.items()
        }

    def _tokenised(self, base: BaseModel) -> TokenisedRecords:
        """Return the held-out rows that perplexity is taken of."""
        heldout, context = self._data.heldout, context_length(base.model)
        rng = np.random.default_rng(self._config.training.seed)
        probes = take_records(heldout, rng.permutation(len(heldout))[:PERPLEXITY_ROWS])
        max_tokens = self._config.training.max_tokens
        return tokenise(probes, self._data.template, base.tokenizer, context, max_tokens)

    def run(self, name: str, seed: int, config: RunConfig | None) -> PolicyRun:
        """Make one run and score it; `config` is that of a policy."""
        if name == REAL_ROWS:
            return self._real(seed)
        if config is None:
            return self._untrained(seed)
        return self._policy(seed, seeded(config, seed))

    def _real(self, seed: int) -> PolicyRun:
        frame = self._train.sample(min(self._rows, len(self._train)), random_state=seed)
        seconds: Seconds = {}
        with timed(seconds, "classifiers"):
            values = self._accuracies(frame) | self._fidelities(self._heldout)
        return PolicyRun(values, seconds)

    def _untrained(self, seed: int) -> PolicyRun:
        config = with_teacher(seeded(self._config, seed), len(self._data.train))
        seconds: Seconds = {}
        with timed(seconds, "sampling"):
            labels = Counter(self._data.train.labels)
            shares = {c: float(labels[c]) for c in self._data.train.schema.combinations}
            counts = proportional(shares, self._rows)
            template, schema = self._data.template, self._data.train.schema
            frame = write_untrained_twin(config, schema, template, counts, self._progress)
        dtype = frozen_dtype(config)
        base = load_base(
            config.training.base_model,
            dtype=dtype,
            device=config.speed.device,
            say=self._progress.say,
        )
        values, exposures = self._scores(frame, base, self._canaries(seed), seconds)
        return PolicyRun(values, seconds, exposures=exposures)

    def _policy(self, seed: int, config: RunConfig) -> PolicyRun:
        data, canaries = self._data, self._canaries(seed)
        planted = plant(self._train, data.text, data.attributes, canaries)
        model, twin = data.train_twin(planted, config, self._rows, self._progress)
        seconds = dict(twin.seconds)
        values, exposures = self._scores(twin.frame, model, canaries, seconds)
        claim = model.guarantee
        return PolicyRun(values, seconds, claim.epsilon, claim.delta, claim.sentence, exposures)

    def _canaries(self, seed: int) -> list[Canary]:
        return draw_canaries(self._data.train.schema.combinations, seed)

    def _scores(
        self,
        frame: pd.DataFrame,
        writer: BaseModel | TwinModel,
        canaries: Sequence[Canary],
        seconds: Seconds,
    ) -> tuple[dict[str, float], list[dict[str, Any]]]:
        """Score rows and the model that wrote them; note how long it took."""
        self._progress.say("scoring")
        with timed(seconds, "classifiers"):
            values = self._accuracies(frame) | self._fidelities(frame)
        with timed(seconds, "perplexity"):
            values[PERPLEXITY] = perplexity(writer.model, self._probes)
        with timed(seconds, "exposure"):
            found = [
                exposure(writer.model, writer.tokenizer, self._prompts[c.label], c)
                for c in canaries
            ]
        for copies in COPIES:
            bits = [e.bits for e in found if e.canary.copies == copies]
            values[exposed(copies)] = sum(bits) / len(bits)
        return values, list(map(_plain, found))

    def _accuracies(self, frame: pd.DataFrame) -> dict[str, float]:
        """Return how well classifiers that learn from these rows do on held-out ones."""
        text, target = self._data.text, self._target
        models = {c: train_on(frame, text, target, maker) for c, maker in self._makers.items()}
        return {
            accuracy(c): score_agreement("accuracy", model, self._heldout, text, target).value
            for c, model in models.items()
        }

    def _fidelities(self, frame: pd.DataFrame) -> dict[str, float]:
        """Return how often classifiers trained on real rows agree with these rows' labels."""
        return {
            fidelity(c): score_agreement(
                "label fidelity", judge, frame, self._data.text, self._target
            ).value
            for c, judge in self._judges.items()
        }


def _plain(found: Exposure) -> dict[str, Any]:
    canary = found.canary
    return {
        "copies": canary.copies,
        "format": canary.format.pattern,
        "space": found.space,
        "rank": found.rank,
        "bits": found.bits,
        "method": found.method,
    }


def _check_canaries(base: BaseModel, prompts: dict[Any, list[int]], max_tokens: int) -> None:
    """Refuse to train on canaries whose secret would be cut off."""
    budget = text_budget(prompts, context_length(base.model), max_tokens)
    spaced = [f" {text}" for canary_format in FORMATS for text in canary_format.candidates()]
    encoded = base.tokenizer(spaced, add_special_tokens=False)["input_ids"]
    longest = max(map(len, encoded))
    if longest >= budget:
        raise InputError(
            f"canaries have up to {longest} tokens and an end, but texts are cut after {budget}; "
            "raise `max_tokens`, or shorten `prompt`"
        )


def seeded(config: RunConfig, seed: int) -> RunConfig:
    """Return the options with another seed."""
    return replace(
        config,
        training=replace(config.training, seed=seed),
        sampling=replace(config.sampling, seed=seed),
    )
