"""Records as token sequences: prompt, text, end of text. The loss covers text and end of text only.

This module knows nothing of privacy. A record becomes K = 1 + |W| sequences: its own prompt first,
then wrong ones. In a folder, tokens are one Arrow file, written piece by piece and mapped into
memory, so that memory use does not grow. That folder is as private as the records.

A row's padded length depends on the row alone. If rows were padded to the longest of their batch,
an added row would change how its neighbours are rounded. There are few padded lengths, four between
a length and its double, because a batch is filled up for each of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from twinset.errors import InputError
from twinset.files.atomic import flush, write_json
from twinset.files.limits import MOST_CELL
from twinset.privacy.clipping import Sequences
from twinset.table.columns import Picked, some_at_once
from twinset.table.records import Records
from twinset.table.schema import Combination
from twinset.table.templates import Template, wrong_combinations

OTHER_TOKENS = 32  # of each further text of a record, such as a title
SHORTEST_TEXT = 8  # tokens that must fit after the longest prompt
TEXTS_AT_ONCE = 1000  # tokenised together, and rows of a batch of Arrow's
TOKENS, FACTS = "tokens.arrow", "facts.json"
_SHORTEST_STEP = 16  # tokens
_SCHEMA = pa.schema([("ids", pa.list_(pa.int32())), ("label", pa.int32())])


def padded(length: int, longest: int) -> int:
    """Round a length up to a whole number of steps, but not beyond the model's context.

    >>> padded(3, 100), padded(16, 100), padded(97, 100), padded(130, 500), padded(300, 500)
    (16, 16, 100, 160, 320)
    """
    step = max(_SHORTEST_STEP, 1 << max(0, (length - 1).bit_length() - 3))
    return min(-(-length // step) * step, longest)


def batches_of_one_length(
    rows: Iterable[int], length: Callable[[int], Any], at_once: Callable[[Any], int]
) -> Iterator[tuple[Any, list[int]]]:
    """Yield lengths, short ones first, with at most `at_once(length)` rows of that length.

    >>> list(batches_of_one_length(range(5), lambda row: 16 + row % 2 * 16, lambda length: 2))
    [(16, [0, 2]), (16, [4]), (32, [1, 3])]
    """
    for common, same in groupby(sorted(rows, key=length), key=length):
        members, size = list(same), at_once(common)
        for start in range(0, len(members), size):
            yield common, members[start : start + size]


@dataclass(frozen=True)
class TokenisedRecords:
    """The tokens of all records, from which batches are built."""

    # Per record the ids of text and end-of-text token. A text cut at the maximum length has no
    # end-of-text token, for it did not end there.
    texts: Sequence[list[int]]
    labels: Sequence[Combination]
    prompts: dict[Combination, list[int]]  # ids
    truncated: int  # texts that were cut (private: `internal/` only)
    context: int  # longest row the model reads
    folder: Path | None = None  # where they are kept (None: in memory)

    def __len__(self) -> int:
        return len(self.texts)

    def padded_length(self, index: int) -> int:
        """Return the length to which a record's rows are padded. It depends on this record alone.

        It is the record's length with the longest prompt, rounded up. If rows were padded to the
        longest of their batch, an added record would change how its neighbours' attention is
        rounded: by 0.13·C in bfloat16 (41 reviews). This way no difference is measurable.
        """
        longest = max(map(len, self.prompts.values())) + len(self.texts[index])
        return padded(longest, self.context)

    def padded_lengths(self, most: int) -> list[int]:
        """Return every padded length that records can have, with texts of up to `most` tokens."""
        longest = max(map(len, self.prompts.values())) + most
        return sorted({padded(length, self.context) for length in range(1, longest + 1)})

    def digest(self, index: int) -> int:
        """Return a 64-bit number that depends only on the record's text and label.

        Its row number would not do, because removing a row changes the numbers of all later rows.
        """
        ids = [*self.prompts[self.labels[index]], -1, *self.texts[index]]
        return int.from_bytes(blake2b(np.array(ids, "<i8").tobytes(), digest_size=8).digest())

    def sequences(
        self, indices: Sequence[int], mismatched: int, seed: tuple[int, int]
    ) -> Sequences:
        """Return the K = 1 + min(mismatched, wrong combinations) sequences of each record.

        The wrong prompts depend only on the seed (of the run and the step) and on the record's
        label. If they were drawn one after another, they would depend on who else is in the batch,
        and an added record could change every other record's gradient. For batch invariance, pass
        records of one `padded_length`.
        """
        combinations = tuple(self.prompts)
        chosen: dict[Combination, list[Combination]] = {}  # by label, its wrong prompts
        rows: list[tuple[list[int], list[int]]] = []  # of the batch: a prompt and a text
        for i in indices:
            label = self.labels[i]
            if label not in chosen:
                rng = np.random.default_rng([*seed, combinations.index(label)])
                chosen[label] = wrong_combinations(label, combinations, mismatched, rng)
            rows += [(self.prompts[c], self.texts[i]) for c in (label, *chosen[label])]
        # (records · K, padded length)
        shape = len(rows), max(map(self.padded_length, indices))
        ids, mask = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.bool)
        for row, (prompt, text) in enumerate(rows):
            end = len(prompt) + len(text)
            ids[row, :end] = torch.tensor(prompt + text)
            mask[row, len(prompt) : end] = True
        return Sequences(ids, mask, len(rows) // len(indices))

    def behind(self, prompts: dict[Combination, list[int]]) -> TokenisedRecords:
        """Return the same texts after other prompts. Later readers of the folder see them too."""
        if self.folder is not None:
            facts = json.loads((self.folder / FACTS).read_text("utf-8"))
            pairs = [[list(combination), ids] for combination, ids in prompts.items()]
            write_json(self.folder / FACTS, facts | {"prompts": pairs})
        return replace(self, prompts=prompts)

    @classmethod
    def open(cls, folder: Path) -> TokenisedRecords:
        """Map a folder that `tokenise` wrote, as worker processes do."""
        facts = json.loads((folder / FACTS).read_text("utf-8"))
        prompts = {tuple(combination): ids for combination, ids in facts["prompts"]}
        table = pa.ipc.open_stream(pa.memory_map(str(folder / TOKENS))).read_all()
        # rows of Arrow's become lists when they are asked for
        texts: Picked[list[int]] = Picked(table["ids"], range(len(table)), pa.ListScalar.as_py)
        labels: Picked[Combination] = Picked(list(prompts), table["label"].to_numpy())
        return cls(texts, labels, prompts, facts["truncated"], facts["context"], folder)


def prompt_tokens(
    template: Template, combinations: Sequence[Combination], tokenizer: Any
) -> dict[Combination, list[int]]:
    """Return the ids of each combination's prompt. The text follows after one space."""
    texts = {c: template.render(c) for c in combinations}
    if sum(map(len, texts.values())) > MOST_CELL:  # a token may take forty bytes
        raise InputError(f"all prompts together exceed {MOST_CELL} characters. Cut them.")
    return {c: tokenizer.encode(text, add_special_tokens=False) for c, text in texts.items()}


