"""What an older or a newer twinset wrote is refused in one line, by every command that reads it."""

import json
import re
from pathlib import Path

import pytest

from tests.helpers.commands import arguments, good_table_in, run_twinset
from twinset.errors import InputError
from twinset.privacy.statement.ledger import FORMAT_VERSION, format_fault
from twinset.release.share import check_file_format
from twinset.training.loop import PrivateOptimizer

OTHERS = {FORMAT_VERSION - 1: "use the older twinset that wrote it", FORMAT_VERSION + 1: "upgrade"}
COMMANDS = {
    "verify": ["verify", "r"],
    "sample": ["sample", "r", "--rows", "4", "--output", "more.csv"],
    "evaluate": ["evaluate", "r", "--train", "t.csv", "--test", "t.csv"],
    "a twin's evaluation": ["evaluate", "twin.csv", "--train", "t.csv", "--test", "t.csv"],
    "audit": ["audit", "r", "--members", "t.csv", "--non-members", "t.csv"],
    "report": ["report", "r"],
}
RUN = ("t.csv", "--run", "r", "--rows", "6", "--output", "twin.csv")


@pytest.fixture(scope="module")
def made(tiny_base, tmp_path_factory):
    """A folder with a run and its published twin."""
    with pytest.MonkeyPatch.context() as patch:
        place = good_table_in(tmp_path_factory.mktemp("made"), patch)
        import cli

        assert cli.main([str(a) for a in arguments(tiny_base, RUN)]) == 0
    return place


def restamp(path: Path, version: int) -> None:
    """Have a file say that it is of another format, its ledger too."""
    text = path.read_text("utf-8")
    path.write_text(re.sub(r'("format_version": )\d+', rf"\g<1>{version}", text), "utf-8")


def written_in(folder: Path, version: int) -> dict[Path, str]:
    files = [*folder.rglob("*ledger.json"), *folder.rglob("*privacy.json")]
    before = {path: path.read_text("utf-8") for path in files}
    for path in files:
        restamp(path, version)
    return before


@pytest.mark.parametrize("version", OTHERS)
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_run_of_another_format_is_refused(made, monkeypatch, capsys, command, version):
    monkeypatch.chdir(made)
    before = written_in(made, version)
    try:
        outcome = run_twinset(capsys, *command)
    finally:
        for path, text in before.items():
            path.write_text(text, "utf-8")
    assert outcome.code == 2
    line = (
        rf"error: \S+\.json: has format_version {version}, and this twinset reads {FORMAT_VERSION}"
    )
    assert re.fullmatch(rf"{line}; {OTHERS[version]}.*\n", outcome.err), outcome.err


@pytest.mark.parametrize("version", OTHERS)
def test_a_run_that_was_begun_in_another_format_is_not_resumed(
    tiny_base, tmp_path, monkeypatch, capsys, version
):
    good_table_in(tmp_path, monkeypatch)

    def stop(self, gradients):
        raise KeyboardInterrupt

    plain = PrivateOptimizer.apply
    monkeypatch.setattr(
        PrivateOptimizer, "apply", lambda self, g: (stop if self.done else plain)(self, g)
    )
    assert run_twinset(capsys, *arguments(tiny_base, RUN)).code == 130
    assert written_in(Path(".r.partial"), version)
    outcome = run_twinset(capsys, *arguments(tiny_base, (*RUN, "--resume")))
    assert outcome.code == 2
    assert f"has format_version {version}, and" in outcome.err


def test_what_is_of_no_format_is_left_to_its_reader(tmp_path):
    for text in ("", "{}", "[]", json.dumps({"format_version": "1"})):
        (tmp_path / "ledger.json").write_text(text)
        check_file_format(tmp_path / "ledger.json")
    check_file_format(tmp_path / "none.json")
    assert format_fault(FORMAT_VERSION) is None


def test_the_line_names_the_file(tmp_path):
    (tmp_path / "ledger.json").write_text('{"format_version": 1}')
    with pytest.raises(InputError, match=r"ledger\.json: has format_version 1, and"):
        check_file_format(tmp_path / "ledger.json")
