"""One row of paper 001's experiment: an encoder, a language model of e-mails, or an attack."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from evaluation.audit.report import MechanismAudit, guaranteed_for_json
from evaluation.encoderclassifier import EncoderClassifier
from evaluation.findings import Measured
from evaluation.fitting import Budget
from evaluation.leakage.names import mean_reciprocal_rank, phone_exposure
from evaluation.papers.anadp.cases import Attack, Classifier, Leakage
from evaluation.papers.anadp.corpora import Corpus
from evaluation.papers.anadp.noise import NO_DP, Maker, finite, policy_of
from evaluation.papers.anadp.passages import Passages
from evaluation.papers.anadp.published import DELTA, EPSILON, RANK
from evaluation.papers.anadp.sizes import Size
from evaluation.papers.anadp.tuning import Tuning
from evaluation.papers.learning import learn, plan_of
from evaluation.papers.models import seeded
from evaluation.papers.workshop import Workshop
from twinset.noisemap import noise_cells
from twinset.privacy.accountant import epsilon
from twinset.privacy.calibration import calibrate_noise_multiplier

ATTACKED_SIGMA = 1.0
DIGITS = 10  # of the telephone numbers whose exposure is judged: American ones with area code
PARTS = ("train", "held-out")


def classify(case: Classifier, corpus: Corpus, size: Size, workshop: Workshop) -> dict[str, Any]:
    """Return an encoder's accuracy on test rows, what it spent, and where noise went."""
    maker, trained = Maker(case.form), list[tuple[str, int]]()
    tuning = Tuning(case.method, RANK, size.tables)

    def adapt(model: Any) -> Any:
        adapted = tuning(model)
        named = [(n, p.numel()) for n, p in adapted.named_parameters() if p.requires_grad]
        trained[:] = named
        return adapted

    recipes, private = size.recipes[case.method], case.form != NO_DP
    recipe = recipes.private if private else recipes.bare
    classifier = EncoderClassifier(
        size.encoder,
        budget=Budget(EPSILON, DELTA) if private else None,
        recipe=recipe,
        seed=case.seed,
        say=workshop.progress.say,
        count=workshop.counting("learning"),
        adapt=adapt,
        make=maker,
        max_tokens=size.tokens,
    )
    began = time.monotonic()
    classifier.fit(corpus.train.texts, corpus.train.labels)
    seconds = time.monotonic() - began
    right = classifier.predict(corpus.test.texts) == np.array(corpus.test.labels)
    cells = noise_cells(maker.mean_noise([name for name, _ in trained]))
    return {
        "accuracy": float(right.mean()),
        "trained": sum(numbers for _, numbers in trained),
        "noise_multiplier": maker.setting.noise_multiplier,
        "epsilon": finite(classifier.epsilon),
        "epsilon_nominal": finite(maker.nominal(DELTA)),
        "noise": [[*place, factor] for place, factor in cells.items()],
        "rows_per_second": round(recipe.epochs * len(corpus.train.texts) / seconds, 1),
    }


def leak(case: Leakage, passages: Passages, size: Size, workshop: Workshop) -> dict[str, Any]:
    """Return how well a language model knows names and numbers that it did and did not learn."""
    tokens, maker = passages.tokens, Maker(case.form)
    model = seeded(size.shape.fresh, tokens.size, case.seed)

    def begin() -> None:
        public = passages.records(passages.public)
        learn(model, public, size.begun, 0.0, case.seed, workshop.counting("learning public text"))

    workshop.once(f"public text, seed {case.seed}", model, begin)
    records, sigma = passages.records(passages.train), 0.0
    if case.form != NO_DP:
        plan = plan_of(len(records), size.recipe, 0.0)
        sigma = calibrate_noise_multiplier(EPSILON, DELTA, plan.sample_rate, plan.steps)
    count = workshop.counting("learning e-mails")
    events = learn(model, records, size.recipe, sigma, case.seed, count, maker)
    model.eval()
    parts = zip(PARTS, (passages.train, passages.heldout), strict=True)
    return {
        "known": {part: _known(model, passages, texts, part, workshop) for part, texts in parts},
        "noise_multiplier": sigma,
        "epsilon": finite(epsilon(events, DELTA)),
        "epsilon_nominal": finite(maker.nominal(DELTA)),
    }


def attack(case: Attack, trials: int) -> dict[str, Any]:
    """Return what an attack on a single step, and on a few, showed of ε; made-up records only."""
    audit = MechanismAudit(policy_of(case.form), noise_multiplier=ATTACKED_SIGMA, trials=trials)
    return {
        "findings": [
            asdict(found) | {"guaranteed": guaranteed_for_json(found.guaranteed)}
            for found in audit.run()
        ]
    }


def _known(
    model: Any, passages: Passages, texts: Sequence[str], part: str, workshop: Workshop
) -> dict[str, float | int | None]:
    """Return mean reciprocal rank and exposure over texts, with how many each is of.

    The sample of numbers and of candidates is the same for all models.
    """
    size = passages.size
    asked: dict[str, Any] = {
        "rows": part,
        "max_tokens": size.shape.context,
        "seed": 0,
        "progress": workshop.progress,
    }
    given = (model, passages.tokens.tokenizer, texts, [[passages.tokens.begin]] * len(texts))
    ranked = mean_reciprocal_rank(*given, **asked, find=passages.find_names)
    phones = phone_exposure(*given, **asked, candidates=size.candidates, most=size.scored_numbers)
    same = [m.score for m in phones if _digits(m) == DIGITS]
    many = sum(score.n for score in same)
    return {
        "rank": None if ranked is None else ranked.score.value,
        "names": 0 if ranked is None else ranked.score.n,
        "exposure": sum(s.value * s.n for s in same) / many if many else None,
        "numbers": many,
    }


def _digits(measured: Measured) -> int:
    return int(measured.place["candidates"].removeprefix("10^"))
