"""The page for the receiver: what it counts, that all text is text, and that it is checked."""

import pandas as pd
import pytest

from tests.helpers.handover import FULL_BATCH, NO_PRIVACY, description, hand_over, ledger
from tests.helpers.pages import Page, all_elements
from twinset.errors import VerificationError
from twinset.privacy.accounting.events import MaskedAccess
from twinset.privacy.statement.guarantee import belief_sentence, guarantee
from twinset.release.share import render_share_page, write_share
from twinset.release.verify import verify

EVIL = "<script>alert(1)</script>\"'&</style>{{7*7}}"


def page_of(frame, spent=None, made=None):
    made = made or description()
    return Page(render_share_page("Twin", made.base_model, frame, made.schema, spent or ledger()))


def table(rows=40):
    texts = [f"{'word ' * (n % 7 + 1)}{n}" for n in range(rows)]
    return pd.DataFrame({"review": texts, "sentiment": ["fresh", "rotten"] * (rows // 2)})


def test_it_says_what_is_guaranteed_and_counts_the_twin():
    claim, text = guarantee(ledger()), page_of(table()).root.text
    assert belief_sentence(claim) in text and claim.sentence in text and "ε = 2.16" in text
    assert "40 rows · written by smollm2-135m · " in text and "20 of 40 rows" in text
    rows = [e for e in all_elements(page_of(table())) if e.name == "tr"]
    bars = [[cell.text for cell in row.children] for row in rows]
    assert [["fresh", "20"], ["rotten", "20"]] == sorted(bars[:2])
    assert [int(number) for _, number in bars[2:]] == [6, 6, 6, 6, 6, 5, 5]


def test_it_fetches_and_runs_nothing_whatever_the_rows_say():
    made = description(values=("fresh", EVIL), title=EVIL)
    frame = pd.DataFrame({"review": [EVIL] * 3, "sentiment": ["fresh", EVIL, EVIL]})
    page = Page(render_share_page(EVIL, EVIL, frame, made.schema, ledger()))
    assert page.root.text.count(EVIL) >= 6
    names = {element.name for element in all_elements(page)}
    assert not names & {"script", "img", "a", "link", "iframe", "form"}
    assert any("default-src 'none'" in str(e.attributes) for e in all_elements(page))


@pytest.mark.parametrize("rows", [0, 2])
def test_a_twin_of_any_size(rows):
    assert f"{rows} of {rows} rows" in page_of(table(rows)).root.text


def test_no_guarantee_is_said_and_not_folded():
    page = page_of(table(), ledger(NO_PRIVACY))
    assert "No guarantee: treat this as private" in page.root.text
    (folded,) = page.root.find("details")
    assert "open" in folded.attributes


def test_what_is_not_protected_beside_flagged_spans_is_said_first_and_not_folded():
    flagged = ledger((MaskedAccess("patterns"), *FULL_BATCH), policy="selective")
    page = page_of(table(), flagged)
    assert guarantee(flagged).epsilon is not None
    warning, claim = "all other words of the private records may be repeated", "ε = 2.16"
    assert 0 < page.root.text.index(warning) < page.root.text.index(claim)
    (folded,) = page.root.find("details")
    assert "open" in folded.attributes
    plain = page_of(table())
    (folded,) = plain.root.find("details")
    assert warning not in plain.root.text and "open" not in folded.attributes


def test_an_altered_page_is_caught_and_a_missing_one_is_not_missed(tmp_path):
    paths = hand_over(tmp_path / "share")
    whole = paths.page.read_text("utf-8")
    assert verify(tmp_path / "share").rows == 6
    paths.page.write_text(whole.replace("2.16", "0.16"), "utf-8")
    with pytest.raises(VerificationError, match=r"report.html: was altered"):
        verify(tmp_path / "share")
    paths.page.unlink()
    assert verify(tmp_path / "share").rows == 6


def test_a_page_that_is_not_of_the_share_is_refused(tmp_path):
    paths = hand_over(tmp_path)
    text = paths.privacy.read_text("utf-8")
    start = text.index(',\n    "page"')
    paths.privacy.write_text(text[:start] + text[text.index("\n  }\n}", start) :], "utf-8")
    with pytest.raises(VerificationError, match=r"report.html: is none of the files"):
        verify(tmp_path)
    paths.page.unlink()
    assert verify(tmp_path).rows == 6  # as shares were before there was a page


def test_it_is_made_of_what_is_shared_alone(tmp_path):
    """Two ledgers, twins or schemas make two pages; nothing else is given to it."""
    made = description()
    one = write_share(tmp_path, table(), ledger(), made).page.read_text("utf-8")
    again = render_share_page(made.title, made.base_model, table(), made.schema, ledger())
    assert one == again
