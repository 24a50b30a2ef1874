"""Private text is in no log, error or crash dump, and in no file that a run leaves.

Markers stand in a private table. Commands run well and badly. Then all that they printed, logged or
left on the disk is searched. A random model writes no marker, so that even the twin must not hold
one. Only the table, rows held out, and what `--samples` and `--show-real` ask for may hold one.

`test_replay` does so for each kind of run. `refusals.refusal` does so for each bad table.
"""

import errno
import gzip
import json
import logging
import os
import random
import resource
import string
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import cli
from tests.helpers import evaluated
from tests.helpers.evaluated import without_downloads
from twinset.commandline.console import Console

_LETTERS = random.Random(7)
MARKERS = {
    place: "".join(_LETTERS.choices(string.ascii_lowercase, k=24))
    for place in ("text", "label-like column", "left-out column")
}
TABLES = {"train.csv", "test.csv", "t.jsonl"}  # private
COLUMNS = ("--text", "text", "--attribute", "sentiment")
QUICK = ("--steps", "2", "--batch-size", "8", "--max-tokens", "40", "--rows", "8")


def private(rows: int, seed: int) -> pd.DataFrame:
    """Reviews with a marker at the beginning of many texts, and in columns that are not used."""
    frame = evaluated.reviews(rows, seed)
    marked = [f"{MARKERS['text']} {t}" if i % 3 else t for i, t in enumerate(frame["text"])]
    # of too few to be released with the other columns
    likes = [MARKERS["label-like column"] if i % 20 == 1 else "plain" for i in range(rows)]
    customers = [f"{MARKERS['left-out column']} {i}" for i in range(rows)]
    return frame.assign(text=marked, shop=likes, customer=customers)


# --- searching -----------------------------------------------------------------------------------


class Needles:
    """Every marker as it could stand in a file: as text, or as the tokens that stand for it."""

    def __init__(self, tokenizer) -> None:
        self.forms = {}
        for place, marker in MARKERS.items():
            ids = tokenizer.encode(marker, add_special_tokens=False)[2:-2]  # others may join
            tokens = [np.array(ids, kind).tobytes() for kind in ("<u2", "<i4", "<i8")]
            self.forms[place] = (marker.encode(), marker.encode("utf-16-le")), tokens

    def inside(self, data: bytes) -> list[str]:
        """Return the places whose marker is in the data, whatever its case."""
        low = data.lower()
        return [
            place
            for place, (texts, tokens) in self.forms.items()
            if any(form in low for form in texts) or any(form in data for form in tokens)
        ]


def contents(path: Path) -> bytes:
    """Return a file's bytes, unpacked where they are packed."""
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        return data + gzip.decompress(data)
    if data[:4] == b"PAR1":
        return data + pd.read_parquet(path).to_csv().encode()
    return data


@dataclass
class World:
    """A working folder, a cache, a folder for temporary files, and all that is said."""

    needles: Needles
    here: Path
    elsewhere: tuple[Path, ...]
    capture: object
    log: object
    warned: list

    def run(self, *arguments) -> tuple[int, str]:
        """Run a command, search what it said, and return its exit code and that."""
        self.capture.readouterr()
        self.log.clear()
        code = cli.main([str(argument) for argument in arguments])
        out, err = self.capture.readouterr()
        said = "\n".join([out, err, self.log.text, *(str(w.message) for w in self.warned)])
        assert not self.needles.inside(said.encode()), arguments
        return code, out + err

    def search(self, *allowed: str) -> None:
        """Assert that no file holds a marker, in its name or content, but these and the tables."""
        found = [
            name
            for folder in (self.here, *self.elsewhere)
            for path in sorted(p for p in folder.rglob("*") if p.is_file() and not p.is_symlink())
            if (name := str(path.relative_to(folder))).partition("/")[0] not in TABLES
            and self.needles.inside(name.encode() + b"\0" + contents(path))
        ]
        assert found == [*allowed]


