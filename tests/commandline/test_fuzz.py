"""Whatever a file holds: it is read, or refused in one line that tells no cell. Nothing hangs.

Files are damaged byte by byte, or well-formed and strange. The slow tests try more of both.
"""

import copy
import functools
import gzip
import json
import operator
import shutil
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from evaluation.findings import Findings, Measured
from evaluation.release import FinishedRun
from evaluation.report.page import build_report
from tests.helpers import refusals, reported
from tests.helpers.commands import run_twinset
from tests.helpers.handover import description, hand_over, ledger
from tests.helpers.refusals import SECRET, assert_silent, no_hang, refusal
from tests.release.test_verify import forge
from twinset.config import RunConfig
from twinset.config.options import OPTIONS, read_options, run_config, run_options
from twinset.errors import InputError, VerificationError
from twinset.files.atomic import CHECKSUMS, write_checksums
from twinset.pretraining.corpus import read_corpus
from twinset.privacy.statement.guarantee import guarantee
from twinset.privacy.statement.ledger import Ledger
from twinset.release.verify import verify
from twinset.sampling.twin_model import DESCRIPTION, TwinModel
from twinset.table.read import FORMATS, read_frame, write_frame
from twinset.table.records import read_records
from twinset.table.templates import load_template

DEEP = "[" * 100_000
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


