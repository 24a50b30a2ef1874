"""Whatever a file holds: it is read, or refused in one line that tells no cell. Nothing hangs.

Files are damaged byte by byte, or well-formed and strange. The slow tests try more of both.
"""

import copy
import functools
import gzip
import json
import operator
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from evaluation.findings import Findings, Measured
from evaluation.release import FinishedRun
from evaluation.report.page import build_report
from tests.helpers import refusals, reported
from tests.helpers.commands import call
from tests.helpers.handover import description, hand_over
from tests.helpers.refusals import SECRET, assert_silent, no_hang, refusal
from tests.release.test_verify import forge
from twinset.config import RunConfig
from twinset.errors import InputError, VerificationError
from twinset.release.verify import verify
from twinset.table.read import FORMATS, read_frame, write_frame
from twinset.table.records import records_from_frame
from twinset.table.templates import load_template
from twinset.table.text_formats import Layout

ODD = [10**400, -(10**400), 10**18, -1, 0, 1e308, 5e-324, 1e-155, "", " ", "\x00", None, True, [[]]]
SCALARS = st.sampled_from(ODD) | st.none() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


def settled(act):
    """Return what comes of it, or None if it is refused without a word of the secret."""
    try:
        with no_hang():
            return act()
    except (InputError, VerificationError) as error:
        assert_silent(error)
        return None


def fuzz(*strategies, few=25, many=400):
    """Make a quick test of a property in a folder, and a slow one that tries more."""

    def decorate(holds):
        @pytest.mark.parametrize("most", [few, pytest.param(many, marks=pytest.mark.slow)])
        def test(tmp_path, monkeypatch, most):
            monkeypatch.chdir(tmp_path)
            tested = given(made=st.tuples(*strategies))(lambda made: holds(tmp_path, *made))
            settings(
                max_examples=most,
                deadline=None,
                phases=(Phase.generate, Phase.shrink),
                suppress_health_check=list(HealthCheck),
                database=None,
                derandomize=most == few,  # the same on every machine. The slow one looks further.
            )(tested)()

        return test

    return decorate


# --- tables --------------------------------------------------------------------------------------

GOOD = pd.DataFrame(
    {"review": [f"one two {SECRET} {i}, “três”" for i in range(8)], "label": ["a", "b"] * 4}
)
EDIT = st.tuples(st.integers(0, 2**20), st.integers(0, 6), st.binary(max_size=6))
EDITS = st.lists(EDIT, min_size=1, max_size=4)


def edited(data: bytes, edits) -> bytes:
    """Replace pieces of the bytes by others."""
    for place, length, piece in edits:
        start = place % (len(data) + 1)
        data = data[:start] + piece + data[start + length :]
    return data


def damage(path: Path, edits, inside: bool) -> None:
    """Edit a file, or what it inflates to."""
    data = path.read_bytes()
    if inside and path.suffix == ".gz":
        path.write_bytes(gzip.compress(edited(gzip.decompress(data), edits)))
    else:
        path.write_bytes(edited(data, edits))


def read_both(name: str) -> None:
    """Read a table with its columns named, and guessed."""
    settled(lambda: records_from_frame(read_frame(name), "review", ["label"]))
    settled(lambda: records_from_frame(read_frame(name), None, []))


OTHERS = {
    ".json": lambda path: path.write_text(GOOD.to_json(orient="records")),
    ".xlsx": lambda path: GOOD.to_excel(path, index=False),
}


@fuzz(st.sampled_from([*FORMATS, *OTHERS]), EDITS, st.booleans(), few=40)
def test_damaged_tables(folder, ending, edits, inside):
    path = folder / f"t{ending}"
    OTHERS.get(ending, functools.partial(write_frame, GOOD))(path)
    damage(path, edits, inside)
    read_both(path.name)


def test_control_damage_reaches_the_content(tmp_path):
    """The control: the edits reach what is read."""
    write_frame(GOOD, tmp_path / "t.csv")
    damage(tmp_path / "t.csv", [(30, 2, b"\xff")], inside=False)
    assert "UTF-8" in refusal(read_frame, tmp_path / "t.csv", layout=Layout(strict=True))


