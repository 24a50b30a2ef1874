"""What an owner declares of other columns, and what cells of two meanings are read as."""

from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

from tests.helpers.tables import DAYS, HOURS, LABELS, N, release
from twinset.errors import InputError
from twinset.run.columns import column_notes
from twinset.table.cells import FLOATING, Cells, read_number
from twinset.table.columns import table_of
from twinset.table.kinds import CATEGORY, Column, ColumnRules
from twinset.table.read import read_frame


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kinds": {"a": "colour"}}, "Choose one of category"),
        ({"ranges": {"a": (9, 1)}}, "two rising numbers"),
        ({"ranges": {"a": 9}}, "two numbers"),
        ({"ranges": {"a": (1, 2, 3)}}, "two numbers"),
        ({"ranges": {"a": (True, 9)}}, "two rising numbers"),
        ({"ranges": {"a": ("1", 9)}}, "two rising numbers"),
        ({"ranges": {"a": (Decimal(1), Decimal("nan"))}}, "two rising numbers"),
        ({"ranges": {"a": (0, 10**400)}}, "two numbers"),
        ({"kinds": ["a"]}, "as a dictionary"),
        ({"keep": np.array([1])}, "a list of names"),
        ({"ranges": {"a": (1, 9)}, "kinds": {"a": "date"}}, "declared as no number"),
        ({"keep": 3}, "a list of names"),
        ({"values": {"a": "York"}}, "a list of texts or numbers"),
        ({"values": {"a": ["York", None]}}, "a list of texts or numbers"),
        ({"values": {"a": ["York", "York"]}}, "1 to 255 different values"),
        ({"values": {"a": [5, 5.0]}}, "1 to 255 different values"),
        ({"values": {"a": []}}, "1 to 255 different values"),
        ({"values": {"a": ["\x1b"]}}, "control characters"),
        ({"values": {"a": ["b"]}, "kinds": {"a": "number"}}, "declared as no category"),
        ({"values": {"a": ["b"]}, "ranges": {"a": (1, 9)}}, "declared as no number"),
        ({"values": {"a": ["b"]}, "keep": "none"}, "leaves out 'a'"),
    ],
)
def test_bad_rules_are_refused_in_one_line(given, said):
    with pytest.raises(InputError, match=said):
        ColumnRules.of(*map(given.get, ("keep", "kinds", "ranges", "values")))


AGES = pd.DataFrame(columns=["age", "city"])


@pytest.mark.parametrize(
    "keep", [AGES.columns, AGES.columns.to_series(), np.array(["age", "city"]), {"city", "age"}]
)
def test_rules_are_taken_from_arrays_and_series(keep):
    given = pd.Series({"age": "number"}), pd.Series({"age": (Decimal(18), np.float32(99))})
    rules = ColumnRules.of(keep, *given)
    assert rules.to_dict() == ColumnRules.of(["age", "city"], *map(dict, given)).to_dict()
    assert rules.ranges == {"age": (18.0, 99.0)} and type(rules.ranges["age"][0]) is float


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", (12.0, 0, "", "", 0)),
        ("-1,234.50", (-1234.5, 2, "1,234.", "", 1)),
        ("1.234,5", (1234.5, 1, "1.234,", "", 1)),
        ("1e3", (1000.0, FLOATING, "", "", FLOATING)),
        ("+3", (3.0, 0, "", "", 0)),
        ("-$5", (-5.0, 0, "", "$#", 0)),
        ("€ 5", (5.0, 0, "", "€ #", 0)),
        ("2019.0", (2019.0, 1, "", "", 0)),
        ("0.50000000", (0.5, 6, "", "", 1)),
        ("12 %", (12.0, 0, "", "# %", 0)),
        ("0,567", (0.567, 3, ",", "", 3)),
        ("-0,7 %", (-0.7, 1, ",", "# %", 1)),
        ("2.696.107", (2696107.0, 0, "1.234,", "", 0)),
        *((text, None) for text in ("$5%", "+-5", "007", "1,23,4", "9" * 400, "nan", "0,123,456")),
        ("1'234’567", None),
        ("CHF 1'234'567.50", (1234567.5, 2, "1'234.", "CHF #", 1)),
        *((text, None) for text in ("(0.66)", "($1,198.16)", "(3,10)", "(2019)", "(" * 5000)),
        (".45", (0.45, 2, "", "", 2)),
        ("-.3", (-0.3, 1, "", "", 1)),
        (",450", (0.45, 3, ",", "", 2)),
        ("1٢,٢٣٤", (12234.0, 0, "1,234.", "", 0)),  # digits of several scripts
        ("1２'345.5", (12345.5, 1, "1'234.", "", 1)),
        *((text, None) for text in ("0.123.456", "192.168.100.200", ".", ",", "..5", ".5,")),
    ],
)
def test_a_number_is_read_by_its_spelling(text, value):
    assert read_number(text) == value


