"""The Python interface: its examples run, its messages name parameters."""

import csv
import inspect
import logging
import os
import random
import re
import shutil
import signal
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from datasets import Dataset, DatasetDict

from evaluation.findings import Findings
from tests.helpers.commands import snapshot, texts
from tests.helpers.evaluated import without_downloads
from tests.helpers.handover import FULL_BATCH, NO_PRIVACY, ledger
from twinset.api import Twinset, generate
from twinset.commandline import console
from twinset.config.options import OPTIONS
from twinset.errors import InputError
from twinset.privacy.accounting.events import MaskedAccess
from twinset.privacy.statement.guarantee import guarantee
from twinset.release.share import COMPANIONS
from twinset.release.verify import verify

QUICK = {"steps": 2, "batch_size": 8, "max_tokens": 12, "max_redraws": 100, "epsilon": 50}
PRIVATE = pd.DataFrame({"review": texts(), "sentiment": ["good", "bad"] * 30})


@pytest.fixture
def frame():
    return PRIVATE.assign(customer=[i // 3 for i in range(60)])


@pytest.fixture(scope="module")
def model(tiny_base) -> Twinset:
    """A model fitted to the two columns. Tests may sample from it."""
    return Twinset(base_model=str(tiny_base), **QUICK).fit(PRIVATE, "review", "sentiment")


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "model"
    model.save(folder)
    return folder


@pytest.fixture(autouse=True)
def no_downloads(monkeypatch):
    without_downloads(monkeypatch)


def example_of(documented) -> str:
    """The code in a docstring's example: the lines that are indented twice."""
    after = inspect.getdoc(documented).partition("Example:\n")[2]
    lines = re.split(r"\n\w+:\n", after)[0].splitlines()
    return "\n".join(line[8:] for line in lines if line.startswith(" " * 8))


class Quick(Twinset):
    """The interface with a tiny base and the steps of a test."""

    base = ""

    def __init__(self, **options):
        super().__init__(base_model=self.base, **(options | QUICK))


DOCUMENTED = {
    "Twinset": Twinset,
    "generate": generate,
    **{name: getattr(Twinset, name) for name in "plan fit sample evaluate audit share".split()},
}
DONE = {  # what an example leaves among its names, or in its folder
    "Twinset": lambda names: len(names["twin"]) == 10,
    "sample": lambda names: len(names["more"]) == 10,
    "evaluate": lambda names: set(names["scores"].question) == {"utility", "fidelity"},
    "audit": lambda names: {"model", "released rows"} <= set(names["scores"].sees),
    "share": lambda names: verify("shared").rows == 10,
    "plan": lambda names: names["plan"].plan.records == 10_000,
    "generate": lambda names: names["made"].rows == 10 and Path("twin.csv").is_file(),
}
LONG = [pytest.param(name, marks=pytest.mark.slow) for name in ("evaluate", "audit")]


@pytest.mark.parametrize("name", [*sorted(DOCUMENTED.keys() - {"evaluate", "audit"}), *LONG])
def test_the_examples_run(frame, tiny_base, saved, tmp_path, monkeypatch, name):
    code = example_of(DOCUMENTED[name]).replace("epsilon=8", "epsilon=50")
    for rows in ("1000", "2000", "500"):
        code = re.sub(rf"\b{rows}\b", "10", code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Quick, "base", str(tiny_base))
    if "owner" not in code:  # else the run asks whose the rows are
        frame = frame.drop(columns="customer")
    frame.to_csv("reviews.csv", index=False)
    frame.assign(review=frame.review + " It was late.").to_csv("heldout.csv", index=False)
    shutil.copytree(saved, "model")
    short = {k: v for k, v in QUICK.items() if k != "epsilon"}
    quick = partial(generate, base_model=str(tiny_base), **short)
    names = {"Twinset": Quick, "generate": quick, "frame": frame}
    exec(compile(code, name, "exec"), names)
    assert DONE.get(name, bool)(names)


NAMED = PRIVATE.rename(columns={"review": "text", "sentiment": "label"})


def test_every_form_of_a_table_makes_the_same_model(tiny_base, tmp_path):
    same = QUICK | {"insecure_noise_seed": 1, "seed": 2, "prompt": "A {label} one:"}
    same |= {"steps": 1, "marginal_share": 0, "teacher_share": 0}
    NAMED.to_csv(tmp_path / "t.csv", index=False)
    given = [
        (NAMED, "text", "label"),
        (tmp_path / "t.csv", "text", "label"),
        (Dataset.from_pandas(NAMED), "text", "label"),
        (pa.Table.from_pandas(NAMED.set_index("text")), "text", "label"),
        (NAMED.text.to_numpy(), NAMED.label),
        (NAMED.to_dict("list"), "text", "label"),
        (NAMED.to_dict("records"), "text", "label"),
    ]
    first, *others = (
        Twinset(base_model=str(tiny_base), **same).fit(*data).model.model.state_dict()
        for data in given
    )
    for other in others:
        assert first.keys() == other.keys()
        assert all(first[name].equal(other[name]) for name in first)


@pytest.mark.parametrize(("command", "done"), [("evaluate",) * 2, ("audit", "audit_release")])
def test_every_form_of_a_table_is_measured(model, saved, tmp_path, monkeypatch, command, done):
    twin, rows, numbers = model.sample(8), [], PRIVATE.assign(sentiment=[0, 1] * 30)

    def keep(release, request, *more):
        path, *_ = vars(request).values()
        rows[:] = release.twin.frame.to_dict("list"), pd.read_parquet(path).to_dict("list")
        return Findings("audit", {})

    monkeypatch.setattr(f"evaluation.evaluate.{done}", keep)
    PRIVATE.to_csv(tmp_path / "t.csv", index=False)
    twin.to_parquet(tmp_path / "twin.parquet")
    data = Dataset.from_pandas(PRIVATE)
    forms = [PRIVATE, data, data.data.table, *map(PRIVATE.to_dict, ("list", "records"))]
    for measure in (getattr(each, command) for each in (model, Twinset.load(saved))):
        for form in (*forms, tmp_path / "t.csv"):
            for written in (twin, tmp_path / "twin.parquet"):
                assert measure(written, form, form).empty
                assert rows == [twin.to_dict("list"), PRIVATE.to_dict("list")]
        for wrong, message in ((5, "a list of texts needs"), (numbers, "this table has numbers")):
            with pytest.raises(InputError, match=message):
                measure(twin, wrong, PRIVATE)


def settings_of_the_process() -> dict:
    """What libraries keep once for all threads, as far as a run changes it."""
    kept = list(sys.path), "kernels" in sys.modules, sys.modules["__main__"], dict(os.environ)
    return {
        "numbers": (torch.get_num_threads(), csv.field_size_limit(), logging.root.manager.disable),
        "drawn": (torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())),
        "kept": (*kept, list(warnings.filters), torch.get_default_dtype()),
        "handlers": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
    }


def test_threads_take_turns_and_the_process_stays_as_it_was(tiny_base, tmp_path):
    path, before = tmp_path / "t.csv", settings_of_the_process()
    PRIVATE.to_csv(path, index=False)

    def made(seed: int) -> pd.DataFrame:
        same = QUICK | {"insecure_noise_seed": seed, "seed": seed, "steps": 1}
        return Twinset(base_model=str(tiny_base), progress=False, **same).fit(path).sample(4)

    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(made, range(4)))
    assert settings_of_the_process() == before
    assert all(made(seed).equals(twin) for seed, twin in enumerate(together))


