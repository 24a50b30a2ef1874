"""A private table as records: texts, label combinations and the schema.

Every problem of a table is found here, before any model is loaded. The message is one line with
file, column and row but no cell. A template such as `{title}: {body}` joins columns, unless a
column has that very name. Knows nothing of tokens, prompts or privacy budgets.

No part of the schema may depend on a single record. Dtypes are stated by the table or follow from
the public values alone.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from twinset.errors import InputError
from twinset.privacy.mechanism.units import Units
from twinset.table.choose import Header, check_named, check_table, choose_columns, is_partial
from twinset.table.columns import (
    WRITABLE,
    LabelCodes,
    Picked,
    Piece,
    Texts,
    blocks,
    codes_of,
    collect_table,
    combined,
    facts_of,
    has_text,
    label_codes,
    plain_cell,
    some_at_once,
    widened,
)
from twinset.table.kinds import ColumnRules
from twinset.table.labels import LabelColumn, LabelRules, public_labels, settle_labels
from twinset.table.schema import CONTROL, UNSEEN, Attribute, Combination, LabelValue, Schema, plain
from twinset.table.survey import text_dtype
from twinset.table.templates import PLACEHOLDER, fill, placeholders

FEW = 20  # one row in this many may lack something, and is left out
LOST = "\ufffd"  # replaces a lost character
MOST_OTHERS = 200  # columns: of more their pairs take too long
JOINED = "text"  # the twin's name for joined columns
_LOST = f"{LOST} for characters that were lost"


@dataclass(frozen=True)
class Records:
    """Texts and their labels, row by row."""

    texts: Sequence[str]
    labels: Sequence[Combination]  # each in the order of `schema.attributes`
    schema: Schema
    owners: np.ndarray | None = None  # (N,) number of each row's owner. None: each row is its own
    whose: Mapping[str, str] = field(default_factory=dict)  # who says what values (else the table)
    # Label columns whose public values are not settled yet: `labels` has all values.
    undeclared: Mapping[str, LabelColumn] = field(default_factory=dict)
    rules: LabelRules = LabelRules()
    unit_of: np.ndarray | None = None  # (N,) of each row, once some units may have none
    unit_count: int = 0  # then: how many there are, with or without a row
    others: pd.DataFrame | None = None  # the other columns that may be kept, of the whole table

    def __len__(self) -> int:
        return len(self.texts)

    def units(self, config: Any) -> Units:
        """Return which records are protected together under a run's `RunConfig`."""
        most = config.privacy.max_records_per_owner
        if self.unit_of is not None:
            return Units(len(self), self.unit_of, most, self.unit_count)
        return Units(len(self), self.owners, most)

    def values_of(self, name: str, rows: Sequence[int] | None = None) -> list[LabelValue]:
        """Return one label of each record, or of the given ones."""
        place = [attribute.name for attribute in self.schema.attributes].index(name)
        labels = self.labels
        assert isinstance(labels, Picked)
        own = [combination[place] for combination in labels.items]
        return [own[number] for number in labels.places[slice(None) if rows is None else rows]]

    def with_values(
        self, found: Mapping[str, Mapping[LabelValue, int]], whose: str, notes: list[str]
    ) -> Records:
        """Return the records that have public labels, given the found values and who named them.

        `found` holds the values of each undeclared column, most frequent first. A record stays or
        goes by its own labels only. Its unit counts in either case.
        """
        labels, texts = self.labels, self.texts
        assert isinstance(texts, Texts) and isinstance(labels, Picked)
        columns = []
        for place, attribute in enumerate(self.schema.attributes):
            column = self.undeclared.get(attribute.name)
            own = [combination[place] for combination in labels.items]
            codes = codes_of(own, attribute.values, labels.places)
            if column is not None:
                own_codes = codes.of_rows(np.arange(len(texts.places)))  # of these rows alone
                column = replace(column, codes=own_codes, rows=texts.places)
                here = found[attribute.name]
                column = public_labels(column, self.rules, notes, here, whose)
                codes = column.codes
                attribute = Attribute(attribute.name, column.dtype, tuple(codes.values))
            columns.append((attribute, codes, column.whose if column else None))
        kept = np.logical_and.reduce([codes.numbers >= 0 for _, codes, _ in columns])  # (N,)
        unit_of, count = self.unit_of, self.unit_count
        if unit_of is None and not kept.all():
            unit_of = np.arange(len(self)) if self.owners is None else self.owners
            count = int(unit_of.max()) + 1
        return replace(
            self,
            texts=replace(texts, places=texts.places[kept]),
            labels=combined([LabelCodes(c.numbers[kept], c.values) for _, c, _ in columns]),
            schema=replace(self.schema, attributes=tuple(a for a, *_ in columns)),
            owners=None if self.owners is None else self.owners[kept],
            whose={**self.whose, **{a.name: says for a, _, says in columns if says}},
            undeclared={},
            unit_of=None if unit_of is None else unit_of[kept],
            unit_count=count,
        )

    def other_columns(self) -> pd.DataFrame | None:
        """Return the cells of the other columns, one row for each record. None: there are none."""
        if self.others is None:
            return None
        assert isinstance(self.texts, Texts)
        return self.others.iloc[self.texts.places]

    def rows_of(self, units: np.ndarray) -> list[int]:
        """Return the table's rows, from 0, of some units, given their numbers."""
        assert isinstance(self.texts, Texts)
        chosen = units if self.owners is None else np.flatnonzero(np.isin(self.owners, units))
        rows: list[int] = self.texts.places[chosen].tolist()
        return rows

    def split(self, rows: Sequence[int]) -> tuple[Records, Records | None]:
        """Split off some rows of the table. Return the other records, and these, or None if empty.

        Both parts keep the schema of all records.
        """
        if not rows:
            return self, None
        texts, labels = self.texts, self.labels
        assert isinstance(texts, Texts) and isinstance(labels, Picked)
        is_held = np.isin(texts.places, rows)
        if is_held.all():
            raise InputError("`hold_out` leaves no row to train on. Make it smaller, or 0.")
        parts = []
        for part in (~is_held, is_held):
            some = replace(texts, places=texts.places[part])
            theirs = replace(labels, places=labels.places[part])
            # an owner's number in all records, then one from 0
            owners = None if self.owners is None else pd.factorize(self.owners[part])[0]
            parts.append(replace(self, texts=some, labels=theirs, owners=owners))
        return parts[0], parts[1]

    def fingerprint(self) -> str:
        """Return a hash of all cells, which is as private as the cells."""
        found = hashlib.sha256(json.dumps([len(self), asdict(self.schema)]).encode())
        for some in some_at_once(self.texts):
            # with the lengths, no two tables have the same letters one after the other
            found.update(json.dumps(list(map(len, some))).encode())
            found.update("".join(some).encode(errors="surrogatepass"))
        for labels in some_at_once(self.labels):
            found.update(json.dumps(labels).encode())
        others = self.other_columns()
        for name in [] if others is None else others:
            cells = list(map(str, others[name].tolist()))  # type: ignore[index]
            found.update(json.dumps([name, cells]).encode())
        if self.owners is not None:
            found.update(self.owners.astype("<i8").tobytes())
        return found.hexdigest()


