"""Which columns of a private table hold texts and labels, and the rows that have all of them.

Several may be joined into one text, as `{title}: {body}` says, where no column has that very name.
Messages name columns and row numbers and never hold a cell. Knows neither what is declared nor
what is released.
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
from twinset.table.arrow_columns import Piece, TableReader, Texts, blocks, collect_table, shown
from twinset.table.labels import LabelCodes, label_codes
from twinset.table.read import is_named_by_rows, row_name
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
LOST = "\ufffd"  # the character that stands for one
_LOST = f"{LOST} for characters that were lost"
_HARMLESS = bytes(byte for byte in range(256) if not CONTROL.search(chr(byte)))


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
    has_header = verdicts == {True}
    quoted = [
        repr(name)
        if has_header and len(name) <= 40 and name.isprintable()
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
        cells = frame[name].iloc[:_FIRST].tolist()
        is_number = pd.api.types.is_numeric_dtype(frame[name].dtype) and _is_number(name)
        lengths = [_count_words(cell) for cell in cells if isinstance(cell, str)]
        own = _count_words(name)
        if is_number or name in map(str, cells):
            verdicts[name] = False
        elif sum(lengths) < _GUESS_WORDS * max(1, len(lengths)):
            verdicts[name] = True if name.strip().casefold() in _LABEL_NAMES else None
        elif own >= _GUESS_WORDS or _SENTENCE.search(name):
            verdicts[name] = False
        else:
            is_short = sum(n <= own for n in lengths) <= len(lengths) / 100
            verdicts[name] = True if is_short else None
    return verdicts


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _count_words(text: str) -> int:
    """Return about how many words a text has. Chinese and its like have no spaces between them."""
    return len(text.split()) + (0 if text.isascii() else len(_WIDE.findall(text)) // 2)


def is_partial(name: str, frame: pd.DataFrame) -> bool:
    """Return whether a name is a JSONL key that some rows lack: it is data, as their cells are."""
    return is_named_by_rows(frame) and bool(frame[name].isna().any())


def show_unchosen(names: Sequence[str], frame: pd.DataFrame) -> str:
    """Quote names that the owner did not give, but only count keys that some rows lack."""
    partial = [name for name in names if is_partial(name, frame)]
    shared = [name for name in names if name not in partial]
    keys = f"{len(partial)} {'keys' if len(partial) > 1 else 'key'} that not every row has"
    return " and ".join([show(shared, frame)] * bool(shared) + [keys] * bool(partial))


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
    words, places, start = 0, [], 0
    for cells in blocks(column):
        texts = {i: cell for i, cell in enumerate(cells.tolist(), start) if isinstance(cell, str)}
        words += sum(map(_count_words, texts.values()))
        places.append(np.fromiter(texts, np.int64, len(texts)))
        start += len(cells)
    rows = np.concatenate(places)
    return (
        len(rows) > len(column) / 2
        and words >= _GUESS_WORDS * len(rows)
        and Texts(column, rows).repeats() < len(rows) / 2
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
    found, any_text = [np.zeros(0, bool)], False
    for cells in blocks(column):
        filled = []
        for cell in cells.tolist():
            is_filled, any_text = isinstance(cell, str), any_text or isinstance(cell, str)
            if is_filled:  # what is left without white space and control characters
                rest = cell.lstrip(_BLANK)
                is_filled = rest != "" and (
                    not CONTROL.match(rest) or not CONTROL.sub("", rest).isspace()
                )
            filled.append(is_filled)
        found.append(np.array(filled, bool))
    if not any_text:
        raise InputError(
            f"{place} holds no text (it is {column.dtype}); choose another with `text`"
        )
    return np.concatenate(found)


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
            cells = {name: _written_cells(some[name], source, frame) for name in used}
            rows = []
            for row in zip(*cells.values(), strict=True):
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

    def complete_rows(
        self, codes: Mapping[str, LabelCodes], most: int, notes: list[str]
    ) -> np.ndarray:
        """Return the positions of the rows that have a text and all labels.

        Raises:
            InputError: no row has, or more than `most` rows have not.
        """
        filled = {self.text: has_text(self.frame[self.text], self.places[self.text])}
        filled |= {name: found.numbers >= 0 for name, found in codes.items()}
        rows = np.flatnonzero(np.logical_and.reduce(list(filled.values())))
        total, empty = len(self.frame), len(self.frame) - len(rows)
        if empty > most:
            name = next(name for name, has_cell in filled.items() if not has_cell.all())
            gaps = np.flatnonzero(~filled[name])
            raise InputError(
                f"{self.places[name]} is missing, blank or not text in {len(gaps)} of {total} "
                f"rows, first in {row_name(self.frame, gaps[0])}; fill them in, or leave these "
                "rows out with `drop_empty`"
            )
        if empty:
            notes.append(f"leaving out {empty} of {total} rows: text or label missing or blank")
        if not len(rows):
            raise InputError(f"{self.source}: no row has both a text and its labels; fill them in")
        return rows

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

    def left_out(self) -> list[str]:
        """Say which columns the twin will not have, and which names not every row has."""
        frame, notes = self.frame, []
        if dropped := [str(name) for name in frame.columns if name not in self.names]:
            them = "them" if len(dropped) > 1 else "it"
            notes.append(
                f"leaving out {show_unchosen(dropped, frame)}: the twin will not have {them}"
            )
        if partial := [name for name in self.names if is_partial(name, frame)]:
            notes.append(
                f"not every row has {show(partial, frame)}: to name it makes its name public"
            )
        return notes

    def check_characters(
        self, texts: Texts, labels: Mapping[str, LabelCodes], strict: bool, notes: list[str]
    ) -> Texts:
        """Return texts without control characters. Refuse them in labels, or all if `strict`.

        Characters that were lost before are noted, and refused if `strict`.

        Raises:
            InputError: the message names column and row, and holds no cell.
        """
        if not strict and (bad := len(texts.rows_where(has_control))):
            notes.append(
                f"removed control characters from {bad} text{'s' * (bad > 1)} "
                "(`strict` refuses them)"
            )
            texts = texts.mended(lambda text: CONTROL.sub("", text))
        self._refuse_where(texts, labels, has_control, "a control character")
        if strict:
            self._refuse_where(texts, labels, lambda text: LOST in text, _LOST)
        elif lost := len(texts.rows_where(lambda text: LOST in text)):
            hold = f"{lost} texts hold" if lost > 1 else "1 text holds"
            notes.append(f"{hold} {_LOST}, and the twin may too (`strict` refuses them)")
        return texts

    def check_no_token(
        self, texts: Texts, labels: Mapping[str, LabelCodes], tokens: Sequence[str]
    ) -> None:
        """Refuse what a model takes for the end of a text.

        Raises:
            InputError: a text or a label holds one of the tokens.
        """
        if filled := [token for token in tokens if token.strip()]:
            self._refuse_where(
                texts,
                labels,
                lambda cell: any(token in cell for token in filled),
                "a special token of the base model",
            )

    def _refuse_where(
        self,
        texts: Texts,
        labels: Mapping[str, LabelCodes],
        is_bad: Callable[[str], bool],
        what: str,
    ) -> None:
        """Refuse texts and labels with something that is said to be `what`."""
        for name, place in self.places.items():
            found = labels.get(name)
            if found is None:
                bad = texts.rows_where(is_bad)
            else:
                pairs = enumerate(found.values)
                numbers = [n for n, value in pairs if isinstance(value, str) and is_bad(value)]
                bad = texts.rows[np.isin(found.numbers, numbers)].tolist()
            if bad:
                raise InputError(
                    f"{place}, {row_name(self.frame, bad[0])}: contains {what}, as do "
                    f"{len(bad) - 1} more rows; remove it from these cells"
                )


def has_control(text: str) -> bool:
    """Return whether a text has a character of `CONTROL`, at the speed of memory."""
    try:
        return bool(text.encode().translate(None, _HARMLESS))
    except UnicodeEncodeError:  # half of a surrogate pair
        return True
