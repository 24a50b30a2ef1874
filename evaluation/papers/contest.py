"""The rows of paper 003's experiment; a finished one is never made again.

Each model learns public text, private text, and one after the other, under every noise.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evaluation.papers.corpora import Corpora
from evaluation.papers.learning import learn, nats_of_groups, perplexity
from evaluation.papers.models import Contestant, seeded
from evaluation.papers.published import BOTH, DELTA, PRIVATE, PUBLIC, SIGMAS
from evaluation.papers.rows import Key, Rows
from twinset.privacy.accountant import epsilon
from twinset.privacy.events import Event, event_to_dict
from twinset.progress import Progress
from twinset.tokens import TokenisedRecords


@dataclass(frozen=True)
class Case:
    """One row: which model, trained on what, under what noise, from which seed."""

    contestant: Contestant
    start: str
    noise_multiplier: float
    seed: int

    @property
    def key(self) -> Key:
        """What names the row."""
        return (self.contestant.name, self.start, self.noise_multiplier, self.seed)

    def __str__(self) -> str:
        """Return all of it in words."""
        noise = "" if self.start == PUBLIC else f", σ = {self.noise_multiplier:g}"
        return f"{self.contestant.name}: {self.start}{noise}, seed {self.seed}"


def cases(contestants: tuple[Contestant, ...], seeds: int) -> Iterator[Case]:
    """Yield all rows there should be; what others begin from comes first."""
    for seed in range(seeds):
        for contestant in contestants:
            yield Case(contestant, PUBLIC, 0.0, seed)
            for start in (PRIVATE, BOTH):
                yield from (Case(contestant, start, sigma, seed) for sigma in SIGMAS)


@dataclass(frozen=True)
class Contest:
    """Makes the rows.

    Args:
        rows: that there are; it is told of each more.
        corpora: the texts, by contestant.
        progress: is told what happens.
    """

    rows: Rows
    corpora: dict[str, Corpora]
    progress: Progress

    def run(self, wanted: list[Case]) -> None:
        """Make every row that is missing; weights of public text are kept until none is."""
        todo = [case for case in wanted if case.key not in self.rows.rows]
        for number, case in enumerate(todo, start=1):
            self.progress.say(f"row {number} of {len(todo)}: {case}")
            self.rows.add(case.key, self._row(case))
        for case in wanted:
            self._kept(case).unlink(missing_ok=True)

    def _row(self, case: Case) -> dict[str, Any]:
        corpora = self.corpora[case.contestant.name]
        began = time.monotonic()
        model, events, learnt = self._trained(case, corpora)
        seconds = time.monotonic() - began
        dev, test = (self._groups(model, part, corpora) for part in (corpora.dev, corpora.test))
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

    def _trained(self, case: Case, corpora: Corpora) -> tuple[Any, list[Event], float]:
        """Return a trained model, what that spent, and the lines it was shown."""
        contestant, size = case.contestant, corpora.tokens.size
        if case.start == PUBLIC:
            model, shown = self._public(case, corpora)
            return model, [], shown
        if case.start == BOTH:
            model, shown = self._public(case, corpora)
        else:
            model, shown = seeded(contestant.shape.fresh, size, case.seed), 0.0
        recipe, private = contestant.private, corpora.private
        count = self._counting("learning private text")
        events = learn(model, private, recipe, case.noise_multiplier, case.seed, count)
        return model, events, shown + recipe.epochs * len(private)

    def _public(self, case: Case, corpora: Corpora) -> tuple[Any, float]:
        """Return the model after public text, trained or from an earlier row, and lines shown."""
        contestant, kept = case.contestant, self._kept(case)
        model = seeded(contestant.shape.begun, corpora.tokens.size, case.seed)
        if kept.exists():
            model.load_state_dict(torch.load(kept, weights_only=True))
            return model, 0.0
        recipe, public = contestant.public, corpora.public
        learn(model, public, recipe, 0.0, case.seed, self._counting("learning public text"))
        half = kept.with_suffix(".part")
        torch.save(model.state_dict(), half)
        os.replace(half, kept)
        return model, recipe.epochs * len(public)

    def _kept(self, case: Case) -> Path:
        """Return where the weights of public text are kept: under other settings, elsewhere."""
        named = json.dumps([self.rows.settings, case.contestant.name, case.seed])
        digest = hashlib.sha256(named.encode()).hexdigest()[:16]
        return self.rows.path.with_name(f".{self.rows.path.stem}-public-{digest}.pt")

    def _groups(self, model: Any, part: TokenisedRecords, corpora: Corpora) -> np.ndarray:
        return nats_of_groups(model, part, corpora.tokens.begin, self._counting("scoring"))

    def _counting(self, what: str) -> Any:
        return lambda done, total: self.progress.count(what, done, total)
