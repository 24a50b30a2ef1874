"""The other columns: each alone, in pairs, in models of one by all, and next to the texts."""

import numpy as np
import pandas as pd
import pytest

from evaluation.fidelity.columns import (
    AGREEMENT,
    COLUMNS,
    MODEL,
    PAIRS,
    compare_columns,
    draw_columns,
    round_parts,
)
from evaluation.findings import Findings, Measured
from evaluation.release import Tables
from evaluation.report.figures import draw_section
from evaluation.report.verdicts import judge
from evaluation.utility.columns import Cut
from tests.helpers.reported import SECOND, around
from twinset.progress import Silent

CITIES = {"Rome": "pasta piazza espresso", "Oslo": "snow fjord salmon", "Lima": "ceviche coast sol"}


def visits(rows, seed):
    """A city decides words, price and whether it was paid; a title hardly repeats."""
    rng = np.random.default_rng(seed)
    places = rng.integers(0, 3, rows)
    city = np.array(list(CITIES))[places]
    words = [list(CITIES.values())[p].split() for p in places]
    price = (places + 1) * 100 + rng.integers(0, 40, rows)
    paid = rng.random(rows) < np.array([0.1, 0.5, 0.9])[places]
    title = np.where(rng.random(rows) < 0.2, None, [f"title {n}" for n in range(rows)])
    columns = {
        "number": np.arange(rows) + 1000 * seed,
        "text": [" ".join(rng.choice(w, 4)) for w in words],
        "mood": rng.choice(["good", "bad"], rows),
    }
    return pd.DataFrame(columns | {"city": city, "price": price, "paid": paid, "title": title})


def shuffled(frame, *names):
    """Cells of these columns, each in the row of another: every column alone stays as it is."""
    rng = np.random.default_rng(0)
    return frame.assign(**{name: rng.permutation(frame[name]) for name in names})


def measure(twin):
    tables = Tables(visits(400, 1), visits(300, 2), twin, "text", ("mood",))
    return Findings("evaluation", {}, tuple(compare_columns(tables, 0, Silent())))


FAITHFUL = visits(500, 3)
FOUND = {
    "faithful": measure(FAITHFUL),
    "columns apart": measure(shuffled(FAITHFUL, "city", "price", "paid")),
    "texts apart": measure(shuffled(FAITHFUL, "text")),
}


@pytest.mark.parametrize(
    ("twin", "name", "off"),
    [
        *[("faithful", name, (-0.06, 0.06)) for name in (COLUMNS, PAIRS, MODEL, AGREEMENT)],
        ("columns apart", COLUMNS, (-0.06, 0.06)),
        ("columns apart", PAIRS, (0.05, 1)),
        ("columns apart", MODEL, (-1, -0.2)),
        ("columns apart", AGREEMENT, (-1, -0.2)),
        ("texts apart", PAIRS, (-0.06, 0.06)),
        ("texts apart", AGREEMENT, (-1, -0.2)),
    ],
)
def test_a_measure_finds_what_is_off_and_nothing_else(twin, name, off):
    ours, real = (FOUND[twin].find(name, rows=rows).value for rows in ("twin", "real"))
    assert off[0] <= ours - real <= off[1]


def test_the_worst_pair_is_named_for_the_owner():
    found = FOUND["columns apart"]
    worst = next(m for m in found.measured if m.score.name == f"worst {PAIRS}")
    assert worst.place["which"] == "city × price"
    assert found.publishable() == []  # all of it comes from private rows
    by_pair = {m.place["pair"] for m in found.measured if m.part == "pair"}
    assert "mood × city" in by_pair and not any("text" in pair for pair in by_pair)


def test_models_and_texts_are_next_to_guessing():
    guess = FOUND["faithful"].find(AGREEMENT, rows="the commonest value")
    assert guess.value < FOUND["faithful"].find(AGREEMENT, rows="real").low - 0.2
    assert {m.place.get("column") for m in FOUND["faithful"].measured if m.score.name == AGREEMENT}
    columns = {m.place["column"] for m in FOUND["faithful"].measured if m.part == "column"}
    assert columns == set(FAITHFUL) - {"text"}


