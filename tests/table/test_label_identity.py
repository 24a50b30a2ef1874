"""A label has one identity: those of the source are those of the twin, and those that are measured.

Each kind of label is read from each kind of source, written in each format, and read back as
`evaluate` and `audit` read a twin, with the run's schema and without.
"""

from dataclasses import replace
from decimal import Decimal
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from datasets import ClassLabel, Dataset

from evaluation.release import Twin, labelled, public_records, read_labels, rows_per_label
from tests.helpers.handover import description, ledger
from tests.helpers.tables import with_found
from twinset.errors import InputError
from twinset.release.share import write_share
from twinset.sampling.twin_model import twin_frame
from twinset.table.labels import LabelRules
from twinset.table.read import read_frame
from twinset.table.records import records_from_frame
from twinset.table.schema import plain

# What a file of text may call its labels. Each is a label of its own, spelt as it stands there.
SPELT = {
    "signed": ["+1", "-1"],
    "handles and formulas": ["@home", "=work", "-SUM(A1)"],
    "leading zeros": ["007", "07", "7"],
    "versions": ["3.1", "3.10", "3.9"],
    "exponents": ["1E3", "1000", "2E2", "1e3"],
    "truths": ["TRUE", "FALSE"],
    "Python's truths": ["True", "False"],
    "truths in small letters": ["true", "false"],
    "codes of diseases": ["250.0", "250.00", "401.9"],
    "whole floats": ["0.0", "1.0"],
    "whole numbers": ["-1", "0", "12"],
    "numbers": ["1.5", "2", "0.25"],
    "large numbers": ["9007199254740993", "9007199254740992"],
    "large numbers and a fraction": ["9007199254740993", "9007199254740992", "2.5"],
    "ways to say nothing": ["NA", "None", "null", "nan"],
    "dates": ["3-5", "2024-01-02"],
    "quotes and commas": ['say "yes"', "a, b", "it's"],
    "blanks": ["a", "a b", "a  b"],
    "digits of other scripts": ["١", "٢"],
}
SOURCES = ("csv", "tsv.gz", "jsonl", "xlsx", "parquet", "memory")
# What a source with types may hold, and how each of its values is spelt.
TYPED = {
    "float32": (np.array([3.3, 4.1], "float32"), ["3.3", "4.1"]),
    "float16": (np.array([0.1, 2.5], "float16"), ["0.1", "2.5"]),
    "float64": ([1.0, 2.5], ["1", "2.5"]),
    "int8": (np.array([-1, 1], "int8"), ["-1", "1"]),
    "bool": ([True, False], ["True", "False"]),
    "category of floats": (pd.Categorical([1.5, 2.0]), ["1.5", "2"]),
    "category of float32 that runs down": (
        pd.Categorical(np.array([1, 0, 2], "float32"), np.array([1, 0, 2], "float32")),
        ["1", "0", "2"],
    ),
    "ordered floats": (pd.Categorical([2.0, 1.5], [2.0, 1.5], ordered=True), ["2", "1.5"]),
    "category of float32": (pd.Categorical(np.array([3.3, 4.1], "float32")), ["3.3", "4.1"]),
    "Arrow's float32": (pd.array([3.3, 4.1], "float[pyarrow]"), ["3.3", "4.1"]),
    "dates": (
        pd.Categorical(pd.to_datetime(["2024-02-29", "2023-01-01"]), ordered=True),
        ["2024-02-29", "2023-01-01"],
    ),
    "category": (pd.Categorical(["+1", "3.10"]), ["+1", "3.10"]),
    "ordered": (pd.Categorical(["low", "high"], ["low", "high"], ordered=True), ["low", "high"]),
}
FORMATS = ("csv", "tsv", "jsonl", "parquet")
ROWS = 40


def table_of(values) -> pd.DataFrame:
    labels = pd.Series(values).take([i % len(values) for i in range(ROWS)]).reset_index(drop=True)
    texts = [f"a text number {i}, and more" for i in range(ROWS)]
    return pd.DataFrame({"text": texts, "label": labels}).astype({"text": "str"})


def saved(frame: pd.DataFrame, kind: str, folder: Path) -> pd.DataFrame:
    if kind == "memory":
        return frame
    path = folder / f"source.{kind}"
    write = {
        "csv": lambda: frame.to_csv(path, index=False),
        "tsv.gz": lambda: frame.to_csv(path, index=False, sep="\t"),
        "jsonl": lambda: frame.to_json(path, orient="records", lines=True),
        "xlsx": lambda: frame.to_excel(path, index=False),
        "parquet": lambda: frame.to_parquet(path),
    }
    write[kind]()
    return read_frame(path)


