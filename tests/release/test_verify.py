"""Verification passes what was written and catches every alteration of it."""

import hashlib
import json
import random
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.helpers import refusals
from tests.helpers.commands import call
from tests.helpers.handover import NO_PRIVACY, TRAINING, hand_over, ledger
from twinset.errors import InputError, VerificationError
from twinset.files import limits
from twinset.privacy.accounting.accountant import NotCovered
from twinset.privacy.accounting.events import SubsampledGaussian
from twinset.privacy.statement.ledger import FORMAT_VERSION
from twinset.release import verify as verification
from twinset.release.card import read_header
from twinset.release.publish import companions, publish
from twinset.release.share import statement_text
from twinset.release.verify import verify


def forge(paths, change, card=lambda text: text) -> None:
    """Alter the statement and the card, and mend every hash, as a patient forger would."""
    data = json.loads(paths.privacy.read_text("utf-8"))
    text = paths.card.read_text("utf-8")
    before = read_header(text)["privacy"]["ledger_sha256"]
    change(data)
    after = hashlib.sha256(json.dumps(data["ledger"], sort_keys=True).encode()).hexdigest()
    paths.card.write_text(card(text.replace(before, after)), "utf-8")
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


def test_an_independent_accountant_must_agree(tmp_path, monkeypatch, two_accountants):
    """A planted error of 2 % in either accountant is seen. One of half a per cent is rounding."""
    hand_over(tmp_path, ledger(TRAINING))
    found = verify(tmp_path)
    witness = found.witness
    assert witness == pytest.approx(found.guarantee.epsilon, rel=0.003)
    assert f"PRV accountant to ε = {witness:.4f}" in found.checked[0]
    for factor in (1.02, 0.98):
        monkeypatch.setattr(verification, "prv_epsilon", lambda *_, f=factor: f * witness)
        assert "over 1 % apart" in refusal(tmp_path)
    monkeypatch.setattr(verification, "prv_epsilon", lambda *_: 1.005 * witness)
    assert verify(tmp_path).witness == pytest.approx(1.005 * witness)

    def cannot(*given):
        raise NotCovered("too fine a grid")

    monkeypatch.setattr(verification, "prv_epsilon", cannot)
    report = verify(tmp_path)
    assert report.witness is None and "can't say: too fine a grid" in report.checked[0]


def test_a_run_its_share_and_a_published_file_are_all_taken(tmp_path):
    run = tmp_path / "run"
    twin = hand_over(run / "share", format="csv").twin
    publish(run / "share", tmp_path / "reviews.v2.csv")
    reports = [verify(p) for p in (run, str(run / "share"), twin, tmp_path / "reviews.v2.csv")]
    assert len({report.guarantee.epsilon for report in reports}) == 1
    # A file next to them is taken for the twin, so another one than the twin is refused.
    other = twin.with_name("reviews-cleaned.csv")
    other.write_bytes(twin.read_bytes())
    assert verify(other).rows == verify(twin.with_name("README.md")).rows == 6
    other.write_bytes(twin.read_bytes() + b"\n")
    with pytest.raises(VerificationError, match=r"reviews-cleaned\.csv"):
        verify(other)
    publish(run / "share", tmp_path / "reviews.txt")  # `privacy.json` names the format
    assert verify(tmp_path / "reviews.txt").rows == 6
    # A file that was published with a twin stands for it. Which of two, or none, is not guessed.
    for file in filter(Path.is_file, companions(tmp_path / "reviews.v2.csv").values()):
        assert "reviews.v2.csv: unaltered, 6 rows, 2 columns" in verify(file).checked
    card, another = tmp_path / "reviews.README.md", tmp_path / "reviews.csv"
    for change, said in (
        (another.touch, "reviews.README.md: comes with a twin. Name its file (reviews.csv or "),
        (lambda: (another.unlink(), another.with_suffix(".txt").unlink()), "Name its file, rev"),
    ):
        change()
        assert said in refusals.refusal(verify, card)


def test_of_two_twins_one_is_named_by_the_ledger_and_both_are_refused(tmp_path):
    """Else one file is checked, and the other one handed over."""
    twin = hand_over(tmp_path / "share").twin
    other = twin.with_name("twin.csv")  # the first in the alphabet
    other.write_text("a private table", "utf-8")
    for named in (tmp_path, twin.parent, twin, other, twin.with_name("README.md")):
        assert "share: holds twin.parquet and twin.csv. " in refusal(named)
    publish(twin.parent, tmp_path / "out.parquet")
    assert (tmp_path / "out.parquet").read_bytes() == twin.read_bytes()
    assert verify(tmp_path / "out.parquet").rows == 6
    other.rename(twin.with_name("twin.csv.bak"))  # a backup is no twin
    assert verify(tmp_path).rows == 6


