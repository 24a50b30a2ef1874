"""Charts of anything: no numbers, many labels, any line, and how the twin was made."""

import math
import re
from dataclasses import replace

import pytest

from evaluation.report.charts import draw_lines
from evaluation.report.page import build_report, spend_over_steps
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


@pytest.mark.parametrize(
    "points",
    [
        [(5.0, 0.5)],
        [(1.0, 0.0, None, None), (2.0, None)],
        [(1e-9, 1e9), (1e9, 1e-9)],
    ],
)
@pytest.mark.parametrize("log", ["", "xy"])
def test_lines_of_any_kind_stay_in_their_picture(points, log):
    picture = draw_lines("t", "x", "y", {"a": points}, log)
    if picture is None:
        assert log
        return
    height = float(re.search(r'viewBox="0 0 340 (\d+)"', picture)[1])
    places = re.findall(
        r"[ML] (-?[\d.]+) (-?[\d.]+) ", " ".join(re.findall(r' d="(.*?)"', picture))
    )
    assert len(places) > 3 and len(picture) < 100_000 and "nan" not in picture
    assert all(0 <= float(x) <= 340 and 0 <= float(y) <= height for x, y in places)


def test_spent_epsilon_rises_to_what_is_guaranteed():
    ledger = handover.ledger()
    points = spend_over_steps(ledger)
    values = [eps for _, eps in points]
    assert values == sorted(values) and values[0] < values[-1] / 1.5
    assert points[-1] == (20.0, guarantee(ledger).epsilon)
    assert spend_over_steps(handover.ledger(handover.NO_PRIVACY)) == []