def found_in(frame: pd.DataFrame, rules: LabelRules | None = None, found=(), **how):
    """Return the records of a table, with the label values that are found, and the notes."""
    records, notes = records_from_frame(
        frame, "text", ["label"], rules=rules or LabelRules(), **how
    )
    return with_found(records, notes, dict(found)), notes


def handed_over(records, format: str, folder: Path) -> list[list[str]]:
    """Return the labels of a twin with a source's own rows: as each reader of it sees them."""
    (attribute,), schema = records.schema.attributes, records.schema
    made = replace(description([*attribute.values], attribute.name), schema=schema)
    frame = twin_frame(schema, records.texts, records.labels)
    folder.mkdir()
    file = write_share(folder, frame, ledger(), made, format).twin
    twin = Twin.read(file).frame
    counts = rows_per_label(twin, schema)
    assert sum(counts.values()) == len(frame) and min(counts.values()) > 0
    as_run = read_labels(twin, schema)
    assert as_run.label.tolist() == [value for (value,) in records.labels]
    assert set(map(type, as_run.label)) == set(map(type, attribute.values))
    return [labelled(each, "text", ["label"])[1] for each in (twin, as_run, read_frame(file))]


@pytest.mark.parametrize("is_declared", [False, True], ids=["taken", "declared"])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("kind", SPELT)
def test_labels_of_a_source_are_spelt_as_there(tmp_path, kind, source, is_declared):
    values = SPELT[kind]
    if source == "xlsx" and "=work" in values:
        pytest.skip("pandas writes such a cell as a formula")
    frame = saved(table_of(values), source, tmp_path)
    rules = LabelRules({"label": values}) if is_declared else LabelRules()
    records, notes = found_in(frame, rules)
    expected = table_of(values).label.tolist()
    assert [plain(value) for (value,) in records.labels] == expected
    assert {plain(value) for value in records.schema.attributes[0].values} == set(values)
    # a real table that is compared with the twin, read by the run's rules
    settled = rules.settled(records.schema, {})
    real = public_records(frame, records.schema, settled, "t", notes.append)
    assert [plain(value) for (value,) in real.labels] == expected


@pytest.mark.parametrize(
    "kind", [[0.0, 1.0], [0.5, 1], [Decimal("4.50"), Decimal(5)], [True, False]]
)
def test_equal_numbers_are_one_label_whatever_they_come_from(tmp_path, kind):
    full = table_of(pd.Series(kind, dtype=object if isinstance(kind[0], Decimal) else None))
    gap = full.assign(label=full.label.where(full.index > 0))  # it makes floats of whole numbers
    tables = [saved(f, s, tmp_path) for f in (full, gap) for s in SOURCES if s != "jsonl"]
    for table in tables:
        records, notes = found_in(table)
        settled = LabelRules().settled(records.schema, {})
        labels = dict(zip(records.texts, records.labels, strict=True))
        for other in tables:
            real = public_records(other, records.schema, settled, "t", notes.append)
            pairs = zip(real.texts, real.labels, strict=True)
            assert len(real) == other.label.notna().sum()
            assert all(labels.get(text, label) == label for text, label in pairs)


RARE = {"3.10": "3.1 3.9", "+1": "1 2", "1E3": "1000 200", "007": "7 12"}


@pytest.mark.parametrize(("rare", "usual"), [*RARE.items(), ("TRUE", "True False")])
@pytest.mark.parametrize("is_declared", [False, True], ids=["found", "declared"])
def test_a_label_that_a_run_left_out_is_not_measured(tmp_path, usual, rare, is_declared):
    """It is no other spelling of one that the run has."""
    usual = usual.split()
    frame = saved(table_of([*usual * 4, rare]), "csv", tmp_path)
    rules = LabelRules({"label": usual}, drop=True) if is_declared else LabelRules()
    records, notes = found_in(frame, rules, {"label": dict.fromkeys(usual, 9)})
    settled = rules.settled(records.schema, {})
    real = public_records(frame, records.schema, settled, "t", notes.append)
    assert list(real.texts) == list(records.texts) and len(real) < len(frame)
    assert list(real.labels) == list(records.labels)