KILOS = np.round(np.random.default_rng(1).uniform(0.05, 9, N), 3).tolist()
COUNTED = (10 ** np.random.default_rng(2).uniform(3.5, 6.5, N)).astype(int).tolist()
GERMAN = str.maketrans(",.", ".,")
# Cells of which most have two meanings, what they mean, and the form.
EITHER = {
    "rounded": ([str(v).replace(".", ",") for v in KILOS], KILOS, ","),
    "three decimals": ([f"{v:.3f}".replace(".", ",") for v in KILOS], KILOS, ","),
    "signs": ([f"{-v} %".replace(".", ",") for v in KILOS], [-v for v in KILOS], ","),
    "point": ([str(v) for v in KILOS], KILOS, ""),
    "point %": ([f"{v}%" for v in KILOS], KILOS, "."),
    "English": ([f"{v:,}" for v in COUNTED], COUNTED, "1,234."),
    "German": ([f"{v:,}".translate(GERMAN) for v in COUNTED], COUNTED, "1.234,"),
    "euros": ([f"-{v:,} €".translate(GERMAN) for v in COUNTED], [-v for v in COUNTED], "1.234,"),
    "567": (
        [f"{v // 20:,}".translate(GERMAN) for v in COUNTED],
        [v // 20 for v in COUNTED],
        "1.234,",
    ),
    **{
        f"{share} % marked": ([f"{share * 10 + v % 1000:,}" for v in COUNTED], some, "1,234.")
        for share in (30, 50)
        for some in [[share * 10 + v % 1000 for v in COUNTED]]
    },
    "30 % with points": (
        [f"{300 + v % 1000:,}".translate(GERMAN) for v in COUNTED],
        [300 + v % 1000 for v in COUNTED],
        "1.234,",
    ),
    "1500": (["1500", "1.101", "1.102"] * (N // 3), [1500, 1.101, 1.102] * (N // 3), ""),
    "few commas": (
        [f"0,{v % 9}" if i < 2 else f"1,{100 + v % 899}" for i, v in enumerate(COUNTED)],
        [0.1 * (v % 9) if i < 2 else 1100 + v % 899 for i, v in enumerate(COUNTED)],
        "1,234.",
    ),
}

MARKED = [name for name in EITHER if name != "1500"]  # more texts of digits would be no numbers


@pytest.mark.parametrize("sigma", [0.5, 2.0])
@pytest.mark.parametrize(
    ("name", "is_csv"), [*((name, True) for name in EITHER), *((name, False) for name in MARKED)]
)
def test_cells_of_one_meaning_decide_on_those_of_two(name, is_csv, sigma, tmp_path):
    cells, values, form = EITHER[name]
    frame = pd.DataFrame({"t": cells, "row": range(N)})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame = (read_frame(tmp_path / "t.csv") if is_csv else frame)[["t"]]
    for rules in (ColumnRules(), ColumnRules.of(None, None, {"t": (min(values), max(values))})):
        columns, model = release(frame, rules, sigma=sigma)
        column = columns["t"]
        assert column.form == ("." if form == "" and not is_csv else form) and column.odd == 0
        assert list(map(column.read_value, cells)) == pytest.approx(values)
        twin = [column.read_value(str(cell)) for cell in model.draw(LABELS, 0)["t"]]
        assert np.median(twin) == pytest.approx(np.median(values), rel=0.15 + 0.3 * sigma)
        assert np.abs(twin).max() <= 2 * np.abs(values).max()


@pytest.mark.parametrize(
    ("mark", "ends", "form"),
    [
        (",", None, "1,234."),
        (",", (1000, 1999), "1,234."),
        (",", (1, 2), ","),
        (",", (50, 60), "1,234."),
        (".", None, "."),
        (".", (1, 2), "."),
        (".", (1000, 1999), "1.234,"),
    ],
)
def test_a_declared_range_says_what_a_mark_means(mark, ends, form):
    frame = pd.DataFrame({"t": [f"1{mark}{400 + i % 500}" for i in range(N)]})
    rules = ColumnRules.of(None, None, ends and {"t": ends})
    column = release(frame, rules, sigma=2.0)[0]["t"]
    assert column.form == form and round(column.odd) == (ends == (50, 60))


# Cells whose values are coarser than they are written, the twin's dtype and a pattern of its cells.
COARSE = {
    "years of pandas": ([f"{1990 + i % 30}.0" if i % 9 else "" for i in range(N)], r"\d{4}\.0"),
    "flags": (["0.0", "1.0", ""] * (N // 3), r"[01]\.0"),
    "amounts": ([f"${63_000 + i % 99:,}.00" for i in range(N)], r"\$6\d,\d{3}\.00"),
    "halves": ([f"{i % 9}.{i % 2 * 5}0" for i in range(N)], r"\d+\.\d"),
    "euros": ([f"1.2{i % 60:02},00 €" for i in range(N)], r"[\d.]+,00 €"),
    "days with times": ([f"{d:%Y-%m-%d %H:%M:%S}" for d in DAYS], r"[-\d]+ 00:00:00"),
    "days with zones": ([f"{d:%Y-%m-%dT%H:%M:%SZ}" for d in DAYS], r"[-\d]+T00:00:00Z"),
    "hours": ([f"{d:%d.%m.%Y %H:%M}" for d in HOURS], r"[.\d]+ \d\d:00"),
    "hours of Arrow": (HOURS.dt.tz_localize("UTC"), r"[-\d]+ \d\d:00:00\+00:00"),
    "days of Arrow": (pd.Series(DAYS).dt.tz_localize("UTC"), r"[-\d]+ 00:00:00\+00:00"),
    "minutes": (HOURS + pd.to_timedelta(LABELS * 7, "min"), r"[-\d]+ \d\d:\d\d:00"),
}


@pytest.mark.parametrize("sigma", [0.0, 2.0])
@pytest.mark.parametrize("name", COARSE)
def test_cells_are_as_fine_as_their_values_are(name, sigma, tmp_path):
    cells, pattern = COARSE[name]
    pd.DataFrame({"t": cells, "row": range(N)}).to_csv(tmp_path / "t.csv", index=False)
    is_text = isinstance(cells, list)
    frame = read_frame(tmp_path / "t.csv")[["t"]] if is_text else pd.DataFrame({"t": cells})
    columns, model = release(frame, sigma=sigma)
    twin = model.draw(LABELS, 0)["t"]
    own = twin.dropna().map(str)
    fits = own.str.fullmatch(pattern)
    # noise widens the grid to $32,768 in seven of 25 draws, and no more than a row or two go there
    assert fits.all() or (name == "amounts" and sigma and fits.mean() > 0.99)
    above = own.str.replace(r"^\$[3-5]", "$6", regex=True)
    assert own.nunique() > 1 and above.str.fullmatch(pattern).all()
    assert twin.dtype == frame["t"].dtype or twin.dtype == "float64"
    # and one finer cell in nine is enough
    fine = {"$": "$63,001.25", "T": "2023-01-05T10:11:12Z", "€": "1.200,75 €"}
    odd = next((cell for mark, cell in fine.items() if mark in str(cells[0])), None)
    if odd is not None:
        frame["t"] = [odd if i % 9 == 0 else cell for i, cell in enumerate(cells)]
        column = release(frame, sigma=sigma)[0]["t"]
        assert column.step <= 1 and column.unit < 1 + ("T" in odd)


DECLARED = {
    "yes/no": ("yes/no", ["yes", "no", "no"], "str", "yes|no"),
    "capitals": ("yes/no", ["TRUE", "FALSE"], "str", "TRUE|FALSE"),
    "letters": ("yes/no", ["Y", "N", ""], "str", "Y|N"),
    "digits": ("yes/no", ["1", "0", "0"], "int64", "1|0"),
    "Spanish": ("yes/no", ["Sí", "No"], "str", "Sí|No"),
    "short days": ("date", ["1.3.19", "24.12.20"], "str", r"\d+\.\d+\.\d\d"),
    "dotted days": ("date", ["2014.10.2", "2014.1.12"], "str", r"201\d\.\d+\.\d+"),
    "dollars": ("number", ["$1,234.50", "$99.00"], "str", r"\$[\d,]+\.\d\d"),
    "code": ("category", ["1", "2"], "int64", "1|2"),
}


@pytest.mark.parametrize("name", DECLARED)
def test_cells_are_read_by_the_declared_kind(name, tmp_path):
    kind, cells, dtype, pattern = DECLARED[name]
    cells = [cells[i % len(cells)] for i in range(N)]
    pd.DataFrame({"t": cells, "row": range(N)}).to_csv(tmp_path / "t.csv", index=False)
    frame = read_frame(tmp_path / "t.csv")[["t"]]
    columns, model = release(frame, ColumnRules.of(None, {"t": kind}), sigma=1.0)
    twin = model.draw(LABELS, 0)["t"]
    assert str(twin.dtype) == dtype and twin.dropna().astype(str).str.fullmatch(pattern).all()
    assert twin.isna().mean() == pytest.approx(cells.count("") / N, abs=0.06)
    assert column_notes(list(columns.values()), [])[1:] == []


DECLARED_VALUES = {  # values, cells, the twin's type and what it has
    "texts": (["York", "Hull", "other"], ["Hull", "York", "Leeds", ""], "str", {"Hull", "York"}),
    "numbers": ([3, 1, 2.0], ["1", "2", "7", "1"], "Int64", {1, 2}),
    "one": (["York"], ["York", "Hull"], "str", {"York"}),
}


@pytest.mark.parametrize("name", DECLARED_VALUES)
@pytest.mark.parametrize("sigma", [0.0, 0.5])
def test_declared_values_are_public_and_others_are_gaps(name, sigma, tmp_path):
    values, cells, dtype, kept = DECLARED_VALUES[name]
    cells = [cells[i % len(cells)] for i in range(N)]
    pd.DataFrame({"t": cells, "row": range(N)}).to_csv(tmp_path / "t.csv", index=False)
    frame = read_frame(tmp_path / "t.csv")[["t"]]
    columns, model = release(frame, ColumnRules.of(None, None, None, {"t": values}), sigma)
    assert list(columns["t"].values) == values  # no noise moves them
    twin = model.draw(LABELS, 0)["t"]
    assert str(twin.dtype) == dtype and kept <= set(twin.dropna()) <= {*values}
    assert twin.dropna().isin(kept).mean() > 0.98  # noise may draw what no row has
    gaps = sum(cell not in map(str, kept) for cell in cells) / N
    assert twin.isna().mean() == pytest.approx(gaps, abs=0.03)
    with pytest.raises(InputError, match="It is a category of . declared values. All others"):
        model.given({"t": "Paris"})
    if name == "texts":
        assert model.given({"t": "York"})[0].draw(LABELS, 0)["t"].eq("York").all()


@pytest.mark.parametrize("place", ["memory", "file"])
@pytest.mark.parametrize("rules", [{"values": {"t": [0, 0.5, 1]}}, {"kinds": {"t": "category"}}])
def test_a_category_of_floats_comes_back_as_floats(place, rules, tmp_path):
    frame = pd.DataFrame({"t": [(i % 3) / 2 for i in range(N)]})
    if place == "file":
        frame.to_parquet(tmp_path / "t.parquet")
        frame = read_frame(tmp_path / "t.parquet")[["t"]]
    twin = release(frame, ColumnRules.of(**rules), sigma=0.5)[1].draw(LABELS, 0)["t"]
    assert twin.dtype == "float64" and set(twin.dropna()) == {0.0, 0.5, 1.0}


def test_declared_values_are_found_in_other_spellings_of_their_cells():
    column = Column("t", CATEGORY, values=("York", "5", "true", "a", "A"), is_closed=True)
    cells = ["york ", "5.0", "True", " a", "a", "A", "5.5", "Leeds", None]
    assert column.encode(Cells.of(pd.Series(cells))).tolist() == [0, 1, 2, 3, 3, 4, 5, 5, 5]
    conditions = {"york ": [0], "5.0": [1], "A": [4], " A,TRUE": [2, 4], "5.5": [], "Masse": []}
    conditions |= {" a": [3], "a ,york": [0, 3]}  # a cell and a condition are read alike
    for asked, places in conditions.items():
        assert np.flatnonzero(column.select(asked)[2]).tolist() == places, asked
    with pytest.raises(InputError, match="texts or numbers for 't'"):
        ColumnRules.of(values={"t": [1, float("nan")]})


@pytest.mark.parametrize(
    ("cells", "rules", "said"),
    [
        (["Ann", "Bob"], {"kinds": {"t": "number"}}, "cells of 't' are not a number that fits"),
        (["Ann", "Bob"], {"kinds": {"t": "yes/no"}}, "are not a yes or a no that fits"),
        (["Ann", "Bob"], {"ranges": {"t": (0, 9)}}, "are not a number that fits"),
        (["18", "67"], {"ranges": {"t": (200, 300)}}, "has gaps there, or only what fits"),
        (["18", "67"], {"kinds": {"t": "date"}}, "are not a date that fits"),
        (["1", "2", "3", "free"], {}, "% of the filled cells of 't' are not a number"),
        (["9999-12-31", *["2020-01-01"] * 9], {}, "% of the filled cells of 't'"),
        (["a", "b", "c"], {"values": {"t": ["a", "b"]}}, "of 't' are not a declared value"),
        (["a", "b", "c"], {"values": {"t": ["d"]}}, "are not a declared value that fits"),
        ([3, 2.5, "x", "2024-01-02", None], {}, "Declare other `kinds`"),
    ],
)
def test_cells_that_are_not_of_the_kind_get_a_note(cells, rules, said):
    frame = table_of({"t": [cells[i % len(cells)] for i in range(N)]})
    frame["t"] = frame["t"].map(lambda c: int(c) if str(c).isdecimal() else c).astype(object)
    given = ColumnRules.of(None, *map(rules.get, ("kinds", "ranges", "values")))
    notes = column_notes([*release(frame, given, sigma=0.5)[0].values()], [])[1:]
    assert len(notes) == 1 and said in notes[0]


@pytest.mark.parametrize(("repeats", "kind", "said"), [(7, "number", 1), (N, "identifier", 0)])
def test_a_number_that_is_named_like_an_identifier_gets_a_note_too(tmp_path, repeats, kind, said):
    cells = [str(1000 + i % repeats) if i % 3 else f"x{i % repeats}" for i in range(N)]
    pd.DataFrame({"room_no": cells}).to_csv(tmp_path / "t.csv", index=False)
    columns, _ = release(read_frame(tmp_path / "t.csv"), sigma=0.5)
    assert columns["room_no"].kind == kind
    notes = column_notes(list(columns.values()), [])
    assert sum("% of the filled cells of 'room_no' are not a number" in n for n in notes) == said
    assert not any("not filled" in note for note in notes)
