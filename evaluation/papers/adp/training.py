"""One row of paper 000's experiment: a model learns private lines, or its noise is attacked."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from evaluation.audit.mechanism import Finding
from evaluation.audit.report import MechanismAudit, guaranteed_for_json
from evaluation.exposure import Exposure, exposure
from evaluation.extrapolation import extrapolated_exposure
from evaluation.papers.adp.cases import Attack, Case
from evaluation.papers.adp.corpora import Corpora, canary
from evaluation.papers.adp.noise import Maker, multiplier_of, policy_of, weights_of
from evaluation.papers.adp.sizes import DELTA
from evaluation.papers.adp.weighing import Weighing
from evaluation.papers.learning import learn, nats_of_groups, perplexity
from evaluation.papers.models import seeded
from evaluation.papers.workshop import Workshop
from twinset.privacy.accountant import epsilon
from twinset.privacy.events import Event, event_to_dict


def train(case: Case, corpora: Corpora, weighing: Weighing, workshop: Workshop) -> dict[str, Any]:
    """Return what a model knows, what it spent, and what it came from."""
    size, records = corpora.size, corpora.records(case.copies)
    model = seeded(size.shape.fresh, corpora.tokens.size, case.seed)
    maker = Maker(case.form, weights_of(case.form, weighing.planted(case.copies), weighing.scale))
    sigma = multiplier_of(case.form, case.noise_multiplier)
    began = time.monotonic()
    count = workshop.counting("learning")
    events = learn(model, records, size.recipe, sigma, case.seed, count, maker)
    seconds = time.monotonic() - began
    groups = nats_of_groups(
        model, corpora.tested, corpora.tokens.begin, workshop.counting("scoring")
    )
    known = _exposure(model, corpora, case)
    return {
        "perplexity_test": perplexity(groups),
        "exposure": known.bits,
        "rank": known.rank,
        "method": known.method,
        **_spent(events, maker),
        "weights": _weights(maker.weights, corpora),
        "seconds": round(seconds, 1),
        "records_per_second": round(size.recipe.epochs * len(records) / seconds, 1),
    }


def attack(case: Attack, trials: int) -> dict[str, Any]:
    """Return what an attack on a single step, and on a few, showed of ε; made-up records only."""
    sigma = multiplier_of(case.form, case.noise_multiplier)
    audit = MechanismAudit(policy_of(case.form), noise_multiplier=sigma, trials=trials)
    return {"findings": [_finding(found) for found in audit.run()]}


def _exposure(model: Any, corpora: Corpora, case: Case) -> Exposure:
    prompt, planted = [corpora.tokens.begin], canary(case.copies)
    many = corpora.size.candidates
    if many is None:
        return exposure(model, corpora.tokens.tokenizer, prompt, planted)
    return extrapolated_exposure(
        model, corpora.tokens.tokenizer, prompt, planted, seed=case.seed, candidates=many
    )


def _spent(events: list[Event], maker: Maker) -> dict[str, Any]:
    """Return ε for texts of privacy weight 1 and 0, and what the paper would state."""
    nominal = maker.nominal(DELTA)
    return {
        "epsilon_most_protected": _finite(epsilon(events, DELTA, 1.0)),
        "epsilon_least_protected": _finite(epsilon(events, DELTA)),
        "epsilon_nominal": None if nominal is None else _finite(nominal),
        "mean_noise": maker.mean_noise(),
        "events": [event_to_dict(event) for event in events],
    }


def _finite(value: float) -> float | None:
    return None if math.isinf(value) else value


def _weights(weights: torch.Tensor | None, corpora: Corpora) -> dict[str, float] | None:
    """Return what privacy weights the lines have, and the canary where it was planted."""
    if weights is None:
        return None
    lines, planted = weights[: len(corpora.train)], weights[len(corpora.train) :]
    quantiles = torch.quantile(lines, torch.tensor([0.1, 0.5, 0.9], dtype=lines.dtype))
    found = dict(zip(("10 %", "median", "90 %"), quantiles.tolist(), strict=True))
    return found | {"mean": float(lines.mean())} | _of_canary(planted.tolist())


def _of_canary(planted: Sequence[float]) -> dict[str, float]:
    return {"canary": planted[0]} if planted else {}


def _finding(found: Finding) -> dict[str, Any]:
    return asdict(found) | {"guaranteed": guaranteed_for_json(found.guaranteed)}