def fuzz(*strategies, few=25, many=400, examples=()):
    """Make a quick test of a property in a folder, and a slow one that tries more."""

    def decorate(holds):
        @pytest.mark.parametrize("most", [few, pytest.param(many, marks=pytest.mark.slow)])
        def test(tmp_path, monkeypatch, most):
            monkeypatch.chdir(tmp_path)
            tested = given(made=st.tuples(*strategies))(lambda made: holds(tmp_path, *made))
            for one in examples:
                tested = example(made=one)(tested)
            settings(
                max_examples=most,
                deadline=None,
                phases=(Phase.explicit, Phase.generate, Phase.shrink),
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
EDITS = st.lists(
    st.tuples(st.integers(0, 2**20), st.integers(0, 6), st.binary(max_size=6)),
    min_size=1,
    max_size=4,
)


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
    settled(lambda: read_records(name, "review", ["label"]))
    settled(lambda: read_records(name, None, []))


OTHERS = {
    ".json": lambda path: path.write_text(GOOD.to_json(orient="records")),
    ".xlsx": lambda path: GOOD.to_excel(path, index=False),
    ".feather": lambda path: GOOD.to_feather(path, compression="zstd"),
    ".arrow": lambda path: GOOD.to_feather(path, compression="uncompressed"),
}


@fuzz(st.sampled_from([*FORMATS, *OTHERS]), EDITS, st.booleans(), few=50)
def test_damaged_tables(folder, ending, edits, inside):
    path = folder / f"t{ending}"
    OTHERS.get(ending, functools.partial(write_frame, GOOD))(path)
    damage(path, edits, inside)
    read_both(path.name)


def test_damage_is_damage(tmp_path):
    """The control: the edits reach what is read."""
    write_frame(GOOD, tmp_path / "t.csv")
    damage(tmp_path / "t.csv", [(30, 2, b"\xff")], inside=False)
    assert "UTF-8" in refusal(read_frame, tmp_path / "t.csv")


@fuzz(st.sampled_from(["state.json", "dataset_info.json", "data-00000-of-00001.arrow"]), EDITS)
def test_damaged_saved_folders(folder, name, edits):
    if not (folder / "good").exists():
        Dataset.from_pandas(GOOD).save_to_disk(str(folder / "good"))
    shutil.copytree(folder / "good", folder / "bad", dirs_exist_ok=True)
    damage(folder / "bad" / name, edits, inside=False)
    read_both("bad")


@fuzz(
    st.lists(VALUES, min_size=1, max_size=6),
    st.lists(VALUES, min_size=1, max_size=6),
    few=40,
    examples=[([f"{SECRET} b c d", "e f g h"], [1.5, 10**400])],
)
def test_strange_cells_of_json(folder, texts, labels):
    rows = [
        {"review": texts[i % len(texts)], "label": labels[i % len(labels)], "id": SECRET}
        for i in range(12)
    ]
    Path("t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    read_both("t.jsonl")


BYTES = pa.array([b"one two", SECRET.encode() + b" \xff"] * 3)
TEXT, CATEGORIES = BYTES.view(pa.string()), BYTES.view(pa.string()).dictionary_encode()
STRANGE = {
    "text that is not UTF-8": {"review": TEXT, "label": ["a", "b"] * 3},
    "such categories": {"review": ["one two three", "four five six"] * 3, "label": CATEGORIES},
    "bytes": {"review": BYTES, "label": BYTES},
    "lists": {"review": [[SECRET]] * 6, "label": [[1], [2]] * 3},
    "maps": {"review": [{"a": SECRET}] * 6, "label": [{"a": 1}, {"a": 2}] * 3},
    "times": {"review": [SECRET] * 6, "label": pa.array([1, 2] * 3, pa.timestamp("s"))},
    "nothing": {"review": [SECRET] * 6, "label": pa.nulls(6)},
}


@pytest.mark.parametrize("columns", STRANGE.values(), ids=STRANGE.keys())
def test_strange_columns_of_parquet(tmp_path, monkeypatch, columns):
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table(columns), "t.parquet")
    read_both("t.parquet")


NO_NOTES = {"columns": [1], "index_columns": [], "column_indexes": []}


@fuzz(
    VALUES,
    st.sampled_from([b"pandas", b"PANDAS_ATTRS"]),
    examples=[(DEEP, b"pandas"), (NO_NOTES, b"pandas")],
)
def test_strange_notes_of_parquet(folder, note, key):
    """Parquet files hold notes beside the table, as pandas writes them."""
    text = note if note == DEEP else json.dumps(note)
    pq.write_table(pa.Table.from_pandas(GOOD).replace_schema_metadata({key: text}), "t.parquet")
    read_both("t.parquet")
    if note == NO_NOTES:
        assert "not a readable Parquet file" in refusal(read_frame, "t.parquet")
        assert "not a readable Parquet file" in refusal(read_frame, "t.parquet", folder=folder)


# --- templates, options, corpora ------------------------------------------------------------------

SCHEMA = description(("a", "b"), "label").schema
TOML = st.text(st.characters(codec="utf-8", exclude_characters="/\\"), max_size=60)
TEMPLATE = 'prompt = "{label}"\n'
KEYS = st.sampled_from(["prompt", "wording", "wording.label", "description", "example_values", "x"])
LITERALS = st.sampled_from(
    '"{label}" "{label" "{}{{}}" "a\\u0000.toml" [] [{}] {a=1} {a="x",b="x"} 1e999 nan 1979-05-27'
    " -1 0 true 0.5 {label=[{a=3}]} 12345678901234567890 '' 1_0".split()
    + ["9" * 400, DEEP]
)


@fuzz(TOML, st.dictionaries(KEYS, LITERALS, max_size=3), examples=[("", {"prompt": DEEP})])
def test_any_template(folder, text, entries):
    lines = "".join(f"{key} = {value}\n" for key, value in entries.items())
    for content in (text, TEMPLATE + text, lines, TEMPLATE + lines):
        Path("t.toml").write_text(content, "utf-8")
        settled(lambda: load_template("t.toml", SCHEMA))
    settled(lambda: load_template(text, SCHEMA))
    settled(lambda: load_template(f"{text}.toml", SCHEMA))


@fuzz(TOML, st.sampled_from(list(OPTIONS)), LITERALS, few=60)
def test_any_file_of_options(folder, text, name, value):
    for content in (text, f"{name} = {value}\n"):
        Path("run.toml").write_text(content, "utf-8")
        stored = settled(lambda: read_options(Path("run.toml")))
        if stored is not None:
            settled(lambda: run_config(run_options(stored), any_policy=True))  # noqa: B023


@fuzz(st.sampled_from([".txt", ".txt.gz", ".csv", ".jsonl.gz", ".parquet"]), EDITS, st.booleans())
def test_any_corpus(folder, ending, edits, inside):
    path = folder / f"c{ending}"
    if ending.startswith(".txt"):
        data = "\n\n".join(GOOD["review"]).encode()
        path.write_bytes(gzip.compress(data) if ending.endswith(".gz") else data)
    else:
        write_frame(GOOD, path)
    damage(path, edits, inside)
    settled(lambda: read_corpus([path], text="review", prompts=["Write {label}:"]))


# --- what a run left ------------------------------------------------------------------------------


def places(data, so_far=()):
    """Yield the way to every value inside JSON data."""
    if isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield (*so_far, key)
            yield from places(value, (*so_far, key))


def parent_of(data, way):
    """Return what holds the value to which the keys lead."""
    return functools.reduce(operator.getitem, way[:-1], data)


def changed(data, number: int, value, takes_away: bool):
    """Return data with one value replaced or taken away."""
    data = copy.deepcopy(data)
    way = (ways := list(places(data)))[number % len(ways)]
    if takes_away:
        del parent_of(data, way)[way[-1]]
    else:
        parent_of(data, way)[way[-1]] = value
    return data


CHANGE = (st.integers(0, 10**6), VALUES, st.booleans())


@fuzz(*CHANGE, few=40)
def test_a_ledger_that_was_changed_is_read_or_refused(folder, way, value, takes_away):
    try:
        read = Ledger.from_dict(changed(ledger().to_dict(), way, value, takes_away))
    except ValueError:
        return
    with no_hang():
        guarantee(read)


@fuzz(*CHANGE, few=40)
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


@pytest.mark.parametrize("multiplier", [1e-155, 5e-324, 1e308, 10**400])
def test_noise_out_of_all_reason_is_refused(tmp_path, capsys, multiplier):
    """Such a ledger once kept its reader computing for ever."""
    noise = {"kind": "subsampled_gaussian", "sample_rate": 0.1, "steps": 9}
    event = {**noise, "noise_multiplier": multiplier}
    forge(hand_over(tmp_path), lambda data: data["ledger"]["events"].append(event))
    with no_hang():
        ended = run_twinset(capsys, "verify", tmp_path)
    assert ended.code == 1 and ended.err.startswith("error: ") and ended.err.count("\n") == 1
    for field in ("records", "group_size"):
        with pytest.raises(ValueError, match=f"ledger field '{field}' must be"):
            Ledger.from_dict(ledger().to_dict() | {field: 10**400})


def run_files(root: Path) -> dict[str, object]:
    """Return the JSON files that a run leaves. Its share is laid out already."""
    template = load_template("{label}:", SCHEMA).to_dict()
    accuracy = Measured("utility", reported.share("accuracy", 0.5), {"rows": "twin"})
    step = {"step": 1, "records": 4, "loss": 1.0, "clipped": 0.5, "non_finite": 0, "seconds": 1.0}
    plan = {"plan": {"steps": 3, "batch_size": 4, "learning_rate": 0.1}}
    return {
        "share/privacy.json": json.loads(hand_over(root / "share").privacy.read_text("utf-8")),
        "model/twinset.json": {
            "schema": SCHEMA.to_dict(),
            "template": template,
            "label_counts": [[["a"], 1.0]],
        },
        "internal/config.json": {**RunConfig().to_dict(), **plan},
        "internal/evaluation.json": Findings("evaluation", {"seed": 0}, (accuracy,)).to_dict(),
        "internal/metrics.jsonl": step,
        "internal/noise.json": {"w": 1.0},
    }


def lay_out(run: Path, files: dict[str, object]) -> Path:
    for name, data in files.items():
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text(json.dumps(data), "utf-8")
    return run


@fuzz(st.integers(0, 5), *CHANGE, few=30)
def test_a_run_that_was_changed_is_read_or_refused(folder, which, way, value, takes_away):
    files = run_files(folder / "run")
    name = list(files)[which]
    files[name] = changed(files[name], way, value, takes_away)
    run = lay_out(folder / "run", files)
    settled(lambda: FinishedRun.read(run))
    settled(lambda: Findings.load(run / "internal" / "evaluation.json"))
    settled(lambda: build_report(run))


ELSE = (DEEP, "", "[]", "\x00", "3", '{"a": NaN}')


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "../share/privacy.json"])
def test_files_of_a_run_that_hold_something_else(tmp_path, capsys, name):
    run = lay_out(tmp_path / "run", run_files(tmp_path / "run"))
    for content in ELSE:
        (run / "internal" / name).write_text(content)
        settled(lambda: FinishedRun.read(run))
        settled(lambda: TwinModel.load(run))
        ended = run_twinset(capsys, "report", run)
        assert ended.code in (0, 2) and "Traceback" not in ended.err
        assert "unexpected" not in ended.err