@pytest.mark.parametrize("usual", [["1", "0"], ["1", "none"]])
@pytest.mark.parametrize("is_declared", [False, True], ids=["found", "declared"])
def test_a_whole_number_with_a_zero_behind_it_is_that_number(tmp_path, usual, is_declared):
    cells = [*usual * 4, "1.0"]
    frame = saved(table_of(cells).iloc[: len(cells)], "csv", tmp_path)
    rules = LabelRules({"label": usual}) if is_declared else LabelRules()
    records, notes = found_in(frame, rules, {"label": dict.fromkeys(usual, 9)})
    real = public_records(frame, records.schema, rules.settled(records.schema, {}), "t", print)
    for found in (records, real):
        assert list(map(plain, chain(*found.labels))) == [*usual * 4, "1"]


@pytest.mark.parametrize(
    ("ours", "theirs", "message"),
    [
        (["bad", "good"], [0, 1], "'label' is 'bad' or 'good', and this table has numbers"),
        (["3.1", "3.10"], [3.1, 3.1], "'label' is '3.1' or '3.10', and this table has numbers"),
        (["bad", "good"], ["x", None], "'label' is 'bad' or 'good'. Give a table"),
        ([1, 2], [True, False], "'label' is 1 or 2, and this table has booleans"),
    ],
)
def test_a_table_without_labels_of_the_twin_is_refused_in_words(ours, theirs, message):
    schema = found_in(table_of(ours))[0].schema
    with pytest.raises(InputError, match=f"^t: no row has[^`]*{message}[^`]*$"):
        public_records(table_of(theirs), schema, LabelRules().settled(schema, {}), "t", print)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("kind", [*SPELT, *TYPED])
def test_labels_of_a_twin_are_those_of_its_source(tmp_path, kind, format):
    values, spelt = TYPED.get(kind) or (SPELT[kind], SPELT[kind])
    source = "memory" if kind in TYPED else "csv"
    records, _ = found_in(saved(table_of(values), source, tmp_path))
    expected = table_of(spelt).label.tolist()
    for seen in handed_over(records, format, tmp_path / "share"):
        assert seen == expected


@pytest.mark.parametrize("format", FORMATS)
def test_a_class_label_is_known_by_its_name(tmp_path, format):
    labels = [i % 3 - 1 for i in range(ROWS)]
    data = Dataset.from_dict({"text": [f"text {i} and more" for i in range(ROWS)], "label": labels})
    data = data.cast_column("label", ClassLabel(names=["bad", "good"]))
    data.save_to_disk(tmp_path / "folder")
    data.to_parquet(tmp_path / "t.parquet")
    expected = [["bad", "good"][i % 3 - 1] for i in range(ROWS) if i % 3]  # -1: it has none
    for source in (data, tmp_path / "folder", tmp_path / "t.parquet"):
        records, _ = found_in(read_frame(source), drop_empty=True)
        assert records.schema.attributes[0].dtype == "category"
        place = tmp_path / f"share-{type(source).__name__}-{Path(str(source)).name[:6]}"
        for seen in handed_over(records, format, place):
            assert seen == expected


def test_what_pandas_takes_for_numbers_is_another_label(tmp_path):
    """A negative control: read as pandas infers it, labels of the source are lost."""
    lost = []
    for kind, values in SPELT.items():
        saved(table_of(values), "csv", tmp_path)
        inferred = pd.read_csv(tmp_path / "source.csv").label
        if set(map(str, inferred.dropna())) != set(values):
            lost.append(kind)
    assert len(lost) >= 6 and {"signed", "versions", "codes of diseases"} <= set(lost)


def test_a_label_that_no_column_holds_is_a_text(tmp_path):
    codes = ["123456789012345678901", "123456789012345678902"]
    frame = saved(table_of(codes), "csv", tmp_path)
    records, _ = found_in(frame, LabelRules({"label": codes}))
    assert handed_over(records, "parquet", tmp_path / "share")[0] == table_of(codes).label.tolist()
    # what a frame's type cannot hold is declared all the same
    records, _ = found_in(table_of([0, 1]), LabelRules({"label": [0, 1, 2.5]}))
    assert records.schema.attributes[0].dtype == "float64"
    large = pd.Series([10**16, 1e16, 2 * 10**16], dtype=object)
    records, _ = records_from_frame(table_of(large), "text", ["label"])
    assert records.schema.attributes[0].values == (10**16, 2 * 10**16)
    with pytest.raises(InputError, match="more than 64 bits"):
        records_from_frame(table_of([2**70, 2**71]), "text", ["label"])
