"""The run folder appears whole or not at all, and what stood there before survives."""

import errno
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.commands import python_environment
from twinset.errors import InputError
from twinset.files.atomic import JsonLines, write_json, write_text
from twinset.run.run_folder import RunFolder, default_run_path, is_abandoned

ROOT = Path(__file__).parents[2]
not_root = pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")


def tree(folder: Path) -> dict[str, str]:
    """Return every file and folder below, hidden ones too, with what the files hold."""
    return {
        str(path.relative_to(folder)): path.read_text() if path.is_file() else ""
        for path in folder.rglob("*")
    }


def make(path: Path, text: str = "first", overwrite: bool = False) -> RunFolder:
    with RunFolder.create(path, overwrite) as run:
        write_text(run.share / "privacy.json", text)
    return run


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def full(*args, **kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_run_appears_whole_at_the_end(tmp_path):
    final = tmp_path / "runs" / "demo"
    with RunFolder.create(final) as run:
        write_text(run.share / "privacy.json", "{}")
        write_text(run.internal / "config.json", "{}")
        assert not final.exists()
        assert run.root == final.with_name(".demo.partial")
        assert mode(run.root) == 0o700
    assert run.share == final / "share"
    assert set(tree(tmp_path)) == {"runs", "runs/demo"} | {
        f"runs/demo/{name}"
        for name in "share model internal share/privacy.json internal/config.json".split()
    }


def test_only_the_owner_enters_a_run_and_internal_is_closed_inside(tmp_path):
    before = os.umask(0o077)
    try:
        with RunFolder.create(tmp_path / "run") as run:
            for part in (run.share, run.model, run.internal):
                write_json(part / "a.json", {})
                JsonLines(part / "b.jsonl").append({})
    finally:
        os.umask(before)
    assert mode(run.root) == 0o700
    assert [mode(part) for part in (run.share, run.model, run.internal)] == [0o755, 0o755, 0o700]
    assert mode(run.share / "a.json") == mode(run.model / "a.json") == 0o644
    assert mode(run.internal / "a.json") == mode(run.internal / "b.jsonl") == 0o600


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, RuntimeError, InputError])
def test_whatever_ends_a_run_early_nothing_is_left(tmp_path, error):
    with pytest.raises(error), RunFolder.create(tmp_path / "deep" / "runs" / "demo") as run:
        write_text(run.internal / "metrics.jsonl", "private")
        raise error
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, RuntimeError])
def test_an_older_run_survives_a_failing_second_one(tmp_path, error):
    make(tmp_path / "run")
    before = tree(tmp_path)
    with pytest.raises(error), RunFolder.create(tmp_path / "run", overwrite=True) as run:
        write_text(run.share / "privacy.json", "second")
        raise error
    assert tree(tmp_path) == before


def test_an_older_run_is_replaced_whole(tmp_path):
    with RunFolder.create(tmp_path / "run") as run:
        write_text(run.internal / "old", "old")
    make(tmp_path / "run", "second", overwrite=True)
    assert tree(tmp_path / "run") == {
        "share": "",
        "model": "",
        "internal": "",
        "share/privacy.json": "second",
    }
    assert os.listdir(tmp_path) == ["run"]


def test_an_older_run_is_kept_without_overwrite(tmp_path):
    make(tmp_path / "run")
    with pytest.raises(InputError, match="`overwrite=True` to replace it, or another `run`"):
        make(tmp_path / "run", "second")
    assert tree(tmp_path)["run/share/privacy.json"] == "first"


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("names", [["thesis.txt"], ["internal/main.go"], ["share/a", "model/b"]])
def test_a_folder_that_is_no_run_is_never_replaced(tmp_path, overwrite, names):
    for name in names:
        path = tmp_path / "work" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("dear")
    before = tree(tmp_path)
    with pytest.raises(InputError, match="not a twinset run"):
        make(tmp_path / "work", overwrite=overwrite)
    assert tree(tmp_path) == before


def test_a_file_or_a_mount_point_is_refused_and_an_empty_folder_taken(tmp_path):
    (tmp_path / "file").write_text("dear")
    with pytest.raises(InputError, match="not a twinset run"):
        make(tmp_path / "file", overwrite=True)
    with pytest.raises(InputError, match="cannot be written"):
        make(tmp_path / "file" / "run")
    with pytest.raises(InputError, match="mount point"):
        make(Path("/"))
    (tmp_path / "empty").mkdir()
    make(tmp_path / "empty")
    assert sorted(os.listdir(tmp_path)) == ["empty", "file"]


