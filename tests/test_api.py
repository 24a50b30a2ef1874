"""The Python interface: its examples run, its types hold, its messages name parameters."""

import inspect
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pandas as pd
import pytest

import twinset
from tests.helpers.commands import snapshot, texts
from tests.helpers.evaluated import without_downloads
from twinset.api import Twinset, generate
from twinset.config.options import OPTIONS
from twinset.errors import InputError
from twinset.release.verify import verify

ROOT = Path(__file__).parents[1]
QUICK = {"steps": 2, "max_tokens": 12, "max_redraws": 100}


@pytest.fixture
def frame():
    moods = {"review": texts(), "sentiment": ["good", "bad"] * 30}
    return pd.DataFrame(moods | {"customer": [i // 3 for i in range(60)]})


def example_of(documented) -> str:
    """The code in a docstring's example: the lines that are indented twice."""
    after = inspect.getdoc(documented).partition("Example:\n")[2]
    lines = re.split(r"\n\w+:\n", after)[0].splitlines()
    return "\n".join(line[8:] for line in lines if line.startswith(" " * 8))


class Quick(Twinset):
    """The interface with a tiny base and the steps of a test."""

    base = ""

    def __init__(self, **options):
        super().__init__(self.base, **(QUICK | options | {"epsilon": options.get("epsilon", 50)}))


EXAMPLES = {
    "Twinset": (Twinset, {"twin": 1000}),
    "fit": (Twinset.fit, {}),
    "sample": (Twinset.sample, {"more": 2000}),
    "evaluate": (Twinset.evaluate, {}),
    "audit": (Twinset.audit, {}),
    "share": (Twinset.share, {}),
    "plan": (Twinset.plan, {}),
    "generate": (generate, {}),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_run(frame, tiny_base, tmp_path, monkeypatch, name):
    documented, sizes = EXAMPLES[name]
    code = example_of(documented).replace("epsilon=8", "epsilon=50")
    for rows in sizes.values():
        code = code.replace(str(rows), str(rows // 100))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Quick, "base", str(tiny_base))
    frame.to_csv("reviews.csv", index=False)
    frame.assign(review=frame.review + " It was late.").to_csv("heldout.csv", index=False)
    if "load" in code:
        Quick().fit(frame, "review", "sentiment").save("model")
    quick = partial(generate, base_model=str(tiny_base), **QUICK)
    names = {"Twinset": Quick, "generate": quick, "frame": frame}
    exec(compile(code.replace("rows=500", "rows=5").replace("1000)", "10)"), name, "exec"), names)
    for variable, rows in sizes.items():
        assert len(names[variable]) == rows // 100
    if name == "evaluate":
        scores = names["scores"]
        assert {"real", "twin"} <= set(scores[scores.name == "accuracy"].rows)
        assert set(scores.question) == {"utility", "fidelity"}
    if name == "audit":
        assert {"model", "released rows"} <= set(names["scores"].sees)
    if name == "share":
        assert verify("shared").rows == 10
    if name == "plan":
        assert names["plan"].plan.records == 10_000
    if name == "generate":
        assert names["made"].rows == 5 and Path("twin.csv").is_file()


@pytest.fixture(autouse=True)
def provided(monkeypatch):
    without_downloads(monkeypatch)
    return monkeypatch


def test_real_rows_are_read_as_the_fitted_ones_were(frame, tiny_base):
    frame, by = frame.assign(age=range(60)), {"age": [0, 30, 60]}
    model = Twinset(str(tiny_base), epsilon=50, **QUICK)
    model.fit(frame, "{customer}: {review}", ["age"], bins=by)
    others = frame.assign(review=frame.review + " It was late.")
    scores = model.evaluate(model.sample(40), frame, others, classifiers=["tfidf"], embedded=False)
    assert set(scores[scores.name == "accuracy"].label) == {"age"}
    assert len(model.audit(model.sample(40), frame, others, rows=20))


def test_a_dataset_and_two_sequences_make_what_a_frame_makes(frame, tiny_base):
    from datasets import Dataset, DatasetDict

    same = {"epsilon": 50, "insecure_noise_seed": 1, "seed": 2, "prompt": "A {label} one:", **QUICK}
    named = frame.rename(columns={"review": "text", "sentiment": "label"})[["text", "label"]]
    given = [
        (named, "text", "label"),
        (Dataset.from_pandas(named), "text", "label"),
        (list(named.text), list(named.label)),
        (named.text.to_numpy(), named.label),
    ]
    first, *others = (
        Twinset(str(tiny_base), **same).fit(*data).model.model.state_dict() for data in given
    )
    for other in others:
        assert all(first[name].equal(other[name]) for name in first)
    dataset = Dataset.from_pandas(named)
    labels = ["pos"] * 60
    for wrong in [(["a"],), (["a"], "b"), (["a"], ["b", "c"]), (named, labels), (dataset, labels)]:
        with pytest.raises(InputError, match="labels"):
            Twinset(str(tiny_base)).fit(*wrong)
    with pytest.raises(InputError, match="give one of them, train, test"):
        parts = {"train": Dataset.from_pandas(named), "test": Dataset.from_pandas(named)}
        Twinset(str(tiny_base)).fit(DatasetDict(parts))


def test_plan_and_generate_take_what_fit_takes(frame, tiny_base, tmp_path):
    from datasets import Dataset

    named = frame.rename(columns={"review": "text", "sentiment": "label"})[["text", "label"]]
    given = [
        (Dataset.from_pandas(named), "text", "label"),
        (list(named.text), list(named.label)),
    ]
    for number, data in enumerate(given):
        assert Twinset(tiny_base, epsilon=50, **QUICK).plan(*data).plan.records == 60
        options = {"base_model": tiny_base, "run": tmp_path / str(number), "epsilon": 50, **QUICK}
        assert generate(*data, rows=4, **options).rows == 4
    with pytest.raises(InputError, match="not both"):
        Twinset(tiny_base).plan(named, records=5)


def test_a_plan_counts_the_records_that_a_fit_would_read_and_prints_itself(frame, tiny_base):
    table = frame.assign(sentiment=["odd"] * 5 + ["pos"] * 30 + ["neg"] * 25)
    given = table, "review", "sentiment"
    model = Twinset(tiny_base, epsilon=50, **QUICK)
    with pytest.raises(InputError, match="odd|declared"):
        model.plan(*given, labels={"sentiment": ["pos", "neg"]})
    found = model.plan(*given, labels={"sentiment": ["pos", "neg"]}, drop_undeclared=True)
    assert found.plan.records == 55
    assert str(found).startswith("records N") and "55" in str(found).splitlines()[0]
    with pytest.raises(TypeError, match="hold"):
        model.plan(*given, hold="0.2")
    with pytest.raises(InputError, match="`hold` is of a table"):
        model.plan(records=500, hold="0.2")


def test_a_saved_model_replaces_another_and_nothing_else(frame, tiny_base, tmp_path):
    private = frame[["review", "sentiment"]]
    model = Twinset(tiny_base, epsilon=50, **QUICK).fit(private, "review", "sentiment")
    for _ in range(2):
        model.save(tmp_path / "model")
    assert Twinset.load(tmp_path / "model").guarantee == model.guarantee
    (tmp_path / "model" / "mine.csv").write_text("private")
    (tmp_path / "t.csv").write_text("private")
    before = snapshot(tmp_path)
    for place in (tmp_path, tmp_path / "model", tmp_path / "t.csv"):
        with pytest.raises(InputError, match="holds something else than a model"):
            model.save(place)
        with pytest.raises(InputError, match="is not empty"):
            model.share(model.sample(2), place)
    assert snapshot(tmp_path) == before


def test_it_shows_what_is_guaranteed(frame, tiny_base):
    model = Twinset(str(tiny_base), epsilon=50, **QUICK)
    assert repr(model).endswith("not fitted; asked for: ε = 50>")
    assert "no privacy" in repr(Twinset(epsilon=None))
    shown = repr(model.fit(frame, "review", "sentiment"))
    spent = r"\((?:49\.99|50\.00), .*\)"
    assert re.search(rf"fitted\. .*{spent}-differentially private for each record", shown)
    assert len(shown) < 250 and "'review'" not in shown


def test_libraries_warn_one_another_and_not_the_user(frame, tiny_base, recwarn):
    model = Twinset(base_model=str(tiny_base), steps=1, max_tokens=12)
    model.fit(frame, text="review", attributes=["sentiment"])
    assert [str(one.message) for one in recwarn] == []


def test_a_twin_goes_to_the_hub_with_its_card_or_not_at_all(frame, tiny_base, monkeypatch):
    pushed = {}

    def upload(self, repo_id, repo_type, folder_path):
        files = {path.name: path.read_bytes() for path in Path(folder_path).iterdir()}
        pushed[repo_id, repo_type] = files

    asked = []
    monkeypatch.setattr("huggingface_hub.HfApi.upload_folder", upload)
    monkeypatch.setattr(
        "huggingface_hub.HfApi.create_repo", lambda self, name, **more: asked.append(more) or name
    )
    model = Twinset(str(tiny_base), epsilon=50, **QUICK).fit(frame, "review", "sentiment")
    twin = model.sample(6)
    assert model.push_to_hub("me/twin", twin) == "me/twin"
    (files,) = pushed.values()
    assert set(files) == {"README.md", "privacy.json", "report.html", "twin.parquet"}
    assert asked == [{"repo_type": "dataset", "private": True}]
    assert b"differentially private" in files["README.md"]
    with pytest.raises(InputError, match="other columns"):
        model.push_to_hub("me/twin", twin.assign(more=1))
    with pytest.raises(InputError, match="60 of 60 rows were not returned"):
        model.push_to_hub("me/twin", frame[["review", "sentiment"]])
    plain = Twinset(str(tiny_base), epsilon=None, **QUICK).fit(frame, "review", "sentiment")
    with pytest.raises(InputError, match="nothing is protected"):
        plain.push_to_hub("me/twin", twin)
    masks = {"noise_policy": "selective", "detector": "patterns"}
    spans = Twinset(str(tiny_base), epsilon=50, **masks, **QUICK).fit(frame, "review", "sentiment")
    with pytest.raises(InputError, match="nothing but flagged spans is protected"):
        spans.push_to_hub("me/twin", spans.sample(6))
    assert len(pushed) == 1


def test_rows_that_the_model_did_not_write_get_no_card(frame, tiny_base, tmp_path):
    """The private table has the columns of a twin, and is none."""
    private = frame[["review", "sentiment"]]
    model = Twinset(str(tiny_base), epsilon=50, **QUICK).fit(private, "review", "sentiment")
    first, second = model.sample(6), model.sample(6, seed=1)
    assert first.equals(model.sample(6)) and not first.equals(second)
    both = pd.concat([first, second.astype("object")]).sample(frac=0.5, random_state=0)
    model.share(both, tmp_path / "both")
    assert verify(tmp_path / "both").rows == 6
    mixed = pd.concat([first, private.head(1)])
    changed = first.assign(sentiment=first.sentiment.map({"good": "bad", "bad": "good"}))
    for table, others in ((private, 60), (mixed, 1), (changed, 6)):
        with pytest.raises(InputError, match=f"{others} of {len(table)} rows were not returned"):
            model.share(table, tmp_path / "none")
    with pytest.raises(InputError, match="1 of 7 rows"):  # one row oftener than it was sampled
        model.share(pd.concat([second, second.head(1)]), tmp_path / "none")
    assert not (tmp_path / "none").exists()
    with pytest.raises(InputError, match="60 of 60"):
        model.fit(private, "review", "sentiment").share(private, tmp_path / "none")


def test_what_else_a_table_holds_is_not_handed_over(frame, tiny_base, tmp_path):
    """Texts of private rows stay in a column's categories when those rows are left out."""
    private = frame[["review", "sentiment"]]
    model = Twinset(str(tiny_base), epsilon=50, **QUICK).fit(private, "review", "sentiment")
    twin = model.sample(6)
    both = pd.concat([private, twin]).astype({"review": "category"})
    both.attrs["note"] = "SECRET"
    file = model.share(both.iloc[60:], tmp_path / "shared")
    written = file.read_bytes()
    both.iloc[60:].to_parquet(tmp_path / "as-it-is.parquet", compression=None)
    assert b"The film of" in (tmp_path / "as-it-is.parquet").read_bytes()
    assert b"The film of" not in written and b"SECRET" not in written
    assert sorted(pd.read_parquet(file).review) == sorted(twin.review)


def test_generate_takes_rows_by_label_and_from_a_file(frame, tiny_base, tmp_path):
    pd.DataFrame({"sentiment": ["bad"], "rows": [3]}).to_csv(tmp_path / "plan.csv", index=False)
    for asked, rows in (
        ({"rows_per_label": 2}, {"good": 2, "bad": 2}),
        ({"rows_per_label": {"good": 4}}, {"good": 4}),
        ({"rows_per_label": {("good",): 4}}, {"good": 4}),
        ({"plan_file": tmp_path / "plan.csv"}, {"bad": 3}),
    ):
        run = tmp_path / str(len(list(tmp_path.iterdir())))
        options = {"epsilon": 50, "base_model": str(tiny_base), **QUICK, "guard_formulas": False}
        made = generate(frame, "review", "sentiment", run=run, **asked, **options)
        assert pd.read_parquet(made.twin).sentiment.value_counts().to_dict() == rows
    with pytest.raises(InputError, match="one of `rows`, `rows_per_label`"):
        generate(frame, rows=1, rows_per_label=2)


def test_generate_makes_what_the_command_makes(frame, tiny_base, tmp_path):
    private = {"base_model": str(tiny_base), "epsilon": 50, "insecure_noise_seed": 1, **QUICK}
    folder = tmp_path / "run"
    made = twinset.generate(frame, "review", "sentiment", "customer", rows=8, run=folder, **private)
    assert (made.run, made.rows, made.twin) == (folder, 8, folder / "share" / "twin.parquet")
    assert list(pd.read_parquet(made.twin).columns) == ["review", "sentiment"]
    assert verify(folder).guarantee == made.guarantee
    with pytest.raises(InputError, match=r"with a trained model; .* `overwrite=True` deletes it"):
        twinset.generate(frame, "review", "sentiment", run=folder, **private)


def test_a_file_and_a_frame_make_the_same_model(frame, tiny_base, tmp_path):
    frame.to_csv(tmp_path / "t.csv", index=False)
    same = {"epsilon": 50, "insecure_noise_seed": 1, "seed": 2, **QUICK}
    first, second = (
        Twinset(str(tiny_base), **same).fit(data, "review", "sentiment").model.model.state_dict()
        for data in (frame, tmp_path / "t.csv")
    )
    assert first.keys() == second.keys()
    assert all(first[name].equal(second[name]) for name in first)


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
    ],
)
def test_messages_name_parameters(frame, call, said):
    with pytest.raises(InputError, match=said) as refused:
        call(frame)
    message = str(refused.value)
    assert not [flag for flag in (o.flag for o in OPTIONS.values()) if flag in message], message


SKIPPED = """torch transformers numpy scipy accelerate datasets peft sklearn opacus pyarrow rich
typer jinja2 matplotlib huggingface_hub filelock safetensors cryptography""".split()


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
