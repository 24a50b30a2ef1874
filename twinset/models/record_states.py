"""Private records → hidden states behind the questions, each as if no other record were there.

A private regression rests on each record's features being its own to the bit, and in a batch of any
shape the others would decide how they are rounded. A processor reads a record by itself. A GPU
would take as long for it as for hundreds; there the shape of a batch follows from a record's own
length, filler makes up what is missing, and the device is held to reading each row as if alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from twinset.models.device import GPU_TOKENS, is_cpu
from twinset.models.hidden_states import Questions
from twinset.privacy.clipping.engine import is_out_of_memory
from twinset.table.tokenization import batches_of_one_length, padded


def states_of_records(
    questions: Questions, records: Sequence[Sequence[int]]
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the number and the hidden states (A, d) float64 of each record, in any order.

    A record's states depend on its tokens and on the model alone: another one more or less changes
    no bit of them. On a GPU that is measured, with made-up tokens, for each shape that is used;
    where it does not hold, records are read one by one.

    Args:
        questions: what reads them.
        records: token ids of each.
    """

    def width(number: int) -> int:
        return padded(questions.read_length(len(records[number])), questions.longest)

    if is_cpu(questions.device):
        yield from ((i, questions.of_tokens(ids)) for i, ids in enumerate(records))
        return
    for tokens, some in batches_of_one_length(range(len(records)), width, rows_at_once):
        shape = rows_at_once(tokens), tokens
        if is_read_alone(questions, shape):
            yield from zip(some, questions.of_batch([records[i] for i in some], shape), strict=True)
        else:
            yield from ((i, questions.of_tokens(records[i])) for i in some)


def rows_at_once(tokens: int) -> int:
    """Return how many rows of so many tokens are one batch."""
    return max(1, GPU_TOKENS // tokens)


def is_read_alone(questions: Questions, shape: tuple[int, int]) -> bool:
    """Return whether rows (R, T) are read the same to the bit, wherever they stand and beside whom.

    Made-up rows are read twice: the second time in another order, and a third of them are others,
    as filler would be.
    """
    known = questions.alone
    if shape not in known:
        rows, tokens = shape
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(questions.vocabulary, (2 * rows, tokens), generator=generator)
        order = torch.randperm(rows, generator=generator)
        strangers = -(-rows // 3) if rows > 1 else 0
        second = order.clone()
        second[:strangers] += rows  # they take the first ones' places
        known[shape] = _are_equal(questions, ids[:rows], ids[second], order[strangers:])
    return known[shape]


def _are_equal(questions: Questions, rows: Tensor, others: Tensor, stays: Tensor) -> bool:
    """Return whether the rows that stay, at the end of the others, have the same states there.

    Rows that do not fit into memory together are not read together.
    """
    try:
        first, again = questions.hidden(rows), questions.hidden(others)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return False
    return torch.equal(first[stays.to(first.device)], again[-len(stays) :])
