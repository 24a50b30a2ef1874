"""The rows of paper 000's experiment: models by noise and canaries, and attacks on the noise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from evaluation.papers.adp.noise import DP_SGD, LOGARITHMIC, NO_DP, PUBLISHED, SOUND
from evaluation.papers.adp.published import COPIES, SIGMAS
from evaluation.papers.rows import Key

ATTACK = "attack"
NO_COPIES = 0  # perplexities are of models that saw no canary
PLANTED = (NO_COPIES, *COPIES)
ADAPTIVE = (PUBLISHED, LOGARITHMIC, SOUND)
FORMS = (DP_SGD, *ADAPTIVE)
ATTACKED = (PUBLISHED, SOUND)  # where weights come from makes no difference
MODELS = ((NO_DP, 0.0), *((form, sigma) for sigma in SIGMAS for form in FORMS))


@dataclass(frozen=True)
class Case:
    """A model: how it was trained, under what noise, on how many canaries, from which seed."""

    form: str
    noise_multiplier: float
    copies: int
    seed: int

    @property
    def key(self) -> Key:
        """What names the row."""
        return (self.form, self.noise_multiplier, self.copies, self.seed)

    def __str__(self) -> str:
        """Return all of it in words."""
        noise = f", σ = {self.noise_multiplier:g}" if self.noise_multiplier else ""
        return f"{self.form}{noise}, canary {self.copies} times, seed {self.seed}"


@dataclass(frozen=True)
class Attack:
    """An attack on adaptive noise. It learns no text and knows no seed: it is made once."""

    form: str
    noise_multiplier: float

    @property
    def key(self) -> Key:
        """What names the row."""
        return (ATTACK, self.form, self.noise_multiplier, 0)

    def __str__(self) -> str:
        """Return all of it in words."""
        return f"attack on {self.form}, σ = {self.noise_multiplier:g}"


def cases(seeds: int) -> Iterator[Case | Attack]:
    """Yield all rows there should be."""
    yield from (Attack(form, sigma) for sigma in SIGMAS for form in ATTACKED)
    for seed in range(seeds):
        for copies in PLANTED:
            yield from (Case(*model, copies, seed) for model in MODELS)
