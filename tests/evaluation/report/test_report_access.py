"""The report for everybody: structure, names, contrast, telephones, and a real browser."""

import re
import shutil
import subprocess
from importlib.resources import files
from itertools import pairwise

import pytest

from evaluation.fidelity.measures import SECOND
from evaluation.leakage.copies import HELDOUT, SAMPLE, TRAIN
from evaluation.report import charts, tables
from tests.helpers import handover
from tests.helpers.pages import all_elements, one


def test_headings_are_in_order_and_links_lead_somewhere(page):
    levels = [int(e.name[1]) for e in page.root.find("h1", "h2", "h3", "h4")]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    ids = [e.attributes["id"] for e in all_elements(page) if "id" in e.attributes]
    assert len(ids) == len(set(ids))
    links = {e.attributes["href"][1:] for e in page.root.find("a")}
    assert len(links) == 8 and links <= set(ids)
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
    looks = charts.style_series([f"policy {n}" for n in range(6)]).values()
    assert len({look.marker for look in looks}) == 6
    looks = charts.style_series(["train", SECOND, "twin"]).values()
    assert len({look.dash for look in looks}) == len({look.colour for look in looks}) == 3


def test_pictures_have_the_colours_of_the_page_and_text_that_is_text(html):
    pictures = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    assert not [p for p in pictures if re.search(r"#[0-9a-f]{6}\b(?<!#000000)", p)]
    assert all("<text" in picture and "var(--" in picture for picture in pictures)


def test_the_words_are_those_of_the_modules_that_measure():
    from evaluation.leakage.canary_audit import CLAIM

    assert CLAIM == tables.CLAIM
    assert {TRAIN, SAMPLE, HELDOUT} <= set(tables.ROWS)
    assert (SAMPLE, HELDOUT) == (tables.TRAIN_SAMPLE, tables.HELD_OUT)


BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


def in_browser(test):
    """Mark a test that asks a browser."""
    missing = pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
    return pytest.mark.browser(missing(test))


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


@in_browser
def test_a_browser_shows_the_receivers_page_without_complaint(tmp_path):
    page = handover.hand_over(tmp_path / "share").page.read_text("utf-8")
    assert complaints(browse(tmp_path, page, "--dump-dom")) == []


@in_browser
def test_a_browser_shows_it_without_complaint(tmp_path, html):
    done = browse(tmp_path, html, "--screenshot=page.png", "--window-size=1200,2000")
    assert complaints(done) == []
    assert (tmp_path / "page.png").stat().st_size > 50_000
    broken = html.replace("</main>", "<script>x</script></main>")
    assert complaints(browse(tmp_path, broken, "--dump-dom"))  # its own policy forbids scripts


@in_browser
@pytest.mark.parametrize("whose", ["owner", "receiver"])
def test_a_telephone_need_not_scroll_sideways(tmp_path, html, whose):
    if whose == "receiver":
        html = handover.hand_over(tmp_path / "share").page.read_text("utf-8")
    free = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html)
    inner = free.replace("&", "&amp;").replace('"', "&quot;")
    done = browse(tmp_path, PROBE.format(page=inner), "--dump-dom", "--window-size=800,900")
    found = re.search(r'<pre id="found">\[(\d+),(\d+),(\d+),(\d+)\]</pre>', done.stdout)
    assert found is not None, done.stderr[-500:]
    closed, opened, small, scripts = map(int, found.groups())
    assert 300 < closed <= 360 and opened <= 360
    assert (small, scripts) == (0, whose == "owner")


SCREEN = """<!doctype html><title>screen</title>
<iframe width={width} height={height} style="border:0" srcdoc="{page}"></iframe>
<pre id=found></pre>
<script>
onload = () => {{
  const inside = document.querySelector("iframe").contentDocument;
  const ends = [...inside.querySelectorAll(".facts, .handing, .belief, .verdict")]
    .map(each => Math.ceil(each.getBoundingClientRect().bottom));
  const field = inside.getElementById("find");
  field.value = "HE SAID";
  field.dispatchEvent(new Event("input"));
  const rows = [...inside.querySelectorAll("#pairs > li")];
  const hits = rows.filter(row => row.getBoundingClientRect().height).length;
  found.textContent = JSON.stringify([ends.length, Math.max(...ends), rows.length, hits]);
}};
</script>"""


@in_browser
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (400, 850)])
def test_the_answers_are_on_the_first_screen_and_rows_can_be_found(tmp_path, html, width, height):
    free = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html)
    inner = free.replace("&", "&amp;").replace('"', "&quot;")
    shown = SCREEN.format(page=inner, width=width, height=height)
    done = browse(tmp_path, shown, "--dump-dom", f"--window-size={width + 40},{height + 200}")
    found = re.search(r'<pre id="found">\[(\d+),(\d+),(\d+),(\d+)\]</pre>', done.stdout)
    assert found is not None, done.stderr[-500:]
    answers, end, rows, hits = map(int, found.groups())
    assert answers == 6 and 300 < end <= height
    assert (rows, hits) == (6, 1)
