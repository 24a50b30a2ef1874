"""Which columns of a private table hold texts and labels, and the texts in them.

Several may be joined into one text, as `{title}: {body}` says, where no column has that very name.
Messages name columns and row numbers and never hold a cell. Knows nothing of files or models.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches
from functools import cached_property
from numbers import Number
from pathlib import Path
from string import Formatter

import numpy as np
import pandas as pd

from twinset.errors import InputError
from twinset.files.limits import check_names
from twinset.table.arrow_columns import (
    AT_ONCE,
    ROWS_AT_ONCE,
    Reading,
    Texts,
    blocks,
    let_go,
    mapped,
    shown,
)
from twinset.table.labels import LabelCodes, LabelColumn, label_codes
from twinset.table.read import (
    is_named_by_rows,
    is_of_text,
    row_name,
    row_numbers,
    states_types,
)
from twinset.table.schema import CONTROL

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
_BLANK = "".join(c for c in map(chr, range(0x3001)) if c.isspace() or CONTROL.match(c))
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
    """Quote column names where cells tell that they are names; number others, and long ones."""
    has_header = _has_header(frame)
    shown = [
        repr(name)
        if has_header and len(name) <= 40 and name.isprintable()
        else f"number {frame.columns.get_loc(name) + 1}"
        for name in names[:30]
    ]
    plural = "columns" if len(names) > 1 else "column"
    missing = " (is the header row missing?)" if has_header is False else ""
    return f"{plural} {', '.join(shown)}" + (", …" if len(names) > 30 else "") + missing


def _has_header(frame: pd.DataFrame) -> bool | None:
    """Return whether the names of columns are no row of cells; None: the cells do not tell."""
    verdicts = set(_header_verdicts(frame).values())
    return None if verdicts <= {None} else False not in verdicts


def _header_verdicts(frame: pd.DataFrame) -> dict[str, bool | None]:
    return {name: _is_header(name, frame[name]) for name in frame.columns}


def _is_header(name: str, column: pd.Series) -> bool | None:
    """Return whether a name is unlike the first cells below it; None: they do not tell.

    A record's text in the header's place is a sentence, or as long as most texts are.
    """
    cells = column.iloc[:_FIRST].tolist()
    is_number = pd.api.types.is_numeric_dtype(column.dtype) and _is_number(name)
    if is_number or name in map(str, cells):
        return False
    words = [_words(cell) for cell in cells if isinstance(cell, str)]
    if sum(words) < _GUESS_WORDS * max(1, len(words)):
        return True if name.strip().casefold() in _LABEL_NAMES else None
    if _words(name) >= _GUESS_WORDS or _SENTENCE.search(name):
        return False
    return True if sum(n <= _words(name) for n in words) <= len(words) / 100 else None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def is_partial(name: str, frame: pd.DataFrame) -> bool:
    """Return whether a name is a JSONL key that some rows lack: it is data, as their cells are."""
    return is_named_by_rows(frame) and bool(frame[name].isna().any())


def show_unchosen(names: Sequence[str], frame: pd.DataFrame) -> str:
    """Quote names that nobody gave, but only count keys that some rows lack."""
    partial = [name for name in names if is_partial(name, frame)]
    shared = [name for name in names if name not in partial]
    keys = f"{len(partial)} {'keys' if len(partial) > 1 else 'key'} that not every row has"
    return " and ".join([show(shared, frame)] * bool(shared) + [keys] * bool(partial))


def choose_columns(
    frame: pd.DataFrame, text: str | None, attributes: list[str], source: str, notes: list[str]
) -> tuple[str, list[str]]:
    """Return the text column and the label columns: as given, or guessed and noted.

    A JSONL key that some rows lack is never guessed: its name would leave the house with the twin.
    """
    check_named(frame, ([] if text is None else [text]) + attributes, source)
    if len(set(attributes)) < len(attributes):
        raise InputError(f"{source}: an attribute is given twice; give each `attribute` once")
    if text in attributes:
        raise InputError(f"{source}: {text!r} is both `text` and `attributes`; choose one of them")
    if text is None:
        rest = [name for name in frame.columns if name not in attributes]
        text = _guess(frame, rest, _looks_like_text, "a column of texts", "`text`", source)
        _check_header(frame, text, "`text`", source)
        notes.append(f"reading texts from {show([text], frame)} (guessed; `text` to change)")
    if not attributes:
        rest = [name for name in frame.columns if name != text]
        named = _named_like_labels(frame, rest)
        fits = (lambda _: True) if named else _looks_like_label
        label = _guess(frame, named or rest, fits, "a column of labels", "`attributes`", source)
        _check_header(frame, label, "`attributes`", source)
        attributes = [label]
        notes.append(
            f"reading labels from {show([label], frame)} (guessed; `attributes` to change)"
        )
    return text, attributes


def check_named(frame: pd.DataFrame, names: Sequence[str], source: str) -> None:
    """Refuse names that no column has."""
    for name in names:
        if name not in frame.columns:
            raise InputError(_no_column(frame, name, source))


def _check_header(frame: pd.DataFrame, name: str, option: str, source: str) -> None:
    """Refuse to guess where row 1 seems to be the header: the twin would carry it as its own."""
    verdicts = _header_verdicts(frame)
    like_cells = [other for other, verdict in verdicts.items() if verdict is False]
    if not like_cells and verdicts[name] is None:
        column = blocks(frame[name])
        like_cells = [name] * any(name in set(map(str, cells.tolist())) for cells in column)
    if like_cells:
        place = frame.columns.get_loc(like_cells[0]) + 1
        raise InputError(
            f"{source}: the name of column number {place} is like one of its values: is the header "
            f"row missing? Add one, or choose with {option}, which makes a column's name public"
        )


def _no_column(frame: pd.DataFrame, name: str, source: str) -> str:
    folded = {column.casefold(): column for column in frame.columns if len(column) <= 100}
    matches = [folded[match] for match in get_close_matches(name.casefold(), folded, n=2)]
    close = [match for match in matches if not is_partial(match, frame)]
    hint = f", did you mean {show(close, frame)}? It" if close else "; it"
    return f"{source}: no column {name!r}{hint} has {show_unchosen(list(frame.columns), frame)}"


def _guess(
    frame: pd.DataFrame,
    names: list[str],
    fits: Callable[[pd.Series], bool],
    what: str,
    option: str,
    source: str,
) -> str:
    found = [name for name in names if fits(frame[name])]
    if len(found) == 1 and is_partial(found[0], frame):
        raise InputError(
            f"{source}: {show(found, frame)} may be {what}, but not every row has this key; "
            f"choose it with {option}, which makes its name public"
        )
    if len(found) == 1:
        return found[0]
    if found:
        join = ", or join some: {title}: {body}" if option == "`text`" else ""
        raise InputError(
            f"{source}: {show(found, frame)} may each be {what}; choose with {option}{join}"
        )
    choice = show_unchosen(names, frame) if names else "no other column"
    raise InputError(f"{source}: nothing looks like {what}; choose with {option}. It has {choice}")


def _looks_like_text(column: pd.Series) -> bool:
    """Say whether most cells are strings, mostly distinct, of several words."""
    words, places = 0, []
    for start, cells in enumerate(blocks(column)):
        texts = {i: cell for i, cell in enumerate(cells.tolist()) if isinstance(cell, str)}
        words += sum(map(_words, texts.values()))
        places.append(np.fromiter(texts, np.int64, len(texts)) + start * AT_ONCE)
    rows = np.concatenate(places)
    return (
        len(rows) > len(column) / 2
        and words >= _GUESS_WORDS * len(rows)
        and Texts(column, rows).repeats() < len(rows) / 2
    )


def _words(text: str) -> int:
    """Return about how many words a text has; Chinese and its like have no spaces between them."""
    return len(text.split()) + (0 if text.isascii() else len(_WIDE.findall(text)) // 2)


def _named_like_labels(frame: pd.DataFrame, names: list[str]) -> list[str]:
    """Return the columns that are called as labels are; of several those with few values."""
    found = [name for name in names if name.strip().casefold() in _LABEL_NAMES]
    if len(found) == 1:  # whatever its cells are
        return found
    return [name for name in found if _looks_like_label(frame[name])]


def _looks_like_label(column: pd.Series) -> bool:
    """Say whether there are 2 to 50 plain values, no dates, in twice as many rows.

    However few rows have one of them: that a column is guessed must not hang on a single record.
    """
    few = column.iloc[:AT_ONCE]  # of most columns of texts these tell
    if column.dtype.kind in "Mm" or few.map(lambda cell: isinstance(cell, datetime.date)).any():
        return False
    try:
        if len(label_codes(few, "").values) > _GUESS_LABELS:
            return False
        found = label_codes(column, "")
    except InputError:
        return False
    counts = np.bincount(found.numbers[found.has_value], minlength=len(found.values))
    return bool(2 <= len(counts) <= min(_GUESS_LABELS, max(2, counts.sum() / 2)))


def has_text(column: pd.Series, place: str) -> np.ndarray:
    """Return (N,) whether a cell is a text that is not blank.

    Raises:
        InputError: no cell is a text.
    """
    found, any_text = np.zeros(len(column), bool), False
    for start, cells in enumerate(blocks(column)):
        some = cells.tolist()
        rows = slice(start * AT_ONCE, start * AT_ONCE + len(some))
        found[rows] = [isinstance(cell, str) and _is_filled(cell) for cell in some]
        any_text = any_text or any(isinstance(cell, str) for cell in some)
    if not any_text:
        raise InputError(
            f"{place} holds no text (it is {column.dtype}); choose another with `text`"
        )
    return found


def _is_filled(text: str) -> bool:
    """Return whether something is left of a text without white space and control characters."""
    rest = text.lstrip(_BLANK)
    return rest != "" and (not CONTROL.match(rest) or not CONTROL.sub("", rest).isspace())


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
        text: a column, or a template of columns between braces; None: to be guessed later.
        keep: joined columns that are needed for themselves.
        source: what to call the table in messages.
        folder: private to its owner: texts of a large table are kept on the disk there.

    Raises:
        InputError: the template names no column of the table, or one that is not of plain values.
    """
    if text is None or text in frame.columns or "{" not in text:
        return frame, text, []
    parts = _template_parts(text)
    used = list(dict.fromkeys(name for _, name in parts if name is not None))
    check_named(frame, used, source)
    name = JOINED if JOINED in used or JOINED not in frame.columns else f"joined_{JOINED}"
    column = _joined(frame[used], parts, source, folder)
    rest = frame.drop(columns=[n for n in used if n not in keep or n == name])
    notes = [f"joining {show(used, frame)} into one, which the twin calls {name!r}"]
    return rest.assign(**{name: column}), name, notes


