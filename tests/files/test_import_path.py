"""Python files of the working folder are not run: neither by a command nor by what it starts."""

import os
import subprocess
import tomllib
from datetime import timedelta
from pathlib import Path

import pytest

from tests.helpers.commands import GOOD, ROOT, run_python
from twinset.errors import InputError
from twinset.models import assets
from twinset.training import distributed

PLANTED = "from pathlib import Path\nPath({place!r}).write_text('ran')\nraise ImportError\n"
MODULES = ("secrets", "pandas", "torch", "typing", "__future__", "pip", "csv")


@pytest.fixture
def planted(tmp_path, monkeypatch) -> Path:
    """Work in a folder with a table and files named as modules. Return the file they write."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    GOOD.to_csv("t.csv", index=False)
    for module in MODULES:
        Path(f"{module}.py").write_text(PLANTED.format(place=str(tmp_path / "ran")))
    return tmp_path / "ran"


@pytest.mark.slow
def test_workers_run_no_file_of_the_working_folder(planted, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{os.pathsep}{ROOT}")  # empty: the working folder
    monkeypatch.setattr(distributed, "PATIENCE", timedelta(seconds=60))
    with distributed.process_group(2) as group:
        assert group.size == 2
    assert not planted.exists()


def test_a_command_runs_no_file_of_the_working_folder(planted):
    done = run_python("-m", "twinset", "detect", "t.csv", "--text", "review", "--quiet")
    assert not planted.exists(), done.stderr
    assert "ImportError" not in done.stderr


def test_the_planted_files_would_run(planted):
    """The control."""
    run_python("-m", "csv")
    assert planted.exists()


def test_a_command_cleans_the_import_path_that_it_hands_on(planted):
    script = Path("../twinset")
    script.write_text("import cli, os, sys\nprint(sys.path, os.environ['PYTHONPATH'])")
    done = run_python(script, PYTHONPATH=f"{ROOT}{os.pathsep}{os.pathsep}.{os.pathsep}/elsewhere")
    path, _, handed_on = done.stdout.strip().rpartition(" ")
    assert handed_on == f"{ROOT}{os.pathsep}/elsewhere"
    assert repr(str(Path.cwd())) not in path


def test_the_project_installs_every_package_below_one_name():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    tops = {"twinset": "twinset", "evaluation": "twinset.evaluation", "prompts": "twinset.prompts"}
    folders = {
        file.parent.relative_to(ROOT) for top in tops for file in (ROOT / top).rglob("__init__.py")
    }
    below = {".".join([tops[folder.parts[0]], *folder.parts[1:]]) for folder in folders}
    assert set(settings["packages"]) == below


def test_pip_runs_no_file_of_the_working_folder(planted, tmp_path, monkeypatch):
    seen = {}

    def run(command, **options):
        seen.update(command=command, **options)
        return subprocess.CompletedProcess(command, 1, "", "")

    monkeypatch.setenv("PYTHONPATH", f"{os.pathsep}{ROOT}")
    monkeypatch.setenv("TWINSET_CACHE", str(tmp_path / "cache"))
    with monkeypatch.context() as patched, pytest.raises(InputError):
        patched.setattr(assets.subprocess, "run", run)
        assets.asset_path("smollm2-135m")
    pip = subprocess.run([*seen["command"][:4], "--version"], env=seen["env"], capture_output=True)
    assert not planted.exists() and pip.stdout.startswith(b"pip ")
