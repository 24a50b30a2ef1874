"""Tables as people have them: how each is made, and how it is read or refused.

A row of `READ` says how many records there are, what the first text is, and what is said to the
owner; a row of `REFUSED` what the one line says.
"""

import bz2
import csv
import gzip
import io
import json
import os
import zipfile
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
from openpyxl.chart import BarChart

from tests.helpers.refusals import SECRET
from twinset.table.labels import LabelRules

TEXTS = [f"{SECRET} film {i} was long" for i in range(40)]
LABELS = ["bad", "good"] * 20
HEADER = ("review", "label")
SEMICOLON = "read as UTF-8, separated by ; (detected"
LEFT_OUT = "leaving out {} of 40 rows: no text or no label"


class Messy:
    """A file, and what is to be seen of it."""

    def __init__(
        self,
        make: str | bytes | Callable[[Path], Any],  # its text, its bytes, or what writes it
        said: str = "",  # parts of what the owner is told, by " & "; in `REFUSED`, of the line
        first: str = TEXTS[0],
        file: str = "t.csv",
        records: int = 40,
        **options: Any,  # of `Source`
    ):
        self.make, self.said, self.first, self.file = make, said, first, file
        self.records, self.options = records, options

    def write(self, folder: Path) -> Path:
        """Write the file into a folder."""
        path = folder / self.file
        if isinstance(self.make, str | bytes):
            path.write_bytes(self.make.encode() if isinstance(self.make, str) else self.make)
        else:
            self.make(path)
        return path


def changed(cells: list, **places: Any) -> list:
    others = {int(place[1:]): cell for place, cell in places.items()}
    return [others.get(place, cell) for place, cell in enumerate(cells)]


def cells(
    texts: list = TEXTS, labels: list = LABELS, sep: str = ",", header=HEADER, end="\n", more=()
) -> str:
    written = io.StringIO()
    writer = csv.writer(written, delimiter=sep, lineterminator=end)
    writer.writerows([header] * bool(header) + list(zip(texts, labels, *more, strict=True)))
    return written.getvalue()


def lines(texts: list = TEXTS, labels: list = LABELS, **more: Any) -> list[dict]:
    pairs = zip(texts, labels, strict=True)
    return [dict(zip(HEADER, pair, strict=True)) | more for pair in pairs]


def jsonl(rows: list[dict], end: str = "\n") -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + end for row in rows).encode()


def table(texts: list = TEXTS, labels: list = LABELS, **more: Any) -> pd.DataFrame:
    return pd.DataFrame({"review": texts, "label": labels} | more)


def beginning(text: str, labels: list = LABELS, end: str = "\n", **more: Any) -> Messy:
    """A CSV file with this first text."""
    return Messy(cells(changed(TEXTS, _0=text), labels, end=end), first=text, **more)


def in_jsonl(rows: list[dict], *said: str, **more: Any) -> Messy:
    return Messy(jsonl(rows), *said, **{"file": "t.jsonl"} | more)


def in_json(found: Any, *said: str, **more: Any) -> Messy:
    return Messy(json.dumps(found), *said, **{"file": "t.json"} | more)


def parquet(frame: pd.DataFrame | pa.Table, *said: str, **more: Any) -> Messy:
    arrow = frame if isinstance(frame, pa.Table) else pa.Table.from_pandas(frame)
    write = partial(pyarrow.parquet.write_table, arrow)
    return Messy(write, *said, **{"file": "t.parquet"} | more)


def excel(
    *sheets: pd.DataFrame,
    startrow: int = 0,
    has_chart: bool = False,
    hidden: tuple = (),
    **more: Any,
) -> Messy:
    def write(path: Path) -> None:
        with pd.ExcelWriter(path, engine="openpyxl") as book:
            for number, sheet in enumerate(sheets):
                sheet.to_excel(book, sheet_name=f"s{number}", index=False, startrow=startrow)
            for name in hidden:
                book.sheets[name].sheet_state = "hidden"
            if has_chart:
                book.book.create_chartsheet("a chart", 0).add_chart(BarChart())

    return Messy(write, **{"file": "t.xlsx"} | more)


def stream(found: pa.Table, *said: str, **more: Any) -> Messy:
    def write(path: Path) -> None:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, found.schema) as batches:
            batches.write_table(found)

    return Messy(write, *said, **{"file": "t.arrow"} | more)