def _template_parts(template: str) -> list[tuple[str, str | None]]:
    for escape, character in _ESCAPES.items():
        template = template.replace(escape, character)
    try:
        found = list(Formatter().parse(template))
    except ValueError:
        found = []
    if not any(name for _, name, _, _ in found) or any(n == "" or s or c for _, n, s, c in found):
        raise InputError(
            "`text`: a template has columns between braces and nothing else there, as in "
            "{title}: {body}; or name one column"
        )
    return [(literal, name) for literal, name, _, _ in found]


def _joined(
    frame: pd.DataFrame, parts: list[tuple[str, str | None]], source: str, folder: Path | None
) -> pd.Series:
    """Return a row's text for each row; an empty one where all its parts are blank."""

    def pieces() -> Iterator[pd.DataFrame]:
        for start in range(0, len(frame), ROWS_AT_ONCE):
            some = frame.iloc[start : start + ROWS_AT_ONCE]
            cells = {name: _written_cells(some[name], source, frame) for name in some.columns}
            rows = [
                _filled(parts, dict(zip(cells, row, strict=True)))
                for row in zip(*cells.values(), strict=True)
            ]
            yield pd.DataFrame({JOINED: pd.Series(rows, dtype="str")})
            let_go()

    def whole() -> pd.DataFrame:
        return pd.concat(pieces(), ignore_index=True)

    reading = Reading(whole, pieces, lambda _, name: whole()[name])
    found = whole() if folder is None else mapped(reading, folder)
    return found[JOINED].set_axis(frame.index)


