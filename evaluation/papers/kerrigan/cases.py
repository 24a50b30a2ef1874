"""The rows of paper 003's experiment: each model, trained on what, under what noise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from evaluation.papers.kerrigan.contestants import Contestant
from evaluation.papers.kerrigan.published import BOTH, PRIVATE, PUBLIC, SIGMAS
from evaluation.papers.rows import Key


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