@not_root
def test_a_parent_that_is_not_writable_is_refused_before_the_block(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(InputError, match="may write"), RunFolder.create(tmp_path / "run"):
            pytest.fail("the block ran")
    finally:
        tmp_path.chmod(0o700)


def test_a_refused_entry_never_runs_the_block(tmp_path, monkeypatch):
    monkeypatch.setattr("twinset.run.run_folder.Path.mkdir", full)
    with pytest.raises(InputError, match="No space left"), RunFolder.create(tmp_path / "a" / "run"):
        pytest.fail("the block ran")
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("name", ["os.replace", "os.fsync"])
@pytest.mark.parametrize("older", [False, True])
def test_a_full_disk_is_one_line_and_nothing_is_left(tmp_path, monkeypatch, name, older):
    if older:
        make(tmp_path / "run")
    before = tree(tmp_path)
    with pytest.raises(InputError, match="No space left") as caught, monkeypatch.context() as patch:
        patch.setattr(f"twinset.files.atomic.{name}", full)
        make(tmp_path / "run", "second", overwrite=True)
    assert "\n" not in str(caught.value)
    assert tree(tmp_path) == before


def test_the_older_run_returns_when_the_new_one_cannot_take_its_place(tmp_path, monkeypatch):
    make(tmp_path / "run")
    before = tree(tmp_path)
    replace = os.replace

    def refuse_new(source, target):
        return full() if ".partial" in Path(source).name else replace(source, target)

    with pytest.raises(InputError, match="No space left"):
        with RunFolder.create(tmp_path / "run", overwrite=True):
            monkeypatch.setattr("twinset.run.run_folder.os.replace", refuse_new)
    assert tree(tmp_path) == before


class SafetensorError(Exception):
    pass


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        SafetensorError("I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_met_by_another_library_is_one_line_too(tmp_path, error):
    with pytest.raises(InputError, match="disk is full"), RunFolder.create(tmp_path / "run"):
        raise error
    assert tree(tmp_path) == {}


def test_other_errors_of_the_block_stay_what_they_are(tmp_path):
    with pytest.raises(ConnectionError), RunFolder.create(tmp_path / "run"):
        raise ConnectionError


def test_a_second_run_on_the_same_folder_is_refused(tmp_path):
    with RunFolder.create(tmp_path / "run") as first:
        write_text(first.share / "privacy.json", "first")
        with pytest.raises(InputError, match="another run is writing"):
            make(tmp_path / "run", overwrite=True)
        make(tmp_path / "other")
    assert tree(tmp_path)["run/share/privacy.json"] == "first"
    assert sorted(os.listdir(tmp_path)) == ["other", "run"]


KILLED = """
import os, signal, sys
from twinset.files.atomic import write_text
from twinset.run.run_folder import RunFolder
with RunFolder.create(sys.argv[1], overwrite=True) as run:
    write_text(run.internal / "metrics.jsonl", "private")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_run_left_is_taken_over_and_cleared(tmp_path):
    make(tmp_path / "run")
    command = [sys.executable, "-c", KILLED, str(tmp_path / "run")]
    assert subprocess.run(command, cwd=ROOT).returncode == -9
    assert ".run.lock" in os.listdir(tmp_path) and len(os.listdir(tmp_path)) == 3
    make(tmp_path / "run", "second", overwrite=True)
    assert os.listdir(tmp_path) == ["run"]


def test_a_run_moved_aside_by_a_killed_one_comes_back(tmp_path):
    make(tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / ".run.replaced")
    with pytest.raises(InputError, match="`overwrite=True`"):
        make(tmp_path / "run", "second")
    assert tree(tmp_path)["run/share/privacy.json"] == "first"
    shutil.copytree(tmp_path / "run", tmp_path / ".run.replaced")
    make(tmp_path / "run", "second", overwrite=True)
    assert os.listdir(tmp_path) == ["run"]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("data/reviews.csv", "reviews-1"),
        ("reviews.jsonl.gz", "reviews-1"),
        ("owner/imdb", "imdb-1"),
        ("my table.csv", "my-table-1"),
        ("..", "table-1"),
        ("taken.csv", "taken-3"),
    ],
)
def test_default_run_path_is_the_first_free(tmp_path, monkeypatch, source, name):
    monkeypatch.chdir(tmp_path)
    make(Path("runs/taken-1"))
    with RunFolder.create("runs/taken-2"):
        assert default_run_path(source) == Path("runs", name)


def unfinished(path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), RunFolder.create(path) as run:
        write_text(run.internal / "state", "half")
        run.keep()
        raise KeyboardInterrupt


def test_what_can_be_gone_on_with_stays_and_is_taken_up(tmp_path):
    unfinished(tmp_path / "run")
    assert os.listdir(tmp_path) == [".run.partial"]
    with RunFolder.create(tmp_path / "run", resume=True) as run:
        assert run.is_resumed and (run.internal / "state").read_text() == "half"
    assert os.listdir(tmp_path) == ["run"]
    assert sorted(os.listdir(tmp_path / "run")) == ["internal", "model", "share"]


def test_an_unfinished_run_is_not_lost_by_accident(tmp_path):
    unfinished(tmp_path / "run")
    before = tree(tmp_path)
    with pytest.raises(InputError, match="`resume=True`"):
        make(tmp_path / "run")
    assert tree(tmp_path) == before
    make(tmp_path / "run", "second", overwrite=True)
    assert os.listdir(tmp_path) == ["run"]
    with pytest.raises(InputError, match="no unfinished run"):
        with RunFolder.create(tmp_path / "run", overwrite=True, resume=True):
            pytest.fail("the block ran")


def test_an_unfinished_run_is_there_until_its_successor_is_worth_keeping(tmp_path):
    unfinished(tmp_path / "run")
    before = tree(tmp_path)
    with pytest.raises(KeyError), RunFolder.create(tmp_path / "run", overwrite=True):
        raise KeyError
    assert tree(tmp_path) == before
    with pytest.raises(KeyError), RunFolder.create(tmp_path / "run", overwrite=True) as run:
        write_text(run.internal / "state", "second")
        run.keep()
        raise KeyError
    assert tree(tmp_path) == before | {".run.partial/internal/state": "second"}


@pytest.mark.parametrize("how", ["resume", "overwrite"])
def test_an_unfinished_run_comes_back_when_its_successor_is_killed(tmp_path, how):
    unfinished(tmp_path / "run")
    before = tree(tmp_path)
    command = [sys.executable, "-c", KILLED, str(tmp_path / "run")]
    assert subprocess.run(command, cwd=ROOT).returncode == -9
    with pytest.raises(InputError, match="an unfinished run waits"):
        make(tmp_path / "run")
    with pytest.raises(KeyError), RunFolder.create(tmp_path / "run", **{how: True}):
        raise KeyError
    assert tree(tmp_path) == before


def test_a_run_that_cannot_take_its_place_can_still_be_gone_on_with(tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(InputError, match="No space left"):
        with RunFolder.create(tmp_path / "run") as run:
            write_text(run.model / "weights", "paid for")
            run.keep()
            patch.setattr("twinset.run.run_folder.os.replace", full)
    with RunFolder.create(tmp_path / "run", resume=True) as run:
        assert (run.model / "weights").read_text() == "paid for"
    assert sorted(os.listdir(tmp_path / "run")) == ["internal", "model", "share"]


def test_resuming_names_the_last_run_that_was_begun(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert default_run_path("a.csv", resume=True) == Path("runs/a-1")
    make(Path("runs/a-1"))
    unfinished(Path("runs/a-2"))
    assert default_run_path("a.csv") == Path("runs/a-3")
    assert default_run_path("a.csv", resume=True) == Path("runs/a-2")


def test_what_a_run_left_that_was_killed_before_its_first_checkpoint_is_named(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-c", KILLED, "runs/a-1"]
    Path("runs").mkdir()
    assert subprocess.run(command, cwd=tmp_path, env=python_environment()).returncode == -9
    assert is_abandoned(Path("runs/a-1"))
    with pytest.raises(InputError, match=r"no ε is spent; .* delete .*/runs/\.a-1\.partial"):
        with RunFolder.create(default_run_path("a.csv", resume=True), resume=True):
            pytest.fail("the block ran")
    with RunFolder.create("runs/a-1"):
        assert not is_abandoned(Path("runs/a-1"))  # it lives
