"""Exact per-unit clipping of a causal language model's gradients.

Read in this order: `uses` (the gradient of one use of a parameter), `vocabulary` (loss and output
layer), `capture` (activations and output gradients, by hooks), `engine` (norms, clipping, sums).
"""

from twinset.privacy.clipping.engine import ClippingEngine, UnitReport
from twinset.privacy.clipping.sequences import Sequences

__all__ = ["ClippingEngine", "Sequences", "UnitReport"]