FINDINGS = {one.kind: one.to_dict() for one in (reported.evaluation(), reported.audit())}


@fuzz(st.sampled_from(["evaluation", "audit"]), *CHANGE, few=15)
def test_findings_that_were_changed_are_drawn_or_refused(folder, kind, way, value, takes_away):
    """By hand, say: of an evaluation whose every kind of score and curve is drawn."""
    (folder / "run" / "internal").mkdir(parents=True, exist_ok=True)
    if not (folder / "run" / "share").exists():
        hand_over(folder / "run" / "share")
    data = changed(json.loads(json.dumps(FINDINGS[kind])), way, value, takes_away)
    (folder / "run" / "internal" / f"{kind}.json").write_text(json.dumps(data), "utf-8")
    settled(lambda: build_report(folder / "run"))


# the way to a value of a model's description, and a value that no run wrote there
WRONG = [
    (("label_counts",), []),
    (("label_counts", 0, 1), "5"),
    (("schema", "attributes", 0, "values", 0), [1]),
    (("schema", "attributes", 0, "dtype"), "none such"),
    (("schema", "text_dtype"), 10**400),
    (("schema", "text_dtype"), "S8"),
    (("schema", "text"), "\ud800"),  # half a surrogate pair
    (("schema", "columns"), ["review", "label", "x"]),
    (("template", "pattern"), ""),
    (("template", "pattern"), 1),
    (("template", "wording"), []),
    (("template", "attributes"), ["x"]),
    (("text_tokens",), 10**6),  # more than the model reads
    (("text_tokens",), 0),
    (("text_tokens",), "8"),
]


def test_a_model_whose_description_no_run_wrote_is_refused(tiny_run, tmp_path):
    folder = shutil.copytree(tiny_run / "r" / "model", tmp_path / "model")
    good = (folder / DESCRIPTION).read_text("utf-8")
    for way, value in WRONG:
        data = json.loads(good)
        parent_of(data, way)[way[-1]] = value
        (folder / DESCRIPTION).write_text(json.dumps(data))
        (folder / CHECKSUMS).unlink()
        write_checksums(folder)
        assert "the model folder is damaged" in refusal(TwinModel.load, folder), (way, value)
    (folder / DESCRIPTION).write_text(good)
    write_checksums(folder)
    assert TwinModel.load(folder).text_tokens == 12  # the control


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
