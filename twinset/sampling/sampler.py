"""Model + prompts → rows: which texts are usable, and where they end.

This is post-processing. It reads no private record and changes no guarantee.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from twinset.config import SamplingConfig
from twinset.errors import InputError
from twinset.models.device import is_cpu
from twinset.models.layers import PackedLinears
from twinset.sampling.decoding import Ending, Request, attention_span, decode
from twinset.table.schema import CONTROL, Combination
from twinset.table.templates import wrong_combinations
from twinset.table.tokenization import OTHER_TOKENS

# The same three words five times within 60 words are a loop. Without the limit of 60, long texts
# (from 200 words) have them often: 1 to 14 % of news and 6 to 31 % of dialogues. With it, under
# 1 % do. Five times at equal distances is a loop too, of a longer sentence.
LOOP_WORDS, LOOP_TIMES, LOOP_SPAN = 3, 5, 60
LENGTH_STREAM = 1  # of random numbers that lengths are drawn by
MOST_UNFINISHED = 5  # texts without an end that are drawn again for a row. The next one is cut.
UNUSABLE, FILTERED, UNFINISHED, DENIED = "unusable", "filtered", "unfinished", "denied"
COUNTED = (FILTERED, UNFINISHED, DENIED)  # fields of a row
READ_TOGETHER = 32  # rows that the teacher is asked about together
OVERTIME = 16  # tokens, or half its own length, in which a row's last sentence must end
LEAST_LEFT = 0.5  # of a text's characters, if it is cut
SHORTEST_LINE = 4  # tokens that a further text must have room for
LOOKED_BACK = 16  # tokens that suffice to recognise the end of a sentence

_CLOSING = re.compile(r"""[.!?…。！？]["'”’»)\]」』]*$""")
_NUMBERED = re.compile(r"\d\.$")  # what follows may be the rest of a number
_END = re.compile(
    r"""(?<!\b[A-Z])(?<!\bMr)(?<!\bMrs)(?<!\bMs)(?<!\bDr)(?<!\bSt)(?<!\bvs)(?<!\be\.g)(?<!\bi\.e)
    (?: [.!?…]+ ["'”’»)\]]* (?= \s+ ["'“‘«(\[]* [^\W_a-z] | \s*$ )  # a capital or a number follows
      | [。！？]+ [」』”]* )""",
    re.VERBOSE,
)

_lists = tomllib.loads(Path(__file__).with_name("unwanted.toml").read_text("utf-8"))
# The patterns of each filter. They are public and the same for every table, so that filtering is
# post-processing. How often the private texts hold such words is not asked.
UNWANTED = {
    kind: [re.compile(line, re.IGNORECASE | re.MULTILINE) for line in lines]
    for kind, lines in _lists.items()
}
UNWANTED |= {"none": [], "all": [each for lines in UNWANTED.values() for each in lines]}

# Labels and token ids of rows → whether other labels are likelier for each.
Denies = Callable[[Sequence[Combination], Sequence[Sequence[int]]], list[bool]]
# Label combination, draws → how many tokens a row is to have.
DrawLength = Callable[[Combination, np.random.Generator], int]
# Of a further text the ids that come before it, and shares of lines of 1, 2, … words.
Further = tuple[Sequence[int], Sequence[float]]
# How many rows there are, and their share of all tokens.
OnRows = Callable[[int, float], None]


@dataclass(frozen=True)
class Row:
    """One row of the twin, and how many texts were refused before it."""

    combination: Combination
    text: str
    filtered: int = 0
    unfinished: int = 0  # had no end
    denied: int = 0  # other labels were likelier for them
    others: tuple[str, ...] = field(default=(), kw_only=True)  # further texts. "" is a gap.


