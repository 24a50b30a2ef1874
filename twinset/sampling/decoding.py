"""Prompts → token ids: a batch whose finished rows leave, and whose free places take new rows.

Knows nothing of labels, texts or privacy. A prompt is read once and its keys and values copied to
every row that continues it; rows then advance together, one token at a time, each at its own
position, and see nothing but themselves.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import count
from typing import Any

import torch
from torch import Tensor

from twinset.config import SamplingConfig
from twinset.errors import InputError, first_line
from twinset.models.base_model import context_length
from twinset.models.device import has_graphs, wait_for
from twinset.models.layers import PackedLinears
from twinset.sampling.kv_cache import SLOTS_TOGETHER, SlotCache, States, rounded
from twinset.sampling.recorded_steps import COMPARED, RecordedSteps
from twinset.sampling.row_memory import RowMemory
from twinset.sampling.token_sampling import NO_TOKEN, drawn_tokens, guided, token_probabilities
from twinset.sampling.token_step import TokenStep
from twinset.table.schema import Combination

WINDOWS = ("sliding_window", "window_size")  # as configurations call it


@dataclass(frozen=True)
class Ending:
    """Where a row ends, beside its end token and the longest row.

    Args:
        least: tokens before which it does not end.
        most: tokens with which it ends at the latest.
        is_end: whether a row of these ids, `least` or more, ends as it stands.
    """

    least: int
    most: int
    is_end: Callable[[Sequence[int]], bool]

    def reached(self, ids: Sequence[int]) -> bool:
        """Return whether a row of these ids ends."""
        return len(ids) >= self.most or (len(ids) >= self.least and self.is_end(ids))


@dataclass(frozen=True)
class Request:
    """A row to be written.

    Args:
        key: what the caller knows it by.
        prompts: token ids of its prompt; under guidance, of a wrong prompt behind it.
        bias: (V,) added to the logits of tokens that the row has not yet, the end apart; None:
            nothing is.
        ending: None: wherever the model ends it.
    """

    key: int
    prompts: tuple[tuple[int, ...], ...]
    bias: Tensor | None = None
    ending: Ending | None = None


# Waiting rows, end of text, longest row, settings, draws → key and ids of each row as it ends.
Engine = Callable[
    [deque[Request], int, int, SamplingConfig, torch.Generator], Iterator[tuple[int, list[int]]]
]


def generate(
    model: Any,
    prompts: list[list[int]],
    end: int,
    max_new_tokens: int,
    config: SamplingConfig,
    generator: torch.Generator,
    against: list[list[int]] | None = None,
) -> list[list[int]]:
    """Continue each prompt until `end` or `max_new_tokens` ids; return the ids of each.

    Args:
        model: causal LM in evaluation mode.
        prompts: token ids, of any lengths.
        end: id of the end-of-text token; it closes the rows that reached it.
        max_new_tokens: longest continuation.
        config: decoding settings.
        generator: source of the draws.
        against: for each prompt a wrong one, from which `config.guidance` presses the row away.
    """
    pairs = zip(prompts, against, strict=True) if against else zip(prompts)
    waiting = deque(Request(i, tuple(map(tuple, pair))) for i, pair in enumerate(pairs))
    written = dict(decode(model, waiting, end, max_new_tokens, config, generator))
    return [written[i] for i in range(len(prompts))]


@torch.inference_mode()
def decode(
    model: Any,
    waiting: deque[Request],
    end: int,
    max_new_tokens: int,
    config: SamplingConfig,
    generator: torch.Generator,
    packed: PackedLinears | None = None,
) -> Iterator[tuple[int, list[int]]]:
    """Yield the key and the ids of each row as it ends: of those begun together the shortest first.

    Args:
        model: see `generate`, as for all that is not said here.
        waiting: rows to be written, taken from the left. Rows may be added until the last one has
            ended. All have as many prompts.
        end: closes a row.
        max_new_tokens: longest row.
        config: decoding settings; no more than `batch_size` rows are written at once, and no more
            than there is memory for, see `row_memory`.
        generator: source of the draws.
        packed: the model's weights, of a caller who decodes several times; None: they are packed.
    """
    if not waiting:
        return
    batch = _Batch(model, config, waiting, max_new_tokens, packed)
    while waiting or batch.rows:
        while waiting and len(batch.rows) < batch.most:
            batch.add(waiting.popleft())
        for row in batch.write_token(generator, end, max_new_tokens):
            yield row.key, row.ids


def seconds_of_tokens(
    model: Any,
    waiting: deque[Request],
    longest: int,
    config: SamplingConfig,
    packed: PackedLinears,
) -> Iterator[float]:
    """Yield how long each further token takes, for one of the rows that are written at once.

    Args:
        model: see `decode`, as for all that is not said here.
        waiting: rows; they never end.
        longest: tokens that a row is supposed to have; there is memory for no more.
        config: decoding settings.
        packed: the model's weights.
    """
    with torch.inference_mode():
        batch = _Batch(model, config, waiting, longest, packed)
        while len(batch.rows) < batch.most:
            batch.add(waiting.popleft())
    generator = torch.Generator().manual_seed(0)
    recorded = has_graphs(model.device)
    for token in count():
        began = time.monotonic()
        with torch.inference_mode():
            batch.write_token(generator, NO_TOKEN, longest + 1)
        wait_for(model.device)
        if token >= COMPARED or not recorded:  # the first ones are those that are recorded
            yield (time.monotonic() - began) / batch.most


def check_decoding(
    model: Any, prompts: Mapping[Combination, list[int]], config: SamplingConfig
) -> None:
    """Draw two tokens from a base model: refuse before training what would fail after it.

    Args:
        model: the base model that is to be trained.
        prompts: token ids of every combination's prompt.
        config: decoding settings.

    Raises:
        InputError: nothing can be drawn from such a model, or with these settings.
    """
    config = replace(config, batch_size=1)
    asked = tuple(tuple(prompt) for prompt in prompts.values())[:2]
    try:
        _check_probabilities(model, asked, config)
        generator = torch.Generator().manual_seed(0)
        rows = deque([Request(0, asked)])
        list(decode(model, rows, NO_TOKEN, 2, config, generator))
    except Exception as error:
        raise InputError(
            f"no row can be drawn from this base model ({first_line(error)}); bring "
            f"`temperature={config.temperature}` and `guidance={config.guidance}` nearer 1, or "
            "take another one"
        ) from error


@torch.inference_mode()
def _check_probabilities(
    model: Any, prompts: tuple[tuple[int, ...], ...], config: SamplingConfig
) -> None:
    own, *wrong = (
        model(input_ids=torch.tensor([prompt], device=model.device)).logits[:, -1]
        for prompt in prompts
    )
    logits = guided(own, wrong[0], config.guidance) if wrong and config.guidance else own
    if not bool(token_probabilities(logits, config).isfinite().all()):
        raise ValueError("its probabilities are no numbers")


def attention_span(model: Any) -> int:
    """Return the most tokens, prompt included, that a row may have.

    Where layers look back over a window only, it is the window: rows are masked as if all layers
    saw everything.
    """
    windows = (getattr(model.config, name, None) for name in WINDOWS)
    return min([context_length(model), *(int(w) for w in windows if w)])


@torch.inference_mode()
def prompt_states(model: Any, prompt: tuple[int, ...]) -> States:
    """Return keys and values of every layer for a prompt."""
    from transformers import DynamicCache

    cache: Any = DynamicCache()
    ids = torch.tensor([prompt], device=model.device)
    model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
    return [(layer.keys, layer.values) for layer in cache.layers]


@dataclass
class _Row:
    """A row being written."""

    key: int
    ending: Ending | None
    ids: list[int] = field(default_factory=list)

    @property
    def may_end(self) -> bool:
        """Whether the model may end it with its next token, the `least` and one."""
        return self.ending is None or len(self.ids) >= self.ending.least


@dataclass
class _Slot:
    """What one forward reads next in one slot: a token, and its position."""

    token: int
    position: int


def _step_of(
    model: Any, config: SamplingConfig, cache: SlotCache, packed: PackedLinears | None
) -> TokenStep | RecordedSteps:
    """Return what is computed for each token, recorded where a device can."""
    step = TokenStep(model, model.dtype, cache, packed or PackedLinears(model))
    return RecordedSteps(step) if has_graphs(model.device) else step


class _Batch:
    """The rows being written. Row i has the slots i·K … i·K + K - 1, K = prompts of a row.

    Attributes:
        most: rows at once.
        rows: that are being written now.
    """

    def __init__(
        self,
        model: Any,
        config: SamplingConfig,
        waiting: deque[Request],
        max_new_tokens: int,
        packed: PackedLinears | None,
    ) -> None:
        self._device, self._config = model.device, config
        first, read = waiting[0], partial(prompt_states, model)
        self._per_row = per_row = len(first.prompts) if config.guidance else 1
        longest = max(len(prompt) for row in waiting for prompt in row.prompts[:per_row])
        like = read(first.prompts[0][:1])
        memory = RowMemory.of(model, like, per_row, (longest, max_new_tokens), first.bias)
        self.most = memory.rows_at_once(len(waiting), config.batch_size)
        self._states = lru_cache(memory.prompts_kept)(read)  # no method: a cycle would outlive rows
        slots = rounded(self.most * per_row, SLOTS_TOGETHER)
        self._cache = SlotCache(like, slots, memory.columns)
        self._step = _step_of(model, config, self._cache, packed)
        bias = first.bias
        self._bias = None if bias is None else bias.new_empty(self.most, len(bias))
        self._slots: list[_Slot] = []
        self.rows: list[_Row] = []

    def add(self, request: Request) -> None:
        """Take a row in; its prompt's last token is read in the next forward."""
        for prompt in request.prompts[: self._per_row]:
            before = len(prompt) - 1
            self._cache.put(len(self._slots), self._states(prompt), before)
            self._slots.append(_Slot(prompt[-1], before))
        if self._bias is not None and request.bias is not None:
            self._bias[len(self.rows)] = request.bias
        self.rows.append(_Row(request.key, request.ending))

    def write_token(self, generator: torch.Generator, end: int, max_new_tokens: int) -> list[_Row]:
        """Append one token a row; return the rows that have ended, which leave the batch."""
        bias = None if self._bias is None else self._bias[: len(self.rows)]
        own, wrong = self.logits()
        own[[not row.may_end for row in self.rows], end] = -math.inf
        tokens = drawn_tokens(own, wrong, self._config, generator, bias, end)
        if bias is not None:
            bias.scatter_(1, tokens[:, None], 0.0)  # a row has this token now
        return self._advance(tokens.tolist(), end, max_new_tokens)

    def logits(self) -> tuple[Tensor, Tensor | None]:
        """(R, V) for the next token of each row, and under guidance those of the wrong prompt."""
        used = len(self._slots)
        recorded = isinstance(self._step, RecordedSteps)  # with one number of slots
        number = self._cache.slots if recorded else rounded(used, SLOTS_TOGETHER)
        read = self._slots + [_Slot(0, 0)] * (number - used)
        positions = [slot.position for slot in read]
        self._cache.fit(max(positions) + 1)
        ids = torch.tensor([[slot.token] for slot in read], device=self._device)
        at = torch.tensor(positions, device=self._device)[:, None]
        logits = self._step(ids, at)[:used]
        return (logits, None) if self._per_row == 1 else (logits[0::2], logits[1::2])

    def _advance(self, tokens: list[int], end: int, max_new_tokens: int) -> list[_Row]:
        ended = []
        for i in reversed(range(len(self.rows))):
            row, token = self.rows[i], tokens[i]
            row.ids.append(token)
            for slot in self._slots_of(i):
                self._slots[slot] = _Slot(token, self._slots[slot].position + 1)
            ends = row.ending is not None and row.ending.reached(row.ids)
            if ends or token == end or len(row.ids) == max_new_tokens:
                self._remove(i)
                ended.append(row)
        return ended

    def _slots_of(self, row: int) -> range:
        return range(row * self._per_row, (row + 1) * self._per_row)

    def _remove(self, row: int) -> None:
        """Fill the place with the last row: all behind `row` have advanced already."""
        last = len(self.rows) - 1
        if row != last:
            for source, target in zip(self._slots_of(last), self._slots_of(row), strict=True):
                self._cache.move(source, target, self._slots[source].position)
                self._slots[target] = self._slots[source]
            if self._bias is not None:
                self._bias[row] = self._bias[len(self.rows) - 1]
        del self._slots[self._slots_of(last).start :]
        self.rows[row] = self.rows[-1]
        self.rows.pop()
