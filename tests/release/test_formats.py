"""What an older or a newer twinset wrote is refused in one line, by every command that reads it."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.helpers.commands import arguments, good_table_in, run_twinset
from twinset.privacy.statement.ledger import FORMAT_VERSION
from twinset.release.share import check_file_format
from twinset.training.loop import PrivateOptimizer

OLDER, NEWER = FORMAT_VERSION - 1, FORMAT_VERSION + 1
REMEDIES = {OLDER: "use the older twinset that wrote it", NEWER: "upgrade"}
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
def test_a_run_of_another_format_is_refused(tiny_run, tmp_path, monkeypatch, capsys, version):
    monkeypatch.chdir(shutil.copytree(tiny_run, tmp_path / "copy"))
    restamp(Path(), version)
    for command in COMMANDS:
        outcome = run_twinset(capsys, *command.split())
        said = f"has format_version {version}, and this twinset reads {FORMAT_VERSION}"
        line = rf"error: \S+\.json: {said}; {REMEDIES[version]}.*\n"
        assert outcome.code == 2 and re.fullmatch(line, outcome.err), (command, outcome.err)


def test_a_run_that_was_begun_in_another_format_is_not_resumed(
    tiny_base, tmp_path, monkeypatch, capsys
):
    def stop_after_one(optimizer, gradients):
        if optimizer.done:
            raise KeyboardInterrupt
        return plain(optimizer, gradients)

    plain = PrivateOptimizer.apply
    good_table_in(tmp_path, monkeypatch)
    monkeypatch.setattr(PrivateOptimizer, "apply", stop_after_one)
    run = ("t.csv", "--run", "r", "--rows", "6")
    assert run_twinset(capsys, *arguments(tiny_base, run)).code == 130
    restamp(Path(".r.partial"), OLDER)
    outcome = run_twinset(capsys, *arguments(tiny_base, (*run, "--resume")))
    assert outcome.code == 2 and f"has format_version {OLDER}, and" in outcome.err


def test_a_file_of_no_format_is_left_to_its_reader(tmp_path):
    for text in ("", "{}", "[]", json.dumps({"format_version": "1"})):
        (tmp_path / "ledger.json").write_text(text)
        check_file_format(tmp_path / "ledger.json")
    check_file_format(tmp_path / "none.json")
