"""What an older or a newer twinset wrote is refused in one line, by every command that reads it."""

import re
import shutil
from pathlib import Path

import pytest

from tests.helpers.commands import run_twinset
from twinset.privacy.statement.ledger import FORMAT_VERSION

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
