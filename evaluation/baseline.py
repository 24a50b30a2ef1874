"""What the base model writes without any private data: the mark that every twin must beat.

Knows the public schema, the prompts and how many rows of each label are wanted; no record, no
trained model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from twinset.basemodel import context_length, load_base
from twinset.config import SamplingConfig
from twinset.progress import Progress, Silent
from twinset.records import twin_frame
from twinset.sampler import Sampler
from twinset.schema import Combination, Schema
from twinset.templates import Template
from twinset.tokens import prompt_tokens, text_room

if TYPE_CHECKING:
    import torch
    from pandas import DataFrame


def untrained_twin(
    base_name: str,
    schema: Schema,
    template: Template,
    counts: Mapping[Combination, int],
    sampling: SamplingConfig,
    max_tokens: int,
    *,
    dtype: torch.dtype | None = None,
    progress: Progress | None = None,
) -> DataFrame:
    """Return rows from the base model as it is, asked just as the twin's model is.

    Args:
        base_name: asset, local folder or hub name.
        schema: shape of the private table; public.
        template: the twin's.
        counts: rows of every label combination: the twin's.
        sampling: the twin's.
        max_tokens: longest text the twin's model was trained on, in tokens.
        dtype: precision of the weights; the twin's model's.
        progress: is told how many rows are written.
    """
    progress = progress or Silent()
    base = load_base(base_name, dtype=dtype, say=progress.say)
    prompts = prompt_tokens(template, schema.combinations, base.tokenizer)
    room = text_room(prompts, context_length(base.model), max_tokens)
    total = sum(counts.values())
    sampler = Sampler(base.model, base.tokenizer, prompts, sampling, room)
    rows = sampler.sample(counts, lambda done: progress.count("rows", done, total))
    return twin_frame(schema, [row.text for row in rows], [row.combination for row in rows])