@pytest.fixture
def world(tmp_path, tokenizer, monkeypatch, capfd, caplog):
    here, *elsewhere = [tmp_path / name for name in ("here", "cache", "tmp", "hub")]
    for folder in (here, *elsewhere):
        folder.mkdir()
    for name, folder in zip(("TWINSET_CACHE", "TMPDIR", "HF_HOME"), elsewhere, strict=True):
        monkeypatch.setenv(name, str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)  # read TMPDIR again
    monkeypatch.chdir(here)
    without_downloads(monkeypatch)
    caplog.set_level(logging.DEBUG)
    private(80, 0).to_csv("train.csv", index=False)
    private(40, 1).to_csv("test.csv", index=False)
    with warnings.catch_warnings(record=True) as warned:
        yield World(Needles(tokenizer), here, tuple(elsewhere), capfd, caplog, warned)


def generate(base, *more, data="train.csv", command="generate", columns=COLUMNS):
    quick = QUICK if command == "generate" else QUICK[:-2]
    return (command, data, *columns, "--base-model", base, "--run", "run", *quick, *more)


# --- runs that go well ---------------------------------------------------------------------------


def test_real_texts_stay_in_their_owners_files(world, tiny_base):
    """Real texts are where their owner asked for them, and nobody else may read these files."""
    code, said = world.run(*generate(tiny_base, "--output", "twin.csv", "--hold-out", "0.3"))
    assert code == 0 and "step 2/2" in said  # it did tell of its progress
    for command in (
        ("verify", "run", "--json"),
        ("verify", "twin.csv"),
        ("sample", "run", "--rows", "4", "--output", "more.jsonl"),
        ("detect", "train.csv", "--text", "text", "--secret", "customer", "--json"),
        ("report", "run"),
    ):
        assert world.run(*command)[0] == 0, command
    world.search("run/internal/held-out.parquet")
    samples = ("detect", "train.csv", "--text", "text", "--samples", "samples.txt")
    assert world.run(*samples)[0] == 0
    assert world.run("report", "run", "--show-real", "train.csv")[0] == 0
    world.search("run/internal/held-out.parquet", "run/internal/report.html", "samples.txt")
    for private_file in ("samples.txt", "run/internal/report.html", "run/internal", "run"):
        assert Path(private_file).stat().st_mode & 0o077 == 0