def _filled(parts: list[tuple[str, str | None]], cells: dict[str, str]) -> str:
    if not any(map(str.strip, cells.values())):
        return ""
    return "".join(f"{literal}{cells[name] if name else ''}" for literal, name in parts).strip()


def _written_cells(column: pd.Series, source: str, frame: pd.DataFrame) -> list[str]:
    gaps = column.isna().tolist()
    cells = [None if gap else cell for cell, gap in zip(column.tolist(), gaps, strict=True)]
    if not all(cell is None or isinstance(cell, _WRITABLE) for cell in cells):
        raise InputError(
            f"{source}: {show([str(column.name)], frame)} holds lists or objects, which cannot be "
            "joined into a text; leave it out of `text`"
        )
    return ["" if cell is None else shown(cell) for cell in cells]


@dataclass(frozen=True)
class ChosenColumns:
    """The text column and the label columns of a private table.

    Args:
        frame: the table.
        text: its text column.
        attributes: its label columns.
        source: what to call the table in messages.
    """

    frame: pd.DataFrame
    text: str
    attributes: list[str]
    source: str

    @property
    def names(self) -> list[str]:
        """Of all of them, the text's first."""
        return [self.text, *self.attributes]

    @cached_property
    def places(self) -> dict[str, str]:
        """What messages call each column."""
        return {name: f"{self.source}: {show([name], self.frame)}" for name in self.names}

    def label_codes(self, as_written: bool) -> dict[str, LabelCodes]:
        """Return the labels of each attribute, row by row; see `columns.label_codes`."""
        return {
            name: label_codes(self.frame[name], self.places[name], as_written)
            for name in self.attributes
        }

    def complete_rows(
        self, codes: Mapping[str, LabelCodes], most: int, notes: list[str]
    ) -> np.ndarray:
        """Return the positions of the rows that have a text and all labels.

        Raises:
            InputError: no row has, or more than `most` rows have not.
        """
        filled = {self.text: has_text(self.frame[self.text], self.places[self.text])}
        filled |= {name: found.has_value for name, found in codes.items()}
        rows = np.flatnonzero(np.logical_and.reduce(list(filled.values())))
        total, empty = len(self.frame), len(self.frame) - len(rows)
        if empty > most:
            raise InputError(self._first_gap(filled))
        if empty:
            notes.append(f"leaving out {empty} of {total} rows: text or label missing or blank")
        if not len(rows):
            raise InputError(f"{self.source}: no row has both a text and its labels; fill them in")
        return rows

    def _first_gap(self, filled: Mapping[str, np.ndarray]) -> str:
        name = next(name for name, has_cell in filled.items() if not has_cell.all())
        gaps = np.flatnonzero(~filled[name])
        return (
            f"{self.places[name]} is missing, blank or not text in {len(gaps)} of "
            f"{len(self.frame)} rows, first in {row_name(self.frame, gaps[0])}; fill them in, or "
            "leave these rows out with `drop_empty`"
        )

    def owners(self, owner: str, rows: np.ndarray) -> np.ndarray:
        """Return (n,) the number of each row's owner.

        Args:
            owner: the column that says whose a record is.
            rows: (n,) positions of the rows.

        Raises:
            InputError: there is no such column, it is one of these, or a cell of it is empty.
        """
        if owner not in self.frame.columns:
            raise InputError(f"{self.source}: has no column {owner!r}; check `owner`")
        if owner in self.names:
            raise InputError(
                f"{self.source}: `owner={owner!r}` is the text or a label already; name another"
            )
        whole = len(rows) == len(self.frame)
        cells = self.frame[owner] if whole else self.frame[owner].iloc[rows]
        blank = [isinstance(cell, str) and not cell.strip() for cell in cells]
        missing = rows[cells.isna().to_numpy(bool) | np.array(blank, bool)]
        if len(missing):
            raise InputError(
                f"{self.source}: {show([owner], self.frame)} is missing in {len(missing)} rows, "
                f"first in {row_name(self.frame, missing[0])}; every record needs an owner"
            )
        return pd.factorize(cells)[0]

    def label_column(
        self, name: str, codes: LabelCodes, rows: np.ndarray, owners: np.ndarray | None
    ) -> LabelColumn:
        """Return an attribute as the rules for labels read it; see `LabelColumn`."""
        frame = self.frame
        is_typed = states_types(frame) or is_named_by_rows(frame)
        source = is_typed, is_of_text(frame), row_numbers(frame)
        return LabelColumn(
            name, show([name], frame), self.places[name], codes, rows, owners, *source
        )

    def left_out(self) -> list[str]:
        """Say which columns the twin will not have, and which names not every row has."""
        frame, notes = self.frame, []
        if dropped := [str(name) for name in frame.columns if name not in self.names]:
            them = "them" if len(dropped) > 1 else "it"
            notes.append(
                f"leaving out {show_unchosen(dropped, frame)}: the twin will not have {them}"
            )
        if partial := [name for name in self.names if is_partial(name, frame)]:
            shown = show(partial, frame)
            notes.append(f"not every row has {shown}: to name it makes its name public")
        return notes