def test_gaps_alone_are_compared_where_cells_hardly_repeat():
    full = measure(FAITHFUL.assign(title="one title", number=7))
    assert full.find(COLUMNS, rows="twin", column="title").value == pytest.approx(0.2, abs=0.06)
    assert full.find(COLUMNS, rows="twin", column="number").value == 0
    assert full.find(MODEL, column="title") is None
    assert measure(FAITHFUL[["text", "mood"]]).measured == ()  # labels alone have no measure


@pytest.mark.parametrize(
    ("real", "cells", "parts"),
    [
        (["1.0", "2", None], [1, 2.0, np.nan], ["1", "2", "(gap)"]),
        ([f"{n // 10},{n % 10}" for n in range(10, 90)], ["1,000", "8,900"], ["00", "19"]),
        (["True", "False"], [True, None], ["true", "(gap)"]),
        (["york", " HULL"], ["York", "Hull"], ["york", "hull"]),  # as declared values are spelled
        (["2024-02-29"], [pd.Timestamp("2024-02-29")], ["2024-02-29"]),
        ([f"{n}.5" for n in range(200)] * 2, [-5, 1e9, "free"], ["00", "19", "(gap)"]),
        ([f"{d:%d.%m.%Y}" for d in pd.date_range("2020", periods=99)], ["3.1.2020"], ["00"]),
        ([f"name {n}" for n in range(50)], ["any", None], ["(filled)", "(gap)"]),
        ([f"kind {n}" for n in range(40)] * 3, ["other"], ["other"]),
    ],
)
def test_cells_of_a_file_and_of_a_twin_are_cut_alike(real, cells, parts):
    assert Cut.of(pd.Series(real)).parts(pd.Series(cells)).tolist() == parts


def test_columns_that_are_off_are_no_faithful_twin():
    score = around("MAUVE", 0.9, 0.03, "maximise", 1.0)
    texts = [Measured("fidelity", score, {"rows": rows}) for rows in ("twin", SECOND)]
    answers = {name: judge("fidelity", (*texts, *found.measured)) for name, found in FOUND.items()}
    assert [answers[name].answer for name in FOUND] == ["Yes", "In part", "In part"]
    assert "The other columns are faithful" in answers["faithful"].line
    assert "not faithful: pair distance" in answers["columns apart"].line
    assert "city × price" in answers["columns apart"].line
    assert "texts do not follow them: text–column agreement" in answers["texts apart"].line


def test_each_column_is_drawn_and_no_text_of_real_rows_alone_is_named():
    twin = FAITHFUL.assign(city=FAITHFUL.city.replace("Lima", "other"))
    drawn = {h.x: h for h in draw_columns(Tables(twin, visits(300, 2), twin, "text", ("mood",)), 0)}
    assert set(drawn) == set(FAITHFUL) - {"text", "mood"}
    assert set(drawn["city"].bins) == {"Rome", "Oslo", "other", "(others)"}
    assert drawn["price"].bins[:2] == ["< 120", "120–139"]
    assert drawn["title"].bins == ["(filled)", "(gap)"]
    for histogram in drawn.values():
        assert all(sum(shares) == pytest.approx(1) for shares in histogram.series.values())
    (figure,) = draw_section("fidelity", [Findings("evaluation", {}, (), (), (*drawn.values(),))])
    assert [heading for heading, _ in figure.panels] == list(drawn)
    assert figure.table.body[0][:2] == ("number", "(filled)")


@pytest.mark.parametrize(
    ("start", "freq", "names"),
    [
        ("2024-02-01", "D", ["2024-02-01", "2024-02-03"]),
        ("2023-01-01", "W", ["2023-01", "2023-02"]),
        ("1991-01-01", "MS", ["1991", "1992"]),
        ("1900-06-01", "YS", ["1901", "1903"]),
    ],
)
def test_dates_are_cut_at_years_months_or_days(start, freq, names):
    days = pd.Series(pd.date_range(start, periods=40, freq=freq))
    edges, bins = round_parts(days, is_date=True)
    assert bins[:2] == names and len(edges) == len(bins) - 1 <= 20
    assert Cut.of(days).is_date