def feather_of_polars(path: Path) -> None:
    table().to_feather(path)
    data = path.read_bytes()  # polars writes no length of the schema, which is in the footer too
    path.write_bytes(data[:8] + bytes(8) + data[16:])


def groups_of_rows(*parts: pd.DataFrame) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        found = [pa.Table.from_pandas(part) for part in parts]
        with pyarrow.parquet.ParquetWriter(path, found[0].schema) as file:
            for part in found:
                file.write_table(part)

    return write


def zip_of(size: int) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as parts:
        parts.writestr("xl/worksheets/sheet1.xml", b" " * size)
    return written.getvalue()


def bare_excel(sheet: str, said: str, doctype: str = "") -> Messy:
    def write(path: Path) -> None:
        excel(table()[:1]).make(path)
        with zipfile.ZipFile(path) as old:
            parts = {name: old.read(name) for name in old.namelist()}
        space = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
        parts["xl/worksheets/sheet1.xml"] = (
            f'{doctype}<worksheet xmlns="{space}"><sheetData>{sheet}</sheetData></worksheet>'
        ).encode()
        with zipfile.ZipFile(path, "w") as new:
            for name, data in parts.items():
                new.writestr(name, data)

    return Messy(write, said, file="t.xlsx")


def row(number: int, *texts: str) -> str:
    inline = "".join(f'<c t="inlineStr"><is><t>{text}</t></is></c>' for text in texts)
    return f'<row r="{number}">{inline}</row>'


FRENCH = changed(TEXTS, _0="Un très bon film, déjà vu à la télé l’été dernier, garçon")
GERMAN = changed(TEXTS, _0="Größe und Länge übertrieben, für mich schön; 5 €")
RUSSIAN = [f"Это очень хороший фильм, советую всем посмотреть {i}" for i in range(40)]
SCRIPTS = {
    "Cyrillic": RUSSIAN[0],
    "Greek": "Μια πολύ καλή ταινία, τη συνιστώ σε όλους",
    "Arabic": "فيلم جيد جدا، أنصح الجميع بمشاهدته",
    # U+4E00 ends in a NUL, and U+4E0A in a line feed
    "Chinese": "这是一部非常好的电影，网上一致推荐，我会上网再看一遍",
}
EMPTY_ROWS = changed(TEXTS, _1="", _30="  ")
NULS = changed(TEXTS, _0=f"{SECRET} a\0b c", _9="d\0 e")
BELLS = changed(TEXTS, _0="a\x07 b\x1b[2J c", _9="d\x08 e")
DATES = [date(2024, 1, 1 + i % 2) for i in range(40)]
PAIRS = [{"stars": 1}] * 40
HALVES = pa.DictionaryArray.from_arrays(
    pa.array([0, 1] * 20), pa.array([np.float16(1.5), np.float16(2)])
)
# categories with a value twice, or none, and times with billionths of a second
TWICE, GAP = (
    pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 1] * 10), pa.array(values))
    for values in (["bad", "good", "bad"], ["bad", "good", None])
)
TIMES = pa.array([1, 10**9] * 20, pa.time64("ns"))
# what stands before a quote, and what stands behind the one that belongs to it
QUOTED = [(" ", ""), (" ", " "), ("\t", ""), ("\xa0", ""), ("\u200b ", ""), (" ", " she said")]
LABEL = {"attributes": ("label",)}
STARRED = changed([1, 2] * 20, _3="n/a", _4="1")  # a gap and a number that Excel has as texts
STARS = LABEL | {"labels": LabelRules({"label": [1, 2]}, drop=True), "records": 39}
JOIN = LABEL | {"text": "{title}: {review}"}
UNBALANCED = ["good"] * 37 + ["bad"] * 3

