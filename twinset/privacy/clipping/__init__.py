"""Exact per-unit clipping of a language model's gradients.

Read in this order. `gradient_uses` has the gradient of one use of a parameter, its memory and its
scaling. `output_head` has the loss and the output layer. `engine` has norms, clipping and sums, and
the two kinds of model with their batches.
"""

from twinset.privacy.clipping.engine import (
    ClassifierClipping,
    ClippingEngine,
    Execution,
    LabelledRows,
    Sequences,
    UnitReport,
)
from twinset.privacy.clipping.gradient_uses import FeatureFactors, Scale

__all__ = [
    "ClassifierClipping",
    "ClippingEngine",
    "Execution",
    "FeatureFactors",
    "LabelledRows",
    "Scale",
    "Sequences",
    "UnitReport",
]