LOST = "\ufffd"  # the character that stands for one
_LOST = f"{LOST} for characters that were lost"
_HARMLESS = bytes(byte for byte in range(256) if not CONTROL.search(chr(byte)))


def mended(texts: Texts, notes: list[str]) -> Texts:
    """Return texts without control characters."""
    if bad := len(texts.rows_where(_has_control)):
        notes.append(
            f"removed control characters from {bad} text{'s' * (bad > 1)} (`strict` refuses them)"
        )
        return texts.mended(lambda text: CONTROL.sub("", text))
    return texts


def check_characters(
    chosen: ChosenColumns,
    texts: Texts,
    labels: Mapping[str, LabelCodes],
    strict: bool,
    notes: list[str],
) -> None:
    """Refuse control characters, and lost ones if `strict`; else note them.

    Raises:
        InputError: a text or a label has one.
    """
    _check_texts(chosen, texts, labels, _has_control, "a control character")
    if strict:
        _check_texts(chosen, texts, labels, _has_lost, _LOST)
    elif lost := len(texts.rows_where(_has_lost)):
        hold = f"{lost} texts hold" if lost > 1 else "1 text holds"
        notes.append(f"{hold} {_LOST}, and the twin may too (`strict` refuses them)")


def check_no_token(
    chosen: ChosenColumns,
    texts: Texts,
    labels: Mapping[str, LabelCodes],
    tokens: Sequence[str],
) -> None:
    """Refuse what a model takes for the end of a text.

    Raises:
        InputError: a text or a label holds one of the tokens.
    """
    shown = [token for token in tokens if token.strip()]

    def is_bad(cell: str) -> bool:
        return any(token in cell for token in shown)

    if shown:
        _check_texts(chosen, texts, labels, is_bad, "a special token of the base model")


