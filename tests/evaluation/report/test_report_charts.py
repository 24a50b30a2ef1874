"""Charts of anything: no numbers, many labels, twins of any size, and how the twin was made."""

import math
import re
from dataclasses import replace

import pandas as pd
import pytest

from evaluation.findings import Histogram, Measured
from evaluation.report.charts import (
    Reference,
    draw_histogram,
    draw_lines,
    find_domain,
)
from evaluation.report.figures import (
    average_over_steps,
    draw_scores,
    map_noise,
    spend_over_steps,
)
from evaluation.report.page import build_report
from tests.helpers import handover, reported
from tests.helpers.pages import Page, answers
from tests.helpers.reported import bare, with_twin
from twinset.privacy.statement.guarantee import guarantee


def nothing_known(score):
    return replace(score, value=math.nan, low=-math.inf, high=math.inf)


def test_scores_that_are_no_numbers_are_shown_as_such(tmp_path):
    findings = [reported.evaluation(), reported.audit(), reported.planted()]
    for at, each in enumerate(findings):
        # Every ninth is enough: each kind of figure is among them, and drawing takes time.
        broken = tuple(replace(m, score=nothing_known(m.score)) for m in each.measured[::9])
        lines = {"a": [(1.0, math.nan), (math.nan, 1.0)], "b": []}
        curves = tuple(replace(c, series=lines) for c in each.curves)
        findings[at] = replace(each, measured=broken, curves=curves)
    html = build_report(bare(tmp_path, *findings))
    assert answers(html) == ["Not measured"] * 3
    assert not re.search(r"\bnan\b|\bNaN\b|\binf\b|\bNone\b", Page(html).root.text)
    drawn = re.findall(r'(?:[dxy12]|width|height|transform)="([^"]*)"', html)
    assert len(drawn) > 100 and not [d for d in drawn if "nan" in d or "inf" in d]


def test_nothing_is_drawn_twice(tmp_path):
    def drawn(**values):
        place = {"label": "mood", "classifier": "tfidf"}
        scores = {rows: reported.share("accuracy", value) for rows, value in values.items()}
        named = {"small": "real, no more rows than the twin"}
        found = [
            Measured("utility", score, {"rows": named.get(rows, rows)} | place)
            for rows, score in scores.items()
        ]
        (figure,) = draw_scores(found)
        return re.search(r"<desc>.*</desc>", figure.panels[0][1])[0].count("[")

    assert drawn(real=0.8, small=0.8, twin=0.7) == 2 and drawn(real=0.8, small=0.7, twin=0.7) == 3
    copied = [
        m for m in reported.leakage() if m.score.name == "near-duplicates" and "against" in m.place
    ]
    (figure,) = draw_scores(copied)
    assert len(copied) == 3 and "; train 0" not in figure.panels[0][1]


def test_many_labels_make_a_page_that_can_be_read(tmp_path):
    names = [f"label {n}" for n in range(200)]
    shares = {"twin": [1 / 200] * 200, "train": [n / 19900 for n in range(200)]}
    each = [
        Measured(
            "utility",
            reported.share("F1", 0.5),
            {"rows": rows, "label": "topic", "classifier": "tfidf", "value": name},
        )
        for name in names
        for rows in ("twin", "real")
    ]
    histogram = Histogram("fidelity", "labels: topic", "topic", names, shares)
    findings = reported.evaluation(measured=tuple(each), histograms=(histogram,), curves=())
    page = Page(build_report(bare(tmp_path, findings)))
    svg = next(page.root.find("svg"))
    assert "181 others" in svg.text and svg.text.count("label ") == 19
    assert float(svg.attributes["viewbox"].split()[3]) < 1000
    tables = {table.children[0].text: table for table in page.root.find("table")}
    assert len(list(tables["F1 of each label: topic, tfidf"].find("tr"))) == 201
    assert len(list(tables["labels: topic: share of rows"].find("tr"))) == 201


