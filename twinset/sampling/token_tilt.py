"""Tokens made likelier or less likely, label by label, until rows have them as private texts do.

Exponential tilting: a row x of label values v is drawn from p(x) · exp(Σ λ[v, t]) over the distinct
tokens t of x, so that the mean number of rows with token t agrees with noisy counts that were
released. All of it is post-processing of these and of the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from twinset.models.base_model import context_length
from twinset.privacy.mechanism.counts import TokenMarginals, TokenWeights
from twinset.sampling.kv_cache import rounded
from twinset.sampling.label_tables import as_kept, load_tables, save_tables
from twinset.table.schema import Combination, Schema

TILT = "token_tilt.safetensors"
LARGEST, SPACING = 2.5, 0.1  # of λ, and of the values that are tried
PRIOR = 1.0  # standard deviation of λ: what is not known stays near 0
SWEEPS = 4  # over all label values
TOKENS_TOGETHER = 64  # of a row, whose chances are reckoned at once
RAREST = 1e-9  # texts that are expected to have a token, at least


@dataclass(frozen=True)
class TokenTilt:
    """λ: of each attribute (K, V) float32, added to logits of tokens that a row has not yet."""

    strengths: Sequence[np.ndarray]

    def bias(self, schema: Schema, combination: Combination) -> torch.Tensor:
        """Return what is added to the logits (V,) of a row of this label combination."""
        numbers = schema.value_numbers(combination)
        rows = [each[n] for each, n in zip(self.strengths, numbers, strict=True)]
        return torch.from_numpy(np.sum(rows, 0, dtype=np.float32))

    def save(self, folder: Path) -> None:
        """Write it beside a model's weights."""
        save_tables(folder / TILT, self.strengths)

    @classmethod
    def load(cls, folder: Path, classes: Sequence[int], vocabulary: int) -> TokenTilt | None:
        """Read what `save` wrote; None where there is none. See `load_tables`."""
        found = load_tables(folder / TILT, classes, vocabulary, LARGEST)
        return None if found is None else cls(found)


@torch.inference_mode()
def expected_presence(
    model: Any, prompt: Sequence[int], rows: Sequence[Sequence[int]], weights: TokenWeights
) -> np.ndarray:
    """Return the mean over rows of the chance (V,) that each token would be in one like it.

    Summing the model's probabilities along its own rows tells of rare tokens what counting them
    would take thousands of rows for. A row counts for as much as a private text like it would.

    Args:
        model: causal LM in evaluation mode.
        prompt: token ids.
        rows: token ids of rows that the model wrote behind it.
        weights: what tokens counted; those of none, as the end, are expected nowhere: the end
            would seem far too frequent, as it is not counted, and rows never end.
    """
    total = torch.zeros(model.config.vocab_size, dtype=torch.float64)
    for row in rows:
        states, head = _states(model, prompt, row), model.get_output_embeddings()
        # A few tokens at a time: of a long row all would be many times as much as its states.
        pieces = enumerate(states.split(TOKENS_TOGETHER))
        absent = [_log_absent(head(x)[: len(row) - i * TOKENS_TOGETHER]) for i, x in pieces]
        total += -torch.expm1(torch.stack(absent).sum(0)).double().cpu() * weights.of(row)[1]
    found: np.ndarray = (total / max(1, len(rows))).numpy()
    return np.where(weights.weights > 0, found, 0.0)


def _states(model: Any, prompt: Sequence[int], row: Sequence[int]) -> torch.Tensor:
    """Return the last hidden states (T, d) that a row's tokens are drawn from, and some behind.

    So that there are few shapes, for each of which the processor's library keeps code.
    """
    before = len(prompt) - 1
    length = min(before + rounded(len(row), TOKENS_TOGETHER), context_length(model))
    ids = [*prompt, *row[:-1]]
    ids += [0] * (length - len(ids))
    read = torch.tensor([ids], device=model.device)
    states: torch.Tensor = model.base_model(input_ids=read, use_cache=False).last_hidden_state
    return states[0, before:]


def _log_absent(logits: torch.Tensor) -> torch.Tensor:
    """Return the logarithm of the chance (V,) that no draw is of a token; logits (T, V)."""
    return logits.float().softmax(1).clamp_(max=1 - 1e-6).neg_().log1p_().sum(0)


