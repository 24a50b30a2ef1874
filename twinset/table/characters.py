"""Characters that no record may have: control characters, lost ones, a model's special tokens.

Messages name column and row and hold no cell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from twinset.errors import InputError
from twinset.table.chosen_columns import ChosenColumns
from twinset.table.formats import row_name
from twinset.table.label_codes import LabelCodes
from twinset.table.lazy_columns import Texts
from twinset.table.schema import CONTROL

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
    _check(chosen, texts, labels, _has_control, "a control character")
    if strict:
        _check(chosen, texts, labels, _has_lost, _LOST)
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
        _check(chosen, texts, labels, is_bad, "a special token of the base model")


def _check(
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