def test_a_saved_model_replaces_another_and_nothing_else(model, tmp_path):
    for _ in range(2):
        model.save(tmp_path / "model")
    assert Twinset.load(tmp_path / "model").guarantee == model.guarantee
    (tmp_path / "model" / "mine.csv").write_text("private")
    (tmp_path / "t.csv").write_text("private")
    before, twin = snapshot(tmp_path), model.sample(2)
    for place in (tmp_path, tmp_path / "model", tmp_path / "t.csv"):
        with pytest.raises(InputError, match="holds files that are not a model"):
            model.save(place)
        with pytest.raises(InputError, match="is not empty"):
            model.share(twin, place)
    assert snapshot(tmp_path) == before
    (tmp_path / "model" / "mine.csv").unlink()
    model.share(twin, tmp_path / "share")
    assert verify(tmp_path).checked[-1].startswith("model: the files whose hashes")


def test_a_twin_goes_to_the_hub_with_its_card_or_not_at_all(model, monkeypatch):
    pushed, asked = {}, []

    def upload(self, repo_id, repo_type, folder_path):
        files = {path.name: path.read_bytes() for path in Path(folder_path).iterdir()}
        pushed[repo_id, repo_type] = files

    monkeypatch.setattr("huggingface_hub.HfApi.upload_folder", upload)
    monkeypatch.setattr(
        "huggingface_hub.HfApi.create_repo", lambda self, name, **more: asked.append(more) or name
    )
    twin = model.sample(6)
    assert model.push_to_hub("me/twin", twin) == "me/twin"
    (files,) = pushed.values()
    assert set(files) == {"privacy.json", "twin.parquet", *COMPANIONS.values()}
    assert asked == [{"repo_type": "dataset", "private": True}]
    assert b"differentially private" in files["README.md"]
    with pytest.raises(InputError, match="60 of 60 rows were not returned"):
        model.push_to_hub("me/twin", PRIVATE)
    flagged = ledger((MaskedAccess("patterns"), *FULL_BATCH), policy="selective")
    for spent in (ledger(NO_PRIVACY), flagged):
        monkeypatch.setattr(Twinset, "guarantee", guarantee(spent))
        with pytest.raises(InputError, match="this model protects"):
            model.push_to_hub("me/twin", twin)
    assert len(pushed) == 1