@dataclass
class Sampler:
    """Draws rows from a model until every label combination has its number."""

    model: Any  # causal LM in evaluation mode
    tokenizer: Any
    prompts: Mapping[Combination, list[int]]  # ids
    config: SamplingConfig
    max_new_tokens: int  # of the longest text, end of text included
    stream: int = 0  # of random numbers. Samplers that share rows out have one each.
    biases: Mapping[Combination, torch.Tensor] = field(default_factory=dict)  # see `Request`
    denies: Denies | None = None  # what teacher and released counts say
    length: DrawLength | None = None  # None: a row ends where the model ends it
    packed: PackedLinears | None = None  # None: the weights are packed here
    # Without shares the model ends a further text.
    further: Sequence[Further] = ()

    def sample(
        self,
        counts: Mapping[Combination, int],
        on_progress: OnRows = lambda rows, share: None,
    ) -> list[Row]:
        """Return exactly `counts[c]` rows of each combination c, in the order of `counts`.

        Rows that are empty, broken, caught in a loop or filtered are drawn again, each at most
        `config.max_redraws` times in all. If enabled, unfinished rows are drawn again at most
        `MOST_UNFINISHED` times, and rows that the teacher labels differently
        `config.teacher_redraws` times. If no better row comes, the last of these is taken. It is
        an InputError if rows of a combination stay unusable.
        """
        found, refused = self._draw(counts, on_progress)
        wanted = [c for c, n in counts.items() for _ in range(n)]
        there, kinds = Counter(wanted[i] for i in found), self.config.filter
        for combination, number in counts.items():
            if there[combination] < number:
                raise InputError(
                    f"only {there[combination]} of {number} rows for label {combination} were "
                    "usable (neither empty nor looping). Raise `temperature` or lower `guidance`"
                    + ("." if kinds == "none" else f", or leave `filter={kinds}` out.")
                )
        return [
            Row(c, found[i][0], *(refused[i][why] for why in COUNTED), others=found[i][1])
            for i, c in enumerate(wanted)
        ]

    def drafts(
        self,
        counts: Mapping[Combination, int],
        on_progress: OnRows = lambda rows, share: None,
    ) -> dict[Combination, list[list[int]]]:
        """Return token ids of rows as the model writes them, usable or not, by combination.

        Rows are never refused, so none has to be drawn again. Fits to these rows need what the
        model writes without a filter.
        """
        found, _ = self._draw(counts, on_progress, are_drafts=True)
        wanted = [c for c, n in counts.items() for _ in range(n)]
        return {c: [ids for i, ids in found.items() if wanted[i] == c] for c in counts}

    def _draw(
        self, counts: Mapping[Combination, int], on_progress: OnRows, are_drafts: bool = False
    ) -> tuple[dict[int, Any], list[Counter[str]]]:
        """Write rows, the longest first, and again those that are refused.

        Each token attends to all places up to the longest row of its batch. Rows of equal length
        waste none, and short rows finish quickly when only few are left.

        Returns:
            Each row's texts, or a draft's ids, by its number in the order of the counts, and how
            often and why each was refused before. Rows that were refused too often are missing.
        """
        config, end = self.config, self.tokenizer.eos_token_id
        room = attention_span(self.model) - max(map(len, self.prompts.values()))
        further, longest = fitting([] if are_drafts else self.further, room // 2)
        room -= sum(len(ids) + longest for ids, _ in further)
        most = min(config.max_new_tokens or self.max_new_tokens, room)
        wanted = [c for c, n in counts.items() for _ in range(n)]
        # A generator on the processor keeps 32 bits of its seed, on every device the same. Streams
        # are numbers in a row: they differ for sure, where hashes might meet.
        start = int(np.random.SeedSequence(config.seed).generate_state(1)[0])
        generator = torch.Generator().manual_seed((start + self.stream) % 2**32)
        wrong = np.random.default_rng([config.seed, self.stream])  # draws wrong prompts
        lengths: list[int | None] = [None] * len(wanted)  # None: the model ends the row
        if self.length is not None:
            rng = np.random.default_rng([config.seed, self.stream, LENGTH_STREAM])
            # As long as the longest text: it may continue. Cut shorter: it ends at the cut.
            goes_on = config.endings == "keep" and most == self.max_new_tokens
            drawn = [self.length(combination, rng) for combination in wanted]
            lengths = [n if n < most or goes_on else None for n in drawn]
        # A row without a token takes work too, or all would be done before the last such row.
        sizes = [most if length is None else max(1, length) for length in lengths]
        known = tuple(self.prompts)

        # (rows, T) words of further texts at most
        words = np.full((len(wanted), len(further)), OTHER_TOKENS)
        rng = np.random.default_rng([config.seed, self.stream, LENGTH_STREAM + 1])
        for place, (_, shares) in enumerate(further):
            if len(shares):
                chances = np.array(shares) / sum(shares)
                words[:, place] = 1 + rng.choice(len(shares), len(wanted), p=chances)

        begun: dict[int, Request] = {}

        def request(i: int) -> Request:
            """Request a row, with the prompt of a wrong combination if there is one."""
            asked, length, ending = [wanted[i]], lengths[i], None
            if len(known) > 1:
                asked += wrong_combinations(wanted[i], known, 1, wrong)
            if length is not None:  # it ends with the first sentence of this length, or soon after
                overtime = min(most, length + max(OVERTIME, length // 2))
                ending = Ending(length, overtime, partial(ids_end_sentence, self.tokenizer))
            prompts = tuple(tuple(self.prompts[c]) for c in asked)
            lines = [
                (ids, Ending(1, longest, partial(ids_end_line, self.tokenizer, int(number))))
                for (ids, _), number in zip(further, words[i], strict=True)
            ]
            begun[i] = Request(i, prompts, self.biases.get(wanted[i]), ending, lines)
            return begun[i]

        waiting = deque(map(request, sorted(range(len(wanted)), key=lambda i: -sizes[i])))
        found: dict[int, Any] = {}
        spare: dict[int, Any] = {}  # unfinished or mislabelled texts, if no better one comes
        refused: list[Counter[str]] = [Counter() for _ in wanted]
        together = 1
        if self.denies:  # a GPU reads a few rows no faster than many
            together = READ_TOGETHER if is_cpu(self.model.device) else 8 * READ_TOGETHER
        written, total = 0, sum(sizes)
        packed = self.packed or PackedLinears(self.model)  # once, for all that is drawn
        given = self.model, waiting, end, most, config, generator, packed
        while waiting:  # again, if some of the last judged rows are drawn again
            ended = decode(*given)
            while batch := dict(islice(ended, together)):
                for i, ids in batch.items():
                    length = lengths[i]
                    if length is None or length >= most:  # one that continues stays unchanged
                        continue
                    # It ends with the sentence that ends nearest to its length, of two with the
                    # later one. Without any it is cut there.
                    text = ids[: ids.index(end)] if end in ids else ids
                    ends = [
                        (abs(n - length), -n)
                        for n in range(1, len(text) + 1)
                        if ids_end_sentence(self.tokenizer, text[:n])
                    ]
                    nearest = -min(ends)[1] if ends else None
                    if end in ids and (nearest is None or len(text) - length <= length - nearest):
                        continue
                    batch[i] = text[:length] if nearest is None else [*text[:nearest], end]
                judged: dict[int, tuple[Any, str | None]]
                judged = {i: (ids, None) for i, ids in batch.items()}
                if not are_drafts:  # else no row is refused
                    others = {
                        i: [
                            self._line(ids, int(number), len(ids) == longest)
                            for ids, number in zip(begun[i].texts[1:], words[i], strict=True)
                        ]
                        for i in batch
                    }
                    judged = self._judge(batch, others, wanted, refused)
                for i, (text, why) in judged.items():
                    if why is None:
                        found[i] = text
                    else:
                        refused[i][why] += 1
                        if why in (UNFINISHED, DENIED):
                            spare[i] = text
                        if refused[i].total() < config.max_redraws:
                            waiting.appendleft(request(i))
                        elif i in spare:
                            found[i] = spare[i]
                    written += sizes[i] if i in found else 0
                    on_progress(len(found), written / total)
        return found, refused

    def _line(self, ids: Sequence[int], words: int, is_longest: bool) -> str:
        """Return the first line of a further text. One that was cut ends with a whole word."""
        text: str = self.tokenizer.decode(ids, skip_special_tokens=True).strip()
        is_cut = is_longest and ids[-1] != self.tokenizer.eos_token_id
        line, *rest = text.splitlines() or [""]
        if is_cut and not rest and " " in line:
            line = line.rsplit(None, 1)[0]
        if len(parts := line.split()) > words:
            line = " ".join(parts[:words]).rstrip(",;:-–—(")
        return "" if CONTROL.search(line) else line.strip()

    def _judge(
        self,
        batch: Mapping[int, list[int]],
        others: Mapping[int, list[str]],
        wanted: Sequence[Combination],
        refused: Sequence[Counter[str]],
    ) -> dict[int, tuple[Any, str | None]]:
        """Return the texts of each ended row, and why it should be drawn again."""
        config, end = self.config, self.tokenizer.eos_token_id
        texts: dict[int, str] = {}
        why: dict[int, str | None] = dict.fromkeys(batch)
        for i, ids in batch.items():
            is_finished = end in ids
            kept = ids[: ids.index(end)] if is_finished else ids
            text: str = self.tokenizer.decode(kept, skip_special_tokens=True).strip()
            if not is_finished:
                # A text that is cut off loses its last word, unless that is most of the text:
                # Chinese has no blanks between words.
                whole = " ".join(text.rsplit(None, 1)[:-1])
                text = whole if len(whole) >= LEAST_LEFT * len(text) else text
                ends = [sentence.end() for sentence in _END.finditer(text)]
                if config.endings != "keep" and ends and ends[-1] >= LEAST_LEFT * len(text):
                    text = text[: ends[-1]]
            texts[i] = text
            redraws = config.endings == "redraw" and refused[i][UNFINISHED] < MOST_UNFINISHED
            if not is_usable(text):
                why[i] = UNUSABLE
            elif any(
                pattern.search(each)
                for each in (text, *others[i])
                for pattern in UNWANTED[config.filter]
            ):
                why[i] = FILTERED
            elif redraws and not is_finished:
                why[i] = UNFINISHED
        most = config.teacher_redraws
        asked = {i: ids for i, ids in batch.items() if not why[i] and refused[i][DENIED] < most}
        if self.denies and asked:
            denied = self.denies([wanted[i] for i in asked], list(asked.values()))
            why |= {i: DENIED for i, is_denied in zip(asked, denied, strict=True) if is_denied}
        missing = ("",) * (len(self.further) - len(next(iter(others.values()), ())))
        return {i: ((text, (*others[i], *missing)), why[i]) for i, text in texts.items()}


def fitting(further: Sequence[Further], room: int) -> tuple[Sequence[Further], int]:
    """Return the further texts that a row has room for, and how many tokens each may have.

    >>> fitting([("a", ()), ("b", ()), ("c", ())], room=10)
    ([('a', ()), ('b', ())], 4)
    """
    for kept in range(len(further), 0, -1):
        longest = (room - sum(len(ids) for ids, _ in further[:kept])) // kept
        if longest >= SHORTEST_LINE:
            return further[:kept], min(longest, OTHER_TOKENS)
    return [], OTHER_TOKENS


def ids_end_line(tokenizer: Any, words: int, ids: Sequence[int]) -> bool:
    """Return whether a line ends among token ids, or has more words than it may.

    Blank lines before it do not count.
    """
    text = tokenizer.decode(list(ids)).lstrip()
    return "\n" in text or len(text.split()) > words


def is_usable(text: str) -> bool:
    """Return whether a text has words, no control characters, and is not caught in a loop.

    >>> is_usable("A fine film."), is_usable("  "), is_usable("so so good " * 9)
    (True, False, False)
    """
    words = text.split()
    if CONTROL.search(text) or not any(c.isalnum() for c in text):
        return False
    seen: dict[tuple[str, ...], deque[int]] = {}  # three words → their last five places
    for place, run in enumerate(zip(*(words[i:] for i in range(LOOP_WORDS)), strict=False)):
        places = seen.setdefault(run, deque(maxlen=LOOP_TIMES))
        places.append(place)
        if len(places) == LOOP_TIMES:
            is_dense = places[-1] - places[0] < LOOP_SPAN
            if is_dense or len({b - a for a, b in pairwise(places)}) == 1:
                return False
    return True


# -- where a text can end: at the end of a sentence ------------------------------------------------


def ids_end_sentence(tokenizer: Any, ids: Sequence[int]) -> bool:
    """Return whether the last of one or more token ids ends a sentence.

    The next token is not known, so a number with a full stop does not count.
    """
    if ids[-1] not in closing_tokens(tokenizer):
        return False
    text = tokenizer.decode(list(ids[-LOOKED_BACK:])).rstrip()
    ends = [found.end() for found in _END.finditer(text)]
    return bool(ends) and ends[-1] == len(text) and not _NUMBERED.search(text)


@lru_cache(maxsize=4)
def closing_tokens(tokenizer: Any) -> frozenset[int]:
    """Return the tokens that may end a sentence, so that few texts need to be decoded.

    This decodes the whole vocabulary, once and not for each group of rows.
    """
    words = tokenizer.batch_decode([[i] for i in range(len(tokenizer))])
    return frozenset(i for i, word in enumerate(words) if _CLOSING.search(word))
