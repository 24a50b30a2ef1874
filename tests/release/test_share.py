"""The shared folder: what reads it, what it holds, how its files come beside others."""

import errno
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import datasets
import pandas as pd
import pytest

from tests.helpers.handover import (
    FULL_BATCH,
    NO_PRIVACY,
    TEXTS,
    description,
    frame,
    hand_over,
    ledger,
)
from tests.helpers.pages import Page, all_elements, one
from tests.helpers.refusals import refusal
from twinset.errors import InputError
from twinset.privacy.accounting.events import MaskedAccess
from twinset.privacy.statement.guarantee import belief_sentence, guarantee
from twinset.release.publish import check_output, publish
from twinset.release.share import count_cells, place_on_scale, render_share_page, write_share
from twinset.release.verify import verify

LABELS = ["fresh", "rotten", "fresh", "fresh", "rotten", "fresh"]
READERS = {
    "parquet": pd.read_parquet,
    "csv.gz": partial(pd.read_csv, keep_default_na=False),
    "jsonl": partial(pd.read_json, lines=True),
}


@pytest.mark.parametrize("format", READERS)
def test_datasets_pandas_and_verify_read_it(tmp_path, format):
    paths = hand_over(tmp_path / "share", format=format, guard_formulas=False)
    twin = paths.twin
    assert verify(tmp_path).rows == 6
    assert twin.name == f"twin.{format}"
    expected = {"review": TEXTS, "sentiment": LABELS}
    assert READERS[format](twin).to_dict("list") == expected
    loaded = datasets.load_dataset(str(tmp_path / "share"), cache_dir=str(tmp_path / "cache"))
    assert list(loaded) == ["train"] and loaded["train"].to_dict() == expected
    for path in (paths.card, paths.privacy, paths.page):  # no name of a place goes along
        assert str(tmp_path) not in path.read_text("utf-8")


@pytest.mark.parametrize(
    ("guard", "first", "told"),
    [(True, "'=1+1 is fun", "as formulas: 1"), (False, "=1+1 is fun", "NOT guarded")],
)
def test_cells_and_columns_that_a_spreadsheet_would_run_are_guarded_openly(
    tmp_path, guard, first, told
):
    made = description(name="=cmd")
    paths = write_share(tmp_path, frame(made), ledger(), made, "csv", guard_formulas=guard)
    assert pd.read_csv(paths.twin)["review"][0] == first
    card = paths.card.read_text("utf-8")
    assert told in card and ("`=cmd` is called `'=cmd`" in card) == guard
    assert verify(tmp_path).rows == 6


# -- the page --------------------------------------------------------------------------------------

EVIL = "<script>alert(1)</script>\"'&</style>{{7*7}}"


FLAGGED = ledger((MaskedAccess("patterns"), *FULL_BATCH), policy="selective")