def test_rows_that_the_model_did_not_write_get_no_card(model, tmp_path):
    """The private table has the columns of a twin, and is none."""
    first, second = model.sample(6), model.sample(6, seed=1)
    assert first.equals(model.sample(6)) and not first.equals(second)
    both = pd.concat([first, second.astype("object")]).sample(frac=0.5, random_state=0)
    model.share(both, tmp_path / "both")
    assert verify(tmp_path / "both").rows == 6
    mixed = pd.concat([first, PRIVATE.head(1)])
    changed = first.assign(sentiment=first.sentiment.map({"good": "bad", "bad": "good"}))
    more = pd.concat([second, second.head(1)])  # one row oftener than it was sampled
    for table, others in ((PRIVATE, 60), (mixed, 1), (changed, 6), (more, 1)):
        with pytest.raises(InputError, match=f"{others} of {len(table)} rows were not returned"):
            model.share(table, tmp_path / "none")
    with pytest.raises(InputError, match="format=xlsx"):
        model.share(both, tmp_path / "none", "xlsx")
    assert not (tmp_path / "none").exists()


def test_what_else_a_table_holds_is_not_handed_over(model, tmp_path):
    """Texts of private rows stay in a column's categories when those rows are left out."""
    twin = model.sample(6)
    both = pd.concat([PRIVATE, twin]).astype({"review": "category"})
    both.attrs["note"] = "SECRET"
    file = model.share(both.iloc[60:], tmp_path / "shared")
    written = file.read_bytes()
    both.iloc[60:].to_parquet(tmp_path / "as-it-is.parquet", compression=None)
    assert b"The film of" in (tmp_path / "as-it-is.parquet").read_bytes()  # the control
    assert b"The film of" not in written and b"SECRET" not in written
    assert sorted(pd.read_parquet(file).review) == sorted(twin.review)


GUESSED = PRIVATE.rename(columns={"review": "text"}).assign(id=range(60))


