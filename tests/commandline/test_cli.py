"""The command line end to end, on a tiny base and few steps: what is promised is what is there."""

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

import cli
from tests.helpers.commands import (
    MARKER,
    QUICK,
    ROOT,
    run_python,
    run_twinset,
    snapshot,
    texts,
)
from twinset.release.verify import verify
from twinset.table.read import read_frame, write_frame


def column(values, n=60):
    return [values[i % len(values)] for i in range(n)]


def private(**columns):
    return pd.DataFrame({"id": range(60), **columns})


STARRED = private(stars=column([1, 2, 5]), review=texts())
PRODUCED = private(
    label=column(["pos", "neg"]),
    review=texts(),
    product=pd.Categorical([["dvd", "pan", "book"][i // 2 % 3] for i in range(60)]),
)
LABELLED = private(review=texts(), label=column(["pos", "neg"]))
BOTH, OF_BOTH = ["product", "label"], {("dvd", "pos"): 3, ("book", "neg"): 2}

# table, file, attributes, output, rows per label wanted, rows expected
RUNS = [
    (LABELLED, "t.csv", ["label"], "o.csv", ["4"], {("pos",): 4, ("neg",): 4}),
    (PRODUCED, "t.parquet", BOTH, "o.parquet", ["dvd,pos=3", "book,neg=2"], OF_BOTH),
    (STARRED, "t.jsonl", ["stars"], "o.jsonl", ["5=2", "1=3"], {(1,): 3, (5,): 2}),
    (STARRED, "t.csv", ["stars"], "o.parquet", ["2=2"], {(2,): 2}),
]


def columns(attributes):
    return ["--text", "review", *(a for name in attributes for a in ("--attribute", name))]


GIVEN = ("t.csv", *columns(["label"]), *QUICK)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_frame(LABELLED, "t.csv")
    return tmp_path


@pytest.fixture
def run(place, tiny_base, capsys):
    """Run a command that takes the table and the tiny base."""
    return lambda command, *more, given=GIVEN: run_twinset(
        capsys, command, *given, "--base-model", tiny_base, *more
    )


@pytest.fixture(scope="module")
def made(tiny_base, tmp_path_factory):
    """A finished run, made once; its tests only read it."""
    folder = tmp_path_factory.mktemp("made")
    LABELLED.to_csv(folder / "t.csv", index=False)
    command = ["generate", folder / "t.csv", *columns(["label"]), "--base-model", tiny_base, *QUICK]
    assert cli.main([str(a) for a in (*command, "--rows", 6, "--run", folder / "run")]) == 0
    return folder / "run"


@pytest.mark.parametrize(
    ("table", "file", "attributes", "output", "wanted", "expected"),
    RUNS,
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_generate_keeps_its_promises(place, run, table, file, attributes, output, wanted, expected):
    from datasets import load_dataset

    write_frame(table, file)
    wishes = [a for wish in wanted for a in ("--rows-per-label", wish)]
    given = (file, *columns(attributes), *QUICK)
    outcome = run("generate", *wishes, "--output", output, "--run", "run", given=given)
    assert (outcome.code, outcome.err) == (0, "")
    assert MARKER not in outcome.out
    names = [c for c in table if c != "id"]
    if file.endswith("jsonl"):  # where each row has an order of its own
        names = ["review", *attributes]
    real, twin = read_frame(file)[names], read_frame(output)
    assert list(twin.columns) == list(real.columns)
    if output.endswith("parquet"):  # the other formats do not say
        assert [str(d) for d in twin.dtypes] == [str(d) for d in real.dtypes]
    found = twin.groupby(attributes, observed=True).size().to_dict()
    assert {k if isinstance(k, tuple) else (k,): n for k, n in found.items()} == expected
    assert verify("run").rows == verify(output).rows == len(twin)
    assert verify(output).guarantee.epsilon == pytest.approx(8, rel=1e-3)
    loaded = load_dataset(str(place / "run" / "share"), cache_dir=str(place / "cache"))["train"]
    assert loaded.num_rows == len(twin)
    assert loaded.column_names == list(real.columns)


def test_what_a_run_folder_holds(made):
    parts = {part.name: {file.name for file in part.iterdir()} for part in made.iterdir()}
    assert parts["share"] == {"twin.csv", "README.md", "privacy.json", "report.html"}
    assert parts["internal"] == {"config.json", "metrics.jsonl", "notes.txt"}
    assert parts["model"] >= {"model.safetensors", "tokenizer.json", "twinset.json", "ledger.json"}
    assert read_frame(made / "internal/metrics.jsonl")["step"].tolist() == [1, 2, 3]
    stored = json.loads((made / "internal/config.json").read_text())
    assert (stored["training"]["steps"], stored["plan"]["records"]) == (3, 60)
    assert "'id'" in (made / "internal/notes.txt").read_text()


def test_no_private_text_in_any_file(made):
    for path in made.rglob("*"):
        if path.is_file() and path.parent.name != "share":  # a twin may, by chance, say anything
            assert MARKER.encode() not in path.read_bytes(), path
    assert not any(
        "loss" in p.read_text() for p in (made / "share").iterdir() if "twin" not in p.name
    )


def test_sample_from_the_model_folder_alone(place, made, capsys):
    shutil.copytree(made / "model", "elsewhere")
    outcome = run_twinset(
        capsys, "sample", "elsewhere", "--rows", 5, "--output", "o.parquet", "--quiet", "--json"
    )
    assert (outcome.code, outcome.err) == (0, "")
    assert json.loads(outcome.out)["rows"] == len(pd.read_parquet("o.parquet")) == 5
    assert verify("o.parquet").guarantee == verify(made).guarantee
    assert sorted(snapshot(place)) == sorted(
        ["t.csv", "o.parquet", "o.README.md", "o.privacy.json", "elsewhere"]
        + [f"elsewhere/{file.name}" for file in (made / "model").iterdir()]
    )


def test_the_halves_make_the_whole(place, run, capsys):
    assert run("finetune", "--run", "run").code == 0
    assert not any(Path("run/share").iterdir())
    early = run_twinset(capsys, "verify", "run")
    assert early.code == 2 and "`twinset sample run` writes one" in early.err
    assert run_twinset(capsys, "sample", "run", "--rows", "4", "--quiet").code == 0
    assert verify("run").rows == 4
    before = snapshot(place)
    again = run_twinset(capsys, "sample", "run", "--rows", "3", "--quiet")
    assert (again.code, snapshot(place)) == (2, before)
    assert "--overwrite" in again.err
    assert run_twinset(capsys, "sample", "run", "--rows", "3", "--quiet", "--overwrite").code == 0
    assert verify("run").rows == 3


def test_default_run_and_rows(place, run):
    first = json.loads(run("generate", "--json").out)
    assert (first["run"], first["rows"]) == (str(place / "runs" / "t-1"), 3000)
    assert Path(first["twin"]) == place / "runs" / "t-1" / "share" / "twin.csv"
    assert set(first) == {"run", "twin", "rows", "epsilon", "delta", "guarantee"}


def test_the_command_line_wins_over_a_config_file(place, tiny_base, capsys):
    Path("run.toml").write_text(
        f'text = "review"\nattribute = "label"\nbase-model = "{tiny_base}"\n'
        'epsilon = 3\nsteps = 3\nmax-tokens = 12\nrows-per-label = ["pos=1"]\n'
    )
    command = ("generate", "t.csv", "--config", "run.toml", "--dry-run", "--json", "--quiet")
    for more, epsilon in (((), 3), (("--epsilon", "8"), 8), (("--no-privacy",), None)):
        plan = json.loads(run_twinset(capsys, *command, *more).out)
        assert (plan["target_epsilon"], plan["steps"]) == (epsilon, 3)
    assert plan["noise_multiplier"] == 0


@pytest.mark.parametrize("command", ["generate", "finetune"])
def test_dry_run_writes_nothing(place, run, command):
    before = snapshot(place)
    outcome = run(command, "--dry-run")
    assert outcome.code == 0 and "noise multiplier" in outcome.out
    assert snapshot(place) == before


@pytest.mark.parametrize("more", [("--guidance", "1e308"), ("--temperature", "1e-320")])
@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_what_could_draw_no_row_is_refused_before_anything_is_spent(place, run, more, dry):
    before = snapshot(place)
    outcome = run("generate", "--run", "run", *more, *dry)
    assert outcome.code == 2 and len(outcome.err.splitlines()) == 1 and more[0] in outcome.err
    assert snapshot(place) == before


def test_a_prompt_wider_than_the_models_window_is_refused_before_training(
    place, tiny_llama, capsys
):
    base = Path(shutil.copytree(tiny_llama, "base"))
    described = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(described | {"sliding_window": 4}))
    outcome = run_twinset(capsys, "generate", *GIVEN, "--base-model", base, "--run", "run")
    assert outcome.code == 2 and "reads 4 in all" in outcome.err
    assert not Path(".run.partial").exists()


def test_without_privacy_nothing_is_guaranteed(run):
    outcome = run("generate", "--rows", "4", "--no-privacy", "--run", "run")
    assert outcome.code == 0
    assert "No privacy guarantee" in outcome.out
    assert outcome.err.startswith("WARNING")
    assert verify("run").guarantee.epsilon is None


def test_guesses_are_reported(run):
    outcome = run("generate", "--dry-run", given=["t.csv", *QUICK[:-1]])
    assert outcome.code == 0
    assert "reading texts from column 'review' (guessed" in outcome.err
    assert "reading labels from column 'label' (guessed" in outcome.err
    assert (outcome.out + outcome.err).count("noise multiplier") == 1


def test_progress_lines(run):
    outcome = run("generate", "--rows", "4", "--run", "r", given=GIVEN[:-1])
    step = (
        r"step 3/3 \| loss +\d+\.\d+ \| clipped +\d+% \| eps 8\.00/8\.00 \| \S+ rec/s \| eta 00:00"
    )
    assert re.search(step, outcome.err)
    assert re.search(r"rows 4/4 \| \S+/s \| eta 00:00", outcome.err)
    assert MARKER not in outcome.err


@pytest.mark.parametrize("given", [GIVEN, ("--records", "60", *QUICK)], ids=["table", "records"])
def test_plan(place, run, given):
    before = snapshot(place)
    plan = json.loads(run("plan", "--json", given=given).out)
    assert plan["records"] == 60
    assert plan["seconds"] > 0
    assert plan["seconds"] == pytest.approx(sum(seconds for _, seconds in plan["phases"]))
    uniform = plan["policies"]["uniform"]["noise_multiplier"]
    assert uniform == pytest.approx(plan["noise_multiplier"])
    text = run("plan", given=given).out
    for said in ("records N", "time in all", "δ = 1e-05", "--noise-policy adaptive"):
        assert said in text
    assert snapshot(place) == before


def test_plan_of_many_records_holds_some_out_as_the_run_does(run):
    quick = (*QUICK, "--json", "--max-minutes", "1000000")
    for more, records in (((), 4000), (("--hold-out", "0"), 5000), (("--hold-out", "0.1"), 4500)):
        planned = run("plan", *more, given=("--records", "5000", *quick))
        assert json.loads(planned.out)["records"] == records


def test_rows_of_a_base_that_learnt_nothing_are_called_so(place, run, capsys):
    given = ("t.csv", *columns(["label"]), *QUICK, "--run", "r", "--quiet")
    for steps, more, warned in (("0", ("--tilt", "0"), True), ("0", (), False), ("1", (), False)):
        assert run("finetune", "--steps", steps, "--overwrite", given=given).code == 0
        named = ("--rows", "2", "--output", f"{steps}{warned}.csv", "--quiet")
        made = run_twinset(capsys, "sample", "r", *named, *more)
        assert (made.code, "the base model's own" in made.err) == (0, warned)


def test_verify_prints_and_fails(place, made, capsys):
    good = run_twinset(capsys, "verify", made)
    assert (good.code, good.err) == (0, "")
    assert json.loads(run_twinset(capsys, "verify", made, "--json").out)["rows"] == 6
    shutil.copytree(made / "share", "share")
    with open("share/twin.csv", "a") as file:
        file.write("one,more\n")
    bad = run_twinset(capsys, "verify", "share")
    assert bad.code == 1
    assert len(bad.err.splitlines()) == 1
    assert bad.err.startswith("error: share/twin.csv: was altered")


@pytest.mark.parametrize(("command", "entry"), [("models", "smollm2-135m"), ("prompts", "generic")])
def test_lists(capsys, command, entry):
    assert f"{entry}: " in run_twinset(capsys, command).out
    assert entry in json.loads(run_twinset(capsys, command, "--json").out)


def test_version_and_bare_call(capsys):
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", run_twinset(capsys, "--version").out)
    assert "generate" in run_twinset(capsys).out


def test_all_may_read_what_may_be_handed_over_and_nobody_the_rest(made):
    """Once the run folder itself is opened: safetensors writes for its owner alone."""
    modes = {
        part: {path.stat().st_mode & 0o777 for path in (made / part).rglob("*") if path.is_file()}
        for part in ("share", "model", "internal")
    }
    assert modes == {"share": {0o644}, "model": {0o644}, "internal": {0o600}}


def test_a_report_is_written_into_runs_alone(tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("mine")
    ended = run_twinset(capsys, "report", tmp_path)
    assert ended.code == 2 and "no such run" in ended.err and ended.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def commands(app=cli.app, before=()):
    for group in app.registered_groups:
        yield from commands(group.typer_instance, (*before, group.name))
    yield from ((*before, c.name or c.callback.__name__) for c in app.registered_commands)


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_help_ends_with_an_example(capsys, command):
    shown = " ".join(run_twinset(capsys, *command, "--help").out.split())
    name = " ".join(word for word in command if word != "release")
    assert f"Example: twinset {name}" in shown


def test_expert_knobs_stand_in_the_last_panel(capsys):
    _, _, after = run_twinset(capsys, "generate", "--help").out.partition("─ For experts ─")
    assert "--importance-beta1" in after and "--steps " not in after and after.count("╭─") == 0
    assert "--install-completion" in run_twinset(capsys).out


def test_a_shell_completes_commands():
    words = {"_TWINSET_COMPLETE": "complete_bash", "COMP_WORDS": "twinset gen", "COMP_CWORD": "1"}
    done = run_python(ROOT / "cli.py", **words)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "generate", "")


@pytest.mark.parametrize("more", [(), ("--quiet",)])
def test_a_log_file_on_request(place, run, more):
    given = GIVEN[:-1]
    assert run("generate", "--rows", "4", "--log-file", "log.txt", *more, given=given).code == 0
    written = Path("log.txt").read_text()
    assert re.search(r"^20\d\d-\d\d-\d\d \d\d:\d\d:\d\d step 3/3 \| loss", written, re.M)
    assert MARKER not in written and Path("log.txt").stat().st_mode & 0o077 == 0
    refused = run("generate", "--log-file", "none/log.txt", "--dry-run")
    assert refused.code == 2 and "--log-file none/log.txt: cannot be written" in refused.err