def _check_texts(
    chosen: ChosenColumns,
    texts: Texts,
    labels: Mapping[str, LabelCodes],
    is_bad: Callable[[str], bool],
    what: str,
) -> None:
    """Refuse texts and labels with something that is said to be `what`."""
    for name, place in chosen.places.items():
        found = labels.get(name)
        bad = texts.rows_where(is_bad) if found is None else _rows_of(found, texts.rows, is_bad)
        if len(bad):
            raise InputError(
                f"{place}, {row_name(chosen.frame, bad[0])}: contains {what}, as do "
                f"{len(bad) - 1} more rows; remove it from these cells"
            )


def _rows_of(found: LabelCodes, rows: np.ndarray, is_bad: Callable[[str], bool]) -> np.ndarray:
    """Return those of the table's rows that have a bad label."""
    bad = [n for n, value in enumerate(found.values) if isinstance(value, str) and is_bad(value)]
    return rows[np.isin(found.numbers, bad)]


def _has_lost(text: str) -> bool:
    return LOST in text


def _has_control(text: str) -> bool:
    """Return whether a text has a character of `CONTROL`, at the speed of memory."""
    try:
        return bool(text.encode().translate(None, _HARMLESS))
    except UnicodeEncodeError:  # half of a surrogate pair
        return True
