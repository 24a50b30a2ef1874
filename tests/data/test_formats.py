from __future__ import annotations

import gzip
import json
import os
import resource
import traceback
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from twinset.data.formats import FORMATS, read_frame, write_frame, written_names
from twinset.errors import InputError

SECRET = "XYZZYMARK"
TEXTS = [
    'plain, with "quotes"',
    "two\nlines\r\nthree",
    "a\rreturn",
    "ünïcödé 日本 🙂",
    "NA",
    "null",
]


def table() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "text": TEXTS,
            "stars": [1, 2, 3, 1, 2, 3],
            "good": [True, False] * 3,
            "score": [0.1, 1 / 3, 1e-9, 2.0, 3.5, 4.25],
            "kind": pd.Categorical(["b", "a", "c"] * 2),
        }
    )


def one_line(error: pytest.ExceptionInfo[InputError]) -> str:
    """Return the message, having checked that neither it nor the traceback tells a cell."""
    message = str(error.value)
    shown = "".join(traceback.format_exception(error.value))
    assert SECRET not in shown and "\n" not in message
    return message


@pytest.mark.parametrize("ending", FORMATS)
def test_round_trip(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"twin{ending}"
    assert write_frame(table(), path) == 0
    expected = table()
    if FORMATS[ending] != "parquet":
        expected["kind"] = expected["kind"].astype("str")
    pd.testing.assert_frame_equal(read_frame(path), expected)
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == ending.endswith(".gz")
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize(
    ("ending", "reader", "builder", "options"),
    [
        (".csv", pd.read_csv, "csv", {"keep_default_na": False}),
        (".csv.gz", pd.read_csv, "csv", {"keep_default_na": False}),
        (".tsv", pd.read_csv, "csv", {"keep_default_na": False, "sep": "\t"}),
        (".jsonl", lambda p: pd.read_json(p, lines=True), "json", {}),
        (".jsonl.gz", lambda p: pd.read_json(p, lines=True), "json", {}),
        (".parquet", pd.read_parquet, "parquet", {}),
    ],
)
def test_pandas_and_datasets_read_what_is_written(
    tmp_path: Path, ending: str, reader, builder: str, options: dict
) -> None:
    from datasets import load_dataset

    path = tmp_path / f"twin{ending}"
    write_frame(table(), path)
    by_pandas = reader(path, **options)
    by_datasets = load_dataset(
        builder, data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"), **options
    ).to_pandas()
    for frame in (by_pandas, by_datasets):
        assert list(frame.columns) == list(table().columns)
        assert frame["text"].tolist() == TEXTS
        assert frame["stars"].tolist() == [1, 2, 3, 1, 2, 3]
        assert frame["good"].tolist() == [True, False] * 3
        assert frame["score"].tolist() == pytest.approx(table()["score"].tolist())
        assert frame["kind"].tolist() == ["b", "a", "c"] * 2


def test_only_an_empty_csv_cell_is_missing_and_types_hold(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("\ufefftext,n,b\nNA,1,True\nNone,2,False\n,3,True\n\nnull,4,True\n".encode())
    frame = read_frame(path)
    assert frame["text"].isna().tolist() == [False, False, True, False]
    assert frame["text"].dropna().tolist() == ["NA", "None", "null"]
    assert [str(frame[name].dtype) for name in ("n", "b")] == ["int64", "bool"]


def test_long_cells_and_jsonl_types(tmp_path: Path) -> None:
    long = "word " * 60_000
    write_frame(pd.DataFrame({"text": [long], "l": ["x"]}), tmp_path / "t.csv")
    assert read_frame(tmp_path / "t.csv")["text"][0] == long
    (tmp_path / "t.jsonl").write_text('{"date": "1", "ok": true}\n\n{"date": "2020-01-01"}\n')
    frame = read_frame(tmp_path / "t.jsonl")
    assert frame["date"].tolist() == ["1", "2020-01-01"] and frame["ok"][0] is True


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".csv.gz"])
def test_formulas_are_guarded_and_counted(tmp_path: Path, ending: str) -> None:
    cells = ["=1+1", "+1", "-2", "@x", "\t=1", "\r=1", "fine", "a=b", " =1"]
    frame = pd.DataFrame({"text": cells, "n": [-1] * 9, "k": pd.Categorical(["-"] + ["y"] * 8)})
    path = tmp_path / f"t{ending}"
    assert write_frame(frame, path) == 7
    assert read_frame(path)["text"].tolist() == [f"'{c}" for c in cells[:6]] + cells[6:]
    assert read_frame(path)["n"].tolist() == [-1] * 9
    assert frame["text"].tolist() == cells  # the caller's table is not touched
    assert write_frame(frame, path, guard_formulas=False) == 0
    assert read_frame(path)["text"].tolist() == cells


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠"])
@pytest.mark.parametrize("ending", [".csv", ".tsv"])
def test_every_start_of_a_formula_is_guarded_in_cells_and_names(tmp_path, ending, start) -> None:
    frame = pd.DataFrame({f"{start}1": [f"{start}1+1", "fine"], f"'{start}1": ["a", "b"]})
    path = tmp_path / f"t{ending}"
    assert write_frame(frame, path) == 1
    read = read_frame(path)
    assert list(read.columns) == written_names(frame, ending[1:]) == [f"''{start}1", f"'{start}1"]
    assert read.iloc[0, 0] == f"'{start}1+1"
    write_frame(frame, path, guard_formulas=False)
    assert list(read_frame(path).columns) == list(frame.columns)


