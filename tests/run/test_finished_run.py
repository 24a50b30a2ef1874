"""A finished run that is resumed hands out what it made, and trains nothing again."""

import shutil
from contextlib import chdir
from pathlib import Path

import pytest

from tests.helpers.commands import GOOD, arguments, call, snapshot
from twinset.release.verify import verify

RUN = tuple("t.csv --run r --steps 1 --epsilon 20 --teacher-share 0 --marginal-share 0".split())
TWIN, MODEL = ("generate", "--rows", "6"), ("finetune",)
AGAIN = ("generate", "--rows", "6", "--resume")


@pytest.fixture(scope="module")
def finished(tmp_path_factory, tiny_base):
    """A run with a twin and one with a model alone, each with what the command printed."""
    made = {}
    for command in (TWIN, MODEL):
        folder = tmp_path_factory.mktemp("finished") / "here"
        folder.mkdir()
        shutil.copytree(tiny_base, folder / "base")
        with chdir(folder):
            GOOD.to_csv("t.csv", index=False)
            made[command] = folder, run(*command).out
    return made


@pytest.fixture
def begin(finished, tmp_path, monkeypatch):
    """Go into a copy of a finished run's folder; return what its command printed."""

    def copy(command) -> str:
        folder, out = finished[command]
        monkeypatch.chdir(shutil.copytree(folder, tmp_path / "here"))
        return out.replace(str(folder.resolve()), str(Path.cwd()))

    return copy


def run(name, *more):
    _, *given = arguments("base", (*RUN, *more))
    return call(name, *given)


def test_there_is_nothing_to_resume_and_its_twin_is_handed_out(begin):
    out = begin(TWIN)
    before = snapshot(Path())
    again = run(*AGAIN)
    assert (again.code, again.out, snapshot(Path())) == (0, out, before)
    made = run("generate", "--resume", "--output", "out.csv", "--rows", "9")
    assert made.code == 0
    assert Path("out.csv").read_bytes() == Path("r/share/twin.csv").read_bytes()
    Path("out.privacy.json").unlink()
    assert run(*AGAIN, "--output", "out.csv").code == 0  # the rest is there already
    assert verify(Path("out.csv")).rows == 6


def test_a_model_without_a_twin_is_handed_out_and_makes_none(begin):
    out = begin(MODEL)
    before = snapshot(Path())
    again = run("finetune", "--resume")
    assert (again.code, again.out) == (0, out)
    refused = run(*AGAIN)
    assert refused.code == 2 and "no twin; `twinset sample" in refused.err
    assert snapshot(Path()) == before


def test_it_is_the_run_that_is_asked_for(begin):
    """Another table's twin, or one of more ε, is not handed out as this one's."""
    begin(TWIN)
    refused = run(*AGAIN, "--epsilon", "3", "--output", "out.csv")
    assert refused.code == 2 and "was made with other settings (privacy" in refused.err
    Path("t.csv").write_text(Path("t.csv").read_text().replace("number 7", "number 8"))
    refused = run(*AGAIN, "--output", "out.csv")
    assert refused.code == 2 and "was made with other settings (table" in refused.err
    assert not Path("out.csv").exists()
