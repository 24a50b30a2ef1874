"""Charts: scores that are no numbers, and how ε was spent."""

import math
import re
from dataclasses import replace

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


def test_spent_epsilon_rises_to_what_is_guaranteed():
    ledger = handover.ledger()
    points = spend_over_steps(ledger)
    values = [eps for _, eps in points]
    assert values == sorted(values) and values[0] < values[-1] / 1.5
    assert points[-1] == (20.0, guarantee(ledger).epsilon)
    assert spend_over_steps(handover.ledger(handover.NO_PRIVACY)) == []