@pytest.mark.parametrize("rows", [0, 1, 5, 40])
def test_twins_of_any_size(tmp_path, rows):
    frame = pd.DataFrame({"n": range(rows), "text": [f"row {n} is short" for n in range(rows)]})
    html = build_report(with_twin(bare(tmp_path), frame))
    shown = re.findall(r"row (\d+) is short", html)
    assert len(shown) == len(set(shown)) == rows
    assert ("twinset sample RUN" in html) == (rows == 0)
    assert (f"Find in {rows} of {rows} rows" in html) == (rows > 0)


def test_a_row_that_stands_twice_is_shown_once(tmp_path):
    frame = pd.DataFrame({"n": [1] * 9, "text": ["the same text"] * 9})
    assert build_report(with_twin(bare(tmp_path), frame)).count("the same text") == 1


@pytest.mark.parametrize(
    "points",
    [
        [(5.0, 0.5)],
        [(5.0, 0.5), (5.0, 0.5)],
        [(0.0, 0.0), (1.0, 1.0)],
        [(1.0, 0.0, None, None), (2.0, None)],
        [(1e-9, 1e9), (1e9, 1e-9)],
        [(float(n), math.sin(n), -1.0, 1.0) for n in range(2000)],
    ],
)
@pytest.mark.parametrize("log", ["", "xy"])
@pytest.mark.parametrize("is_roc", [False, True])
def test_lines_of_any_kind_stay_in_their_picture(points, log, is_roc):
    picture = draw_lines("t", "x", "y", {"a": points}, log, is_roc=is_roc)
    if picture is None:
        assert log and not is_roc
        return
    height = float(re.search(r'viewBox="0 0 340 (\d+)"', picture)[1])
    drawn = " ".join(re.findall(r' d="([^"]*)"', picture)) + " "
    places = re.findall(r"[ML] (-?[\d.]+) (-?[\d.]+) ", drawn.replace("\n", " "))
    assert len(places) > 3 and len(picture) < 100_000 and "nan" not in picture
    # A band is drawn at the origin and moved into the picture.
    assert all(-10 <= float(x) <= 350 and abs(float(y)) <= height for x, y in places)


@pytest.mark.parametrize(
    ("bins", "series"),
    [
        ([], {"twin": []}),
        (["a"], {}),
        (["a", "b"], {"twin": [0.0, 0.0]}),
        (["0–9", "10 or more"], {"twin": [0.0, 0.0], "train": [math.nan, 1.0]}),
    ],
)
def test_histograms_with_nothing_in_them(bins, series):
    picture = draw_histogram(Histogram("fidelity", "t", "x", bins, series))
    assert (picture is None) == (not bins or not series)
    assert picture is None or "nan" not in picture


def test_training_curves_are_means_of_what_is_known():
    steps = [{"step": n, "loss": None if n % 2 else 2.0} for n in range(1000)]
    points = average_over_steps(steps, "loss")
    assert len(points) <= 120 and {y for _, y in points} == {2.0}
    assert average_over_steps([{"step": 1}], "loss") == []


def test_spent_epsilon_rises_to_what_is_guaranteed():
    ledger = handover.ledger()
    points = spend_over_steps(ledger)
    values = [eps for _, eps in points]
    assert values == sorted(values) and values[0] < values[-1] / 1.5
    assert points[-1] == (20.0, guarantee(ledger).epsilon)
    assert spend_over_steps(handover.ledger(handover.NO_PRIVACY)) == []
    assert spend_over_steps(handover.ledger(policy_form="made up")) == []


def test_the_noise_map_shades_by_the_logarithm():
    noise = map_noise({"h.0.q.weight": 0.5, "h.1.q.weight": 2.0, "h.1.k.weight": 1.0, "wte": -1.0})
    assert noise == {"0": {"q": ("0.50", -3), "k": None}, "1": {"q": ("2.00", 3), "k": ("1.00", 0)}}
    assert map_noise({}) == {} == map_noise({"a": math.nan})


@pytest.mark.parametrize(("value", "ends"), [(0.503, (0.4, 0.6)), (0.97, (0.4, 1.0))])
def test_a_difference_from_chance_by_chance_fills_no_axis(value, ends):
    score = replace(reported.share("AUROC", value), low=value - 0.02, high=min(value + 0.02, 1.0))
    found = find_domain([score], Reference(0.5, "guessing", is_middle=True))
    assert found == pytest.approx(ends, abs=0.06)
