"""What a comparison of noise policies is asked for, and the rows it learns from and holds out.

Knows no model and no score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
import pandas as pd

from evaluation.classifiers import CLASSIFIERS
from twinset.config import NoisePolicyName
from twinset.errors import InputError
from twinset.formats import read_frame
from twinset.progress import Progress
from twinset.records import Records, read_records, records_from_frame, twin_frame
from twinset.request import Source
from twinset.templates import Template, load_template

POLICIES: tuple[NoisePolicyName, ...] = get_args(NoisePolicyName)
NO_PRIVACY = "none"  # a policy here: what training without noise gives, and gives away
HELD_OUT_SHARE = 5  # one row in so many, where no held-out table is given
HELD_OUT_ROWS = 2000  # at most: embeddings of more take minutes


@dataclass(frozen=True)
class Wanted:
    """What is compared.

    Args:
        source: the private table.
        policies: names in `POLICIES`, or `NO_PRIVACY`.
        seeds: how many runs of each; the first seed is that of `config`.
        rows: of each twin.
        test: real rows, held out; None keeps a fifth of the table.
        classifiers: names in `classifiers.CLASSIFIERS`.
    """

    source: Source
    policies: Sequence[str] = POLICIES
    seeds: int = 3
    rows: int = 1000
    test: str | None = None
    classifiers: Sequence[str] = CLASSIFIERS


@dataclass(frozen=True)
class Data:
    """The rows: those that are learnt from, those held out, and what the prompts make of them."""

    train: Records
    heldout: Records
    template: Template

    @property
    def text(self) -> str:
        """Name of the text column."""
        return self.train.schema.text

    @property
    def attributes(self) -> tuple[str, ...]:
        """Names of the label columns."""
        return tuple(attribute.name for attribute in self.train.schema.attributes)


def read_data(wanted: Wanted, seed: int, progress: Progress, reserved: Sequence[str] = ()) -> Data:
    """Read the private table and what is held out of it.

    Raises:
        InputError: a table cannot be used.
    """
    source = wanted.source
    records, notes = records_from_frame(
        read_frame(source.data, source.split),
        source.text,
        source.attributes,
        source=source.data,
        drop_empty=source.drop_empty,
        reserved=reserved,
    )
    for note in notes:
        progress.say(note)
    template = load_template(source.prompt, records.schema)
    rng = np.random.default_rng(seed)
    if wanted.test is None:
        order, held_out = rng.permutation(len(records)), _held_out(len(records), source.data)
        return Data(take(records, order[held_out:]), take(records, order[:held_out]), template)
    schema = records.schema
    names = [attribute.name for attribute in schema.attributes]
    heldout, _ = read_records(
        wanted.test, schema.text, names, drop_empty=source.drop_empty, reserved=reserved
    )
    if not set(heldout.labels) <= set(schema.combinations):
        raise InputError(f"--test {wanted.test}: has labels that {source.data} lacks")
    tested = take(heldout, rng.permutation(len(heldout))[:HELD_OUT_ROWS])
    return Data(records, replace(tested, schema=schema), template)


def _held_out(rows: int, source: str) -> int:
    if rows < HELD_OUT_SHARE:
        raise InputError(f"{source}: too few rows to hold some out; give others by --test")
    return min(rows // HELD_OUT_SHARE, HELD_OUT_ROWS)


def take(records: Records, places: np.ndarray) -> Records:
    """Return the records at these places."""
    texts, labels = [records.texts[i] for i in places], [records.labels[i] for i in places]
    return Records(texts, labels, records.schema)


def table(records: Records) -> pd.DataFrame:
    """Return records as a table again."""
    return twin_frame(records.schema, records.texts, records.labels)
