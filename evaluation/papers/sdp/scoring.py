"""How well a model predicts records: all tokens, and private ones alone. Knows no training."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evaluation.heldout import read
from evaluation.papers.learning import GROUPS, LARGEST_NATS
from evaluation.papers.sdp.corpora import Flagged


@dataclass(frozen=True)
class Scored:
    """Sums over the tokens of each record: (N,) each.

    Args:
        nats: of all tokens.
        tokens: how many.
        hits: of these, tokens that were the likeliest.
        private_nats: of private tokens.
        private_tokens: how many.
    """

    nats: np.ndarray
    tokens: np.ndarray
    hits: np.ndarray
    private_nats: np.ndarray
    private_tokens: np.ndarray

    @property
    def groups(self) -> np.ndarray:
        """(G, 2) nats and tokens, records dealt in turn."""
        return _groups(self.nats, self.tokens)

    @property
    def private_groups(self) -> np.ndarray:
        """(G, 2) the same of private tokens; groups without any are left out."""
        found = _groups(self.private_nats, self.private_tokens)
        return found[found[:, 1] > 0]

    @property
    def accuracy(self) -> float:
        """Share of tokens that were the likeliest."""
        return float(self.hits.sum() / self.tokens.sum())


class _Watched:
    """A model whose last logits can be looked at.

    Args:
        model: a causal LM.
    """

    def __init__(self, model: Any) -> None:
        self._model, self.device = model, model.device
        self.logits = torch.empty(0)

    def __call__(self, ids: Tensor) -> SimpleNamespace:
        self.logits = self._model(ids).logits
        return SimpleNamespace(logits=self.logits)


def scored(model: Any, flagged: Flagged) -> Scored:
    """Read all records once; a token that a broken model gives nothing finite costs a lot."""
    watched, sums = _Watched(model.eval()), np.zeros((5, len(flagged.records)))
    for batch, nats, mask in read(watched, flagged.records):
        targets = np.concatenate([flagged.records.texts[i] for i in batch])
        private = np.concatenate([flagged.flags[i] for i in batch])
        likeliest = watched.logits[:, :-1][mask].argmax(1).cpu().numpy()
        lost = np.nan_to_num(nats.cpu().numpy(), nan=LARGEST_NATS, posinf=LARGEST_NATS)
        values = lost, np.ones(len(lost)), likeliest == targets, lost * private, private
        row = np.repeat(batch, [len(flagged.records.texts[i]) for i in batch])
        for total, value in zip(sums, values, strict=True):
            np.add.at(total, row, value)
    return Scored(*sums)


def _groups(nats: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    group = np.arange(len(tokens)) % GROUPS
    return np.column_stack([np.bincount(group, weights=w) for w in (nats, tokens)])
