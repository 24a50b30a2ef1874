"""The page of all arms, end to end on a random model: stopped, resumed, and what was not run."""

import json

import pytest
import typer.testing

from evaluation.bench.arms import __main__ as arms
from evaluation.bench.arms.measuring import Measuring
from evaluation.bench.arms.plan import Stated
from evaluation.run_command import command
from tests.helpers.evaluated import reviews, without_downloads
from twinset.errors import InputError

NAME = "blitzer_dvd_kitchen"


@pytest.fixture
def run_arms(tmp_path, tiny_base, monkeypatch):
    """Return a function that runs the command on a small table, all others being absent."""
    folder = tmp_path / "tables" / NAME
    folder.mkdir(parents=True)
    for part, rows, seed in (("train", 100, 0), ("test", 40, 1)):
        reviews(rows, seed).to_csv(folder / f"{part}.csv.gz", index=False)
    without_downloads(monkeypatch)
    monkeypatch.chdir(tmp_path)
    given = ["--size", "tiny", "--base-model", str(tiny_base), "--tables", "tables"]

    def run(*more):
        arguments = [*given, "--output", "out", *more]
        done = typer.testing.CliRunner().invoke(command(arms.main), arguments)
        if isinstance(done.exception, InputError | KeyboardInterrupt):
            raise done.exception
        assert done.exit_code == 0, done.output
        return json.loads((tmp_path / "out/arms.json").read_text())

    return run


def test_all_arms(run_arms, tmp_path):
    found = run_arms("--only", NAME)
    print((tmp_path / "out/arms.md").read_text())
    for row in found["rows"]: print(row)
    assert 0
