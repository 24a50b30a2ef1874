"""One row of paper 004's experiment: a model learns, is scored and attacked."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from evaluation.fitting import Recipe
from evaluation.papers.learning import learn, perplexity, plan_of
from evaluation.papers.models import seeded
from evaluation.papers.sdp.algorithm import SelectiveDpsgd
from evaluation.papers.sdp.attacks import canary_exposure, membership
from evaluation.papers.sdp.cases import (
    ANONYMISED_MISSED,
    POLICIES,
    SDPSGD_MISSED,
    TRANSFORMER_DPSGD,
    TRANSFORMER_NO_DP,
    Case,
    redacted,
    selective,
)
from evaluation.papers.sdp.corpora import Flagged, Row, canary
from evaluation.papers.sdp.lstm import Lstm
from evaluation.papers.sdp.published import (
    ANONYMISED,
    DELTA,
    DPSGD,
    NO_DP,
    NOISE,
    SDPSGD,
    TRANSFORMER_EPSILON,
    TRANSFORMER_NORM,
)
from evaluation.papers.sdp.scoring import scored
from evaluation.papers.sdp.sizes import Size
from evaluation.papers.sdp.texts import LstmTexts, TransformerTexts
from evaluation.papers.workshop import Workshop
from twinset.config import PolicyConfig
from twinset.policies import NoisePolicy, Setting
from twinset.policies.selective import MaskedPhase, PublishedSelective
from twinset.privacy.accountant import epsilon
from twinset.privacy.calibration import calibrate_noise_multiplier
from twinset.privacy.events import Event, MaskedAccess, event_to_dict

# What a row may say of ε: that a theorem covers it, that none does, or that there is no noise.
NOMINAL, NONE = "nominal, no guarantee", "none"
GUARANTEED = "guaranteed, the tokens taken as public"
FLAGGED_ONLY = "guaranteed for what is flagged, all else and the tokens taken as public"
LARGE_DELTA = f"{NOMINAL}: δ is not below 1/N"


@dataclass(frozen=True)
class LstmRow:
    """Makes a row of an LSTM.

    Args:
        case: the row.
        size: how large.
        texts: its text set.
        workshop: is told of progress.
    """

    case: Case
    size: Size
    texts: LstmTexts
    workshop: Workshop

    def row(self) -> dict[str, Any]:
        """Return scores, attacks, ε, and what they came from."""
        began = time.monotonic()
        vocabulary = len(self.texts.tokenizer)
        model = seeded(lambda v: Lstm(v, self.size.width), vocabulary, self.case.seed)
        points: list[dict[str, Any]] = []
        spent = self._learn(model, lambda: points.append(self._point(model)))
        seconds = time.monotonic() - began
        test = scored(model, self.texts.test)
        return {
            **points[-1],
            "accuracy": test.accuracy,
            "private_perplexity": perplexity(test.private_groups),
            "membership": membership(model, self.texts.sides, self.case.seed),
            **spent,
            "points": points,
            "seconds": round(seconds, 1),
            "test_groups": test.groups.round(4).tolist(),
            "private_groups": test.private_groups.round(4).tolist(),
        }

    def _learn(self, model: Lstm, look: Callable[[], object]) -> dict[str, Any]:
        name, texts = self.case.model, self.texts
        if name in (SDPSGD, SDPSGD_MISSED):
            return self._selective(model, texts.train if name == SDPSGD else texts.missed, look)
        if name == DPSGD:
            return self._uniform(model, texts.train, look)
        read = {
            NO_DP: lambda: texts.train,
            ANONYMISED: lambda: texts.anonymised(True),
            ANONYMISED_MISSED: lambda: texts.anonymised(False),
        }[name]()
        learn(model, read.records, self.size.open, 0.0, self.case.seed, self._count(look))
        return {"noise_multiplier": 0.0, "says": NONE, "epsilon": None}

    def _uniform(self, model: Lstm, read: Flagged, look: Callable[[], object]) -> dict[str, Any]:
        known = NOISE[self.case.text, DPSGD]
        recipe = replace(self.size.noisy, max_grad_norm=known.max_grad_norm)
        sigma = noise_for(len(read.records), recipe, known.epsilon)
        count = self._count(look)
        events = learn(model, read.records, recipe, sigma, self.case.seed, count)
        says = covered(GUARANTEED, len(read.records))
        return _spent(sigma, recipe.max_grad_norm, says, epsilon(events, DELTA), events)

    def _selective(self, model: Lstm, read: Flagged, look: Callable[[], object]) -> dict[str, Any]:
        known = NOISE[self.case.text, SDPSGD]
        noisy = self.size.noisy
        recipe = Recipe(
            noisy.batch_size, noisy.epochs, self.size.open.learning_rate, known.max_grad_norm
        )
        done = SelectiveDpsgd(
            model, read, recipe, self.size.step, known.epsilon, DELTA, self._count(look)
        ).train()
        events = list(done.events)
        told = _spent(
            done.noise_multiplier, known.max_grad_norm, NOMINAL, done.nominal(DELTA), events
        )
        return told | {"proved": _finite(done.proved(DELTA)), "releases": done.releases}

    def _count(self, look: Callable[[], object]) -> Callable[[int, int], object]:
        """Return what is told of each step, and has the model looked at some of them."""
        tell, points = self.workshop.counting("learning"), self.size.points

        def count(done: int, total: int) -> None:
            tell(done, total)
            if done in {math.ceil(total / 2**k) for k in range(points)}:
                look()

        return count

    def _point(self, model: Lstm) -> dict[str, Any]:
        secret, tokenizer = canary(self.size.digits), self.texts.tokenizer
        found = canary_exposure(model, tokenizer, secret, self.size.exact, self.case.seed)
        return {
            "perplexity": perplexity(scored(model, self.texts.test).groups),
            "exposure": found.bits,
            "method": f"{found.method}, of {found.space:,}",
            "candidates": found.space,
        }


@dataclass(frozen=True)
class TransformerRow:
    """Makes a row of the transformer.

    Args:
        case: the row.
        size: how large.
        texts: WikiText-2.
        build: makes the base model for so many tokens.
        flagged: training rows by policy function.
        workshop: weights of redacted texts are kept there.
    """

    case: Case
    size: Size
    texts: TransformerTexts
    build: Callable[[int], Any]
    flagged: Callable[[str], list[Row]]
    workshop: Workshop

    def row(self) -> dict[str, Any]:
        """Return perplexity, ε, and what they came from."""
        began = time.monotonic()
        model = seeded(self.build, len(self.texts.tokenizer), self.case.seed)
        spent = self._learn(model)
        seconds = time.monotonic() - began
        test = scored(model, self.texts.test)
        return {
            "perplexity": perplexity(test.groups),
            "accuracy": test.accuracy,
            **spent,
            "seconds": round(seconds, 1),
            "test_groups": test.groups.round(4).tolist(),
        }

    def _learn(self, model: Any) -> dict[str, Any]:
        if self.case.model == TRANSFORMER_NO_DP:
            records = self.texts.train.records
            learn(model, records, self.size.fine, 0.0, self.case.seed, self._count)
            return {"noise_multiplier": 0.0, "says": NONE, "epsilon": None}
        if self.case.model == TRANSFORMER_DPSGD:
            sigma, events = self._noisy(model)
            says = covered(GUARANTEED, len(self.texts.train.records))
            return _spent(sigma, TRANSFORMER_NORM, says, epsilon(events, DELTA), events)
        (policy,) = (p for p in POLICIES if self.case.model in (redacted(p), selective(p)))
        first = self._redacted(model, policy)
        if self.case.model == redacted(policy):
            told = {"noise_multiplier": 0.0, "says": NONE, "epsilon": None}
        else:
            sigma, events = self._noisy(model, policy)
            spent = epsilon(events, DELTA)  # masked texts are taken as known
            says = covered(FLAGGED_ONLY, len(self.texts.train.records))
            told = _spent(sigma, TRANSFORMER_NORM, says, spent, [first, *events])
        return told | {"share": self.texts.share(self.flagged(policy))}

    def _redacted(self, model: Any, policy: str) -> Event:
        """Phase 1: texts without what is flagged, read without noise."""

        def train() -> None:
            records = self.texts.redacted(self.flagged(policy)).records
            make = _phase(MaskedPhase, policy)
            learn(model, records, self.size.fine, 0.0, self.case.seed, self._count, make)

        self.workshop.once(f"{REDACTED_NAME}, {policy}, seed {self.case.seed}", model, train)
        return MaskedAccess(policy)

    def _noisy(self, model: Any, policy: str | None = None) -> tuple[float, list[Event]]:
        """DPSGD on texts as they are; with a policy, phase 2."""
        records = self.texts.train.records
        recipe = replace(self.size.private, max_grad_norm=TRANSFORMER_NORM)
        sigma = noise_for(len(records), recipe, TRANSFORMER_EPSILON)
        more = (_phase(PublishedSelective, policy),) if policy else ()
        return sigma, learn(model, records, recipe, sigma, self.case.seed, self._count, *more)

    @property
    def _count(self) -> Callable[[int, int], object]:
        return self.workshop.counting("learning")


REDACTED_NAME = "transformer of redacted texts"


def covered(says: str, records: int) -> str:
    """Return what ε is called; as in `twinset`, nothing is guaranteed with δ of 1/N or more.

    >>> covered(GUARANTEED, 1_000), covered(GUARANTEED, 20_000)
    ('guaranteed, the tokens taken as public', 'nominal, no guarantee: δ is not below 1/N')
    """
    return says if records * DELTA < 1 else LARGE_DELTA


def noise_for(records: int, recipe: Recipe, target: float) -> float:
    """Return σ with which `learn` spends ε at δ."""
    plan = plan_of(records, recipe, 1.0)
    return calibrate_noise_multiplier(target, DELTA, plan.sample_rate, plan.steps)


def _phase(
    kind: type[MaskedPhase | PublishedSelective], policy: str
) -> Callable[[Setting], NoisePolicy]:
    options = PolicyConfig(noise_policy="selective", policy_form="published", detector=policy)
    return lambda setting: kind(replace(setting, options=options))


def _spent(
    sigma: float, norm: float, says: str, spent: float, events: list[Event]
) -> dict[str, Any]:
    return {
        "noise_multiplier": sigma,
        "max_grad_norm": norm,
        "says": says,
        "epsilon": _finite(spent),
        "events": [event_to_dict(event) for event in events],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
