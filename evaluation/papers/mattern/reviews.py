"""The two tables of paper 002's experiment: what is learnt from, and what is tested on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from evaluation.papers.mattern.published import AMAZON, IMDB
from evaluation.papers.mattern.sizes import Size
from evaluation.tables import coinciding_rows, names_of
from evaluation.utility import Target, commonest_label, labelled, targets
from twinset.columns import check_table, choose_columns
from twinset.errors import InputError
from twinset.formats import read_frame

TEXT = "text"
ATTRIBUTES = {IMDB: ("sentiment",), AMAZON: ("sentiment", "product")}
PROMPTS = {IMDB: "film-review", AMAZON: "product-review"}
_DRAW = 0  # seed of which rows "all" are: the same for all rows of the results
FEWEST, MOST = 100, 500  # rows that nobody learnt from, for attacks


@dataclass(frozen=True)
class Paths:
    """The files."""

    imdb_train: Path
    imdb_test: Path
    amazon_train: Path
    amazon_test: Path

    def of(self, data: str) -> tuple[Path, Path]:
        """Return the files of one table."""
        if data == IMDB:
            return self.imdb_train, self.imdb_test
        return self.amazon_train, self.amazon_test


@dataclass(frozen=True)
class Reviews:
    """One table.

    Args:
        name: of the table.
        train: all rows that may be learnt from.
        test: rows that nobody learns from, read for the results alone.
        spare: rows of the training file that nobody learns from either.
    """

    name: str
    train: pd.DataFrame
    test: pd.DataFrame
    spare: pd.DataFrame

    @property
    def attributes(self) -> tuple[str, ...]:
        """Names of the label columns."""
        return ATTRIBUTES[self.name]

    @property
    def targets(self) -> list[Target]:
        """What classifiers predict."""
        return targets(self.attributes)

    def drawn(self, records: int | None, seed: int) -> pd.DataFrame:
        """Return some rows to learn from, of each combination as many as can be; None: all."""
        if records is None:
            return self.train
        mixed = self.train.sample(frac=1, random_state=seed)
        turn = mixed.groupby(list(self.attributes)).cumcount()
        return mixed.loc[turn.sort_values(kind="stable").index[:records]]

    @property
    def others(self) -> pd.DataFrame:
        """Rows that attacks must tell from those learnt from.

        Spare ones where there are enough: test rows may differ by more than not having been learnt.
        """
        return (self.spare if self._has_spare else self.test).head(MOST)

    @property
    def _has_spare(self) -> bool:
        return len(self.spare) >= FEWEST

    def guesses(self) -> dict[str, float]:
        """Return by target the accuracy of always answering the commonest label."""
        return {
            names_of(t): commonest_label(self.train, self.test, TEXT, t).value for t in self.targets
        }

    def facts(self) -> dict[str, Any]:
        """Return what a reader should know of it."""
        return {
            "train": len(self.train),
            "test": len(self.test),
            "coinciding": coinciding_rows(self.train[TEXT], self.test[TEXT]),
            "guesses": self.guesses(),
            "others": "spare training rows" if self._has_spare else "test rows",
        }


def read_reviews(paths: Paths, size: Size, data: str) -> Reviews:
    """Return a table, as many of its rows as the size takes.

    Raises:
        InputError: a file cannot be used.
    """
    (train, test), attributes = paths.of(data), ATTRIBUTES[data]
    learnt, spare = _split(_rows(train, attributes), size.records[data])
    tested_rows, _ = _split(_rows(test, attributes), size.tested)
    found = Reviews(data, learnt, tested_rows, spare)
    known, tested = (set(labelled(f, TEXT, found.attributes)[1]) for f in (found.train, found.test))
    if not tested <= known:
        raise InputError(f"{test}: has labels that {train.name} lacks; give tables of one kind")
    return found


def read_train(paths: Paths, size: Size, data: str) -> pd.DataFrame:
    """Return the rows of a table that may be learnt from.

    Raises:
        InputError: the file cannot be used.
    """
    return _split(_rows(paths.of(data)[0], ATTRIBUTES[data]), size.records[data])[0]


def _split(whole: pd.DataFrame, most: int | None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return at most so many rows, drawn at random, in the order of the file; and the rest."""
    mixed = whole.sample(frac=1, random_state=_DRAW)
    some, rest = mixed.iloc[:most], mixed.iloc[len(mixed) if most is None else most :]
    return some.sort_index().reset_index(drop=True), rest.reset_index(drop=True)


def _rows(path: Path, attributes: Sequence[str]) -> pd.DataFrame:
    frame = read_frame(path)
    check_table(frame, str(path))
    choose_columns(frame, TEXT, list(attributes), str(path), [])
    whole = frame[[TEXT, *attributes]].dropna()
    if whole.empty:
        raise InputError(f"{path}: no row has a text and all labels; give another table")
    return whole
