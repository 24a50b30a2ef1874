"""The report: what stands on it, who can read it, that all text is text, and nothing is fetched."""

import base64
import hashlib
import re
from dataclasses import replace
from datetime import date

import pandas as pd
import pytest

from evaluation.findings import Curve, Findings, Histogram, Measured
from evaluation.policy_runs import BASELINE_FILE
from evaluation.report.page import build_report, spend_over_steps, write_report
from tests.helpers import handover, reported
from tests.helpers.pages import Page, all_elements, answers, one
from tests.helpers.reported import audit, bare, evaluation
from twinset import __version__
from twinset.files.atomic import sha256_file
from twinset.privacy.accounting.accountant import up_decimals
from twinset.privacy.accounting.events import IndividualGaussian
from twinset.privacy.mechanism.units import WeightScale
from twinset.privacy.statement.guarantee import belief_sentence, guarantee
from twinset.table.read import read_frame, write_frame

EVIL = "<script>alert(1)</script>]]>\"'&<img src=x onerror=alert(1)></style></textarea>{{7*7}}"


@pytest.fixture(scope="module")
def html(tmp_path_factory):
    """The page of a run of which all is known."""
    planted = Findings("canaries", {"policies": ["uniform"]}, (*reported.canaries(),))
    folder = tmp_path_factory.mktemp("report")
    return build_report(reported.run_in(folder, evaluation(), audit(), planted))


@pytest.fixture(scope="module")
def page(html):
    return Page(html)


def section(page, name):
    return one(e for e in page.root.find("section") if e.attributes["id"] == name)


def test_the_answers_stand_on_top_and_the_guarantee_word_for_word_below(page):
    claim = guarantee(handover.ledger())
    first = next(one(page.root.find("main")).find("section"))
    assert first.attributes["id"] == "verdicts" and belief_sentence(claim) in first.text
    assert "May I hand this over?" in first.text and "ε" in first.text and "2.16" in first.text
    facts = one(e for e in page.root.find("p") if e.attributes.get("class") == "facts").text
    assert facts == f"6 rows · {date.today():%-d %B %Y} · twinset {__version__}"
    below = section(page, "guarantee")
    assert claim.sentence in below.text and f"record ({claim.neighbouring})" in below.text
    assert [dd.text for dd in below.find("dd")] == ["2.16", "10⁻⁵"]
    assert all(line in below.text for line in (*claim.covers, *claim.excludes))
    assert "No guarantee" not in page.root.text
    assert "12 test rows occur in train too" in page.root.text


def test_epsilon_of_each_privacy_weight_is_shown(tmp_path):
    scale = WeightScale("base", 2.0, 5.0, "public texts", (0.2,) * 5)
    trained = (IndividualGaussian(9.0, 1.0, 20, 0.5),)
    ledger = handover.ledger(trained, policy="adaptive", weight_scale=scale, sample_rate=1.0)
    page = Page(build_report(bare(tmp_path, ledger=ledger)))
    table = one(section(page, "guarantee").find("tbody"))
    shown = [[cell.text for cell in row.children] for row in table.find("tr")]
    expected = guarantee(ledger).by_weight
    assert shown == [[f"{w:g}", up_decimals(eps), "20%"] for w, eps, _ in expected]


@pytest.mark.parametrize("ledger", [handover.ledger(handover.NO_PRIVACY), None])
def test_no_guarantee_cannot_be_missed(tmp_path, ledger):
    run = bare(tmp_path, ledger=ledger)
    if ledger is None:
        (run / "share" / "privacy.json").unlink()
    page = Page(build_report(run))
    first = section(page, "verdicts")
    assert "No guarantee" in first.text and not list(section(page, "guarantee").find("dd"))
    assert next(first.find("p")).text == "No"  # whether it may be handed over
    assert ("Unknown" in first.text) == (ledger is None)


def test_every_figure_is_there_with_its_meaning_and_every_score_in_the_last_table(page):
    figures = list(page.root.find("figure"))
    assert {one(figure.find("h3")).text for figure in figures} >= {
        "Accuracy: sentiment",
        "Label fidelity: product",
        "Accuracy by epsilon: sentiment",
        "Lower bound of ε and the ε claimed",
        "Members found by attack",
        "Length",
        "Where the noise went",
        "ε spent while training",
    }
    measured = [*reported.evaluation().measured, *reported.leakage(), *reported.canaries()]
    rows = list(one(one(section(page, "scores").find("table")).find("tbody")).find("tr"))
    assert len(rows) == len(measured)
    first = "accuracy|real, sentiment, tfidf|0.836|[0.809, 0.860]|maximise|800|utility|private rows"
    assert [cell.text for cell in rows[0].find("th", "td")] == first.split("|")


def test_findings_of_other_rows_are_called_old(tmp_path):
    run = bare(tmp_path, evaluation(), audit())
    (twin,) = (run / "share").glob("twin.*")
    fresh = evaluation(about={"twin_sha256": sha256_file(twin)}, measured=(), curves=())
    old = audit(about={"twin_sha256": "0" * 64}, measured=(), curves=())
    for findings in (fresh, old):
        findings.save(run / "internal" / f"{findings.kind}.json")
    text = Page(build_report(run)).root.text
    assert "audit: measured before the twin was sampled again" in text
    assert "evaluation: measured before" not in text


