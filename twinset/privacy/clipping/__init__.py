"""Exact per-unit clipping of a language model's gradients.

Read in this order: `gradient_uses` (the gradient of one use of a parameter, their memory, and what
gradients are divided by first), `output_head` (loss and output layer), `hooks` (activations and
output gradients), `execution` (memory against time, number formats), `engine` (norms, clipping,
sums), `causal` and `classifier` (the models and their batches). `batch_invariance` measures whether
one unit's gradient depends on the others.
"""

from twinset.privacy.clipping.causal import ClippingEngine, Sequences
from twinset.privacy.clipping.classifier import ClassifierClipping, LabelledRows
from twinset.privacy.clipping.engine import UnitReport
from twinset.privacy.clipping.execution import Execution
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
