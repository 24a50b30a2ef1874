"""Public pre-training: the options of `twinset pretrain`, checked before anything is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from twinset.bounds import SEEDS, Bounds, bounded, check_options, setting, within
from twinset.errors import InputError

SMALLEST_VOCABULARY = 257  # all bytes and the end of text
MINUTES = Bounds(0, 10**7)


@dataclass(frozen=True)
class PretrainConfig:
    """What is trained, on which text, and how fast.

    Args:
        base_model: the model that training starts from. None: a GPT-2 from scratch, of so many
            tokens (vocabulary), layers, width and heads.
        lora_rank: of adapters on all linear layers of a frozen, built-in base model. None: all
            weights are trained.
        context: tokens of a block, and the most that a model from scratch reads.
        epochs: passes over the corpus. Texts that are kept out do not make them shorter: the rest
            is read for longer.
        batch_size: blocks in a step, over all processes; at most `micro_batch` at once on each.
        learning_rate: the highest. It rises over a share of the steps (warmup). A cosine then takes
            it to a tenth.
        text: column of a table's texts. For prompts, shares and licences see `corpus.read_corpus`.
        decontaminate: files that share no long run of words with what is read.
        max_minutes: most time of this process. None: until it is done.
    """

    base_model: str | None = None
    vocabulary: int = bounded(
        8192, SMALLEST_VOCABULARY, 10**6, hint="all bytes and the end of text are tokens already"
    )
    layers: int = bounded(6, 1, 1000)
    width: int = bounded(256, 1, 100_000)
    heads: int = bounded(4, 1, 1000)
    lora_rank: int | None = bounded(None, 1, 10_000)
    context: int = bounded(256, 2, 10**6)
    epochs: float = bounded(1.0, 1e-6, 10_000)
    batch_size: int = bounded(32, 1, 10**6)
    micro_batch: int = bounded(16, 1, 10**6)
    learning_rate: float = bounded(1e-3, 1e-9, 10)
    warmup: float = bounded(0.02, 0, 0.99)
    weight_decay: float = bounded(0.1, 0, 10)
    seed: int = within(0, SEEDS)
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    text: str = "text"
    prompts: tuple[str, ...] = ()
    shares: Mapping[str, float] = field(default_factory=dict)
    licences: Mapping[str, str] = field(default_factory=dict)
    licence: str = "other"
    decontaminate: tuple[Path, ...] = ()
    max_minutes: float | None = setting(None, bounds=MINUTES)

    def __post_init__(self) -> None:
        check_options(self)
        if self.width % self.heads:
            raise InputError(f"`width={self.width}` cannot be shared by `heads={self.heads}`")
        if self.lora_rank is not None and self.base_model is None:
            raise InputError("`lora_rank` needs `base_model`: adapters belong to a trained model")
