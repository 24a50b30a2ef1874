"""Parquet, Feather, Excel and the `datasets` library, read or refused in one line.

The cells are private, and messages of libraries may quote them. No such message is passed on, and
errors are raised `from None` so that no traceback shows one. The files come from others, so
everything in them is bounded before it is decompressed. Code that comes with a data set never runs.
A formula is read as its last result.
"""

from __future__ import annotations

import json
import re
import struct
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, zip_longest
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from twinset.errors import InputError
from twinset.files.limits import (
    INFLATED,
    MOST_COMBINATIONS,
    MOST_REPEATED,
    MOST_SHEET_ROWS,
    MOST_TAGS,
    SMALL,
    check_inflated,
    check_names,
)
from twinset.table import columns
from twinset.table.columns import Piece, RowNumbers, whole_characters

_MAGIC = b"ARROW1"  # at both ends of Feather
_NO_NAME = re.compile(r"__index_level_\d+__")  # a nameless index of pandas, in Parquet
_TOGETHER = 2**26  # bytes of a table that are looked at together
_ERRORS = {"#N/A", "#REF!", "#VALUE!", "#DIV/0!", "#NAME?", "#NULL!", "#NUM!"}  # of formulas
# an XML part in letters of mainframes
_OTHER_LETTERS = re.compile(
    rb"""<\?xml[^>]*encoding\s*=\s*["'](?!utf-|us-ascii|iso-|windows-)""", re.I
)
_STYLES, _MOST_FORMAT, _MOST_BRACKETS = "xl/styles.xml", 255, 20  # characters, as Excel has it
_HUB_TIMEOUT = 10.0  # seconds until the hub counts as out of reach
Reader = tuple[Iterator[Piece], pa.Schema]  # a table that is read once, and its types
_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


@contextmanager
def one_line(message: str) -> Iterator[None]:
    """Turn any error of a library into one line that says the file cannot be read."""
    try:
        yield
    except (InputError, OSError, MemoryError, GeneratorExit):
        raise
    except Exception:  # damaged cells, strange notes in the file: dozens of kinds
        raise InputError(message) from None


# Arrow would take the order in which the first cells have them.
NO_ORDER = (
    "is an ordered category, and the file does not state the same order of all its values "
    "everywhere. Write it with `pandas.DataFrame.to_parquet`, or as texts."
)

# -- Arrow's own formats ---------------------------------------------------------------------------


