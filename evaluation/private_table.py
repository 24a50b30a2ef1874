"""The tables of an evaluation, by what they are, and whether they can be compared at all.

Messages count rows and never quote one. Knows no classifier and no model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from twinset.errors import InputError
from twinset.table.columns import check_table, choose_columns, text_cells
from twinset.table.labels import label_cells
from twinset.table.schema import Schema

REAL, REAL_SMALL = "real", "real, no more rows than the twin"
TWIN, BASELINE, NON_PRIVATE = "twin", "no private data", "non-private twin"
TWIN_SMALL = "twin, no more rows than the base"
PRIVATE_CLASSIFIER = "DP classifier on real rows"
HELD_OUT = "held out"
_NEITHER = re.compile(r"[\W_]+")  # letters nor digits
NAMED = 5  # labels in one line
FEW_ROWS = 30  # below, one line says that nothing can be concluded from so few


@dataclass(frozen=True)
class Tables:
    """Rows to learn from, and rows to test on.

    Args:
        train: the private table.
        heldout: real rows that no one learns from.
        twin: the twin.
        text: name of the text column.
        attributes: names of the label columns.
        baseline: rows that the base model wrote without private data.
        non_private: rows that a model trained without noise wrote.
        schema: of the twin, where it is known: it may have declared labels that no real row has.
    """

    train: pd.DataFrame
    heldout: pd.DataFrame
    twin: pd.DataFrame
    text: str
    attributes: tuple[str, ...]
    baseline: pd.DataFrame | None = None
    non_private: pd.DataFrame | None = None
    schema: Schema | None = None

    def training_tables(self, seed: int) -> dict[str, pd.DataFrame]:
        """Return the tables that classifiers learn from, by name; `seed` draws the small ones."""
        # Real rows cut to the twin's number: more rows teach more, whoever wrote them.
        small = self.train.sample(min(len(self.twin), len(self.train)), random_state=seed)
        found = {REAL: self.train, REAL_SMALL: small, **self.written}
        if self.baseline is not None and len(self.baseline) < len(self.twin):
            found[TWIN_SMALL] = self.twin.sample(len(self.baseline), random_state=seed)
        return found

    @property
    def rows(self) -> dict[str, int]:
        """Number of rows of each table."""
        counted = {REAL: self.train, HELD_OUT: self.heldout, **self.written}
        return {name: len(frame) for name, frame in counted.items()}

    @property
    def written(self) -> dict[str, pd.DataFrame]:
        """Return the tables that a model wrote."""
        found = {TWIN: self.twin, NON_PRIVATE: self.non_private, BASELINE: self.baseline}
        return {name: frame for name, frame in found.items() if frame is not None}


def check_tables(tables: Tables) -> list[str]:
    """Return what a reader must know of these tables.

    Raises:
        InputError: a column is missing, no row can be used, or a table holds a label that the
            private one lacks.
    """
    notes, text = [], tables.text

    def find_labels(frame: pd.DataFrame, attribute: str) -> set[str]:
        return set(labelled(frame, text, (attribute,))[1])

    declared = tables.schema.attributes if tables.schema is not None else ()
    for name, frame in (
        {"`train`": tables.train, "`test`": tables.heldout} | tables.written
    ).items():
        check_table(frame, name)
        choose_columns(frame, text, list(tables.attributes), name, [])
        text_cells(frame[text], f"{name}: column {text!r}")
        if not labelled(frame, text, tables.attributes)[0]:
            raise InputError(f"{name}: no row has both a text and all labels; give another table")
        for attribute in tables.attributes:
            known = find_labels(tables.train, attribute)
            known |= {str(value) for a in declared if a.name == attribute for value in a.values}
            if unknown := find_labels(frame, attribute) - known:
                raise InputError(
                    f"{name}: column {attribute!r} has {len(unknown)} labels that `train` lacks; "
                    "give tables of the same kind"
                )
    for attribute in tables.attributes:
        known = find_labels(tables.train, attribute)
        if rest := known - find_labels(tables.heldout, attribute):
            # Only labels that the twin shows anyway are named.
            shown = rest & find_labels(tables.twin, attribute)
            named = ", ".join(map(repr, sorted(shown)[:NAMED]))
            notes.append(
                f"{attribute}: {len(rest)} of {len(known)} labels have no row in `test`, so that "
                f"nothing is known of them{': ' if named else ''}{named}"
            )
    notes += [
        f"{name} has {len(frame)} rows only: nothing can be concluded from so few"
        for name, frame in tables.written.items()
        if len(frame) < FEW_ROWS
    ]
    notes += [
        f"{name} has rows of one {attribute!r} only: whoever learns from it says that"
        for name, frame in tables.written.items()
        for attribute in tables.attributes
        if len(find_labels(frame, attribute)) < 2
    ]
    return notes


def labelled(frame: pd.DataFrame, text: str, target: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return texts and labels of the rows that have both.

    Labels are written as strings, so that the same values agree whatever files they came from.
    """
    columns = (label_cells(frame[name], f"column {name!r}") for name in target)
    texts = text_cells(frame[text], f"column {text!r}")
    rows = [
        (row, " | ".join(map(str, values)))
        for row, *values in zip(texts, *columns, strict=True)
        if row is not None and None not in values
    ]
    return [row for row, _ in rows], [label for _, label in rows]


def normalised(text: object) -> str:
    """Return the text's letters and digits, lower-cased; the text itself where it has none.

    By these, rows count as the same.

    >>> normalised("Good film!"), normalised("SO-SO"), normalised(3), normalised(":-)")
    ('goodfilm', 'soso', '3', ':-)')
    """
    return _NEITHER.sub("", str(text).lower()) or str(text)


def without_overlap(
    heldout: pd.DataFrame, train: pd.DataFrame, text: str
) -> tuple[pd.DataFrame, int]:
    """Return the held-out rows whose text is no training row's, and how many there were."""
    fresh = [not coincides for coincides in _coinciding(train[text], heldout[text])]
    return heldout[fresh].reset_index(drop=True), fresh.count(False)


def coinciding_rows(train: Iterable[object], heldout: Iterable[object]) -> int:
    """Count held-out texts that are training texts.

    >>> coinciding_rows(["Good film!"], ["good film", "Bad film."])
    1
    """
    return sum(_coinciding(train, heldout))


def _coinciding(train: Iterable[object], heldout: Iterable[object]) -> Iterator[bool]:
    known = set(map(normalised, train))
    return (normalised(text) in known for text in heldout)


def names_of(target: Sequence[str]) -> str:
    """Return how a target is called.

    >>> names_of(("sentiment", "product"))
    'sentiment × product'
    """
    return " × ".join(target)
