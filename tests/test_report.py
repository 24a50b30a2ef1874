"""The report: all text is text, nothing is fetched, every number is where it should be."""

import math
import re
import shutil
import subprocess
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from importlib.resources import files
from itertools import pairwise

import handover
import pandas as pd
import pytest
import reported

from evaluation.fidelity.measures import SECOND
from evaluation.findings import Curve, Histogram, Measured
from evaluation.leakage.overlap import HELDOUT, SAMPLE, TRAIN
from evaluation.report import build_report, groups, styles, write_report
from evaluation.report.axes import Scale
from evaluation.report.histograms import histogram_chart
from evaluation.report.lines import Lines, line_chart
from evaluation.report.making import noise_map, over_steps, spent_over_steps
from evaluation.report.verdicts import faithful, leaking, useful
from evaluation.scores import Score
from twinset.errors import InputError
from twinset.formats import write_frame
from twinset.privacy.guarantee import guarantee

EVIL = "<script>alert(1)</script>]]>\"'&<img src=x onerror=alert(1)></style></textarea>{{7*7}}"
VOID = {"meta", "br", "img", "link", "input", "hr"}


@dataclass
class Element:
    name: str
    attributes: dict
    parent: "Element | None" = None
    children: list = field(default_factory=list)
    words: str = ""

    def find(self, *names):
        for child in self.children:
            if child.name in names:
                yield child
            yield from child.find(*names)

    @property
    def text(self):
        return self.words + "".join(child.text for child in self.children)


class Page(HTMLParser):
    """A tree of elements, and whether every one of them was closed where it should be."""

    def __init__(self, html):
        super().__init__()
        self.root = self.at = Element("root", {})
        self.feed(html)
        assert self.at is self.root, f"<{self.at.name}> is not closed"

    def handle_starttag(self, tag, attrs):
        element = Element(tag, dict(attrs), self.at)
        self.at.children.append(element)
        if tag not in VOID:
            self.at = element

    def handle_endtag(self, tag):
        assert self.at.name == tag, f"</{tag}> closes <{self.at.name}>"
        self.at = self.at.parent

    def handle_data(self, data):
        self.at.words += data


def all_elements(page):
    def below(element):
        yield element
        for child in element.children:
            yield from below(child)

    return below(page.root)


def one(elements):
    (element,) = elements
    return element


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    findings = reported.evaluation(), reported.audit(), reported.planted()
    return reported.run_in(tmp_path_factory.mktemp("report"), *findings)


@pytest.fixture(scope="module")
def html(run):
    return build_report(run)


@pytest.fixture(scope="module")
def page(html):
    return Page(html)


def bare(folder, *findings, **options):
    """A run of which nothing is known but these findings and its ledger."""
    run = reported.run_in(folder, *findings, **options)
    for name in ("metrics.jsonl", "noise.json"):
        (run / "internal" / name).unlink()
    return run


def answers(html):
    return [e.text for e in all_elements(Page(html)) if e.attributes.get("class") == "answer"]


# --- what is on it


def test_the_guarantee_stands_on_top_word_for_word(page):
    claim = guarantee(handover.ledger())
    main = one(page.root.find("main"))
    first, *_ = main.find("section")
    assert first.attributes["id"] == "guarantee"
    assert claim.sentence in first.text
    assert [dd.text for dd in first.find("dd")] == ["2.16", "10⁻⁵"]
    assert all(line in first.text for line in (*claim.covers, *claim.excludes))
    assert "No guarantee" not in first.text


@pytest.mark.parametrize("ledger", [handover.ledger(handover.NO_PRIVACY), None])
def test_no_guarantee_cannot_be_missed(tmp_path, ledger):
    run = bare(tmp_path, ledger=ledger)
    if ledger is None:
        (run / "share" / "privacy.json").unlink()
    first = next(one(Page(build_report(run)).root.find("main")).find("section"))
    assert one(e for e in first.find("p") if e.attributes.get("class") == "none")
    assert "No guarantee" in first.text and not list(first.find("dd"))
    assert ("Unknown" in first.text) == (ledger is None)


