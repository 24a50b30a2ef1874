"""A small file that would fill all memory, or never end, is refused in one line."""

import csv
import gzip
import json
import re
import shutil
import time
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from tests.helpers.commands import call
from tests.helpers.refusals import refusal
from twinset.config.options import merge
from twinset.errors import first_line
from twinset.files import limits
from twinset.files.atomic import write_checksums
from twinset.pretraining.corpus import read_corpus
from twinset.sampling.twin_model import DESCRIPTION, TwinModel
from twinset.table.read import read_frame
from twinset.table.records import records_from_frame
from twinset.table.schema import Schema
from twinset.table.templates import load_template

WORDS = "one two three four five six"


def refused(act, said) -> None:
    assert re.search(said, refusal(act))


# --- tables ---------------------------------------------------------------------------------------


NAMES = [f"k{number}" for number in range(40_000)]
MANY = json.dumps(dict.fromkeys(NAMES, 1) | {"review": WORDS})
SPARSE = json.dumps(dict.fromkeys(NAMES[:1000], 1)) + "\n{}" * 10_000
OPEN = 'review,label\n"' + "x" * (limits.MOST_CELL + 1) + '",a\n'


GAPS = "," * 199 + "\n"
OBJECTS = '{"a":[{}' + ",{}" * 10_000 + "]}"
BLANKS = '[{"a":0},' + " " * 10**6 + '{"a":0}]'
INFLATES = "inflates to more than 100 times its size"


TEXTS, LIMITS = "twinset.table.text_formats", "twinset.files.limits"
LARGE = {f"{TEXTS}.MOST_REPEATED": 1_000_000, f"{LIMITS}.INFLATED": 100_000}
EMPTY = {f"{TEXTS}._BLOCK": 4096, f"{TEXTS}.MOST_ITEMS": 3000, f"{LIMITS}.MOST_REPEATED": 200_000}
WIDE = "".join(f"{'a' * n}," for n in range(1, 200)) + "\n" + GAPS * 1500
# A file, its text, what the one line says, and the limits: of bytes, or of cells that hardly any
# bytes stand for.
FILES = {
    "many keys": ("many.jsonl", MANY, "more than 2000 columns. Remove", LARGE),
    "sparse": ("sparse.jsonl", SPARSE, "columns are missing in most rows. Keep", LARGE),
    "open quote": ("open.csv", OPEN, "more than 10000000 characters. Is a quote never", LARGE),
    "table": ("t.jsonl.gz", '{"review": "x"}\n' * 100_000, INFLATES, LARGE),
    "corpus": ("corpus.txt.gz", "x\n\n" * 1_000_000, INFLATES, LARGE),
    "gaps": ("t.csv.gz", WIDE, "the same", EMPTY),
    "rows": ("t.csv.gz", "review\n" + "a\n" * 250_000, "the same", EMPTY),
    "row": ("t.csv", "a,b\n" + GAPS.strip() * 20, "row 2 has more than", EMPTY),
    "objects": ("t.jsonl.gz", '{"a":0}\n' * 20_000, "the same", EMPTY),
    "items": ("t.json.gz", "[" + '{"a":0},' * 20_000 + "{}]", "the same", EMPTY),
    "a line": ("t.jsonl.gz", OBJECTS, "line 1 has more than", EMPTY),
    "an item": ("t.json.gz", f"[{OBJECTS}]", "item 1 has more than", EMPTY),
    "blanks": ("t.json", BLANKS, "1 MB of blanks before item 2", EMPTY),
    "paragraphs": ("corpus.txt.gz", "\n\n" * 250_000, "paragraphs are empty", EMPTY),
}


@pytest.mark.parametrize(("file", "content", "said", "most"), FILES.values(), ids=FILES)
def test_small_files_that_are_large_inside(tmp_path, monkeypatch, file, content, said, most):
    for name, limit in most.items():
        monkeypatch.setattr(name, limit)
    data, path = content.encode(), tmp_path / file
    path.write_bytes(gzip.compress(data) if file.endswith(".gz") else data)
    refused(lambda: read_corpus([path]) if "corpus" in file else read_frame(path), said)


@pytest.mark.parametrize("cell", ['" """', '"a\nb"', '" a"'])
def test_a_wide_row_of_odd_cells_is_read_once(tmp_path, cell):
    """Not once for each cell."""
    path, start = tmp_path / "t.csv.gz", time.process_time()
    path.write_bytes(gzip.compress(",".join([cell] * 100_000).encode()))
    refused(lambda: read_frame(path), "two columns have the same name")
    assert time.process_time() - start < 10  # of minutes


