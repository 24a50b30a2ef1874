"""The rows of paper 001's experiment: classifiers, language models of e-mails, and attacks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from evaluation.papers.anadp.corpora import SETS
from evaluation.papers.anadp.noise import FORMS, IMPORTANCE
from evaluation.papers.anadp.tuning import METHODS
from evaluation.papers.rows import Key

LEAKAGE, ATTACK = "e-mails", "attack"


@dataclass(frozen=True)
class Classifier:
    """An encoder: on which set, by which method, under what noise, from which seed."""

    dataset: str
    method: str
    form: str
    seed: int

    @property
    def key(self) -> Key:
        """What names the row."""
        return (self.dataset, self.method, self.form, self.seed)

    def __str__(self) -> str:
        """Return all of it in words."""
        return f"{self.dataset}: {self.method}, {self.form}, seed {self.seed}"


@dataclass(frozen=True)
class Leakage:
    """A language model of e-mails: under what noise, from which seed."""

    form: str
    seed: int

    @property
    def key(self) -> Key:
        """What names the row."""
        return (LEAKAGE, self.form, self.seed)

    def __str__(self) -> str:
        """Return all of it in words."""
        return f"language model of e-mails: {self.form}, seed {self.seed}"


@dataclass(frozen=True)
class Attack:
    """An attack on the noise. It learns no text and knows no seed: it is made once."""

    form: str

    @property
    def key(self) -> Key:
        """What names the row."""
        return (ATTACK, self.form, 0)

    def __str__(self) -> str:
        """Return all of it in words."""
        return f"attack on {self.form}"


Case = Classifier | Leakage | Attack


def cases(seeds: int) -> Iterator[Case]:
    """Yield all rows there should be, seed by seed."""
    yield from map(Attack, IMPORTANCE)
    for seed in range(seeds):
        yield from (Leakage(form, seed) for form in FORMS)
        for dataset in SETS:
            for method in METHODS:
                yield from (Classifier(dataset, method, form, seed) for form in FORMS)