def test_every_figure_is_there_with_its_meaning(page):
    titles = {one(figure.find("h3")).text for figure in page.root.find("figure")}
    assert titles >= {
        "Accuracy: sentiment",
        "Label fidelity: product",
        "Accuracy by rows of the twin: sentiment",
        "Accuracy by epsilon: sentiment",
        "Exposure of planted secrets against repetitions",
        "Lower bound of ε beside what is claimed",
        "AUROC",
        "Members found by attack",
        "Length",
        "Labels: sentiment",
        "Where the noise went",
        "Loss while training",
        "Clipped share while training",
        "ε spent while training",
    }
    for figure in page.root.find("figure"):
        caption = one(figure.find("figcaption"))
        assert len(one(caption.find("p")).text) > 10


def test_every_score_is_in_the_last_table(run, page):
    measured = [*reported.evaluation().measured, *reported.leakage(), *reported.canaries()]
    last = one(e for e in page.root.find("section") if e.attributes["id"] == "scores")
    table = one(last.find("table"))
    rows = list(one(table.find("tbody")).find("tr"))
    assert len(rows) == len(measured)
    assert [cell.text for cell in rows[0].find("th", "td")] == [
        "accuracy",
        "real, sentiment, tfidf",
        "0.836",
        "[0.809, 0.860]",
        "maximise",
        "800",
        "utility",
        "private rows",
    ]


def test_notes_and_how_it_was_made_are_told(page):
    text = page.root.text
    assert "12 test rows occur in train too" in text
    assert "twinset evaluate runs/reviews-1 --train train.csv --test test.csv" in text


def test_what_is_missing_is_said_with_its_command(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    html = build_report(run)
    assert answers(html) == ["Not measured"] * 3
    codes = [code.text for code in Page(html).root.find("code")]
    for start in ("evaluate RUN", "audit RUN", "audit canaries", "generate", "sample RUN"):
        assert any(code.startswith(f"twinset {start}") for code in codes), start
    assert "<svg" not in html


def test_the_page_is_written_whole_and_for_its_owner_only(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    path = write_report(run)
    assert path == run / "internal" / "report.html"
    assert path.read_text("utf-8") == build_report(run)
    assert path.parent.stat().st_mode & 0o077 == 0 == path.stat().st_mode & 0o077
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("share/privacy.json", "{"),
        ("share/privacy.json", '{"ledger": []}'),
        ("internal/metrics.jsonl", "3\n"),
        ("internal/noise.json", '{"a": "b"}'),
        ("internal/audit.json", '{"schema": 99}'),
    ],
)
def test_a_damaged_file_ends_in_one_line(tmp_path, file, content):
    run = reported.run_in(tmp_path)
    (run / file).write_text(content)
    with pytest.raises(InputError, match=re.escape(file.rpartition("/")[2])) as error:
        build_report(run)
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="no such run"):
        build_report(tmp_path / "nowhere")


# --- text is text


def with_twin(run, frame):
    for old in (run / "share").glob("twin.*"):
        old.unlink()
    write_frame(frame, run / "share" / "twin.parquet")
    return run


