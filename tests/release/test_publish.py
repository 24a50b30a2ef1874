"""The three shared files stand beside the output file together, or not at all."""

import errno
import os
from pathlib import Path

import pytest

from tests.helpers.refusals import refusal
from twinset.errors import InputError
from twinset.release.publish import beside, check_output, publish

NAMES = ["twin.README.md", "twin.csv", "twin.privacy.json"]


@pytest.fixture
def share(tmp_path) -> Path:
    folder = tmp_path / "run" / "share"
    folder.mkdir(parents=True)
    for name in ("twin.csv", "README.md", "privacy.json"):
        (folder / name).write_text(f"new {name}")
    return folder


@pytest.fixture
def out(tmp_path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_the_three_files_stand_beside_each_other(share, out):
    publish(share, out / "reviews.v2.csv")
    assert contents(out) == {
        "reviews.v2.csv": "new twin.csv",
        "reviews.v2.README.md": "new README.md",
        "reviews.v2.privacy.json": "new privacy.json",
    }
    assert set(beside(out / "reviews.v2.csv")) < set(out.iterdir())


@pytest.mark.parametrize("name", NAMES)
def test_an_existing_file_is_kept_without_overwrite(share, out, name):
    (out / name).write_text("dear")
    assert f"{name}: exists; `overwrite`" in refusal(publish, share, out / "twin.csv")
    assert f"{name}: exists; `overwrite`" in refusal(check_output, out / "twin.csv")
    assert contents(out) == {name: "dear"}
    if name == "twin.csv":  # it may be anything, a private table too
        assert "says that it is a twin" in refusal(check_output, out / name, overwrite=True)
    publish(share, out / "twin.csv", overwrite=True)
    check_output(out / "twin.csv", overwrite=True)
    assert sorted(contents(out)) == NAMES and "dear" not in contents(out).values()


@pytest.mark.parametrize("existing", [[], NAMES[:1], NAMES])
@pytest.mark.parametrize("good", range(6))
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
def test_a_failure_at_any_replacement_undoes_all(share, out, monkeypatch, existing, good, error):
    for name in existing:
        (out / name).write_text("dear")
    calls, replace, steps = [], os.replace, 3 + len(existing)

    def fail_once(source, target):
        calls.append(source)
        if len(calls) == good + 1:
            raise error
        return replace(source, target)

    monkeypatch.setattr("twinset.release.publish.os.replace", fail_once)
    if good >= steps:
        publish(share, out / "twin.csv", overwrite=True)
        assert sorted(contents(out)) == NAMES
        return
    with pytest.raises(InputError if isinstance(error, OSError) else KeyboardInterrupt):
        publish(share, out / "twin.csv", overwrite=True)
    assert contents(out) == dict.fromkeys(existing, "dear")


@pytest.mark.parametrize(
    ("output", "message"),
    [("absent/twin.csv", "does not exist; create it"), ("folder", "name a file")],
)
def test_an_output_that_cannot_be_is_refused_early(out, output, message):
    (out / "folder").mkdir()
    assert message in refusal(check_output, out / output, overwrite=True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_not_writable_is_refused_early(out):
    out.chmod(0o500)
    with pytest.raises(InputError, match="not writable"):
        check_output(out / "twin.csv")
    out.chmod(0o700)
