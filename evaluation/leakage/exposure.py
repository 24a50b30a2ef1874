"""How well a canary's secret is known: its rank among all that it could have been.

Source: Carlini et al. 2019, "The Secret Sharer": exposure = log2 |R| - log2 rank, in bits. Whoever
never saw the canary ranks its secret anywhere: log2 e = 1.44 on average. Knowing it by heart gives
log2 |R|. Three ways to rank: by the model exactly, by the model from a sample where the space is
large, and by the released rows alone. Knows nothing of planting and training.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from os.path import commonprefix
from typing import Any

import numpy as np
import torch

from evaluation.leakage.canaries import Canary
from twinset.errors import InputError

EXACT = "exact rank"
UNKNOWN = math.log2(math.e)  # mean exposure of secrets that the model does not know
LARGEST_SPACE = 10**6  # that is ranked exactly
SAMPLED = 2000  # secrets that stand for a larger space
ECHOED = 10_000  # candidates that released rows are asked for, at most
BIGRAMS = "bigram model of the twin"
BATCH_SIZE = 256  # candidates scored at once


@dataclass(frozen=True)
class Exposure:
    """A canary's exposure.

    Args:
        canary: whose.
        rank: of its secret, 1 for the likeliest. A half where candidates tie.
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


def extrapolated_exposure(
    model: Any,
    tokenizer: Any,
    prompt: Sequence[int],
    canary: Canary,
    *,
    seed: int,
    candidates: int = SAMPLED,
) -> Exposure:
    """Estimate what `exposure` computes from a random sample of `candidates` other secrets.

    What the tail really is, a sample cannot tell. Where candidates come in kinds that the model
    likes differently, compare with secrets that it never saw, not with theory.
    """
    space = canary.format.space
    texts = [canary.text, *map(canary.format.text, sample_secrets(canary, candidates, seed))]
    losses = candidate_losses(model, tokenizer, prompt, texts)
    rank, method = extrapolated_rank(losses[1:], float(losses[0]), space)
    return Exposure(canary, rank, space, method)


def sample_secrets(canary: Canary, many: int, seed: int) -> list[int]:
    """Return the numbers of random secrets, with replacement, none of which is the canary's."""
    drawn = np.random.default_rng(seed).integers(canary.format.space - 1, size=many)
    others: list[int] = (drawn + (drawn >= canary.secret)).tolist()  # skips the canary's own
    return others


def extrapolated_rank(sample: np.ndarray, loss: float, space: int) -> tuple[float, str]:
    """Return a secret's rank among |R| candidates, 1 … |R|, and how it was found.

    Carlini et al. 2019, section 4.3: the losses of all candidates follow a skew-normal
    distribution. Its tail below the secret's loss, fitted to a random sample, gives rank / |R|.
    A sample that no curve can be fitted to gives the rank within the sample, scaled to the space.
    That is so where its losses are all one, or some are no numbers, as of a model that diverged.

    Args:
        sample: losses of random candidates.
        loss: of the secret.
        space: |R|.
    """
    from scipy.stats import skewnorm

    losses = np.append(loss, sample)
    if not np.isfinite(losses).all() or np.ptp(sample) < 1e-9:
        rank = expected_rank(losses, 0) / len(losses) * space
        return max(1.0, rank), f"rank among {len(sample)} candidates"
    tail = float(skewnorm.cdf(loss, *skewnorm.fit(sample)))
    return min(max(1.0, tail * space), float(space)), f"skew-normal, {len(sample)} candidates"