def test_a_file_is_no_more_open_than_its_folder(tmp_path: Path) -> None:
    for mode, wanted in ((0o700, 0o600), (0o755, 0o644)):
        tmp_path.chmod(mode)
        write_frame(pd.DataFrame({"a": [1]}), tmp_path / "t.csv")
        assert (tmp_path / "t.csv").stat().st_mode & 0o777 == wanted


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_formulas_are_left_where_no_spreadsheet_reads(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"t{ending}"
    assert write_frame(pd.DataFrame({"text": ["=1+1"]}), path) == 0
    assert read_frame(path)["text"].tolist() == ["=1+1"]


def test_format_overrides_ending_and_same_rows_make_same_bytes(tmp_path: Path) -> None:
    write_frame(table(), tmp_path / "t.out", format="jsonl")
    assert json.loads((tmp_path / "t.out").read_text().splitlines()[0])["stars"] == 1
    write_frame(table(), tmp_path / "a.csv.gz")
    write_frame(table(), tmp_path / "b.csv.gz")
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()


BAD_FILES = {
    "latin.csv": (f"text,l\nok,1\n{SECRET} caf\xe9,2\n".encode("latin-1"), ["row 2", "UTF-8"]),
    "header.csv": ("t\xe9xt,l\na,b\n".encode("latin-1"), ["the header", "UTF-8"]),
    "late.csv": (
        b"text,l\n" + b"x,1\n" * 9000 + b"\xff" + SECRET.encode() + b",1\n",
        ["row 9001", "UTF-8"],
    ),
    "wide16.csv": (f"text,l\n{SECRET},1\n".encode("utf-16"), ["UTF-8"]),
    "wide16.jsonl": (f'{{"t": "{SECRET}"}}\n'.encode("utf-16-le"), ["row 1", "UTF-8"]),
    "long.csv": (f"a,b\n1,2\n{SECRET},3,{SECRET}\n".encode(), ["row 2", "3 cells", "quotes"]),
    "short.tsv": (f"a\tb\n1\t2\n{SECRET}\n".encode(), ["row 2", "1 cells"]),
    "open.csv": (f'a,b\n1,2\n3,"{SECRET}\n4,5\n'.encode(), ["row 2", "never closed"]),
    "twice.csv": (f"a,a\n{SECRET},1\n".encode(), ["same name", "rename"]),
    "empty.csv": (b"", ["empty", "header row"]),
    "syntax.jsonl": (f'{{"t": 1}}\n{{"t": "{SECRET}\n'.encode(), ["row 2", "not valid JSON"]),
    "list.jsonl": (f'["{SECRET}"]\n'.encode(), ["row 1", "one object a line"]),
    "deep.jsonl": (b"[" * 100_000, ["row 1", "not valid JSON"]),
    "surrogate.jsonl": (f'{{"t": "{SECRET}\\ud800"}}\n'.encode(), ["row 1", "not valid JSON"]),
    "latin.jsonl": (f'{{"t": "{SECRET}\xe9"}}\n'.encode("latin-1"), ["row 1", "UTF-8"]),
    "no.parquet": (SECRET.encode(), ["Parquet"]),
    "no.csv.gz": (SECRET.encode(), ["gzip", "again"]),
    "cut.csv.gz": (gzip.compress(f"a,b\n{SECRET},1\n".encode())[:-9], ["gzip"]),
    "notes.docx": (SECRET.encode(), ["unknown ending", ".jsonl.gz"]),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files(tmp_path: Path, name: str) -> None:
    content, parts = BAD_FILES[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as error:
        read_frame(tmp_path / name)
    message = one_line(error)
    for part in [str(tmp_path / name), *parts]:
        assert part in message


def test_control_the_leak_check_sees_a_chained_error() -> None:
    with pytest.raises(InputError) as error:
        try:
            float(SECRET)
        except ValueError as cause:
            raise InputError("one line") from cause
    with pytest.raises(AssertionError):
        one_line(error)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.binary(max_size=80), ending=st.sampled_from(list(FORMATS)), header=st.booleans())
def test_any_bytes_are_a_table_or_one_line(
    tmp_path: Path, body: bytes, ending: str, header: bool
) -> None:
    content = (b'a,b\n"' + SECRET.encode() + b'",' if header else b"") + body
    path = tmp_path / f"t{ending}"
    path.write_bytes(gzip.compress(content) if ending.endswith(".gz") else content)
    try:
        assert isinstance(read_frame(path), pd.DataFrame)
    except InputError as error:
        assert SECRET not in str(error) and "\n" not in str(error)
        assert error.__suppress_context__ or error.__context__ is None


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1),
        min_size=1,
        max_size=5,
    )
)
def test_any_text_survives_every_format(tmp_path: Path, texts: list[str]) -> None:
    frame = pd.DataFrame({"text": [f"x{t}" for t in texts], "n": range(len(texts))})
    for ending in (".csv", ".tsv", ".jsonl", ".parquet"):
        write_frame(frame, tmp_path / f"t{ending}")
        assert read_frame(tmp_path / f"t{ending}")["text"].tolist() == frame["text"].tolist()