def hostile(folder):
    place = {"rows": "twin", "label": EVIL, "classifier": EVIL}
    score = replace(reported.share("accuracy", 0.5), name=EVIL)
    measured = (
        Measured("utility", score, place),
        Measured("utility", score, place | {"rows": EVIL}),
        Measured("utility", score, place | {"value": EVIL}),
        Measured("leakage", reported.share("exposure", 0.5), {"copies": "1", "policy": EVIL}),
    )
    findings = reported.evaluation(
        about={EVIL: {EVIL: [EVIL]}},
        measured=measured,
        curves=(Curve("utility", EVIL, EVIL, EVIL, {EVIL: [(1, 1), (2, 2)]}),),
        histograms=(Histogram("fidelity", EVIL, EVIL, [EVIL, "b"], {EVIL: [0.5, 0.5]}),),
        notes=(EVIL,),
    )
    run = reported.run_in(folder, findings, name="evil <b>")
    (run / "internal" / "noise.json").write_text('{"<b>.1.<i>": 0.5}')
    return with_twin(
        run, pd.DataFrame({EVIL: [EVIL, "\x00\x1b[31m\u202eabc"], "label": ["a", "b"]})
    )


def test_hostile_text_shows_as_text(tmp_path):
    run = hostile(tmp_path)
    html = build_report(run, show_real={EVIL: pd.DataFrame({EVIL: [EVIL], "label": [EVIL]})})
    page = Page(html)
    assert page.root.text.count(EVIL) > 20
    names = {element.name for element in all_elements(page)}
    assert not names & {"script", "img", "textarea", "iframe", "object", "b>", "i"}
    assert not [k for e in all_elements(page) for k in e.attributes if k.startswith("on")]
    assert "\x00" not in html and "\x1b" not in html and "\N{REPLACEMENT CHARACTER}" in html
    html.encode("utf-8")


def test_the_parser_would_see_a_script():
    planted = Page(f"<p>{EVIL.partition(']')[0]}</p>")
    assert "script" in {element.name for element in all_elements(planted)}


def test_real_rows_are_shown_on_request_only(tmp_path):
    run = reported.run_in(tmp_path)
    secret = "Marker-7731 lives in flat 12"
    columns = {"review": [secret], "sentiment": ["fresh"], "customer id": ["C-99"]}
    real = tmp_path / "train.parquet"
    write_frame(pd.DataFrame(columns), real)
    assert secret not in write_report(run).read_text("utf-8")
    shown = write_report(run, real).read_text("utf-8")
    assert secret in shown and "It shows private rows" in shown and "train.parquet" in shown
    assert "C-99" not in shown  # a column that the twin does not have
    assert "<h3>Twin</h3>" in shown


# --- nothing is fetched


def fetched(html):
    """Everything on a page by which a browser could ask for something."""
    found = [
        f"{name}={value}"
        for element in all_elements(Page(html))
        for name, value in element.attributes.items()
        if name in ("src", "href", "srcset", "action", "data", "poster", "xlink:href", "style")
        and not (name == "href" and (value or "").startswith("#"))
    ]
    css = "".join(e.text for e in all_elements(Page(html)) if e.name == "style")
    return found + re.findall(r"url\(|@import|expression\(|https?://|//", css)


def test_nothing_is_fetched_and_nothing_runs(html):
    assert fetched(html) == []
    assert "https:" not in html and "http:" not in html
    assert "<script" not in html and "javascript:" not in html
    assert "default-src 'none'" in html  # and the browser is told so
    for planted in ('<a href="https://x.y">', '<p style="a">', '<img src="//x">'):
        closed = "" if "img" in planted else f"</{planted[1]}>"
        assert fetched(html.replace("</main>", f"{planted}{closed}</main>"))


# --- for everybody


def test_headings_are_in_order_and_links_lead_somewhere(page):
    levels = [int(e.name[1]) for e in page.root.find("h1", "h2", "h3", "h4")]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    ids = [e.attributes["id"] for e in all_elements(page) if "id" in e.attributes]
    assert len(ids) == len(set(ids))
    links = {e.attributes["href"][1:] for e in page.root.find("a")}
    assert len(links) > 8 and links <= set(ids)
    assert len([*page.root.find("main")]) == len([*page.root.find("h1")]) == 1
    assert one(page.root.find("html")).attributes["lang"] == "en"


