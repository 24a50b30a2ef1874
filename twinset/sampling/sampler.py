"""Model + prompts → rows. Post-processing: it reads no private record and moves no guarantee."""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from twinset.config import SamplingConfig
from twinset.config.run_config import Filter
from twinset.errors import DAMAGED, InputError
from twinset.files.atomic import whole_file
from twinset.models.device import is_cpu
from twinset.models.layers import PackedLinears
from twinset.sampling.decoding import Ending, Engine, Request, attention_span, decode
from twinset.sampling.endings import LEAST_LEFT, SentenceEnds, cut_at_sentence
from twinset.table.schema import CONTROL, Combination
from twinset.table.templates import wrong_combinations

# The same three words five times within so many words are a loop. In long texts people say them as
# often: from 200 words on, in 1 to 14 % of news and 6 to 31 % of dialogues; within 60 in under 1 %.
# Or equally far apart: a loop of a longer sentence.
LOOP_WORDS, LOOP_TIMES, LOOP_SPAN = 3, 5, 60
LENGTH_STREAM = 1  # of random numbers that lengths are drawn by
MOST_UNFINISHED = 5  # texts that are drawn again for a row because they have no end; then cut
UNUSABLE, FILTERED, UNFINISHED, DENIED = "unusable", "filtered", "unfinished", "denied"
COUNTED = (FILTERED, UNFINISHED, DENIED)  # fields of a row
READ_TOGETHER = 32  # rows that the teacher is asked about together
OVERTIME = 16  # tokens, or half as many as it has, in which a row's last sentence is to end

# Labels and token ids of rows → whether other labels are likelier for each.
Denies = Callable[[Sequence[Combination], Sequence[Sequence[int]]], list[bool]]
# Label combination, draws → how many tokens a row is to have.
DrawLength = Callable[[Combination, np.random.Generator], int]


def read_together(device: torch.device) -> int:
    """Return how many rows a teacher is asked about together; of a few a GPU reads none faster."""
    return READ_TOGETHER if is_cpu(device) else 8 * READ_TOGETHER


# How many rows there are, and their share of all tokens.
OnRows = Callable[[int, float], None]


@dataclass(frozen=True)
class Row:
    """One row of the twin.

    Args:
        combination: its labels.
        text: what was written for them.
        filtered: how many texts before it were refused by the filter.
        unfinished: how many were refused because they had no end.
        denied: how many because other labels were likelier for them.
    """

    combination: Combination
    text: str
    filtered: int = 0
    unfinished: int = 0
    denied: int = 0


