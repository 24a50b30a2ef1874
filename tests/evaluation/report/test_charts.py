"""Charts of anything: no numbers, many labels, any line, and how the twin was made."""

import math
import re
from dataclasses import replace

import pytest

from evaluation.fidelity.measures import SECOND
from evaluation.findings import Histogram, Measured
from evaluation.report.charts import draw_lines, find_domain, style_series
from evaluation.report.figures import draw_histogram, draw_scores
from evaluation.report.page import average_over_steps, build_report, map_noise, spend_over_steps
from tests.helpers import handover, reported
from tests.helpers.pages import Page, answers
from tests.helpers.reported import bare
from twinset.privacy.statement.guarantee import guarantee


def test_scores_that_are_no_numbers_are_shown_as_such(tmp_path):
    findings = [reported.evaluation(), reported.audit(), reported.planted()]
    nothing = {"value": math.nan, "low": -math.inf, "high": math.inf}
    for at, each in enumerate(findings):
        broken = tuple(replace(m, score=replace(m.score, **nothing)) for m in each.measured[::5])
        lines = {"a": [(1.0, math.nan), (math.nan, 1.0)], "b": []}
        curves = tuple(replace(c, series=lines) for c in each.curves)
        findings[at] = replace(each, measured=broken, curves=curves)
    html = build_report(bare(tmp_path, *findings))
    assert answers(html) == ["Not measured"] * 3
    assert not re.search(r"\bnan\b|\bNaN\b|\binf\b|\bNone\b", Page(html).root.text)
    drawn = re.findall(r'(?:[dxy]|width|height)="([^"]*)"', html)
    assert len(drawn) > 100 and not [d for d in drawn if "nan" in d or "inf" in d]


def test_nothing_is_drawn_twice():
    def drawn(**values):
        place = {"label": "mood", "classifier": "tfidf"}
        named = {"small": "real, no more rows than the twin"}
        found = [
            Measured("utility", reported.share("accuracy", value), {"rows": rows} | place)
            for rows, value in ((named.get(rows, rows), value) for rows, value in values.items())
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
    panels = draw_histogram(histogram).panels
    assert len(panels) == 20 and panels[-1][0] == "181 others" and "twin 0.905" in panels[-1][1]
    findings = reported.evaluation(measured=tuple(each), histograms=(histogram,), curves=())
    page = Page(build_report(bare(tmp_path, findings)))
    tables = {table.children[0].text: table for table in page.root.find("table")}
    for caption in ("F1 of each label: topic, tfidf", "labels: topic: share of rows"):
        assert len(list(tables[caption].find("tr"))) == 201


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
    places = re.findall(
        r"[ML] (-?[\d.]+) (-?[\d.]+) ", " ".join(re.findall(r' d="(.*?)"', picture))
    )
    assert len(places) > 3 and len(picture) < 100_000 and "nan" not in picture
    assert all(0 <= float(x) <= 340 and 0 <= float(y) <= height for x, y in places)


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
    figure = draw_histogram(Histogram("fidelity", "t", "x", bins, series))
    assert (figure is None) == (not bins or not series)
    assert figure is None or "nan" not in "".join(picture for _, picture in figure.panels)


def test_series_differ_in_more_than_their_colour():
    looks = style_series([f"policy {n}" for n in range(8)]).values()
    assert len({(dash, marker) for _, dash, marker in looks}) == 8
    looks = style_series(["train", SECOND, "twin"]).values()
    assert len({dash for _, dash, _ in looks}) == len({colour for colour, _, _ in looks}) == 3


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


def test_the_noise_map_shades_by_the_logarithm():
    noise = map_noise({"h.0.q.weight": 0.5, "h.1.q.weight": 2.0, "h.1.k.weight": 1.0, "wte": -1.0})
    assert noise == {"0": {"q": ("0.50", -3), "k": None}, "1": {"q": ("2.00", 3), "k": ("1.00", 0)}}
    assert map_noise({}) == {} == map_noise({"a": math.nan})


@pytest.mark.parametrize(("value", "ends"), [(0.503, (0.4, 0.6)), (0.97, (0.4, 1.0))])
def test_a_difference_from_chance_by_chance_fills_no_axis(value, ends):
    score = replace(reported.share("AUROC", value), low=value - 0.02, high=min(value + 0.02, 1.0))
    assert find_domain([score], (0.5, "guessing"), is_middle=True) == pytest.approx(ends, abs=0.06)
