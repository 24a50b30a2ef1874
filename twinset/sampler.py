"""Model + prompts → rows. Post-processing: it reads no private record and moves no guarantee."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from twinset.basemodel import context_length
from twinset.config import SamplingConfig
from twinset.decoding import generate
from twinset.errors import InputError
from twinset.records import CONTROL
from twinset.schema import Combination
from twinset.templates import wrong_combinations

LOOP_WORDS, LOOP_TIMES = 3, 5  # the same three words five times over is a loop


@dataclass(frozen=True)
class Row:
    """One row of the twin: its label combination and its text."""

    combination: Combination
    text: str


class Sampler:
    """Draws rows from a model until every label combination has its number.

    Args:
        model: causal LM in evaluation mode.
        tokenizer: its tokenizer.
        prompts: token ids of every combination's prompt.
        config: decoding settings and seed.
        max_new_tokens: longest text, end of text included.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        prompts: Mapping[Combination, list[int]],
        config: SamplingConfig,
        max_new_tokens: int,
    ) -> None:
        self._model, self._tokenizer, self._prompts = model, tokenizer, prompts
        self._config = config
        room = context_length(model) - max(map(len, prompts.values()))
        self._max_new_tokens = min(config.max_new_tokens or max_new_tokens, room)
        self._generator = torch.Generator(model.device)
        self._wrong = np.random.default_rng()  # both are seeded at the start of `sample`

    def sample(
        self, counts: Mapping[Combination, int], observe: Callable[[int], None] = lambda rows: None
    ) -> list[Row]:
        """Return exactly `counts[c]` rows of each combination c, in the order of `counts`.

        Rows that are empty, broken or caught in a loop are drawn again.

        Args:
            counts: rows wanted.
            observe: called with the number of rows accepted so far.

        Raises:
            InputError: a combination's rows were unusable time after time.
        """
        found: dict[Combination, list[str]] = {c: [] for c in counts}
        self._generator.manual_seed(self._config.seed)
        self._wrong = np.random.default_rng(self._config.seed)
        with torch.inference_mode():
            for _ in range(self._config.max_redraws):
                wanted = [c for c, n in counts.items() for _ in range(n - len(found[c]))]
                if not wanted:
                    break
                for combination, text in self._draw(wanted):
                    if is_usable(text):
                        found[combination].append(text)
                    observe(sum(map(len, found.values())))
        self._refuse_missing(counts, found)
        return [Row(c, text) for c, texts in found.items() for text in texts]

    def _draw(self, wanted: list[Combination]) -> Iterator[tuple[Combination, str]]:
        for start in range(0, len(wanted), self._config.batch_size):
            batch = wanted[start : start + self._config.batch_size]
            yield from zip(batch, self._generate(batch), strict=True)

    def _generate(self, combinations: list[Combination]) -> list[str]:
        ids = generate(
            self._model,
            [self._prompts[c] for c in combinations],
            self._tokenizer.eos_token_id,
            self._max_new_tokens,
            self._config,
            self._generator,
            self._against(combinations),
        )
        return [self._text(row) for row in ids]

    def _against(self, combinations: list[Combination]) -> list[list[int]] | None:
        """Return a wrong prompt for every row; None where there is but one combination."""
        known = tuple(self._prompts)
        if len(known) == 1:
            return None
        wrong = [wrong_combinations(c, known, 1, self._wrong)[0] for c in combinations]
        return [self._prompts[c] for c in wrong]

    def _text(self, ids: list[int]) -> str:
        """Decode up to the end-of-text token; a text cut off before it loses its last word."""
        end = self._tokenizer.eos_token_id
        finished = end in ids
        kept = ids[: ids.index(end)] if finished else ids
        text: str = self._tokenizer.decode(kept, skip_special_tokens=True).strip()
        return text if finished else " ".join(text.rsplit(None, 1)[:-1])

    def _refuse_missing(
        self, counts: Mapping[Combination, int], found: Mapping[Combination, list[str]]
    ) -> None:
        for combination, wanted in counts.items():
            if len(found[combination]) < wanted:
                raise InputError(
                    f"only {len(found[combination])} of {wanted} rows for label {combination} were "
                    "usable (neither empty nor looping); raise --temperature or train longer"
                )


def is_usable(text: str) -> bool:
    """Tell whether a text has words, no control characters, and is not caught in a loop.

    >>> is_usable("A fine film."), is_usable("  "), is_usable("so so good " * 9)
    (True, False, False)
    """
    words = text.split()
    if CONTROL.search(text) or not any(c.isalnum() for c in text):
        return False
    runs = Counter(zip(*(words[i:] for i in range(LOOP_WORDS)), strict=False))
    return not runs or max(runs.values()) < LOOP_TIMES
