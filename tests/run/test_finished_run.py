"""A finished run that is resumed hands out what it made, and trains nothing again."""

from pathlib import Path

import pandas as pd
import pytest

from tests.helpers.commands import arguments, good_table_in, run_twinset, snapshot
from twinset.release.verify import verify

RUN = tuple("t.csv --run r --steps 1 --epsilon 20 --teacher-share 0".split())
AGAIN = ("--rows", "6", "--resume")


@pytest.fixture
def place(tmp_path, monkeypatch):
    return good_table_in(tmp_path, monkeypatch)


@pytest.fixture
def run(place, tiny_base, capsys):
    """Run a command on the run `r`."""

    def command(name, *more):
        _, *given = arguments(tiny_base, (*RUN, *more))
        return run_twinset(capsys, name, *given)

    return command


def test_there_is_nothing_to_resume(place, run):
    made = run("generate", "--rows", "6")
    before = snapshot(place)
    again = run("generate", *AGAIN)
    assert (again.code, again.out, snapshot(place)) == (0, made.out, before)


def test_its_twin_is_handed_out(place, run):
    run("generate", "--rows", "6")
    made = run("generate", "--resume", "--output", "out.csv", "--rows", "9")
    assert made.code == 0 and "it has 6 rows; `twinset sample" in made.err.replace("\n", " ")
    twin = Path("out.csv").read_bytes()
    assert twin == Path("r/share/twin.csv").read_bytes()
    Path("out.privacy.json").unlink()
    assert run("generate", *AGAIN, "--output", "out.csv").code == 0  # the rest is there already
    assert verify(Path("out.csv")).rows == 6
    before = snapshot(place)
    Path("out.csv").write_text("mine")
    refused = run("generate", *AGAIN, "--output", "out.csv")
    assert refused.code == 2 and "exists" in refused.err
    assert Path("out.csv").read_text() == "mine"
    assert before.keys() == snapshot(place).keys()


@pytest.mark.parametrize("output", [(), ("--output", "out.csv")], ids=["share", "output"])
def test_a_model_without_a_twin_writes_one(place, run, output):
    assert run("finetune").code == 0
    model = snapshot(place / "r" / "model")
    assert run("generate", *AGAIN, *output).code == 0
    assert snapshot(place / "r" / "model") == model
    twin = Path(output[1] if output else "r/share/twin.csv")
    assert len(pd.read_csv(twin)) == verify(twin).rows == 6


@pytest.mark.parametrize("other", ["epsilon", "table"])
def test_it_is_the_run_that_is_asked_for(place, run, other):
    """Another table's twin, or one of more ε, is not handed out as this one's."""
    run("generate", "--rows", "6")
    changes = ("--epsilon", "3") if other == "epsilon" else ()
    if other == "table":
        text = Path("t.csv").read_text()
        Path("t.csv").write_text(text.replace("number 7", "number 8"))
    refused = run("generate", *AGAIN, *changes, "--output", "out.csv")
    assert refused.code == 2 and "was made with other settings" in refused.err
    assert ("privacy" in refused.err) == (other == "epsilon")
    assert not Path("out.csv").exists()


@pytest.mark.parametrize(
    "made", [("generate", "--rows", "6"), ("finetune",)], ids=["twin", "model"]
)
def test_a_private_table_is_no_output(place, run, made):
    run(*made)
    table = Path("t.csv").read_bytes()
    refused = run("generate", *AGAIN, "--overwrite", "--output", "t.csv")
    assert refused.code == 2 and Path("t.csv").read_bytes() == table
