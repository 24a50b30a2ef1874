"""What the owner of a table should hear before a run: that it is small, or in another language.

Read from private records and told to their owner alone: no choice of a run depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from transformers import PreTrainedTokenizerBase

from twinset.config.plan import Plan

FEW = 4000  # records times ε; below, noise outweighs nearly all that texts could teach
ENGLISH = "The film was very good, and I would recommend it to everyone who likes a slow story."
HARDLY_READ = 3.2  # times the tokens a character of English; clinical notes and Polish take 2.5
_TEXTS, _CHARACTERS = 200, 1000  # that are looked at, and of each


def table_notes(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, plan: Plan
) -> Iterator[str]:
    """Yield notes, if there is anything to say.

    Args:
        texts: the private texts.
        tokenizer: of the base model.
        plan: of the run.
    """
    epsilon = plan.target_epsilon
    if epsilon is not None and plan.records * epsilon < FEW:
        yield (
            f"{plan.records} records are few for ε = {epsilon:g}: the twin will have about the "
            "right share of each label, and texts much like the base model's own; some "
            f"{max(1000, round(FEW / epsilon, -3)):,.0f} records are a start"
        )
    ratio = _tokens_each(_sample(texts), tokenizer) / _tokens_each([ENGLISH], tokenizer)
    if ratio > HARDLY_READ:
        yield (
            f"the base model takes {ratio:.0f} times as many tokens for a character of these texts "
            "as for English: it has hardly read their language, and the twin will not read well; "
            "choose another `base_model`"
        )


def _sample(texts: Sequence[str]) -> list[str]:
    return [text[:_CHARACTERS] for text in islice(texts, _TEXTS)]


def _tokens_each(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> float:
    """Return the tokens that a character takes."""
    rows = tokenizer(list(texts), add_special_tokens=False)["input_ids"]
    return sum(map(len, rows)) / max(1, sum(map(len, texts)))
