"""Labelled reviews of paper 002, twins that a language model writes of them, and their measures.

A twin has equally many rows of each combination of labels, as in the paper: the noisy label counts
of a few records tell nothing, and the set of labels is public.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from evaluation.fidelity.diversity import LONGEST, Diversity
from evaluation.fidelity.words import words
from evaluation.leakage.overlap import overlap
from evaluation.leakage.roc import scores
from evaluation.leakage.text_membership import text_attacks
from evaluation.policy_runs import take
from evaluation.private_table import coinciding_rows, names_of
from evaluation.untrained_baseline import untrained_twin
from evaluation.utility.classifiers import Classifier, make_classifiers, make_dp_classifiers
from evaluation.utility.dp_fitting import Budget, Count, no_op
from evaluation.utility.embeddings import SentenceEncoder
from evaluation.utility.heldout_loss import perplexity
from evaluation.utility.train_and_test import (
    Target,
    accuracy,
    commonest_label,
    label_fidelity,
    labelled,
    targets,
    train_on,
)
from twinset.config import MismatchForm, RunConfig, SamplingConfig
from twinset.config.options import run_config
from twinset.data.columns import check_table, choose_columns
from twinset.data.formats import read_frame
from twinset.data.records import Records, records_from_frame
from twinset.data.schema import Combination
from twinset.data.templates import Template, load_template
from twinset.data.tokenization import tokenise
from twinset.errors import InputError
from twinset.models.base_model import BaseModel, context_length, load_base, special_token_strings
from twinset.models.precision import frozen_dtype
from twinset.pipeline.finetune import finetune
from twinset.pipeline.prepare import prepare_records
from twinset.progress import Progress, Silent
from twinset.sampling.twin_model import TwinModel

IMDB, AMAZON = "IMDb", "Amazon"
DATA = (IMDB, AMAZON)
TEXT = "text"
ATTRIBUTES = {IMDB: ("sentiment",), AMAZON: ("sentiment", "product")}
PROMPTS = {IMDB: "film-review", AMAZON: "product-review"}
FEWEST, MOST = 100, 500  # rows that no model was trained on, for attacks
_DRAW = 0  # seed of which rows "all" are: the same for all rows of the results

TOP_P, TYPICAL_P = 0.8, 0.1  # the scripts'
NUCLEUS, TYPICAL, PLAIN = f"top-p {TOP_P:g}", f"typical {TYPICAL_P:g}", "all tokens"
DECODINGS: dict[str, dict[str, float]] = {
    NUCLEUS: {"top_p": TOP_P},
    TYPICAL: {"typical_p": TYPICAL_P},
    PLAIN: {"top_p": 1.0},
}


ByTarget = dict[str, dict[str, float]]  # target → classifier → value
ACCURACY, FIDELITY, DISTINCT = "accuracy", "label fidelity", "distinct-2"
PAIRS = 5000  # of words at most, that different ones are counted among


class Loss(NamedTuple):
    """A form of the prompt-mismatch loss, and its λ; with λ = 0 there is none."""

    form: MismatchForm
    weight: float

    def __str__(self) -> str:
        """Return it in words.

        >>> str(Loss("bounded", 8.0)), str(NO_LOSS)
        ('bounded, λ = 8', 'no mismatch loss')
        """
        return f"{self.form}, λ = {self.weight:g}" if self.weight else "no mismatch loss"


NO_LOSS = Loss("published", 0.0)


@dataclass(frozen=True)
class Reviews:
    """One table.

    Args:
        name: of the table.
        train: all rows that may be trained on.
        test: rows that no model is trained on, read for the results alone.
        spare: rows of the training file that no model is trained on either.
    """

    name: str
    train: pd.DataFrame
    test: pd.DataFrame
    spare: pd.DataFrame

    @classmethod
    def read(cls, name: str, train: Path, test: Path, size: Mapping[str, Any]) -> Reviews:
        """Return a table, as many of its rows as the size takes.

        Raises:
            InputError: a file cannot be used.
        """
        attributes = ATTRIBUTES[name]
        some, spare = _split(_rows(train, attributes), size["records"][name])
        tested, _ = _split(_rows(test, attributes), size.get("tested"))
        known, asked = (set(labelled(f, TEXT, attributes)[1]) for f in (some, tested))
        if not asked <= known:
            raise InputError(f"{test}: has labels that {train.name} lacks; give tables of one kind")
        return cls(name, some, tested, spare)

    @property
    def attributes(self) -> tuple[str, ...]:
        """Names of the label columns."""
        return ATTRIBUTES[self.name]

    @property
    def targets(self) -> list[Target]:
        """What classifiers predict."""
        return targets(self.attributes)

    def drawn(self, records: int | None, seed: int) -> pd.DataFrame:
        """Return some rows to train on, of each combination as many as can be; None: all."""
        if records is None:
            return self.train
        mixed = self.train.sample(frac=1, random_state=seed)
        turn = mixed.groupby(list(self.attributes)).cumcount()
        return mixed.loc[turn.sort_values(kind="stable").index[:records]]

    @property
    def others(self) -> pd.DataFrame:
        """Rows that attacks must tell from those trained on.

        Spare ones where there are enough: test rows may differ in more than not being trained on.
        """
        return (self.spare if len(self.spare) >= FEWEST else self.test).head(MOST)

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
            "others": "spare training rows" if len(self.spare) >= FEWEST else "test rows",
        }


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


class Trained(NamedTuple):
    """A model, and the combinations of labels that it writes."""

    model: TwinModel
    combinations: tuple[Combination, ...]


class Writer:
    """Writes twins of one table.

    Args:
        reviews: the table.
        size: numbers of the size.
        progress: is notified of what happens.
    """

    def __init__(self, reviews: Reviews, size: Mapping[str, Any], progress: Progress) -> None:
        self._reviews, self._size, self._progress = reviews, size, progress

    def train(
        self, records: int | None, epsilon: float | None, loss: Loss, seed: int, apart: bool = False
    ) -> list[Trained]:
        """Return the model trained on some records; or one for each combination of labels.

        Each model is what a run trains. For what models of one combination each guarantee together
        see `twinset.privacy.statement.theorems`, DISJOINT.

        Args:
            records: how many; None: all.
            epsilon: ε; None trains without privacy.
            loss: the prompt-mismatch loss.
            seed: of the records, and of what privacy leaves to a seed.
            apart: whether each combination has a model of its own.
        """
        rows = self._reviews.drawn(records, seed)
        known, every = take(self._records, np.array(rows.index)), self._records.schema.combinations
        parts = {(one,): _of_one(known, one) for one in every} if apart else {every: known}

        def trained(part: Records) -> TwinModel:
            few = records is not None
            options = self._options(len(part), few, loss, len(parts))
            config = run_config(options | {"epsilon": epsilon, "seed": seed})
            return finetune(prepare_records(part, self._template, config), self._progress)

        return [Trained(trained(part), combinations) for combinations, part in parts.items()]

    def written(self, models: Sequence[Trained], decoding: str, seed: int) -> pd.DataFrame:
        """Return the rows of models, each writing its own labels."""
        sampling, of_one = self._sampling(decoding, seed), self._rows_of_one
        frames = (
            one.model.sample(dict.fromkeys(one.combinations, of_one), sampling, self._progress)
            for one in models
        )
        return pd.concat(frames, ignore_index=True)

    def untrained(self, decoding: str, seed: int) -> pd.DataFrame:
        """Return rows of the base model, behind the same prompts, without any private data."""
        config = replace(self._config, sampling=self._sampling(decoding, seed))
        counts = dict.fromkeys(self._records.schema.combinations, self._rows_of_one)
        return untrained_twin(config, self._records.schema, self._template, counts, self._progress)

    def cut(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return real rows as long as those of a twin can be."""
        tokenizer = self._base().tokenizer
        encoded = tokenizer(rows[TEXT].tolist(), add_special_tokens=False)["input_ids"]
        return rows.assign(**{TEXT: [tokenizer.decode(ids[: self._longest]) for ids in encoded]})

    def perplexity(self, model: TwinModel | None) -> float:
        """Return that of test rows, each behind its own prompt; None: of the base model."""
        rows = self._reviews.test.head(self._size["probed"])
        records, _ = records_from_frame(rows, TEXT, self._reviews.attributes)
        probes = replace(records, schema=self._records.schema)
        read: TwinModel | BaseModel = model or self._base()
        limits = context_length(read.model), self._longest
        tokens = tokenise(probes, self._template, read.tokenizer, *limits)
        return perplexity(read.model, tokens)

    def _base(self) -> BaseModel:
        return load_base(self._size["base_model"], dtype=frozen_dtype(self._config))

    def _options(self, records: int, few: bool, loss: Loss, parts: int) -> dict[str, Any]:
        """Return the options of one of some runs that share the visits to records.

        Where records are few, all of them take part in each step.
        """
        size, batch = self._size, records if few else max(1, self._size["batch_size"] // parts)
        return {
            **size["training"],
            "base_model": size["base_model"],
            "steps": size["few_steps"] if few else max(1, round(size["epochs"] * records / batch)),
            "batch_size": batch,
            "mismatch_form": loss.form,
            "mismatch_weight": loss.weight,
            "guidance": 0.0,
            "marginal_share": 0.0,  # the paper releases no counts of words
            "top_p": TOP_P,
        }

    @property
    def _config(self) -> RunConfig:
        return run_config(self._options(1, True, NO_LOSS, 1))

    def _sampling(self, decoding: str, seed: int) -> SamplingConfig:
        drawn: dict[str, Any] = {"seed": seed, "max_redraws": self._size["redraws"]}
        return replace(self._config.sampling, **(drawn | DECODINGS[decoding]))

    @property
    def _longest(self) -> int:
        longest: int = self._size["training"]["max_tokens"]
        return longest

    @property
    def _rows_of_one(self) -> int:
        """Rows that each combination of labels gets."""
        rows: int = self._size["rows"][self._reviews.name]
        return max(1, rows // len(self._records.schema.combinations))

    @cached_property
    def _records(self) -> Records:
        """All rows that may be trained on."""
        reserved = special_token_strings(self._base().tokenizer)
        attributes = self._reviews.attributes
        return records_from_frame(self._reviews.train, TEXT, attributes, reserved=reserved)[0]

    @cached_property
    def _template(self) -> Template:
        return load_template(PROMPTS[self._reviews.name], self._records.schema)


def _of_one(records: Records, combination: Combination) -> Records:
    places = [i for i, label in enumerate(records.labels) if label == combination]
    return take(records, np.array(places))


def neural_classifiers(size: Mapping[str, Any]) -> list[str]:
    """Return the classifiers behind a transformer; each has a private one of the real rows."""
    return [name for name in size["classifiers"] if name != "tfidf"]


class Scorer:
    """Measures what tables like one table are good for, and what they give away.

    Args:
        reviews: the table.
        size: numbers of the size.
        embeddings: shared by all tables.
    """

    def __init__(
        self, reviews: Reviews, size: Mapping[str, Any], embeddings: SentenceEncoder
    ) -> None:
        self.reviews, self._size, self._embeddings = reviews, size, embeddings
        self._shared: dict[str, Any] = {"encoder": size.get("encoder"), "embeddings": embeddings}
        self._makers = make_classifiers(size["classifiers"], **self._shared)

    def scores(self, frame: pd.DataFrame, seed: int) -> dict[str, Any]:
        """Return what a table is worth; one without rows is worth a guess, and has no fidelity."""
        if frame.empty:
            names, guesses = self._size["classifiers"], self.reviews.guesses()
            accuracies = {target: dict.fromkeys(names, guess) for target, guess in guesses.items()}
            fidelities = {target: dict.fromkeys(names, 0.0) for target in guesses}
        else:
            accuracies, fidelities = self.accuracies(frame, seed), self._fidelities(frame)
        return {
            "rows": len(frame),
            ACCURACY: accuracies,
            FIDELITY: fidelities,
            DISTINCT: 0.0 if frame.empty else _distinct(frame),
        }

    def accuracies(
        self, frame: pd.DataFrame, seed: int, budget: Budget | None = None, count: Count = no_op
    ) -> ByTarget:
        """Return by target and classifier how well those trained on some rows do on test rows.

        With a budget classifiers are private, and spend it on each target anew.
        """
        makers, test = self._makers, self.reviews.test
        if budget:
            names = neural_classifiers(self._size)
            makers = make_dp_classifiers(names, budget, count=count, **self._shared)

        def one(target: Target, maker: Classifier) -> float:
            return accuracy(train_on(frame, TEXT, target, maker, seed), test, TEXT, target).value

        return {
            names_of(target): {name: one(target, maker) for name, maker in makers.items()}
            for target in self.reviews.targets
        }

    def leaks(self, frame: pd.DataFrame, records: int | None, seed: int) -> dict[str, Any]:
        """Return what texts alone give away of the rows that a twin of this seed is trained on."""
        members, others, written = self._texts(frame, records, seed)
        shared = overlap(written, members, others, self._embeddings, seed=seed, progress=Silent())
        values = {f"{one.score.name}, {one.place['against']}": one.score.value for one in shared}
        return {"AUROC": self.areas(frame, records, seed), "shared": values}

    def areas(self, frame: pd.DataFrame, records: int | None, seed: int) -> dict[str, float]:
        """Return AUROC by attack: rows that a twin of this seed is trained on against others."""
        members, others, written = self._texts(frame, records, seed)
        attacks = text_attacks(written, members[:MOST], others, self._embeddings.encode)
        return {attack.name: scores(attack, seed)[0].value for attack in attacks}

    def _texts(self, frame: pd.DataFrame, records: int | None, seed: int) -> Iterator[list[str]]:
        members = self.reviews.drawn(records, seed)
        return (rows[TEXT].tolist() for rows in (members, self.reviews.others, frame))

    def _fidelities(self, frame: pd.DataFrame) -> ByTarget:
        """Return how often classifiers of all real rows find the labels that written rows bear."""
        return {
            names_of(target): {
                name: label_fidelity(frame, TEXT, target, judge).value
                for name, judge in judges.items()
            }
            for target, judges in self._judges.items()
        }

    @cached_property
    def _judges(self) -> dict[Target, dict[str, Any]]:
        train = self.reviews.train
        return {
            target: {name: train_on(train, TEXT, target, m) for name, m in self._makers.items()}
            for target in self.reviews.targets
        }


def _distinct(frame: pd.DataFrame) -> float:
    """Return the share of different ones among the first pairs of words."""
    texts = Diversity([words(text) for text in frame[TEXT]])
    shares = {score.name: score.value for score in texts.scores([PAIRS] * LONGEST)}
    return shares.get(DISTINCT, 0.0)