def test_saved_folders(tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict

    data = Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]})
    data.save_to_disk(str(tmp_path / "one"))
    DatasetDict({"train": data, "test": data}).save_to_disk(str(tmp_path / "two"))
    assert read_frame(tmp_path / "one")["text"].tolist() == ["a", "b"]
    assert str(read_frame(tmp_path / "two", "test")["label"].dtype) == "int64"
    (tmp_path / "other").mkdir()
    for folder, split, part in [
        ("two", None, "choose a split with `split`: train, test"),
        ("two", "dev", "choose a split"),
        ("one", "dev", "choose a split"),
        ("other", None, "not a folder saved by datasets.save_to_disk"),
    ]:
        with pytest.raises(InputError, match=part):
            read_frame(tmp_path / folder, split)


def test_absent_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    for source, part in [
        (tmp_path / "no.csv", "no such file"),
        (tmp_path / "no", "no such file or folder; check the path"),
        ("someone/nothing", "download it and give a CSV, Parquet or JSONL file"),
        ("nothing-here", "no such file or folder, and no such data set"),
    ]:
        with pytest.raises(InputError, match=part) as error:
            read_frame(source, None)
        assert str(source) in one_line(error)
    write_frame(table(), tmp_path / "t.csv")
    with pytest.raises(InputError, match="a file has no splits"):
        read_frame(tmp_path / "t.csv", "train")


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("t.xlsx", "unknown format"),
        ("t.parquet.gz", "unknown format"),
        ("no/t.csv", "cannot be written"),
        ("file/t.csv", "cannot be written"),
        ("folder.csv", "cannot be written"),
        ("n" * 300 + ".csv", "cannot be written"),
    ],
)
def test_places_that_cannot_be_written(tmp_path: Path, name: str, part: str) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder.csv").mkdir()
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(InputError, match=part) as error:
        write_frame(table(), tmp_path / name)
    assert str(tmp_path / name) in one_line(error)
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("ending", FORMATS)
def test_a_write_that_fails_midway_leaves_the_old_file(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"twin{ending}"
    path.write_bytes(b"old")
    noise = [os.urandom(32).hex() for _ in range(4000)]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(InputError, match="has space"):
            write_frame(pd.DataFrame({"text": noise}), path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == [path.name]
    write_frame(pd.DataFrame({"text": noise}), path)  # control: with space it is written
    assert read_frame(path)["text"].tolist() == noise
