"""Membership inference on the model: rows that it was trained on are less surprising to it.

Sources: Yeom et al. 2018 (loss); Carlini et al. 2021, "Extracting Training Data from Large Language
Models" (another model's loss, zlib); Shi et al. 2024, "Detecting Pretraining Data from Large
Language Models" (Min-K%). Every row is read once by each model, behind its own prompt and with the
tokens of training. Knows nothing of how scores are judged.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evaluation.leakage.roc import Attack
from evaluation.utility.heldout_loss import read
from twinset.errors import InputError
from twinset.models.assets import Say, silent
from twinset.models.base_model import BaseModel, context_length, load_base
from twinset.models.device import AUTO
from twinset.progress import Progress, Silent
from twinset.sampling.twin_model import TwinModel
from twinset.table.records import Records
from twinset.table.tokenization import TokenisedRecords, tokenise

SEES = "model"
MIN_K = 20  # %: the share of a row's tokens, least likely first, that Min-K% looks at
_UNREADABLE = 1e6  # nats of a token whose probability is no number: the model diverged


@dataclass(frozen=True)
class RowLosses:
    """What a model makes of every row, in nats.

    Args:
        total: (N,) negative log-likelihood of text and end of text behind the prompt.
        mean: (N,) the same per token.
        hardest: (N,) mean over the `MIN_K` % of tokens that surprise it most.
    """

    total: np.ndarray
    mean: np.ndarray
    hardest: np.ndarray


def model_attacks(
    twin: TwinModel,
    base: BaseModel | None,
    members: Records,
    non_members: Records,
    progress: Progress | None = None,
) -> tuple[list[Attack], list[str]]:
    """Score members and non-members by all attacks.

    The loss by compressed length is that of the whole row: a mean per token over the length, as
    published for texts of one length, would rank rows of many lengths by their length.

    Args:
        twin: the model attacked.
        base: what it was before fine-tuning; without it the calibrated loss is left out.
        members: rows it was trained on.
        non_members: rows of the same kind that it was not trained on.
        progress: is notified of how many rows are read.

    Returns:
        The attacks, and notes.

    Raises:
        InputError: rows whose labels the model was not trained with.
    """
    progress = progress or Silent()
    tokens = _tokens(twin, members, non_members)
    losses = row_losses(
        twin.model, tokens, partial(progress.count, "rows read by the twin's model")
    )
    found = {
        "loss": -losses.mean,
        "zlib ratio": -losses.total / _compressed(twin.tokenizer, tokens.texts),
        f"Min-{MIN_K} %": -losses.hardest,
    }
    notes: list[str] = []
    if base is not None and base.tokenizer.get_vocab() == twin.tokenizer.get_vocab():
        before = row_losses(
            base.model, tokens, partial(progress.count, "rows read by the base model")
        )
        found["calibrated loss"] = before.mean - losses.mean
    else:
        why = "is not at hand" if base is None else "has another vocabulary"
        notes.append(f"calibrated loss: left out, for the base model {why}")
    scored = {name: np.split(values, [len(members)]) for name, values in found.items()}
    return [Attack(name, SEES, of, not_of) for name, (of, not_of) in scored.items()], notes


def find_base(name: str, origin: str, say: Say = silent, device: str = AUTO) -> BaseModel | None:
    """Return the base model of that name if its origin is what the twin states; else None."""
    try:
        base = load_base(name, device=device, say=say)
    except InputError:
        return None
    return base if base.origin == origin else None  # the hub, or the folder, may hold another now


def row_losses(
    model: Any,
    tokens: TokenisedRecords,
    on_progress: Callable[[int, int], object] = lambda done, total: None,
) -> RowLosses:
    """Read every row once behind its own prompt.

    Args:
        model: causal LM in evaluation mode.
        tokens: rows, tokenised for it.
        on_progress: is notified of how many rows are read, of how many.
    """
    found, done = np.zeros((3, len(tokens))), 0
    for batch, nats, mask in read(model, tokens):
        found[:, batch] = _sums(_spread(nats, mask), mask).cpu().numpy()
        done += len(batch)
        on_progress(done, len(tokens))
    return RowLosses(*found)


def _spread(nats: Tensor, mask: Tensor) -> Tensor:
    """(R, T-1) nats where the mask is true; -∞ elsewhere."""
    spread = torch.full(mask.shape, -torch.inf, dtype=torch.float64, device=mask.device)
    spread[mask] = nats.nan_to_num(nan=_UNREADABLE, posinf=_UNREADABLE)
    return spread


def _sums(nats: Tensor, mask: Tensor) -> Tensor:
    """(3, R): total, mean, and mean of the hardest tokens of each row."""
    lengths = mask.sum(1)
    hardest = (lengths * MIN_K // 100).clamp(min=1)
    running = nats.sort(1, descending=True).values.cumsum(1)

    def first(count: Tensor) -> Tensor:
        return running.gather(1, count[:, None] - 1)[:, 0]

    total = first(lengths)
    return torch.stack([total, total / lengths, first(hardest) / hardest])


def _compressed(tokenizer: Any, texts: Sequence[list[int]]) -> np.ndarray:
    """(N,) bytes that zlib makes of each text, as far as it was read."""
    decoded = (tokenizer.decode(ids, skip_special_tokens=True) for ids in texts)
    return np.array([len(zlib.compress(text.encode())) for text in decoded], float)


def _tokens(twin: TwinModel, members: Records, non_members: Records) -> TokenisedRecords:
    names = [attribute.name for attribute in twin.schema.attributes]
    for records, who in ((members, "the members"), (non_members, "the non-members")):
        if [attribute.name for attribute in records.schema.attributes] != names:
            raise InputError(
                f"{who}: the model was trained with the labels {', '.join(names)}; name these"
            )
        if not set(records.labels) <= set(twin.schema.combinations):
            raise InputError(
                f"{who} have label values that the model was not trained with; leave these rows out"
            )
    rows = replace(
        members,
        texts=[*members.texts, *non_members.texts],
        labels=[*members.labels, *non_members.labels],
        schema=twin.schema,
    )
    context = context_length(twin.model)
    return tokenise(rows, twin.template, twin.tokenizer, context, twin.text_tokens)
