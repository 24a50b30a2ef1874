"""Public pre-training: the options of `twinset pretrain`, checked before anything is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from twinset.bounds import SEEDS, Checked, bounded, setting
from twinset.errors import InputError

SMALLEST_VOCABULARY = 257  # all bytes and the end of text


@dataclass(frozen=True)
class PretrainConfig(Checked):
    """What is trained, on which text, and how fast.

    For prompts, shares and licences see `corpus.read_corpus`. Left-out texts do not shorten epochs:
    the remaining text is read for longer.
    """

    base_model: str | None = setting(None, "Model to train further. Omitted: train from scratch.")
    # on all linear layers of the frozen base
    lora_rank: int | None = bounded(None, 1, 10_000, "Train adapters of this rank alone.")
    vocabulary: int = bounded(
        8192,
        SMALLEST_VOCABULARY,
        10**6,
        "Size of the vocabulary, from scratch.",
        hint="All bytes and the end of text are tokens already",
    )
    layers: int = bounded(6, 1, 1000, "Layers, from scratch.")
    width: int = bounded(256, 1, 100_000, "Width of a layer, from scratch.")
    heads: int = bounded(4, 1, 1000, "Attention heads, from scratch.")
    context: int = bounded(256, 2, 10**6, "Tokens per block of text.")
    epochs: float = bounded(1.0, 1e-6, 10_000, "Passes over the corpus. May be a fraction.")
    batch_size: int = bounded(32, 1, 10**6, "Blocks per step.")  # over all processes
    micro_batch: int = bounded(16, 1, 10**6, "Blocks held in memory at once.")  # on each of them
    # It rises over a share of the steps (warmup). A cosine then takes it to a tenth.
    learning_rate: float = bounded(1e-3, 1e-9, 10, "Peak learning rate.")
    warmup: float = bounded(0.02, 0, 0.99, "Share of the steps that warm up.")
    weight_decay: float = bounded(0.1, 0, 10, "Weight decay of matrices.")
    seed: int = setting(0, "Seed of weights and order.", bounds=SEEDS)
    precision: Literal["auto", "float32", "bfloat16"] = setting("auto", "Number format.")
    max_minutes: float | None = bounded(
        None, 0, 10**7, "Stop after this many minutes. The same command resumes."
    )
    text: str = setting("text", "Column that holds the text of a table.")
    licence: str = setting("other", "Licence of the model, for its card.")
    prompts: tuple[str, ...] = ()
    shares: Mapping[str, float] = field(default_factory=dict)
    licences: Mapping[str, str] = field(default_factory=dict)
    decontaminate: tuple[Path, ...] = ()  # files to keep out of the corpus

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            raise InputError(f"`width={self.width}` must be a multiple of `heads={self.heads}`")
        if self.lora_rank is not None and self.base_model is None:
            raise InputError("`lora_rank` trains adapters of a trained model. Name a `base_model`.")
