"""How much memory rows take while they are written, and so how many are written at once.

Nearly all of it are keys and values, in the numbers that the model computes in: of SmolLM2-135M in
bfloat16 23,040 bytes a token (30 layers of 3 heads of 64, twice), and under guidance a row has two
prompts. So 160 columns are 7.4 MB a row; beside them its logits are 0.2 MB, and its tilt is 0.2 MB.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from twinset.models.device import memory_for_rows
from twinset.sampling.kv_cache import SLOTS_TOGETHER, States, columns_together, rounded

PROMPTS_KEPT, PROMPTS_SHARE = 256, 0.1  # prompts whose states stay, and of all memory at most


@dataclass(frozen=True)
class RowMemory:
    """Bytes, by what they are for.

    Args:
        columns: tokens of the longest row with its prompt, rounded up.
        budget: of all rows that are written at once, with what else stands here.
        prompt: keys and values of the longest prompt.
        cache: keys and values of a row at its longest, behind each of its prompts.
        growing: of one layer's keys in a row, which are there twice while columns are added.
        logits: of a row's next token, behind each of its prompts.
        bias: of a row.
    """

    columns: int
    budget: int
    prompt: int
    cache: int
    growing: int
    logits: int
    bias: int

    @classmethod
    def of(
        cls, model: Any, like: States, per_row: int, tokens: tuple[int, int], bias: Tensor | None
    ) -> RowMemory:
        """Return what rows need.

        Args:
            model: causal LM.
            like: the states of any prompt, for their shapes.
            per_row: prompts of a row.
            tokens: of the longest prompt, and of the longest row behind it.
            bias: of a row; None: there is none.
        """
        states = [x for pair in like for x in pair]
        token = [x.nbytes // x.shape[2] for x in states]
        columns = rounded(sum(tokens), columns_together(model.device))
        return cls(
            columns=columns,
            budget=memory_for_rows(model.device),
            prompt=tokens[0] * sum(token),
            cache=per_row * columns * sum(token),
            growing=per_row * columns * max(token),
            logits=per_row * model.config.vocab_size * states[0].element_size(),
            bias=0 if bias is None else bias.nbytes,
        )

    @property
    def row(self) -> int:
        """Of one row more."""
        return self.cache + self.growing + self.logits + self.bias

    @property
    def prompts_kept(self) -> int:
        """Of how many prompts the states stay: fewer where these are long."""
        return max(2, min(PROMPTS_KEPT, int(PROMPTS_SHARE * self.budget) // self.prompt))

    def rows_at_once(self, wanted: int, most: int) -> int:
        """Return how many rows of all that are wanted are written at once.

        Rows of one length end together, so that of 130 rows, of which there is room for 128, the
        last two would be written alone: 65 and 65 are.

        Args:
            wanted: rows, 1 or more.
            most: rows that the options allow.
        """
        room = int((1 - PROMPTS_SHARE) * self.budget) // self.row
        if room > SLOTS_TOGETHER:
            room -= room % SLOTS_TOGETHER
        times = -(-wanted // max(1, min(room, most)))
        return -(-wanted // times)
