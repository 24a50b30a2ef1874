"""Drawn rows: how near they are to the model, and that they meet conditions to the second."""

from collections import Counter

import numpy as np
import pandas as pd
import pytest

from tests.helpers.tables import DAYS, HOURS, LABELS, N, release, rng
from twinset.errors import InputError
from twinset.sampling import column_model
from twinset.sampling.column_model import ColumnModel, spread
from twinset.table.kinds import CATEGORY, Column, ColumnRules

ASKED = pd.DataFrame(
    {
        "salary": 1000 * rng.integers(20, 90, N),
        "price": np.append(np.round(rng.gamma(2, 300, N - 9), 2), [550.25] * 9),
        "small": rng.gamma(2, 1e-9, N),
        "dollars": [f"${900 + v * 1.01:,.2f}" for v in range(N)],
        "euros": [f"{v % 99},{v % 10}0" for v in range(N)],
        "kilos": [f"{v % 9},{v % 7}{v % 10}5" for v in range(N)],
        "at": [f"{d:%Y-%m-%d} {i % 24:02}:30:{i % 60:02}" for i, d in enumerate(DAYS)],
        "day": DAYS,
        "zoned": pd.Series(HOURS).dt.tz_localize("UTC").dt.tz_convert("US/Eastern"),
        "offset": [f"{d:%Y-%m-%dT%H:00:00}+02:00" for d in HOURS],
        "zulu": [f"{d:%Y-%m-%dT%H:00:00Z}" for d in HOURS],
        "city": np.array(["York", "Hull", "Paris, Texas"])[np.arange(N) % 3],
    }
)
STAMP = pd.Timestamp
# A column, a condition, and the first and last value that rows may have.
CONDITIONS = [
    ("salary", (30_010, 30_020), 30_010, 30_020),
    ("salary", "40001,50001", 40_001, 50_001),
    ("salary", np.array([40_001, 50_001]), 40_001, 50_001),
    ("salary", pd.Series([40_001]), 40_001, 40_001),
    ("price", (500, 600), 500, 600),
    ("price", 550.25, 550.25, 550.25),
    ("price", "500.5:600.75", 500.5, 600.75),
    ("small", (1.23456789e-9, 2e-9), 1.23456789e-9, 2e-9),
    ("dollars", "$950.50", "$950.50", "$950.50"),
    ("dollars", "1,001.25", "$1,001.25", "$1,001.25"),
    ("euros", "7,5", "7,50", "7,50"),
    ("kilos", "4,445", "4,445", "4,445"),
    ("kilos", 4.445, "4,445", "4,445"),
    ("kilos", '"4,445","5,555"', "4,445", "5,555"),
    ("kilos", ["4,445", "5,555"], "4,445", "5,555"),
    ("kilos", "1,5:2,5", "1,500", "2,500"),
    ("dollars", "$910.10,$1,001.00", "$1,001.00", "$910.10"),
    ("at", "2023-03-05 10:30:00", "2023-03-05 10:30:00", "2023-03-05 10:30:00"),
    ("at", "2023-03-05 10:30", "2023-03-05 10:30:00", "2023-03-05 10:30:59"),
    ("at", "2023-03-01:2023-03-05", "2023-03-01 00:00:00", "2023-03-05 23:59:59"),
    ("at", "2023-03-05 08:00:2023-03-05 09:00", "2023-03-05 08:00:00", "2023-03-05 09:00:59"),
    ("day", ("2023-03-05", "07.03.2023"), STAMP("2023-03-05"), STAMP("2023-03-07")),
    ("day", pd.DatetimeIndex(["2023-03-05"]), STAMP("2023-03-05"), STAMP("2023-03-05")),
    ("zoned", *[HOURS.dt.tz_localize("UTC")[7]] * 3),  # by another clock than the column's
    ("offset", "2023-03-05T10:00:00Z", *["2023-03-05T12:00:00+02:00"] * 2),
    ("zulu", "2023-03-05T02:00:00+02:00", *["2023-03-05T00:00:00Z"] * 2),
    ("city", ("York", "Hull"), "Hull", "York"),
    ("city", "York,Hull", "Hull", "York"),
    ("city", "Paris, Texas", "Paris, Texas", "Paris, Texas"),
    ("city", '"Paris, Texas"', "Paris, Texas", "Paris, Texas"),
]
BETWEEN = [
    ("salary", 30_000.5, "a number, .*in steps of 1"),
    ("price", (500.001, 500.009), "in steps of 0.01"),
    ("at", "2023-03-05 10:30:00.5", "in steps of a second"),
    ("day", "2023-03-05 10:30", "in steps of a day"),
    ("zoned", "2023-03-05 10:30:00", "in steps of an hour"),
    ("salary", (1, 2, 3), ""),
    ("salary", "1,2,x", ""),
    ("salary", [], ""),
    # one value of a list, which is named
    ("salary", [40_001, 10**9], "'1000000000'. It is a number"),
    ("salary", "40001,x", "'x'"),
    ("day", ["2023-03-05", "2099-01-01"], "'2099-01-01'"),
    ("city", "York,Leds", "'Leds'. It is a category"),
    ("city", ["York", "Leds"], "'Leds'"),
    ("city", '"Leds, York",Hull', "'Leds, York'"),
]


@pytest.fixture(scope="module")
def asked():
    return release(ASKED)[1]


@pytest.mark.parametrize(("name", "condition", "low", "high"), CONDITIONS)
def test_rows_meet_their_conditions(asked, name, condition, low, high):
    given, likely = asked.given({name: condition})
    found = given.draw(np.repeat(LABELS, 3), 0)[name]
    assert found.notna().all() and low <= found.min() and found.max() <= high
    assert (0 < likely).all() and (likely < 1).all()
    for column in given.columns:
        column.check()  # as processes do that load it