def with_joined_text(
    frame: pd.DataFrame,
    text: str | None,
    keep: Sequence[str] = (),
    source: str = "table",
    folder: Path | None = None,
) -> tuple[pd.DataFrame, str | None, list[str]]:
    """Return a table that has the requested text column, that column's name, and notes.

    `text` is a column, or a template with columns in braces, or None to guess later. Joined columns
    are dropped unless they are in `keep`. `folder` is as in `records_from_frame`.
    """
    if text is None or text in frame.columns or "{" not in text:
        return frame, text, []
    # a shell leaves line breaks and tabs as they are typed
    text = text.replace("\\n", "\n").replace("\\t", "\t")
    used = placeholders(text)
    if not used or set(PLACEHOLDER.sub("", text)) & set("{}"):
        raise InputError("`text`: put column names between braces, as in {title}: {body}")
    check_named(frame, used, source)

    def pieces() -> Iterator[Piece]:
        for some in blocks(frame[used]):
            written = {}
            for name in used:
                cells = widened(some[name])
                filled = cells.astype(object).where(cells.notna(), None).tolist()
                if not all(cell is None or isinstance(cell, WRITABLE) for cell in filled):
                    shown = f"{source}: {Header(frame).show([name])}"
                    raise InputError(f"{shown} holds lists or objects. Leave it out of `text`.")
                written[name] = ["" if cell is None else plain(plain_cell(cell)) for cell in filled]
            rows = pd.DataFrame(written, dtype=object).to_dict("records")
            # an empty text if all its parts are blank: its literals say nothing
            joined = [
                fill(text, r).strip() if any(map(str.strip, r.values())) else "" for r in rows
            ]
            yield len(joined), {JOINED: joined}

    name = JOINED if JOINED in used or JOINED not in frame.columns else f"joined_{JOINED}"
    column = collect_table(pieces(), folder=folder)[JOINED].set_axis(frame.index)
    rest = frame.drop(columns=[n for n in used if n not in keep or n == name])
    notes = [f"joining {Header(frame).show(used)} into one, which the twin calls {name!r}"]
    return rest.assign(**{name: column}), name, notes


