"""One row of paper 002's experiment: what a table is good for, and what a twin gives away."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import pandas as pd

from evaluation.classifiers import Classifier, make_classifiers, make_rivals
from evaluation.embeddings import SentenceEncoder
from evaluation.fidelity.diversity import LONGEST, Diversity
from evaluation.fidelity.words import words
from evaluation.fitting import Budget
from evaluation.leakage.overlap import overlap
from evaluation.leakage.roc import scores
from evaluation.leakage.textmembership import text_attacks
from evaluation.papers.mattern.cases import (
    APART,
    BASELINE,
    COMPARED,
    REAL,
    RECORDS,
    RIVAL,
    SHORT,
    TWIN,
    Case,
    names,
)
from evaluation.papers.mattern.reviews import MOST, TEXT, Reviews
from evaluation.papers.mattern.sizes import DECODINGS, NUCLEUS, Size
from evaluation.papers.mattern.writing import Writer, Written
from evaluation.papers.workshop import Workshop
from evaluation.tables import names_of
from evaluation.utility import Target, accuracy, label_fidelity, train_on
from twinset.errors import InputError
from twinset.plan import default_delta
from twinset.progress import Silent

ACCURACY, FIDELITY, DISTINCT = "accuracy", "label fidelity", "distinct-2"
Scores = dict[str, dict[str, dict[str, float]]]  # by measure, target and classifier
PAIRS = 5000  # of words at most, that different ones are counted among


class Scorer:
    """Makes the rows of one table.

    Args:
        reviews: the table.
        size: how large.
        embeddings: that all tables share.
    """

    def __init__(self, reviews: Reviews, size: Size, embeddings: SentenceEncoder) -> None:
        self._reviews, self._size, self._embeddings = reviews, size, embeddings
        self._makers = make_classifiers(
            size.classifiers, encoder=size.encoder, embeddings=embeddings
        )

    def row(self, case: Case, workshop: Workshop) -> dict[str, Any]:
        """Return what was found of one case."""
        began, source = time.monotonic(), case.level.source
        if source in (REAL, SHORT):
            found = self._real(case, workshop)
        elif source == RIVAL:
            found = self._rival(case, workshop)
        else:
            found = self._twin(case, workshop)
        return found | {"seconds": round(time.monotonic() - began, 1)}

    def _real(self, case: Case, workshop: Workshop) -> dict[str, Any]:
        rows = self._reviews.drawn(case.level.records, case.seed)
        if case.level.source == SHORT:
            rows = Writer(self._reviews, self._size, workshop.progress).cut(rows)
        return {"records": len(rows), ACCURACY: self._accuracies(rows, self._makers, case.seed)}

    def _rival(self, case: Case, workshop: Workshop) -> dict[str, Any]:
        """Return the accuracies of classifiers that spend ε on each target anew."""
        rows, epsilon = self._reviews.drawn(case.level.records, case.seed), case.level.epsilon
        assert epsilon is not None
        budget = Budget(epsilon, default_delta(len(rows)))
        rivals = make_rivals(
            self._size.neural,
            budget,
            encoder=self._size.encoder,
            embeddings=self._embeddings,
            count=workshop.counting("private steps"),
        )
        found = self._accuracies(rows, rivals, case.seed)
        return {"records": len(rows), "delta": budget.delta, ACCURACY: found}

    def _twin(self, case: Case, workshop: Workshop) -> dict[str, Any]:
        """Return what a twin, or rows without private data, come to."""
        writer = Writer(self._reviews, self._size, workshop.progress)
        models = [] if case.level.source == BASELINE else writer.trained(case)
        frames = {
            name: self._frame(writer, models, name, case, workshop)
            for name in self._decodings(case)
        }
        found: dict[str, Any] = self._scores(frames[NUCLEUS], case.seed)
        found["decodings"] = {n: self._scores(frames[n], case.seed) for n in frames if n != NUCLEUS}
        found |= _claimed(models)
        if case.level.source != APART:
            found["perplexity"] = writer.perplexity(models[0].model if models else None)
        if self._is_attacked(case):
            found["leaks"] = self._leaks(frames[NUCLEUS], case)
        if case.level.source == BASELINE:
            found["chance"] = {
                names(None, records)[1]: self._areas(frames[NUCLEUS], records, case.seed)
                for records in RECORDS
            }
        return found

    def _frame(
        self, writer: Writer, models: list[Written], name: str, case: Case, workshop: Workshop
    ) -> pd.DataFrame:
        """Return rows; none at all where a model writes nothing that could be used."""
        if not models:
            return writer.untrained(name, case.seed)
        try:
            return writer.written(models, name, case.seed)
        except InputError as error:
            if self._is_attacked(case) and name == NUCLEUS:
                raise
            workshop.progress.warn(f"no twin: {error}")
            return self._reviews.train.head(0)

    def _decodings(self, case: Case) -> Sequence[str]:
        level = case.level
        compared = level.epsilon == COMPARED and level.records is None
        is_twin = level.source == TWIN and level.mismatch == self._size.mismatch and compared
        return list(DECODINGS) if is_twin or level.source == BASELINE else [NUCLEUS]

    def _is_attacked(self, case: Case) -> bool:
        level = case.level
        main = level.source == TWIN and level.mismatch == self._size.mismatch
        return main or level.source == BASELINE

    def _scores(self, frame: pd.DataFrame, seed: int) -> dict[str, Any]:
        """Return what a table is worth; one without rows is worth a guess."""
        if frame.empty:
            return self._nothing()
        return {
            "rows": len(frame),
            ACCURACY: self._accuracies(frame, self._makers, seed),
            FIDELITY: self._fidelities(frame),
            DISTINCT: _distinct(frame),
        }

    def _nothing(self) -> dict[str, Any]:
        guesses, names = self._reviews.guesses(), self._size.classifiers
        return {
            "rows": 0,
            ACCURACY: {target: dict.fromkeys(names, guess) for target, guess in guesses.items()},
            FIDELITY: {target: dict.fromkeys(names, 0.0) for target in guesses},
            DISTINCT: 0.0,
        }

    def _accuracies(
        self, frame: pd.DataFrame, makers: Mapping[str, Classifier], seed: int
    ) -> dict[str, dict[str, float]]:
        """Return how well classifiers that learn from some rows do on test rows."""
        test = self._reviews.test

        def one(target: Target, maker: Classifier) -> float:
            return accuracy(train_on(frame, TEXT, target, maker, seed), test, TEXT, target).value

        return {
            names_of(target): {name: one(target, maker) for name, maker in makers.items()}
            for target in self._reviews.targets
        }

    def _fidelities(self, frame: pd.DataFrame) -> dict[str, dict[str, float]]:
        """Return how often classifiers of all real rows find the labels that written rows bear."""
        return {
            names_of(target): {
                name: label_fidelity(frame, TEXT, target, judge).value
                for name, judge in self._judges[target].items()
            }
            for target in self._reviews.targets
        }

    @cached_property
    def _judges(self) -> dict[Target, dict[str, Any]]:
        train = self._reviews.train
        return {
            target: {name: train_on(train, TEXT, target, m) for name, m in self._makers.items()}
            for target in self._reviews.targets
        }

    def _leaks(self, frame: pd.DataFrame, case: Case) -> dict[str, Any]:
        """Return what the texts alone give away of the rows they were learnt from.

        Of rows that nothing was learnt from, of all rows: what chance is.
        """
        records = case.level.records or None
        members = self._reviews.drawn(records, case.seed)[TEXT].tolist()
        others, twin = self._reviews.others[TEXT].tolist(), frame[TEXT].tolist()
        shared = overlap(twin, members, others, self._embeddings, seed=case.seed, progress=Silent())
        return {
            "AUROC": self._areas(frame, records, case.seed),
            "shared": {
                f"{one.score.name}, {one.place['against']}": one.score.value for one in shared
            },
        }

    def _areas(self, frame: pd.DataFrame, records: int | None, seed: int) -> dict[str, float]:
        """Return AUROC by attack: the rows that a twin of this seed learns from against others."""
        members = self._reviews.drawn(records, seed)[TEXT].tolist()[:MOST]
        others, written = self._reviews.others[TEXT].tolist(), frame[TEXT].tolist()
        attacks = text_attacks(written, members, others, self._embeddings.encode)
        return {attack.name: scores(attack, seed)[0].value for attack in attacks}


def _claimed(models: Sequence[Written]) -> dict[str, float | None]:
    """Return the guarantee of all models together, which saw other records each."""
    if not models:
        return {"epsilon": 0.0, "delta": 0.0}
    claims = [one.model.guarantee for one in models]
    return {name: _worst([getattr(c, name) for c in claims]) for name in ("epsilon", "delta")}


def _worst(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None


def _distinct(frame: pd.DataFrame) -> float:
    """Return the share of different ones among the first pairs of words."""
    texts = Diversity([words(text) for text in frame[TEXT]])
    found = {score.name: score.value for score in texts.scores([PAIRS] * LONGEST)}
    return found.get(DISTINCT, 0.0)
