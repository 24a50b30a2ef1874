"""Which columns of a private table hold texts and labels, and how several are joined into one text.

Several are joined as `{title}: {body}` says, where no column has that very name. Messages name
columns and row numbers and never hold a cell. Knows neither what is declared nor what is released.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from difflib import get_close_matches
from numbers import Number
from pathlib import Path
from string import Formatter

import numpy as np
import pandas as pd

from twinset.errors import InputError
from twinset.files.limits import check_names
from twinset.table.arrow_columns import Piece, TableReader, Texts, blocks, collect_table, shown
from twinset.table.labels import label_codes
from twinset.table.read import facts_of

_GUESS_LABELS = 50
_GUESS_WORDS = 4
_FIRST = 1000  # cells that a missing header is recognised by
# What people call a column of labels. One of these is taken however rare some of its values are.
_LABEL_NAMES = frozenset(
    "label labels sentiment class category categories stars rating ratings score target topic "
    "emotion verdict polarity grade".split()
)
_SENTENCE = re.compile(r"[.,;!?]\s|[.,;!]$|[，。！？]")
_WIDE = re.compile("[\u2e80-\ud7af]")
_VISIBLE = re.compile(r"[^\s\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")  # nor of `CONTROL`
JOINED = "text"  # what the twin calls joined columns
_WRITABLE = (str, Number, Decimal, np.bool_, datetime.date, datetime.time, datetime.timedelta)
_ESCAPES = {"\\n": "\n", "\\t": "\t"}  # as a shell leaves them


def check_table(frame: pd.DataFrame, source: str) -> None:
    """Refuse a table without rows, or whose columns cannot be named."""
    check_names(frame.columns, source)
    if frame.empty:
        raise InputError(f"{source}: the table has no rows; give a table with records")
    if not all(isinstance(name, str) for name in frame.columns):
        raise InputError(f"{source}: column names must be text; rename the columns")
    if frame.columns.has_duplicates:
        raise InputError(f"{source}: two columns have the same name; rename one")


def show(names: Sequence[str], frame: pd.DataFrame) -> str:
    """Quote column names where cells tell that they are names. Number others, and long ones."""
    verdicts = {verdict for verdict in _header_verdicts(frame).values() if verdict is not None}
    quoted = [
        repr(name)
        if verdicts == {True} and len(name) <= 40 and name.isprintable()
        else f"number {frame.columns.get_loc(name) + 1}"
        for name in names[:30]
    ]
    plural = "columns" if len(names) > 1 else "column"
    missing = " (is the header row missing?)" if False in verdicts else ""
    return f"{plural} {', '.join(quoted)}" + (", …" if len(names) > 30 else "") + missing


def _header_verdicts(frame: pd.DataFrame) -> dict[str, bool | None]:
    """Return for each column whether its name is unlike its first cells. None: they do not tell.

    A record's text in the header's place is a sentence, or as long as most texts are.
    """
    verdicts: dict[str, bool | None] = {}
    for name in frame.columns:
        cells = frame[name].iloc[:_FIRST].dropna().tolist()
        are_numbers = bool(cells) and all(isinstance(cell, Number | np.bool_) for cell in cells)
        is_number = re.fullmatch(r"\s*[-+]?[\d_.]+([eE][-+]?\d+)?\s*", name) is not None
        lengths = [_count_words(cell) for cell in cells if isinstance(cell, str)]
        own = _count_words(name)
        if (are_numbers and is_number) or name in map(str, cells):
            verdicts[name] = False
        elif sum(lengths) < _GUESS_WORDS * max(1, len(lengths)):
            verdicts[name] = True if name.strip().casefold() in _LABEL_NAMES else None
        elif own >= _GUESS_WORDS or _SENTENCE.search(name):
            verdicts[name] = False
        else:
            is_short = sum(n <= own for n in lengths) <= len(lengths) / 100
            verdicts[name] = True if is_short else None
    return verdicts


def _count_words(text: str) -> int:
    """Return about how many words a text has. Chinese and its like have no spaces between them."""
    return len(text.split()) + (0 if text.isascii() else len(_WIDE.findall(text)) // 2)


def is_partial(name: str, frame: pd.DataFrame) -> bool:
    """Return whether a name is a JSONL key that some rows lack: it is data, as their cells are."""
    return facts_of(frame).is_named_by_rows and bool(frame[name].isna().any())


def show_unchosen(names: Sequence[str], frame: pd.DataFrame) -> str:
    """Quote names that the owner did not give, but only count keys that some rows lack."""
    partial = [name for name in names if is_partial(name, frame)]
    shared = [name for name in names if name not in partial]
    keys = f"{len(partial)} {'keys' if len(partial) > 1 else 'key'} that not every row has"
    return " and ".join([show(shared, frame)] * bool(shared) + [keys] * bool(partial))


def check_named(frame: pd.DataFrame, names: Sequence[str], source: str) -> None:
    """Refuse names that no column has."""
    for name in names:
        if name not in frame.columns:
            folded = {column.casefold(): column for column in frame.columns if len(column) <= 100}
            matches = [folded[match] for match in get_close_matches(name.casefold(), folded, n=2)]
            close = [match for match in matches if not is_partial(match, frame)]
            hint = f", did you mean {show(close, frame)}? It" if close else "; it"
            has = show_unchosen(list(frame.columns), frame)
            raise InputError(f"{source}: no column {name!r}{hint} has {has}")


def choose_columns(
    frame: pd.DataFrame, text: str | None, attributes: list[str], source: str, notes: list[str]
) -> tuple[str, list[str]]:
    """Return the text column and the label columns: as given, or guessed and noted.

    A JSONL key that some rows lack is never guessed: its name would leave the house with the twin.

    Raises:
        InputError: there is no such column, or nothing or several to guess.
    """
    check_named(frame, ([] if text is None else [text]) + attributes, source)
    if len(set(attributes)) < len(attributes):
        raise InputError(f"{source}: an attribute is given twice; give each `attribute` once")
    if text in attributes:
        raise InputError(f"{source}: {text!r} is both `text` and `attributes`; choose one of them")
    if text is None:
        rest = [name for name in frame.columns if name not in attributes]
        text = _guess(frame, rest, _looks_like_text, "a column of texts", "`text`", source)
        notes.append(f"reading texts from {show([text], frame)} (guessed; `text` to change)")
    if not attributes:
        rest = [name for name in frame.columns if name != text]
        # called as labels are: a single one whatever its cells are, of several those of few values
        named = [name for name in rest if name.strip().casefold() in _LABEL_NAMES]
        if len(named) > 1:
            named = [name for name in named if _looks_like_label(frame[name])]
        fits = (lambda _: True) if named else _looks_like_label
        label = _guess(frame, named or rest, fits, "a column of labels", "`attributes`", source)
        attributes = [label]
        notes.append(
            f"reading labels from {show([label], frame)} (guessed; `attributes` to change)"
        )
    return text, attributes


def _guess(
    frame: pd.DataFrame,
    names: list[str],
    fits: Callable[[pd.Series], bool],
    what: str,
    option: str,
    source: str,
) -> str:
    """Return the one column that fits. Refuse to guess where there is doubt."""
    found = [name for name in names if fits(frame[name])]
    if len(found) == 1 and is_partial(found[0], frame):
        raise InputError(
            f"{source}: {show(found, frame)} may be {what}, but not every row has this key; "
            f"choose it with {option}, which makes its name public"
        )
    if len(found) > 1:
        join = ", or join some: {title}: {body}" if option == "`text`" else ""
        raise InputError(
            f"{source}: {show(found, frame)} may each be {what}; choose with {option}{join}"
        )
    if not found:
        choice = show_unchosen(names, frame) if names else "no other column"
        raise InputError(
            f"{source}: nothing looks like {what}; choose with {option}. It has {choice}"
        )
    # where row 1 seems to be the header, the twin would carry a record's cells as its own names
    verdicts = _header_verdicts(frame)
    like_cells = [other for other, verdict in verdicts.items() if verdict is False]
    if not like_cells and verdicts[found[0]] is None:
        column = blocks(frame[found[0]])
        like_cells = found * any(found[0] in set(map(str, cells.tolist())) for cells in column)
    if like_cells:
        place = frame.columns.get_loc(like_cells[0]) + 1
        raise InputError(
            f"{source}: the name of column number {place} is like one of its values: is the header "
            f"row missing? Add one, or choose with {option}, which makes a column's name public"
        )
    return found[0]


def _looks_like_text(column: pd.Series) -> bool:
    """Return whether most cells are strings, mostly distinct, of several words."""
    are_texts = [isinstance(cell, str) for cells in blocks(column) for cell in cells.tolist()]
    texts = Texts(column, np.flatnonzero(are_texts))
    return (
        len(texts) > len(column) / 2
        and sum(map(_count_words, texts)) >= _GUESS_WORDS * len(texts)
        and texts.repeats() < len(texts) / 2
    )


def _looks_like_label(column: pd.Series) -> bool:
    """Return whether there are 2 to 50 plain values, no dates, in twice as many rows.

    However few rows have one of them: that a column is guessed must not depend on one record.
    """
    few = next(blocks(column))  # of most columns of texts these tell
    if column.dtype.kind in "Mm" or few.map(lambda cell: isinstance(cell, datetime.date)).any():
        return False
    try:
        if len(label_codes(few, "").values) > _GUESS_LABELS:
            return False
        found = label_codes(column, "")
    except InputError:
        return False
    counts = np.bincount(found.numbers[found.numbers >= 0], minlength=len(found.values))
    return bool(2 <= len(counts) <= min(_GUESS_LABELS, max(2, counts.sum() / 2)))


def has_text(column: pd.Series, place: str) -> np.ndarray:
    """Return (N,) whether a cell is a text that is not blank.

    Raises:
        InputError: no cell is a text.
    """
    cells = (cell for some in blocks(column) for cell in some.tolist())
    found = [_VISIBLE.search(c) is not None if isinstance(c, str) else None for c in cells]
    if all(is_filled is None for is_filled in found):
        raise InputError(
            f"{place} holds no text (it is {column.dtype}); choose another with `text`"
        )
    return np.array([is_filled is True for is_filled in found], bool)


def text_cells(column: pd.Series, place: str) -> list[str | None]:
    """Return the texts, None where there is none."""
    there, cells = has_text(column, place).tolist(), column.tolist()
    return [cell if is_text else None for cell, is_text in zip(cells, there, strict=True)]


def with_joined_text(
    frame: pd.DataFrame,
    text: str | None,
    keep: Sequence[str] = (),
    source: str = "table",
    folder: Path | None = None,
) -> tuple[pd.DataFrame, str | None, list[str]]:
    """Return a table with the text column that is asked for, its name, and notes for the owner.

    Args:
        frame: the table.
        text: a column, or a template of columns between braces. None: to be guessed later.
        keep: joined columns that are needed for themselves.
        source: what to call the table in messages.
        folder: private to its owner: texts of a large table are kept on the disk there.

    Raises:
        InputError: the template names no column of the table, or one that is not of plain values.
    """
    if text is None or text in frame.columns or "{" not in text:
        return frame, text, []
    for escape, character in _ESCAPES.items():
        text = text.replace(escape, character)
    try:
        parts = list(Formatter().parse(text))
    except ValueError:
        parts = []
    if not any(name for _, name, _, _ in parts) or any(n == "" or s or c for _, n, s, c in parts):
        raise InputError(
            "`text`: a template has columns between braces and nothing else there, as in "
            "{title}: {body}; or name one column"
        )
    used = list(dict.fromkeys(name for _, name, _, _ in parts if name is not None))
    check_named(frame, used, source)

    def pieces() -> Iterator[Piece]:
        for some in blocks(frame[used]):
            written = {}
            for name in used:
                filled = some[name].astype(object).where(some[name].notna(), None).tolist()
                if not all(cell is None or isinstance(cell, _WRITABLE) for cell in filled):
                    raise InputError(
                        f"{source}: {show([name], frame)} holds lists or objects, which cannot be "
                        "joined into a text; leave it out of `text`"
                    )
                written[name] = ["" if cell is None else shown(cell) for cell in filled]
            rows = []
            for row in zip(*written.values(), strict=True):
                by_name = dict(zip(used, row, strict=True))
                filled = "".join(f"{lead}{by_name[n] if n else ''}" for lead, n, _, _ in parts)
                # an empty text where all its parts are blank: its literals say nothing
                rows.append(filled.strip() if any(map(str.strip, row)) else "")
            yield len(rows), {JOINED: rows}

    name = JOINED if JOINED in used or JOINED not in frame.columns else f"joined_{JOINED}"
    column = collect_table(TableReader(pieces()), folder)[JOINED].set_axis(frame.index)
    rest = frame.drop(columns=[n for n in used if n not in keep or n == name])
    notes = [f"joining {show(used, frame)} into one, which the twin calls {name!r}"]
    return rest.assign(**{name: column}), name, notes
