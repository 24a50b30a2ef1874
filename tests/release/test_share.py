"""The shared folder is read by `datasets` and pandas, and holds nothing that is not public."""

import json
import os
from functools import partial

import pandas as pd
import pytest

from tests.helpers.handover import TEXTS, description, frame, hand_over, ledger
from twinset.errors import InputError
from twinset.files.atomic import sha256_file
from twinset.privacy.statement.ledger import Ledger
from twinset.release.share import write_share
from twinset.release.verify import verify
from twinset.table.read import FORMATS

LABELS = ["fresh", "rotten", "fresh", "fresh", "rotten", "fresh"]
FORMAT_NAMES = [ending.removeprefix(".") for ending in FORMATS]


@pytest.mark.parametrize("format", FORMAT_NAMES)
def test_datasets_reads_the_folder(tmp_path, format):
    import datasets

    hand_over(tmp_path / "share", format=format, guard_formulas=False)
    loaded = datasets.load_dataset(str(tmp_path / "share"), cache_dir=str(tmp_path / "cache"))
    assert list(loaded) == ["train"]
    assert loaded["train"].to_dict() == {"review": TEXTS, "sentiment": LABELS}


READERS = {
    "parquet": pd.read_parquet,
    "csv": partial(pd.read_csv, keep_default_na=False),
    "csv.gz": partial(pd.read_csv, keep_default_na=False),
    "tsv": partial(pd.read_csv, sep="\t", keep_default_na=False),
    "jsonl": partial(pd.read_json, lines=True),
}


@pytest.mark.parametrize(("format", "read"), READERS.items(), ids=READERS)
def test_pandas_reads_the_twin(tmp_path, format, read):
    twin = hand_over(tmp_path, format=format, guard_formulas=False).twin
    assert twin.name == f"twin.{format}"
    assert read(twin).to_dict("list") == {"review": TEXTS, "sentiment": LABELS}


@pytest.mark.parametrize("format", ["csv", "tsv.gz", "parquet"])
@pytest.mark.parametrize("guard", [True, False])
def test_a_column_that_a_spreadsheet_would_run_is_renamed_openly(tmp_path, format, guard):
    is_renamed = guard and format != "parquet"
    made = description(name="=cmd")
    twin = frame(made)
    paths = write_share(tmp_path, twin, ledger(), made, format, guard_formulas=guard)
    card = paths.card.read_text("utf-8")
    assert ("`=cmd` is called `'=cmd`" in card) == is_renamed
    stated = json.loads(paths.privacy.read_text("utf-8"))["files"]["twin"]["columns"]
    assert stated == ["review", "'=cmd" if is_renamed else "=cmd"]
    assert verify(tmp_path).rows == len(twin)


def test_all_may_read_what_is_shared(tmp_path):
    (tmp_path / "share").mkdir(mode=0o755)
    old = os.umask(0o077)
    try:
        hand_over(tmp_path / "share", format="csv")
    finally:
        os.umask(old)
    assert {p.stat().st_mode & 0o777 for p in (tmp_path / "share").iterdir()} == {0o644}


@pytest.mark.parametrize(
    ("format", "guard", "first", "told"),
    [
        ("csv", True, "'=1+1 is fun", "as formulas: 1"),
        ("csv", False, "=1+1 is fun", "NOT guarded"),
        ("parquet", True, "=1+1 is fun", None),
    ],
)
def test_the_guard_against_formulas_is_stated_in_the_card(tmp_path, format, guard, first, told):
    paths = hand_over(tmp_path, format=format, guard_formulas=guard)
    read = pd.read_csv if format == "csv" else pd.read_parquet
    assert read(paths.twin)["review"][0] == first
    card = paths.card.read_text("utf-8")
    assert told in card if told else "formulas" not in card


def test_privacy_json_names_roles_and_holds_nothing_else(tmp_path):
    spent = ledger()
    paths = hand_over(tmp_path, spent)
    data = json.loads(paths.privacy.read_text("utf-8"))
    assert set(data) == {"format_version", "guarantee", "ledger", "files"}
    assert Ledger.from_dict(data["ledger"]) == spent
    twin = {"format": "parquet", "sha256": sha256_file(paths.twin), "rows": 6}
    twin["columns"] = ["review", "sentiment"]
    card, page = ({"sha256": sha256_file(path)} for path in (paths.card, paths.page))
    assert data["files"] == {"twin": twin, "card": card, "page": page}
    shared = {path.name for path in tmp_path.iterdir()}
    assert shared == {"twin.parquet", "README.md", "privacy.json", "report.html"}
    for path in (paths.card, paths.privacy, paths.page):
        assert str(tmp_path) not in path.read_text("utf-8")


def test_the_same_twin_makes_the_same_files(tmp_path):
    spent = ledger()
    one, two = (hand_over(tmp_path / name, spent, "csv.gz") for name in ("a", "b"))
    for name in ("twin", "card", "privacy", "page"):
        assert getattr(one, name).read_bytes() == getattr(two, name).read_bytes()


def test_a_table_with_another_column_is_never_written(tmp_path):
    made = description()
    table = frame(made).assign(**{"customer id": range(6)})
    with pytest.raises(ValueError, match="nothing was written"):
        write_share(tmp_path, table, ledger(), made)
    assert not list(tmp_path.iterdir())


def test_an_unknown_format_is_refused_in_one_line(tmp_path):
    with pytest.raises(InputError, match=r"`format=xlsx`: unknown; choose one of csv, .*parquet$"):
        hand_over(tmp_path, format="xlsx")
    assert not list(tmp_path.iterdir())
