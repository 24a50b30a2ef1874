"""Fits a model's tilt and tables on rows that the model writes without a tilt.

Exponential tilting: a row x of label values v is drawn from p(x) · exp(Σ λ[v, t]) over the distinct
tokens t of x. The mean number of rows with token t then agrees with noisy counts. The same rows
weigh the tokens before they are counted, choose a prompt, and scale hidden states.

They are as public as any sample of the model. No row is refused, because a run must not end here
with a trained model that is not saved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from functools import partial
from typing import Any

import numpy as np
import torch

from twinset.config import SamplingConfig
from twinset.models.base_model import context_length
from twinset.models.hidden_states import rows_at_once
from twinset.privacy.mechanism.counts import LengthBins, TokenMarginals, TokenWeights
from twinset.progress import Count, Progress
from twinset.sampling.allocation import proportional
from twinset.sampling.decoding import rounded
from twinset.sampling.label_tables import RAREST, TokenTilt, likeliest
from twinset.sampling.twin_model import TwinModel
from twinset.table.schema import Combination, Schema
from twinset.table.templates import Template
from twinset.table.tokenization import batches_of_one_length

REFERENCE_ROWS = 256  # at most, to find the tilt and scale hidden states: no more than units
WEIGHT_ROWS = 64  # of the base model, by which tokens are weighed before they are counted
PROMPT_ROWS, OPENING = 32, 48  # after each candidate prompt, and their tokens
WEIGHT_PHASE, REFERENCE_PHASE = "rows of the base", "reference rows"  # as progress calls them
PROMPT_PHASE, READ_PHASE, FIT_PHASE = "prompts tried", "rows read again", "words fitted"
UNTILTED = SamplingConfig(guidance=0.0, tilt=0.0)
SWEEPS = 4  # over all label values
# Of weights of tokens, by the share of texts that have one.
COMMON = 0.01  # a more common token counts for less, as its count is known anyway
RARE = 0.003  # a rarer one counts for less, as no affordable noise would leave its count readable
LEAST = 0.25  # of a rare one: private texts may have it more often than a model expects
TOKENS_TOGETHER = 64  # of a row, whose probabilities are computed at once

Rows = Mapping[Combination, list[list[int]]]  # token ids, by label


# -- rows without a tilt ---------------------------------------------------------------------------


def untilted_rows(
    model: TwinModel,
    most: int,
    count: Callable[[int, int, float], None] = lambda done, total, share: None,
) -> dict[Combination, list[list[int]]]:
    """Return rows as token ids, by label, in the proportions of the noisy counts.

    There are at most `most`, and no more than privacy units. `count` is called with rows so far,
    rows in all, and the share of the work.
    """
    total = min(most, model.ledger.records)
    wanted = {c: n for c, n in proportional(model.label_counts, total).items() if n}
    sampler = model.sampler(UNTILTED, 0, has_lengths=True)
    return sampler.drafts(wanted, lambda done, share: count(done, total, share))


def reference_rows(model: TwinModel, progress: Progress) -> Rows:
    """Return the rows for fitting tilt and teacher. They are written once."""
    if not model.reference:
        count = partial(progress.count, REFERENCE_PHASE)
        model.reference = untilted_rows(model, REFERENCE_ROWS, count)
    return model.reference


def openings(model: TwinModel, template: Template) -> TwinModel:
    """Return a model that writes the beginnings of rows, after a template's prompts."""
    opening = copy(model)  # shares the fast copies of the weights with the first rows
    opening.template, opening.lengths = template, None
    opening.text_tokens = min(OPENING, model.text_tokens)
    return opening


# -- what follows from them ------------------------------------------------------------------------


def token_weights(model: TwinModel, progress: Progress) -> TokenWeights:
    """Return weights for counting tokens in texts that are like a model's rows.

    The model is the base model, which has read no private text. The noise on a count is
    proportional to the bound over the token's weight, and a token of frequency f adds f · weight²
    to the squared bound. So the weights favour tokens in between: not common ones, whose counts are
    far above the noise, nor rare ones, whose counts it hides.
    """
    rows = untilted_rows(model, WEIGHT_ROWS, partial(progress.count, WEIGHT_PHASE))
    end = model.tokenizer.eos_token_id
    equal = TokenWeights.equal(model.model.config.vocab_size, end)
    expected = expected_tokens(model, rows, equal, partial(progress.count, READ_PHASE))
    parts = [share * expected[c] for c, share in model.shares(rows).items()]
    frequencies = np.sum(parts, 0)  # (V,) share of texts that have a token
    shares = np.maximum(frequencies, RARE * LEAST**2)
    weights = np.minimum(1.0, np.minimum((shares / RARE) ** 0.5, (COMMON / shares) ** 0.25))
    weights[end] = 0  # every text may end with it
    return TokenWeights(weights, max(1.0, float(frequencies @ weights**2) ** 0.5))