@pytest.mark.parametrize(("name", "condition", "said"), BETWEEN)
def test_what_lies_between_two_steps_is_refused(asked, name, condition, said):
    with pytest.raises(InputError, match=f"no row can have this '{name}'.*{said}"):
        asked.given({name: condition})


@pytest.mark.parametrize(
    ("name", "condition"),
    [
        ("kilos", "4,5,6,5"),
        ("kilos", '"4,5",6,5'),
        ("kilos", ["4,5,6,5"]),
        ("kilos", "1,5:2,5,7,5:8,5"),
        ("euros", "7,50,8"),
        ("dollars", "$950,$1,200"),
    ],
)
def test_a_list_that_can_be_read_in_several_ways_is_refused(asked, name, condition):
    with pytest.raises(InputError, match="several ways. Put each value in double quotes, or repe"):
        asked.given({name: condition})


def test_a_condition_takes_its_share(asked):
    """The likelihood of a range is that of its cells, and of parts of cells."""
    parts = [(0, 333.333), (333.34, 500), (500.01, 10**6)]
    together = sum(asked.given({"price": part})[1] for part in parts)
    assert together == pytest.approx(1, abs=0.001)
    real = (ASKED["price"] <= 333.333).mean()
    assert asked.given({"price": parts[0]})[1].mean() == pytest.approx(real, abs=0.05)


def test_lines_of_a_plan_have_the_types_of_one_draw_and_no_identifier_twice():
    """Gaps and `other` are rare here, so some lines draw one and others do not."""
    rare = np.arange(N) % 60 == 0
    frame = pd.DataFrame(
        {
            "amount": pd.Series(np.arange(N) % 90, dtype="Int64").mask(rare),
            "old": pd.Series(np.arange(N) % 2 == 0, dtype="boolean").mask(rare),
            "code": pd.Series(np.where(rare, np.arange(N), np.arange(N) % 3), dtype="category"),
            "city": [f"{n}" if odd else "York" for n, odd in enumerate(rare)],
            "number": np.arange(5000, 5000 + N),
        }
    )
    _, model = release(frame, ColumnRules(kinds={"code": "category", "city": "category"}))
    (old, _), rows, seen = model.given({"old": True}), np.arange(40), set()
    for seed in range(30):
        lines = [(rows[:20], model), (rows[20:30], old), (rows[30:], model)]
        twin = model.draw(rows % 2, seed, lines=lines)
        assert twin["old"][20:30].all() and twin["number"].is_unique and len(twin) == 40
        assert twin["code"].notna().all() and twin["code"].dtype == "category"
        seen |= {"other"} & set(twin["city"]) | {str(twin["amount"].dtype), str(twin["old"].dtype)}
    assert seen == {"other", "Int64", "boolean"}


SHARES = np.array([[[0.15, 0.25, 0.6]], [[0.3, 0.3, 0.4]]])  # (C, 1, K) of a city
AGES = np.array([[[0.9, 0.1], [0.5, 0.5], [0.25, 0.75]]] * 2)  # (C, K, K') of an age under it
TREE = ColumnModel(
    (Column("city", CATEGORY, values=("York",)), Column("age", CATEGORY, values=())),
    order=(0, 1),
    parents=(-1, 0),
    bins=(np.arange(3), np.arange(2)),
    shares=(np.ones(3), np.ones(2)),
    tables=(SHARES, AGES),
)


def far(model, labels, seed):
    """How many rows of each label, city and age there are too many or too few, at most."""
    drawn = model.draw(labels, seed).astype(object).where(lambda cells: cells.notna(), "gap")
    found = Counter(zip(labels.tolist(), drawn["city"], drawn["age"], strict=True))
    shares = model.tables[0][:, 0, :, None] * model.tables[1]  # (C, K, K')
    return max(
        abs(found[label, city, age] - shares[label, i, j] * (labels == label).sum())
        for label in range(2)
        for i, city in enumerate(["York", "other", "gap"])
        for j, age in enumerate(["other", "gap"])
    )


@pytest.mark.parametrize("where", [{}, {"city": ["York", "other"]}, {"age": "other"}])
def test_shares_are_as_near_to_the_model_as_whole_rows_allow(monkeypatch, where):
    model, labels = TREE.given(where)[0], np.arange(10_000) % 3 % 2
    assert all(far(model, labels, seed) <= 2 for seed in range(20))
    monkeypatch.setattr(column_model, "spread", lambda strata, rng: rng.random(len(strata)))
    assert all(far(model, labels, seed) > 5 for seed in range(20))  # the control


def test_a_row_has_the_distribution_of_the_model_and_its_place_tells_nothing():
    seeds, one = range(6000), np.zeros(1, int)
    alone = Counter(next(TREE.draw_cells(one, np.random.default_rng(seed)))[1][0] for seed in seeds)
    assert alone["York"] / 6000 == pytest.approx(0.15, abs=0.02)
    assert alone[None] / 6000 == pytest.approx(0.6, abs=0.03)
    four = np.array([spread(np.array([5, 1, 5, 5]), np.random.default_rng(s)) for s in seeds])
    for each in four.T:
        assert np.histogram(each, 8, (0, 1))[0] == pytest.approx(6000 / 8, abs=130)
    orders = Counter(map(tuple, four[:, [0, 2, 3]].argsort(1).tolist()))
    assert len(orders) == 6 and min(orders.values()) > 870
    assert abs(np.corrcoef(four[:, 1], four[:, 0])[0, 1]) < 0.07  # of two strata
