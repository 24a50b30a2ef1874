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

    def numbers(self, texts: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
        """Return the number of each attribute's likeliest value, of texts in token ids."""
        read = [[token for token in ids if token != self.end] for ids in texts]
        states = self.questions.of_rows(read)
        return [self._likeliest(*pair) for pair in zip(read, states, strict=True)]

    def _likeliest(self, ids: Sequence[int], states: np.ndarray) -> tuple[int, ...]:
        scores = self.teacher.log_probabilities(states)
        if self.words is not None:
            said = self.words.scores(ids)
            scores = [one + WEIGHT * other for one, other in zip(scores, said, strict=True)]
        return tuple(int(each.argmax()) for each in scores)
