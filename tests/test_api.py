"""The Python interface: its examples run, its types hold, its messages name parameters."""

import inspect
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from datasets import Dataset, DatasetDict

from tests.helpers.commands import snapshot, texts
from tests.helpers.evaluated import without_downloads
from tests.helpers.handover import FULL_BATCH, NO_PRIVACY, ledger
from twinset.api import Twinset, generate
from twinset.config.options import OPTIONS
from twinset.errors import InputError
from twinset.privacy.accounting.events import MaskedAccess
from twinset.privacy.statement.guarantee import guarantee
from twinset.release.verify import verify

ROOT = Path(__file__).parents[1]
QUICK = {"steps": 2, "batch_size": 8, "max_tokens": 12, "max_redraws": 100, "epsilon": 50}
PRIVATE = pd.DataFrame({"review": texts(), "sentiment": ["good", "bad"] * 30})


@pytest.fixture
def frame():
    return PRIVATE.assign(customer=[i // 3 for i in range(60)])


@pytest.fixture(scope="module")
def model(tiny_base) -> Twinset:
    """A model fitted to the two columns. Tests may sample from it."""
    return Twinset(str(tiny_base), **QUICK).fit(PRIVATE, "review", "sentiment")


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
        super().__init__(self.base, **(options | QUICK))


DOCUMENTED = {
    "Twinset": Twinset,
    "generate": generate,
    **{name: getattr(Twinset, name) for name in "plan fit sample evaluate audit share".split()},
}
LONG = [pytest.param(name, marks=pytest.mark.slow) for name in ("evaluate", "audit")]


@pytest.mark.parametrize("name", [*sorted(DOCUMENTED.keys() - {"evaluate", "audit"}), *LONG])
def test_the_examples_run(frame, tiny_base, saved, tmp_path, monkeypatch, name):
    code = example_of(DOCUMENTED[name]).replace("epsilon=8", "epsilon=50")
    for rows in ("1000", "2000", "500"):
        code = re.sub(rf"\b{rows}\b", "10", code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Quick, "base", str(tiny_base))
    frame.to_csv("reviews.csv", index=False)
    frame.assign(review=frame.review + " It was late.").to_csv("heldout.csv", index=False)
    shutil.copytree(saved, "model")
    short = {k: v for k, v in QUICK.items() if k != "epsilon"}
    quick = partial(generate, base_model=str(tiny_base), **short)
    names = {"Twinset": Quick, "generate": quick, "frame": frame}
    exec(compile(code, name, "exec"), names)
    match name:
        case "Twinset":
            assert len(names["twin"]) == 10
        case "sample":
            assert len(names["more"]) == 10
        case "evaluate":
            scores = names["scores"]
            assert {"real", "twin"} <= set(scores[scores.name == "accuracy"].rows)
            assert set(scores.question) == {"utility", "fidelity"}
        case "audit":
            assert {"model", "released rows"} <= set(names["scores"].sees)
        case "share":
            assert verify("shared").rows == 10
        case "plan":
            assert names["plan"].plan.records == 10_000
        case "generate":
            assert names["made"].rows == 10 and Path("twin.csv").is_file()


def test_real_rows_are_read_as_the_fitted_ones_were(frame, tiny_base):
    frame, by = frame.assign(age=range(60)), {"age": [0, 30, 60]}
    model = Twinset(str(tiny_base), **QUICK)
    model.fit(frame, "{customer}: {review}", ["age"], bins=by)
    others, twin = frame.assign(review=frame.review + " It was late."), model.sample(40)
    scores = model.evaluate(twin, frame, others, classifiers=["tfidf"], embedded=False)
    assert set(scores[scores.name == "accuracy"].label) == {"age"}
    assert len(model.audit(twin, frame, others, rows=20))


NAMED = PRIVATE.rename(columns={"review": "text", "sentiment": "label"})


def test_whatever_holds_a_table_makes_the_same_model(tiny_base, tmp_path):
    same = QUICK | {"insecure_noise_seed": 1, "seed": 2, "prompt": "A {label} one:"}
    NAMED.to_csv(tmp_path / "t.csv", index=False)
    given = [
        (NAMED, "text", "label"),
        (tmp_path / "t.csv", "text", "label"),
        (Dataset.from_pandas(NAMED), "text", "label"),
        (NAMED.text.to_numpy(), NAMED.label),
    ]
    first, *others = (
        Twinset(str(tiny_base), **same).fit(*data).model.model.state_dict() for data in given
    )
    for other in others:
        assert first.keys() == other.keys()
        assert all(first[name].equal(other[name]) for name in first)


def test_plan_and_generate_take_what_fit_takes(tiny_base, tmp_path):
    data = list(NAMED.text), list(NAMED.label)
    assert Twinset(tiny_base, **QUICK).plan(*data).plan.records == 60
    made = generate(*data, rows=4, base_model=tiny_base, run=tmp_path / "run", **QUICK)
    assert made.rows == 4


def test_a_plan_counts_the_records_that_a_fit_would_read_and_prints_itself(frame, tiny_base):
    table = frame.assign(sentiment=["odd"] * 5 + ["pos"] * 30 + ["neg"] * 25)
    given = table, "review", "sentiment"
    model = Twinset(tiny_base, **QUICK)
    with pytest.raises(InputError, match="odd|declared"):
        model.plan(*given, labels={"sentiment": ["pos", "neg"]})
    found = model.plan(*given, labels={"sentiment": ["pos", "neg"]}, drop_undeclared=True)
    assert found.plan.records == 55
    assert str(found).startswith("records N") and "55" in str(found).splitlines()[0]
    with pytest.raises(TypeError, match="hold"):
        model.plan(*given, hold="0.2")


def test_a_saved_model_replaces_another_and_nothing_else(model, tmp_path):
    for _ in range(2):
        model.save(tmp_path / "model")
    assert Twinset.load(tmp_path / "model").guarantee == model.guarantee
    (tmp_path / "model" / "mine.csv").write_text("private")
    (tmp_path / "t.csv").write_text("private")
    before, twin = snapshot(tmp_path), model.sample(2)
    for place in (tmp_path, tmp_path / "model", tmp_path / "t.csv"):
        with pytest.raises(InputError, match="holds something else than a model"):
            model.save(place)
        with pytest.raises(InputError, match="is not empty"):
            model.share(twin, place)
    assert snapshot(tmp_path) == before


def test_it_shows_what_is_guaranteed(model):
    assert repr(Twinset("base", **QUICK)).endswith("not fitted; asked for: ε = 50>")
    assert "no privacy" in repr(Twinset(epsilon=None))
    spent = r"\((?:49\.99|50\.00), .*\)"
    assert re.search(rf"fitted\. .*{spent}-differentially private for each record", repr(model))
    assert len(repr(model)) < 250 and "'review'" not in repr(model)


def test_libraries_warn_one_another_and_not_the_user(tiny_base, recwarn):
    Twinset(str(tiny_base), **QUICK).fit(PRIVATE, "review", "sentiment")
    assert [str(one.message) for one in recwarn] == []


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
    assert set(files) == {"README.md", "privacy.json", "report.html", "twin.parquet"}
    assert asked == [{"repo_type": "dataset", "private": True}]
    assert b"differentially private" in files["README.md"]
    with pytest.raises(InputError, match="other columns"):
        model.push_to_hub("me/twin", twin.assign(more=1))
    with pytest.raises(InputError, match="60 of 60 rows were not returned"):
        model.push_to_hub("me/twin", PRIVATE)
    flagged = ledger((MaskedAccess("patterns"), *FULL_BATCH), policy="selective")
    for spent, said in (
        (ledger(NO_PRIVACY), "nothing is protected"),
        (flagged, "nothing but flagged spans is protected"),
    ):
        monkeypatch.setattr(Twinset, "guarantee", guarantee(spent))
        with pytest.raises(InputError, match=said):
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


def test_generate_makes_what_the_command_makes(frame, tiny_base, tmp_path):
    private = QUICK | {"base_model": str(tiny_base), "insecure_noise_seed": 1}
    given, folder = (frame, "review", "sentiment", "customer"), tmp_path / "run"
    made = generate(*given, rows_per_label={("good",): 4, "bad": 1}, run=folder, **private)
    assert (made.run, made.rows, made.twin) == (folder, 5, folder / "share" / "twin.parquet")
    twin = pd.read_parquet(made.twin)
    assert list(twin.columns) == ["review", "sentiment"]
    assert twin.sentiment.value_counts().to_dict() == {"good": 4, "bad": 1}
    assert verify(folder).guarantee == made.guarantee
    with pytest.raises(InputError, match=r"with a trained model; .* `overwrite=True` deletes it"):
        generate(*given, run=folder, **private)


DATASET = Dataset.from_pandas(NAMED)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda f: Twinset(top_p=3.0), "`top_p` must be a number from"),
        (lambda f: Twinset(epsilon=0), "`epsilon` must be a number from"),
        (lambda f: Twinset(epsilom=1), "did you mean epsilon"),
        (lambda f: Twinset(hold_out=0.2), "^`hold_out` is of the table, the run or its rows"),
        (lambda f: Twinset(detector="entities"), "`detector.*` does nothing without `noise_policy"),
        (lambda f: Twinset(max_records_per_owner=2).fit(f, "review"), "nothing without `owner`"),
        (lambda f: Twinset().fit(f, "review", split="test"), "^`split`: a table in memory"),
        (lambda f: Twinset().fit(f, "review", "sentiment", "nobody"), "check `owner`$"),
        (lambda f: Twinset().fit("none.csv"), "none.csv: no such file"),
        (lambda f: Twinset().sample(3), "nothing has been fitted yet"),
        (lambda f: generate(f, rows=0), "^`rows` must be a whole number"),
        (
            lambda f: generate(f, output="twin.doc"),
            "^`output=twin.doc`: unknown ending; give `format`",
        ),
        (
            lambda f: Twinset().fit(f.replace(f.review[0], ""), "review", "sentiment", strict=True),
            "`drop_empty`$",
        ),
        (lambda f: Twinset().fit(f, "review", delimiter=";"), "^`delimiter`: a table in memory"),
        (lambda f: generate("t.csv", encoding="latin-9000"), "^`encoding=latin-9000`: unknown"),
        (lambda f: generate(f, rows=1, rows_per_label=2), "one of `rows`, `rows_per_label`"),
        (lambda f: Twinset().plan(f, records=5), "not both"),
        (lambda f: Twinset().plan(records=500, hold="0.2"), "`hold` is of a table"),
        (lambda f: Twinset().fit(["a"]), "labels"),
        (lambda f: Twinset().fit(["a"], "b"), "labels"),
        (lambda f: Twinset().fit(["a"], ["b", "c"]), "labels"),
        (lambda f: Twinset().fit(f, ["pos"] * 60), "labels"),
        (lambda f: Twinset().fit(DATASET, ["pos"] * 60), "labels"),
        (lambda f: Twinset().fit(DatasetDict(train=DATASET)), "give one of them, train"),
    ],
)
def test_messages_name_parameters(frame, call, said):
    with pytest.raises(InputError, match=said) as refused:
        call(frame)
    message = str(refused.value)
    assert not [flag for flag in (o.flag for o in OPTIONS.values()) if flag in message], message


SKIPPED = """torch transformers numpy scipy accelerate datasets peft sklearn opacus pyarrow rich
typer jinja2 matplotlib huggingface_hub filelock safetensors cryptography""".split()


@pytest.mark.slow  # `make lint` checks the types of twinset itself
def test_a_client_is_checked_under_strict_types(tmp_path):
    """Its `type: ignore` are the negative control: strict mypy complains where none is needed."""
    skipped = ",".join(f"{library}.*" for library in SKIPPED)  # else mypy reads all of them
    settings = f"[mypy]\nignore_missing_imports = true\n[mypy-{skipped}]\nfollow_imports = skip\n"
    (tmp_path / "mypy.ini").write_text(settings)
    options = ["--strict", "--follow-imports=silent", f"--cache-dir={tmp_path}"]
    given = [*options, f"--config-file={tmp_path}/mypy.ini", "tests/typed_client.py"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *given], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (ROOT / "twinset" / "py.typed").is_file()