def expected_rank(losses: np.ndarray, secret: int) -> float:
    """Return the secret's rank by rising loss, and among equals the middle one.

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

    Less that of the tokens that all begin with, which are read once and not scored. Tokens are
    those of training, without the end of text. Equal beginnings are read once in each batch: a
    thousand numbers of three digits are 1,110 tokens, not 3,000.
    """
    encoded = tokenizer([" " + text for text in texts], add_special_tokens=False)["input_ids"]
    shared = commonprefix([ids[:-1] for ids in encoded])  # works on lists too
    tails = [tuple(ids[len(shared) :]) for ids in encoded]
    order = sorted(range(len(tails)), key=tails.__getitem__)  # those that begin alike together
    losses = np.zeros(len(tails))
    with torch.inference_mode():
        stem = torch.tensor([[*prompt, *shared]], device=model.device)
        read = model(stem, use_cache=True, logits_to_keep=1)
        for start in range(0, len(order), BATCH_SIZE):
            batch = order[start : start + BATCH_SIZE]
            cache = copy.deepcopy(read.past_key_values)  # the model appends to it
            logits = read.logits[:, -1]  # (1, V), behind the stem
            rows: dict[tuple[int, ...], int] = {(): 0}  # beginning → its row of logits
            for depth in range(max(len(tails[i]) for i in batch)):
                log_probabilities = logits.float().log_softmax(1)  # (beginnings, V)
                alive = [i for i in batch if len(tails[i]) > depth]
                places = [rows[tails[i][:depth]] for i in alive], [tails[i][depth] for i in alive]
                losses[alive] -= log_probabilities[places].double().cpu().numpy()
                deeper = (tails[i][: depth + 1] for i in alive if len(tails[i]) > depth + 1)
                longer = list(dict.fromkeys(deeper))
                if longer:
                    parents = [rows[beginning[:-1]] for beginning in longer]
                    cache.batch_select_indices(torch.tensor(parents, device=model.device))
                    last = [[beginning[-1]] for beginning in longer]
                    ids = torch.tensor(last, device=model.device)  # (beginnings, 1)
                    logits = model(ids, past_key_values=cache, use_cache=True).logits[:, -1]
                    rows = {beginning: row for row, beginning in enumerate(longer)}
    return losses


class Bigrams:
    """A bigram model of texts, with add-one smoothing over the words it has seen and one more.

    Args:
        tokenizer: cuts texts into tokens.
        texts: what it learns from.
    """

    def __init__(self, tokenizer: Any, texts: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        rows = self._tokens(texts)
        self._pairs = Counter(pair for row in rows for pair in pairwise(row))
        self._first = Counter(first for row in rows for first in row[:-1])
        self._kinds = len({token for row in rows for token in row}) + 1

    def losses(self, texts: Sequence[str]) -> np.ndarray:
        """Return the negative log-likelihood of each text: (N,), in nats."""
        return np.array(
            [
                sum(
                    math.log(self._first[first] + self._kinds)
                    - math.log(self._pairs[first, second] + 1)
                    for first, second in pairwise(row)
                )
                for row in self._tokens(texts)
            ]
        )

    def _tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Return tokens as in training: a space before each text, and a mark for its beginning."""
        spaced = [" " + text for text in texts]
        encoded = self._tokenizer(spaced, add_special_tokens=False)["input_ids"]
        return [[-1, *ids] for ids in encoded]


def echo(bigrams: Bigrams, canary: Canary, seed: int) -> Exposure:
    """Rank a canary's secret by a model of the released rows.

    Source: Meeus et al. 2025, "The Canary's Echo: Auditing Privacy Risks of LLM-Generated Synthetic
    Text", section 3: a bigram model with add-one smoothing, trained on the twin. Where the space is
    larger than `ECHOED`, that many candidates drawn by the seed stand for the rest. No more than
    log2 of their number can be seen then.
    """
    space = canary.format.space
    if space <= ECHOED:
        losses = bigrams.losses(canary.format.candidates())
        rank = expected_rank(losses, canary.secret)
        return Exposure(canary, rank, space, f"{EXACT}, {BIGRAMS}")
    others = sample_secrets(canary, ECHOED - 1, seed)
    losses = bigrams.losses([canary.text, *map(canary.format.text, others)])
    method = f"rank among {ECHOED} candidates, {BIGRAMS}"
    return Exposure(canary, expected_rank(losses, 0) / ECHOED * space, space, method)
