"""Twins of paper 002's experiment: models that learn from rows, and what they write.

A twin has as many rows of each combination of labels, as in the paper: the noisy label counts of a
few records tell nothing, and the set of labels is public.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from evaluation.baseline import untrained_twin
from evaluation.heldout import perplexity
from evaluation.papers.mattern.cases import APART, Case
from evaluation.papers.mattern.reviews import PROMPTS, TEXT, Reviews
from evaluation.papers.mattern.sizes import DECODINGS, OFF, Mismatch, Size
from evaluation.policydata import take
from twinset.basemodel import BaseModel, context_length, load_base, special_token_strings
from twinset.config import RunConfig, SamplingConfig
from twinset.finetune import finetune
from twinset.options import run_config
from twinset.precision import frozen_dtype
from twinset.progress import Progress
from twinset.records import Records, records_from_frame
from twinset.schema import Combination, Schema
from twinset.templates import Template, load_template
from twinset.tokens import tokenise
from twinset.twinmodel import TwinModel


@dataclass(frozen=True)
class Written:
    """A model, and the combinations of labels that it writes."""

    model: TwinModel
    combinations: tuple[Combination, ...]


class Writer:
    """Writes twins of one table.

    Args:
        reviews: the table.
        size: how large.
        progress: is told what happens.
    """

    def __init__(self, reviews: Reviews, size: Size, progress: Progress) -> None:
        self._reviews, self._size, self._progress = reviews, size, progress

    def trained(self, case: Case) -> list[Written]:
        """Return the model that learns from a row's records; or one for each combination of labels.

        Guarantee:
            Each model has that of `twinset.finetune.finetune` at the row's ε. Models of one label
            each see other records, so all of them together are what one of them is, for adding or
            removing one record of a given label; numbers of records by label are taken as public.
        """
        rows = self._reviews.drawn(case.level.records, case.seed)
        known = take(self._records, np.array(rows.index))
        every = self._schema.combinations
        if case.level.source != APART:
            return [Written(self._trained(known, case, 1), every)]
        return [
            Written(self._trained(_of_one(known, one), case, len(every)), (one,)) for one in every
        ]

    def written(self, models: list[Written], decoding: str, seed: int) -> pd.DataFrame:
        """Return the rows of models, each writing its own labels."""
        sampling, of_one = self._sampling(decoding, seed), self._rows_of_one
        frames = (
            one.model.sample(dict.fromkeys(one.combinations, of_one), sampling, self._progress)
            for one in models
        )
        return pd.concat(frames, ignore_index=True)

    def untrained(self, decoding: str, seed: int) -> pd.DataFrame:
        """Return rows of the base model, behind the same prompts, without any private data."""
        return untrained_twin(
            self._size.base_model,
            self._schema,
            self._template,
            dict.fromkeys(self._schema.combinations, self._rows_of_one),
            self._sampling(decoding, seed),
            self._size.max_tokens,
            dtype=frozen_dtype(self._config(OFF)),
            progress=self._progress,
        )

    def cut(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return real rows as long as those of a twin can be."""
        tokenizer, most = self._base().tokenizer, self._size.max_tokens
        found = tokenizer(rows[TEXT].tolist(), add_special_tokens=False)["input_ids"]
        return rows.assign(**{TEXT: [tokenizer.decode(ids[:most]) for ids in found]})

    def perplexity(self, model: TwinModel | None) -> float:
        """Return that of test rows, each behind its own prompt; None: of the base model."""
        rows = self._reviews.test.head(self._size.probed)
        records, _ = records_from_frame(rows, TEXT, self._reviews.attributes)
        probes = replace(records, schema=self._schema)
        read: TwinModel | BaseModel = model or self._base()
        room, longest = context_length(read.model), self._size.max_tokens
        return perplexity(
            read.model, tokenise(probes, self._template, read.tokenizer, room, longest)
        )

    def _trained(self, records: Records, case: Case, parts: int) -> TwinModel:
        level = case.level
        options: dict[str, Any] = self._size.training(
            len(records), level.records is not None, level.mismatch, parts
        )
        config = run_config(options | {"epsilon": level.epsilon, "seed": case.seed})
        return finetune(records, self._template, config, progress=self._progress)

    def _base(self) -> BaseModel:
        return load_base(self._size.base_model, dtype=frozen_dtype(self._config(OFF)))

    def _config(self, mismatch: Mismatch) -> RunConfig:
        return run_config(self._size.training(1, True, mismatch, 1))

    def _sampling(self, decoding: str, seed: int) -> SamplingConfig:
        drawn: dict[str, Any] = {"seed": seed, "max_redraws": self._size.redraws}
        return replace(self._config(OFF).sampling, **(drawn | DECODINGS[decoding]))

    @property
    def _rows_of_one(self) -> int:
        """Rows that each combination of labels gets."""
        return max(1, self._size.rows[self._reviews.name] // len(self._schema.combinations))

    @property
    def _schema(self) -> Schema:
        return self._records.schema

    @cached_property
    def _records(self) -> Records:
        """All rows that may be learnt from."""
        reserved = special_token_strings(self._base().tokenizer)
        attributes = self._reviews.attributes
        return records_from_frame(self._reviews.train, TEXT, attributes, reserved=reserved)[0]

    @cached_property
    def _template(self) -> Template:
        return load_template(PROMPTS[self._reviews.name], self._schema)


def _of_one(records: Records, combination: Combination) -> Records:
    places = [i for i, label in enumerate(records.labels) if label == combination]
    return take(records, np.array(places))
