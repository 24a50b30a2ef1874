"""The command line end to end, on a tiny base and few steps: what is promised is what is there."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pandas as pd
import pytest
from datasets import load_dataset
from hypothesis import given as made_of
from hypothesis import settings
from hypothesis import strategies as st
from typer.main import get_command

from evaluation.commands import _show_findings
from evaluation.findings import Findings, Measured, proportion
from tests.helpers.commands import (
    COLUMNS,
    MARKER,
    QUICK,
    ROOT,
    call,
    run_python,
    snapshot,
    texts,
)
from tests.helpers.refusals import refusal
from twinset.commandline.app import app
from twinset.commandline.common import read_pairs, show
from twinset.commandline.console import Console, Screen
from twinset.commandline.entry_point import with_flags
from twinset.errors import InputError, VerificationError
from twinset.files.atomic import write_checksums
from twinset.release.share import COMPANIONS, PRIVACY
from twinset.release.verify import verify
from twinset.table.read import read_frame, write_frame


def private(**columns):
    return pd.DataFrame({"id": range(60), **columns})


LABELLED = private(review=texts(), label=["pos", "neg"] * 30)
STARRED = private(stars=[1, 2, 5] * 20, review=texts())
PRODUCED = private(
    label=["pos", "neg"] * 30,
    review=texts(),
    product=pd.Categorical([["dvd", "pan", "book"][i // 2 % 3] for i in range(60)]),
)

# table, format, attributes, values of the first, and rows per label that are asked for
WISHES = {("dvd", "pos"): 3, ("book", "neg"): 2}
RUNS = [
    (PRODUCED, "parquet", ["product", "label"], "book,dvd,pan", WISHES),
    (STARRED, "jsonl", ["stars"], "1,2,5", {(1,): 3, (5,): 2}),
]
CHEAP = ("--marginal-share", "0", "--teacher-share", "0", *QUICK)
GIVEN = ("t.csv", *COLUMNS, *CHEAP)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_frame(LABELLED, "t.csv")
    return tmp_path


@pytest.fixture
def run(place, tiny_base):
    """Run a command that takes the table and the tiny base."""
    return lambda command, *more, given=GIVEN: call(
        command, *given, "--base-model", tiny_base, *more
    )


@pytest.mark.parametrize(("table", "ending", "attributes", "own", "wanted"), RUNS, ids=["two", "1"])
def test_generate_keeps_its_promises(place, run, table, ending, attributes, own, wanted):
    file, output = f"t.{ending}", f"o.{ending}"
    write_frame(table, file)
    columns = [word for name in attributes for word in ("--attribute", name)]
    # twenty records are few for the noise of a selection
    declared = ("--labels", f"{attributes[0]}={own}")
    each = [f"{','.join(map(str, values))}={rows}" for values, rows in wanted.items()]
    wishes = [word for wish in each for word in ("--rows-per-label", wish)]
    # with noise for so few records any other column may be kept or not
    given = (file, "--text", "review", *columns, *CHEAP, *declared, "--columns", "none")
    outcome = run("generate", *wishes, "--output", output, "--run", "run", given=given)
    assert (outcome.code, outcome.err) == (0, "")
    assert MARKER not in outcome.out
    names = [c for c in table if c != "id"]
    if ending == "jsonl":  # where each row has an order of its own
        names = ["review", *attributes]
    real, twin = read_frame(file)[names], read_frame(output)
    assert list(twin.columns) == list(real.columns)
    if ending == "parquet":  # the other formats do not say
        assert [str(d) for d in twin.dtypes] == [str(d) for d in real.dtypes]
    found = twin.groupby(attributes, observed=True).size().to_dict()
    assert {k if isinstance(k, tuple) else (k,): n for k, n in found.items()} == wanted
    assert verify("run").rows == verify(output).rows == len(twin)
    assert verify(output).guarantee.epsilon == pytest.approx(8, rel=1e-3)
    loaded = load_dataset(str(place / "run" / "share"), cache_dir=str(place / "cache"))["train"]
    assert loaded.num_rows == len(twin) and loaded.column_names == list(real.columns)
    assert "'id'" in Path("run/internal/notes.txt").read_text()  # a column that was left out


def test_what_a_run_folder_holds_and_who_may_read_it(tiny_run):
    run = tiny_run / "r"
    parts = {part.name: {file.name for file in part.iterdir()} for part in run.iterdir()}
    assert parts["share"] == {"twin.csv", PRIVACY, *COMPANIONS.values()}
    assert parts["internal"] == {
        "config.json",
        "measured-noise.jsonl",
        "metrics.jsonl",
        "notes.txt",
    }
    assert parts["model"] >= {"model.safetensors", "tokenizer.json", "twinset.json", "ledger.json"}
    assert read_frame(run / "internal/metrics.jsonl")["step"].tolist() == [1, 2, 3]
    stored = json.loads((run / "internal/config.json").read_text())
    assert (stored["training"]["steps"], stored["plan"]["records"]) == (3, 60)
    for path in filter(Path.is_file, run.rglob("*")):
        # safetensors writes for its owner alone, and what may be handed over is for all
        mode = 0o600 if path.parent.name == "internal" else 0o644
        assert path.stat().st_mode & 0o777 == mode, path
        if path.parent.name != "share":  # a twin may, by chance, say anything
            assert MARKER.encode() not in path.read_bytes(), path
        elif "twin" not in path.name:
            # a registry's own words are not those of training
            assert "loss" not in re.sub("privacy[_ ]loss", "", path.read_text()), path


def test_sample_from_the_model_folder_alone(place, tiny_run):
    shutil.copytree(tiny_run / "r" / "model", "elsewhere")
    command = "sample elsewhere --rows 5 --output o.parquet --quiet --json"
    outcome = call(*command.split())
    assert (outcome.code, outcome.err) == (0, "")
    assert json.loads(outcome.out)["rows"] == len(pd.read_parquet("o.parquet")) == 5
    assert verify("o.parquet").guarantee == verify(tiny_run / "r").guarantee
    assert json.loads(call("verify", "o.parquet", "--json").out)["rows"] == 5
    assert sorted(snapshot(place)) == sorted(
        ["t.csv", "o.parquet", "o.README.md", "o.privacy.json", "elsewhere"]
        + ["o.croissant.json", "o.deployment.yaml"]
        + [f"elsewhere/{file.name}" for file in (tiny_run / "r" / "model").iterdir()]
    )


def shows_one_sentence(outcome) -> str:
    """The card that is named, if the guarantee is one sentence on the terminal."""
    assert outcome.code == 0, outcome.err
    *_, sentence, pointer = outcome.out.splitlines()
    assert "differentially private for each record" in sentence and len(sentence) < 450
    assert "Taken as public" not in outcome.out and sum(map(len, outcome.out.splitlines())) < 800
    card = pointer.rpartition(": ")[2]
    assert "Taken as public" in Path(card).read_text("utf-8")
    return card


def test_the_halves_make_the_whole(place, run):
    trained = run("finetune", "--run", "run", "--steps", "0")
    assert shows_one_sentence(trained).endswith("/run/model/README.md")
    assert not any(Path("run/share").iterdir())
    early = call("verify", "run")
    assert early.code == 2 and "`twinset sample` writes it" in early.err
    sample = ("sample", "run", "--quiet", "--rows")
    assert shows_one_sentence(call(*sample, 4)) == "run/share/README.md"
    assert verify("run").rows == 4
    other = call(*sample, 2, "--output", "o.csv")
    assert shows_one_sentence(other) == "o.README.md"
    before = snapshot(place)
    again = call(*sample, 3)
    assert again.code == 2 and "--overwrite" in again.err and snapshot(place) == before
    assert call(*sample, 3, "--overwrite").code == 0 and verify("run").rows == 3


def test_the_command_line_wins_over_a_config_file(place, tiny_base):
    Path("run.toml").write_text(
        f'text = "review"\nattribute = "label"\nbase-model = "{tiny_base}"\n'
        'epsilon = 6\nsteps = 3\nmax-tokens = 12\nrows-per-label = ["pos=1"]\n'
    )
    command = ("generate", "t.csv", "--config", "run.toml", "--dry-run", "--json", "--quiet")
    for more, epsilon in (((), 6), (("--epsilon", "8"), 8), (("--no-privacy",), None)):
        plan = json.loads(call(*command, *more).out)
        assert (plan["target_epsilon"], plan["steps"]) == (epsilon, 3)
    assert plan["noise_multiplier"] == 0


def test_plans_and_dry_runs_write_nothing_and_report_guesses(place, run):
    before = snapshot(place)
    for command in ("generate", "finetune"):
        outcome = run(command, "--dry-run", given=["t.csv", *QUICK[:-1]])
        assert outcome.code == 0
        assert "reading texts from column 'review' (guessed" in outcome.err
        assert "reading labels from column 'label' (guessed" in outcome.err
    plan = json.loads(run("plan", "--json").out)
    assert plan["records"] == 60 and plan["seconds"] > 0
    text = run("plan").out
    for said in ("records N", "time in all", "δ = 1e-05", "--noise-policy adaptive"):
        assert said in text
    assert snapshot(place) == before


STEP = r"step 3/3 \| loss +\d+\.\d+ \| clipped +\d+% \| eps {} \| \S+ rec/s \| eta 00:00"


def test_progress_and_its_log(run):
    given = GIVEN[:-1]
    outcome = run("generate", "--rows", "4", "--run", "r", "--log-file", "log.txt", given=given)
    assert outcome.code == 0
    step = STEP.format("8.00/8.00")
    assert re.search(step, outcome.err) and MARKER not in outcome.err
    assert re.search(r"rows 4/4 \| \S+/s \| eta 00:00", outcome.err)
    written = Path("log.txt").read_text()
    assert re.search(rf"^20\d\d-\d\d-\d\d \d\d:\d\d:\d\d {step}", written, re.M)
    assert MARKER not in written and Path("log.txt").stat().st_mode & 0o077 == 0


def test_help_lists_and_version():
    shown = call("sample", "--help").out
    assert "Example: twinset sample runs/reviews" in shown and "--output" in shown
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", call("--version").out)


# -- label values in options ----------------------------------------------------------------------

NAMES = st.text(st.characters(exclude_characters="="), min_size=1)
VALUES = st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"]), min_size=1)
ODD = st.sampled_from([" a", "a ", "@a", 'a"b', '"', "a,b", "a'b", "$(a)", "\\", "a b"])


@settings(deadline=None)
@made_of(NAMES, st.lists(VALUES | ODD, min_size=1, max_size=5))
def test_a_proposal_is_read_as_it_was_meant(name, values):
    proposed = str({name: values}).replace("`", "\\x60")  # a message's quotes
    _, word = shlex.split(with_flags(f"`labels={proposed}`"))
    assert read_pairs([word], "labels") == {name: values}


@pytest.mark.parametrize(
    "text", ["{", "{\x1b", "{}", "{1", "{'a': 'b'}", "{'a': 1}", "{[]: []}", "{" * 999]
)
def test_braces_of_others_in_a_message_stay_as_they_are(text):
    assert with_flags(f"the file says `x={text}`") == f"the file says `x={text}`"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_file_of_labels_has_one_a_line(tmp_path, end):
    (tmp_path / "v.txt").write_bytes(f"\ufeffa b{end}{end}c,d{end}".encode())
    found = read_pairs([f"city=@{tmp_path}/v.txt"], "labels")
    assert found == {"city": ["a b", "c,d"]}


def test_malformed_labels_and_bins_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for given_labels in ("city", "=a,b", "city=", "city=@", "city=a\rb"):
        assert all(refusal(read_pairs, [given_labels], o)[1:7] == o for o in ("labels", "values"))
    for given_bins in ("stars", "stars=a,b", "stars=1,,2", "=1,2,3", "stars=1\r2"):
        assert refusal(read_pairs, [given_bins], "bins").startswith("`bins")


LONG_ONES = ("generate", "finetune", "plan", "sample", "compare", "audit canaries")


@pytest.mark.parametrize("command", LONG_ONES)
def test_help_fits_a_screen_and_help_all_has_every_option(monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    short, whole = (call(*command.split(), more) for more in ("--help", "--help-all"))
    assert (short.code, whole.code) == (0, 0) and short.out.count("\n") <= 60
    flags = [set(re.findall(r"(?<=│ )--[a-z][\w-]+", each.out)) for each in (short, whole)]
    found = get_command(app)  # what the command itself takes
    for name in command.split():
        found = found.commands[name]
    every = {flag for param in found.params for flag in param.opts if flag.startswith("--")}
    assert flags[1] >= every > flags[0] - {"--help"} and "--help-all" in flags[0]
    assert {"--quiet", "--help"} < flags[0] and len(flags[0]) <= 22
    page = (ROOT / "docs" / "cli.md").read_text("utf-8")
    section = page.split(f"`twinset {command}`")[1].split("\n## ")[0]
    assert [flag for flag in sorted(every) if f"`{flag}" not in section] == []


WITHOUT_TORCH = """
import sys
import cli
class NoTorch:
    def find_spec(name, *rest):
        if name == "torch":
            raise ImportError
