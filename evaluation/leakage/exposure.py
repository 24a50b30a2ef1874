"""How well a model knows a canary's secret: its rank among all that it could have been.

Source: Carlini et al. 2019, "The Secret Sharer": exposure = log2 |R| - log2 rank. A model that
never saw the canary ranks its secret anywhere: log2 e = 1.44 on average. One that knows it by heart
reaches log2 |R|. Knows nothing of planting and training.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any

import numpy as np
import torch

from evaluation.leakage.canaries import Canary
from twinset.errors import InputError

EXACT = "exact rank"
UNKNOWN = math.log2(math.e)  # mean exposure of secrets that the model does not know
LARGEST_SPACE = 10**6
BATCH_SIZE = 256  # candidates scored at once


@dataclass(frozen=True)
class Exposure:
    """A canary's exposure.

    Args:
        canary: whose.
        rank: of its secret, 1 for the likeliest; a half where candidates tie.
        space: |R|.
        method: how the rank was found.
    """

    canary: Canary
    rank: float
    space: int
    method: str = EXACT

    @property
    def bits(self) -> float:
        """The exposure."""
        return math.log2(self.space) - math.log2(self.rank)


def exposure(model: Any, tokenizer: Any, prompt: Sequence[int], canary: Canary) -> Exposure:
    """Rank the secret among all candidates by their likelihood behind the prompt.

    Args:
        model: causal LM in evaluation mode.
        tokenizer: its tokenizer.
        prompt: ids of the prompt of the label that the canary was planted with.
        canary: the canary.

    Raises:
        InputError: the space is too large to score all of it.
    """
    space = canary.format.space
    if space > LARGEST_SPACE:
        raise InputError(
            f"a canary with {space} secrets cannot be ranked exactly; "
            f"take a format with at most {LARGEST_SPACE}"
        )
    losses = candidate_losses(model, tokenizer, prompt, canary.format.candidates())
    return Exposure(canary, expected_rank(losses, canary.secret), space)


def expected_rank(losses: np.ndarray, secret: int) -> float:
    """Return the secret's rank by rising loss; among equals, the middle one.

    A loss that is no number, as of a model that diverged, counts as infinite.

    >>> losses = np.array([3.0, 1.0, 2.0, 2.0])
    >>> expected_rank(losses, 1), expected_rank(losses, 2)
    (1.0, 2.5)
    """
    losses = np.nan_to_num(losses, nan=np.inf, posinf=np.inf)
    likelier = int((losses < losses[secret]).sum())
    equal = int((losses == losses[secret]).sum())  # itself too
    return likelier + (equal + 1) / 2


def candidate_losses(
    model: Any, tokenizer: Any, prompt: Sequence[int], texts: Sequence[str]
) -> np.ndarray:
    """Return the negative log-likelihood of each text behind the prompt: (N,), in nats.

    Less that of the tokens that all begin with: they are read once and not scored. Tokens are those
    of training, without the end of text.
    """
    encoded = tokenizer([" " + text for text in texts], add_special_tokens=False)["input_ids"]
    shared = commonprefix([ids[:-1] for ids in encoded])  # of lists too
    tails = [tuple(ids[len(shared) :]) for ids in encoded]
    order = sorted(range(len(tails)), key=tails.__getitem__)  # those that begin alike together
    losses = np.zeros(len(tails))
    with torch.inference_mode():
        stem = torch.tensor([[*prompt, *shared]], device=model.device)
        read = model(stem, use_cache=True, logits_to_keep=1)
        for start in range(0, len(order), BATCH_SIZE):
            batch = order[start : start + BATCH_SIZE]
            cache = copy.deepcopy(read.past_key_values)  # the model appends to it
            losses[batch] = _tail_losses(
                model, read.logits[:, -1], cache, [tails[i] for i in batch]
            )
    return losses


def _tail_losses(
    model: Any, logits: torch.Tensor, cache: Any, tails: list[tuple[int, ...]]
) -> np.ndarray:
    """Return the losses of tails behind one stem, token by token; equal beginnings are read once.

    Args:
        model: causal LM.
        logits: (1, V), behind the stem.
        cache: of the stem; used up.
        tails: the tokens of each text behind it.
    """
    losses = np.zeros(len(tails))
    rows: dict[tuple[int, ...], int] = {(): 0}  # beginning → its row of logits
    for depth in range(max(map(len, tails))):
        log_probabilities = logits.float().log_softmax(1)
        alive = [i for i, tail in enumerate(tails) if len(tail) > depth]
        places = [rows[tails[i][:depth]] for i in alive], [tails[i][depth] for i in alive]
        losses[alive] -= log_probabilities[places].double().cpu().numpy()
        longer = list(dict.fromkeys(t[: depth + 1] for t in tails if len(t) > depth + 1))
        if longer:
            parents = [rows[beginning[:-1]] for beginning in longer]
            cache.batch_select_indices(torch.tensor(parents, device=model.device))
            ids = torch.tensor([[beginning[-1]] for beginning in longer], device=model.device)
            logits = model(ids, past_key_values=cache, use_cache=True).logits[:, -1]
            rows = {beginning: row for row, beginning in enumerate(longer)}
    return losses