def test_every_picture_and_table_has_a_name(page):
    pictures = list(page.root.find("svg"))
    assert len(pictures) > 25
    for svg in pictures:
        assert svg.attributes["role"] == "img"
        assert svg.children[0].name == "title" and svg.children[0].text.strip()
        assert svg.children[1].name == "desc" and svg.children[1].text.strip()
    tables = list(page.root.find("table"))
    assert len(tables) > 5
    for table in tables:
        assert table.children[0].name == "caption" and table.children[0].text.strip()
        assert {e.attributes["scope"] for e in table.find("th")} == {"col", "row"}
        assert table.parent.attributes["class"] == "scroll"
        assert table.parent.attributes["tabindex"] == "0"
        assert table.parent.attributes["aria-label"]
    for figure in page.root.find("figure"):
        assert figure.children[0].name == "figcaption"


def schemes():
    """The colours of the light and the dark page, and of the light one in print."""
    css = files("evaluation.report").joinpath("page.css").read_text("utf-8")
    blocks = [
        dict(re.findall(r"--([\w-]+): (#\w+);", b)) for b in re.findall(r":root \{([^}]*)", css)
    ]
    light, dark, paper = blocks
    return {"light": light, "dark": light | dark, "print": light | paper}


def contrast(one, other):
    """The ratio of WCAG 2."""

    def luminance(colour):
        channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark", "print"])