def fit_tilt(
    released: TokenMarginals,
    schema: Schema,
    shares: Mapping[Combination, float],
    expected: Mapping[Combination, np.ndarray],
) -> TokenTilt:
    """Find λ with which the model's rows would have tokens as often as released.

    The values of one attribute after another are fitted, the others being given (iterative
    proportional fitting), each λ as the likeliest under the noise and a prior that draws it to 0.

    Args:
        released: the noisy counts.
        schema: whose labels they are of.
        shares: of each label combination among the texts; their sum is one.
        expected: (V,) for each combination, of `expected_presence`.
    """
    numbers = {c: schema.value_numbers(c) for c in expected}
    strengths = [np.zeros_like(counts) for counts in released.counts]

    def odds(combination: Combination, but: int) -> Any:
        """Return e^λ of all attributes but one."""
        pairs = enumerate(zip(strengths, numbers[combination], strict=True))
        return np.exp(sum(each[n] for i, (each, n) in pairs if i != but))

    for _ in range(SWEEPS if len(strengths) > 1 else 1):
        for i, counts in enumerate(released.counts):
            for value in range(len(counts)):
                own = [c for c in expected if numbers[c][i] == value]
                parts = [shares[c] * released.units * expected[c] * odds(c, i) for c in own]
                without = np.sum([*parts, np.full(counts.shape[1], RAREST)], 0)
                strengths[i][value] = likeliest(counts[value], without, released.noise)
    return TokenTilt(as_kept(strengths))


def misfit(
    released: TokenMarginals,
    schema: Schema,
    shares: Mapping[Combination, float],
    expected: Mapping[Combination, np.ndarray],
) -> float:
    """Return how far rows are from having tokens as often as released; 0: they have.

    The sum over label values of a symmetric χ² distance of counts, with their noise in its
    denominator: what noise hides tells nothing. Where noise prevails, differences between rows are
    those of −2 log-likelihood.

    Args:
        released: the noisy counts.
        schema: whose labels they are of.
        shares: of every label combination among the texts; their sum is one.
        expected: (V,) of `expected_presence`, of combinations that there are rows of: these stand
            for all that share a label value with them.
    """
    numbers, found = {c: schema.value_numbers(c) for c in shares}, 0.0
    for i, counts in enumerate(released.counts):
        for value, own in enumerate(counts):
            having = [c for c in shares if numbers[c][i] == value]
            rows = {c: shares[c] for c in having if c in expected}
            if not (of_rows := sum(rows.values())):
                continue
            texts = released.units * sum(shares[c] for c in having)
            mean = sum(share / of_rows * expected[c] for c, share in rows.items())
            likely = texts * np.asarray(mean)
            variance = released.noise**2 + likely + own.clip(0) + RAREST
            found += float(np.sum((own - likely) ** 2 / variance))
    return found


def likeliest(
    counts: np.ndarray, expected: np.ndarray, noise: np.ndarray, prior: float = PRIOR
) -> np.ndarray:
    """Return λ (V,) of largest posterior density, where counts are about expected · e^λ.

    Args:
        counts: (V,) released.
        expected: (V,) without a tilt.
        noise: (V,) standard deviation of what was added to counts; inf: λ is 0.
        prior: standard deviation of λ.

    >>> noise = np.array([20.0, 20.0, 20.0, np.inf])
    >>> counts, expected = np.array([900.0, 900, 5, 0]), np.array([300.0, 900, 0.01, 300])
    >>> likeliest(counts, expected, noise).round(1)
    array([1.1, 0. , 0. , 0. ])
    """
    best, found = np.full(len(counts), np.inf), np.zeros(len(counts))
    tried = np.arange(0, LARGEST + SPACING / 2, SPACING)
    for strength in (*tried, *-tried[1:]):  # of equals the smallest
        mean = expected * np.exp(strength)
        variance = noise**2 + mean
        loss = (counts - mean) ** 2 / variance + np.log(variance) + (strength / prior) ** 2
        better = loss < best
        best[better], found[better] = loss[better], strength
    return found