# -- from a table to records -----------------------------------------------------------------------


def records_from_frame(
    frame: pd.DataFrame,
    text: str | None,
    attributes: Sequence[str],
    *,
    source: str = "table",
    drop_empty: bool = False,
    owner: str | None = None,
    rules: LabelRules | None = None,
    strict: bool = False,
    folder: Path | None = None,
    keep: ColumnRules | None = None,
) -> tuple[Records, list[str]]:
    """Take texts and labels from a table, or refuse it. Return notes for its owner, too.

    The notes (guesses, columns and rows left out, duplicates) include counts of private rows, so
    they must not be shared.

    Args:
        frame: the private table.
        text: the text column, or a template that joins several. None guesses.
        attributes: the label columns. An empty list guesses one.
        source: the table's name in messages.
        drop_empty: leave out every row whose text or label is missing or blank, or whose text is
            not a string. By default one row in `FEW` may be left out.
        owner: the column that says whom a record belongs to. The twin does not have it.
        rules: which label values are public. None: all, if nothing about the rows is published.
            `Records.with_values` settles undeclared columns.
        strict: refuse such rows, and control characters in texts, which are otherwise removed.
        folder: private to its owner. Joined texts of a large table are kept there.
        keep: which of the other columns may be kept. None: none of them.
    """
    check_table(frame, source)
    facts, notes = facts_of(frame), list(facts_of(frame).notes)
    frame, text, joined = with_joined_text(frame, text, attributes, source, folder)
    notes += joined
    attributes = list(attributes) or (rules.names if rules else [])
    text, attributes = choose_columns(frame, text, attributes, source, notes)
    header, names = Header(frame), [text, *attributes]
    places = {name: f"{source}: {header.show([name])}" for name in names}  # in messages
    codes = {
        name: label_codes(
            # Declared values can be compared one by one where no source states a type. Where one
            # does, single records would decide the type of all labels.
            frame[name],
            places[name],
            rules is not None,
            rules is not None and name in rules.names and not facts_of(frame[name]).has_types,
        )
        for name in attributes
    }

    # the rows that have a text and all labels
    filled = {text: has_text(frame[text], places[text])}  # (N,) each
    filled |= {name: found.numbers >= 0 for name, found in codes.items()}
    rows = np.flatnonzero(np.logical_and.reduce(list(filled.values())))
    total, empty = len(frame), len(frame) - len(rows)
    if empty > (total if drop_empty else 0 if strict else total // FEW):
        name = next(name for name, has_cell in filled.items() if not has_cell.all())
        gaps = np.flatnonzero(~filled[name])
        raise InputError(
            f"{places[name]} is missing, blank or not text in {len(gaps)} of {total} rows, first "
            f"in {facts.rows.name(gaps[0])}. Fill them in, or leave these rows out with "
            "`drop_empty`."
        )
    if empty:
        notes.append(f"leaving out {empty} of {total} rows: no text or no label")
    if not len(rows):
        raise InputError(f"{source}: no row has both a text and its labels. Fill them in.")

    owners = None if owner is None else number_owners(header, owner, names, rows, source, notes)
    columns = []
    for name in attributes:
        of_rows, cells = codes[name].of_rows(rows), frame[name].iloc[:0]
        columns.append(LabelColumn(name, header.show([name]), places[name], of_rows, rows, cells))
    for column in columns:
        numbers = [n for n, v in enumerate(column.codes.values) if isinstance(v, str) and LOST in v]
        damaged = rows[np.isin(column.codes.numbers, numbers)]
        if len(damaged):
            few = f"{len(damaged)} rows, first in" if len(damaged) > 1 else "one row,"
            hold = f"holds {_LOST} in {few} {facts.rows.name(damaged[0])}"
            if strict:
                raise InputError(f"{column.place}: {hold}. Save the file as UTF-8.")
            notes.append(f"{column.shown} {hold}. Labels that differed only there are now one.")
    columns, kept = settle_labels(columns, rules, source, notes)
    # N is of owners that have a row left, wherever others stand
    rows, owners = rows[kept], None if owners is None else pd.factorize(owners[kept])[0]

    # characters that no model may see
    texts = Texts(frame[text].array, rows)
    if not strict and (bad := sum(CONTROL.search(cell) is not None for cell in texts)):
        notes.append(
            f"removed control characters from {bad} text{'s' * (bad > 1)} (`strict` refuses them)"
        )
        texts = Texts(texts.items, rows, lambda cell: CONTROL.sub("", cell))
    if not strict and (lost := sum(LOST in cell for cell in texts)):
        hold = f"{lost} texts hold" if lost > 1 else "1 text holds"
        notes.append(f"{hold} {_LOST}, and so may the twin (`strict` refuses them)")

    others = choose_others(header, [*names, owner], keep or ColumnRules(()), source)
    names += others
    if dropped := [str(name) for name in frame.columns if name not in names]:
        them = "them" if len(dropped) > 1 else "it"
        note = f"leaving out {header.show_unchosen(dropped)}: the twin will not have {them}"
        asks = keep is not None and keep.keep is None and set(dropped) - {owner}
        notes.append(f"{note}. To keep some, name them with `columns`." if asks else note)
    if partial := [name for name in names if is_partial(name, frame)]:
        notes.append(
            f"not every row has {header.show(partial)}. You named it, so its name is public."
        )
    if repeats := texts.repeats():
        remedy = "" if owner is not None else " `group_size=M` states it for M rows together."
        notes.append(
            f"{repeats} rows repeat the text of an earlier row. The guarantee is for one "
            f"{'row' if owner is None else 'owner'}, and weaker for what several say.{remedy}"
        )

    if others:
        shown = header.show(others, are_public=True)
        notes.append(f"reading {shown} too. Noisy counts will tell what they hold.")
    if not facts.is_named_by_rows:  # in JSONL single rows decide the order of columns
        names = [str(name) for name in frame.columns if name in names]
    released = tuple(Attribute(c.name, c.dtype, tuple(c.codes.values)) for c in columns)
    schema = Schema(text, text_dtype(frame[text]), released, tuple(names))
    # who declared each column's values, for the ledger
    whose = {column.name: column.whose for column in columns if column.whose is not None}
    undeclared = {c.name: c for c in columns if rules is not None and c.whose is None}
    labels = combined([column.codes for column in columns])
    kept_columns = frame[others] if others else None
    records = Records(
        texts, labels, schema, owners, whose, undeclared, rules or LabelRules(), others=kept_columns
    )
    _refuse_where(records, frame, source, CONTROL.search, "a control character")
    if strict:
        _refuse_where(records, frame, source, lambda cell: LOST in cell, _LOST)
    return records, notes


def choose_others(
    header: Header, taken: Sequence[str | None], keep: ColumnRules, source: str
) -> list[str]:
    """Return the names of the other columns that may be kept.

    In JSONL single rows decide which columns there are, so their owner must name them. Whether a
    header is missing is not asked here: cells would decide it. `choose_columns` asks it where it
    guesses.
    """
    frame = header.frame
    is_named_by_rows = facts_of(frame).is_named_by_rows
    is_open = keep.keep is None and not is_named_by_rows
    for name in keep.names:
        check_named(frame, [name], source)
        if name in taken:
            raise InputError(
                f"{source}: {name!r} is the text, a label or the owner. Leave it out of `columns`, "
                "`kinds`, `ranges` and `values`."
            )
    if is_open and frame.shape[1] > MOST_OTHERS:
        raise InputError(
            f"{source}: has {frame.shape[1]} columns, and {MOST_OTHERS} can be kept at most. Name "
            "some with `columns`."
        )
    # in JSONL single rows decide the order, too
    ordered = keep.names if is_named_by_rows else list(frame.columns)
    return [n for n in ordered if n not in taken and (is_open or n in keep.names)]


def number_owners(
    header: Header,
    owner: str,
    taken: Sequence[str],
    rows: np.ndarray,
    source: str,
    notes: list[str],
) -> np.ndarray:
    """Return (n,) the number of each row's owner."""
    frame = header.frame
    if owner not in frame.columns or owner in taken:
        raise InputError(f"{source}: {owner!r} is not one of the other columns. Check `owner`.")
    shown = f"{source}: {header.show([owner])}"
    try:
        numbers, cells = pd.factorize(frame[owner].iloc[rows])  # -1: a gap
    except (TypeError, NotImplementedError):
        raise InputError(f"{shown} holds lists or objects. Write owners as text.") from None
    spelt = [_one_spelling(plain(plain_cell(cell))) for cell in cells]
    owners, people = pd.factorize(np.array([*spelt, ""], object)[numbers])
    missing = rows[(people == "")[owners]]
    if len(missing):
        raise InputError(
            f"{shown} is missing in {len(missing)} rows, first in "
            f"{facts_of(frame).rows.name(missing[0])}. Give every record an owner."
        )
    if (merged := len(cells) - len(people)) > 0:
        them = "owners are" if merged > 1 else "owner is"
        notes.append(f"{merged} {them} merged with others that differ only by case or blanks")
    found: np.ndarray = owners
    return found


def _one_spelling(owner: str) -> str:
    r"""Return an owner's name without invisible differences, so that a person stays one owner.

    >>> {_one_spelling(name) for name in ("p1", "P1 ", "\u200bp1\xa0", "p1\ufe0f", "p\x001")}
    {'p1'}
    """
    shown = unicodedata.normalize("NFKC", UNSEEN.sub("", owner))
    return " ".join(shown.split()).casefold()


def without_reserved(
    records: Records,
    frame: pd.DataFrame,
    reserved: Sequence[str],
    source: str = "table",
    strict: bool = False,
) -> tuple[Records, list[str]]:
    """Return records without a tokenizer's special tokens in texts, and notes for the owner.

    A model takes such a token for the end of a text. Each text is cleaned on its own. The tokens
    are chosen by the author of the base model, who must not learn from a refusal that a text has
    one. Labels are public, so they are refused.
    """
    tokens = sorted((token for token in reserved if token.strip()), key=len, reverse=True)
    if not tokens:
        return records, []
    token = re.compile("|".join(map(re.escape, tokens)))
    # what no token holds: the parts that it leaves make no other token
    gap = next(each for each in (" ", *map(chr, range(33, 0x3000))) if each not in "".join(tokens))
    what = "a special token of the base model"
    _refuse_where(records, frame, source, token.search, what, texts_too=strict)
    texts = records.texts
    assert isinstance(texts, Texts)
    before, bad = texts.change, sum(token.search(cell) is not None for cell in texts)
    if not bad:
        return records, []
    note = f"removed special tokens of the base model from {bad} text{'s' * (bad > 1)}"
    mended = Texts(texts.items, texts.places, lambda cell: token.sub(gap, before(cell)))
    return replace(records, texts=mended), [f"{note} (`strict` refuses them)"]


def _refuse_where(
    records: Records,
    frame: pd.DataFrame,
    source: str,
    is_bad: Callable[[str], Any],
    what: str,
    texts_too: bool = True,
) -> None:
    """Refuse texts and labels that contain a problem, which the message calls `what`.

    Undeclared label values are checked after they have been selected.
    """
    texts, labels = records.texts, records.labels
    assert isinstance(texts, Texts) and isinstance(labels, Picked)
    names = [records.schema.text, *(attribute.name for attribute in records.schema.attributes)]
    for place, name in enumerate(names, start=-1):
        if (place < 0 and not texts_too) or name in records.undeclared:
            continue
        if place < 0:
            bad = [int(texts.places[n]) for n, cell in enumerate(texts) if is_bad(cell)]
        else:
            values = [combination[place] for combination in labels.items]
            numbers = [n for n, v in enumerate(values) if isinstance(v, str) and is_bad(v)]
            bad = texts.places[np.isin(labels.places, numbers)].tolist()
        if bad:
            row, others = facts_of(frame).rows.name(bad[0]), len(bad) - 1
            few = {0: "", 1: ", as does 1 more row"}
            more = few.get(others, f", as do {others:,} more rows")
            where = f"{source}: {Header(frame).show([name])}, {row}"
            raise InputError(f"{where}: contains {what}{more}. Remove it.")
