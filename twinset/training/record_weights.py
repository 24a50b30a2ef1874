"""Privacy weights of records: how unusual a public model finds each text, on a public scale.

Weights are computed on the training side, kept in memory and never shown. The scale is public: its
constants were fitted on public texts, by `fit_scale_on_tables`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from twinset.config import RunConfig
from twinset.errors import InputError
from twinset.models.base_model import load_base
from twinset.models.hidden_states import nats_per_token
from twinset.models.layers import choose_execution
from twinset.privacy.mechanism.units import STATED_WEIGHTS, WeightScale
from twinset.progress import Progress
from twinset.table.columns import text_cells
from twinset.table.read import read_frame

FEWEST = 10  # texts of a table
LOW, HIGH = 0.1, 0.9  # quantiles of the public texts at which weights are 0 and 1


def text_nats(
    model: Any, tokenizer: Any, texts: Sequence[Sequence[int]], count: Callable[[int, int], object]
) -> Tensor:
    """(N,) nats per token of texts without any prompt, see `nats_per_token`."""
    start = tokenizer.bos_token_id
    start = tokenizer.eos_token_id if start is None else start
    return nats_per_token(model, texts, start, count)


def fit_scale_on_tables(
    tables: Sequence[str],  # files, folders or hub names, public
    text: str,  # their text column
    config: RunConfig,  # base model, longest text and seed
    rows: int,  # most texts of each table, drawn by the seed
    origin: str | None,  # a description for ledger and card (None names the tables)
    progress: Progress,
) -> WeightScale:
    """Fit the constants, so that a tenth of the public texts has weight 0 and a tenth weight 1.

    Raises:
        InputError: a table cannot be used, or the texts are too alike for a scale.
    """
    seed, longest = config.training.seed, config.training.max_tokens
    texts: list[str] = []
    for table in tables:
        frame = read_frame(table)
        if text not in frame.columns:
            raise InputError(f"{table}: no column {text!r}. Name the column of texts with `text`.")
        cells = [cell for cell in text_cells(frame[text], f"{table}: column {text!r}") if cell]
        if len(cells) < FEWEST:
            raise InputError(
                f"{table}: column {text!r} has {len(cells)} texts. Give at least {FEWEST}."
            )
        texts += random.Random(seed).sample(cells, min(rows, len(cells)))

    base = load_base(config.training.base_model, device=config.speed.device, say=progress.say)
    base.model.to(choose_execution(config)[0])
    ids = base.tokenizer([f" {t.strip()}" for t in texts], add_special_tokens=False)["input_ids"]
    ended = [[*row, base.tokenizer.eos_token_id][:longest] for row in ids]
    nats = text_nats(base.model, base.tokenizer, ended, partial(progress.count, "texts weighed"))
    low, high = torch.quantile(nats, torch.tensor([LOW, HIGH], dtype=nats.dtype)).tolist()
    if not low < high:
        raise InputError("the base model finds all public texts equally likely. Give more texts.")
    named = origin or f"{len(ended)} texts of {', '.join(Path(table).name for table in tables)}"
    unweighed = WeightScale(base.origin, round(low, 4), round(high, 4), named, (1.0, 0, 0, 0, 0))
    # the share of weights that lie nearest to each of those that are stated
    stated = torch.tensor(STATED_WEIGHTS, dtype=torch.float64)
    nearest = (unweighed.weights(nats).double()[:, None] - stated).abs().argmin(1)
    counts = torch.bincount(nearest, minlength=len(stated))
    return replace(unweighed, shares=tuple((counts.double() / len(nats)).tolist()))
