"""The command line end to end, on a tiny base and few steps: what is promised is what is there."""

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from datasets import load_dataset

from tests.helpers.commands import (
    COLUMNS,
    MARKER,
    QUICK,
    ROOT,
    run_python,
    run_twinset,
    snapshot,
    texts,
)
from twinset.commandline.app import app
from twinset.release.verify import verify
from twinset.sampling import allocation
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

# table, file, attributes, output, rows per label wanted, rows expected
RUNS = [
    (LABELLED, "t.csv", ["label"], "o.csv", ["4"], {("pos",): 4, ("neg",): 4}),
    (
        PRODUCED,
        "t.parquet",
        ["product", "label"],
        "o.parquet",
        ["dvd,pos=3", "book,neg=2"],
        {("dvd", "pos"): 3, ("book", "neg"): 2},
    ),
    (STARRED, "t.jsonl", ["stars"], "o.jsonl", ["5=2", "1=3"], {(1,): 3, (5,): 2}),
]
GIVEN = ("t.csv", *COLUMNS, *QUICK)


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


@pytest.mark.parametrize(
    ("table", "file", "attributes", "output", "wanted", "expected"),
    RUNS,
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_generate_keeps_its_promises(place, run, table, file, attributes, output, wanted, expected):
    write_frame(table, file)
    columns = [word for name in attributes for word in ("--attribute", name)]
    wishes = [word for wish in wanted for word in ("--rows-per-label", wish)]
    given = (file, "--text", "review", *columns, *QUICK)
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
    assert loaded.num_rows == len(twin) and loaded.column_names == list(real.columns)
    assert "'id'" in Path("run/internal/notes.txt").read_text()  # a column that was left out


def test_what_a_run_folder_holds_and_who_may_read_it(tiny_run):
    run = tiny_run / "r"
    parts = {part.name: {file.name for file in part.iterdir()} for part in run.iterdir()}
    assert parts["share"] == {"twin.csv", "README.md", "privacy.json", "report.html"}
    assert parts["internal"] == {"config.json", "metrics.jsonl", "notes.txt"}
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
            assert "loss" not in path.read_text(), path


def test_sample_from_the_model_folder_alone(place, tiny_run, capsys):
    shutil.copytree(tiny_run / "r" / "model", "elsewhere")
    command = "sample elsewhere --rows 5 --output o.parquet --quiet --json"
    outcome = run_twinset(capsys, *command.split())
    assert (outcome.code, outcome.err) == (0, "")
    assert json.loads(outcome.out)["rows"] == len(pd.read_parquet("o.parquet")) == 5
    assert verify("o.parquet").guarantee == verify(tiny_run / "r").guarantee
    assert sorted(snapshot(place)) == sorted(
        ["t.csv", "o.parquet", "o.README.md", "o.privacy.json", "elsewhere"]
        + [f"elsewhere/{file.name}" for file in (tiny_run / "r" / "model").iterdir()]
    )


def test_the_halves_make_the_whole(place, run, capsys):
    """No steps are taken, so rows without a tilt are the base model's own, and are called so."""
    assert run("finetune", "--run", "run", "--steps", "0").code == 0
    assert not any(Path("run/share").iterdir())
    early = run_twinset(capsys, "verify", "run")
    assert early.code == 2 and "`twinset sample run` writes one" in early.err
    sample = ("sample", "run", "--quiet", "--rows")
    assert run_twinset(capsys, *sample, 4).code == 0 and verify("run").rows == 4
    before = snapshot(place)
    again = run_twinset(capsys, *sample, 3)
    assert again.code == 2 and "--overwrite" in again.err and snapshot(place) == before
    assert run_twinset(capsys, *sample, 3, "--overwrite").code == 0 and verify("run").rows == 3
    for more, is_warned in (((), False), (("--tilt", "0"), True)):
        made = run_twinset(capsys, *sample, 2, "--overwrite", *more)
        assert (made.code, "the base model's own" in made.err) == (0, is_warned)


def test_default_run_and_rows(place, run, monkeypatch):
    assert allocation.FEWEST_ROWS == 3000
    monkeypatch.setattr(allocation, "FEWEST_ROWS", 130)
    first = json.loads(run("generate", "--json").out)
    assert (first["run"], first["rows"]) == (str(place / "runs" / "t-1"), 130)
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


def test_dry_runs_write_nothing_and_report_guesses(place, run):
    before = snapshot(place)
    for command in ("generate", "finetune"):
        outcome = run(command, "--dry-run", given=["t.csv", *QUICK[:-1]])
        assert outcome.code == 0
        assert "reading texts from column 'review' (guessed" in outcome.err
        assert "reading labels from column 'label' (guessed" in outcome.err
        assert (outcome.out + outcome.err).count("noise multiplier") == 1
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


def test_without_privacy_nothing_is_guaranteed_and_a_quiet_run_keeps_its_log(run):
    more = ("--no-privacy", "--run", "run", "--log-file", "log.txt")
    outcome = run("generate", "--rows", "4", *more)
    assert outcome.code == 0
    assert "No privacy guarantee" in outcome.out
    assert outcome.err.startswith("WARNING") and "step" not in outcome.err
    assert re.search(STEP.format("none"), Path("log.txt").read_text())
    assert verify("run").guarantee.epsilon is None


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
    for more, records in (((), 4000), (("--hold-out", "0.1"), 4500)):
        planned = run("plan", *more, given=("--records", "5000", *quick))
        assert json.loads(planned.out)["records"] == records


def test_verify_prints_and_fails(place, tiny_run, capsys):
    good = run_twinset(capsys, "verify", tiny_run / "r")
    assert (good.code, good.err) == (0, "")
    assert json.loads(run_twinset(capsys, "verify", tiny_run / "r", "--json").out)["rows"] == 6
    shutil.copytree(tiny_run / "r" / "share", "share")
    with open("share/twin.csv", "a") as file:
        file.write("one,more\n")
    bad = run_twinset(capsys, "verify", "share")
    assert bad.code == 1 and len(bad.err.splitlines()) == 1
    assert bad.err.startswith("error: share/twin.csv: was altered")


def commands(app=app, before=()):
    for group in app.registered_groups:
        yield from commands(group.typer_instance, (*before, group.name))
    yield from ((*before, c.name or c.callback.__name__) for c in app.registered_commands)


def test_help_lists_and_version(capsys):
    for command in commands():
        shown = " ".join(run_twinset(capsys, *command, "--help").out.split())
        name = " ".join(word for word in command if word != "release")
        assert f"Example: twinset {name}" in shown
    _, _, after = run_twinset(capsys, "generate", "--help").out.partition("─ For experts ─")
    assert "--importance-beta1" in after and "--steps " not in after and after.count("╭─") == 0
    bare = run_twinset(capsys).out
    assert "generate" in bare and "--install-completion" in bare
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", run_twinset(capsys, "--version").out)
    for command, entry in (("models", "smollm2-135m"), ("prompts", "generic")):
        assert f"{entry}: " in run_twinset(capsys, command).out
        assert entry in json.loads(run_twinset(capsys, command, "--json").out)


def test_a_shell_completes_commands():
    words = {"_TWINSET_COMPLETE": "complete_bash", "COMP_WORDS": "twinset gen", "COMP_CWORD": "1"}
    done = run_python(ROOT / "cli.py", **words)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "generate", "")