READ = {
    "plain": Messy(cells()),
    "byte order mark": Messy(cells().encode("utf-8-sig")),
    "semicolons in cp1252": Messy(
        cells(FRENCH, sep=";").encode("cp1252"),
        "read as cp1252, separated by ; (detected, `encoding` and `delimiter` to change)",
        FRENCH[0],
    ),
    "semicolons in cells too": Messy(cells(GERMAN, sep=";").encode("cp1252"), "cp1252", GERMAN[0]),
    "semicolons, and commas in all texts": Messy(
        cells([f"{t}, and, so" for t in TEXTS], sep=";"), SEMICOLON, f"{TEXTS[0]}, and, so"
    ),
    "commas, semicolons in texts": Messy(
        cells([f"{t}; and" for t in TEXTS]), first=f"{TEXTS[0]}; and"
    ),
    "semicolons, and one comma in each row": Messy(
        cells(sep=";", header=(*HEADER, "price, EUR"), more=[["1,50"] * 40]), SEMICOLON
    ),
    "tabs in a .csv": Messy(cells(sep="\t"), "separated by tabs"),
    "commas in a .tsv": Messy(cells(), "separated by ,", file="t.tsv"),
    "a delimiter that is given": Messy(cells(sep="~"), "read as UTF-8", delimiter="~"),
    "an encoding that is given": Messy(
        cells(FRENCH).encode("cp850", "replace"),
        "read as cp850, separated by , (detected, `delimiter` to change)",
        FRENCH[0].replace("’", "?"),
        encoding="cp850",
    ),
    "Excel's own first line": Messy("sep=;\r\n" + cells(sep=";", end="\r\n"), SEMICOLON),
    "UTF-16 of sheets": Messy(cells(FRENCH, sep="\t").encode("utf-16"), "UTF-16 & tabs", FRENCH[0]),
    "UTF-16 without its mark": Messy(cells().encode("utf-16-le"), "read as UTF-16-le"),
    **{
        f"{kind.upper()} of {script}": Messy(
            cells([f"{text} {i}" for i in range(40)]).encode(kind), f"UTF{kind[3:]}", f"{text} 0"
        )
        for kind in ("utf-16-le", "utf-16-be")
        for script, text in SCRIPTS.items()
    },
    "UTF-16 of Cyrillic in one line": Messy(
        json.dumps(lines(RUSSIAN), ensure_ascii=False).encode("utf-16-be"),
        "UTF-16-be",
        RUSSIAN[0],
        file="t.json",
    ),
    "UTF-16 of a name without its order": Messy(
        cells().encode("utf-16-be"), "read as UTF-16-be", encoding="utf-16"
    ),
    "UTF-32 of a name without its order": Messy(
        cells().encode("utf-32-le"), "read as UTF-32-le", encoding="utf-32"
    ),
    "UTF-32": Messy(cells().encode("utf-32"), "read as UTF-32"),
    "Cyrillic of Windows": Messy(cells(RUSSIAN).encode("cp1251"), "cp1251", RUSSIAN[0]),
    "gzipped semicolons": Messy(gzip.compress(cells(sep=";").encode()), SEMICOLON, file="t.csv.gz"),
    "carriage returns": Messy(cells(end="\r\n")),
    "carriage returns, twice": Messy(cells(end="\r\r\n")),
    "carriage returns alone": beginning("two,\nlines", end="\r"),
    "a name of two lines": Messy(cells().replace("review", '"re\rview"', 1), text="re\rview"),
    "a name like a packed file": Messy(cells(header=("PAR1", "label")), text="PAR1"),
    "line breaks and quotes in cells": beginning('two\n"lines", and\r\nmore'),
    "texts of several lines": Messy(
        cells(
            changed(TEXTS, _0=f"{SECRET} scored 4,5\nof five\n, I think", _1="so 4,3\n1,2"),
            [*"45"] * 20,
        ),
        first=f"{SECRET} scored 4,5\nof five\n, I think",
    ),
    "texts whose lines look like rows": beginning(
        f"{SECRET} 4,5\nEssen 3,5\nService 5", [*"45"] * 20, multiline=True
    ),
    "a blank before a quote, in a text": beginning(f' "{SECRET} room"'),
    "blank lines": Messy(cells().replace("\n", "\n\n")),
    "a blank line before the header": Messy("\n \n" + cells()),
    "NUL characters": Messy(cells(NULS), "removed 2 NUL characters", f"{SECRET} ab c"),
    "control characters": Messy(
        cells(BELLS), "removed control characters from 2 texts (`strict`", "a b[2J c"
    ),
    "damaged UTF-8": Messy(
        cells(FRENCH).encode() + b"caf\xff and\xc3,bad\n", "1 text holds �", FRENCH[0], records=41
    ),
    "characters that were lost": Messy(cells(changed(TEXTS, _3="caf\ufffd")), "1 text holds �"),
    "labels with lost characters": Messy(
        cells(labels=changed(LABELS, _3="caf\ufffd", _5="caf\ufffd")),
        "in 2 rows, first in row 5. Labels that differed only there are now one",
    ),
    "few rows without text": Messy(cells(EMPTY_ROWS), LEFT_OUT.format(2), records=38),
    "few rows without label": Messy(
        cells(labels=changed(LABELS, _5="", _6="")), LEFT_OUT.format(2), records=38
    ),
    "rows of separators": Messy(f"{cells()},\n,\n", "out 2 of 42 rows"),
    "many rows without label": Messy(
        cells(labels=LABELS[:30] + [""] * 10), LEFT_OUT.format(10), records=30, drop_empty=True
    ),
    "a label that is rare": Messy(cells(labels=UNBALANCED), "labels from column 'label' (guessed"),
    "two columns that may be labels": Messy(
        cells(header=(*HEADER, "shop"), more=[["x", "y"] * 20]),
        "labels from column 'label' (guessed & leaving out column 'shop'",
    ),
    "words for what is missing": Messy(cells(labels=["NA", "None"] * 20)),
    "numbers with gaps": Messy(cells(labels=[*[1, 2] * 19, 1, ""]), LEFT_OUT.format(1), records=39),
    "numbers as text": in_jsonl(lines(labels=["1", "2"] * 20)),
    "zeros before numbers": Messy(cells(labels=["007", "01"] * 20)),
    "decimal commas": Messy(cells(labels=["1,5", "2,5"] * 20, sep=";"), SEMICOLON),
    "emoji": beginning("👩‍🔬 great 👍🏽"),
    "Chinese without spaces": Messy(
        cells([f"这部电影非常好,我会推荐给所有人{i}" for i in range(40)]),
        "texts from column 'review' (guessed",
        "这部电影非常好,我会推荐给所有人0",
    ),
    "a column without a name": Messy(cells(header=("review", "label", ""), more=[range(40)])),
    "JSONL with blank lines": Messy(jsonl(lines(), "\n\n"), file="t.jsonl"),
    "an array of objects": Messy(json.dumps(lines(), indent=1), file="t.json"),
    "a compressed array": Messy(gzip.compress(json.dumps(lines()).encode()), file="t.json.gz"),
    "JSONL called .json": Messy(jsonl(lines()), file="t.json"),
    "JSONL called .ndjson": Messy(jsonl(lines()), file="t.ndjson"),
    "bzip2": Messy(bz2.compress(cells().encode()), file="t.csv.bz2"),
    "Zstandard": Messy(pa.compress(jsonl(lines()), "zstd", asbytes=True), file="t.jsonl.zst"),
    "an array in an object": Messy(json.dumps({"data": lines()}, indent=1), file="t.json"),
    "nested JSON beside": in_json(lines(about={"a": [1, {"b": None}]}), "leaving out column"),
    "a text that is a number": in_jsonl(
        lines(changed(TEXTS, _3=7)), LEFT_OUT.format(1), records=39
    ),
    "half an emoji": in_json(lines(changed(TEXTS, _0="so \ud83d")), "1 text holds �", first="so �"),
    "two columns for one text": Messy(
        cells(header=(*HEADER, "title"), more=[changed([f"T{i}" for i in range(40)], _0="")]),
        "joining columns 'title', 'review' into one, which the twin calls 'text'",
        f": {TEXTS[0]}",
        **JOIN,
    ),
    "a column like a template": Messy(cells(header=("{review}", "label")), text="{review}"),
    "Excel": excel(table()),
    "Excel with rows before the table": excel(table(), startrow=3),
    "Excel with dates": excel(table(labels=DATES), **LABEL),
    "Excel with escapes": excel(
        table(changed(TEXTS, _0="a_x000D_\nb _x005F_x0041_ _xD83D__xDE00_")),
        first="a\r\nb _x0041_ \U0001f600",
    ),
    "two sheets": excel(table(), table()[:2], said="read the first of 2 sheets"),
    "a chart, and a hidden sheet": excel(
        table()[:2], table(), has_chart=True, hidden=("s0",), said="read the first of 2 sheets"
    ),
    "another sheet": excel(table()[:2], table(), split="s1"),
    "Feather": Messy(lambda path: table().to_feather(path), file="t.feather"),
    "Feather of polars": Messy(feather_of_polars, file="t.feather"),
    "Feather with categories of halves": stream(pa.table({"review": TEXTS, "label": HALVES})),
    "columns of no use that pandas lacks": stream(
        pa.table({"review": TEXTS, "label": TWICE, "at": TIMES, "of": GAP}),
        "leaving out columns",
        **LABEL,
    ),
    "Excel with numbers as texts": excel(
        table(labels=STARRED), said="leaving out 1 of 40 rows", **STARS
    ),
    "times as labels": parquet(pa.table({"review": TEXTS, "label": TIMES}), **LABEL),
    "an index with a name": parquet(table().set_index("review")),
    "an empty group of rows": Messy(
        groups_of_rows(table()[:9], table()[:0], table()[9:]), file="t.parquet"
    ),
    "a stream of Arrow's": stream(pa.Table.from_pandas(table())),
    "dates as labels": parquet(table(labels=DATES), **LABEL),
    "decimals as labels": parquet(table(labels=[Decimal("1.50"), Decimal(2)] * 20)),
    "categories": parquet(table(labels=pd.Categorical(LABELS))),
}

