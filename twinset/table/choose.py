"""Which column holds the text, which hold labels, and what messages call a column.

A name that the owner did not type is quoted only if it reads like a name and its own column's cells
are unlike it. Without a header row it would be a person's cell. Guesses of columns count as public.
"""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from numbers import Number

import numpy as np
import pandas as pd

from twinset.errors import InputError
from twinset.files.limits import check_names
from twinset.table.columns import Texts, blocks, facts_of, label_codes

_GUESS_LABELS, _GUESS_WORDS = 50, 4  # values of labels at most, words of texts at least
_FIRST = 1000  # cells that a missing header is recognised by
# What people call a column of labels. One of these is taken however rare some of its values are.
_LABEL_NAMES = frozenset(
    "label labels sentiment class category categories stars rating ratings score target topic "
    "emotion verdict polarity grade".split()
)
_NAMES = _LABEL_NAMES.union("text review comment title body message date name id".split())
# What people call a column that says whose a row is, and how often its values must repeat.
_PEOPLE = re.compile(
    r"(?i)(user|customer|client|patient|person|people|author|reviewer|member|subject|student"
    r"|employee|respondent|participant|speaker|sender|e-?mail|subscriber|citizen|resident|mrn)s?"
    r"([\s_.-]*(id|ids|name|key|code|uuid|number|no|nr))?"
)
_ROWS_EACH, _FEWEST_PEOPLE, _FEWEST_IDS = 1.5, 10, 3
_LIKE_A_NAME = re.compile(r"[a-z][\w.-]{0,39}", re.ASCII)
_SENTENCE = re.compile(r"[.,;!?]\s|[.,;!]$|[，。！？]")
_WIDE = re.compile("[\u2e80-\ud7af]")


def check_table(frame: pd.DataFrame, source: str) -> None:
    """Refuse a table without rows, or with columns that have no usable names."""
    check_names(frame.columns, source)
    if frame.empty:
        raise InputError(f"{source}: the table has no rows. Give a table with records.")
    if not all(isinstance(name, str) for name in frame.columns):
        raise InputError(
            f"{source}: column names must be text. Set `frame.columns = ['review', 'label']`."
        )


