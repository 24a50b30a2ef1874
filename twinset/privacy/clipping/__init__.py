"""Exact per-unit clipping of a language model's gradients.

Read in this order: `gradient_uses` (the gradient of one use of a parameter, its memory, and what
gradients are divided by first), `output_head` (loss and output layer), `engine` (activations and
output gradients, norms, clipping, sums), `models` (the models and their batches, and whether one
unit's gradient depends on the others).
"""

from twinset.privacy.clipping.engine import Execution, UnitReport
from twinset.privacy.clipping.gradient_uses import Scale
from twinset.privacy.clipping.models import (
    ClassifierClipping,
    ClippingEngine,
    LabelledRows,
    Sequences,
)

__all__ = [
    "ClassifierClipping",
    "ClippingEngine",
    "Execution",
    "LabelledRows",
    "Scale",
    "Sequences",
    "UnitReport",
]