REFUSED = {
    "nothing": Messy(b"", "the table has no rows"),
    "a header alone": Messy(b"review,label\n", "the table has no rows"),
    "columns alone": parquet(table()[:0], "the table has no rows"),
    "an empty array": Messy(b"[]", "the table has no rows", file="t.json"),
    "an empty sheet": excel(pd.DataFrame(), said="the table has no rows"),
    "no header": Messy(cells(header=None), "header row is missing, add a line of names"),
    "no header, and labels that are named": Messy(
        cells(labels=LABELS, header=None), "number 1 is like one & `text`", attributes=("bad",)
    ),
    "no header above what nothing repeats": Messy(
        cells(labels=[f"{SECRET}{i}" for i in range(40)], header=None),
        "It has columns number 1, number 2 (is the header row missing? Add a line of names",
        text="review",
    ),
    "two columns of one name": Messy(cells(header=("a", "a")), "two columns have the same name"),
    "a row too wide": Messy(cells() + f"{SECRET},a,b\n", "row 42 has 3 cells & quotes"),
    "a line above the header": Messy(
        f"# {SECRET}\n{cells()}", "row 2 has 2 cells & or remove lines above the header"
    ),
    "a row too short, after a blank line": Messy(cells() + f"\n{SECRET}\n", "row 43 has 1 cells"),
    "a quote that is never closed": Messy(cells() + f'"{SECRET},a\n', "row 42 & cell"),
    "a quotation that runs over rows": Messy(
        cells() + f'"{SECRET},a\nfine,b\n"more,a\n', "row 42 has a quote"
    ),
    "a quotation that ends in a later row": Messy(
        f'review,label\n{SECRET},a\n"{SECRET},a\nfine,b\nhe is 6 feet 1",b\nwell,a\n',
        "row 3 has a quotation that runs over several rows",
    ),
    "the same where texts come last": Messy(
        f'label,review\na,{SECRET}\na,"{SECRET}\na,fine\nb,he is 6 feet 1"\nb,well\n',
        "row 3 has a quotation that runs over several rows",
    ),
    "a quotation over rows, blank lines and rows of another width": Messy(
        f'review,label\n{SECRET},a\n"{SECRET},a\n\nso, so,b\nfine,b\nhe is 6 feet",b\nwell,a\n',
        "row 3 has a quotation that runs over several rows",
    ),
    "a quotation over rows with numbers": Messy(
        cells(labels=[str(i / 7) for i in range(40)])
        .replace(f"{TEXTS[9]},", f'"{TEXTS[9]},')
        .replace(f"{TEXTS[30]},", f'{TEXTS[30]}",'),
        "row 11 has a quotation that runs over several rows",
    ),
    "a quotation over rows in the header": Messy(
        f'review,"label\n{SECRET},a\n{SECRET},b\nc"\n{SECRET},a\n', "the header has a quotation"
    ),
    **{
        f"{before!r} before a quote and {behind!r} behind": Messy(
            f'{cells()}"{SECRET}, and more",{before}"a"{behind}\n', "row 42 has a blank before"
        )
        for before, behind in QUOTED
    },
    "a quotation that would be two records": Messy(
        f'{cells()}{SECRET}, "of two\nlines, good"\n', "row 42 has a blank before a quote"
    ),
    "a return that would make two records": Messy(
        f"{cells()}{SECRET},bad\rmore,good\n", "row 42 has a line break & double quotes"
    ),
    "the same in a file of Windows": Messy(
        cells(end="\r\n") + f"{SECRET},bad\rmore,good\r\n", "row 42 has a line break"
    ),
    "a line feed in a file of returns": Messy(
        cells(end="\r") + f"{SECRET},bad\nmore,good\r", "row 42 has a line break"
    ),
    "one column": Messy("review\n" + "\n".join(TEXTS), "no other column looks like a column of"),
    "text behind a quotation": Messy(cells() + f'"{SECRET}" he said,a\n', "row 42 has a quote"),
    "quotes behind backslashes": Messy(cells() + f'"a \\"{SECRET}\\"",a\n', "row 42 has a quote"),
    "damaged UTF-8": Messy(
        cells(FRENCH).encode() + b"\xff,bad\n", "row 42 is not UTF-8 text", strict=True
    ),
    "an encoding that is not its own": Messy(
        cells(FRENCH).encode("cp1252"), "row 2 is not ascii text", encoding="ascii"
    ),
    "an unknown encoding": Messy(
        cells(["\x81\x8d\x8f\x90\x9d" * 9] * 40).encode("latin-1"), "`encoding`"
    ),
    "a damaged header": Messy(b"t\xffxt \xc3\xa9\xc3\xa9,l\na,b\n", "the header is not UTF-8"),
    "semicolons or commas": Messy(
        cells(sep=";", header=(*HEADER, "a,b,c"), more=[["1,2,3"] * 40]),
        "`delimiter` may be ',' or ';'. Name it",
    ),
    "UTF-8 that is called UTF-16": Messy(
        cells(), "no byte order mark. Add -le or -be", encoding="utf-16"
    ),
    "NUL characters in another encoding": Messy(
        cells(changed(FRENCH, _3="a\0b")).encode("cp1252"), "not UTF-8, and has NULs"
    ),
    "control characters throughout": Messy(b"\4\5," * 99, "is not text"),
    "brackets": Messy(b"[" * 100_000, "line 1 is not valid JSON", file="t.jsonl"),
    "no Parquet": Messy(SECRET, "not a readable Parquet", file="t.parquet"),
    "an older Excel file": Messy(SECRET, "unknown ending & .xlsx", file="t.xls"),
    "gzip that is cut off": Messy(
        gzip.compress(cells().encode())[:-9], "cut off. Copy", file="t.csv.gz"
    ),
    "a picture": Messy(b"\x89PNG" + bytes(99), "is not text"),
    "NUL characters, strictly": Messy(cells(NULS), "row 2 has a NUL", strict=True),
    "characters that were lost, strictly": Messy(
        cells(changed(TEXTS, _3="caf\ufffd")), "row 5: contains �", strict=True
    ),
    "labels with lost characters, strictly": Messy(
        cells(labels=changed(LABELS, _3="caf\ufffd")),
        "in one row, row 5. Save the file as",
        strict=True,
    ),
    "controls, strictly": Messy(cells(BELLS), "row 2: contains a control", strict=True),
    "empty rows, strictly": Messy(cells(EMPTY_ROWS), "first in row 3", strict=True),
    "many rows without label": Messy(
        cells(labels=changed(LABELS, _5="", _6="", _7="")), "in 3 of 40 rows, first in row 7"
    ),
    "a key twice": Messy(
        jsonl(lines()) + f'{{"review": "{SECRET}", "label": "a", "review": "b"}}'.encode(),
        "line 41 & has a key twice",
        file="t.jsonl",
    ),
    "a key twice in an array": Messy(
        f'[{{"review": "{SECRET}", "label": "a", "label": "b"}}]', "item 1 & twice", file="t.json"
    ),
    "two kinds": in_jsonl(lines(labels=["1", 2] * 20), "mixes text, numbers"),
    "one text among numbers": excel(
        table(labels=STARRED), said="first in row 5. Make & declare the values", **LABEL
    ),
    "one number among texts": in_jsonl(lines(labels=changed(LABELS, _3=2)), "first in line 4"),
    "objects as labels": in_jsonl(lines(labels=PAIRS), "other than text, numbers", **LABEL),
    "two columns of texts": Messy(
        cells(header=(*HEADER, "title"), more=[[f"some title words {i}" for i in range(40)]]),
        "may each be a column of texts & {title}: {body}",
    ),
    "an empty template": Messy(cells(), "put column names between", **JOIN | {"text": "{}"}),
    "a template of no such column": Messy(cells(), "no column 'title'", **JOIN),
    "a template of objects": in_jsonl(lines(title={"a": SECRET}), "lists or objects", **JOIN),
    "two tables inside": in_json({"data": lines(), "rows": lines()}, "more behind its array"),
    "a number behind the rows": in_json({"data": lines(), "n": 40}, "more behind its array"),
    "pandas' own JSON": Messy(
        lambda path: table().to_json(path), "columns or rows & orient='records'", file="t.json"
    ),
    "pandas' split JSON": Messy(
        lambda path: table().to_json(path, orient="split"), "orient='records'", file="t.json"
    ),
    "a folder of Parquet": Messy(
        lambda path: table().to_parquet(path, partition_cols=["label"]),
        "pandas.read_parquet",
        file="t.d",
    ),
    "texts without a format": Messy(cells(), "Rename it to .csv, .tsv or", file="t.txt"),
    "a packed table": Messy(zip_of(1), "Unpack it", file="t.csv.zip"),
    "bzip2 that is cut off": Messy(
        bz2.compress(cells().encode())[:-9], "cut off. Copy", file="t.csv.bz2"
    ),
    "Zstandard that is none": Messy(SECRET, "data are damaged", file="t.jsonl.zst"),
    "Zstandard that is cut off": Messy(
        pa.compress(cells().encode(), "zstd", asbytes=True)[:-9], "cut off. Copy", file="t.csv.zst"
    ),
    "Excel called CSV": excel(
        table(), said="Unpack it, or name the file by its kind", file="t.csv"
    ),
    "Parquet called JSONL": parquet(table(), "Unpack it, or name", file="t.jsonl"),
    "a pipe": Messy(os.mkfifo, "is no file. Pipe it in"),
    "bytes": parquet(
        table([text.encode() for text in TEXTS]), "no text but bytes. Decode them", text="review"
    ),
    "text that is not UTF-8": parquet(
        pa.table({"review": pa.array([b"\xff"] * 40).view(pa.string()), "label": LABELS}),
        "not a readable Parquet",
    ),
    "lists as texts": parquet(table([[text] for text in TEXTS]), "holds no text", text="review"),
    "numbers as texts": in_jsonl(
        lines(changed([None] * 40, _3=5, _4=True)), "no text (it is of no one kind)", text="review"
    ),
    "no text at all": in_jsonl(lines([None] * 40), "no text (it is empty)", text="review"),
    "lists": in_json([[SECRET, "a"]], "item 1 & array of objects"),
    "an array cut off": Messy(
        json.dumps(lines()).encode()[:-20], "item 40 & array of objects", file="t.json"
    ),
    "a line cut off": Messy(
        jsonl(lines(), "\n\n")[:-20], "line 79 & one object a line", file="t.jsonl"
    ),
    "a delimiter": parquet(table(), "for text files", delimiter=";"),
    "a sheet that is not there": excel(table(), said="no sheet 's9'", split="s9"),
    "an Excel file with a password": Messy(b"\xd0\xcf\x11\xe0" * 99, "password", file="t.xlsx"),
    "a bomb": Messy(zip_of(2**20 + 1), "inflates to more", file="t.xlsx"),
    "a Feather file that inflates": Messy(
        lambda path: table(["x" * 2**13] * 300, ["a", "b"] * 150).to_feather(
            path, compression="zstd"
        ),
        "inflates to more than 100 times",
        file="t.feather",
    ),
    "a Feather file of more rows than bytes": stream(
        pa.table({"label": pa.nulls(10**8)}), "rows and & bytes"
    ),
    "an Excel file of entities": bare_excel(
        row(1, "&a;"), "not a readable Excel", f'<!DOCTYPE x [<!ENTITY a "{SECRET}">]>'
    ),
    "an Excel row far below": bare_excel(
        row(1, *HEADER) + row(10**9, SECRET, "a"), "more rows than a sheet"
    ),
    "a note beside an Excel table": bare_excel(
        row(1, *HEADER) + row(2, SECRET, "a", "note"),
        "row 2 has 3 cells & another sheet with `split`",
    ),
}
