"""Exact per-unit clipping of a language model's gradients.

Read in this order: `gradient_uses` (the gradient of one use of a parameter, its memory, and what
gradients are divided by first), `output_head` (loss and output layer), `engine` (activations and
output gradients, norms, clipping, sums; the two kinds of model and their batches).
"""

from twinset.privacy.clipping.engine import (
    ClassifierClipping,
    ClippingEngine,
    Execution,
    LabelledRows,
    Sequences,
    UnitReport,
)
from twinset.privacy.clipping.gradient_uses import Scale

__all__ = [
    "ClassifierClipping",
    "ClippingEngine",
    "Execution",
    "LabelledRows",
    "Scale",
    "Sequences",
    "UnitReport",
]
