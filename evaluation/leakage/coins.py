"""Canaries for an audit of one run: each is a record of its own, put in or left out by a coin.

Each has the table's own beginning of a sentence, which a twin's prompt leads to, and an end that no
one would write. Source: Meeus et al. 2025, "The Canary's Echo", section 4 (in-distribution prefix,
high-perplexity suffix). Beginnings are public: the base model writes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

PREFIX_WORDS = 8
SUFFIX_TOKENS = 12


def coin_canaries(openings: Sequence[str], tokenizer: Any, many: int, seed: int) -> list[str]:
    """Return distinct texts.

    Args:
        openings: texts whose first words begin the canaries.
        tokenizer: its words, of letters alone, end them.
        many: how many.
        seed: of the draw.
    """
    rng = np.random.default_rng(seed)
    words = _words(tokenizer)
    found = []
    for number in range(many):
        opening = openings[number % len(openings)].split()[:PREFIX_WORDS]
        found.append(" ".join([*opening, *rng.choice(words, SUFFIX_TOKENS)]))
    return found


def _words(tokenizer: Any) -> np.ndarray:
    """Return words of at least four letters that are one token."""
    decoded = (tokenizer.decode([token]).strip() for token in range(len(tokenizer)))
    known = {word for word in decoded if word.isascii() and word.isalpha() and len(word) > 3}
    return np.array(sorted(known))
