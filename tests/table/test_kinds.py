"""Kinds of the other columns: what a cell is, and what a column of messy cells becomes."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from dateutil.tz import tzoffset
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyarrow.feather import write_feather
from pyarrow.parquet import write_table

from tests.helpers.tables import DAYS, LABELS, N, release, rng
from twinset.errors import InputError
from twinset.table.cells import (
    FLOATING,
    SURVEY_SIZES,
    Cells,
    survey_codes,
    survey_places,
)
from twinset.table.columns import table_of
from twinset.table.kinds import Column, ColumnRules
from twinset.table.read import read_frame, write_frame
from twinset.table.records import records_from_frame
from twinset.table.schema import plain

ZONED = pd.Series(DAYS).dt.tz_localize("Europe/Berlin")
COUNTS = rng.integers(-40, 60, N)
# Dates by column: formats of their cells, one after the other, and what each cell of the twin is.
MIXED = ["%d.%m.%Y", "%Y-%m-%d", "%b %d, %Y", *["%d.%m.%Y"] * 6]
OFFSETS = [f"%Y-%m-%d 10:00:00+0{hours}:00" for hours in (1, 1, 2)]
DATED = {
    "iso": (["%Y-%m-%d"], r"202[34]-\d\d-\d\d"),
    "three formats": (MIXED, r"\d\d\.\d\d\.202[34]"),
    "stamp": (["%Y-%m-%d 08:15:%S"], r"202[34]-\d\d-\d\d \d\d:\d\d:\d\d"),
    "first of month": (["01/%m/%Y"], r"\d\d/\d\d/202[34]"),
    "american": (["%m/%d/%Y"], r"[01]\d/\d\d/202[34]"),
    "unpadded": (["%-m/%-d/%Y"], r"(1[012]|[1-9])/([123]\d|[1-9])/202[34]"),
    "short years": (["%d.%m.%y"], r"\d\d\.\d\d\.2[34]"),
    "autumn": (["%d.10.%y"], r"\d\d\.10\.2[34]"),
    "few without zeros": ([*["%d.%m.%y"] * 8, "%-d.%-m.%y"], r"\d\d\.\d\d\.2[34]"),
    "Excel": (["%-d-%b-%y"], r"([123]\d|[1-9])-[A-Z][a-z]{2}-2[34]"),
    "Oracle": (["%d-%b-%Y"], r"\d\d-[A-Z]{3}-202[34]"),
    "SAS": (["%d%b%Y"], r"\d\d[A-Z]{3}202[34]"),
    "Stata": (["%d%b%Y 18:30:%S"], r"\d\d[a-z]{3}202[34] \d\d:\d\d:\d\d"),
    "Japan": (["%Y/%-m/%-d"], r"202[34]/(1[012]|[1-9])/([123]\d|[1-9])"),
    "Taiwan": (["%Y/%-m/%-d 14:05"], r"202[34]/(1[012]|[1-9])/([123]\d|[1-9]) \d\d:\d\d"),
    "China": (["%Y-%-m-%-d"], r"202[34]-(1[012]|[1-9])-([123]\d|[1-9])"),
    "year first": (["%Y/%m/%d"], r"202[34]/\d\d/\d\d"),
    "year.month.day": (["%Y.%m.%d"], r"202[34]\.\d\d\.\d\d"),
    "PostgreSQL": (["%Y-%m-%d 14:02:54.123+00"], r"202[34][-\d]+ [\d:.]+\+00:00"),
    "hours of a zone": (["%Y-%m-%d 14:02:54-05"], r"202[34][-\d]+ [\d:]+-05:00"),
    "Newfoundland": (["%Y-%m-%d 14:02-0330"], r"202[34][-\d]+ [\d:]+-03:30"),
    "evening": (["%d.%m.%Y 18:30"], r"\d\d\.\d\d\.202[34] \d\d:\d\d"),
    "half past six": (["%m/%d/%Y 06:30 PM"], r"\d\d/\d\d/202[34] \d\d:\d\d [AP]M"),
    "zulu": (["%Y-%m-%dT10:00:00.123Z"], r"202[34](-\d\d){2}T\d\d:\d\d:\d\d\.\d{3}Z"),
    "offset": (OFFSETS, r"202[34]-\d\d-\d\d \d\d:\d\d:\d\d\+01:00"),
}
CASES = {"Oracle": str.upper, "SAS": str.upper, "Stata": str.lower}
DATES = {
    name: (list(map(CASES.get(name, str), cells)), "date", "str", pattern)
    for name, (forms, pattern) in DATED.items()
    for cells in [[d.strftime(forms[i % len(forms)]) for i, d in enumerate(DAYS)]]
}
SLOTS = ["2024-03-05 10:00-11", "2024-03-06 10:00-11:30", "2024-03-05 10:00-11:00:00"]
ZIPS = np.array([1067, 80331, 60313, 50667])[rng.integers(0, 4, N)]
HEX = "-0000-4000-8000-000000000000"
SWISS, FRANCS, SPSS = r"(1')?\d{3}\.\d\d", r"CHF (1’)?\d{3}", r"-?0,\d+"
UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
# By column: cells of a CSV file, the kind, the twin's dtype, and a pattern that each cell has.
MESSY = DATES | {
    "comma": ([f"{v / 7:.2f}".replace(".", ",") for v in COUNTS], "number", "str", r"-?\d+,\d\d"),
    "thousands": ([f"{1000 + v:,}" for v in COUNTS], "number", "str", r"\d,\d{3}|9\d\d"),
    "dollars": ([f"${900 + v:,.2f}" for v in range(N)], "number", "str", r"\$(1,)?\d{3}\.\d\d"),
    "euros": ([f"{1000 + v},50 €" for v in range(N)], "number", "str", r"\d{4},\d\d €"),
    "no break": ([f"{v},50\xa0€" for v in range(N)], "number", "str", r"\d{1,4},\d\d €"),
    "no zero": ([f"{v / 7:.2f}".replace("0.", ".") for v in COUNTS], "number", "float64", ".+"),
    "SPSS": ([f"{v / 99:.3f}"[:-1].replace("0.", ",") for v in COUNTS], "number", "str", SPSS),
    "comma typo": (
        [f"{v / 7:.2f}".replace(".", ",") if i % 40 else "1,2,3" for i, v in enumerate(COUNTS)],
        "number",
        "str",
        r"-?\d+,\d\d",
    ),
    "Swiss": ([f"{600 + v:,}.05".replace(",", "'") for v in range(N)], "number", "str", SWISS),
    "francs": ([f"CHF {600 + v:,}".replace(",", "’") for v in range(N)], "number", "str", FRANCS),
    "code before": ([f"USD {v % 99}.50" for v in range(N)], "number", "str", r"USD \d{1,2}\.50"),
    "code behind": ([f"{v % 99},50 EUR" for v in range(N)], "number", "str", r"\d{1,2},50 EUR"),
    "rupees": ([f"₹{v % 99}" for v in range(N)], "number", "str", r"₹\d{1,2}"),
    "zloty": ([f"{v % 99},50 zł" for v in range(N)], "number", "str", r"\d{1,2},50 zł"),
    "course": ([f"AUD{v % 9}" for v in range(N)], "category", "str", r"AUD\d"),
    "places": ([f"({i % 3},{i % 7})" for i in range(N)], "category", "str", r"\(\d,\d\)"),
    "open": (["(" * 5000, *["(1)", "(2)"] * N][:N], "category", "str", r"\([12]\)|other"),
    "stray": ([f"{v} {'EUR' if v else 'USD'}" for v in range(N)], "number", "str", r"\d+ EUR"),
    "no code": ([f"{'$' * (v % 3 > 0)}{v % 99}" for v in range(N)], "number", "str", r"\$\d+"),
    "sign with blank": ([f"{v}{' ' * (v % 2)}€" for v in range(N)], "number", "str", r"\d+ ?€"),
    "signs": ([f"{'$€'[v % 2]}{v % 9}" for v in range(N)], "category", "str", r"[$€]\d"),
    "codes": (
        [f"7 {'EUR' if v % 5 else 'USD'}" for v in range(N)],
        "category",
        "str",
        "7 (EUR|USD)",
    ),
    "plans": (["USD 9", "EUR 8", "GBP 7"] * (N // 3), "category", "str", r"[A-Z]{3} [789]"),
    "few signs": (
        [f"{'' if v % 20 else '$€'[v % 40 > 0]}{v % 9}.50" for v in range(N)],
        "number",
        "float64",
        r"\d\.50?",
    ),
    "few lists": (
        [*["20, 30"] * 8, *["4,5"] * 4, *(f"{v % 90}.25" for v in range(N - 12))],
        "number",
        "float64",
        r"\d+\.\d+",
    ),
    "percent": ([f"{i % 101}%" for i in range(N)], "number", "str", r"\d{1,3}%"),
    "signed": ([f"{i % 9 - 4:+}" for i in range(N)], "number", "int64", r"-?[0-4]"),
    "p value": ([f"{1 + i % 9}e-{8 + i % 3}" for i in range(N)], "number", "float64", r".+e-.+"),
    "compact": ([d.strftime("%Y%m%d") for d in DAYS], "date", "int64", r"202[34][01]\d[0-3]\d"),
    "version": ([f"{i % 9}.{i % 7}.{10 + i % 3}" for i in range(N)], "category", "str", r"[\d.]+"),
    "cents": ([f"{v}.99" for v in range(N)], "number", "float64", r"\d+\.\d+"),
    "truth": (["True", "False"] * (N // 2), "yes/no", "bool", "True|False"),
    "yes no": (["Yes", "No", "Yes"] * (N // 3), "category", "str", "Yes|No"),
    "answers": (["1", "2", "1,2", "1,2,3", "2", "3"] * (N // 6), "category", "str", r"\d(,\d)*"),
    "spaced answers": (["1", "2", "1, 2", "1, 2, 3"] * (N // 4), "category", "str", r"\d(, \d)*"),
    "semicolons": ([*"1231", "1;2", "1; 3"] * (N // 6), "category", "str", r"[\d; ]+"),
    "few pairs": ([str(i % 60) if i % 20 else "3, 4" for i in range(N)], "number", "Int64", r"\d+"),
    "more answers": (["1,2,3", *["1", "2,3"] * 7] * (N // 15), "category", "str", r"\d(,\d)*"),
    "German": (["1-Mai-23", "2-Jun-23", "3-Jul-23"] * (N // 3), "category", "str", r"\d-\w+-23"),
    "unsure": (["?", *["1-May-23", "2-Jul-23"] * 30][:60] * (N // 60), "date", "str", r"\d-\w+-23"),
    "slots": (SLOTS * (N // 3), "category", "str", r"[-\d]+ 10:00-11(:30|:00:00)?"),
    "constant": (["x"] * N, "category", "str", "x"),
    "number": ([str(v) for v in COUNTS], "number", "int64", r"-?\d+"),
    "gaps": ([str(v) if i % 3 else "" for i, v in enumerate(COUNTS)], "number", "Int64", r"-?\d+"),
    "free": ([str(i % 7) if i % 9 else "free" for i in range(N)], "number", "Int64", r"\d"),
    "order_id": ([f"{'A' * (i % 9 > 0)}{i:06}" for i in range(N)], "identifier", "str", r"id-\d+"),
    "orderId": ([f"{i:06}" for i in range(N)], "identifier", "str", r"\d{6}"),
    "session": ([f"{i:08x}{HEX}" for i in range(N)], "identifier", "str", UUID),
    "ticket": ([f"{i:08}" for i in range(N)], "identifier", "str", r"\d{8}"),
    "snowflake": ([str(10**18 + i) for i in range(N)], "identifier", "int64", r"\d+"),
    "account": ([str(10**18 + i % 3) for i in range(N)], "category", "int64", r"10+[012]"),
    "id": ([str(90_000 + i) for i in range(N)], "identifier", "int64", r"\d+"),
    "zip": (["01067", "04109", "80331"] * (N // 3), "category", "str", r"\d{5}"),
    "zip of many": ([f"{v:05}" for v in ZIPS], "category", "str", r"01067|80331|60313|50667"),
    "blank around": ([" x ", "x"] * (N // 2), "category", "str", r" x |x"),
    "many": ([f"c{min(int(v), 999)}" for v in rng.zipf(1.5, N)], "category", "str", r"c\d+|other"),
    "--epsilon": (["low", "high"] * (N // 2), "category", "str", "low|high"),
    "empty": ([""] * N, "gaps", "object", ""),
    "names": ([f"Ann Number {i}" for i in range(N)], "text", "str", ""),
    "titles": ([f"A Title {i}" if i % 4 else "" for i in range(N)], "text", "str", ""),
    "prose": ([f"this is text number {i} of many" for i in range(N)], "text", "str", ""),
    "too many": ([f"text {i}" for i in range(N)], "text", None, ""),
}
# share of cells that are not of the kind
ODD = {
    "free": 1 / 9,
    "comma typo": 1 / 40,
    "few pairs": 1 / 20,
    "few lists": 8 / N,
    "unsure": 1 / 60,
}


@pytest.fixture(scope="module")
def messy(tmp_path_factory):
    path = tmp_path_factory.mktemp("messy") / "t.csv"
    pd.DataFrame({name: cells for name, (cells, *_) in MESSY.items()}).to_csv(path, index=False)
    frame = read_frame(path)
    columns, model = release(frame)
    return frame, columns, model.draw(LABELS, 0), path


@pytest.mark.parametrize("name", MESSY)
def test_a_messy_column_keeps_its_kind_type_and_spelling(messy, name):
    frame, columns, twin, _ = messy
    cells, kind, dtype, pattern = MESSY[name]
    assert columns[name].kind == kind and (columns[name].odd > 0) == (name in ODD)
    columns[name].check()
    assert (name in twin) == (dtype is not None)  # None: more texts than are written
    if dtype is None:
        return
    assert str(twin[name].dtype) == dtype
    own = twin[name].dropna().astype(str)
    assert own.str.fullmatch(pattern).all()
    gaps = ODD.get(name, sum(cell == "" for cell in cells) / N)
    assert twin[name].isna().mean() == pytest.approx(gaps, abs=0.06)


def test_numbers_come_back_as_they_are_distributed(messy):
    drawn = messy[2]["number"].to_numpy()
    assert (drawn.min(), drawn.max()) == (COUNTS.min(), COUNTS.max())
    assert drawn.mean() == pytest.approx(COUNTS.mean(), abs=4)


@pytest.mark.parametrize("power", [-9, -3, 0, 6, 12, 13, 14])
def test_numbers_of_every_size_come_back_near_it(power):
    """Also times of 14 digits, and amounts of up to 10^15."""
    real = 10.0**power * (1 + np.random.default_rng(0).random(N))
    drawn = release(pd.DataFrame({"a": real}), sigma=1.0)[1].draw(LABELS, 0)["a"]
    assert 0.5 < drawn.median() / np.median(real) < 2


def test_a_written_twin_is_read_back_with_the_same_types(messy, tmp_path):
    _, columns, twin, path = messy
    decimals = {name: c.decimals for name, c in columns.items() if 0 < c.decimals < FLOATING}
    write_frame(twin, tmp_path / "twin.csv", None, False, decimals=decimals)
    real, again = pd.read_csv(path), pd.read_csv(tmp_path / "twin.csv")
    unlike = {"free", "few pairs", "few lists", "few signs", "three formats"}
    for name in set(twin) - unlike - {n for n, c in columns.items() if c.kind == "text"}:
        assert again[name].dtype == real[name].dtype, name


@pytest.mark.parametrize(
    ("cells", "odd"),
    [
        (pd.array([1] * N, "Int64"), 2.5),
        (pd.array([1] * N, "int64[pyarrow]"), 2.5),
        (np.ones(N, np.int64), 2**63 + 5),
        (np.ones(N, np.int64), None),
        (np.ones(N, np.int64), 2.5),
        (pd.Series(DAYS).astype("datetime64[us]"), pd.Timestamp("2024-01-01 00:00:00.000000001")),
        (pd.Series(DAYS).astype("datetime64[s]"), pd.Timestamp("2024-01-01 00:00:00.5")),
        (pd.Series(["1", "2"] * (N // 2), dtype="str"), 7),
        (pd.Series([1, 2] * (N // 2), dtype="category"), "x"),
    ],
)
def test_one_cell_decides_no_type_of_a_table_in_memory(cells, odd):
    plain = pd.Series(cells)
    family = "pyarrow" if "pyarrow" in str(plain.dtype) else "numpy_nullable"
    other = pd.Series([odd, *plain.tolist()[1:]])
    if isinstance(plain.dtype, pd.CategoricalDtype):
        other = other.astype("category")
    elif plain.dtype in ("Int64", "int64[pyarrow]"):
        other = other.convert_dtypes(dtype_backend=family)
    assert other.dtype != plain.dtype  # or there was nothing to see
    rules = ColumnRules.of(None, {"a": "category"} if plain.dtype == "category" else None)
    models = [release(pd.DataFrame({"a": each}), rules, sigma=1.0)[1] for each in (plain, other)]
    one, two = (model.draw(LABELS, 0)["a"].dtype for model in models)
    assert one == two


STATED = {
    "int32": pa.array([1, 2] * (N // 2), pa.int32()),
    "int64": pa.array([1, 2] * (N // 2), pa.int64()),
    "uint8": pa.array([1, 2] * (N // 2), pa.uint8()),
    "whole": pa.array([1.0, 2.0] * (N // 2), pa.float64()),
    "float32": pa.array([1, 2.5] * (N // 2), pa.float32()),
    "truth": pa.array([True, False] * (N // 2)),
    "text": pa.array(["a", "b"] * (N // 2)),
    "digits": pa.array(["1", "2"] * (N // 2)),
    "stamp": pa.array(pd.Series(DAYS), pa.timestamp("us")),
    "zoned": pa.array(ZONED, pa.timestamp("ms", "Europe/Berlin")),
    "day": pa.array(pd.Series(DAYS).dt.date, pa.date32()),
    "group": pa.array(["a", "b"] * (N // 2)).dictionary_encode(),
}


@pytest.mark.parametrize("ending", ["parquet", "feather"])
@pytest.mark.parametrize("name", STATED)
def test_a_gap_in_a_file_changes_no_stated_type(name, ending, tmp_path):
    """The files state the same type, and one record of them differs."""
    write = {"parquet": write_table, "feather": write_feather}[ending]
    path, whole, found = tmp_path / f"t.{ending}", STATED[name], []
    for cells in (whole, pa.concat_arrays([pa.nulls(1, whole.type), whole[1:]])):
        write(pa.table({"a": cells}), path)
        columns, model = release(read_frame(path), sigma=1.0)
        found.append((columns["a"].dtype, model.draw(LABELS, 0)["a"].dtype))
    assert found[0] == found[1]
    assert found[0][1] == "float64" or name != "whole"


ODD_TYPES = {
    "time zone": (ZONED, str(ZONED.dtype)),
    "user_id": (pd.Series(range(N), dtype="int16"), "int64"),
    "value called other": (pd.Series(["a", "other"] * (N // 2), dtype="category"), "category"),
    "nameless zone": (pd.Series(DAYS).dt.tz_localize(tzoffset(None, 3600)), "datetime64[us]"),
}


@pytest.mark.parametrize("name", ODD_TYPES)
def test_odd_types_are_drawn_and_rebuilt(name):
    cells, dtype = ODD_TYPES[name]
    _, model = release(pd.DataFrame({name: cells}))
    twin = model.draw(np.repeat(LABELS, 60), 0)
    assert str(twin[name].dtype) == dtype
    assert model.rebuild(twin)[name].dtype == twin[name].dtype


FORGED = [
    {"dtype": "S1000000000"},
    {"dtype": "int64" * 100},
    {"kind": "free"},
    {"kind": "date", "form": "%c" * 1000, "edges": (0.0, 1.0)},
    {"kind": "number", "edges": (0.0, float("nan"))},
    {"kind": "date", "form": "%-d" * 1000, "edges": (0.0, 1.0)},
    {"kind": "yes/no", "form": "=1/=2"},
    {"kind": "yes/no", "form": 3},
    {"kind": "identifier", "form": "0" * 1000},
    {"affix": "#" * 1000},
    {"odd": float("nan")},
    {"odd": "x"},
    {"is_closed": "x"},
    {"kind": "number", "edges": (0.0, 1e300)},
    {"kind": "number", "edges": (1.0, 0.0)},
    {"kind": "number", "edges": (0.0, 1.0), "decimals": 200_000_000},
    {"values": ("a", "\x1b[2J")},
    {"edges": (0.0, 1.0)},
    {"values": tuple(map(str, range(1000)))},
]


@pytest.mark.parametrize("changed", FORGED)
def test_a_forged_column_is_refused_before_anything_is_drawn(changed):
    column = Column("a", "category", "str", ("x",))
    column.check()
    with pytest.raises(ValueError, match="no run describes"):
        replace(column, **changed).check()


FILMS = pd.DataFrame({"text": [f"good film {i}" for i in range(40)], "label": ["a", "b"] * 20})


@pytest.mark.parametrize("keep", [ColumnRules(), ColumnRules.of("all")])
@pytest.mark.parametrize("cell", ["city", "What did you think of it? Please explain."])
def test_a_cell_like_a_name_drops_no_column(cell, keep):
    frame = FILMS.assign(city=["York"] * 39 + [cell])
    records, _ = records_from_frame(frame, "text", ["label"], keep=keep)
    assert list(records.other_columns()) == ["city"]


def test_in_jsonl_the_order_of_keys_decides_nothing():
    rows, orders = FILMS.assign(age=range(40), ok=1).to_dict("records"), []
    for first in (rows[0], dict(reversed(rows[0].items()))):
        frame = table_of([first, *rows[1:]])
        named = ColumnRules.of(["ok", "age"])
        records, _ = records_from_frame(frame, "text", ["label"], keep=named)
        orders.append((records.schema.columns, list(records.other_columns())))
    assert orders[0] == orders[1]


def test_too_many_columns_are_refused():
    frame = FILMS.join(pd.DataFrame(1, FILMS.index, [f"c{i}" for i in range(300)]))
    with pytest.raises(InputError, match="Name some with `columns`"):
        records_from_frame(frame, "text", ["label"], keep=ColumnRules())


def test_columns_that_depend_on_one_another_stay_together():
    group = np.array(["a", "b", "c", "d"])[rng.integers(0, 4, N)]
    frame = pd.DataFrame({"group": group, "copy": np.char.upper(group), "label": LABELS})
    twin = release(frame)[1].draw(LABELS, 0)
    assert (twin["group"].str.upper() == twin["copy"]).mean() > 0.99
    assert (twin["label"] == LABELS).mean() > 0.99  # and with the labels


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, "identifier") for name in ("Ticket No", "Order No.", "Nr.", "Ticket#", "Unnamed: 0.1")]
    + [(name, "number") for name in ("C#x", "Unnamed: 12", "dno.", "Ends.")],
)
def test_numbers_that_never_repeat_are_identifiers_by_their_name(name, kind):
    assert release(pd.DataFrame({name: 10_001 + np.arange(N)}))[0][name].kind == kind


@pytest.mark.parametrize("sigma", [0.01, 2.0])
@pytest.mark.parametrize(
    ("cells", "form"),
    [
        ([f"01/{1 + i % 12:02}/2023" for i in range(N)], "%d/%m/%Y"),
        ([f"{1 + i % 12:02}/01/2023" for i in range(N)], "%d/%m/%Y"),
        ([f"{1 + i % 12:02}/{1 + i % 28:02}/2023" for i in range(N)], "%m/%d/%Y"),
        ([f"{1 + i % 28} May 2023" for i in range(N)], "%-d %b %Y"),
    ],
)
def test_noise_chooses_no_date_format(cells, form, sigma):
    assert release(pd.DataFrame({"a": cells}), sigma=sigma)[0]["a"].form == form


def test_small_numbers_stay_small():
    cells = 10.0 ** -rng.uniform(6, 12, N)
    columns, model = release(pd.DataFrame({"p": cells}))
    twin = model.draw(LABELS, 0)["p"]
    assert twin.dtype == "float64" and (twin > 0).all()
    assert np.log10(twin).mean() == pytest.approx(np.log10(cells).mean(), abs=0.2)
    columns["p"].check()


def test_numbers_are_written_with_their_decimals(tmp_path):
    frame = pd.DataFrame({"a": [5.0, None, 4.5], "b": [1.0, 2.0, 3.0], "c": [1.0, 2.0, 3.0]})
    write_frame(frame, tmp_path / "t.csv", decimals={"a": 2, "b": 1})
    rows = [line.split(",") for line in (tmp_path / "t.csv").read_text().splitlines()[1:]]
    assert rows == [["5.00", "1.0", "1"], ['""', "2.0", "2"], ["4.50", "3.0", "3"]]


SIZES = ["low", "mid", "high"]
# Cells of a table in memory and the kind. Their types come back, but for one that a cell decides.
SOURCE = {
    "small": (COUNTS.astype("int16"), "number"),
    "gaps": (pd.array([None, 1, 2] * (N // 3), "Int64"), "number"),
    "when": (DAYS, "date"),
    "zoned": (ZONED.astype(pd.ArrowDtype(pa.timestamp("us", "Europe/Berlin"))), "date"),
    "truth": (LABELS.astype(bool), "yes/no"),
    "True": (["True", "False"] * (N // 2), "category"),
    "group": (pd.Categorical(["a", "b", "c"] * (N // 3)), "category"),
    "ordered": (pd.Categorical(SIZES * (N // 3), SIZES, ordered=True), "category"),
    "numbers": (pd.Categorical([1, 2] * (N // 2)), "category"),
    "truths": (pd.Categorical([True, False] * (N // 2)), "category"),
    "zip": (["10001", "90210", "60601"] * (N // 3), "category"),
    "marks": (["10001", "90210", "60601", "10001", "1,234"] * (N // 5), "category"),
    "phones": ([str(2_000_000 + 7000 * i) if i % 60 else "1,234" for i in range(N)], "text"),
    "status": ([*["200", "404"] * 14, "500", "404,500"] * (N // 30), "category"),
    "blanks": ([" 1", "2 "] * (N // 2), "category"),
    "price": ([f"{i % 9}.50" for i in range(N)], "number"),
    "large": (10**18 + np.arange(N) % 3, "category"),
}


def test_types_that_a_source_states_come_back_and_limit_kinds():
    frame = pd.DataFrame({name: cells for name, (cells, _) in SOURCE.items()})
    columns, model = release(frame)
    twin = model.draw(LABELS, 0)
    assert [columns[name].kind for name in frame] == [kind for _, kind in SOURCE.values()]
    types = frame.dtypes.map(str).to_dict() | {"small": "int64"}
    assert twin[[*frame]].dtypes.map(str).to_dict() == types
    assert twin["gaps"].isna().mean() == pytest.approx(1 / 3, abs=0.05)
    assert set(twin["zip"]) == {"10001", "90210", "60601"} and set(twin["blanks"]) == {" 1", "2 "}
    assert twin["price"].str.fullmatch(r"\d\.50").all()
    assert model.rebuild(twin)["ordered"].dtype == twin["ordered"].dtype


@pytest.mark.parametrize("kind", [pa.float64(), pa.timestamp("us"), pa.int64(), pa.string()])
def test_an_empty_column_of_a_file_keeps_its_type(kind, tmp_path):
    write_table(pa.table({"a": pa.nulls(N, kind)}), tmp_path / "t.parquet")
    _, model = release(read_frame(tmp_path / "t.parquet"))
    write_frame(model.draw(LABELS, 0), tmp_path / "twin.parquet")
    found = pa.parquet.read_schema(tmp_path / "twin.parquet").field("a").type
    assert found == (pa.large_string() if kind == pa.string() else kind)


PERIODS = pd.Series(DAYS).dt.to_period("M")
NO_CELLS = {
    "lists": [[1], [2, 3]] * (N // 2),
    "objects": [{"a": 1}] * N,
    "bytes": [b"x"] * N,
    "lists of Arrow": pd.Series([[1]] * N, dtype=pd.ArrowDtype(pa.list_(pa.int64()))),
    "intervals that are no categories": [pd.Interval(i % 2, 9) for i in range(N)],
    "tuples": PERIODS.dt.year.map(lambda year: (year, 1)).astype("category"),
}


@pytest.mark.parametrize("cells", NO_CELLS.values(), ids=NO_CELLS)
def test_what_is_no_plain_cell_is_left_out(cells):
    columns, model = release(pd.DataFrame({"a": cells, "b": LABELS}))
    assert columns["a"].kind == "lists" and list(model.draw(LABELS, 0)) == ["b"]
    among = Cells.of(table_of({"a": [cells[0], None, "x"]})["a"])  # among others they are gaps
    assert among.places.tolist() == [-1, -1, 0]


@pytest.mark.parametrize(
    ("cells", "values", "is_ordered"),
    [
        (pd.cut(COUNTS, [-50, -20, 0, 70]), ["(-50, -20]", "(-20, 0]", "(0, 70]"], True),
        (PERIODS.astype("category"), sorted({str(each) for each in PERIODS}), False),
    ],
    ids=["cut", "months"],
)
def test_categories_that_are_no_plain_cells_are_spelt(cells, values, is_ordered):
    _, model = release(pd.DataFrame({"a": cells, "b": LABELS}))
    twin = model.draw(LABELS, 0)["a"]
    assert [*twin.cat.categories] == values and twin.cat.ordered == is_ordered
    assert twin.notna().all() and set(twin) == set(values)


@pytest.mark.parametrize("dtype", ["category", "category (ordered)", ""])
@pytest.mark.parametrize("values", [(1, 2), (0.5, 2.0), (False, True), ("a", "2024-01-01")])
@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_a_category_with_rare_values_can_be_written(tmp_path, ending, values, dtype):
    column, path = Column("a", "category", dtype, values=values), tmp_path / f"t.{ending}"
    for numbers, rest in (([0, 1, 0], []), ([0, 1, 2, 3], ["other", None])):
        twin = column.as_series(column.decode(np.array(numbers), rng))
        write_frame(pd.DataFrame({"a": twin, "b": "x"}), path)
        cells = read_frame(path)["a"].astype(object)
        found = list(map(plain, cells.where(cells.notna(), None).tolist()))
        usual = list(map(plain, values))
        assert found == list(map(plain, [*usual, *(rest or usual[:1])]))
        assert len(set(map(type, cells.dropna()))) == 1 and (
            twin.dtype != "category" or not rest or list(twin.cat.categories) == [*usual, "other"]
        )


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/Sao_Paulo", "Asia/Beirut"])
def test_no_hour_of_a_zone_becomes_a_gap(zone):
    """Of hours that the clock shows twice it is the first. One that it skips is the next."""
    hours = 1_514_764_800.0 + 3600 * np.arange(365 * 24 + 1)  # of 2018
    dtype = f"datetime64[us, {zone}]"
    column = Column("a", "date", dtype, edges=tuple(hours.tolist()), form="%Y-%m-%d %H:%M")
    cells = column.decode(np.arange(column.size), np.random.default_rng(0))
    found = column.as_series(cells)
    assert found.dtype == dtype and np.flatnonzero(found.isna()).tolist() == [column.size - 1]


def test_a_cell_is_read_by_itself():
    cells = ["1", "x", "", "2024-02-29", "2,5", "[]", "True"]
    together = survey_codes(Cells.of(pd.Series(cells, dtype="str")))
    for place, cell in enumerate(cells):
        alone = survey_codes(Cells.of(pd.Series([cell], dtype="str")))
        assert alone[0].tolist() == together[place].tolist()


# Pieces of cells that look like numbers and dates, and hardly are any.
SCRAPS = [*"01234579.,'’-+/:() %$€TZe", *"１２٢٣²½٫−\xa0\u202f\u2009\n"]
SCRAPS += "USD | EUR|R$|zł|((|1,234|1.234|1'345|١٢|000|May|MAY|may| Sept |2024|-11|+05:30".split(
    "|"
)
SCRAPS += "2024-03-05|1800/1/1|31.12.2199| 10:00| 23:59:59.999999| AM|Yes|x".split("|")


@settings(max_examples=2000, deadline=None)
@given(st.lists(st.sampled_from(SCRAPS), max_size=9).map("".join), st.booleans())
@example("1２,345", False)
@example("(" * 5000, False)
@example("31.12.2199 23:59:59.999999", True)
def test_no_cell_stops_a_run_or_has_two_places(cell, is_text):
    places = survey_places(cell.strip(), is_text)
    assert all(-1 <= place < size for place, size in zip(places, SURVEY_SIZES, strict=True))
    cells = Cells(np.zeros(1, np.int64), [cell], [is_text])
    assert places[0] >= 0 and survey_codes(cells).tolist() == [[*places]]
    for kind, form in (("number", ""), ("number", ","), ("date", "%Y-%m-%d")):
        assert 0 <= Column("a", kind, edges=(0.0, 1e17), form=form).encode(cells)[0] + 1 <= 2
