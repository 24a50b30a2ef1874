"""Rows that a model writes without a tilt, by which what is released beside it is fitted.

Tokens are weighed by them, a prompt is chosen, the tilt is found, and hidden states are scaled.
They are as public as all that is drawn from the model, and no row is refused: a run must not end
here, with its model trained and not yet saved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from functools import partial

import numpy as np

from twinset.config import SamplingConfig
from twinset.privacy.mechanism.counts import TokenMarginals, TokenWeights
from twinset.progress import Progress
from twinset.sampling.allocation import proportional
from twinset.sampling.token_tilt import expected_presence, fit_tilt, misfit
from twinset.sampling.twin_model import TwinModel
from twinset.table.schema import Combination
from twinset.table.templates import Template

REFERENCE_ROWS = 256  # at most, to find the tilt and scale hidden states: no more than units
WEIGHT_ROWS = 64  # of the base model, by which tokens are weighed before they are counted
PROMPT_ROWS, OPENING = 32, 48  # behind each prompt that one is chosen from; tokens of such a row
WEIGHT_PHASE, REFERENCE_PHASE = "rows of the base", "reference rows"  # as progress calls them
PROMPT_PHASE = "prompts tried"
UNTILTED = SamplingConfig(guidance=0.0, tilt=0.0)

Rows = Mapping[Combination, list[list[int]]]  # token ids, by label


def token_weights(model: TwinModel, progress: Progress) -> TokenWeights:
    """Return weights with which tokens are to be counted in texts like a model's rows."""
    rows = untilted_rows(model, WEIGHT_ROWS, partial(progress.count, WEIGHT_PHASE))
    end = model.tokenizer.eos_token_id
    expected = expected_tokens(model, rows, TokenWeights.equal(model.model.config.vocab_size, end))
    parts = [share * expected[c] for c, share in model.shares(rows).items()]
    return TokenWeights.from_frequencies(np.sum(parts, 0), end)


def prompt_misfit(model: TwinModel, template: Template, marginals: TokenMarginals) -> float:
    """Return how far rows behind a template's prompts are from having tokens as counted.

    Openings of rows will do: they tell of rows as long as texts are. It is post-processing of what
    was released, as `tilt_towards` is. See `token_tilt.misfit`.
    """
    opening = openings(model, template)
    rows = untilted_rows(opening, PROMPT_ROWS)
    expected = expected_tokens(opening, rows, marginals.weights)
    if model.lengths is not None:
        whole = partial(model.lengths.chance_in_whole, model.schema)
        mean = {c: float(np.mean([len(ids) for ids in rows[c]])) for c in rows}
        expected = {c: whole(c, chance, mean[c]) for c, chance in expected.items()}
    return misfit(marginals, model.schema, model.shares(model.schema.combinations), expected)


def openings(model: TwinModel, template: Template) -> TwinModel:
    """Return a model that writes how rows begin, behind a template's prompts."""
    opening = copy(model)  # shares what was made for speed with the first rows
    opening.template, opening.lengths = template, None
    opening.text_tokens = min(OPENING, model.text_tokens)
    return opening


def tilt_towards(model: TwinModel, marginals: TokenMarginals, progress: Progress) -> None:
    """Give a model the tilt with which rows have tokens as often as private texts.

    Some rows are written without it first, to see how often they have them.

    Args:
        model: without a tilt.
        marginals: released by the run; what follows from them is post-processing.
        progress: is notified of how many rows there are.
    """
    rows = reference_rows(model, progress)
    expected = expected_tokens(model, rows, marginals.weights)
    model.tilt = fit_tilt(marginals, model.schema, model.shares(rows), expected)


def reference_rows(model: TwinModel, progress: Progress) -> Rows:
    """Return the rows by which tilt and teacher are fitted; they are written once."""
    if not model.reference:
        count = partial(progress.count, REFERENCE_PHASE)
        model.reference = untilted_rows(model, REFERENCE_ROWS, count)
    return model.reference


def untilted_rows(
    model: TwinModel,
    most: int,
    count: Callable[[int, int, float], None] = lambda done, total, share: None,
) -> dict[Combination, list[list[int]]]:
    """Return rows in token ids, by label: no more than there are units, in their proportions."""
    total = min(most, model.ledger.records)
    wanted = {c: n for c, n in proportional(model.label_counts, total).items() if n}
    sampler = model.sampler(UNTILTED, 0, has_lengths=True)
    return sampler.drafts(wanted, lambda done, share: count(done, total, share))


def expected_tokens(
    model: TwinModel, rows: Rows, weights: TokenWeights
) -> dict[Combination, np.ndarray]:
    """Return the chance (V,) of each token to be in a row, by label: `expected_presence`."""
    prompts, fastest = model.prompts, model.fastest
    return {c: expected_presence(fastest, prompts[c], ids, weights) for c, ids in rows.items()}