@pytest.mark.parametrize(
    ("role", "format"), [("twin", "csv"), ("twin", "parquet"), ("card", "csv"), ("privacy", "csv")]
)
def test_any_altered_byte_is_caught(tmp_path, role, format):
    path = getattr(hand_over(tmp_path, format=format), role)
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
    (set_event(0, "noise_multiplier", 4.9), "its events come to"),
    (set_event(1, "noise_multiplier", 9.01), "its events come to"),
    (set_event(1, "steps", 21), "its events come to"),
    (set_event(1, "sample_rate", 0.9), "but its events come to None"),
    (set_event(1, "steps", 0), "steps must be"),
    (set_event(1, "kind", "magic\nline"), "unknown event kind"),
    (lambda d: d["ledger"]["events"].pop(0), "its events come to"),
    (add_event(kind="non_private_access", reason="x"), "come to None"),
    (set_in("ledger", "randomness_is_private", False), "come to None"),
    (set_in("ledger", "records", 10**6), "come to None"),
    (set_in("ledger", "sampler", "shuffled"), "come to None"),
    (set_in("ledger", "delta", 1e-6), "its events come to"),
    (set_in("ledger", "caveats", ["x"]), "excludes does not follow"),
    (set_in("ledger", "surplus", 1), "unknown field"),
    (set_in("ledger", "caveats", ["\x1b]52;c;eA==\x07"]), "'caveats' has a control character"),
    (lambda d: d["ledger"].pop("unit"), "missing or unknown field"),
    (set_in("guarantee", "epsilon", 1.0), "states ε = 1.0"),
    (set_in("guarantee", "epsilon", None), "states ε = None"),
    (set_in("guarantee", "epsilon", True), "states ε = True"),
    (set_in("guarantee", "delta", 1e-6), "delta does not follow"),
    (set_in("guarantee", "sentence", "All is well."), "sentence does not follow"),
    (lambda d: d["guarantee"]["excludes"].pop(), "excludes does not follow"),
    (lambda d: d["guarantee"].pop("covers"), "'guarantee' must have the fields"),
    (set_twin("rows", 7), "rows is not that of"),
    (set_twin("format", "csv"), "its header names another file"),
    (set_twin("format", "../twin"), "unknown format"),
    (set_twin("columns", ["review"]), "other columns than stated"),
    (set_twin("columns", None), "does not list"),
    (set_in("files", "more", {}), "'files' must have the fields"),
    (lambda d: d["files"].pop("page"), "'files' must have the fields"),
    (lambda d: d.update(format_version="2"), "no format_version that is a number"),
    (set_in("ledger", "format_version", 1), "'format_version' must be 2"),
    (lambda d: d.update(note="x"), "the file must have the fields"),
]


@pytest.mark.parametrize(("change", "message"), FORGERIES)
def test_a_forged_statement_with_mended_hashes_is_caught(tmp_path, change, message):
    forge(paths := hand_over(tmp_path), change)
    assert message in refusal(tmp_path)
    assert paths.privacy.is_file()


def test_the_larger_of_the_stated_and_the_computed_epsilon_is_reported(tmp_path):
    """They may differ a little, as on a machine with another release of the accountant."""
    paths = hand_over(tmp_path)
    forge(paths, lambda data: None)  # the forger's tools alone do no harm
    computed = verify(tmp_path).guarantee.epsilon
    smaller = computed * (1 - 5e-5)
    assert str(computed) in paths.card.read_text("utf-8")
    change = set_in("guarantee", "epsilon", smaller)
    forge(paths, change, lambda card: card.replace(str(computed), str(smaller)))
    found = verify(tmp_path)
    assert found.guarantee.epsilon == computed
    assert f"come to ε = {computed}, as stated" in found.checked[0]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("epsilon: ", "epsilon: 0.", "its epsilon is not that of"),
        ("delta: 1.0e-05", "delta: 1.0e-06", "its delta is not that of"),
        ("  rows: 6", "  rows: 60", "its rows is not that of"),
        ("| Rows | 6 |", "| Rows | 60 |", "lacks the line '| Rows | 6 |'"),
        ("| ε | ", "| ε | 0.", "lacks the line '| ε |"),
        ("| δ | ", "| δ | 0.", "lacks the line '| δ |"),
        ("are (", "are truly (", "lacks the line 'The twin and the model are ("),
        ("- people with several records", "- nobody", "lacks the line '- people"),
        ("data_files: twin.parquet", "data_files: other.csv", "names another file"),
        ("privacy:\n", "privacy_:\n", "'privacy' must have the fields"),
        ("---\n", "--\n", "no readable YAML header"),
        ("license: ", "license: [", "no readable YAML header"),
        ("---\n\n#", "---\n<!--\n#", "HTML or links, which may hide"),
    ],
)
def test_a_card_that_disagrees_with_the_ledger_is_caught(tmp_path, old, new, message):
    paths = hand_over(tmp_path)
    assert old in paths.card.read_text("utf-8")
    forge(paths, lambda data: None, lambda text: text.replace(old, new))
    assert message in refusal(tmp_path)


