"""Padded lengths: how far a row is padded, and batches of rows that are padded alike.

It is a function of the row alone. Were rows padded to the longest of their batch, a row more
would change how its neighbours are rounded. There are few padded lengths, four between a length
and its double, because a batch is filled up for each of them.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from twinset.errors import InputError
from twinset.files.atomic import synced, write_json
from twinset.privacy.clipping import Sequences
from twinset.privacy.mechanism.counts import Text
from twinset.table.arrow_columns import Labels, LazySequence, some_at_once
from twinset.table.records import Records
from twinset.table.schema import Combination
from twinset.table.templates import Template, wrong_combinations

_SHORTEST_STEP = 16  # tokens


def padded(length: int, longest: int) -> int:
    """Round a length up to a whole number of steps, but not beyond what the model reads.

    >>> padded(3, 100), padded(16, 100), padded(97, 100), padded(130, 500), padded(300, 500)
    (16, 16, 100, 160, 320)
    """
    step = max(_SHORTEST_STEP, 1 << max(0, (length - 1).bit_length() - 3))
    return min(-(-length // step) * step, longest)


def padded_lengths(most: int, longest: int) -> list[int]:
    """Return all padded lengths of rows of up to `most` tokens, where a model reads `longest`.

    >>> padded_lengths(170, 180)
    [16, 32, 48, 64, 80, 96, 112, 128, 160, 180]
    """
    return sorted({padded(length, longest) for length in range(1, most + 1)})


def batches_of_one_length(
    rows: Iterable[int], length: Callable[[int], Any], at_once: Callable[[Any], int]
) -> Iterator[tuple[Any, list[int]]]:
    """Yield lengths, short ones first, with at most `at_once(length)` rows of that length.

    A length may be anything that can be ordered, and that rows must have in common.

    >>> list(batches_of_one_length(range(5), lambda row: 16 + row % 2 * 16, lambda length: 2))
    [(16, [0, 2]), (16, [4]), (32, [1, 3])]
    """
    for common, same in groupby(sorted(rows, key=length), key=length):
        members = list(same)
        size = at_once(common)
        for start in range(0, len(members), size):
            yield common, members[start : start + size]


SHORTEST_TEXT = 8  # tokens that must fit behind the longest prompt
TEXTS_AT_ONCE = 1000
ROWS_AT_ONCE = 1000
ENGLISH = "The film was very good, and I would recommend it to everyone who likes a slow story."
LOOKED_AT, LETTERS = 200, 1000  # texts by which a language is judged, and of each
VALUES, ENDS, LABELS, FACTS = "values.bin", "ends.npy", "labels.npy", "facts.json"


class Ragged(LazySequence[list[int]]):
    """Rows of whole numbers.

    Args:
        values: (M,) all rows, one after the other.
        ends: (N,) int64, where in `values` each row ends.
    """

    def __init__(self, values: np.ndarray, ends: np.ndarray) -> None:
        self._values, self._ends, self._seen = values, ends, 0

    @classmethod
    def of(cls, rows: Iterable[Sequence[int]], dtype: Any, folder: Path | None = None) -> Ragged:
        """Take rows in, some at a time.

        Args:
            rows: whole numbers.
            dtype: that holds each of them.
            folder: where they are written to and looked at from then on; None: in memory.
        """
        parts, lengths, source = [], list[np.ndarray](), iter(rows)
        raw = None if folder is None else open(folder / "values.part", "wb")
        while some := list(islice(source, ROWS_AT_ONCE)):
            lengths.append(np.fromiter(map(len, some), np.int64, len(some)))
            flat = np.fromiter(chain.from_iterable(some), dtype, int(lengths[-1].sum()))
            parts.append(flat) if raw is None else flat.tofile(raw)
        ends = np.concatenate([np.zeros(0, np.int64), *lengths]).cumsum()
        if raw is None or folder is None:
            return cls(np.concatenate([np.zeros(0, dtype), *parts]), ends)
        raw.close()
        np.save(folder / ENDS, ends)
        (folder / "values.part").rename(folder / VALUES)
        return cls.open(folder, dtype)

    @classmethod
    def open(cls, folder: Path, dtype: Any) -> Ragged:
        """Look at rows that `of` wrote."""
        ends = np.load(folder / ENDS, mmap_mode="r")
        empty = not len(ends) or not ends[-1]
        values = np.zeros(0, dtype) if empty else np.memmap(folder / VALUES, dtype, "r")
        return cls(values, ends)

    def __len__(self) -> int:
        return len(self._ends)

    def cell(self, index: int) -> list[int]:
        """Return one row."""
        self._seen += 1
        if self._seen % ROWS_AT_ONCE == 0:
            self._let_go()
        row = range(len(self))[index]
        start = self._ends[row - 1] if row else 0
        found: list[int] = self._values[start : self._ends[row]].tolist()
        return found

    def _let_go(self) -> None:
        """Give back the memory of pages that were looked at; the system may read them again."""
        for array in (self._values, self._ends):
            if isinstance(array, np.memmap):
                array._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class TokenisedRecords:
    """All records' tokens, on which batches are cut.

    Args:
        texts: per record the ids of text and end-of-text token; a text cut at the maximum length
            has no end-of-text token, for it did not end there.
        labels: per record its label combination.
        prompts: ids of the prompt of every combination.
        truncated: number of texts that were cut (private: `internal/` only).
        context: longest row the model reads.
        folder: where they lie; None: in memory.
    """

    texts: Sequence[list[int]]
    labels: Sequence[Combination]
    prompts: dict[Combination, list[int]]
    truncated: int
    context: int
    folder: Path | None = None

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def mean_length(self) -> float:
        """Mean tokens of a record with its own prompt."""
        prompts = (len(self.prompts[label]) for label in self.labels)
        return (sum(map(len, self.texts)) + sum(prompts)) / max(1, len(self.texts))

    def padded_length(self, index: int) -> int:
        """Return the length to which a record's rows are padded: a function of the record alone.

        It is the longest that any prompt makes of it, rounded up (see `padding`). Were rows padded
        to the longest of their batch, a record more would change how its neighbours' attention is
        rounded: by 0.13·C in bfloat16 (41 reviews), where this leaves nothing to be measured.
        """
        longest = max(map(len, self.prompts.values())) + len(self.texts[index])
        return padded(longest, self.context)

    def padded_lengths(self, most: int) -> list[int]:
        """Return every padded length that records can have, with texts of up to `most` tokens."""
        return padded_lengths(max(map(len, self.prompts.values())) + most, self.context)

    def sequences_per_record(self, mismatched: int) -> int:
        """Return K for so many wrong prompts a record: there may not be as many."""
        return 1 + min(mismatched, len(self.prompts) - 1)

    def digest(self, index: int) -> int:
        """Return a number of 64 bits that a record's text and label alone decide.

        Its number in the table would not do: a row less moves those of all later rows.
        """
        ids = [*self.prompts[self.labels[index]], -1, *self.texts[index]]
        return int.from_bytes(blake2b(np.array(ids, "<i8").tobytes(), digest_size=8).digest())

    def sequences(
        self, indices: Sequence[int], mismatched: int, seed: tuple[int, int]
    ) -> Sequences:
        """Return the K = 1 + min(mismatched, wrong combinations) sequences of each record.

        Args:
            indices: which records, in this order; of one `padded_length`, where batch invariance
                matters.
            mismatched: wrong prompts per record.
            seed: of the run, and the step. With the record's label it alone decides the wrong
                prompts: drawn one after another instead, a record's would depend on who else is in
                the batch, and one record more could change every other's gradient.
        """
        combinations = tuple(self.prompts)
        chosen: dict[Combination, list[Combination]] = {}
        rows: list[tuple[list[int], list[int]]] = []
        for i in indices:
            label = self.labels[i]
            if label not in chosen:
                rng = np.random.default_rng([*seed, combinations.index(label)])
                chosen[label] = wrong_combinations(label, combinations, mismatched, rng)
            rows += [(self.prompts[c], self.texts[i]) for c in (label, *chosen[label])]
        return _padded(rows, len(rows) // len(indices), max(map(self.padded_length, indices)))

    def of_units(
        self, units: Iterable[list[int]], numbers: Mapping[Combination, Sequence[int]]
    ) -> Iterator[list[Text]]:
        """Yield the texts of each unit, with the numbers that stand for their labels.

        Args:
            units: the records of each.
            numbers: by label combination.
        """
        for unit in units:
            yield [(self.texts[i], numbers[self.labels[i]]) for i in unit]

    def behind(self, prompts: dict[Combination, list[int]]) -> TokenisedRecords:
        """Return the same texts behind other prompts, as what lies in a folder has them, too."""
        if self.folder is not None:
            facts = json.loads((self.folder / FACTS).read_text("utf-8"))
            write_json(self.folder / FACTS, facts | {"prompts": _plain(prompts)})
        return replace(self, prompts=prompts)

    @classmethod
    def open(cls, folder: Path) -> TokenisedRecords:
        """Look at what `tokenise` wrote into a folder."""
        facts = json.loads((folder / FACTS).read_text("utf-8"))
        prompts = {tuple(combination): ids for combination, ids in facts["prompts"]}
        return cls(
            Ragged.open(folder, np.dtype(facts["dtype"])),
            Labels(np.load(folder / LABELS, mmap_mode="r"), list(prompts)),
            prompts,
            facts["truncated"],
            facts["context"],
            folder,
        )


def _padded(rows: list[tuple[list[int], list[int]]], per_unit: int, length: int) -> Sequences:
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    mask = torch.zeros(len(rows), length, dtype=torch.bool)
    for row, (prompt, text) in enumerate(rows):
        end = len(prompt) + len(text)
        ids[row, :end] = torch.tensor(prompt + text)
        mask[row, len(prompt) : end] = True
    return Sequences(ids, mask, per_unit)


def prompt_tokens(
    template: Template, combinations: Sequence[Combination], tokenizer: Any
) -> dict[Combination, list[int]]:
    """Return the ids of each combination's prompt; the text follows after one space."""
    return {c: tokenizer.encode(template.render(c), add_special_tokens=False) for c in combinations}