def test_the_cells_of_a_wide_table_are_looked_at_once(monkeypatch):
    """Not once for each column that a message may name."""
    looked = []
    monkeypatch.setattr("twinset.table.choose._count_words", lambda text: looked.append(text) or 1)
    labels = {name: ["a", "b"] * 50 for name in NAMES[:20]}
    frame = pd.DataFrame({"review": [f"{WORDS} {n}" for n in range(100)], **labels})
    records_from_frame(frame, "review", NAMES[:9])
    assert len(looked) == frame.size + len(frame.columns)


def test_parquet_that_is_large_inside(tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({name: [1] for name in NAMES[:3000]}), path)
    refused(lambda: read_frame(path), "more than 2000 columns. Remove")
    # runs of one value take some hundred bytes
    pq.write_table(pa.table({"review": pa.repeat("a", 1000)}), path)
    assert len(read_frame(path)) == 1000
    monkeypatch.setattr(limits, "MOST_REPEATED", 100)
    pq.write_table(pa.table({"review": pa.repeat("a", path.stat().st_size * 2)}), path)
    refused(lambda: read_frame(path), "rows and .* cells in .* bytes. Keep the columns")
    monkeypatch.setattr(limits, "INFLATED", 10_000)
    cells = ["x" * 100_000, "y" * 100_000] * 3
    pq.write_table(pa.table({"review": cells}), path, compression="zstd")
    refused(lambda: read_frame(path), INFLATES)
    # of an old writer Arrow reads 100 bytes more than the footer states
    pq.write_table(pa.table({"review": cells}), path, compression="brotli")
    written, found = path.read_bytes(), pq.ParquetFile(path).metadata
    footer = len(written) - 8 - found.serialized_size
    size = found.row_group(0).column(0).total_compressed_size
    older = b"parquet-mr version 1.2.8".ljust(len(found.created_by))
    stated = bytes([22, 2 * size & 127 | 128, 2 * size >> 7])  # a number's kind, and the number
    ending = written[footer:].replace(found.created_by.encode(), older)
    path.write_bytes(written[:footer] + ending.replace(stated, b"\x16\x80\0"))
    assert pq.ParquetFile(path).metadata.row_group(0).column(0).total_compressed_size == 0
    refused(lambda: read_frame(path), "not a readable Parquet")
    pq.write_table(pa.table({"review": cells}), path, compression="zstd")
    # the footer may state smaller sizes, written in as many bytes
    written, group = path.read_bytes(), pq.ParquetFile(path).metadata.row_group(0)
    footer = len(written) - 8 - int.from_bytes(written[-8:-4], "little")
    for size in {group.total_byte_size, group.column(0).total_uncompressed_size}:
        stated = bytes([128 | 2 * size & 127, 128 | 2 * size >> 7 & 127, 2 * size >> 14])
        written = written[:footer] + written[footer:].replace(stated, b"\x82\x80\0")
    path.write_bytes(written)
    assert pq.ParquetFile(path).metadata.row_group(0).total_byte_size == 1
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", None)  # nothing is decompressed
    refused(lambda: read_frame(path), INFLATES)


CELL, HUGE = "x" * 9000, "x" * 9_000_000


def folded(cell=CELL, rows=3_000_000, ordered=False):
    """A column that holds one cell once, for all rows."""
    return pa.DictionaryArray.from_arrays(
        np.zeros(rows, np.int32), pa.array([cell]), ordered=ordered
    )


def views(rows=1_000_000):
    """A column whose cells all point to the same bytes."""
    first, *texts = pa.array([CELL], pa.string_view()).buffers()[1:]
    pointers = pa.py_buffer(bytes(first)[:16] * rows)
    return pa.Array.from_buffers(pa.string_view(), rows, [None, pointers, *texts])


def write_arrow(path, columns, batches=1):
    """Write the same rows again and again as Feather, or once as Parquet without Arrow's types."""
    table = pa.table(columns)
    if path.suffix == ".parquet":
        pq.write_table(table, path, compression="zstd", store_schema=False)
        return
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(path, table.schema, options=options) as file:
        for _ in range(batches):
            file.write_table(table)


@pytest.mark.parametrize(
    ("file", "columns"),
    [
        ("t.parquet", lambda: {"review": folded()}),
        ("t.parquet", lambda: {"review": folded(HUGE, 20_000)}),
        ("t.arrow", lambda: {"review": folded()}),
        ("t.arrow", lambda: {"review": folded(ordered=True)}),
        ("t.arrow", lambda: {"review": views()}),
    ],
    ids=["Parquet", "a huge cell", "Feather", "ordered", "views"],
)
def test_a_cell_that_a_file_holds_once_for_many_rows(tmp_path, file, columns):
    path = tmp_path / file
    write_arrow(path, columns())
    assert path.stat().st_size < 200_000
    start = time.process_time()
    refused(lambda: read_frame(path), INFLATES)
    assert time.process_time() - start < 5  # of minutes without a limit