def test_missing_parts_are_listed_with_their_commands(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    html = build_report(run)
    assert answers(html) == ["Not measured"] * 3 and "<svg" not in html
    codes = [code.text for code in Page(html).root.find("code")]
    for start in ("evaluate RUN", "audit RUN", "audit canaries", "generate", "sample RUN"):
        assert any(code.startswith(f"twinset {start}") for code in codes), start


def test_hostile_text_shows_as_text(tmp_path):
    place = {"rows": "twin", "label": EVIL, "classifier": EVIL}
    score = replace(reported.share("accuracy", 0.5), name=EVIL)
    findings = reported.evaluation(
        about={EVIL: {EVIL: [EVIL]}},
        measured=(
            Measured("utility", score, place),
            Measured("utility", score, place | {"rows": EVIL}),
            Measured("utility", score, place | {"value": EVIL}),
            Measured("leakage", reported.share("exposure", 0.5), {"copies": "1", "policy": EVIL}),
        ),
        curves=(Curve("utility", EVIL, EVIL, EVIL, {EVIL: [(1, 1), (2, 2)]}),),
        histograms=(Histogram("fidelity", EVIL, EVIL, [EVIL, "b"], {EVIL: [0.5, 0.5]}),),
        notes=(EVIL,),
    )
    run = reported.run_in(tmp_path, findings, name="evil <b>")
    (run / "internal" / "noise.json").write_text('{"<b>.1.<i>": 0.5}')
    rows = {EVIL: [EVIL, "\x00\x1b[31m\u202eabc"], "label": ["a", "b"]}
    write_frame(pd.DataFrame(rows), run / "share" / "twin.parquet")
    real = pd.DataFrame({EVIL: [EVIL], "label": [EVIL]})
    html = build_report(run, show_real={EVIL: real})
    page = Page(html)
    assert page.root.text.count(EVIL) > 20
    names = {element.name for element in all_elements(page)}
    script = one(e for e in all_elements(page) if e.name == "script")
    assert EVIL not in script.text and not script.attributes
    assert not names & {"img", "textarea", "iframe", "object", "b>", "i"}
    assert not [k for e in all_elements(page) for k in e.attributes if k.startswith("on")]
    assert "\x00" not in html and "\x1b" not in html and "\N{REPLACEMENT CHARACTER}" in html
    html.encode("utf-8")
    # The negative control: the parser would see a script.
    planted = Page(f"<p>{EVIL.partition(']')[0]}</p>")
    assert "script" in {element.name for element in all_elements(planted)}


def test_real_rows_are_shown_on_request_only(tmp_path):
    run = reported.run_in(tmp_path)
    secret = "Marker-7731 lives in flat 12"
    columns = {"review": [secret], "sentiment": ["fresh"], "customer id": ["C-99"]}
    real = tmp_path / "train.parquet"
    write_frame(pd.DataFrame(columns), real)
    (run / "internal").chmod(0o700)
    path = write_report(run)
    assert path == run / "internal" / "report.html" and path.stat().st_mode & 0o077 == 0
    assert secret not in path.read_text("utf-8")
    shown = write_report(run, real).read_text("utf-8")
    assert secret in shown and "It shows private rows" in shown and "train.parquet" in shown
    assert "C-99" not in shown  # a column that the twin does not have


def fetched(html):
    """Everything on a page by which a browser could ask for something."""
    found = [
        f"{name}={value}"
        for element in all_elements(Page(html))
        for name, value in element.attributes.items()
        if name in ("src", "href", "srcset", "action", "data", "poster", "xlink:href", "clip-path")
        and not re.match(r"#|url\(#", value or "")
        or name == "style"
        and "(" in re.sub(r"var\(--\w+\)", "", value)
    ]
    css = "".join(e.text for e in all_elements(Page(html)) if e.name == "style")
    return found + re.findall(r"url\(|@import|expression\(|https?://|//", css)


def test_nothing_is_fetched_and_nothing_runs(html):
    assert fetched(html) == []
    assert "https:" not in html and "http:" not in html
    assert html.count("<script") == 1 and "javascript:" not in html
    script = one(e for e in all_elements(Page(html)) if e.name == "script").text
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in html
    assert not re.search(r"fetch\(|XMLHttp|import|eval|innerHTML|location", script)
    for planted in ('<p style="background: url(//x)"></p>', '<img src="//x">'):
        assert fetched(f"<main>{planted}</main>")


def test_every_picture_and_table_has_a_name(page):
    pictures, tables = list(page.root.find("svg")), list(page.root.find("table"))
    assert len(pictures) > 25 and len(tables) > 5
    for svg in pictures:
        assert svg.attributes["role"] == "img"
        assert [e.name for e in svg.children[:2]] == ["title", "desc"]
        assert all(e.text.strip() for e in svg.children[:2])
        assert list(svg.find("text"))  # text that is text
    for table in tables:
        assert table.children[0].name == "caption" and table.children[0].text.strip()
        assert {e.attributes["scope"] for e in table.find("th")} == {"col", "row"}


def test_spent_epsilon_rises_to_the_guaranteed_one():
    ledger = handover.ledger()
    points = spend_over_steps(ledger)
    values = [eps for _, eps in points]
    assert values == sorted(values) and values[0] < values[-1] / 1.5
    assert points[-1] == (20.0, guarantee(ledger).epsilon)
    assert spend_over_steps(handover.ledger(handover.NO_PRIVACY)) == []


def test_a_text_of_the_base_model_is_next_to_a_row_of_the_same_labels_whatever_its_age(tmp_path):
    run = bare(tmp_path)
    file = next((run / "share").glob("twin.*"))
    twin = read_frame(file)
    text = next(name for name in twin if set(handover.TEXTS) & set(twin[name]))
    base = twin.assign(**{text: [f"from the base model {n}" for n in range(len(twin))]})
    write_frame(base, run / "internal" / BASELINE_FILE)
    write_frame(twin.assign(age=range(len(twin))), file)
    pairs = section(Page(build_report(run)), "rows").text
    assert pairs.count("from the base model") == len(twin) > 1
    assert "age: 1" in pairs