def test_every_colour_can_be_told_from_its_ground(scheme):
    colours = schemes()[scheme]
    texts = ("ink", "soft", "link", "good", "mixed", "bad", "unknown")
    for text in texts:
        for ground in ("paper", "card"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for level in range(-3, 4):
        assert contrast(colours["ink"], colours[f"h{level}"]) >= 4.5, level
    assert contrast(colours["alarm-ink"], colours["alarm-paper"]) >= 4.5
    for series in range(6):
        assert contrast(colours[f"s{series}"], colours["paper"]) >= 3, series
    assert contrast("#777777", "#ffffff") < 4.5 < contrast("#767676", "#ffffff")  # it measures


def test_series_differ_in_more_than_their_colour():
    looks = styles.styles([f"policy {n}" for n in range(6)]).values()
    assert len({look.marker(0, 0).split("class")[0] for look in looks}) == 6
    looks = styles.styles(["train", SECOND, "twin"]).values()
    assert len({look.dash for look in looks}) == len({look.name for look in looks}) == 3


def test_the_words_are_those_of_the_modules_that_measure():
    from evaluation.leakage.canaryaudit import CLAIM

    assert CLAIM == groups.CLAIM
    assert {TRAIN, SAMPLE, HELDOUT} <= set(styles.ROWS)
    assert (SAMPLE, HELDOUT) == (styles.TRAIN_SAMPLE, styles.HELD_OUT)


# --- odd input


def nothing_known(score):
    return replace(score, value=math.nan, low=-math.inf, high=math.inf)


def test_scores_that_are_no_numbers_are_shown_as_such(tmp_path):
    findings = [reported.evaluation(), reported.audit(), reported.planted()]
    for at, each in enumerate(findings):
        broken = tuple(replace(m, score=nothing_known(m.score)) for m in each.measured)
        lines = {"a": [(1.0, math.nan), (math.nan, 1.0)], "b": []}
        curves = tuple(replace(c, series=lines) for c in each.curves)
        findings[at] = replace(each, measured=broken, curves=curves)
    html = build_report(bare(tmp_path, *findings))
    assert answers(html) == ["Not measured"] * 3
    assert not re.search(r"\bnan\b|\bNaN\b|\binf\b|\bNone\b", Page(html).root.text)
    drawn = re.findall(r'(?:[dxy12]|width|height)="([^"]*)"', html)
    assert len(drawn) > 100 and not [d for d in drawn if "nan" in d or "inf" in d]


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
    assert "181 others" in svg.text and len(list(svg.find("rect"))) == 2 * 20 + 2
    assert float(svg.attributes["viewBox"].split()[3]) < 1000
    tables = {table.children[0].text: table for table in page.root.find("table")}
    assert len(list(tables["F1 of each label: topic, tfidf"].find("tr"))) == 201
    assert len(list(tables["labels: topic: share of rows"].find("tr"))) == 201


@pytest.mark.parametrize("rows", [0, 1, 5, 40])
def test_twins_of_any_size(tmp_path, rows):
    frame = pd.DataFrame({"n": range(rows), "text": [f"row {n} is short" for n in range(rows)]})
    html = build_report(with_twin(bare(tmp_path), frame))
    shown = re.findall(r"row (\d+) is short", html)
    assert len(shown) == len(set(shown)) == min(rows, 8)
    assert ("twinset sample RUN" in html) == (rows == 0)
    assert (f"{min(rows, 8)} of {rows} rows" in html) == (rows > 0)


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
@pytest.mark.parametrize("log", ["", "x", "y", "xy"])
@pytest.mark.parametrize("is_roc", [False, True])
def test_lines_of_any_kind_stay_in_their_picture(points, log, is_roc):
    picture = line_chart(Lines("t", "x", "y", {"a": points}, log, is_roc=is_roc))
    if picture is None:
        assert log and not is_roc
        return
    path = re.findall(r'class="line c0"', picture)
    assert len(path) == 1 and len(picture) < 100_000
    numbers = [
        float(n)
        for n in re.findall(r"-?\d+\.\d+", " ".join(re.findall(r' d="(M\d[^"]*)"', picture)))
    ]
    assert all(-20 <= number <= 400 for number in numbers)


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
    picture = histogram_chart(Histogram("fidelity", "t", "x", bins, series))
    assert (picture is None) == (not bins or not series)
    assert picture is None or "nan" not in picture


def test_log_scales_keep_ratios():
    scale = Scale(0.001, 1.0, 0.0, 300.0, log=True)
    assert [round(scale(v)) for v in (0.001, 0.01, 0.1, 1.0, 0.0, 9.0)] == [
        0,
        100,
        200,
        300,
        0,
        300,
    ]


# --- training


def test_training_curves_are_means_of_what_is_known():
    steps = [{"step": n, "loss": None if n % 2 else 2.0} for n in range(1000)]
    points = over_steps(steps, "loss")
    assert len(points) <= 120 and {y for _, y in points} == {2.0}
    assert over_steps([{"step": 1}], "loss") == []


def test_spent_epsilon_rises_to_what_is_guaranteed():
    ledger = handover.ledger()
    points = spent_over_steps(ledger)
    values = [eps for _, eps in points]
    assert values == sorted(values) and values[0] < values[-1] / 1.5
    assert points[-1] == (20.0, guarantee(ledger).epsilon)
    assert spent_over_steps(handover.ledger(handover.NO_PRIVACY)) == []
    assert spent_over_steps(handover.ledger(policy_form="made up")) == []


def test_the_noise_map_shades_by_the_logarithm():
    noise = noise_map({"h.0.q.weight": 0.5, "h.1.q.weight": 2.0, "h.1.k.weight": 1.0, "wte": -1.0})
    assert noise.kinds == ("q", "k")
    cells = {
        layer: [cell and (cell.factor, cell.level) for cell in row] for layer, row in noise.layers
    }
    assert cells == {"0": [("0.50", -3), None], "1": [("2.00", 3), ("1.00", 0)]}
    assert noise_map({}) is None is noise_map({"a": math.nan})


# --- verdicts


def score(name, low, high, goal="minimise"):
    return Score(name, (low + high) / 2, low, high, goal, 0.0, 1.0, 100)


def rows(question, name, goal="maximise", **ends):
    where = {"twin": "twin", "base": "no private data", "real": "real", "second": SECOND}
    where |= {"train": TRAIN, "sample": SAMPLE, "heldout": HELDOUT}
    return [
        Measured(question, score(name, *each, goal), {"rows": where[key]})
        for key, each in ends.items()
    ]


@pytest.mark.parametrize(
    ("measured", "answer"),
    [
        ([], "Not measured"),
        (rows("utility", "accuracy", twin=(0.6, 0.7)), "Not measured"),
        (rows("utility", "accuracy", twin=(0.6, 0.7), base=(0.4, 0.5)), "Yes"),
        (rows("utility", "accuracy", twin=(0.6, 0.7), base=(0.5, 0.65)), "No"),
        (rows("utility", "accuracy", twin=(0.4, 0.5), base=(0.6, 0.7)), "No"),
        (rows("utility", "accuracy", twin=(0.4, math.inf), base=(0.1, 0.2)), "Not measured"),
    ],
)
def test_useful(measured, answer):
    assert useful(measured).answer == answer


def test_useful_in_part_says_where_not_first():
    good = rows("utility", "accuracy", twin=(0.6, 0.7), base=(0.4, 0.5), real=(0.8, 0.9))
    bad = rows("utility", "accuracy", twin=(0.3, 0.4), base=(0.4, 0.5))
    bad = [replace(m, place={**m.place, "label": "mood"}) for m in bad]
    verdict = useful([*good, *bad])
    assert (verdict.answer, verdict.tone) == ("In part", "mixed")
    assert verdict.reasons[0].startswith("mood: 0.350") and "not apart" in verdict.reasons[0]
    assert "76% of what real rows give (0.850)" in verdict.reasons[1]


@pytest.mark.parametrize(
    ("goal", "twin", "answer"),
    [
        ("match", (0.45, 0.55), "Yes"),
        ("match", (0.1, 0.2), "No"),
        ("match", (0.8, 0.9), "No"),
        ("maximise", (0.8, 0.9), "Yes"),
        ("maximise", (0.1, 0.2), "No"),
        ("minimise", (0.1, 0.2), "Yes"),
        ("minimise", (0.8, 0.9), "No"),
    ],
)
def test_faithful(goal, twin, answer):
    assert faithful(rows("fidelity", "m", goal, twin=twin, second=(0.5, 0.6))).answer == answer
    assert faithful(rows("fidelity", "m", goal, twin=twin)).answer == "Not measured"


def beside(goal, train, heldout):
    return rows("leakage", "shared", goal, train=train, heldout=heldout)


def attack(low, high, name="AUROC", sees="model", **more):
    return Measured("leakage", score(name, low, high), {"attack": "loss", "sees": sees, **more})


def bound(value, claim, policy="uniform"):
    found = Score("lower bound of ε", value, value, math.inf, "minimise", 0.0, math.inf, 99)
    claimed = Score("claimed epsilon", claim, claim, claim, "minimise", 0.0, math.inf, 1)
    place = {"policy": policy}
    return [
        Measured("leakage", found, {"attack": "one run", "sees": "model"} | place),
        Measured("leakage", claimed, place),
    ]


BLIND = "neither model nor released rows"


@pytest.mark.parametrize(
    ("measured", "answer"),
    [
        ([], "Not measured"),
        ([attack(0.45, 0.55)], "No leak found"),
        ([attack(0.51, 0.6)], "Signs of a leak"),
        ([attack(0.3, 0.4)], "No leak found"),
        ([attack(0.005, 0.02, "TPR at 1 % FPR")], "No leak found"),
        ([attack(0.02, 0.05, "TPR at 1 % FPR")], "Signs of a leak"),
        ([attack(0.6, 0.7, sees=BLIND)], "Not measured"),
        ([attack(0.9, 0.99, policy="none")], "Not measured"),
        (
            rows("leakage", "runs", "minimise", train=(0.1, 0.2), heldout=(0.0, 0.05)),
            "Signs of a leak",
        ),
        (
            rows("leakage", "runs", "minimise", train=(0.1, 0.2), heldout=(0.1, 0.3)),
            "No leak found",
        ),
        (
            rows("leakage", "ratio", "match", train=(0.1, 0.2), heldout=(0.5, 0.6)),
            "Signs of a leak",
        ),
        (rows("leakage", "ratio", "match", train=(0.5, 0.6), heldout=(0.1, 0.2)), "No leak found"),
        (bound(3.0, 8.0), "Not measured"),
        (bound(9.0, 8.0), "The claim is refuted"),
        (bound(9.0, math.inf), "Not measured"),
        (bound(9.0, math.nan), "Not measured"),
        ([attack(0.45, 0.55), *bound(9.0, 8.0)], "The claim is refuted"),
        ([*bound(9.0, math.inf, "none"), *bound(1.0, 8.0)], "Not measured"),
    ],
)
def test_leaking(measured, answer):
    assert leaking(measured).answer == answer


def test_equal_tables_are_compared_where_there_are_some():
    whole, part = (0.3, 0.4), (0.1, 0.2)
    more = rows("leakage", "runs", "minimise", train=whole, sample=part, heldout=(0.1, 0.2))
    assert leaking(more).answer == "No leak found"


def test_attacks_that_need_no_model_are_named_first():
    verdict = leaking([attack(0.45, 0.55), attack(0.8, 0.9, sees=BLIND)])
    assert verdict.answer == "No leak found"
    assert "without model and twin" in verdict.reasons[0]


def test_an_overtrained_run_is_told_from_a_private_one(tmp_path):
    loud = attack(0.85, 0.95), *beside("minimise", (0.5, 0.6), (0.0, 0.1))
    html = build_report(bare(tmp_path, reported.audit(measured=loud)))
    assert answers(html)[2] == "Signs of a leak"
    quiet = reported.run_in(tmp_path, reported.audit(), name="quiet")
    assert answers(build_report(quiet))[2] == "No leak found"


# --- in a browser

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
PROBE = """<!doctype html><title>probe</title>
<iframe width=360 height=800 style="border:0" srcdoc="{page}"></iframe>
<pre id=found></pre>
<script>
onload = () => {{
  const inside = document.querySelector("iframe").contentDocument;
  const width = () => inside.documentElement.scrollWidth;
  const closed = width();
  inside.querySelectorAll("details").forEach(each => each.open = true);
  const small = [...inside.querySelectorAll("svg text")]
    .map(each => each.getBoundingClientRect()).filter(box => box.height && box.height < 10).length;
  found.textContent = JSON.stringify([closed, width(), small, inside.scripts.length]);
}};
</script>"""


def browse(folder, html, *flags):
    path = folder / "probe.html"
    path.write_text(html, "utf-8")
    options = (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={folder / 'profile'}",
    )
    command = [BROWSER, *options, "--enable-logging=stderr", *flags, path.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=folder)


def complaints(done):
    return [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_a_browser_shows_it_without_complaint(tmp_path, html):
    done = browse(tmp_path, html, "--screenshot=page.png", "--window-size=1200,2000")
    assert complaints(done) == []
    assert (tmp_path / "page.png").stat().st_size > 50_000
    broken = html.replace("</main>", "<script>x</script></main>")
    assert complaints(browse(tmp_path, broken, "--dump-dom"))  # its own policy forbids scripts


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_a_telephone_need_not_scroll_sideways(tmp_path, html):
    free = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html)
    inner = free.replace("&", "&amp;").replace('"', "&quot;")
    done = browse(tmp_path, PROBE.format(page=inner), "--dump-dom", "--window-size=800,900")
    found = re.search(r'<pre id="found">\[(\d+),(\d+),(\d+),(\d+)\]</pre>', done.stdout)
    assert found is not None, done.stderr[-500:]
    closed, opened, small, scripts = map(int, found.groups())
    assert 300 < closed <= 360 and opened <= 360
    assert (small, scripts) == (0, 0)