@dataclass
class _Unfolding:
    """A table's columns, cell by cell, and the total bytes of the cells seen so far.

    A cell that is stored once may stand for millions of rows. It is measured before it is copied,
    and a damaged buffer is detected before it is read past its ends.
    """

    path: Path | None  # None: the table is in memory or in a folder, and nothing is measured
    size: int = 0
    # by column, of its last dictionary: that itself, where it lies, its values, their sizes (K,)
    dictionaries: dict[str, tuple[Any, ...]] = field(default_factory=dict)

    def unfold(self, name: str, cells: pa.Array | None, rows: int) -> pa.Array:
        """Return self-contained cells. Lists become empty, as they are neither texts nor labels."""
        if cells is None or not _is_plain(cells.type):
            self._count(rows)
            return pa.array([[]] * rows, pa.list_(pa.null()))
        kind = cells.type
        if pa.types.is_dictionary(kind):
            cells.indices.validate(full=True)
            values, sizes, is_set = self._dictionary(name, cells.dictionary, kind.ordered)
            self._count(max(rows, pc.sum(sizes.take(cells.indices)).as_py() or 0))
            if pa.types.is_float16(kind.value_type):  # no categories of pandas
                return values.take(cells.indices).cast(pa.float32())
            # labels stay unchanged, and all batches may have the same ones
            if is_set and len(values) <= MOST_COMBINATIONS and values.nbytes <= SMALL:
                return cells
            if kind.ordered:  # single cells would decide the order
                most = f"at most {MOST_COMBINATIONS} values of {SMALL} bytes, none twice and no gap"
                raise InputError(f"{self.path or 'table'}: an ordered category may have {most}")
            return values.take(cells.indices)
        if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
            cells.validate()
            # (rows, 16) bytes, of which the first four are a cell's size
            views = np.frombuffer(cells.buffers()[1], np.int32)[4 * cells.offset :][: 4 * rows : 4]
            self._count(int(np.maximum(views, 0).sum(dtype=np.int64)))
            cells.validate(full=True)
            return cells.cast(pa.large_string() if pa.types.is_string_view(kind) else pa.binary())
        self._count(max(rows, cells.nbytes))
        cells.validate(full=True)
        if kind == pa.time64("ns"):  # finer than Python's times: as these would be written
            return pc.replace_substring_regex(cells.cast(pa.large_string()), r"(\.0{6})?0{3}$", "")
        return cells

    def _dictionary(
        self, name: str, values: pa.Array, is_ordered: bool
    ) -> tuple[pa.Array, pa.Array, bool]:
        where = [values.offset, len(values), *(each and each.address for each in values.buffers())]
        if name not in self.dictionaries or self.dictionaries[name][1] != where:
            self._count(values.nbytes)
            values.validate(full=True)
            is_text = pa.types.is_string(values.type) or pa.types.is_string_view(values.type)
            plain = values.cast(pa.large_string()) if is_text else values
            sizes = pa.array(np.full(len(plain), plain.nbytes // max(1, len(plain))))
            with suppress(pa.ArrowNotImplementedError):  # of cells that are all equally large
                sizes = pc.fill_null(pc.binary_length(plain), 0)
            is_set = len(plain.unique()) == len(plain) and not plain.null_count  # as pandas asks
            known = self.dictionaries.get(name)
            if is_ordered and known and not plain.equals(known[2]):
                raise InputError(f"{self.path or 'table'}: column {name!r} {NO_ORDER}")
            self.dictionaries[name] = values, where, plain, sizes, is_set
        return self.dictionaries[name][2:]

    def _count(self, size: int) -> None:
        self.size += size
        if self.path is not None:
            check_inflated(self.size, self.path)


def _is_plain(kind: pa.DataType) -> bool:
    """Return whether cells are single values. Lists and runs may refer to one cell many times."""
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    return not (pa.types.is_nested(inner) or pa.types.is_run_end_encoded(inner))


def _arrow_pieces(
    batches: Iterable[pa.RecordBatch], names: Sequence[str], message: str, path: Path | None = None
) -> Iterator[Piece]:
    """Yield pieces whose buffers are complete and whose texts are UTF-8.

    A damaged buffer would be read past its ends, and an error about a text would quote it.
    """
    unfolding, most = _Unfolding(path), columns.ROWS_AT_ONCE
    with one_line(message):
        for batch in batches:
            for start in range(0, batch.num_rows, most):
                part = batch.slice(start, most)
                cells = dict(zip(part.schema.names, part.columns, strict=True))
                yield (
                    part.num_rows,
                    {n: unfolding.unfold(n, cells.get(n), part.num_rows) for n in names},
                )


def _name_classes(pieces: Iterator[Piece], schema: pa.Schema, message: str) -> Reader:
    """Return pieces and schema with names instead of numbers for each `ClassLabel` of `datasets`.

    The schema's metadata has the names. -1 means no label.
    """
    classes: dict[str, pa.Array] = {}
    with suppress(ValueError, TypeError, KeyError, AttributeError):  # its notes may be no notes
        stated = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
        for name, feature in stated.items():
            place = schema.get_field_index(name)
            is_class = isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
            if is_class and place >= 0 and pa.types.is_integer(schema.field(place).type):
                names = pa.array(feature["names"], pa.string())
                if len(names) == len(names.unique()) > names.null_count == 0:
                    classes[name] = names
                    kind = pa.dictionary(pa.int32(), pa.string())
                    schema = schema.set(place, pa.field(name, kind))

    def named() -> Iterator[Piece]:
        with one_line(message):
            for rows, cells in pieces:
                found = dict(cells)
                for name, names in classes.items():
                    numbers = found[name].cast(pa.int32())
                    known = pc.if_else(pc.equal(numbers, -1), None, numbers)
                    found[name] = pa.DictionaryArray.from_arrays(known, names)
                yield rows, found

    return (named() if classes else pieces), schema


def read_parquet(path: Path) -> Reader:
    """Return pieces and schema of Parquet."""
    message = f"{path}: not a readable Parquet file. Write it again."
    with one_line(message):
        # A handle: from a path pyarrow also reads "name=value/". A buffer: else a whole group of
        # rows is read, which may be all of them.
        settings = {"buffer_size": 1 << 20, "pre_buffer": False}
        file, again = (pq.ParquetFile(pa.OSFile(str(path)), **settings) for _ in range(2))
        found = file.metadata
        schema = file.schema_arrow
        check_names(schema.names, path)
        # Notes of pandas in the file may be no notes. They make this raise, not a later step.
        schema.empty_table().to_pandas()
        schema = _without_index(schema)
        groups = [found.row_group(n) for n in range(found.num_row_groups)]
        ordered = {f.name for f in schema if pa.types.is_dictionary(f.type) and f.type.ordered}
        for column in (group.column(n) for group in groups for n in range(group.num_columns)):
            if column.path_in_schema in ordered and not column.has_dictionary_page:
                raise InputError(f"{path}: column {column.path_in_schema!r} {NO_ORDER}")
        with path.open("rb") as raw, mmap(raw.fileno(), 0, access=ACCESS_READ) as data:
            # sizes of pages, by group of rows and column
            pages = [
                [_pages(data, g.column(n), g.num_rows) for n in range(g.num_columns)]
                for g in groups
            ]
        total = sum(map(sum, chain.from_iterable(pages)))
        rows = sum(group.num_rows for group in groups)
        check_inflated(total, path, rows, rows * len(schema.names))
        # a cell is no larger than its page, and may fill many rows
        most = [sum(max(sizes, default=0) for sizes in group) for group in pages]
    pieces = _arrow_pieces(_parquet_batches(file, again, most), schema.names, message, path)
    return _name_classes(pieces, schema, message)


def _without_index(schema: pa.Schema) -> pa.Schema:
    """Return a schema whose notes of pandas name no stored column as an index, if it has a name."""
    notes = schema.pandas_metadata
    if not notes:
        return schema
    kept = [n for n in notes["index_columns"] if not isinstance(n, str) or _NO_NAME.fullmatch(n)]
    as_stated = json.dumps(notes | {"index_columns": kept})
    return schema.with_metadata(schema.metadata | {b"pandas": as_stated.encode()})


def _pages(data: Any, column: pq.ColumnChunkMetaData, rows: int) -> list[int]:
    """Return how many bytes each page of a column takes once decompressed.

    The file's footer states sums that nothing checks. A page cannot decompress to more than its own
    header says. As Arrow does, pages are read until all values are found.
    """
    left, sizes = column.num_values, list[int]()
    at = start = min(column.data_page_offset, column.dictionary_page_offset or len(data))
    if left < rows or (left and start < 4):  # Arrow takes a negative place for none
        raise ValueError
    while left > 0:
        header, at = _read_struct(data, at)
        # by kind, the field that counts values. A dictionary has none of rows.
        values = 0 if header[1] == 2 else header[{0: 5, 3: 8}[header[1]]][1]
        if min(header[2], header[3], values) < 0:
            raise ValueError
        sizes.append(header[2])
        at, left = at + header[3], left - values
    if sizes and at != start + column.total_compressed_size:
        raise ValueError
    return sizes


def _read_struct(data: Any, at: int) -> tuple[dict[int, Any], int]:
    """Return a struct's structs and whole numbers of 32 bits, and the position behind it.

    Thrift's compact protocol: github.com/apache/thrift/blob/master/doc/specs. An error is raised by
    what no writer makes, because Arrow might read it in another way.
    """
    found, number = dict[int, Any](), 0
    while start := data[at]:
        at, number, kind = at + 1, number + (start >> 4), start & 15
        if start < 16 or kind not in (1, 2, 4, 5, 6, 8, 12):
            raise ValueError
        if kind == 12:
            found[number], at = _read_struct(data, at)
        elif kind > 2:
            value, bits = 0, 64 if kind == 6 else 32
            for shift in range(0, bits, 7):
                value, at = value | (data[at] & 127) << shift, at + 1
                if data[at - 1] < 128:
                    break
            if data[at - 1] > 127 or value >> bits:
                raise ValueError
            if kind == 5:
                found[number] = value >> 1 if value % 2 == 0 else ~(value >> 1)
            elif kind == 8:  # bytes
                at += value
    return found, at + 1


def _parquet_batches(
    file: pq.ParquetFile, again: pq.ParquetFile, most: Sequence[int]
) -> Iterator[pa.RecordBatch]:
    """Yield batches. Few rows are read at a time if one cell may fill many rows and all memory.

    That is no matter for categories, and each batch of them has all values of its group. They are
    read from `again`, the same file, as a file has one number of rows at a time.
    """
    kinds = {field.name: field.type for field in file.schema_arrow if _is_plain(field.type)}
    folded = [name for name, kind in kinds.items() if pa.types.is_dictionary(kind)]
    others = [name for name in kinds if name not in folded]
    for group, size in enumerate(most):
        rows = min(columns.ROWS_AT_ONCE, max(1, INFLATED // max(1, size)))
        batches = file.iter_batches(rows, [group], others, use_threads=False)
        together = columns.ROWS_AT_ONCE // rows * rows
        for categories in again.iter_batches(together, [group], folded, use_threads=False):
            at = 0
            while at < categories.num_rows:
                some, start, taken = [], at, 0
                while at < categories.num_rows and taken < _TOGETHER:
                    some.append(next(batches))
                    at, taken = at + some[-1].num_rows, taken + some[-1].nbytes
                table = pa.Table.from_batches(some).combine_chunks()
                for name in folded:
                    column = categories.column(name).slice(start, len(table))
                    table = table.append_column(name, column)
                yield from table.to_batches()


def read_feather(path: Path) -> Reader:
    """Return pieces and schema of Feather (version 2), or of a stream stored by `datasets`."""
    message = f"{path}: not a readable Feather or Arrow file. Write it again."
    with one_line(message):
        raw = pa.OSFile(str(path))
        if raw.read(len(_MAGIC)) == _MAGIC:
            file = pa.ipc.open_file(raw)
            schema, messages = file.schema, _messages(raw)
            batches = (file.get_batch(n) for n in range(file.num_record_batches))
        else:
            raw.seek(0)
            messages = pa.ipc.MessageReader.open_stream(pa.OSFile(str(path)))
            batches = pa.ipc.open_stream(raw)
            schema = batches.schema
        inflated, rows, cells = 0, 0, 0
        for part in messages:
            if part.type in ("record batch", "dictionary"):
                # more than the file can hold is refused before it is decompressed
                length, buffers = _message_size(part)
                inflated, rows = inflated + buffers, rows + length
                cells += length * (len(schema.names) if part.type == "record batch" else 1)
                check_inflated(inflated, path, rows, cells)
        check_names(schema.names, path)
    pieces = _arrow_pieces(batches, schema.names, message, path)
    pieces, schema = _name_classes(pieces, schema, message)
    return pieces, schema.remove_metadata()


def _messages(raw: pa.NativeFile) -> Iterator[pa.Message]:
    """Yield the messages of a Feather file that its footer names. Arrow has checked the footer.

    Arrow takes the length of a message from the footer. It must be that in the message itself.
    """
    raw.seek(raw.size() - len(_MAGIC) - 4)
    size = int.from_bytes(raw.read(4), "little")
    raw.seek(raw.size() - len(_MAGIC) - 4 - size)
    data, blocks = memoryview(raw.read(size)), list[tuple[int, ...]]()
    for vector in (2, 3):  # dictionaries, batches: a count, then blocks of 24 bytes
        if at := _find(data, struct.unpack_from("<I", data)[0], vector, is_table=True):
            count = struct.unpack_from("<I", data, at)[0]
            blocks += struct.iter_unpack("<qi4xq", data[at + 4 :][: 24 * count])
    end = 0
    for start, size, length in sorted(blocks):
        if start < end:  # no byte is read twice
            raise ValueError
        raw.seek(start)
        message = pa.ipc.read_message(raw)
        end = raw.tell()
        if (end, length) != (start + size + length, len(memoryview(message.body))):
            raise ValueError
        yield message


def _find(data: memoryview, table: int, field: int, is_table: bool = False) -> int:
    """Return where a field of a FlatBuffer's table is, or what it points to, or 0 if missing.

    Each table begins with the distance to a vtable, which holds the offset of each field, or 0 for
    a missing field.
    """
    vtable = table - struct.unpack_from("<i", data, table)[0]
    is_there = 4 + 2 * field < struct.unpack_from("<H", data, vtable)[0]
    offset = struct.unpack_from("<H", data, vtable + 4 + 2 * field)[0] if is_there else 0
    at: int = table + offset if offset else 0
    return at + struct.unpack_from("<I", data, at)[0] if is_table and at else at


def _message_size(message: pa.Message) -> tuple[int, int]:
    """Return how many rows a batch has, and how many bytes it takes once decompressed.

    Each compressed buffer begins with its size, 64 bits. A FlatBuffer says where the buffers are
    (arrow.apache.org/docs/format/Columnar.html#recordbatch-message).
    """
    data, body = memoryview(message.metadata), memoryview(message.body)
    unpack = struct.unpack_from  # of places that Arrow has checked to lie in the message
    batch = _find(data, unpack("<I", data)[0], 2, is_table=True)  # Message.header
    if message.type == "dictionary":
        batch = _find(data, batch, 1, is_table=True)  # DictionaryBatch.data
    length_at, is_compressed = _find(data, batch, 0), _find(data, batch, 3) > 0
    # RecordBatch.buffers: a count, then pairs of 64 bits
    start, total = _find(data, batch, 2, is_table=True), 0
    count = unpack("<I", data, start)[0]
    for offset, size in struct.iter_unpack("<qq", data[start + 4 :][: 16 * count]):
        plain = unpack("<q", body, offset)[0] if is_compressed and size else -1
        total += max(size, plain)
    return unpack("<q", data, length_at)[0] if length_at else 0, total


def load_dataset(name: str, split: str | None) -> Reader:
    """Return pieces and schema of a folder of `save_to_disk`, or of a data set of the hub.

    A hub name is `owner/name`. The cache of `datasets` keeps a copy.
    """
    if Path(name).is_dir():
        from datasets import DatasetDict, load_from_disk

        try:
            loaded = load_from_disk(name)
        except Exception:
            remedy = "Name a file in it"
            if any(chain(Path(name).glob("*=*"), Path(name).glob("*.parquet"))):
                remedy = "If its files are one table, join them: `pandas.read_parquet(folder)`"
            fault = f"not a folder saved by datasets.save_to_disk. {remedy}"
            raise InputError(f"{name}: {fault}.") from None
        if split is not None and not isinstance(loaded, DatasetDict) and loaded.split is None:
            raise InputError(f"{name}: has no splits. Leave `split` out")
        by_name = loaded if isinstance(loaded, DatasetDict) else {str(loaded.split): loaded}
        splits = list(by_name)
        found = by_name.get(splits[0] if split is None and len(splits) == 1 else split)
    else:
        missing = f"{name}: no such file or folder"
        if not _HUB_NAME.fullmatch(name):
            raise InputError(f"{missing}. Check the path.")
        import datasets
        from huggingface_hub import HfApi, constants

        try:
            if not constants.HF_HUB_OFFLINE:  # offline, the library's own cache may still have it
                # One try: `datasets` would retry for half a minute, and print every one of them.
                HfApi().dataset_info(name, timeout=_HUB_TIMEOUT)
            splits = [split] if split is not None else datasets.get_dataset_split_names(name)
            found = datasets.load_dataset(name, split=splits[0]) if len(splits) == 1 else None
        except Exception:  # no network, no such name or split, gated, code of its own: dozens
            raise InputError(
                f"{missing}, and no such data set or split can be loaded from the hub. Download it "
                "and give a CSV, Parquet or JSONL file."
            ) from None
    if found is None:
        raise InputError(f"{name}: choose a split with `split`: {', '.join(splits)}")
    return read_dataset(found, name)


def read_dataset(data: Any, source: str) -> Reader:
    """Return pieces and schema of a `datasets.Dataset`, or of a table that Arrow knows."""
    damaged = f"{source}: its data are damaged. Make it again."
    if not hasattr(data, "with_format"):
        with one_line(damaged):
            table = pa.table(data)
            tables, schema = iter([table]), _without_index(table.schema)
    elif "custom" in (getattr(data, "format", None) or {}).values():  # it may hide what is stored
        raise InputError(f"{source}: has a transform. Apply it to the rows with `map` first.")
    elif data.features is None:  # of a stream that was mapped or comes from a function
        remedy = "Give `features=` to what made it, or give `list(data)`"
        raise InputError(f"{source}: its columns have no stated types. {remedy}")
    else:
        schema = data.features.arrow_schema
        tables = (t.combine_chunks() for t in data.with_format("arrow").iter(columns.ROWS_AT_ONCE))
    check_names(schema.names, source)
    batches = (batch for table in tables for batch in table.to_batches())
    return _name_classes(_arrow_pieces(batches, schema.names, damaged), schema, damaged)


# -- Excel -----------------------------------------------------------------------------------------


def read_excel(
    path: Path, sheet: str | None, rows: RowNumbers, notes: list[str]
) -> Iterator[Piece]:
    """Yield pieces of a sheet, by default the first. Its first non-empty row is the header."""
    from openpyxl import load_workbook
    from openpyxl.utils.escape import unescape
    from openpyxl.xml.functions import fromstring

    message = f"{path}: not a readable Excel file (.xlsx without a password). Save it again."
    with path.open("rb") as raw, warnings.catch_warnings(), one_line(message):
        warnings.simplefilter("ignore")  # of what else is in the file
        size, inflated, tags = path.stat().st_size, 0, 0
        with ZipFile(raw) as parts:
            check_inflated(sum(part.file_size for part in parts.infolist()), path)
            for part in parts.infolist():
                with parts.open(part) as xml:
                    for block in iter(partial(xml.read, 1 << 20), b""):
                        if _OTHER_LETTERS.match(block):  # where < is another byte
                            raise InputError(message)
                        tags += block.count(b"<") + block.count(b"=") // 4
                        if tags > max(MOST_TAGS, 10 * size):
                            raise InputError(
                                f"{path}: is mostly empty cells, formats or notes. Copy the cells "
                                "that you need into a new file."
                            )
            # openpyxl looks for a bracket's end in the whole rest of a number format, and again for
            # each kind of cell that has it
            if _STYLES in parts.namelist():
                for tag in fromstring(parts.read(_STYLES)).iter():
                    code = tag.get("formatCode", "")
                    if len(code) > _MOST_FORMAT or code.count("[") > _MOST_BRACKETS:
                        raise InputError(
                            f"{path}: has a number format that is too long for Excel. "
                            "Write it again."
                        )
        raw.seek(0)
        with closing(load_workbook(raw, read_only=True, data_only=True, keep_links=False)) as book:
            pages = {page.title: page for page in book.worksheets}  # charts have no cells
            shown = [page for page in pages.values() if page.sheet_state == "visible"]
            if not pages or (sheet is not None and sheet not in pages):
                raise InputError(f"{path}: has no sheet {sheet or 'of cells'!r}. Check `split`.")
            if sheet is None and len(pages) > 1:
                notes.append(f"read the first of {len(pages)} sheets (`split` names another)")
            page = pages[sheet] if sheet else [*shown, *pages.values()][0]
            page.reset_dimensions()  # the size stated in the file, which may be anything
            some: dict[str, list[Any]] = {}  # by column, the cells of the next piece
            looked_at = 0
            for values in page.iter_rows(values_only=True):
                # a file with room for this many cells is mostly gaps
                looked_at += max(len(values), len(some))
                if looked_at > max(MOST_REPEATED, 10 * size):
                    raise InputError(
                        f"{path}: most of its cells are empty. Keep the columns that you need."
                    )
                read = [whole_characters(unescape(c)) if isinstance(c, str) else c for c in values]
                cells = [None if cell in _ERRORS or cell == "" else cell for cell in read]
                while cells and cells[-1] is None:
                    cells.pop()
                row = rows.next
                rows.blank.append(b"01"[not cells])
                if len(rows.blank) > MOST_SHEET_ROWS:
                    raise InputError(f"{path}: has more rows than a sheet may. Write it again.")
                if not cells:
                    continue
                if not some:  # the header
                    header = [f"Unnamed: {n}" if c is None else str(c) for n, c in enumerate(cells)]
                    check_names(header, path)
                    some = {name: [] for name in header}
                    continue
                inflated += sum(len(cell) for cell in cells if isinstance(cell, str))
                check_inflated(inflated, path)
                if len(cells) > len(some):
                    raise InputError(
                        f"{path}: {row} has {len(cells)} cells where the header has {len(some)}. "
                        "Name every column in the first row, and keep notes out of the table. "
                        "Or name another sheet with `split`."
                    )
                for column, cell in zip_longest(some.values(), cells):
                    column.append(cell)
                if (count := len(column)) == columns.ROWS_AT_ONCE:
                    yield count, some
                    some = {name: [] for name in some}
            if some:
                yield len(next(iter(some.values()))), some
