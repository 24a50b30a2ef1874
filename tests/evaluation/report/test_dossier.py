"""The dossier: filled from the run, or from commands that are missing, and signed by people."""

import json
import os
from dataclasses import replace

import pytest

from evaluation.findings import Measured
from evaluation.report.dossier import DECISIONS, FIELDS, build_dossier
from evaluation.report.known_run import read_run
from evaluation.report.page import build_report, write_report
from tests.evaluation.report.test_page import EVIL, bare, fetched
from tests.helpers import handover, reported
from tests.helpers.handover import FULL_BATCH, NO_PRIVACY
from tests.helpers.pages import Page, all_elements
from tests.helpers.refusals import refusal
from twinset.privacy.accounting.accountant import up_decimals
from twinset.privacy.accounting.events import MaskedAccess
from twinset.privacy.statement.guarantee import belief_sentence, guarantee
from twinset.run.budget import ID, Book, Entry

LEDGER = handover.ledger()
FLAGGED = handover.ledger((MaskedAccess("patterns"), *FULL_BATCH), policy="selective")


def dossier(run, account=None) -> str:
    return Page(build_dossier(read_run(run), account)).root.text


def test_it_is_filled_from_ledger_and_findings(tmp_path):
    run = bare(tmp_path, reported.audit(), reported.evaluation())
    text, claim = dossier(run), guarantee(LEDGER)
    assert belief_sentence(claim) in text and "500 records were used" in text
    assert all(each in text for each in (*LEDGER.public_inputs, *DECISIONS, *FIELDS))
    assert all(each[1:] in text for each in claim.excludes if "taken as public" not in each)
    # what any attack finds at most, the same at ε = 1, the belief, and what was found
    row = text[text.index("1 in 100") :][:60]
    assert "8.7 %" in row and "2.8 %" in row and "1.2% (" in row
    assert "AUROC, calibrated loss, seeing model: 0.521" in text and "rows nearly repeated" in text
    assert "All files agree: ε = 2.16 by one, and 2.15 by the other." in text
    assert "The rule: A law asks" in text and "Run of " not in text and "Canaries are" in text
    assert "twinset evaluate RUN" not in text and "twinset audit canaries" in text


def test_its_day_is_that_of_the_model_and_not_of_a_later_sample(tmp_path):
    run = bare(tmp_path)
    (run / "model").mkdir()
    (run / "model" / "ledger.json").write_text(json.dumps(LEDGER.to_dict()))
    os.utime(run / "model" / "ledger.json", (10**9, 10**9))
    assert "Run of 9 September 2001, by" in dossier(run)


def test_what_is_not_known_has_its_command_or_an_empty_field(tmp_path):
    text = dossier(bare(tmp_path))
    for command in ("evaluate RUN", "audit RUN --members", "audit canaries", "share RUN --sign"):
        assert f"twinset {command}" in text, command
    assert text.count("Not measured") >= 4 and "No account was kept" in text
    (tmp_path / "new").mkdir()
    empty = dossier(tmp_path / "new")
    assert "No guarantee." in empty and "It could not be checked" in empty


@pytest.mark.parametrize(
    ("spent", "said"),
    [
        (handover.ledger(NO_PRIVACY), "Nothing is guaranteed. No privacy guarantee: none"),
        (FLAGGED, "All other words may be repeated word for word"),
    ],
)
def test_a_missing_or_partial_guarantee_cannot_be_missed(tmp_path, spent, said):
    text = dossier(bare(tmp_path, ledger=spent))
    assert said in text and said not in dossier(bare(tmp_path / "whole"))
    assert ("named, of records that were" in text) == (spent is FLAGGED)


def test_findings_of_another_twin_are_left_out_and_an_altered_file_is_named(tmp_path):
    run = bare(tmp_path, replace(reported.audit(), about={"twin_sha256": "0" * 64}))
    text = dossier(run)
    assert "audit measured another twin" in text and "0.521" not in text
    card = run / "share" / "README.md"
    assert "IT DOES NOT HOLD" not in text and "handed over? No" not in text
    for alter, how in (
        (lambda: card.write_text("ε = 0.1"), "do not agree with the ledger"),
        (card.unlink, "could not be checked"),
    ):
        alter()
        text, page = dossier(run), Page(build_report(run)).root.text
        assert ("IT DOES NOT HOLD" in text) == ("ledger" in how)
        assert "handed over? No:" in text and f" the files {how}: {card}: " in text
        assert f"The files {how}: {card}: " in page and "Share share/" not in text + page


def test_of_two_twins_it_shows_the_one_that_the_ledger_names_and_refuses_both(tmp_path):
    run = bare(tmp_path)
    known = read_run(run)
    (run / "share" / "twin.csv").write_text("text\nprivate")  # the first in the alphabet
    text = dossier(run)
    assert read_run(run).digest == known.digest and known.digest in text
    assert "share: holds twin.parquet and twin.csv. " in text and "Share share/" not in text


def test_the_account_of_the_table_is_added_up(tmp_path):
    run, file = bare(tmp_path), tmp_path / "t.csv.budget.json"
    assert "there is no such account" in refusal(build_dossier, read_run(run), file)
    entries = [Entry(str(n), "2026-01-01 10:00", "generate", None, True, LEDGER) for n in range(2)]
    Book(9.0, (*entries,)).save(file)
    assert "THIS RUN IS NOT AMONG THEM" in dossier(run, file)
    (run / "internal" / ID).write_text(json.dumps({"id": "1"}))
    text, spent = dossier(run, file), Book(9.0, (*entries,)).total.epsilon
    assert (
        f"ε = {up_decimals(spent)}" in text
        and "all 2 runs together" in text
        and "limit of 9" in text
    )
    assert "NOT AMONG" not in text and "--budget-file" in dossier(run)


def test_it_is_one_page_for_its_owner_that_fetches_and_runs_nothing(tmp_path):
    odd = Measured("leakage", reported.share("AUROC", 0.9), {"attack": EVIL, "sees": "model"})
    findings = replace(reported.audit(), measured=(odd,), notes=(EVIL, "`<b>`"))
    run = bare(tmp_path, findings, name="evil <b>")
    (run / "internal").chmod(0o700)
    page = write_report(run).with_name("dossier.html")
    html = page.read_text("utf-8")
    assert fetched(html) == [] and Page(html).root.text.count(EVIL) == 2
    assert not {e.name for e in all_elements(Page(html))} & {"script", "img", "a", "link"}
    assert page.stat().st_mode & 0o077 == 0