def longest_prompt(template: Template, combinations: Sequence[Combination], tokenizer: Any) -> int:
    """Return the tokens of a template's longest prompt."""
    return max(map(len, prompt_tokens(template, combinations, tokenizer).values()))


def text_budget(prompts: dict[Combination, list[int]], context: int, max_tokens: int) -> int:
    """Return how many text tokens (end of text included) fit behind the longest prompt.

    Raises:
        InputError: hardly any do.
    """
    longest = max(map(len, prompts.values()))
    budget = context - longest
    if budget < SHORTEST_TEXT:
        raise InputError(
            f"the longest prompt has {longest} tokens, but the base model reads {context} in all; "
            "shorten `prompt` or take a base model with a longer context"
        )
    return min(budget, max_tokens)


def times_english(texts: Sequence[str], tokenizer: Any) -> float:
    """Return how many times the tokens of English a character of the first texts takes."""
    looked_at = [text[:LETTERS] for text in islice(texts, LOOKED_AT)]
    return _tokens_each(looked_at, tokenizer) / _tokens_each([ENGLISH], tokenizer)


def _tokens_each(texts: Sequence[str], tokenizer: Any) -> float:
    """Return the tokens that a character takes."""
    rows = tokenizer(texts, add_special_tokens=False)["input_ids"]
    return sum(map(len, rows)) / max(1, sum(map(len, texts)))


