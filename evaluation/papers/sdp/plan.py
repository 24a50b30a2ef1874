"""What paper 004's experiment would do, in lines: models, steps, noise and ε. Trains nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from evaluation.fitting import Recipe
from evaluation.papers.learning import plan_of
from evaluation.papers.models import Shape, parameters
from evaluation.papers.sdp.cases import LSTMS, POLICIES, redacted, selective
from evaluation.papers.sdp.lstm import Lstm
from evaluation.papers.sdp.published import (
    DELTA,
    DPSGD,
    GPT2_TOKENS,
    NOISE,
    SDPSGD,
    TRAIN_LINES,
    TRANSFORMER_EPSILON,
    TRANSFORMER_NORM,
    WIKITEXT,
    WORDS,
)
from evaluation.papers.sdp.sizes import Size
from evaluation.papers.sdp.training import noise_for

_TOKENS_A_WORD = 1.3  # about


class _LstmShape:
    def __init__(self, width: int) -> None:
        self._width = width

    def fresh(self, vocabulary: int) -> Lstm:
        return Lstm(vocabulary, self._width)

    def begun(self, vocabulary: int) -> Lstm:
        return self.fresh(vocabulary)


def assumed(size: Size, context: int) -> dict[str, int]:
    """Return about how many records the paper's own texts come to, as many as the size takes."""
    return {
        text: max(lines, round(WORDS[text] * _TOKENS_A_WORD * lines / TRAIN_LINES[text] / context))
        for text, lines in (
            (text, min(all_lines, size.rows or all_lines))
            for text, all_lines in TRAIN_LINES.items()
        )
    }


def plan(size: Size, shape: Shape, lstm: Mapping[str, int], transformer: int) -> Iterator[str]:
    """Yield a line for each phase of each model.

    Args:
        size: how large.
        shape: of the transformer.
        lstm: records by text set.
        transformer: records of WikiText-2.
    """
    tokens = size.vocabulary or GPT2_TOKENS
    weights = parameters(_LstmShape(size.width), tokens)
    yield f"LSTM: {weights:,} parameters, {tokens:,} tokens, width {size.width}"
    for text, models in LSTMS.items():
        for model in models:
            yield f"  {text}: {model}: {_phase(size, text, model, lstm[text])}"
    weights = parameters(shape, tokens)
    yield f"transformer: {weights:,} parameters, {tokens:,} tokens"
    fine = _steps(transformer, size.fine)
    sigma = noise_for(transformer, size.private, TRANSFORMER_EPSILON)
    private = replace(size.private, max_grad_norm=TRANSFORMER_NORM)
    noisy = (
        f"{_steps(transformer, private)}, {_noise(sigma, TRANSFORMER_NORM, TRANSFORMER_EPSILON)}"
    )
    yield f"  {WIKITEXT}: no DP: {fine}"
    yield f"  {WIKITEXT}: DPSGD: {noisy}"
    for policy in POLICIES:
        yield f"  {WIKITEXT}: {redacted(policy)}: {fine}"
        yield f"  {WIKITEXT}: {selective(policy)}: {noisy}"


def _phase(size: Size, text: str, model: str, records: int) -> str:
    if model == DPSGD:
        known = NOISE[text, DPSGD]
        sigma = noise_for(records, size.noisy, known.epsilon)
        noise = _noise(sigma, known.max_grad_norm, known.epsilon)
        return f"{_steps(records, size.noisy)}, {noise}"
    if model.startswith(SDPSGD):
        known = NOISE[text, SDPSGD]
        return (
            f"{_steps(records, size.noisy)}, σ by the number of private updates, C = "
            f"{known.max_grad_norm:g}, nominal ε = {known.epsilon:g} at δ = {DELTA:g}, no guarantee"
        )
    return f"{_steps(records, size.open)}, no noise"


def _steps(records: int, recipe: Recipe) -> str:
    plan = plan_of(records, recipe, 0.0)
    return (
        f"{plan.steps:,} steps of {plan.batch_size} from {records:,} records, q = "
        f"{plan.sample_rate:.3g}, learning rate {plan.learning_rate:g}"
    )


def _noise(sigma: float, norm: float, spent: float) -> str:
    return f"σ = {sigma:.3f}, C = {norm:g}, ε = {spent:g} at δ = {DELTA:g}"