def cue_tokens(name: str, tokenizer: Any, ends_text: bool) -> list[int]:
    """Return the ids that come before a further text, which is in the column `name`.

    Trained models have learned it behind the end-of-text token. To others that token says that
    something new begins, which has nothing to do with the text before it.
    """
    cue = "\n\n{}:".format(" ".join(name.replace("_", " ").split()))
    ids: list[int] = tokenizer.encode(cue, add_special_tokens=False)
    return [tokenizer.eos_token_id, *ids] if ends_text else ids


def text_budget(prompts: dict[Combination, list[int]], context: int, max_tokens: int) -> int:
    """Return how many text tokens (end of text included) fit after the longest prompt."""
    longest = max(map(len, prompts.values()))
    if (budget := context - longest) < SHORTEST_TEXT:
        raise InputError(
            f"the longest prompt has {longest} tokens, but the base model reads only {context}. "
            "Shorten `prompt` or take a base model with a longer context."
        )
    return min(budget, max_tokens)


def tokenise(
    records: Records,
    template: Template,
    tokenizer: Any,
    context: int,
    max_tokens: int,
    folder: Path | None = None,
    count: Callable[[int, int], object] = lambda done, total: None,
    further: Mapping[str, Sequence[str]] | None = None,
) -> TokenisedRecords:
    """Turn records into tokens. Tokens that are already in the folder are reused.

    The end-of-text token closes each text. `context` is the longest sequence that the model reads,
    `max_tokens` the longest text that is kept, end of text included: a public constant. The folder
    is private to its owner. Its tokens must come from the same records, tokenizer and options.
    `count` is called with the number of finished records and their total. `further` has further
    texts of each record by column, which follow its text. An empty one is left out. A text that is
    too long for them is cut.
    """
    prompts = prompt_tokens(template, records.schema.combinations, tokenizer)
    budget = text_budget(prompts, context, max_tokens)
    if folder is not None and (folder / FACTS).is_file():
        kept = TokenisedRecords.open(folder)
        if (kept.prompts, kept.context, len(kept)) == (prompts, context, len(records)):
            return kept
    places = {combination: number for number, combination in enumerate(prompts)}
    truncated, done, labels = 0, 0, iter(records.labels)
    tails = [_tails(name, texts, tokenizer) for name, texts in (further or {}).items()]

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal truncated, done
        for some in some_at_once(records.texts, TEXTS_AT_ONCE):
            spaced = [" " + text.strip() for text in some]
            encoded = tokenizer(spaced, add_special_tokens=False)["input_ids"]
            truncated += sum(len(ids) >= budget for ids in encoded)
            cut = [[*ids, tokenizer.eos_token_id][:budget] for ids in encoded]
            for row, ids in enumerate(cut if tails else ()):
                more = [id for each in tails for id in next(each)][: budget // 2]
                if more:
                    cut[row] = [*ids[: budget - len(more)], *more]
            # flat ids and where each row begins: no scalar of Arrow's for each token
            flat = np.fromiter(chain.from_iterable(cut), np.int32)
            offsets = np.cumsum([0, *map(len, cut)], dtype=np.int32)
            numbers = np.fromiter((places[next(labels)] for _ in some), np.int32, len(some))
            count(done := done + len(some), len(records))
            yield pa.record_batch(
                [pa.ListArray.from_arrays(offsets, flat), numbers], schema=_SCHEMA
            )

    if folder is None:
        table = pa.Table.from_batches(batches(), _SCHEMA)
        texts: Picked[list[int]] = Picked(table["ids"], range(len(table)), pa.ListScalar.as_py)
        combinations: Picked[Combination] = Picked(list(prompts), table["label"].to_numpy())
        return TokenisedRecords(texts, combinations, prompts, truncated, context)
    (folder / FACTS).unlink(missing_ok=True)
    part = folder / f"{TOKENS}.part"  # older tokens may be mapped still: they are not overwritten
    with pa.OSFile(str(part), "wb") as file, pa.ipc.new_stream(file, _SCHEMA) as stream:
        for batch in batches():
            stream.write_batch(batch)
    part.rename(folder / TOKENS)
    for path in folder.iterdir():  # safe from a power cut, before what says that they are whole
        flush(path)
    pairs = [[list(combination), ids] for combination, ids in prompts.items()]
    facts = {"prompts": pairs, "truncated": truncated, "context": context}
    write_json(folder / FACTS, facts)
    return TokenisedRecords.open(folder)


def _tails(name: str, texts: Sequence[str], tokenizer: Any) -> Iterator[list[int]]:
    """Yield for each record the ids that follow its text: none, or a cue and a further text."""
    end, cue = tokenizer.eos_token_id, cue_tokens(name, tokenizer, ends_text=True)
    for some in some_at_once(texts, TEXTS_AT_ONCE):
        spaced = [" " + text for text in some]
        encoded = tokenizer(spaced, add_special_tokens=False)["input_ids"]
        for text, ids in zip(some, encoded, strict=True):
            yield [*cue[1:], *[*ids, end][:OTHER_TOKENS]] if text else []
