"""Exact per-unit clipping of a language model's gradients.

Read in this order: `uses` (the gradient of one use of a parameter), `matrices` (of a weight
matrix), `vocabulary` (loss and output layer), `capture` (activations and output gradients, by
hooks), `geometry` (what gradients are divided by first), `execution` (memory against time, number
formats), `engine` (norms, clipping, sums), `causal` and `classifier` (the models). `isolation`
measures whether units leave one another alone.
"""

from twinset.privacy.clipping.causal import ClippingEngine
from twinset.privacy.clipping.classifier import ClassifierClipping, LabelledRows
from twinset.privacy.clipping.engine import UnitReport
from twinset.privacy.clipping.execution import Execution
from twinset.privacy.clipping.geometry import Scale
from twinset.privacy.clipping.sequences import Sequences

__all__ = [
    "ClassifierClipping",
    "ClippingEngine",
    "Execution",
    "LabelledRows",
    "Scale",
    "Sequences",
    "UnitReport",
]
