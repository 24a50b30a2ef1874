"""Every messy table is read, and what was done to it is said; or refused in one line."""

import gzip
import io
import json
import re
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from tests.helpers.refusals import SECRET, refusal
from tests.table.messy_tables import (
    HEADER,
    READ,
    REFUSED,
    TEXTS,
    Messy,
    cells,
    excel,
    jsonl,
    lines,
    table,
)
from twinset.progress import Silent
from twinset.run.request import Source
from twinset.run.story import read_source
from twinset.table.read import read_frame

MENDED = re.compile(r"read |removed |leaving out \d|joining ")
FEW = 7  # rows a piece, so that forty are many


def read(messy: Messy, path: Path, folder: Path | None):
    _, records, notes = read_source(Source(str(path), **messy.options), Silent(), folder)
    return records, notes


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch):
    monkeypatch.setattr("twinset.table.columns.ROWS_AT_ONCE", FEW)
    # limits that small files reach
    monkeypatch.setattr("twinset.files.limits.INFLATED", 2**20)
    monkeypatch.setattr("twinset.table.other_formats.MOST_SHEET_ROWS", 1000)


@pytest.mark.parametrize("name", READ)
def test_a_messy_table_is_read(tmp_path, name):
    messy = READ[name]
    said = messy.said.split(" & ") if messy.said else []
    path = messy.write(tmp_path)
    (records, notes), (by_pieces, same_notes) = (read(messy, path, f) for f in (None, tmp_path))
    assert (len(records), records.texts[0]) == (messy.records, messy.first)
    assert [part for part in said if not any(part in note for note in notes)] == []
    assert [note for note in notes if SECRET in note] == []
    mended = [note for note in notes if MENDED.match(note)]
    assert [note for note in mended if not any(part in note for part in said)] == []
    assert by_pieces.fingerprint() == records.fingerprint() and same_notes == notes
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("name", REFUSED)
def test_a_messy_table_is_refused_in_one_line(tmp_path, name):
    messy = REFUSED[name]
    path = messy.write(tmp_path)
    message = refusal(read, messy, path, None)
    assert [part for part in messy.said.split(" & ") if part not in message] == [], message
    assert message == refusal(read, messy, path, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_how_a_refused_table_was_read_is_said(tmp_path, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(Silent, "say", lambda _, text: said.append(text))
    cover = excel(pd.DataFrame({"A report": ["by A"]}), table())
    assert "looks like a column of texts" in refusal(read, cover, cover.write(tmp_path), None)
    assert said == ["read the first of 2 sheets (`split` names another)"]


PIPED = [
    cells(sep=";").encode(),
    b" " * 2000 + jsonl(lines()),
    json.dumps(lines(), indent=1).encode("utf-16"),
    b" [{}]",
    b"[id],{more}\n1,2\n",
    b"{id},more\n1,2\n",
]


@pytest.mark.parametrize("data", PIPED)
@pytest.mark.parametrize("by_pieces", [False, True])
def test_a_table_comes_by_standard_input(tmp_path, monkeypatch, data, by_pieces):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    frame = read_frame("-", folder=tmp_path if by_pieces else None)
    if len(data) < 20:
        assert frame.shape == ((1, 0) if data.startswith(b" ") else (1, 2))
    else:
        assert frame["review"].tolist() == TEXTS and list(frame) == list(HEADER)
    assert list(tmp_path.iterdir()) == []


def test_errors_name_standard_input(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"a,b\n{SECRET}\n".encode())))
    message = refusal(read_frame, "-", folder=tmp_path)
    assert message.startswith("standard input: row 2 has 1 cells")
    for data in (gzip.compress(b"a,b"), pa.compress(b"a,b", "zstd", asbytes=True), b"PAR1\x15\0"):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
        assert "Unpack it, or name the file" in refusal(read_frame, "-", folder=tmp_path)
