"""Is a unit's clipped gradient the same alone and among others? Measured, on made-up tokens.

In exact arithmetic it is, and in float32 to about 1e-5. In bfloat16 a kernel that blocks a larger
batch in another way rounds each row in another way, and a layer later that is a difference of
percents: one record more then moves every other's gradient, by far more than the bound C allows.
"""

from __future__ import annotations

import torch

from twinset.privacy.clipping.causal import ClippingEngine
from twinset.privacy.clipping.sequences import Sequences

TOLERANCE = 1e-3  # of C
LENGTHS = (16, 32, 64)  # tokens; kernels choose their blocks by it
UNITS = 16  # in the batch that a unit is compared in


def batch_interference(engine: ClippingEngine, vocabulary: int) -> float:
    """Return the largest ‖S(all) - S(all but one) - S(that one)‖ / C found; 0 is none.

    Args:
        engine: over the model as it is to be trained, in its precision. Its sums are left at zero.
        vocabulary: number of token ids that may be drawn.
    """
    generator = torch.Generator().manual_seed(0)
    effects = []
    for length in LENGTHS:
        ids = torch.randint(vocabulary, (UNITS, length), generator=generator)
        alone, others = _sum(engine, ids[:1]), _sum(engine, ids[1:])
        together = _sum(engine, ids)
        effects.append(float((together - others - alone).norm()) / engine.max_grad_norm)
    engine.zero()
    return max(effects)


def _sum(engine: ClippingEngine, ids: torch.Tensor) -> torch.Tensor:
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[:, : ids.shape[1] // 4] = False  # as behind a prompt
    engine.zero()
    device = engine.sums[0].device
    engine.add(Sequences(ids.to(device), mask.to(device), 1), lambda means, counts: means[:, 0])
    return torch.cat([total.flatten().double() for total in engine.sums])