def prompt_misfit(model: TwinModel, template: Template, marginals: TokenMarginals) -> float:
    """Return how far the tokens of rows after a template's prompts are from the counted ones.

    The sum over label values of a symmetric χ² distance of counts, with their noise in its
    denominator, so that hidden differences do not count. If noise prevails, differences between
    rows are those of −2 log-likelihood. Like `fit_tilt` it is post-processing of released counts.
    The model is the base model, with the counted lengths, if any.
    """
    opening = openings(model, template)
    rows = untilted_rows(opening, PROMPT_ROWS)
    expected = expected_tokens(opening, rows, marginals.weights)
    # Openings of rows are enough: with the lengths that were counted they tell of whole rows, if
    # tokens are alike all through a text.
    if model.lengths is not None:
        bins = LengthBins(model.text_tokens, model.tokenizer.eos_token_id)
        for c, chance in expected.items():
            length = max(1.0, float(np.mean([len(ids) for ids in rows[c]])))
            absent = np.log1p(-chance.clip(0, 1 - 1e-6)) / length  # (V,) of one token, logarithm
            whole = zip(model.lengths.shares_of(model.schema, c), bins.means, strict=True)
            expected[c] = np.sum([-share * np.expm1(mean * absent) for share, mean in whole], 0)
    shares, found = model.shares(model.schema.combinations), 0.0
    numbers = {c: model.schema.value_numbers(c) for c in shares}
    for i, counts in enumerate(marginals.counts):
        for value, own in enumerate(counts):
            # Combinations that there are rows of stand for all that share a label value with them.
            having = [c for c in shares if numbers[c][i] == value]
            known = {c: shares[c] for c in having if c in expected}
            if not (of_rows := sum(known.values())):
                continue
            texts = marginals.units * sum(shares[c] for c in having)
            mean = sum(share / of_rows * expected[c] for c, share in known.items())
            likely = texts * np.asarray(mean)  # (V,) texts
            variance = marginals.noise**2 + likely + own.clip(0) + RAREST
            found += float(np.sum((own - likely) ** 2 / variance))
    return found


def fit_tilt(
    released: TokenMarginals,
    schema: Schema,
    shares: Mapping[Combination, float],
    expected: Mapping[Combination, np.ndarray],
    count: Count = lambda done, total: None,
) -> TokenTilt:
    """Find λ with which the model's rows have tokens as often as the released counts say.

    The values of one attribute after another are fitted while the others are fixed (iterative
    proportional fitting). Each λ is the likeliest under the noise and a prior around 0.

    `shares` are those of each label combination among the texts, and `expected` has (V,) for each,
    from `expected_tokens`.
    """
    numbers = {c: schema.value_numbers(c) for c in expected}
    strengths = [np.zeros_like(counts) for counts in released.counts]
    sweeps, done = SWEEPS if len(strengths) > 1 else 1, 0
    total = sweeps * sum(map(len, released.counts))
    for _ in range(sweeps):
        for i, counts in enumerate(released.counts):
            texts = np.full(counts.shape, RAREST)  # (K, V) that would have a token without this λ
            for c, own in numbers.items():
                pairs = enumerate(zip(strengths, own, strict=True))
                others: Any = sum(each[n] for j, (each, n) in pairs if j != i)
                texts[own[i]] += shares[c] * released.units * expected[c] * np.exp(others)
            for value, likely in enumerate(texts):
                strengths[i][value] = likeliest(counts[value], likely, released.noise)
                count(done := done + 1, total)
    return TokenTilt(strengths)


# -- how often a token is expected -----------------------------------------------------------------


@torch.inference_mode()
def expected_tokens(
    model: TwinModel,
    rows: Rows,
    weights: TokenWeights,
    count: Count = lambda done, total: None,
) -> dict[Combination, np.ndarray]:
    """Return by label the mean over rows of the probability (V,) that a row has each token.

    The model's probabilities are summed along its own rows. Counting would need thousands of rows
    for the same precision on rare tokens. A row has the weight of a private text like it.

    `rows` are token ids that the model wrote after its prompts. Tokens of weight 0, such as the
    end, are expected nowhere. The end is not counted, so it would seem far too frequent, and rows
    would never end.
    """
    writer, prompts = model.fastest, model.prompts
    head, longest = writer.get_output_embeddings(), context_length(writer)
    every = [(combination, row) for combination, written in rows.items() for row in written]
    # Filled up, so that there are few shapes: for each the processor's library keeps code.
    widths = [
        min(len(prompts[combination]) - 1 + rounded(len(row), TOKENS_TOGETHER), longest)
        for combination, row in every
    ]
    batches = batches_of_one_length(
        range(len(every)), widths.__getitem__, partial(rows_at_once, device=writer.device)
    )
    totals = {c: np.zeros(writer.config.vocab_size) for c in rows}
    done = 0
    for width, members in batches:
        ids = torch.zeros((len(members), width), dtype=torch.long)  # (R, T)
        for filled, number in zip(ids, members, strict=True):
            combination, row = every[number]
            read = [*prompts[combination], *row[:-1]]
            filled[: len(read)] = torch.tensor(read)
        passed = writer.base_model(input_ids=ids.to(writer.device), use_cache=False)
        for states, number in zip(passed.last_hidden_state, members, strict=True):  # (T, d)
            combination, row = every[number]
            before = len(prompts[combination]) - 1
            absent = []  # logarithm of the chance (V,) that no draw of some is of a token
            # A few tokens at a time: logits of a long row are many times as large as its states.
            for start in range(before, before + len(row), TOKENS_TOGETHER):
                some = states[start : min(start + TOKENS_TOGETHER, before + len(row))]
                chances = head(some).float().softmax(1).clamp_(max=1 - 1e-6)  # (T, V)
                absent.append(chances.neg_().log1p_().sum(0))
            present = -torch.expm1(torch.stack(absent).sum(0)).double().cpu().numpy()
            totals[combination] += present * weights.of(row)[1]
            count(done := done + 1, len(every))
    is_counted = weights.weights > 0
    return {c: np.where(is_counted, totals[c] / max(1, len(rows[c])), 0.0) for c in rows}
