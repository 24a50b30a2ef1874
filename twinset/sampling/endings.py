"""Where a text can end: at the end of a sentence. Knows one text and no model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

LEAST_LEFT = 0.5  # of a text's characters
LOOKED_BACK = 16  # tokens that suffice to recognise the end of a sentence
_CLOSING = re.compile(r"""[.!?…。！？]["'”’»)\]」』]*$""")
_NUMBERED = re.compile(r"\d\.$")  # what follows may be the rest of a number
_END = re.compile(
    r"""(?<!\b[A-Z])(?<!\bMr)(?<!\bMrs)(?<!\bMs)(?<!\bDr)(?<!\bSt)(?<!\bvs)(?<!\be\.g)(?<!\bi\.e)
    (?: [.!?…]+ ["'”’»)\]]* (?= \s+ ["'“‘«(\[]* [^\W_a-z] | \s*$ )  # a capital or a number follows
      | [。！？]+ [」』”]* )""",
    re.VERBOSE,
)


def cut_at_sentence(text: str) -> str:
    """Return a text up to the end of its last sentence; whole where less than half would be left.

    >>> cut_at_sentence("It was a fine film. Mr. Smith was")
    'It was a fine film.'
    >>> cut_at_sentence("Fine. But then the whole of the second half was")
    'Fine. But then the whole of the second half was'
    """
    ends = [found.end() for found in _END.finditer(text)]
    return text[: ends[-1]] if ends and ends[-1] >= LEAST_LEFT * len(text) else text


def ends_sentence(text: str) -> bool:
    """Return whether a text ends with a sentence; what would follow is not known.

    >>> [ends_sentence(text) for text in ("Fine.", "It was Mr.", "It cost 3.", "Fine, and")]
    [True, False, False, False]
    """
    text = text.rstrip()
    ends = [found.end() for found in _END.finditer(text)]
    return bool(ends) and ends[-1] == len(text) and not _NUMBERED.search(text)


class SentenceEnds:
    """Where a text ends a sentence, in its token ids.

    Args:
        tokenizer: of the model that writes them.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def here(self, ids: Sequence[int]) -> bool:
        """Return whether the last of some ids ends a sentence."""
        if ids[-1] not in _closing_tokens(self._tokenizer):
            return False
        return ends_sentence(self._tokenizer.decode(list(ids[-LOOKED_BACK:])))

    def nearest(self, ids: Sequence[int], length: int) -> int | None:
        """Return after how many of the ids a sentence ends nearest to a length; None: after none.

        The later of two that are as near.
        """
        ends = [n for n in range(1, len(ids) + 1) if self.here(ids[:n])]
        return min(ends, key=lambda n: (abs(n - length), -n), default=None)


@lru_cache(maxsize=4)
def _closing_tokens(tokenizer: Any) -> frozenset[int]:
    """Return tokens that may end a sentence, so that few texts need be looked at.

    All of the vocabulary is decoded: once, and not for each group of rows.
    """
    words = tokenizer.batch_decode([[i] for i in range(len(tokenizer))])
    return frozenset(i for i, word in enumerate(words) if _CLOSING.search(word))
