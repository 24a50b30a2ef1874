"""Verification passes what was written and catches every alteration of it."""

import hashlib
import json
import random

import pytest

from tests.helpers import refusals
from tests.helpers.handover import NO_PRIVACY, TRAINING, hand_over, ledger
from twinset.errors import InputError, VerificationError
from twinset.release import verify as verification
from twinset.release.card import ledger_digest
from twinset.release.publish import publish
from twinset.release.share import statement_text
from twinset.release.verify import verify


def forge(paths, change, card=lambda text: text) -> None:
    """Alter the statement and the card, and mend every hash, as a patient forger would."""
    data = json.loads(paths.privacy.read_text("utf-8"))
    before = ledger_digest(data["ledger"])
    change(data)
    text = paths.card.read_text("utf-8").replace(before, ledger_digest(data["ledger"]))
    paths.card.write_text(card(text), "utf-8")
    for role in ("card", "twin"):
        content = getattr(paths, role).read_bytes()
        data["files"][role]["sha256"] = hashlib.sha256(content).hexdigest()
    paths.privacy.write_text(statement_text(data), "utf-8")


def refusal(path) -> str:
    """Return why verification fails."""
    return refusals.refusal(verify, path, error=VerificationError)


def test_a_twin_without_a_guarantee_passes_and_has_no_epsilon(tmp_path):
    hand_over(tmp_path, ledger(NO_PRIVACY))
    report = verify(tmp_path)
    assert report.rows == 6 and len(report.checked) == 3
    assert report.guarantee.epsilon is None and report.witness is None
    assert any("not signed" in line for line in report.cannot_show)


def test_an_independent_accountant_must_agree(tmp_path, monkeypatch):
    """A planted error of 2 % in either accountant is seen. One of half a per cent is rounding."""
    hand_over(tmp_path, ledger(TRAINING))
    found = verify(tmp_path)
    witness = found.witness
    assert witness == pytest.approx(found.guarantee.epsilon, rel=0.003)
    assert f"PRV accountant to ε = {witness:.4f}" in found.checked[0]
    for factor in (1.02, 0.98):
        monkeypatch.setattr(verification, "prv_epsilon", lambda *_, f=factor: f * witness)
        assert "more than 1 % apart" in refusal(tmp_path)
    monkeypatch.setattr(verification, "prv_epsilon", lambda *_: 1.005 * witness)
    assert verify(tmp_path).witness == pytest.approx(1.005 * witness)


def test_a_run_its_share_and_a_published_file_are_all_taken(tmp_path):
    run = tmp_path / "run"
    twin = hand_over(run / "share", format="csv").twin
    publish(run / "share", tmp_path / "reviews.v2.csv")
    reports = [verify(p) for p in (run, str(run / "share"), twin, tmp_path / "reviews.v2.csv")]
    assert len({report.guarantee.epsilon for report in reports}) == 1
    publish(run / "share", tmp_path / "reviews.txt")  # `privacy.json` names the format
    assert verify(tmp_path / "reviews.txt").rows == 6


