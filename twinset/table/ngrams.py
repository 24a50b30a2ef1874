"""Texts as numbers: their words, and a 64-bit code for every run of consecutive words.

Case, punctuation and spacing do not count. In scripts without spaces each sign is a word. Two
different runs share a code with probability 2⁻⁶⁴. Between two sets of 10⁷ runs, the chance of one
false match is 5·10⁻⁶. The codes do not keep any text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pandas as pd

_ALONE = "\u3041-\u30ff\u3400-\u9fff\uf900-\ufaff"  # kana, Chinese characters
_LETTER = rf"[^\W_{_ALONE}]"
_WORD = re.compile(rf"[{_ALONE}]|{_LETTER}++(?:'{_LETTER}++)*+")
# Of SplitMix64 (Steele et al. 2014), a bijection whose output looks random. pandas has the rest.
_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def words_of(text: str) -> list[str]:
    """Return a text's words.

    >>> words_of("Don’t stop: re-read “Ulysses”, 東京!")
    ["don't", 'stop', 're', 'read', 'ulysses', '東', '京']
    """
    return _WORD.findall(text.casefold().replace("’", "'"))


@dataclass(frozen=True, repr=False)
class Words:
    """The words of a table's texts, row after row."""

    codes: np.ndarray  # (W,) of each word
    row: np.ndarray  # (W,) the row that has it
    left: np.ndarray  # (W,) words from it to the end of its row, itself too
    rows: int  # how many there are (some may have no word)

    def runs(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Return codes and rows of all runs of `length` words. A run stays within its row."""
        codes, width = self.codes, 1
        while width < length:  # two halves, which overlap where the length is no power of two
            shift = min(width, length - width)
            codes = mixed(codes[: max(0, len(codes) - shift)] * _GAMMA + codes[shift:])
            width += shift
        whole = self.left[: len(codes)] >= length
        return codes[whole], self.row[: len(codes)][whole]


def number_words(texts: Sequence[str], vocabulary: dict[str, int]) -> Words:
    """Return the words of texts. Tables to compare share a vocabulary, which this extends."""
    numbered = []
    for text in texts:
        words = words_of(text)
        found = (vocabulary.setdefault(word, len(vocabulary)) for word in words)
        numbered.append(np.fromiter(found, np.uint32, len(words)))
    lengths = np.fromiter(map(len, numbered), np.int64, len(numbered))
    numbers = np.fromiter(chain.from_iterable(numbered), np.uint64, int(lengths.sum()))
    row = np.repeat(np.arange(len(numbered), dtype=np.int32), lengths)
    left = np.repeat(lengths.cumsum(), lengths) - np.arange(len(row))
    return Words(mixed(numbers), row, left.astype(np.int32), len(numbered))


def mixed(codes: np.ndarray) -> np.ndarray:
    """Map codes one-to-one to codes that look random: (N,) uint64, by SplitMix64."""
    return pd.util.hash_array(codes + _GAMMA, categorize=False)


def rows_sharing_a_run(words: Words, others: Words, length: int) -> np.ndarray:
    """Return (N,) which rows share a run of `length` words with one of the other rows."""
    codes, rows = words.runs(length)
    sharing = np.zeros(words.rows, dtype=bool)
    sharing[rows[np.isin(codes, others.runs(length)[0])]] = True
    return sharing