class Sampler:
    """Draws rows from a model until every label combination has its number.

    Args:
        model: causal LM in evaluation mode.
        tokenizer: its tokenizer.
        prompts: token ids of every combination's prompt.
        config: decoding settings and seed.
        max_new_tokens: longest text, end of text included.
        stream: number of the random stream; samplers that share rows out have one each.
        engine: writes token ids; None: `decoding.decode`.
        biases: of every combination, see `decoding.Request`; None: there are none.
        denies: what teacher and released counts say; None: nothing is asked.
        length: draws how long a row is to be; None: it ends where the model ends it.
        packed: the model's weights, see `decoding.decode`.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        prompts: Mapping[Combination, list[int]],
        config: SamplingConfig,
        max_new_tokens: int,
        stream: int = 0,
        engine: Engine | None = None,
        biases: Mapping[Combination, torch.Tensor] | None = None,
        denies: Denies | None = None,
        length: DrawLength | None = None,
        packed: PackedLinears | None = None,
    ) -> None:
        self._biases, self._denies, self._length = biases or {}, denies, length
        self._ends = SentenceEnds(tokenizer)
        if packed is None and engine is None:
            packed = PackedLinears(model)  # once, for all that is drawn
        self._engine = engine or partial(decode, model, packed=packed)
        self._model, self._tokenizer, self._prompts = model, tokenizer, prompts
        self._config, self._stream = config, stream
        self._longest_text = max_new_tokens
        budget = attention_span(model) - max(map(len, prompts.values()))
        self._max_new_tokens = min(config.max_new_tokens or max_new_tokens, budget)

    def sample(
        self,
        counts: Mapping[Combination, int],
        on_progress: OnRows = lambda rows, share: None,
    ) -> list[Row]:
        """Return exactly `counts[c]` rows of each combination c, in the order of `counts`.

        Rows that are empty, broken, caught in a loop or filtered are drawn again, each up to
        `config.max_redraws` times in all; unfinished ones at most `MOST_UNFINISHED` times, if asked
        for, and those whose labels are denied `config.teacher_redraws` times; the last of these is
        taken where nothing better comes.

        Args:
            counts: rows wanted.
            on_progress: called with the number of rows accepted so far, and their share of tokens.

        Raises:
            InputError: a combination's rows were unusable time after time.
        """
        wanted = [c for c, n in counts.items() for _ in range(n)]
        found: dict[int, str] = {}
        spare: dict[int, str] = {}  # unfinished and denied texts, where nothing better comes
        refused: list[Counter[str]] = [Counter() for _ in wanted]
        generator, wrong = _streams(self._config.seed, self._stream)
        lengths = self._lengths(wanted)
        sizes = self._sizes(lengths)
        waiting = self._waiting(wanted, lengths, sizes, wrong)
        written, total = 0, sum(sizes)
        while waiting:  # again, where rows of the last ones that were judged are drawn anew
            for i, text, why in self._judged(waiting, generator, wanted, refused, lengths):
                if why is None:
                    found[i] = text
                else:
                    refused[i][why] += 1
                    if why in (UNFINISHED, DENIED):
                        spare[i] = text
                    if refused[i].total() < self._config.max_redraws:
                        waiting.appendleft(self._request(i, wanted[i], wrong, lengths[i]))
                    elif i in spare:
                        found[i] = spare[i]
                written += sizes[i] if i in found else 0
                on_progress(len(found), written / total)
        self._refuse_missing(counts, Counter(wanted[i] for i in found))
        counts_of = [[each[why] for why in COUNTED] for each in refused]
        return [Row(c, found[i], *counts_of[i]) for i, c in enumerate(wanted)]

    def _judged(
        self,
        waiting: deque[Request],
        generator: torch.Generator,
        wanted: Sequence[Combination],
        refused: Sequence[Counter[str]],
        lengths: Sequence[int | None],
    ) -> Iterator[tuple[int, str, str | None]]:
        """Yield each row as it ends: its number, text, and why it is to be drawn again."""
        written, together = self._written(waiting, generator), 1
        if self._denies:
            together = read_together(self._model.device)
        ended = ((i, self._ended(ids, lengths[i])) for i, ids in written)
        while some := list(islice(ended, together)):
            texts = {i: self._text(ids) for i, ids in some}
            why = {i: self._refusal(ids, texts[i], refused[i][UNFINISHED]) for i, ids in some}
            most = self._config.teacher_redraws
            asked = {i: ids for i, ids in some if why[i] is None and refused[i][DENIED] < most}
            if self._denies and asked:
                denied = self._denies([wanted[i] for i in asked], list(asked.values()))
                why |= {i: DENIED for i, is_denied in zip(asked, denied, strict=True) if is_denied}
            for i, text in texts.items():
                yield i, text, why[i]

    def _refusal(self, ids: list[int], text: str, unfinished: int) -> str | None:
        """Return why a row is to be drawn again; None: it is not.

        Args:
            ids: its tokens.
            text: what they say.
            unfinished: how many texts of this row had no end before.
        """
        if not is_usable(text):
            return UNUSABLE
        if is_unwanted(text, self._config.filter):
            return FILTERED
        redraws = self._config.endings == "redraw" and unfinished < MOST_UNFINISHED
        return UNFINISHED if redraws and self._tokenizer.eos_token_id not in ids else None

    def drafts(
        self,
        counts: Mapping[Combination, int],
        on_progress: OnRows = lambda rows, share: None,
    ) -> dict[Combination, list[list[int]]]:
        """Return token ids of rows as the model writes them, usable or not, by combination."""
        wanted = [c for c, n in counts.items() for _ in range(n)]
        generator, wrong = _streams(self._config.seed, self._stream)
        lengths = self._lengths(wanted)
        sizes = self._sizes(lengths)
        waiting = self._waiting(wanted, lengths, sizes, wrong)
        found: dict[Combination, list[list[int]]] = {c: [] for c in counts}
        written, total = 0, sum(sizes)
        for done, (i, ids) in enumerate(self._written(waiting, generator), start=1):
            found[wanted[i]].append(self._ended(ids, lengths[i]))
            written += sizes[i]
            on_progress(done, written / total)
        return found

    def _written(
        self, waiting: deque[Request], generator: torch.Generator
    ) -> Iterator[tuple[int, list[int]]]:
        end = self._tokenizer.eos_token_id
        return self._engine(waiting, end, self._max_new_tokens, self._config, generator)

    def _waiting(
        self,
        wanted: Sequence[Combination],
        lengths: Sequence[int | None],
        sizes: Sequence[int],
        wrong: np.random.Generator,
    ) -> deque[Request]:
        """Ask for all rows, the longest first."""
        order = _longest_first(sizes)
        return deque(self._request(i, wanted[i], wrong, lengths[i]) for i in order)

    def _request(
        self, index: int, combination: Combination, wrong: np.random.Generator, length: int | None
    ) -> Request:
        """Ask for a row, with the prompt of a wrong combination where there is another one."""
        known, asked = tuple(self._prompts), [combination]
        if len(known) > 1:
            asked += wrong_combinations(combination, known, 1, wrong)
        prompts = tuple(tuple(self._prompts[c]) for c in asked)
        return Request(index, prompts, self._biases.get(combination), self._ending(length))

    def _lengths(self, wanted: Sequence[Combination]) -> list[int | None]:
        """Draw how many tokens each row is to have; None: as many as the model writes."""
        if self._length is None:
            return [None] * len(wanted)
        rng = np.random.default_rng([self._config.seed, self._stream, LENGTH_STREAM])
        drawn = (self._length(combination, rng) for combination in wanted)
        # A text as long as the longest goes on; one that is cut shorter ends where it happens to.
        goes_on = self._config.endings == "keep" and self._max_new_tokens == self._longest_text
        return [n if n < self._max_new_tokens or goes_on else None for n in drawn]

    def _sizes(self, lengths: Sequence[int | None]) -> list[int]:
        """Return how many tokens rows will have, about."""
        return [self._max_new_tokens if length is None else length for length in lengths]

    def _ending(self, length: int | None) -> Ending | None:
        """Return where a row ends: with the first sentence of so many tokens, or soon behind."""
        if length is None:
            return None
        most = min(self._max_new_tokens, length + max(OVERTIME, length // 2))
        return Ending(length, most, self._ends.here)

    def _ended(self, ids: list[int], length: int | None) -> list[int]:
        """Return a row up to the end of the sentence that is nearest to its length.

        One without such an end is cut there; one that goes on to the longest length stays.
        """
        if length is None or length >= self._max_new_tokens:
            return ids
        end = self._tokenizer.eos_token_id
        text = ids[: ids.index(end)] if end in ids else ids
        nearest = self._ends.nearest(text, length)
        if end in ids and (nearest is None or len(text) - length <= length - nearest):
            return ids
        return text[:length] if nearest is None else [*text[:nearest], end]

    def _text(self, ids: list[int]) -> str:
        """Decode up to the end-of-text token; a text cut off before it loses its last word.

        Not where that is most of it: Chinese and its like have no blanks between words.
        """
        end = self._tokenizer.eos_token_id
        finished = end in ids
        kept = ids[: ids.index(end)] if finished else ids
        text: str = self._tokenizer.decode(kept, skip_special_tokens=True).strip()
        if finished:
            return text
        whole = " ".join(text.rsplit(None, 1)[:-1])
        if len(whole) < LEAST_LEFT * len(text):
            whole = text
        return whole if self._config.endings == "keep" else cut_at_sentence(whole)

    def _refuse_missing(
        self, counts: Mapping[Combination, int], found: Mapping[Combination, int]
    ) -> None:
        for combination, wanted in counts.items():
            if found[combination] < wanted:
                kinds, or_filter = self._config.filter, ""
                if kinds != "none":
                    or_filter = f", or leave `filter={kinds}` out"
                raise InputError(
                    f"only {found[combination]} of {wanted} rows for label {combination} were "
                    "usable (neither empty nor looping); raise `temperature` or lower `guidance`"
                    f"{or_filter}"
                )


class RowGroups:
    """Finished groups of a twin's rows; see `row_shards`.

    Args:
        folder: of a file for each, made with the first; None: in memory.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._held: dict[int, list[Row]] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._held if self._folder is None else self._path(number).is_file()

    def read(self, number: int) -> list[Row]:
        """Return a finished group.

        Raises:
            InputError: its file is damaged.
        """
        if self._folder is None:
            return self._held[number]
        path = self._path(number)
        try:
            rows = json.loads(path.read_text("utf-8"))
            return [Row(tuple(combination), *rest) for combination, *rest in rows]
        except DAMAGED:
            raise InputError(f"{path.name}: is damaged; remove it, and it is drawn anew") from None

    def rows(self, groups: int) -> Iterator[Row]:
        """Yield the rows of the first so many groups."""
        for number in range(groups):
            yield from self.read(number)

    def redrawn(self, groups: int) -> dict[str, int]:
        """Return why texts of the first so many groups were drawn again, and how many."""
        rows = list(self.rows(groups))
        return {why: sum(getattr(row, why) for row in rows) for why in COUNTED}

    def draw(
        self,
        number: int,
        sampler: Sampler,
        counts: Mapping[Combination, int],
        on_progress: OnRows,
    ) -> None:
        """Draw a group and keep it; see `Sampler.sample`."""
        self.write(number, sampler.sample(counts, on_progress))

    def write(self, number: int, rows: list[Row]) -> None:
        """Keep a finished group."""
        if self._folder is None:
            self._held[number] = rows
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        plain = [[list(r.combination), r.text, r.filtered, r.unfinished, r.denied] for r in rows]
        with whole_file(self._path(number)) as file:
            json.dump(plain, file, ensure_ascii=False)

    def _path(self, number: int) -> Path:
        assert self._folder is not None
        return self._folder / f"rows-{number:06}.json"