def tokenise(
    records: Records,
    template: Template,
    tokenizer: Any,
    context: int,
    max_tokens: int,
    folder: Path | None = None,
) -> TokenisedRecords:
    """Turn records into tokens; those that lie in the folder already are not made again.

    Args:
        records: texts and labels.
        template: renders the prompts.
        tokenizer: of the base model; its end-of-text token closes each text.
        context: longest sequence the model reads, in tokens.
        max_tokens: longest text kept, end of text included. A public constant.
        folder: private to its owner, where tokens are kept; None: in memory. Tokens in it are of
            the same records, template, tokenizer and options.
    """
    prompts = prompt_tokens(template, records.schema.combinations, tokenizer)
    budget, dtype = text_budget(prompts, context, max_tokens), np.dtype(np.int32)
    if folder is not None and (folder / FACTS).is_file():
        kept = TokenisedRecords.open(folder)
        if (kept.prompts, kept.context, len(kept)) == (prompts, context, len(records)):
            return kept
    cut = _Cut(budget, tokenizer.eos_token_id)
    encoded = _encoded(records.texts, tokenizer)
    rows = Ragged.of(cut.all(encoded), dtype, folder)
    places = {combination: number for number, combination in enumerate(prompts)}
    numbers = np.fromiter((places[label] for label in records.labels), np.int32, len(records))
    if folder is not None:
        np.save(folder / LABELS, numbers)
        synced(folder)  # before what says that they are whole
        facts = {"prompts": _plain(prompts), "dtype": dtype.str}
        write_json(folder / FACTS, facts | {"truncated": cut.texts, "context": context})
    labels = Labels(numbers, list(prompts))
    return TokenisedRecords(rows, labels, prompts, cut.texts, context, folder)


def _plain(prompts: dict[Combination, list[int]]) -> list[list[list[Any]]]:
    return [[list(combination), ids] for combination, ids in prompts.items()]


def _encoded(texts: Iterable[str], tokenizer: Any) -> Iterator[list[int]]:
    for some in some_at_once(texts, TEXTS_AT_ONCE):
        spaced = [" " + text.strip() for text in some]
        yield from tokenizer(spaced, add_special_tokens=False)["input_ids"]


class _Cut:
    """Closes texts that fit, and cuts and counts the others."""

    def __init__(self, budget: int, end: int) -> None:
        self._budget, self._end, self.texts = budget, end, 0

    def all(self, encoded: Iterator[list[int]]) -> Iterator[list[int]]:
        for ids in encoded:
            self.texts += len(ids) >= self._budget
            yield [*ids, self._end][: self._budget]