@pytest.mark.parametrize("progress", [True, False])
def test_notes_and_progress_go_to_stderr_unless_they_are_switched_off(
    tiny_base, tmp_path, capsys, progress
):
    cheap = QUICK | {"marginal_share": 0, "teacher_share": 0, "base_model": str(tiny_base)}
    listening = {} if progress else {"progress": False}
    model = Twinset(**cheap, **listening).fit(GUESSED)
    model.sample(4)
    made = generate(GUESSED, rows=4, run=tmp_path / "run", **cheap, **listening)
    out, err = capsys.readouterr()
    assert out == "" and ((err == "") is not progress)
    if progress:
        assert err.count("become public by noisy counts") == 2 and "'good'" in err
        assert re.search("guess.*text", err) and "step 2/2" in err and "rows 4/4" in err
        assert "--" not in err and "\x1b" not in err  # parameters, and no terminal
    shown = repr(made), repr(model), repr(model.guarantee), repr(model.plan(records=100))
    assert "4 rows in" in shown[0] and "ε = " in shown[0]
    assert [text.count("\n") for text in shown[:3]] == [0, 0, 0] and max(map(len, shown[:3])) < 300
    assert "noise multiplier" in shown[3]


def test_a_notebook_gets_a_bar_of_plain_characters(capsys, monkeypatch):
    """It writes one line over and over: notebooks know the carriage return and hardly more."""
    monkeypatch.setattr(console, "_is_jupyter", lambda: True)
    with console.Console(is_shell=False) as progress:
        for done in (1, 2):
            progress.count("rows", done, 2)
        progress.say("`hold_out=0` trains on all")
    out, err = capsys.readouterr()
    assert out == "" and err.endswith("\n`hold_out=0` trains on all\n") and "\x1b" not in err
    half, whole = err.split("\n")[0].split("\r")[1:]
    assert half.startswith("━" * 10 + "╶" * 10 + " rows 1/2") and whole.startswith(
        "━" * 20 + " rows"
    )


def test_no_option_goes_by_its_place_and_a_run_without_privacy_says_so(tiny_base, capsys):
    with pytest.raises(TypeError, match="positional"):
        Twinset(8)  # an ε, or a base model?
    cheap = {"steps": 0, "max_tokens": 12, "marginal_share": 0, "teacher_share": 0}
    for private in (True, False):
        options = cheap | ({"epsilon": 50} if private else {})
        made = Twinset(base_model=str(tiny_base), private=private, **options).fit(PRIVATE)
        said = capsys.readouterr().err
        assert ("WARNING: privacy is switched off" in said) is not private
        assert ("No privacy guarantee" in repr(made)) is not private


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda f: Twinset(top_p=3.0), "`top_p` must be a number from"),
        (lambda f: Twinset(epsilon=None), "^`epsilon` must be a number"),
        (lambda f: Twinset(epsilon=8, private=False), "Leave it out with `private=False`"),
        (lambda f: Twinset(hold_out=0.2), "^`hold_out` describes the table, the run or its rows"),
        (lambda f: Twinset(max_records_per_owner=2).fit(f, "review"), "nothing without `owner`"),
        (lambda f: Twinset().fit(f, "review", "sentiment", "nobody"), "Check `owner`.$"),
        (lambda f: Twinset().sample(3), "nothing has been fitted yet"),
        (lambda f: generate(f, rows=0), "^`rows` must be a whole number"),
        (lambda f: Twinset().fit(f, "review", 5), "no column 5"),
        (lambda f: Twinset().fit(f, "nobody", None), "no column 'nobody'"),
        (lambda f: Twinset().fit(["a"], ["b", "c"]), "labels"),
        (lambda f: Twinset().fit({"train": f, "test": f}), "splits. Give one of them: train, test"),
        (lambda f: Twinset().fit(DatasetDict(test=Dataset.from_pandas(f))), "splits. .*: test"),
        (lambda f: Twinset().fit({"a": "x", "b": ["y"]}), "lists that are equally long"),
        (lambda f: Twinset().fit(f, 0), "`text` must be the name of a column"),
        (lambda f: Twinset().fit(f.set_axis([0, 1, 2], axis=1)), "frame.columns = "),
    ],
)
def test_messages_name_parameters(frame, call, said):
    with pytest.raises(InputError, match=said) as refused:
        call(frame)
    message = str(refused.value)
    assert not [flag for flag in (o.flag for o in OPTIONS.values()) if flag in message], message