def _longest_first(sizes: Sequence[int]) -> list[int]:
    """Return the numbers of rows in the order in which they are begun.

    Each token of a row looks at as many places as the longest that is written beside it has: rows
    of one length waste none, and short ones are soon done where few are left.

    >>> _longest_first([3, 9, 3, 5])
    [1, 3, 0, 2]
    """
    return sorted(range(len(sizes)), key=lambda i: -sizes[i])


def _streams(seed: int, stream: int) -> tuple[torch.Generator, np.random.Generator]:
    """Return the sources of the draws and of the wrong prompts: on every device the same.

    A generator on the processor keeps 32 bits of its seed, so streams are numbers in a row: they
    differ for sure, where hashes might meet.
    """
    start = int(np.random.SeedSequence(seed).generate_state(1)[0])
    draws = torch.Generator().manual_seed((start + stream) % 2**32)
    return draws, np.random.default_rng([seed, stream])


def is_usable(text: str) -> bool:
    """Return whether a text has words, no control characters, and is not caught in a loop.

    >>> is_usable("A fine film."), is_usable("  "), is_usable("so so good " * 9)
    (True, False, False)
    """
    words = text.split()
    if CONTROL.search(text) or not any(c.isalnum() for c in text):
        return False
    return not _loops(words)


def _loops(words: Sequence[str]) -> bool:
    seen: dict[tuple[str, ...], deque[int]] = {}
    for place, run in enumerate(zip(*(words[i:] for i in range(LOOP_WORDS)), strict=False)):
        places = seen.setdefault(run, deque(maxlen=LOOP_TIMES))
        places.append(place)
        if len(places) == LOOP_TIMES and _is_dense_or_even(places):
            return True
    return False


def _is_dense_or_even(places: Sequence[int]) -> bool:
    return places[-1] - places[0] < LOOP_SPAN or len({b - a for a, b in pairwise(places)}) == 1


def is_unwanted(text: str, kinds: Filter) -> bool:
    """Return whether a text holds what is filtered: web debris, vulgar words.

    The patterns are public and the same for every table, so that filtering is post-processing. How
    often the private texts hold such words is not asked, since that would read them.

    >>> [is_unwanted("Labels:Class a fine film", kinds) for kinds in ("none", "debris", "vulgar")]
    [False, True, False]
    """
    return any(pattern.search(text) for pattern in _unwanted(kinds))


@cache
def _unwanted(kinds: Filter) -> list[re.Pattern[str]]:
    lists = tomllib.loads(Path(__file__).with_name("unwanted.toml").read_text("utf-8"))
    chosen = {"none": [], "all": list(lists)}.get(kinds, [kinds])
    return [
        re.compile(line, re.IGNORECASE | re.MULTILINE) for kind in chosen for line in lists[kind]
    ]
