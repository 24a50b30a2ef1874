"""One row of paper 003's experiment: a model learns public text, private text, or both in turn."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from evaluation.papers.kerrigan.cases import Case
from evaluation.papers.kerrigan.corpora import Corpora
from evaluation.papers.kerrigan.published import BOTH, DELTA, PUBLIC
from evaluation.papers.learning import learn, nats_of_groups, perplexity
from evaluation.papers.models import seeded
from evaluation.papers.workshop import Workshop
from twinset.privacy.accountant import epsilon
from twinset.privacy.events import Event, event_to_dict
from twinset.tokens import TokenisedRecords


@dataclass(frozen=True)
class Training:
    """Makes a row.

    Args:
        case: the row.
        corpora: the texts.
        workshop: weights of public text are kept there.
    """

    case: Case
    corpora: Corpora
    workshop: Workshop

    def row(self) -> dict[str, Any]:
        """Return perplexities, ε, and what they came from."""
        began = time.monotonic()
        model, events, learnt = self._trained()
        seconds = time.monotonic() - began
        dev, test = (self._groups(model, part) for part in (self.corpora.dev, self.corpora.test))
        spent = epsilon(events, DELTA)
        return {
            "perplexity_dev": perplexity(dev),
            "perplexity_test": perplexity(test),
            "epsilon": None if math.isinf(spent) else spent,
            "events": [event_to_dict(event) for event in events],
            "seconds": round(seconds, 1),
            "records_per_second": round(learnt / seconds, 1),
            "test_groups": test.round(4).tolist(),
        }

    def _trained(self) -> tuple[Any, list[Event], float]:
        """Return a trained model, what that spent, and the lines it was shown."""
        case, contestant, private = self.case, self.case.contestant, self.corpora.private
        if case.start == PUBLIC:
            model, shown = self._public()
            return model, [], shown
        if case.start == BOTH:
            model, shown = self._public()
        else:
            model = seeded(contestant.shape.fresh, self.corpora.tokens.size, case.seed)
            shown = 0.0
        recipe = contestant.private
        count = self.workshop.counting("learning private text")
        events = learn(model, private, recipe, case.noise_multiplier, case.seed, count)
        return model, events, shown + recipe.epochs * len(private)

    def _public(self) -> tuple[Any, float]:
        """Return the model after public text, trained or from an earlier row, and lines shown."""
        contestant, seed, public = self.case.contestant, self.case.seed, self.corpora.public
        model = seeded(contestant.shape.begun, self.corpora.tokens.size, seed)
        count = self.workshop.counting("learning public text")

        def train() -> None:
            learn(model, public, contestant.public, 0.0, seed, count)

        trained = self.workshop.once(f"{contestant.name}, seed {seed}", model, train)
        return model, contestant.public.epochs * len(public) if trained else 0.0

    def _groups(self, model: Any, part: TokenisedRecords) -> np.ndarray:
        count = self.workshop.counting("scoring")
        return nats_of_groups(model, part, self.corpora.tokens.begin, count)