@pytest.mark.parametrize("kind", [pa.null(), pa.bool_()])
@pytest.mark.parametrize("file", ["t.parquet", "t.arrow"])
def test_gaps_in_many_columns_that_hardly_any_bytes_stand_for(tmp_path, monkeypatch, file, kind):
    monkeypatch.setattr(limits, "MOST_REPEATED", 20_000)
    for rows, refuses in ((19_000, True), (200, False)):
        write_arrow(tmp_path / file, {f"k{n}": pa.nulls(rows, kind) for n in range(100)})
        if refuses:
            refused(lambda: read_frame(tmp_path / file), "and 1900000 cells in .* bytes. Keep")
        else:  # as one value in all rows of a small table
            assert read_frame(tmp_path / file).shape == (200, 100)


def test_a_text_that_excel_keeps_once_for_many_rows(tmp_path, monkeypatch):
    pd.DataFrame({"review": [CELL] * 2000}).to_excel(tmp_path / "t.xlsx", index=False)
    assert len(read_frame(tmp_path / "t.xlsx")) == 2000
    monkeypatch.setattr(limits, "INFLATED", 10_000_000)
    refused(lambda: read_frame(tmp_path / "t.xlsx"), INFLATES)


def write_excel(path, table, part, change):
    """Write an Excel file of which one part is changed."""
    table.to_excel(path.with_name("plain.xlsx"), index=False)
    with ZipFile(path.with_name("plain.xlsx")) as plain, ZipFile(path, "w", 8) as changed:
        for name in plain.namelist():
            inside = plain.read(name)
            changed.writestr(name, change(inside) if name == part else inside)


@pytest.mark.parametrize("part", ["xl/styles.xml", "xl/worksheets/sheet1.xml"])
@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"", "mostly empty cells, formats"),
        (b"<?xml encoding= 'utf-8'?>", "mostly empty cells, formats"),
        (b"<?xml encoding='cp037'?>", "not a readable Excel"),
    ],
)
def test_an_excel_file_that_is_mostly_tags(tmp_path, monkeypatch, part, head, said):
    monkeypatch.setattr("twinset.table.other_formats.MOST_TAGS", 2000)
    path, table = tmp_path / "t.xlsx", pd.DataFrame({"review": [WORDS]})
    write_excel(path, table, part, lambda inside: inside)
    assert len(read_frame(path)) == 1
    write_excel(path, table, part, lambda _: head + b"<a>" + b"<a/>" * 80_000 + b"</a>")
    refused(lambda: read_frame(path), said)


@pytest.mark.parametrize(
    ("code", "said"),
    [("[" * 60_000, "too long for Excel"), ("[" * 21, "too long for Excel"), ("[Red]0;" * 20, "")],
)
@pytest.mark.parametrize("way", ["as it is", "UTF-16", "default"])
def test_a_number_format_that_excel_does_not_write(tmp_path, code, said, way):
    """A head may state it for tags that have none."""
    head, written = "", f'formatCode="{code}"'
    if way == "default":
        head, written = f"<!DOCTYPE a [<!ATTLIST numFmt formatCode CDATA '{code}'>]>", ""

    def change(inside):
        text = inside.decode().replace('<numFmts count="0" />', "")
        tag = f'<numFmts><numFmt numFmtId="164" {written}/></numFmts><fonts'
        text = head + text.replace("<fonts", tag, 1)
        return text.encode("utf-16" if way == "UTF-16" else "utf-8")

    path, table = tmp_path / "t.xlsx", pd.DataFrame({"review": [WORDS], "n": [1.5]})
    write_excel(path, table, "xl/styles.xml", change)
    if said:
        refused(lambda: read_frame(path), said)
    else:
        assert read_frame(path).shape == (1, 2)


def test_other_compressed_columns_are_read_quickly(tmp_path):
    rows, start = 2_000_000, time.process_time()
    lists = pa.ListArray.from_arrays(pa.array([0, rows], pa.int32()), folded(rows=rows))
    for file in ("t.parquet", "t.arrow"):
        write_arrow(tmp_path / file, {"review": [WORDS], "more": lists})
        assert read_frame(tmp_path / file)["review"].tolist() == [WORDS]
    # 20 MB of values, in each of many batches
    values = pa.array(["y" * 100_000 + str(n) for n in range(200)])
    column = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), values)
    write_arrow(tmp_path / "t.arrow", {"review": column}, batches=1000)
    assert len(read_frame(tmp_path / "t.arrow")) == 1000
    assert time.process_time() - start < 5


