"""Is a unit's gradient the same to the bit, whatever stands beside it? Measured on made-up tokens.

A kernel chooses its blocks by the shape of what it multiplies, and rounds each row accordingly: in
bfloat16, a record more in a physical batch would change every other's gradient by percents of C,
which no theorem covers. At a constant shape it is the same arithmetic for each row, wherever it
stands. So all physical batches of units of one size have one shape (filler makes up what is
missing), and products over tokens of several units come in pieces of one size. This module holds
the machine to it, shape by shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from twinset.privacy.clipping.causal import ClippingEngine, Sequences
from twinset.privacy.clipping.execution import is_out_of_memory

SUM_ROUNDING = 1e-4  # of C: sums are float32, and their order is the batch's
LITTLE = 1e-9  # of C: what others may add where one unit's part of the sum is looked at


class BatchShape(NamedTuple):
    """B units of K rows of T tokens."""

    units: int
    per_unit: int
    tokens: int


def batch_interference(
    engine: ClippingEngine, vocabulary: int, shapes: Sequence[BatchShape]
) -> float:
    """Return by how much others changed a unit's gradient, of C, at worst; 0 is not by a bit.

    Each shape is computed twice: the second time the units stand elsewhere, a third of them are
    others, and a third filler.

    Args:
        engine: over the model as it is to be trained, in its precision. Its sums are left at zero.
        vocabulary: number of token ids that may be drawn.
        shapes: that physical batches will have.
    """
    generator = torch.Generator().manual_seed(0)
    found = [_that_fits(engine, vocabulary, shape, generator) for shape in shapes]
    engine.zero()
    return max(found, default=0.0)


def _that_fits(
    engine: ClippingEngine, vocabulary: int, shape: BatchShape, generator: torch.Generator
) -> float:
    """Look at a shape, or where memory is short at what a run then makes of it: half the units."""
    while True:
        try:
            return _interference(engine, vocabulary, shape, generator)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            if shape.units == 1 and not engine.checkpoint_layers():
                raise
        shape = shape._replace(units=max(1, shape.units // 2))


def _interference(
    engine: ClippingEngine, vocabulary: int, shape: BatchShape, generator: torch.Generator
) -> float:
    units, per_unit, tokens = shape
    ids = torch.randint(vocabulary, (2 * units, per_unit, tokens), generator=generator)
    filler = units // 3
    order = torch.randperm(units, generator=generator)[: units - filler]  # who stays, and where
    others = order[: units // 3]  # whose place a stranger takes
    second = torch.where(torch.isin(order, others), order + units, order)
    one = int(order[-1])  # stays, so its part of the sum does
    norms, part = _clipped(engine, ids[:units], one, shape)
    again, part_again = _clipped(engine, ids[second], len(order) - 1, shape)
    stays = second < units
    norms, again = norms.cpu(), again.cpu()
    worst = (norms[order[stays]] - again[stays]).abs().max() / engine.max_grad_norm
    moved = float((part - part_again).norm()) / engine.max_grad_norm
    return max(float(worst), moved if moved > SUM_ROUNDING else 0.0)


def _clipped(
    engine: ClippingEngine, ids: Tensor, one: int, shape: BatchShape
) -> tuple[Tensor, Tensor]:
    """Return (B,) norms, and the sum to which all units but one add next to nothing."""
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[:, :, : max(1, shape.tokens // 4)] = False  # as behind a prompt
    limits = torch.full((len(ids),), LITTLE * engine.max_grad_norm)
    limits[one] = engine.max_grad_norm
    engine.zero()
    rows, mask = (x.flatten(0, 1) for x in (ids, mask))
    batch = Sequences(rows, mask, shape.per_unit).filled(shape.units)
    report = engine.add(batch, lambda means, counts: means.sum(1), limits)
    return report.norms, torch.cat([total.flatten().double() for total in engine.sums])