@pytest.mark.parametrize(
    ("format", "change", "message"),
    [
        ("parquet", lambda data: b"not a table", "not a readable Parquet file"),
        ("jsonl", lambda data: data + data[data.index(b"\n") + 1 :], "has 11 rows, not 6"),
    ],
)
def test_another_twin_is_caught_though_its_hash_fits(tmp_path, format, change, message):
    paths = hand_over(tmp_path, format=format)
    paths.twin.write_bytes(change(paths.twin.read_bytes()))
    forge(paths, lambda data: None)
    assert message in refusal(tmp_path)


def test_a_statement_of_too_many_events_or_bytes_is_refused_before_it_is_composed(
    tmp_path, monkeypatch
):
    different = tuple(SubsampledGaussian(9 + i / 99, 1.0, 1) for i in range(9))
    monkeypatch.setattr("twinset.release.verify.guarantee", None)  # is never asked
    hand_over(tmp_path, ledger(different))
    assert "more than 8 events that differ" in refusal(tmp_path)
    hand_over(tmp_path, ledger(tuple(replace(e, sample_rate=0.1) for e in different[:3])))
    assert "more than 2 events that differ and sample records" in refusal(tmp_path)
    hand_over(tmp_path, ledger((SubsampledGaussian(9.0, 0.1, 2 * 10**7), different[0])))
    assert "more than 20,000,000 steps" in refusal(tmp_path)
    hand_over(tmp_path)
    monkeypatch.setattr(verification, "MOST_EVENTS", 1)
    assert "more than 1 events" in refusal(tmp_path)
    monkeypatch.setattr(verification, "read_text", lambda path: limits.read_text(path, 100))
    assert "is larger than" in refusal(tmp_path)


NO_STATEMENTS = ["{}", "[]\n", "null\n", "[" * 99_999, '{"e": NaN}', "\ufeff{}", '{"a": 1, "a": 2}']


@pytest.mark.parametrize("text", NO_STATEMENTS, ids=lambda text: text[:6])
def test_a_file_that_is_no_statement_is_caught(tmp_path, text):
    hand_over(tmp_path).privacy.write_text(text, "utf-8")
    refusal(tmp_path)


@pytest.mark.parametrize("name", ["twin.csv", "README.md", "privacy.json"])
def test_a_missing_or_unreadable_file_is_bad_input(tmp_path, monkeypatch, name):
    def refuse(path):
        raise PermissionError(13, "Permission denied")

    share = hand_over(tmp_path / "share", format="csv").twin.parent
    publish(share, tmp_path / "twin.csv")
    with monkeypatch.context() as patch:
        patch.setattr("twinset.release.verify.sha256_file", refuse)
        assert "cannot be read (Permission denied). Check" in refusals.refusal(verify, share)
    (share / name).unlink()
    assert name in refusals.refusal(verify, share)
    published = name if name == "twin.csv" else f"twin.{name}"
    (tmp_path / published).unlink()
    assert published in refusals.refusal(verify, tmp_path / "twin.csv")
    assert "no such file" in refusals.refusal(verify, tmp_path / "t.csv")


# -- what an older or a newer twinset wrote, for every command that reads it -----------------------

OLDER, NEWER = FORMAT_VERSION - 1, FORMAT_VERSION + 1
REMEDIES = {OLDER: "Use the older twinset that wrote it", NEWER: "Upgrade"}
COMMANDS = [
    "verify r",
    "sample r --rows 4 --output more.csv",
    "evaluate r --train t.csv --test t.csv",
    "evaluate twin.csv --train t.csv --test t.csv",
    "audit r --members t.csv --non-members t.csv",
    "report r",
]


def restamp(folder: Path, version: int) -> None:
    """Have the ledgers below a folder say that they are of another format."""
    for path in (*folder.rglob("*ledger.json"), *folder.rglob("*privacy.json")):
        text = re.sub(r'("format_version": )\d+', rf"\g<1>{version}", path.read_text("utf-8"))
        path.write_text(text, "utf-8")


@pytest.mark.parametrize("version", REMEDIES)
def test_a_run_of_another_format_is_refused(tiny_run, tmp_path, monkeypatch, version):
    monkeypatch.chdir(shutil.copytree(tiny_run, tmp_path / "copy"))
    restamp(Path(), version)
    for command in COMMANDS:
        outcome = call(*command.split())
        said = f"has format_version {version}, and this twinset reads {FORMAT_VERSION}"
        line = rf"error: \S+\.json: {said}. {REMEDIES[version]}.*\n"
        assert outcome.code == 2 and re.fullmatch(line, outcome.err), (command, outcome.err)
