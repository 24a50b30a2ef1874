"""A table with other columns: the twin has them all, under the ε that was asked for."""

import contextlib
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from evaluation.release import FinishedRun, open_real_rows
from tests.helpers.commands import arguments, call
from twinset import Twinset, api
from twinset.errors import InputError
from twinset.privacy.accounting.events import COLUMNS, GaussianRelease, LabelSelection
from twinset.privacy.mechanism.randomness import Randomness
from twinset.privacy.statement.ledger import Ledger
from twinset.release.verify import verify
from twinset.run import releases
from twinset.sampling.twin_model import TwinModel
from twinset.table.read import read_frame

N = 240
rng = np.random.default_rng(0)
AGES = rng.integers(20, 60, N)
TABLE = pd.DataFrame(
    {
        "id": np.arange(9000, 9000 + N),
        "age": AGES,
        "review": [f"The film number {i} was {('good', 'bad')[i % 2]}." for i in range(N)],
        "old": AGES > 40,
        "label": ["pos", "neg"] * (N // 2),
        "city": np.where(AGES > 40, "York", "Hull"),
        "when": [f"2024-0{1 + i % 9}-11" for i in range(N)],
        "gap": pd.array([None if i % 3 else 7 for i in range(N)], "Int64"),
        "who": [f"person {i // 3}" for i in range(N)],
    }
)
GIVEN = ("--steps", "0", "--rows", "40", "--epsilon", "300", "--hold-out", "0", "--run", "r")
KEPT = ["id", "age", "review", "old", "label", "city", "when", "gap", "who"]


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    TABLE.to_csv("t.csv", index=False)
    TABLE.to_parquet("t.parquet", index=False)
    TABLE.to_json("t.jsonl", orient="records", lines=True)


def generate(tiny_base, data, *more):
    found = call(*arguments(tiny_base, (data, *GIVEN, "--teacher-share", "0", *more)))
    assert found.code == 0, found.err
    return read_frame(next(Path("r/share").glob("twin.*")))


@pytest.mark.parametrize("data", ["t.csv", "t.parquet"])
def test_a_twin_loads_where_the_real_table_loads(table, tiny_base, monkeypatch, data):
    keys = np.random.default_rng(0).bytes  # once in a hundred runs noise takes gaps to be there
    monkeypatch.setattr(Randomness, "from_os", lambda: Randomness._of(lambda: keys(32), "x", True))
    twin, real = generate(tiny_base, data), read_frame(data)
    kept = [name for name in KEPT if name != "who"]
    assert list(twin) == [name for name in twin if name in KEPT] and set(kept) <= set(twin)
    assert twin[kept].dtypes.to_dict() == real[kept].dtypes.to_dict()
    assert twin["age"].between(16, 64).all()
    assert twin["gap"].isna().mean() == pytest.approx(2 / 3, abs=0.3)
    assert ((twin["age"] > 40) == twin["old"]).mean() > 0.8  # and go together
    assert verify(Path("r/share")).rows == 40
    events = Ledger.load(Path("r/model/ledger.json")).events
    assert [e.what for e in events if isinstance(e, GaussianRelease)].count(COLUMNS) == 1
    assert sum(isinstance(event, LabelSelection) for event in events) == 2
    card = Path("r/share/README.md").read_text()
    assert "`age`: number" in card and "`city`: category of 2 values" in card


def test_the_same_model_writes_more_rows_with_the_same_columns(table, tiny_base):
    twin = generate(tiny_base, "t.csv")
    assert call("sample", "r", "--rows", "30", "--output", "more.csv", "--quiet").code == 0
    assert list(read_frame("more.csv")) == list(twin)
    assert verify(Path("more.csv")).rows == 30
    model = TwinModel.load("r")
    drawn = [model.columns.draw(np.zeros(50, int), seed) for seed in (1, 1, 2)]
    pd.testing.assert_frame_equal(drawn[0], drawn[1])
    assert not drawn[0].equals(drawn[2])


@pytest.mark.parametrize(
    ("data", "more", "kept"),
    [
        ("t.csv", ("--columns", "none"), ["review", "label"]),
        ("t.csv", ("--columns", "age,city"), ["age", "review", "label", "city"]),
        ("t.csv", ("--columns", "age", "--kind", "age=category"), ["age", "review", "label"]),
        ("t.jsonl", (), ["review", "label"]),
        ("t.jsonl", ("--columns", "age,city"), ["review", "label", "age", "city"]),
        ("t.csv", ("--columns", "age,who", "--owner", "who"), None),
        ("t.csv", ("--columns", "age", "--owner", "who"), ["age", "review", "label"]),
        ("t.csv", ("--columns", "age", "--columns", "city"), ["age", "review", "label", "city"]),
        ("t.csv", ("--columns", "age", "--columns", "all"), None),
        ("t.csv", ("--columns", "agee"), None),
        ("t.csv", ("--kind", "review=number"), None),
        ("t.csv", ("--values", "label=pos,neg"), None),
        ("t.csv", ("--values", "town=York,Hull"), None),
        ("t.csv", ("--values", "city=York,York"), None),
        ("t.csv", ("--values", "city=@none.txt"), None),
        ("t.csv", ("--columns", "none", "--values", "city=York,Hull"), None),
        ("t.csv", ("--range", "age=9"), None),
        ("t.csv", ("--columns", "none", "--range", "age=1:99"), None),
        ("t.csv", ("--columns", ""), None),
    ],
)
def test_columns_are_kept_as_they_are_asked_for(table, tiny_base, data, more, kept):
    if kept is not None:
        twin = generate(tiny_base, data, *more)
        assert sorted(twin) == sorted(kept)
        return
    found = call(*arguments(tiny_base, (data, *GIVEN, *more)))
    assert found.code == 2 and found.err.count("\n") == 1 and not Path("r").exists()
    assert "kinds" not in found.err and "ranges" not in found.err  # the names in Python


def test_held_out_rows_may_mix_types(table, tiny_base):
    mixed = TABLE.assign(age=[age if i % 7 else "free" for i, age in enumerate(AGES)])
    mixed["city"] = [["a", 1], {"b": 2}] * (N // 2)  # no cells that can be kept
    mixed.to_excel("t.xlsx", index=False)
    for data in ("t.xlsx", mixed):
        given = {"rows": 40, "hold_out": 0.2, "steps": 0, "teacher_share": 0, "epsilon": 300}
        made = api.generate(
            data, "review", "label", base_model=tiny_base, progress=False, overwrite=True, **given
        )
        held = read_frame(next(Path(made.run, "internal").glob("held*")))
        assert len(held) > 10 and "free" in set(held["age"].astype(str))
    made = api.generate(
        "t.xlsx", "review", "label", base_model=tiny_base, progress=False, overwrite=True, **given
    )
    finished = FinishedRun.read(Path(made.run))
    with open_real_rows(finished, Path("t.xlsx"), None, None, {}) as (*paths, _, _):
        for path in paths:  # as evaluate and audit read them
            assert "free" in set(read_frame(path)["age"])


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_the_cards_line_reads_a_twin_as_pandas_reads_the_table(table, tiny_base, kind):
    codes = [f"{i % 3:03}" if i % 4 else None for i in range(N)]
    days = [f"{1 + i % 28:02}/10/2023" for i in range(N)]
    stars = [("3.1", "3.10")[label == "pos"] for label in TABLE["label"]]
    real = TABLE.assign(code=codes, date=days, free=[f"a note {i}" for i in range(N)], label=stars)
    if kind == "csv":
        real.to_csv("t.csv", index=False)
        real = pd.read_csv("t.csv", dtype={"code": "str", "label": "str"})
    else:
        real.to_json("t.jsonl", orient="records", lines=True)
        real = pd.read_json("t.jsonl", lines=True, dtype=False, convert_dates=False)
    named = ("code", "date", "age") if kind == "jsonl" else ("all",)
    generate(tiny_base, f"t.{kind}", *(word for name in named for word in ("--columns", name)))
    card = Path("r/share/README.md").read_text()
    (line,) = re.findall(r"pd\.read_\w+\(.*\)", card)
    with contextlib.chdir("r/share"):
        twin = eval(line, {"pd": pd})
    for name in twin:
        assert twin[name].dtype == real[name].dtype, name
    assert twin["code"].isna().any() and set(twin["code"].dropna()) <= {"000", "001", "002"}
    assert set(twin["label"]) == {"3.1", "3.10"}
    assert twin["date"].str.fullmatch(r"\d\d/\d\d/2023").all()
    assert ("Dataset.from_pandas" in card) == (kind == "csv")


def test_rows_meet_the_conditions_that_are_asked_for(table, tiny_base):
    generate(tiny_base, "t.csv")
    given = ("sample", "r", "--rows", "30", "--quiet", "--overwrite", "--output", "more.csv")
    assert call(*given, "--where", "age=18:40", "--where", "label=pos").code == 0
    twin = read_frame("more.csv")
    assert twin["age"].between(18, 40).all() and set(twin["label"]) == {"pos"}
    assert not twin["old"].mean() > 0.2  # what goes with it follows
    assert verify(Path("more.csv")).rows == 30
    model = Twinset.load("r", progress=False)
    twin = model.sample(30, where={"city": "York", "gap": None, "old": [True, False]})
    assert set(twin["city"]) == {"York"} and twin["gap"].isna().all()
    assert model.share(twin, "shared").exists()
    assert call(*given, "--where", "label=pos,neg", "--where", "city=York,Hull").code == 0
    for where in ({"label": np.array(["pos", "neg"])}, pd.Series({"city": ("York",)})):
        assert len(model.sample(30, where=where)) == 30
    with pytest.raises(InputError, match="as a dictionary"):
        model.sample(30, where="age>3")
    wrong_ones = "town=York", "id=7", "label=none", "age=900", "review=Fine.", "x", "label=pos,none"
    for wrong in ("city=Leeds", "city=York,Leeds", *wrong_ones):
        found = call(*given, "--where", wrong)
        assert found.code == 2 and found.err.count("\n") == 1, wrong


def test_a_plan_file_sets_other_columns_line_by_line(table, tiny_base):
    generate(tiny_base, "t.csv")
    given = ("sample", "r", "--quiet", "--overwrite", "--output", "more.csv")
    given = (*given, "--plan-file", "p.csv")
    Path("p.csv").write_text('label,gap,city,rows\npos,",", ,5\n,,,\n,,,\n')  # a gap, and nothing
    assert call(*given).code == 0
    assert read_frame("more.csv")["gap"].isna().sum() == 5
    lines = "label,city,age,rows", "pos,York,,6", "pos,,18:30,4", "neg,Hull,,3", "neg,,,2"
    Path("p.csv").write_text("\n".join(lines))
    assert call(*given).code == 0
    twin = read_frame("more.csv")
    assert len(twin) == 15 and verify(Path("more.csv")).rows == 15 and twin["id"].is_unique
    assert twin["label"].value_counts().to_dict() == {"pos": 10, "neg": 5}
    positive = twin[twin["label"] == "pos"]
    assert (positive["city"] == "York").sum() >= 6 and positive["age"].between(18, 30).sum() >= 4
    assert (twin[twin["label"] == "neg"]["city"] == "Hull").sum() >= 3
    generated = call("generate", "t.csv", "--plan-file", "p.csv", "--run", "other", "--quiet")
    assert generated.code == 2 and "twinset sample RUN" in generated.err
    for line, said in {
        "pos,Leeds,,6": "row 2 of p.csv: no row can have this 'city'",
        "pos,York,,x": "row 2 of p.csv: the number of rows must be a whole number",
        "none,York,,3": "row 2: there is no label 'none'",
        'pos,"York,Hul",,6': "row 2 of p.csv: no row can have this 'city': 'Hul'",
        "": "p.csv: has no lines",
    }.items():
        Path("p.csv").write_text(f"label,city,age,rows\n{line}\n")
        found = call(*given)
        assert found.code == 2 and said in found.err and found.err.count("\n") == 1, line


def test_conditions_are_those_of_the_model_itself(table, tiny_base):
    """Drawn rows that meet conditions are as frequent and as spread as the rows under them."""
    generate(tiny_base, "t.csv")
    model = TwinModel.load("r").columns
    labels = np.repeat([0, 1], 20_000)
    free = model.draw(labels, 0)
    meets = (free["city"] == "York") & free["age"].between(30, 50)
    given, likely = model.given({"city": "York", "age": (30, 50)})
    assert likely == pytest.approx([meets[labels == c].mean() for c in (0, 1)], abs=0.01)
    drawn = given.draw(labels, 1)
    assert drawn["age"].between(30, 50).all() and set(drawn["city"]) == {"York"}
    for name in ("old", "age", "gap", "when"):
        shares = [t[name].astype(str).value_counts(normalize=True) for t in (free[meets], drawn)]
        assert shares[0].sub(shares[1], fill_value=0).abs().sum() < 0.15, name


@pytest.mark.parametrize("steps", ["0", "2"])
def test_a_second_text_is_written_behind_the_first(table, tiny_base, steps):
    titles = [f"note {i} of all" if i % 4 else "" for i in range(N)]
    TABLE[["review", "label"]].assign(title=titles).to_csv("t.csv", index=False)
    twin = generate(tiny_base, "t.csv", "--max-tokens", "32", "--steps", steps)
    assert list(twin) == ["review", "label", "title"]
    assert twin["title"].isna().mean() == pytest.approx(1 / 4, abs=0.2)
    assert not twin["title"].dropna().str.contains("\n").any()
    assert "`title`: text" in Path("r/share/README.md").read_text()
    assert call("sample", "r", "--rows", "30", "--output", "more.csv", "--quiet").code == 0
    assert read_frame("more.csv")["title"].notna().sum() > 10


def test_a_declared_range_is_public_and_holds(table, tiny_base):
    twin = generate(tiny_base, "t.csv", "--columns", "age", "--range", "age=18:99")
    assert twin["age"].between(18, 99).all()


@pytest.mark.parametrize("more", [(), ("--columns", "who", "--kind", "who=category")])
def test_declared_values_spend_nothing_on_their_selection(table, tiny_base, more):
    Path("cities.txt").write_text("Hull\nOslo\nYork\n")
    given = ("--columns", "city", "--values", "city=@cities.txt", "--labels", "label=pos,neg")
    twin = generate(tiny_base, "t.csv", *given, *more)
    assert set(twin["city"].dropna()) == {"York", "Hull"}
    ledger = Ledger.load(Path("r/model/ledger.json"))
    selections = [e.attributes for e in ledger.events if isinstance(e, LabelSelection)]
    assert selections == [1] * bool(more)
    assert COLUMNS in [e.what for e in ledger.events if isinstance(e, GaussianRelease)]
    assert any("declared kinds, values and ranges" in each for each in ledger.public_inputs)
    assert 295 < verify(Path("r/share")).guarantee.epsilon <= 300
    assert "category of 3 declared values" in Path("r/share/README.md").read_text()


def test_a_stopped_run_counts_its_columns_once(table, tiny_base, monkeypatch):
    def stop(*given, **more):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TwinModel, "sample", stop)
        assert call(*arguments(tiny_base, ("t.csv", *GIVEN))).code == 130
    before = json.loads(Path(".r.partial/model/ledger.json").read_text())
    monkeypatch.setattr(releases, "count_columns", stop)  # or it would stop again
    assert call(*arguments(tiny_base, ("t.csv", *GIVEN, "--resume"))).code == 0
    assert json.loads(Path("r/model/ledger.json").read_text()) == before
    assert "age" in read_frame("r/share/twin.csv")


def test_python_keeps_columns_too_and_shares_only_sampled_rows(tiny_base, tmp_path):
    model = Twinset(
        base_model=tiny_base, epsilon=300, steps=0, teacher_share=0, progress=False, max_tokens=12
    ).fit(TABLE, text="review", attributes=["label"], columns=["age", "city"])
    twin = model.sample(30)
    assert list(twin) == ["age", "review", "label", "city"]
    shared = model.share(twin, tmp_path / "s", "csv")
    assert read_frame(shared)["age"].between(16, 64).all()
    with pytest.raises(Exception, match="were not returned"):
        model.share(twin.assign(age=99), tmp_path / "s2", "csv")


def test_without_privacy_columns_are_counted_exactly(table, tiny_base):
    found = call(*arguments(tiny_base, ("t.csv", *GIVEN[:4], "--run", "r", "--no-privacy")))
    assert found.code == 0, found.err
    assert set(read_frame("r/share/twin.csv")["city"]) == {"York", "Hull"}