class Header:
    """What messages call the columns of a table, whose cells are looked at once."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.frame = frame

    def show(self, names: Sequence[str], are_public: bool = False) -> str:
        """Quote column names that their cells show to be names. Number the others.

        Names that are public anyway are quoted, unless the header may be missing.
        """
        frame, verdicts = self.frame, self.verdicts
        if are_public and (facts_of(frame).states_types or False not in verdicts.values()):
            verdicts = dict.fromkeys(verdicts, True)
        is_missing = False in verdicts.values()
        quoted = [
            f"number {frame.columns.get_loc(name) + 1}"
            if name in frame and (is_missing or not verdicts[name])
            else repr(name)
            for name in names[:30]
        ]
        plural = "columns" if len(names) > 1 else "column"
        missing = " (is the header row missing? Add a line of names)" if is_missing else ""
        return f"{plural} {', '.join(quoted)}" + (", …" if len(names) > 30 else "") + missing

    def show_unchosen(self, names: Sequence[str]) -> str:
        """Quote names that the owner did not type, but only count keys that some rows lack."""
        partial = [name for name in names if is_partial(name, self.frame)]
        shared = [name for name in names if name not in partial]
        keys = f"{len(partial)} {'keys' if len(partial) > 1 else 'key'} that not every row has"
        return " and ".join([self.show(shared)] * bool(shared) + [keys] * bool(partial))

    @cached_property
    def verdicts(self) -> dict[str, bool | None]:
        """Return for each column whether its name differs from its first cells, or None if unclear.

        A record's text in place of the header is a sentence, or as long as most texts are. A cell
        in its place is a number, or one of the values. One cell in a hundred may be like none
        before it.
        """
        verdicts: dict[str, bool | None] = {}
        for name in self.frame.columns:
            cells = self.frame[name].iloc[:_FIRST].dropna().tolist()
            are_numbers = bool(cells) and all(isinstance(cell, Number | np.bool_) for cell in cells)
            is_number = re.fullmatch(r"\s*[-+]?[\d_.]+([eE][-+]?\d+)?\s*", name) is not None
            lengths = [_count_words(cell) for cell in cells if isinstance(cell, str)]
            own, found = _count_words(name), Counter(map(str, cells))
            are_texts = sum(lengths) >= _GUESS_WORDS * max(1, len(lengths))
            is_prose = are_texts and (own >= _GUESS_WORDS or _SENTENCE.search(name))
            if is_prose or name in found or (are_numbers and is_number):
                verdicts[name] = False
            else:
                once = sum(n <= own for n in lengths) if are_texts else [*found.values()].count(1)
                is_unlike = are_numbers or once <= len(cells) / 100
                is_name = is_unlike and bool(cells) and _LIKE_A_NAME.fullmatch(name)
                verdicts[name] = True if is_name or name.strip().casefold() in _NAMES else None
        return verdicts


def _count_words(text: str) -> int:
    """Estimate the number of words. Scripts such as Chinese have no spaces between words."""
    return len(text.split()) + (0 if text.isascii() else len(_WIDE.findall(text)) // 2)


def is_partial(name: str, frame: pd.DataFrame) -> bool:
    """Return whether a name is a JSONL key that some rows lack. Such a key is private data."""
    return facts_of(frame).is_named_by_rows and bool(frame[name].isna().any())


def check_named(frame: pd.DataFrame, names: Sequence[str], source: str) -> None:
    """Refuse names that no column has."""
    for name in names:
        if name not in frame.columns:
            has = Header(frame).show_unchosen(list(frame.columns))
            raise InputError(f"{source}: no column {name!r}. It has {has}.")


def choose_columns(
    frame: pd.DataFrame, text: str | None, attributes: list[str], source: str, notes: list[str]
) -> tuple[str, list[str]]:
    """Return the text column and the label columns, as given or guessed. Guesses are noted.

    A JSONL key that some rows lack is never guessed, because its name would appear in the twin.
    """
    header, given = Header(frame), ([] if text is None else [text]) + attributes
    check_named(frame, given, source)
    if len(set(given)) < len(given):
        raise InputError(f"{source}: `text` and `attributes` name a column twice. Give each once.")
    if text is None:
        rest, found = [name for name in frame.columns if name not in attributes], []
        for name in rest:
            # most cells are strings, mostly distinct, of several words
            cells = (cell for some in blocks(frame[name]) for cell in some.tolist())
            rows = np.flatnonzero([isinstance(cell, str) for cell in cells])
            texts = Texts(frame[name].array, rows)
            if (
                len(texts) > len(frame) / 2
                and sum(map(_count_words, texts)) >= _GUESS_WORDS * len(texts)
                and texts.repeats() < len(texts) / 2
            ):
                found.append(name)
        text = _guess(header, found, rest, "a column of texts", "`text`", source)
        notes.append(f"reading texts from {header.show([text])} (guessed, `text` to change)")
    if not attributes:
        rest, found = [name for name in frame.columns if name != text], []
        for name in rest:
            # 2 to 50 plain values, no dates, with at least two rows per value. Single values may be
            # rare, because a guess must not depend on one record.
            few = next(blocks(frame[name]))  # of most columns of texts these tell
            if few.dtype.kind in "Mm" or any(isinstance(c, datetime.date) for c in few.tolist()):
                continue
            with suppress(InputError):
                if len(label_codes(few, "").values) <= _GUESS_LABELS:
                    codes = label_codes(frame[name], "")
                    most = min(_GUESS_LABELS, max(2, (codes.numbers >= 0).sum() / 2))
                    if 2 <= len(codes.values) <= most:
                        found.append(name)
        # called as labels are: a single one whatever its cells are, of several those of few values
        named = [name for name in rest if name.strip().casefold() in _LABEL_NAMES]
        found = named if len(named) == 1 else [name for name in named if name in found] or found
        attributes = [_guess(header, found, rest, "a column of labels", "`attributes`", source)]
        shown = header.show(attributes)
        notes.append(f"reading labels from {shown} (guessed, `attributes` to change)")
    return text, attributes


def _guess(
    header: Header, found: list[str], names: list[str], what: str, option: str, source: str
) -> str:
    """Return the one column found among `names`. Refuse to guess if there is doubt."""
    frame = header.frame
    if len(found) != 1 or is_partial(found[0], frame):
        doubt = f"nothing of {header.show_unchosen(names)}" if names else "no other column"
        doubt = f"{doubt} looks like {what}"
        if found:
            may = "may each be" if len(found) > 1 else "is not in every row, but may be"
            doubt = f"{header.show(found)} {may} {what}"
        join = ", or join some: {title}: {body}" if option == "`text`" else ""
        raise InputError(f"{source}: {doubt}. Choose with {option}{join}.")
    # were row 1 taken for the header, the twin would carry a record's cells as its own names
    like_cells = [other for other, verdict in header.verdicts.items() if verdict is False]
    if not like_cells and header.verdicts[found[0]] is None:
        column = blocks(frame[found[0]])
        like_cells = found * any(found[0] in set(map(str, cells.tolist())) for cells in column)
    if like_cells:
        place = frame.columns.get_loc(like_cells[0]) + 1
        raise InputError(
            f"{source}: the name of column number {place} is like one of its values. If the header "
            "row is missing, add a line of names, such as text,label. Otherwise choose with "
            f"{option}, which makes the column's name public."
        )
    return found[0]


def ask_whose(frame: pd.DataFrame, taken: Sequence[str], source: str) -> str:
    """Return a question about a column that seems to say whose a row is, if its values repeat.

    >>> frame = pd.DataFrame({"text": "good", "user_id": [f"u{i // 3}" for i in range(90)]})
    >>> ask_whose(frame, ["text"], "table").partition(".")[0]
    "table: 'user_id' seems to say whose a row is, and its values repeat"
    """
    for name in frame.columns:
        if name not in taken and (found := _PEOPLE.fullmatch(name.strip())):
            least = _FEWEST_IDS if found[2] else _FEWEST_PEOPLE
            with suppress(TypeError, NotImplementedError):  # lists and objects are no names
                filled = frame[name].dropna()
                people = filled.nunique()
                if people >= least and len(filled) >= _ROWS_EACH * people:
                    return (
                        f"{source}: {name!r} seems to say whose a row is, and its values repeat. "
                        f"Name it, `owner={name}`, so that all rows of one person are protected "
                        "together. If no person has several, say `each_row_is_someone=True`."
                    )
    return ""