# --- what a run left ------------------------------------------------------------------------------


def places(data, so_far=()):
    """Yield the way to every value inside JSON data."""
    if isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield (*so_far, key)
            yield from places(value, (*so_far, key))


def changed(data, number: int, value, takes_away: bool):
    """Return data with one value replaced or taken away."""
    data = copy.deepcopy(data)
    *above, key = (ways := list(places(data)))[number % len(ways)]
    parent = functools.reduce(operator.getitem, above, data)
    if takes_away:
        del parent[key]
    else:
        parent[key] = value
    return data


CHANGE = (st.integers(0, 10**6), VALUES, st.booleans())


@fuzz(*CHANGE, few=25)
def test_a_share_that_was_changed_is_verified_or_refused(folder, way, value, takes_away):
    paths = hand_over(folder / "share")

    def change(data):
        new = changed(data, way, value, takes_away)
        data.clear()
        data.update(new)

    try:
        forge(paths, change)
    except (KeyError, TypeError, AttributeError, UnicodeEncodeError):
        return  # not even a forger could write that
    settled(lambda: verify(folder / "share"))


@pytest.mark.parametrize("multiplier", [1e-155, 10**400])
def test_absurd_noise_is_refused(tmp_path, multiplier):
    """Such a ledger once kept its reader computing for ever."""
    noise = {"kind": "subsampled_gaussian", "sample_rate": 0.1, "steps": 9}
    event = {**noise, "noise_multiplier": multiplier}
    forge(hand_over(tmp_path), lambda data: data["ledger"]["events"].append(event))
    with no_hang():
        ended = call("verify", tmp_path)
    assert ended.code == 1 and ended.err.startswith("error: ") and ended.err.count("\n") == 1


SCHEMA = description(("a", "b"), "label").schema


def run_files(root: Path) -> dict[str, object]:
    """Return the JSON files that a run leaves. Its share is laid out already."""
    template = asdict(load_template("{label}:", SCHEMA))
    accuracy = Measured("utility", reported.share("accuracy", 0.5), {"rows": "twin"})
    step = {"step": 1, "records": 4, "loss": 1.0, "clipped": 0.5, "non_finite": 0, "seconds": 1.0}
    plan = {"plan": {"steps": 3, "batch_size": 4, "learning_rate": 0.1}}
    described = {"schema": asdict(SCHEMA), "template": template, "label_counts": [[["a"], 1.0]]}
    return {
        "share/privacy.json": json.loads(hand_over(root / "share").privacy.read_text("utf-8")),
        "model/twinset.json": described,
        "internal/config.json": {**asdict(RunConfig()), **plan},
        "internal/evaluation.json": Findings("evaluation", {"seed": 0}, (accuracy,)).to_dict(),
        "internal/metrics.jsonl": step,
        "internal/noise.json": {"w": 1.0},
    }


@fuzz(st.integers(0, 5), *CHANGE, few=12)
def test_a_run_that_was_changed_is_read_or_refused(folder, which, way, value, takes_away):
    files = run_files(folder / "run")
    name = list(files)[which]
    files[name] = changed(files[name], way, value, takes_away)
    run = folder / "run"
    for file, data in files.items():
        (run / file).parent.mkdir(exist_ok=True)
        (run / file).write_text(json.dumps(data), "utf-8")
    settled(lambda: FinishedRun.read(run))
    settled(lambda: Findings.load(run / "internal" / "evaluation.json"))
    settled(lambda: build_report(run))


def test_the_checks_would_see_a_leak_and_a_hang(monkeypatch):
    """The controls."""

    def quoting():
        try:
            float(SECRET)
        except ValueError as cause:
            raise InputError("a cell is no number") from cause

    with pytest.raises(AssertionError):
        settled(quoting)
    monkeypatch.setattr(refusals, "PATIENCE", 1)
    with pytest.raises(AssertionError, match="hangs"), no_hang():
        while True:
            pass
