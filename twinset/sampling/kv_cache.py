"""Keys and values of many rows at different lengths, in memory that is kept from token to token.

A slot holds one row from column 0 on, so that a column is a position. The slots in use come first,
so that they are a slice and no copy. Knows nothing of tokens, prompts or masks.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from twinset.models.device import is_cpu

# Rows and columns of a forward are multiples of these: for each new shape of a product in bfloat16
# the processor's library writes code, 0.7 MB that stay in memory.
SLOTS_TOGETHER, COLUMNS_TOGETHER = 8, 16
UNUSED = 32  # columns that are read for nothing before memory is made narrower

# keys and values of every layer for one prompt, (1, H, T, d) each
States = list[tuple[Tensor, Tensor]]


def rounded(number: int, step: int) -> int:
    """Return the next multiple of a step.

    >>> rounded(1, 8), rounded(16, 8)
    (8, 16)
    """
    return -(-number // step) * step


def columns_together(device: torch.device) -> int:
    """Return of how many columns a forward reads a multiple: on a GPU each has its recording."""
    return COLUMNS_TOGETHER if is_cpu(device) else 4 * COLUMNS_TOGETHER


class SlotLayer(CacheLayerMixin):
    """Keys and values of one layer: (slots, H, columns, d); the slots in use are read.

    All columns are: a product with some of them would first copy these, at every token.

    Args:
        keys: of any prompt, for its shape.
        values: likewise.
        slots: how many.
        most: columns that there is memory for at once: what grew piece by piece would leave holes.
    """

    is_sliding = False

    def __init__(self, keys: Tensor, values: Tensor, slots: int, most: int) -> None:
        super().__init__()
        shapes = [(slots, x.shape[1], most, x.shape[3]) for x in (keys, values)]
        self._memory = [keys.new_empty(math.prod(shape)) for shape in shapes]
        pairs = zip(self._memory, shapes, strict=True)
        self.kept = [memory.view(shape)[:, :, :0] for memory, shape in pairs]
        self.resize(min(COLUMNS_TOGETHER, most))
        self.used, self.places = 0, torch.empty(0)
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: all was made at once."""

    @property
    def columns(self) -> int:
        """How many tokens a row may have."""
        return self.kept[0].shape[2]

    def resize(self, columns: int) -> None:
        """Have so many columns; what stood in others is lost."""
        for i, old in enumerate(self.kept):
            slots, heads, width, size = old.shape
            both, numbers = min(width, columns), slots * heads * columns * size
            before = old[:, :, :both].clone()
            if numbers > len(self._memory[i]):  # a longer prompt came later
                self._memory[i] = old.new_empty(numbers)
            self.kept[i] = self._memory[i][:numbers].view(slots, heads, columns, size)
            self.kept[i][:, :, :both] = before
            # Zeros: a masked column has no weight, but no weight times not-a-number is no number.
            self.kept[i][:, :, both:] = 0

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write one token a slot, (used, H, 1, d), and return what is read then."""
        for kept, new in zip(self.kept, (key_states, value_states), strict=True):
            size = kept.shape[3]
            kept.view(-1, size).index_copy_(0, self.places, new.reshape(-1, size))
        keys, values = (x[: self.used] for x in self.kept)
        return keys, values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return columns and offset."""
        return self.columns, 0

    def get_seq_length(self) -> int:
        """Return how many columns were written before."""
        return self.columns - 1

    def get_max_length(self) -> int:
        """Return that there is no longest row."""
        return -1


class SlotCache(Cache):
    """The slots of all layers.

    Args:
        like: the states of any prompt, for their shapes.
        slots: how many.
        most: columns that there is memory for at once.
    """

    def __init__(self, like: States, slots: int, most: int) -> None:
        self.slots, self._together = slots, columns_together(like[0][0].device)
        self._made = [SlotLayer(keys, values, slots, most) for keys, values in like]
        super().__init__(layers=list(self._made))

    @property
    def addresses(self) -> list[int]:
        """Where keys and values lie, and how many columns of them: all that `aim` does not set."""
        kept = [x for layer in self._made for x in layer.kept]
        return [kept[0].shape[2], *(x.data_ptr() for x in kept)]

    def aim(self, at: Tensor) -> int:
        """Have the next forward write slot i's token to column at[i], (S, 1), which is there.

        Returns:
            How many columns it reads: all.
        """
        places: dict[int, Tensor] = {}  # by number of heads, which is nearly always the same
        for layer in self._made:
            _, heads, columns, _ = layer.kept[0].shape
            if heads not in places:
                blocks = torch.arange(len(at) * heads, device=at.device).view(-1, heads)
                places[heads] = (blocks * columns + at).flatten()
            layer.used, layer.places = len(at), places[heads]
        return self._made[0].columns

    def fit(self, tokens: int) -> None:
        """Have columns for rows of so many tokens, and not many more."""
        columns, wanted = self._made[0].columns, rounded(tokens, self._together)
        if not wanted <= columns <= wanted + UNUSED:
            for layer in self._made:
                layer.resize(wanted)

    def put(self, slot: int, states: States, length: int) -> None:
        """Copy the first `length` tokens of a prompt into a slot."""
        if length > self._made[0].columns:
            self.fit(length)
        for layer, pair in zip(self._made, states, strict=True):
            for kept, new in zip(layer.kept, pair, strict=True):
                kept[slot, :, :length] = new[0, :, :length]

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of one slot over another's."""
        for layer in self._made:
            for kept in layer.kept:
                kept[target, :, :length] = kept[source, :, :length]