@pytest.mark.parametrize("role", ["twin", "card", "privacy"])
def test_any_altered_byte_is_caught(tmp_path, role):
    path = getattr(hand_over(tmp_path, format="csv"), role)
    original, rng = path.read_bytes(), random.Random(0)
    alterations = [original[:-1], original + b"\n", b""]
    places = set(range(0, len(original), max(1, len(original) // 25)))
    if role == "privacy":  # every digit of it counts
        places |= {i for i, byte in enumerate(original) if chr(byte).isdecimal()}
        assert len(places) > 150
    for place in sorted(places):
        flipped = bytes([original[place] ^ 1 << rng.randrange(3)])
        alterations.append(original[:place] + flipped + original[place + 1 :])
    for altered in alterations:
        path.write_bytes(altered)
        with pytest.raises((VerificationError, InputError)) as caught:
            verify(tmp_path)
        assert caught.type is VerificationError or "format_version" in str(caught.value)
    path.write_bytes(original)
    verify(tmp_path)


def set_event(position, name, value):
    return lambda data: data["ledger"]["events"][position].update({name: value})


def add_event(**event):
    return lambda data: data["ledger"]["events"].append(event)


def set_in(part, name, value):
    return lambda data: data[part].update({name: value})


def set_twin(name, value):
    return lambda data: data["files"]["twin"].update({name: value})


FORGERIES = [
    (set_event(1, "noise_multiplier", 9.01), "its events come to"),
    (set_event(1, "steps", 21), "its events come to"),
    (set_event(1, "sample_rate", 0.9), "but its events come to None"),
    (set_event(1, "kind", "magic\nline"), "unknown event kind"),
    (lambda d: d["ledger"]["events"].pop(0), "its events come to"),
    (add_event(kind="non_private_access", reason="x"), "come to None"),
    (set_in("ledger", "randomness_is_private", False), "come to None"),
    (set_in("ledger", "records", 10**6), "come to None"),
    (set_in("ledger", "sampler", "shuffled"), "come to None"),
    (set_in("ledger", "delta", 1e-6), "its events come to"),
    (set_in("ledger", "surplus", 1), "unknown field"),
    (set_in("guarantee", "epsilon", 1.0), "states ε = 1.0"),
    (set_in("guarantee", "epsilon", None), "states ε = None"),
    (set_in("guarantee", "delta", 1e-6), "delta does not follow"),
    (set_in("guarantee", "sentence", "All is well."), "sentence does not follow"),
    (lambda d: d["guarantee"]["excludes"].pop(), "excludes does not follow"),
    (set_twin("rows", 7), "rows is not that of"),
    (set_twin("format", "../twin"), "unknown format"),
    (set_twin("columns", ["review"]), "other columns than stated"),
    (lambda d: d["files"].pop("page"), "'files' must have the fields"),
    (lambda d: d.update(format_version="2"), "no format_version that is a number"),
]


@pytest.mark.parametrize(("change", "message"), FORGERIES)
def test_a_forged_statement_with_mended_hashes_is_caught(tmp_path, change, message):
    forge(paths := hand_over(tmp_path), change)
    assert message in refusal(tmp_path)
    assert paths.privacy.is_file()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("epsilon: ", "epsilon: 0.", "its epsilon is not that of"),
        ("delta: 1.0e-05", "delta: 1.0e-06", "its delta is not that of"),
        ("| ε | ", "| ε | 0.", "lacks the line '| ε |"),
        ("are (", "are truly (", "lacks the line 'The twin and the model are ("),
        ("- people with several records", "- nobody", "lacks the line '- people"),
        ("data_files: twin.parquet", "data_files: other.csv", "names another file"),
        ("---\n", "--\n", "no readable YAML header"),
    ],
)
def test_a_card_that_disagrees_with_the_ledger_is_caught(tmp_path, old, new, message):
    paths = hand_over(tmp_path)
    assert old in paths.card.read_text("utf-8")
    forge(paths, lambda data: None, lambda text: text.replace(old, new))
    assert message in refusal(tmp_path)


def test_another_twin_is_caught_though_its_hash_fits(tmp_path):
    paths = hand_over(tmp_path, format="jsonl")
    paths.twin.write_bytes(paths.twin.read_bytes() * 2)
    forge(paths, lambda data: None)
    assert "has 12 rows, not 6" in refusal(tmp_path)


NO_STATEMENTS = ["{}", "[]\n", "[" * 99_999, '{"e": NaN}', '{"a": 1, "a": 2}']


@pytest.mark.parametrize("text", NO_STATEMENTS, ids=lambda text: text[:6])
def test_a_file_that_is_no_statement_is_caught(tmp_path, text):
    hand_over(tmp_path).privacy.write_text(text, "utf-8")
    refusal(tmp_path)


@pytest.mark.parametrize("name", ["twin.csv", "README.md", "privacy.json"])
def test_a_missing_file_is_bad_input(tmp_path, name):
    share = hand_over(tmp_path / "share", format="csv").twin.parent
    (share / name).unlink()
    assert name in refusals.refusal(verify, share)


def test_an_altered_page_is_caught_and_a_missing_one_is_not_missed(tmp_path):
    page = hand_over(tmp_path).page
    page.write_text(page.read_text("utf-8").replace("2.16", "0.16"), "utf-8")
    assert "report.html: was altered" in refusal(tmp_path)
    page.unlink()
    assert verify(tmp_path).rows == 6
