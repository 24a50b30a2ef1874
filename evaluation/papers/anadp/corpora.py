"""SST-2, AG News and Yelp as texts with labels: the rows to train on, and the rows to test on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evaluation.papers.anadp.sizes import Size
from twinset.errors import InputError
from twinset.formats import read_frame

TEXT = "text"
SST2, AG_NEWS, YELP = "SST-2", "AG News", "Yelp"
_DRAW = 0  # seed of which rows are taken: the same for all rows


@dataclass(frozen=True)
class Labels:
    """What is to be told of a text.

    Args:
        column: of the tables.
        without: labels whose rows are left out.
        rows: to train on, in the set as it was published; for a plan without files.
        classes: labels that are left.
    """

    column: str
    without: tuple[str, ...]
    rows: int
    classes: int


SETS = {
    SST2: Labels("sentiment", (), 67_349, 2),
    AG_NEWS: Labels("topic", (), 120_000, 4),
    YELP: Labels("sentiment", ("neutral",), 560_000, 2),
}


@dataclass(frozen=True)
class Paths:
    """The files.

    Args:
        sst2_train: table to learn from.
        sst2_test: table for the scores; so are the others.
        ag_news_train: see above.
        ag_news_test: see above.
        yelp_train: see above.
        yelp_test: see above.
        emails: a table of e-mails with a column `body`.
        public: text that anyone may have, which the language model begins from.
    """

    sst2_train: Path
    sst2_test: Path
    ag_news_train: Path
    ag_news_test: Path
    yelp_train: Path
    yelp_test: Path
    emails: Path
    public: Path

    def of(self, dataset: str) -> tuple[Path, Path]:
        """Return the tables of a set: to train on, to test on."""
        return {
            SST2: (self.sst2_train, self.sst2_test),
            AG_NEWS: (self.ag_news_train, self.ag_news_test),
            YELP: (self.yelp_train, self.yelp_test),
        }[dataset]


@dataclass(frozen=True)
class Rows:
    """Labelled texts."""

    texts: Sequence[str]
    labels: Sequence[str]

    @property
    def largest_class(self) -> float:
        """Share of the commonest label: what a guess gets right."""
        return max(Counter(self.labels).values()) / len(self.labels)


def read_rows(path: Path, labels: Labels, most: int | None) -> Rows:
    """Return equally many rows of each label, at most `most` in all, drawn at random.

    Raises:
        InputError: the file cannot be used, or has no rows of two labels.
    """
    frame = read_frame(path)
    for column in (TEXT, labels.column):
        if column not in frame:
            raise InputError(f"{path}: has no column {column!r}; rename one")
    frame = frame[[TEXT, labels.column]].dropna()
    known = frame[labels.column].astype(str).to_numpy()
    order = np.random.default_rng(_DRAW).permutation(len(known))
    members = {label: order[known[order] == label] for label in sorted(set(known))}
    kept = [rows for label, rows in members.items() if label not in labels.without]
    if len(kept) < 2:
        raise InputError(f"{path}: column {labels.column!r} has fewer than two labels to tell")
    each = min(map(len, kept))
    if most is not None:
        each = min(each, most // len(kept))
    taken = np.sort(np.concatenate([rows[:each] for rows in kept]))
    texts = frame[TEXT].astype(str).to_numpy()
    return Rows(texts[taken].tolist(), known[taken].tolist())


@dataclass(frozen=True)
class Corpus:
    """One set."""

    train: Rows
    test: Rows

    @classmethod
    def read(cls, paths: Paths, dataset: str, size: Size) -> Corpus:
        """Return a set, as many rows as the size takes.

        Raises:
            InputError: a file cannot be used.
        """
        train, test = paths.of(dataset)
        labels = SETS[dataset]
        return cls(read_rows(train, labels, size.rows), read_rows(test, labels, size.scored_rows))

    def facts(self) -> dict[str, Any]:
        """Return what a reader should know of it."""
        return {
            "train": len(self.train.texts),
            "test": len(self.test.texts),
            "classes": len(set(self.train.labels)),
            "guess": self.test.largest_class,
        }
