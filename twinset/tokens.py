"""Records as token sequences: prompt, text, end of text; loss on text and end of text only.

Knows nothing of privacy. A record becomes K = 1 + |W| sequences: its own prompt first, then wrong
ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from twinset.errors import InputError
from twinset.privacy.clipping import Sequences
from twinset.records import Records
from twinset.schema import Combination
from twinset.templates import Template, wrong_combinations
from twinset.widths import padded

SHORTEST_TEXT = 8  # tokens that must fit behind the longest prompt


@dataclass(frozen=True)
class TokenisedRecords:
    """All records' tokens, on which batches are cut.

    Args:
        texts: per record the ids of text and end-of-text token; a text cut at the maximum length
            has no end-of-text token, for it did not end there.
        labels: per record its label combination.
        prompts: ids of the prompt of every combination.
        truncated: number of texts that were cut (private: `internal/` only).
        context: longest row the model reads.
    """

    texts: list[list[int]]
    labels: list[Combination]
    prompts: dict[Combination, list[int]]
    truncated: int
    context: int

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def mean_length(self) -> float:
        """Mean tokens of a record with its own prompt."""
        prompts = (len(self.prompts[label]) for label in self.labels)
        return (sum(map(len, self.texts)) + sum(prompts)) / max(1, len(self.texts))

    def width(self, index: int) -> int:
        """Return the length to which a record's rows are padded: a function of the record alone.

        It is the longest that any prompt makes of it, rounded up (see `widths`). Were rows padded
        to the longest of their batch, a record more would change how its neighbours' attention is
        rounded: by 0.13·C in bfloat16 (41 reviews), where this leaves nothing to be measured.
        """
        longest = max(map(len, self.prompts.values())) + len(self.texts[index])
        return padded(longest, self.context)

    def sequences(
        self, indices: Sequence[int], mismatched: int, seed: tuple[int, int]
    ) -> Sequences:
        """Return the K = 1 + min(mismatched, wrong combinations) sequences of each record.

        Args:
            indices: which records, in the order wanted; of one `width`, where isolation matters.
            mismatched: wrong prompts per record.
            seed: of the run, and the step. With the record's label it alone decides the wrong
                prompts: drawn one after another instead, a record's would depend on who else is in
                the batch, and one record more could change every other's gradient.
        """
        combinations = tuple(self.prompts)
        chosen: dict[Combination, list[Combination]] = {}
        rows: list[tuple[list[int], list[int]]] = []
        for i in indices:
            label = self.labels[i]
            if label not in chosen:
                rng = np.random.default_rng([*seed, combinations.index(label)])
                chosen[label] = wrong_combinations(label, combinations, mismatched, rng)
            rows += [(self.prompts[c], self.texts[i]) for c in (label, *chosen[label])]
        return _padded(rows, len(rows) // len(indices), max(map(self.width, indices)))


def _padded(rows: list[tuple[list[int], list[int]]], per_unit: int, width: int) -> Sequences:
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for row, (prompt, text) in enumerate(rows):
        end = len(prompt) + len(text)
        ids[row, :end] = torch.tensor(prompt + text)
        mask[row, len(prompt) : end] = True
    return Sequences(ids, mask, per_unit)


def prompt_tokens(
    template: Template, combinations: Sequence[Combination], tokenizer: Any
) -> dict[Combination, list[int]]:
    """Return the ids of each combination's prompt; the text follows after one space."""
    return {c: tokenizer.encode(template.render(c), add_special_tokens=False) for c in combinations}


def text_room(prompts: dict[Combination, list[int]], context: int, max_tokens: int) -> int:
    """Return how many text tokens (end of text included) fit behind the longest prompt.

    Raises:
        InputError: hardly any do.
    """
    longest = max(map(len, prompts.values()))
    room = context - longest
    if room < SHORTEST_TEXT:
        raise InputError(
            f"the longest prompt has {longest} tokens, but the base model reads {context} in all; "
            "shorten --prompt or take a base model with a longer context"
        )
    return min(room, max_tokens)


def tokenise(
    records: Records, template: Template, tokenizer: Any, context: int, max_tokens: int
) -> TokenisedRecords:
    """Turn records into tokens.

    Args:
        records: texts and labels.
        template: renders the prompts.
        tokenizer: of the base model; its end-of-text token closes each text.
        context: longest sequence the model reads, in tokens.
        max_tokens: longest text kept, end of text included. A public constant.
    """
    prompts = prompt_tokens(template, records.schema.combinations, tokenizer)
    room = text_room(prompts, context, max_tokens)
    spaced = [" " + text.strip() for text in records.texts]
    encoded = tokenizer(spaced, add_special_tokens=False)["input_ids"]
    texts = [[*ids, tokenizer.eos_token_id][:room] for ids in encoded]
    truncated = sum(len(ids) >= room for ids in encoded)
    return TokenisedRecords(texts, list(records.labels), prompts, truncated, context)
