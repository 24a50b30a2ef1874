"""Prompts → token ids: a plain decoding loop whose finished rows leave the batch.

Knows nothing of labels, texts or privacy. The loop exists because on a CPU a full sort of the
vocabulary for every token, and rows that have ended but are still computed, cost most of the time.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from twinset.config import SamplingConfig

PLAUSIBLE = 0.01  # of the likeliest token's probability; guidance lifts nothing below it
NUCLEUS_PREFIX = 512  # largest logits looked at before a full sort is paid for
COMPACT_AT = 1 / 8  # share of finished rows that is worth copying the cache for


def guided(own: Tensor, wrong: Tensor, strength: float) -> Tensor:
    """Press rows towards their own prompt: logits of p(own) · (p(own) / p(wrong))^γ.

    Classifier-free guidance (Sanchez et al. 2023, eq. 7 with γ + 1 for their γ) among the tokens
    that the own prompt finds plausible, as in contrastive decoding (Li et al. 2022).

    Args:
        own: (R, V) logits behind each row's own prompt.
        wrong: (R, V) logits behind another label's.
        strength: γ ≥ 0.
    """
    own = own.to(torch.float32, copy=True)  # and changed in place: fresh memory costs time
    implausible = own < own.max(1, keepdim=True).values + math.log(PLAUSIBLE)
    own.mul_(1 + strength).sub_(wrong, alpha=strength)
    return own.masked_fill_(implausible, -math.inf)


def next_tokens(logits: Tensor, config: SamplingConfig, generator: torch.Generator) -> Tensor:
    """Draw one token a row: (R, V) logits → (R,) ids."""
    logits = logits.float()
    if config.temperature != 1:
        logits = logits / config.temperature
    if config.typical_p is not None:
        return _typical(logits, config.typical_p, generator)
    prefix = min(NUCLEUS_PREFIX, logits.shape[1])
    values, ids = logits.topk(prefix, dim=1)
    log_z = logits.logsumexp(1, keepdim=True)
    short = (values - log_z).exp().sum(1) < config.top_p
    chosen = _from_nucleus(values, ids, log_z, config.top_p, generator)
    if prefix < logits.shape[1] and bool(short.any()):
        values, ids = logits[short].sort(dim=1, descending=True)
        chosen[short] = _from_nucleus(values, ids, log_z[short], config.top_p, generator)
    return chosen


def _from_nucleus(
    values: Tensor, ids: Tensor, log_z: Tensor, top_p: float, generator: torch.Generator
) -> Tensor:
    """Top-p (Holtzman et al. 2020): the likeliest tokens until their probabilities reach p.

    `values` are logits in falling order and `ids` their tokens, both (R, n).
    """
    probabilities = (values - log_z).exp()
    before = probabilities.cumsum(1) - probabilities
    return _draw(probabilities.masked_fill(before >= top_p, 0.0), ids, generator)


def _typical(logits: Tensor, mass: float, generator: torch.Generator) -> Tensor:
    """Typical decoding (Meister et al. 2022): tokens whose surprise is nearest the entropy."""
    logs = logits.log_softmax(1)
    entropy = -(logs.exp() * logs).nansum(1, keepdim=True)
    ids = (-logs - entropy).abs().argsort(dim=1)
    probabilities = logs.exp().gather(1, ids)
    before = probabilities.cumsum(1) - probabilities
    return _draw(probabilities.masked_fill(before >= mass, 0.0), ids, generator)


def _draw(weights: Tensor, ids: Tensor, generator: torch.Generator) -> Tensor:
    return ids.gather(1, torch.multinomial(weights, 1, generator=generator)).squeeze(1)


def generate(
    model: Any,
    prompts: list[list[int]],
    end: int,
    max_new_tokens: int,
    config: SamplingConfig,
    generator: torch.Generator,
    against: list[list[int]] | None = None,
) -> list[list[int]]:
    """Continue each prompt until `end` or `max_new_tokens` ids.

    Args:
        model: causal LM in evaluation mode.
        prompts: token ids, of any lengths.
        end: id of the end-of-text token; it closes the rows that reached it.
        max_new_tokens: longest continuation.
        config: decoding settings.
        generator: source of the draws.
        against: for each prompt a wrong one, from which `config.guidance` presses the row away.
    """
    written: list[list[int]] = [[] for _ in prompts]
    state = _Decoder(model, prompts, end)
    wrong = _Decoder(model, against, end) if against and config.guidance else None
    for _ in range(max_new_tokens):
        logits = state.logits()
        if wrong:
            logits = guided(logits, wrong.logits(), config.guidance)
        tokens = next_tokens(logits, config, generator)
        going = []
        for slot, token in enumerate(tokens.tolist()):
            written[state.rows[slot]].append(token)
            going.append(token != end)
        alive = torch.tensor(going, device=tokens.device)
        for decoder in (state, wrong) if wrong else (state,):
            decoder.advance(tokens, alive)
        if not state.rows:
            break
    return [ids[: ids.index(end) + 1] if end in ids else ids for ids in written]


class _Decoder:
    """The rows still being written: last tokens, cache, mask. Left-padded."""

    def __init__(self, model: Any, prompts: list[list[int]], pad: int) -> None:
        from transformers import DynamicCache

        width, device = max(map(len, prompts)), model.device
        self._model, self._cache = model, DynamicCache()
        self._ids = torch.tensor([[pad] * (width - len(p)) + p for p in prompts], device=device)
        lengths = torch.tensor([len(p) for p in prompts], device=device)
        columns = torch.arange(width, device=device)
        self._mask = (columns >= width - lengths[:, None]).long()
        self._padded = bool((lengths < width).any())
        self._positions = (self._mask.cumsum(1) - 1).clamp(min=0)
        self._going = torch.ones(len(prompts), dtype=torch.bool, device=device)
        self.rows = list(range(len(prompts)))

    def logits(self) -> Tensor:
        """(R, V) for the next token of each row."""
        output = self._model(
            input_ids=self._ids,
            attention_mask=self._mask if self._padded else None,
            position_ids=self._positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = output.logits[:, -1]
        return logits

    def advance(self, tokens: Tensor, going: Tensor) -> None:
        """Append the drawn tokens; drop finished rows once there are enough of them."""
        self._going &= going
        self._ids, self._positions = tokens[:, None], self._positions[:, -1:] + 1
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(tokens), 1)], dim=1)
        alive = int(self._going.sum())
        if alive == 0:
            self.rows = []
        elif alive <= (1 - COMPACT_AT) * len(self.rows):
            self._keep(self._going.nonzero().squeeze(1))

    def _keep(self, slots: Tensor) -> None:
        self._cache.batch_select_indices(slots)
        self._ids, self._positions = self._ids[slots], self._positions[slots]
        self._mask, self._going = self._mask[slots], self._going[slots]
        self.rows = [self.rows[i] for i in slots.tolist()]