sys.meta_path.insert(0, NoTorch)
for line in sys.argv[1:]:
    print(">", line, file=sys.stderr)
    cli.main(line.split())
"""
SLOW_TO_START = (
    *("generate t.csv", "finetune t.csv", "sample r", "plan --records 9", "demo", "compare t.csv"),
    *("evaluate t.csv --train t.csv", "audit t.csv --members t.csv", "audit canaries t.csv"),
)


def test_loading_libraries_is_announced_first(good_table):
    """They take ten seconds."""
    said = run_python("-c", WITHOUT_TORCH, *SLOW_TO_START).stderr.split("> ")[1:]
    assert len(said) == len(SLOW_TO_START)
    for each in said:
        command, first, *rest = each.splitlines()
        assert first == "loading libraries" and "unexpected ImportError" in rest[-1], command


# -- text of others --------------------------------------------------------------------------------

# It erases the screen, fills the clipboard and turns text around.
STEERING = "\x1b[2J\x1b]52;c;eA==\x07 \x9b31m \u202e done"


@pytest.mark.parametrize("as_json", [False, True])
def test_what_others_wrote_does_not_steer_the_terminal(capsys, tmp_path, as_json):
    show({"model": STEERING}, [f"model: {STEERING}", "two\nlines"], as_json)
    place = {"label": STEERING, "classifier": STEERING, "rows": STEERING}
    scores = tuple(Measured("utility", proportion("accuracy", n, 100), place) for n in (70, 90))
    _show_findings(Findings("evaluation", {}, scores, notes=(STEERING,)), as_json)
    with Console(log_file=tmp_path / "log") as progress:
        progress.say(STEERING)
        progress.warn(STEERING)
        progress.count(STEERING, 2, 2, more=STEERING)
    out, err = capsys.readouterr()
    assert "done" in out and err.count("done") == 4
    logged = (tmp_path / "log").read_text()
    assert (out + err + logged).replace("\n", "").isprintable() and not STEERING.isprintable()
    if as_json:
        assert json.loads(out.splitlines()[0]) == {"model": STEERING}


def test_a_live_line_and_an_error_do_not_steer_the_terminal(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Console() as progress:
        progress.count(STEERING, 1, 2)
        Screen().print(f"[link=https://a.b]{STEERING}[/link]")
    out, err = capsys.readouterr()
    assert "done" in out and "done" in err
    for shown in (out, err, str(InputError(STEERING)), str(VerificationError(STEERING))):
        assert not re.search("\x1b\\[2J|\x1b\\]|\x07|\x9b|\u202e", shown)


@pytest.mark.parametrize("part", ["ledger", "label", "name"])
def test_a_model_folder_of_others_does_not_steer_the_terminal(tiny_run, tmp_path, part):
    run = shutil.copytree(tiny_run / "r", tmp_path / "r")
    file = run / "model" / ("ledger.json" if part == "ledger" else "twinset.json")
    plain = json.loads(file.read_text("utf-8").replace('"pos"', json.dumps(f"pos{STEERING}")))
    if part == "ledger":
        plain["public_inputs"].append(STEERING)
    if part == "name":
        plain = json.loads(file.read_text("utf-8")) | {"base_name": STEERING}
    file.write_text(json.dumps(plain))
    write_checksums(run / "model")
    one = ("sample", run, "--rows", "1", "--output", tmp_path / "o.jsonl")
    for command in (one, ("verify", tmp_path / "o.jsonl"), ("verify", run), ("report", run)):
        told = call(*command)
        assert (told.out + told.err).replace("\n", "").isprintable()
        if command == one and part != "name":
            assert told.code == 2 and told.err.count("\n") == 1 and "damaged" in told.err
        elif command == one:
            assert told.code == 0, told.err  # the control: it was read and used
