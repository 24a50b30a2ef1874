"""What tells a text's labels: the private teacher, and what the text's tokens say of them.

Both were released with noise, so that it costs no further ε, however many texts it is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from twinset.models.hidden_states import Questions
from twinset.models.teacher import Teacher
from twinset.sampling.naive_bayes import NaiveBayes

WEIGHT = 0.3  # of tokens beside the teacher, as they repeat one another: see docs/tuning.md
RAREST_VALUE = 0.01  # share of texts: of rarer values the teacher knows too little to be sure


@dataclass(frozen=True)
class LabelClassifier:
    """Tells labels.

    Args:
        questions: ask the model about a text.
        teacher: knows the answers.
        words: what tokens say; None: the run counted none.
        end: token that ends a text; it says nothing.
    """

    questions: Questions
    teacher: Teacher
    words: NaiveBayes | None
    end: int

    def numbers(
        self, texts: Sequence[Sequence[int]], shares: Sequence[np.ndarray] | None = None
    ) -> list[tuple[int, ...]]:
        """Return the number of each attribute's likeliest value, of texts in token ids.

        Args:
            texts: of any origin.
            shares: (K,) of each attribute, of the teacher's texts that have each value: with them,
                of texts that are as often of one value as of another; None: of texts like its own.
        """
        read = [[token for token in ids if token != self.end] for ids in texts]
        states = self.questions.states_of_texts(read)
        priors = self._priors(shares)
        return [
            tuple(
                int((score - prior).argmax())
                for score, prior in zip(self._scores(*pair), priors, strict=True)
            )
            for pair in zip(read, states, strict=True)
        ]

    def _priors(self, shares: Sequence[np.ndarray] | None) -> list[np.ndarray]:
        if shares is None:
            return [np.zeros(len(weights)) for weights in self.teacher.weights]
        return [np.log(np.maximum(each, RAREST_VALUE)) for each in shares]

    def _scores(self, ids: Sequence[int], states: np.ndarray) -> list[np.ndarray]:
        scores = self.teacher.log_probabilities(states)
        if self.words is None:
            return scores
        said = self.words.scores(ids)
        return [one + WEIGHT * other for one, other in zip(scores, said, strict=True)]