@pytest.mark.parametrize("ending", [".parquet", ".feather"])
def test_ordinary_columns_that_are_folded_are_read_as_they_are(tmp_path, monkeypatch, ending):
    monkeypatch.setattr("twinset.table.columns.ROWS_AT_ONCE", 1000)
    texts = [f"{WORDS} {n % 15_000}" if n % 7 else None for n in range(30_000)]
    moods = pd.Categorical(["lo", "hi", "mid"] * 10_000, ["lo", "mid", "hi"], ordered=True)
    frame = pd.DataFrame({"review": texts, "mood": moods, "stars": [1, 2, 3] * 10_000})
    frame = frame.astype({"review": "category"})
    path = tmp_path / f"t{ending}"
    (frame.to_parquet if ending == ".parquet" else frame.to_feather)(path)
    read = read_frame(path)
    assert [str(kind) for kind in read.dtypes] == ["category", "category", "int64"]
    assert read["mood"].cat.ordered and list(read["mood"].cat.categories) == ["lo", "mid", "hi"]
    for name in frame:
        assert read[name].astype(object).dropna().tolist() == frame[name].dropna().tolist()
    pa.feather.write_feather(pa.table({"review": pa.array(["a", "é"], pa.string_view())}), path)
    assert ending == ".parquet" or read_frame(path)["review"].tolist() == ["a", "é"]


def test_ordinary_tables_are_below_the_limits(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "INFLATED", 1)
    monkeypatch.setattr(limits, "MOST_REPEATED", 1)
    rows = [{"review": f"{WORDS} {i}", "label": "ab"[i % 2]} for i in range(20_000)]
    frame = pd.DataFrame(rows)
    frame.to_csv(tmp_path / "t.csv.gz", index=False)
    frame.to_json(tmp_path / "t.jsonl.gz", orient="records", lines=True)
    frame.to_parquet(tmp_path / "t.parquet")
    for path in tmp_path.iterdir():
        pd.testing.assert_frame_equal(read_frame(path), frame)
    assert csv.field_size_limit() == 131_072  # put back
    gaps = pd.DataFrame({f"gap {n}": [None] * 1000 for n in range(150)})
    frame[:1000].join(gaps).to_csv(tmp_path / "t.csv.gz", index=False)
    assert 150_000 / (tmp_path / "t.csv.gz").stat().st_size > 35
    assert read_frame(tmp_path / "t.csv.gz").shape == (1000, 152)


def test_labels_that_have_too_many_combinations():
    columns = {f"l{n}": [f"v{(i * 7**n) % 50}" for i in range(400)] for n in range(4)}
    frame = pd.DataFrame({"review": [f"{WORDS} {i}" for i in range(400)], **columns})
    said = "labels l0, l1, l2, l3 have more than 10000 combinations. Name fewer"
    records, _ = records_from_frame(frame, "review", list(columns))
    refused(lambda: records.schema.combinations, said)


@pytest.mark.parametrize(
    ("pattern", "word", "most", "said"),
    [
        ("{label}" * 3000, "w" * 3000, 10**7, "prompts exceed 10000 characters"),
        ("{label}:", "", 5, "all prompts together exceed 5 characters"),
    ],
    ids=["one", "all"],
)
def test_prompts_that_are_large_in_a_small_model(
    tiny_run, tmp_path, monkeypatch, pattern, word, most, said
):
    monkeypatch.setattr("twinset.table.tokenization.MOST_CELL", most)
    model = shutil.copytree(tiny_run / "r" / "model", tmp_path / "model")
    data = json.loads((model / DESCRIPTION).read_text("utf-8"))
    (attribute,) = data["schema"]["attributes"]
    values = [f"{value}{word}" for value in attribute["values"]]
    wording = {attribute["name"]: dict(zip(attribute["values"], values, strict=True))}
    pattern = pattern.replace("label", attribute["name"])
    data["template"] |= {"pattern": pattern, "wording": wording}
    (model / DESCRIPTION).write_text(json.dumps(data), "utf-8")
    write_checksums(model)
    refused(lambda: TwinModel.load(model), said)


# --- other files ----------------------------------------------------------------------------------

PLAIN = Schema("t", "str", (), ("t",))


def test_a_large_file_that_a_person_would_have_written(tmp_path):
    path = tmp_path / "t.toml"
    for read in (lambda: merge({}, path), lambda: load_template(path, PLAIN)):
        path.write_text("# x\n" * 300_000)
        refused(read, "is larger than 1 MB")
        path.write_text(f"seed = {'9' * 5000}\n")  # more digits than Python turns into a number
        refused(read, "TOML")


def test_an_error_that_quotes_a_file_is_short_and_steers_no_terminal(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("t.toml").write_text(
        'prompt = "{label}"\nwording = "x"\n"\\u001b[2J' + "k" * 500 + '" = 1\n'
    )
    ended = call("generate", "t.csv", "--config", "t.toml")
    assert ended.code == 2 and "\x1b" not in ended.err and ended.err.count("\n") == 1
    assert len(first_line(ValueError("x" * 5000))) < 300
    assert first_line(ValueError("\x1b[2J")) == "\N{REPLACEMENT CHARACTER}[2J"
