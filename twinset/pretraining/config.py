"""The options of a pre-training run, checked together before anything is read."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from twinset.errors import InputError

PRECISIONS = ("auto", "float32", "bfloat16")
SMALLEST_VOCABULARY = 257


@dataclass(frozen=True)
class Shape:
    """A GPT-2 from scratch.

    Args:
        vocabulary: tokens of its own tokenizer.
        layers: transformer blocks.
        width: of the residual stream.
        heads: of attention.
    """

    vocabulary: int = 8192
    layers: int = 6
    width: int = 256
    heads: int = 4

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise InputError(f"--width {self.width} cannot be shared by --heads {self.heads}")
        if self.vocabulary < SMALLEST_VOCABULARY:
            raise InputError(
                f"--vocabulary {self.vocabulary}: all bytes and the end of text are "
                f"{SMALLEST_VOCABULARY} tokens already"
            )


@dataclass(frozen=True)
class PretrainConfig:
    """What is trained, on how much, how fast.

    Args:
        base_model: what training goes on from; None: from scratch, in this shape.
        shape: of a model from scratch.
        context: tokens of a block, and the most that a model from scratch reads.
        epochs: passes over the corpus; parts of one count.
        batch_size: blocks a step, over all processes.
        micro_batch: blocks at once on each process; the rest is accumulated.
        learning_rate: the highest.
        warmup: share of the steps over which it rises; a cosine then takes it to a tenth.
        weight_decay: of matrices.
        seed: of weights and of the order of blocks.
        precision: auto, float32 or bfloat16.
    """

    base_model: str | None = None
    shape: Shape = Shape()
    context: int = 256
    epochs: float = 1.0
    batch_size: int = 32
    micro_batch: int = 16
    learning_rate: float = 1e-3
    warmup: float = 0.02
    weight_decay: float = 0.1
    seed: int = 0
    precision: str = "auto"

    def __post_init__(self) -> None:
        for name in ("epochs", "learning_rate"):
            if not 0 < getattr(self, name) < math.inf:
                raise InputError(f"--{name.replace('_', '-')} must be above 0")
        if not 0 <= self.warmup < 1 or not 0 <= self.weight_decay < math.inf:
            raise InputError("--warmup is a share of the steps, --weight-decay is not below 0")
        if self.precision not in PRECISIONS:
            raise InputError(f"--precision {self.precision}: there are {', '.join(PRECISIONS)}")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return asdict(self)
