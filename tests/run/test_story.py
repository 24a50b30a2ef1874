"""What a table becomes, what is refused on the way, what is held out, and what is released."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from tests.helpers.commands import OWNED, Heard, call, texts
from twinset import Twinset, generate
from twinset.config.options import run_config
from twinset.errors import InputError
from twinset.models.base_model import check_base
from twinset.privacy.accounting.events import GaussianRelease
from twinset.privacy.statement.guarantee import guarantee
from twinset.privacy.statement.theorems import OWNER_UNIT, UNIT
from twinset.run import story
from twinset.run.generate import finetune, prepare
from twinset.run.request import Source
from twinset.run.run_folder import draw_held_out, kept_rows
from twinset.sampling.allocation import RowsRequest, share_out_rows
from twinset.sampling.twin_model import DESCRIPTION, TwinModel
from twinset.table.records import records_from_frame

SHORT = {"epsilon": 50, "steps": 1, "batch_size": 8, "max_tokens": 12, "marginal_share": 0}
LABELS = {"label": ["good", "bad"] * 30}
FRAME = pd.DataFrame({"text": texts(), **LABELS, "who": [i // 3 for i in range(60)]})


def prepared(base, source=None, **options):
    given = {"base_model": str(base), "teacher_share": 0, **SHORT, **options}
    return prepare(Source(FRAME, "text", ("label",), **(source or {})), run_config(given))


@pytest.mark.parametrize(
    ("source", "options", "said"),
    [
        ({"owner": "who"}, {"group_size": 2}, "`group_size` is for records"),
        ({"owner": "who"}, {"noise_policy": "selective"}, "treats records by what they say"),
    ],
)
def test_options_without_effect_are_refused(tiny_base, source, options, said):
    with pytest.raises(InputError, match=said):
        prepared(tiny_base, source, **options)


SEVERAL, ALONE = [f"u{i // 3}" for i in range(60)], [f"u{i}" for i in range(60)]


@pytest.mark.parametrize(
    ("name", "cells", "source", "options", "is_asked"),
    [
        ("user_id", SEVERAL, {}, {}, True),
        ("Patient", SEVERAL, {}, {}, True),
        ("patient_no ", ["a", "b", "c"] * 20, {}, {}, True),
        ("user_id", ALONE, {}, {}, False),
        ("product_id", SEVERAL, {}, {}, False),
        ("customer", ["new", "old"] * 30, {}, {}, False),  # hardly people
        ("user_id", SEVERAL, {"owner": "user_id"}, {}, False),
        ("user_id", SEVERAL, {"each_row_is_someone": True}, {}, False),
        ("user_id", SEVERAL, {}, {"epsilon": None}, False),  # protects no one
    ],
)
def test_a_run_asks_whose_the_rows_are(tiny_base, name, cells, source, options, is_asked):
    frame = FRAME[["text", "label"]].assign(**{name: cells})
    config = run_config({"base_model": str(tiny_base), "teacher_share": 0, **SHORT, **options})
    asked = Source(frame, "text", ("label",), **source)
    line = f"'{name}' seems to say whose a row is"
    if is_asked:
        with pytest.raises(InputError, match=f"{line}.*`owner={name}`.*`each_row_is_someone"):
            prepare(asked, config)
    else:
        assert not prepare(asked, config).question
    planned = prepare(asked, config, spends=False)  # a plan only says it
    assert any(line in note for note in planned.notes) == is_asked


def test_comparisons_refuse_owners(tmp_path):
    """They would train on rows one by one, whatever was asked for."""
    FRAME.to_csv(tmp_path / "t.csv", index=False)
    refused = call("compare", tmp_path / "t.csv", "--owner", "who")
    assert refused.code == 2 and "protects single rows" in refused.err


def test_a_model_of_private_records_is_no_base_model(tmp_path, monkeypatch):
    """What it spent would be counted nowhere, by a run or by `pretrain`."""
    (tmp_path / "run" / "model").mkdir(parents=True)
    check_base(str(tmp_path / "run"))
    (tmp_path / "run" / "model" / DESCRIPTION).write_text("{}")
    monkeypatch.setenv("HOME", str(tmp_path))
    for place in (tmp_path / "run", tmp_path / "run/model", "~/run", "~/run/model"):
        for asks in (prepared, check_base):
            with pytest.raises(InputError, match="was trained on private records"):
                asks(str(place))


def test_all_that_may_take_a_while_is_counted(tiny_base, tmp_path, monkeypatch):
    """Minutes of reading rows again, fitting and first steps had no line."""
    FRAME.to_csv(tmp_path / "t.csv", index=False)
    monkeypatch.setattr(story, "SOON_READ", 0)
    seen = Heard()
    options = SHORT | {"marginal_share": 0.1, "teacher_share": 0.1, "base_model": str(tiny_base)}
    Twinset(progress=seen, **options).fit(tmp_path / "t.csv", "text", "label").sample(4)
    counts = {what: (done, total) for what, done, total, _ in seen.counted}
    assert [*counts] == [
        *("texts in tokens", "columns counted"),
        *("rows of the base", "rows read again", "texts counted"),
        *("units of the first step", "reference rows", "words fitted"),
        *("rows read by the teacher", "texts read by the teacher", "steps of the teacher", "rows"),
    ]
    assert all(done == total for done, total in counts.values())
    assert any(line.startswith("reading ") for line in seen.lines)
    assert any(line.startswith("loading the base model") for line in seen.lines)
    seen = Heard()
    Twinset(progress=seen, **options).plan(records=100)
    assert seen.counted[-1][:3] == ("speed measured", 4, 4)


# -- rows held out ---------------------------------------------------------------------------------


def test_a_twin_that_cannot_be_built_fails_before_anything_is_spent(tiny_base, monkeypatch):
    monkeypatch.setattr("twinset.table.records.text_dtype", lambda *_: "no dtype")
    with pytest.raises(TypeError, match="no dtype"):
        prepared(tiny_base)


@pytest.mark.parametrize(("records", "rows"), [(60, 3000), (2**62, 1_000_000)])
def test_a_models_ledger_does_not_decide_alone_how_many_rows(tiny_run, records, rows):
    model, heard = TwinModel.load(tiny_run / "r" / "model"), Heard()
    model.ledger = replace(model.ledger, records=records)
    counts = share_out_rows(model, RowsRequest(), heard)
    assert sum(counts.values()) == rows and len(heard.lines) == (records > 60)
    assert all("the most by default. `rows` asks for more" in line for line in heard.lines)


def test_owners_are_held_out_whole():
    owned = records_from_frame(OWNED, "review", ["label"], owner="who")[0]
    rows = owned.rows_of(draw_held_out(len(owned.units(run_config({}))), 0.4))
    trained, held = owned.split(rows)
    assert 0 < len(held) < 60 and len(trained) + len(held) == 60
    who = OWNED.who.to_numpy()
    assert not set(who[rows]) & set(np.delete(who, rows))
    assert set(trained.owners) == set(range(len(set(np.delete(who, rows)))))
    assert list(held.texts) == OWNED.review.iloc[rows].tolist()


def test_coins_are_independent_of_one_another_and_of_the_table():
    """A seeded draw, or one of so many rows, would tell one row's coin by the others'."""
    drawn = [draw_held_out(3000, 0.2).tolist() for _ in range(8)]
    sizes = [len(rows) for rows in drawn]
    assert len({tuple(rows) for rows in drawn}) == 8 and len(set(sizes)) > 2
    assert abs(sum(sizes) / 8 - 600) < 5 * (3000 * 0.16 / 8) ** 0.5
    both = len(np.intersect1d(*drawn[:2]))
    assert abs(both - 3000 * 0.04) < 5 * (3000 * 0.04 * 0.96) ** 0.5
    for rows, asked, holds in ((4_999, None, False), (5_000, None, True), (5_000, 0.0, False)):
        assert (len(draw_held_out(rows, asked)) > 0) == holds


def test_a_run_counts_and_trains_on_the_others_alone(tiny_base, tmp_path, monkeypatch):
    seen, tokens = [], story.tokenise
    monkeypatch.setattr(
        story, "tokenise", lambda r, *more: seen.extend(r.texts) or tokens(r, *more)
    )
    run = tmp_path / "run"
    given = SHORT | {"labels": {"label": ["good", "bad"]}, "base_model": str(tiny_base)}
    given |= {"rows": 4, "teacher_share": 0}
    made = generate(FRAME, "text", "label", run=run, hold_out=0.3, **given)
    assert "'label', declared by" in made.guarantee.sentence
    held = pd.read_parquet(run / "internal/held-out.parquet")
    rows = kept_rows(run / "internal")
    assert held.text.tolist() == FRAME.text.iloc[rows].tolist() and 0 < len(held) < 60
    assert seen == FRAME.text.drop(index=rows).tolist()
    config = json.loads((run / "internal/config.json").read_text())
    assert config["plan"]["records"] == 60 - len(held)
    for file in ("held-out.parquet", "held-out.json"):
        assert (run / "internal" / file).stat().st_mode & 0o077 == 0


# -- what is released: never exactly, whatever the plan says ---------------------------------------


@pytest.mark.parametrize(("owner", "unit", "units"), [("who", OWNER_UNIT, 20), (None, UNIT, 60)])
def test_every_release_is_in_the_ledger_with_the_plans_numbers(
    tiny_base, monkeypatch, owner, unit, units
):
    shares = {"marginal_share": 0.2, "teacher_share": 0.2, "method": "full"}
    run = prepared(tiny_base, {"owner": owner}, **shares)
    monkeypatch.setattr("twinset.config.plan.calibrate_noise_multiplier", None)  # planned once
    ledger = finetune(run).ledger
    once = [e for e in ledger.events if isinstance(e, GaussianRelease)]
    assert [e.what for e in once] == ["label counts", "token marginals", "teacher"]
    assert [run.selection, *once] == run.plan.releases and ledger.events[0] == run.selection
    assert ledger.sample_rate == run.plan.sample_rate
    noises = [getattr(event, "noise_multiplier", None) for event in ledger.events]
    assert run.plan.noise_multiplier in noises
    assert (ledger.unit, ledger.records) == (unit, units)
    said = guarantee(ledger)
    words = " ".join((said.sentence, *said.covers, *said.excludes))
    one = "record" if unit == UNIT else "owner"
    assert [w for w in ("record", "owner") if f"number of {w}s" in words] == [one]
    assert f"m {one}s have m times" in words and f"how one {one}'s presence" in words
    with pytest.raises(RuntimeError, match="Prepare a new run"):
        finetune(run)  # it would start from what the first trained, and no ledger would say so


@pytest.mark.parametrize("release", ["marginal", "teacher"])
def test_without_noise_in_its_plan_nothing_is_released(tiny_base, release):
    """Fail closed: exact counts would be in no ledger."""
    run = prepared(tiny_base, **{f"{release}_share": 0.2})
    run.plan = replace(run.plan, **{f"{release}_noise": 0.0})
    with pytest.raises(RuntimeError, match="without noise"):
        finetune(run)