def test_a_key_of_one_record_is_shown_nowhere(world, tiny_base):
    rows = private(80, 0).to_dict("records")
    rows[40][MARKERS["text"]] = True
    Path("t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    few = ("--marginal-share", "0", "--teacher-share", "0", "--output", "twin.jsonl")
    code, said = world.run(*generate(tiny_base, *few, data="t.jsonl"))
    assert code == 0 and "1 key that not every row has" in said
    assert world.run(*generate(tiny_base, data="t.jsonl", columns=("--text", "txet")))[0] == 2
    world.search()


TRAIN_AND_TEST = ("--train", "train.csv", "--test", "test.csv")
MEMBERS = ("--members", "train.csv", "--non-members", "test.csv")


@pytest.mark.slow
def test_measuring_comparing_and_planting(world, tiny_base):
    """What is measured is kept in internal/ and is numbers, but for an audit's riskiest rows."""
    riskiest = "run/internal/riskiest.csv"
    assert world.run(*generate(tiny_base, "--rows", "30"))[0] == 0
    base = ("--base-model", tiny_base)
    quick = (*base, "--steps", "2", "--batch-size", "8", "--max-tokens", "60")
    quick += ("--policies", "uniform", "--rows", "12")
    plant = ("--copies", "1", "--each", "1", "--coins", "10", "--prompt", "{sentiment}:")
    few = ("--seeds", "1", "--classifier", "tfidf", "--test", "test.csv")
    for command in (
        ("plan", "train.csv", *COLUMNS, *base),
        ("evaluate", "run", *TRAIN_AND_TEST),
        ("evaluate", "run", *TRAIN_AND_TEST, "--classifier", "tfidf", "--publishable", "--json"),
        ("audit", "run", *MEMBERS, "--json"),
        ("report", "run"),
        ("compare", "train.csv", *COLUMNS, *quick, *few),
        ("audit", "canaries", "train.csv", *COLUMNS, *quick, *plant),
    ):
        code, said = world.run(*command)
        assert code == 0, said
        world.search(*[riskiest] * (world.here / riskiest).is_file())


# --- runs that go badly --------------------------------------------------------------------------


MARKER = MARKERS["text"]


def breaks(error):
    """Something that raises, with a record in its message and in what it was raised from."""

    def broken(*_, **__):
        try:
            raise ValueError(f"could not convert {MARKER}")
        except ValueError as cause:
            raise error from cause

    return broken


TOO_LONG = OSError(errno.ENAMETOOLONG, "too long", MARKER)
DEEP_INSIDE = {
    "twinset.training.loop.StepReport": RuntimeError(f"what is {MARKER}?"),
    "twinset.privacy.mechanism.noise.GaussianGrid.add": TOO_LONG,
    "twinset.release.share.render_card": SystemExit(MARKER),
}


@pytest.mark.parametrize(("where", "error"), DEEP_INSIDE.items(), ids=DEEP_INSIDE)
def test_errors_deep_inside(world, tiny_base, monkeypatch, where, error):
    monkeypatch.setattr(where, breaks(error))
    code, said = world.run(*generate(tiny_base))
    assert code != 0 and "Traceback" not in said, said
    world.search()
    left = {path for path in world.here.iterdir() if path.name not in TABLES}
    assert all(path.name.startswith(".run.") for path in left)  # what can be gone on with
    assert all(path.stat().st_mode & 0o077 == 0 for path in left)


def test_no_core_dump_is_written_while_a_command_runs(world, tiny_base, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "twinset.run.story.read_frame",
        lambda *_: seen.append(resource.getrlimit(resource.RLIMIT_CORE)[0]),
    )
    before = resource.getrlimit(resource.RLIMIT_CORE)
    world.run(*generate(tiny_base))
    assert seen == [0]
    assert resource.getrlimit(resource.RLIMIT_CORE) == before


# --- controls: the search finds what is there ----------------------------------------------------


@pytest.mark.parametrize("way", ["printed", "logged", "warned", "said"])
def test_a_leak_that_is_printed_or_logged_is_found(world, tiny_base, monkeypatch, way):
    def tells(self, line):
        if way == "printed":
            os.write(2, f"record: {MARKER}\n".encode())
        elif way == "logged":
            logging.getLogger("anything").debug("record %s", MARKER)
        elif way == "warned":
            warnings.simplefilter("always")
            warnings.warn(f"odd: {MARKER}", stacklevel=1)
        else:
            self._out.print(MARKER.upper())

    monkeypatch.setattr(Console, "say", tells)
    with pytest.raises(AssertionError):
        world.run(*generate(tiny_base, "--dry-run"))


HIDING = {
    "json": lambda file: file.write_text(json.dumps({"note": f"see {MARKER}"})),
    "utf-16": lambda file: file.write_text(MARKER, "utf-16"),
    "packed": lambda file: file.write_bytes(gzip.compress(MARKER.encode())),
    "parquet": lambda file: pd.DataFrame({"t": [MARKER]}).to_parquet(file),
}


@pytest.mark.parametrize("where", ["run/share", "run/internal", "../cache", "../tmp"])
def test_a_leak_that_is_written_is_found(world, tokenizer, where):
    ids = tokenizer.encode(f"It was {MARKER} and so on")
    hiding = HIDING | {
        kind: lambda file, kind=kind: np.array(ids, kind).tofile(file)
        for kind in ("<u2", "<i4", "<i8")
    }
    Path(where).mkdir(parents=True, exist_ok=True)
    for hide in hiding.values():
        hide(Path(where, ".hidden"))
        with pytest.raises(AssertionError):
            world.search()
