"""The run folder appears whole or not at all, and what stood there before survives."""

import os
import stat
from pathlib import Path

import pytest

from tests.helpers.commands import run_python
from tests.helpers.refusals import no_hang
from twinset.errors import InputError
from twinset.files.atomic import append_json, write_json, write_text
from twinset.run.run_folder import RunFolder, is_abandoned


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


def unfinished(path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), RunFolder.create(path) as run:
        write_text(run.internal / "state", "half")
        run.keep()
        raise KeyboardInterrupt


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_run_appears_whole_at_the_end_and_only_its_owner_enters_it(tmp_path):
    before, final = os.umask(0o077), tmp_path / "runs" / "demo"
    try:
        with RunFolder.create(final) as run:
            for part in (run.share, run.model, run.internal):
                write_json(part / "a.json", {})
                append_json(part / "b.jsonl", {})
            assert not final.exists()
            assert run.root == final.with_name(".demo.partial") and mode(run.root) == 0o700
    finally:
        os.umask(before)
    assert run.share == final / "share" and os.listdir(tmp_path / "runs") == ["demo"]
    assert mode(run.root) == 0o700
    for part in ("share", "model"):
        assert (mode(final / part), mode(final / part / "a.json")) == (0o755, 0o644)
    assert mode(run.internal) == 0o700
    assert mode(run.internal / "a.json") == mode(run.internal / "b.jsonl") == 0o600


def test_an_older_run_is_kept_without_overwrite_and_else_replaced_whole(tmp_path):
    with RunFolder.create(tmp_path / "run") as run:
        write_text(run.internal / "old", "old")
    with pytest.raises(InputError, match="Use `overwrite=True`, or name another `run`"):
        make(tmp_path / "run", "second")
    assert tree(tmp_path)["run/internal/old"] == "old"
    make(tmp_path / "run", "second", overwrite=True)
    parts = dict.fromkeys(("run", "run/share", "run/model", "run/internal"), "")
    assert tree(tmp_path) == parts | {"run/share/privacy.json": "second"}


def of_somebody_else(place: Path, monkeypatch) -> None:
    place.mkdir(0o700)
    monkeypatch.setattr(os, "getuid", lambda: place.stat().st_uid + 1)


@pytest.mark.parametrize(
    ("what", "lay"),
    [
        ("partial", lambda place, patch: place.symlink_to(place.parent)),
        ("partial", lambda place, patch: place.mkdir(0o755)),
        ("partial", of_somebody_else),
        ("aside", lambda place, patch: place.mkdir(0o770)),
        ("replaced", lambda place, patch: place.mkdir(0o755)),
        ("lock", lambda place, patch: place.symlink_to("elsewhere")),
        ("lock", lambda place, patch: os.mkfifo(place)),
    ],
)
def test_a_hidden_place_that_others_made_or_can_open_is_refused(tmp_path, monkeypatch, what, lay):
    lay(tmp_path / f".run.{what}", monkeypatch)
    with pytest.raises(InputError), no_hang():
        make(tmp_path / "run")
    assert os.listdir(tmp_path) == [f".run.{what}"]
    if what == "lock":
        (tmp_path / ".run.partial").mkdir()
        with pytest.raises((InputError, OSError)), no_hang():
            is_abandoned(tmp_path / "run")


def test_a_second_run_on_the_same_folder_is_refused(tmp_path):
    with RunFolder.create(tmp_path / "run") as first:
        write_text(first.share / "privacy.json", "first")
        with pytest.raises(InputError, match="another run is writing"):
            make(tmp_path / "run", overwrite=True)
        make(tmp_path / "other")
    assert tree(tmp_path)["run/share/privacy.json"] == "first"
    assert sorted(os.listdir(tmp_path)) == ["other", "run"]


# -- killed ---------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from twinset.files.atomic import write_text
from twinset.run.run_folder import RunFolder
with RunFolder.create(sys.argv[1], overwrite=True) as run:
    write_text(run.internal / "metrics.jsonl", "private")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_an_unfinished_run_comes_back_when_its_successor_was_killed(tmp_path):
    """It should have replaced a finished run and an unfinished one."""
    place = tmp_path / "run"
    make(place)
    unfinished(tmp_path / "other")
    (tmp_path / ".other.partial").rename(tmp_path / ".run.partial")
    assert run_python("-c", KILLED, place).returncode == -9
    assert sorted(os.listdir(tmp_path)) == [".run.aside", ".run.lock", ".run.partial", "run"]
    with pytest.raises(InputError, match="an unfinished run waits"):
        make(place)
    with pytest.raises(KeyError), RunFolder.create(place, overwrite=True, resume=True):
        raise KeyError
    left = tree(tmp_path)
    assert left["run/share/privacy.json"] == "first"
    assert left[".run.partial/internal/state"] == "half"
    assert sorted(os.listdir(tmp_path)) == [".run.partial", "run"]


# -- unfinished -----------------------------------------------------------------------------------


def test_what_can_be_resumed_stays_and_is_not_lost_by_accident(tmp_path):
    unfinished(tmp_path / "run")
    before = tree(tmp_path)
    with pytest.raises(InputError, match="`resume=True`"):
        make(tmp_path / "run")
    with pytest.raises(KeyError), RunFolder.create(tmp_path / "run", overwrite=True):
        raise KeyError
    assert tree(tmp_path) == before
    with pytest.raises(KeyError), RunFolder.create(tmp_path / "run", overwrite=True) as run:
        write_text(run.internal / "state", "second")
        run.keep()  # from here on the successor is worth keeping
        raise KeyError
    assert tree(tmp_path) == before | {".run.partial/internal/state": "second"}
    with RunFolder.create(tmp_path / "run", resume=True) as run:
        assert run.is_resumed and (run.internal / "state").read_text() == "second"
    assert os.listdir(tmp_path) == ["run"]
    assert sorted(os.listdir(tmp_path / "run")) == ["internal", "model", "share"]
    with pytest.raises(InputError, match="no unfinished run"):
        with RunFolder.create(tmp_path / "run", overwrite=True, resume=True):
            pytest.fail("the block ran")