def table(rows=40):
    texts = [f"{'word ' * (n % 7 + 1)}{n}" for n in range(rows)]
    return pd.DataFrame({"review": texts, "sentiment": ["fresh", "rotten"] * (rows // 2)})


def page_of(frame, spent=None, made=None):
    made = made or description()
    return Page(render_share_page("Twin", made.base_model, frame, made.schema, spent or ledger()))


def test_the_page_states_the_guarantee_and_counts_the_twins_rows(tmp_path):
    claim, page = guarantee(ledger()), page_of(table())
    text = page.root.text
    assert belief_sentence(claim) in text and claim.sentence in text and "ε = 2.16" in text
    assert "40 rows · written by smollm2-135m · " in text and "20 of 40 rows" in text
    # It is made of what is shared alone: nothing else is given to it.
    made = description()
    written = write_share(tmp_path, table(), ledger(), made).page.read_text("utf-8")
    assert written == render_share_page(made.title, made.base_model, table(), made.schema, ledger())


def test_the_label_has_nine_parts_and_a_scale_only_where_there_is_a_guarantee():
    for spent, said in ((ledger(), "All that one record says"), (FLAGGED, "What a detector")):
        label = one(page_of(table(), spent).root.find("dl"))
        assert len(list(label.find("dt"))) == 9 and "500 records" in label.text
        assert said in label.text and "Gaussian noise" in label.text
        places = [e.attributes.get("style") for e in label.find("span")]
        assert ("All words that no detector" in label.text) == (spent is FLAGGED)
        assert not {*"*`\\"} & {*label.text}  # marks of Markdown
        here = f"left: {place_on_scale(guarantee(spent).epsilon)}%"
        assert here in places and here not in places[1:]  # no mark stands there
    label = one(page_of(table(), ledger(NO_PRIVACY)).root.find("dl"))
    assert "Everything" in label.text and "Gaussian" not in label.text
    assert not list(label.find("span")) and len(list(label.find("dt"))) == 9


@pytest.mark.parametrize(
    ("cells", "bars"),
    [
        ([True, False, True, None], [("True", 2), ("False", 1), ("gap", 1)]),
        ([n / 4 for n in range(80)], [(f"{n}–{n + 1}", 8) for n in range(0, 20, 2)]),
        ([f"{n % 4},{n}5" for n in range(20, 60)], [(f"{n}", 10) for n in range(4)]),
        ([f"{d:%d.%m.%Y}" for d in pd.date_range("2001", periods=730)], [("2001", 365)] * 2),
        ([f"kind {n % 12}" for n in range(36)], [("kind 0", 3)] * 10 + [("others", 6)]),
        ([f"name {n}" for n in range(30)], []),  # a text
    ],
)
def test_the_page_has_a_chart_of_each_other_column(cells, bars):
    found = count_cells(pd.Series(cells))
    assert [rows for _, rows in found] == [rows for _, rows in bars]
    assert [name for name, _ in found[:1]] == [name for name, _ in bars[:1]]
    made = description()
    made = replace(made, schema=replace(made.schema, columns=(*made.schema.columns, "other one")))
    page = page_of(table(2).assign(**{"other one": cells[:2]}), made=made)
    # its chart, and its cells next to two texts
    assert page.root.text.count("other one") == 3
    page = page_of(table(2).assign(**{"other one": [None, None]}), made=made)
    assert page.root.text.count("other one") == 1  # a gap is not told of a row


def test_the_page_fetches_and_runs_nothing_whatever_the_rows_say():
    made = description(values=("fresh", EVIL), title=EVIL)
    frame = pd.DataFrame({"review": [EVIL] * 3, "sentiment": ["fresh", EVIL, EVIL]})
    page = Page(render_share_page(EVIL, EVIL, frame, made.schema, ledger()))
    assert page.root.text.count(EVIL) >= 6
    names = {element.name for element in all_elements(page)}
    assert not names & {"script", "img", "a", "link", "iframe", "form"}
    assert any("default-src 'none'" in str(e.attributes) for e in all_elements(page))


@pytest.mark.parametrize(
    ("spent", "warning"),
    [
        (ledger(), None),
        (ledger(NO_PRIVACY), "No guarantee: treat this as private"),
        (FLAGGED, "All other words of the private records may be repeated"),
    ],
)
def test_a_missing_or_partial_guarantee_is_said_first_and_not_folded(spent, warning):
    page = page_of(table(), spent)
    (folded,) = page.root.find("details")
    assert ("open" in folded.attributes) == (warning is not None)
    if warning:
        assert warning in page.root.text and warning not in page_of(table()).root.text
    if spent is FLAGGED:
        assert page.root.text.index(warning) < page.root.text.index("ε = 2.16")


# -- publishing ------------------------------------------------------------------------------------

NAMES = [
    "twin.README.md",
    "twin.croissant.json",
    "twin.csv",
    "twin.deployment.yaml",
    "twin.privacy.json",
]


@pytest.fixture
def share(tmp_path) -> Path:
    folder = tmp_path / "run" / "share"
    folder.mkdir(parents=True)
    for name in ("twin.csv", "README.md", "privacy.json", "croissant.json", "deployment.yaml"):
        (folder / name).write_text(f"new {name}")
    return folder


@pytest.fixture
def out(tmp_path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize("name", NAMES)
def test_an_existing_file_is_kept_without_overwrite(share, out, name):
    (out / name).write_text("dear")
    assert f"{name}: exists. Use `over" in refusal(publish, share, out / "twin.csv")
    assert f"{name}: exists. Use `over" in refusal(check_output, out / "twin.csv")
    assert contents(out) == {name: "dear"}
    if name == "twin.csv":  # it may be anything, a private table too
        assert "exists and has no ledger" in refusal(check_output, out / name, overwrite=True)
    (out / "twin.privacy.json").write_text("dear")
    publish(share, out / "twin.csv", overwrite=True)
    check_output(out / "twin.csv", overwrite=True)
    assert sorted(contents(out)) == NAMES and "dear" not in contents(out).values()


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
def test_a_failure_at_any_replacement_undoes_all(share, out, monkeypatch, error):
    for name in NAMES:
        (out / name).write_text("dear")
    replace = os.replace
    for good in range(2 * len(NAMES)):  # replacements that succeed before one fails
        calls = []

        def fail_once(source, target, good=good, calls=calls):
            calls.append(source)
            if len(calls) == good + 1:
                raise error
            return replace(source, target)

        monkeypatch.setattr("twinset.release.publish.os.replace", fail_once)
        with pytest.raises(InputError if isinstance(error, OSError) else KeyboardInterrupt):
            publish(share, out / "twin.csv", overwrite=True)
        assert contents(out) == dict.fromkeys(NAMES, "dear")
    monkeypatch.setattr("twinset.release.publish.os.replace", replace)
    publish(share, out / "twin.csv", overwrite=True)
    assert sorted(contents(out)) == NAMES
