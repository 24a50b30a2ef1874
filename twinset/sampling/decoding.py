"""Prompts → token ids, in a batch where new rows take the places of finished ones.

This module knows nothing of labels, texts or privacy. A prompt is read once, and its keys and
values are copied to every row that continues it. Rows then advance together, one token at a time.
Each row has its own position and sees only itself.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from twinset.config import SamplingConfig
from twinset.errors import InputError, first_line
from twinset.models.base_model import context_length
from twinset.models.device import (
    ROWS_BYTES,
    ROWS_BYTES_GPU,
    ROWS_TOGETHER,
    ROWS_TOGETHER_GPU,
    is_cpu,
    record_graph,
)
from twinset.models.layers import PackedLinears
from twinset.sampling.token_sampling import NO_TOKEN, drawn_tokens, guided, token_probabilities
from twinset.table.schema import Combination

WINDOWS = ("sliding_window", "window_size")  # names of the attention window in configurations
# Rows and columns of a forward pass are multiples of these. For each new shape of a product in
# bfloat16 the processor's library writes code: 0.7 MB that stay in memory.
SLOTS_TOGETHER, COLUMNS_TOGETHER = 8, 16
UNUSED = 32  # columns that are read for nothing before the cache is made narrower
PROMPTS_KEPT, PROMPTS_SHARE = 256, 0.1  # kept prompts, and their share of the memory
COMPARED = 2  # replays of each recording that are compared with the step itself

# Keys and values of one prompt, all parts of one shape together: (H, d) → (parts, H, T, d). A part
# is the keys or the values of a layer.
States = dict[tuple[int, int], Tensor]


@dataclass(frozen=True)
class Ending:
    """Where a row may end, in addition to its end token and the longest row."""

    least: int  # tokens before which it does not end
    most: int  # tokens with which it ends at the latest
    is_end: Callable[[Sequence[int]], bool]  # of ids of a row of `least` or more tokens


@dataclass
class Request:
    """A row to be written."""

    key: int  # the caller's name for it
    prompts: tuple[tuple[int, ...], ...]  # ids of its own, and under guidance of a wrong one
    bias: Tensor | None = (
        None  # (V,) for logits of tokens that it does not have yet, except the end
    )
    ending: Ending | None = None  # None: it ends where the model ends it
    # For each further text of the row, the ids that come before it, and where it may end.
    further: Sequence[tuple[Sequence[int], Ending]] = ()
    texts: list[list[int]] = field(default_factory=lambda: [[]])  # ids written so far
    given: deque[int] = field(default_factory=deque)  # tokens that come next and are not drawn
    # For each prompt the token that is read next, and that token's position.
    reads: list[tuple[int, int]] = field(default_factory=list)

    @property
    def now(self) -> Ending | None:
        """Where the text that is being written may end."""
        return self.ending if len(self.texts) == 1 else self.further[len(self.texts) - 2][1]


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
    """Yield the key and the ids of each row's text as it ends. The end-of-text token closes it.

    Further texts of a row are then in its request.

    Args:
        model: causal LM in evaluation mode.
        waiting: rows to be written, taken from the left. Rows may be added until the last one has
            ended. All have the same number of prompts.
        end: id of the end-of-text token.
        max_new_tokens: longest text.
        config: at most `batch_size` rows are written at once, and fewer if memory is short.
        generator: source of the draws.
        packed: the model's weights, from a caller who decodes several times.
    """
    if not waiting:
        return
    batch = _Batch(model, config, waiting, max_new_tokens, packed or PackedLinears(model))
    while waiting or batch.rows:
        for row in batch.write_token(waiting, generator, end, max_new_tokens):
            yield row.key, row.texts[0]


@torch.inference_mode()
def check_decoding(
    model: Any, prompts: Mapping[Combination, list[int]], config: SamplingConfig
) -> None:
    """Draw two tokens from a base model, to detect before training what would fail after it.

    Raises:
        InputError: this model cannot draw tokens with these settings.
    """
    config = replace(config, batch_size=1)
    asked = tuple(tuple(prompt) for prompt in prompts.values())[:2]
    try:
        own, *wrong = (
            model(input_ids=torch.tensor([prompt], device=model.device)).logits[:, -1]
            for prompt in asked
        )
        logits = guided(own, wrong[0], config.guidance) if wrong and config.guidance else own
        if not bool(token_probabilities(logits, config).isfinite().all()):
            raise ValueError("its probabilities are no numbers")
        generator = torch.Generator().manual_seed(0)
        list(decode(model, deque([Request(0, asked)]), NO_TOKEN, 2, config, generator))
    except Exception as error:
        raise InputError(
            f"no row can be drawn from this base model ({first_line(error)}). Bring "
            f"`temperature={config.temperature}` and `guidance={config.guidance}` nearer 1, or "
            "take another base model."
        ) from error


def attention_span(model: Any) -> int:
    """Return the maximum number of tokens of a row, prompt included.

    If some layers only attend to a window, it is that window, because the masks assume that all
    layers see everything.
    """
    windows = (getattr(model.config, name, None) for name in WINDOWS)
    return min([context_length(model), *(int(w) for w in windows if w)])


def rounded(number: int, step: int) -> int:
    """Round a number up to a multiple of a step.

    >>> rounded(1, 8), rounded(16, 8)
    (8, 16)
    """
    return -(-number // step) * step


# -- the rows that are written together ------------------------------------------------------------


class _Batch:
    """The rows being written. Row i has the slots i·K … i·K + K - 1, with K prompts per row."""

    def __init__(
        self,
        model: Any,
        config: SamplingConfig,
        waiting: deque[Request],
        max_new_tokens: int,
        packed: PackedLinears,
    ) -> None:
        self._device, self._config = model.device, config
        self.rows: list[Request] = []
        first = waiting[0]
        self._per_row = per_row = len(first.prompts) if config.guidance else 1

        @torch.inference_mode()
        def read(prompt: tuple[int, ...]) -> list[Tensor]:
            cache: Any = DynamicCache()
            ids = torch.tensor([prompt], device=model.device)
            model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            return [part[0] for layer in cache.layers for part in (layer.keys, layer.values)]

        prompt = max(len(ids) for row in waiting for ids in row.prompts[:per_row])
        like = read(first.prompts[0][:1])
        together = COLUMNS_TOGETHER if is_cpu(model.device) else 4 * COLUMNS_TOGETHER
        further = max(sum(len(ids) + end.most for ids, end in row.further) for row in waiting)
        columns = rounded(prompt + max_new_tokens + further, together)
        # A row takes little but keys and values: in SmolLM2-135M in bfloat16 23,040 bytes a token
        # (30 layers of 3 heads of 64, twice). So 160 columns are 3.7 MB, and twice that under
        # guidance. Logits and tilt are 0.2 MB.
        token = [part.nbytes for part in like]
        each = per_row * columns * (sum(token) + max(token))  # one layer twice, while it is widened
        each += per_row * model.config.vocab_size * like[0].element_size()
        each += 0 if first.bias is None else first.bias.nbytes
        memory, usual = ROWS_BYTES, ROWS_TOGETHER
        if not is_cpu(model.device):
            memory, usual = ROWS_BYTES_GPU, ROWS_TOGETHER_GPU
        room = int((1 - PROMPTS_SHARE) * memory) // each
        if room > SLOTS_TOGETHER:
            room -= room % SLOTS_TOGETHER
        # Rows of one length end together. Of 130 rows with room for 128, the last two would be
        # written alone, so 65 are written twice.
        times = -(-len(waiting) // max(1, min(room, config.batch_size or usual)))
        self._most = -(-len(waiting) // times)
        kept = int(PROMPTS_SHARE * memory) // (prompt * sum(token))
        # A cached method would make a circle that outlives the rows.
        slots = rounded(self._most * per_row, SLOTS_TOGETHER)
        cache = self._cache = SlotCache(like, slots, columns, together)
        keep = lru_cache(max(2, min(PROMPTS_KEPT, kept)))
        self._states = keep(lambda prompt: cache.stack(read(prompt)))
        self._step = TokenStep(model, self._cache, packed, not is_cpu(model.device))
        self._bias = (
            None if first.bias is None else first.bias.new_empty(self._most, *first.bias.shape)
        )

    def logits(self) -> tuple[Tensor, Tensor | None]:
        """(R, V) for the next token of each row, and with guidance also for the wrong prompt."""
        reads = [read for row in self.rows for read in row.reads]  # (R·K)
        used = len(reads)
        # A recording has one number of slots.
        number = self._cache.slots if self._step.records else rounded(used, SLOTS_TOGETHER)
        tokens, positions = zip(*reads, *[(0, 0)] * (number - used), strict=True)
        self._cache.fit(max(positions) + 1)
        ids = torch.tensor(tokens, device=self._device)[:, None]
        at = torch.tensor(positions, device=self._device)[:, None]
        logits = self._step(ids, at)[:used]  # (R·K, V)
        return (logits, None) if self._per_row == 1 else (logits[0::2], logits[1::2])

    def write_token(
        self, waiting: deque[Request], generator: torch.Generator, end: int, longest: int
    ) -> list[Request]:
        """Admit waiting rows, and append one token to each row. Return those that have ended."""
        while waiting and len(self.rows) < self._most:
            row, place = waiting.popleft(), len(self.rows)
            prompts = row.prompts[: self._per_row]
            for slot, prompt in enumerate(prompts, start=place * self._per_row):
                self._cache.put(slot, self._states(prompt), len(prompt) - 1)
            if self._bias is not None and row.bias is not None:
                self._bias[place] = row.bias
            row.reads = [(prompt[-1], len(prompt) - 1) for prompt in prompts]
            self.rows.append(row)

        bias = None if self._bias is None else self._bias[: len(self.rows)]
        own, wrong = self.logits()
        short = [len(row.texts[-1]) < row.now.least if row.now else False for row in self.rows]
        own[short, end] = -math.inf
        tokens = drawn_tokens(own, wrong, self._config, generator, bias, end)  # (R,)
        given = {i for i, row in enumerate(self.rows) if row.given}
        for i in given:
            tokens[i] = self.rows[i].given.popleft()
        if bias is not None:
            bias.scatter_(1, tokens[:, None], 0.0)  # a row has this token now
        ended = []
        # From the back: the last row, which takes the place of one that leaves, has advanced then.
        for i, token in reversed(list(enumerate(tokens.tolist()))):
            row = self.rows[i]
            row.reads = [(token, position + 1) for _, position in row.reads]
            if i in given:
                continue
            ids = row.texts[-1]
            ids.append(token)
            ends, written = token == end or len(ids) == longest, len(ids)
            if (may := row.now) is not None:
                ends |= written >= may.most or (written >= may.least and may.is_end(ids))
            if not ends:
                continue
            if len(row.texts) <= len(row.further):  # another text follows
                row.given.extend(row.further[len(row.texts) - 1][0])
                if token == end:  # what follows comes in its place
                    first = row.given.popleft()
                    row.reads = [(first, position) for _, position in row.reads]
                row.texts.append([])
                if self._bias is not None and row.bias is not None:
                    self._bias[i] = row.bias
                continue
            ended.append(row)
            last, moved = len(self.rows) - 1, self.rows.pop()
            if i < last:
                for k, (_, position) in enumerate(moved.reads):
                    self._cache.move(last * self._per_row + k, i * self._per_row + k, position)
                if self._bias is not None:
                    self._bias[i] = self._bias[last]
                self.rows[i] = moved
        return ended


class SlotCache(Cache):
    """Keys and values of all rows, kept from token to token: (slots, H, columns, d) of each part.

    A slot holds one row from column 0 on, so a column is a position. The slots in use come first,
    so they are a slice and no copy. All columns are read, because a product with some of them would
    copy these first at every token. Parts of one shape lie in one tensor, so a GPU starts one copy
    for all layers where a row begins or moves. This class knows nothing of tokens, prompts or
    masks.

    Args:
        like: keys and values (H, T, d) of any prompt, layer by layer, for their shapes.
        slots: number of slots.
        most: columns to allocate at once. Growing piece by piece would fragment memory.
        together: the number of columns is a multiple of this. On a GPU each has its recording.

    Attributes:
        parts: keys and values of each layer in turn.
        columns: how many tokens a row may have now.
        used: slots that the next forward pass reads.
        places: (used·H,) rows of the (·, d) numbers that it writes, by H.
    """

    def __init__(self, like: list[Tensor], slots: int, most: int, together: int) -> None:
        super().__init__(layers=[DynamicLayer() for _ in like[::2]])  # they stay empty
        self.slots, self.columns, self._together = slots, 0, together
        self._kinds = [(part.shape[0], part.shape[2]) for part in like]
        self._memory = {  # (parts, numbers)
            kind: like[0].new_empty(self._kinds.count(kind), most * slots * math.prod(kind))
            for kind in dict.fromkeys(self._kinds)
        }
        self._blocks: States = {  # in use of it: (parts, slots, H, columns, d)
            (heads, size): memory.new_empty(len(memory), slots, heads, 0, size)
            for (heads, size), memory in self._memory.items()
        }
        self.parts: list[Tensor] = []
        self.used, self.places = 0, dict[int, Tensor]()
        self.fit(1)

    def fit(self, tokens: int) -> None:
        """Provide columns for rows of this many tokens and not many more. The rest is dropped."""
        columns = rounded(tokens, self._together)
        if columns <= self.columns <= columns + UNUSED:
            return
        both, self.columns = min(self.columns, columns), columns
        for (heads, size), old in self._blocks.items():
            memory, numbers = self._memory[heads, size], self.slots * heads * columns * size
            if numbers > memory.shape[1]:  # a longer prompt came later
                memory = self._memory[heads, size] = old.new_empty(len(old), numbers)
            new = memory[:, :numbers].view(len(old), self.slots, heads, columns, size)
            for part, before in zip(new, old, strict=True):
                # The new columns overlap the old ones of the same part.
                part[:, :, :both] = before[:, :, :both].clone()
                # Zeros: a masked column has no weight, but no weight times not-a-number is none.
                part[:, :, both:] = 0
            self._blocks[heads, size] = new
        each = {kind: iter(block) for kind, block in self._blocks.items()}
        self.parts = [next(each[kind]) for kind in self._kinds]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write one token per slot, (used, H, 1, d), and return all that is read next."""
        parts = self.parts[2 * layer_idx : 2 * layer_idx + 2]
        places = self.places[parts[0].shape[1]]
        for whole, new in zip(parts, (key_states, value_states), strict=True):
            size = whole.shape[3]
            whole.view(-1, size).index_copy_(0, places, new.reshape(-1, size))
        keys, values = (x[: self.used] for x in parts)  # (used, H, columns, d)
        return keys, values

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Return columns and offset."""
        return self.columns, 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return how many columns are already written."""
        return self.columns - 1

    def stack(self, parts: list[Tensor]) -> States:
        """Lay a prompt's keys and values (H, T, d) together by shape, as `put` takes them."""
        return {
            kind: torch.stack([x for x, its in zip(parts, self._kinds, strict=True) if its == kind])
            for kind in self._blocks
        }

    def put(self, slot: int, states: States, length: int) -> None:
        """Copy the first `length` tokens of a prompt into a slot."""
        if length > self.columns:
            self.fit(length)
        for kind, block in self._blocks.items():
            block[:, slot, :, :length] = states[kind][:, :, :length]

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of one slot over those of another."""
        for block in self._blocks.values():
            block[:, target, :, :length] = block[:, source, :, :length]


# -- one token -------------------------------------------------------------------------------------


@dataclass
class Recording:
    """One step as recorded by a GPU (a CUDA graph)."""

    ids: Tensor  # (S, 1) that it reads
    at: Tensor  # (S, 1) their positions
    graph: Any = None
    compared: int = 0  # replays that were compared with the step itself


class TokenStep:
    """One forward pass over all rows that are being written: tokens and positions → logits.

    A step is a thousand small kernels, and the CPU takes ten times as long to start them as the
    GPU to run them: in SmolLM2-135M 44 ms per token instead of 4 (gpu-h100.md). So a GPU records
    a step the first time, and replays it from then on. A recording reads and writes fixed
    addresses, so it belongs to one number of slots and one place of the cache. Its first replays
    are compared with the step itself, because an input that was not recorded only shows in later
    tokens. If one differs, recordings are switched off.
    """

    def __init__(
        self, model: Any, cache: SlotCache, packed: PackedLinears, records: bool = False
    ) -> None:
        self._model, self._cache, self._packed = model, cache, packed
        self.dtype, self.records = model.dtype, records
        self.recordings: dict[tuple[int, ...], Recording] = {}
        self.in_use = records
        self._logits = torch.empty(0)  # (S, V) that all recordings write to

    def __call__(self, ids: Tensor, at: Tensor) -> Tensor:
        """Return logits (S, V) after tokens (S, 1) at positions (S, 1), which the cache fits.

        The result is valid until the next call.
        """
        if not self.in_use:
            return self.compute(ids, at)
        # A recording belongs to these columns, and to the addresses of keys and values.
        place = (self._cache.columns, *(part.data_ptr() for part in self._cache.parts))
        recording = self.recordings.get(place)
        is_sure = recording is not None and recording.compared == COMPARED
        logits = self._logits if is_sure else self.compute(ids, at)
        try:
            if recording is None:
                # Recordings share memory: the results of an earlier one are no longer read.
                earlier = next(iter(self.recordings.values()), None)
                pool = earlier.graph.pool() if earlier else None
                into = self._logits = self._logits if earlier else torch.empty_like(logits)
                new = recording = self.recordings[place] = Recording(ids.clone(), at.clone())
                new.graph = record_graph(
                    lambda: into.copy_(self.compute(new.ids, new.at)), ids.device, pool
                )
            recording.ids.copy_(ids)
            recording.at.copy_(at)
            recording.graph.replay()
            if is_sure:
                return self._logits
            recording.compared += 1
            self.in_use = torch.equal(logits, self._logits)
        except RuntimeError:  # the step waits for the processor in between
            if is_sure:
                raise
            self.in_use = False
        if not self.in_use:
            self.recordings.clear()
        return logits

    def compute(self, ids: Tensor, at: Tensor) -> Tensor:
        """Compute the step without a recording."""
        cache = self._cache
        cache.used = len(at)  # slot i's token goes to column at[i]
        for heads in {part.shape[1] for part in cache.parts}:  # nearly always the same
            blocks = torch.arange(len(at) * heads, device=at.device).view(-1, heads)
            cache.places[heads] = (blocks * cache.columns + at).flatten()
        unseen = torch.arange(cache.columns, device=at.device) > at  # (S, columns)
        mask = torch.zeros(unseen.shape, dtype=self.dtype, device=at.device)
        with self._packed.in_use():
            logits: Tensor = self._model(
                input_ids=ids,
                attention_mask=mask.masked_fill_(unseen, -math.inf)[:, None, None],
                position_ids=at,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits[:, -1]
        return logits
