"""Rows held out are seen by nothing that a run releases, and by nothing that it trains."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.helpers.commands import OWNED, run_twinset, texts
from twinset import generate
from twinset.config.options import run_config
from twinset.errors import InputError
from twinset.privacy.statement.ledger import Ledger
from twinset.run.run_folder import draw_held_out, kept_rows
from twinset.table.records import records_from_frame

QUICK = {"steps": 2, "max_tokens": 12, "epsilon": 50, "rows": 4}
FRAME = pd.DataFrame({"review": texts(), "label": ["pos", "neg"] * 30})


def records(frame=FRAME, owner=None):
    return records_from_frame(frame, "review", ["label"], owner=owner)[0]


def test_owners_are_held_out_whole():
    owned = records(OWNED, "who")
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


@pytest.mark.parametrize(("rows", "held"), [(4_999, False), (5_000, True)])
def test_from_so_many_rows_on_some_are_held_out_unless_somebody_says_none(rows, held):
    assert (len(draw_held_out(rows, None)) > 0) == held
    assert len(draw_held_out(rows, 0.0)) == 0


def test_a_run_counts_and_trains_on_the_others_alone(tiny_base, tmp_path, monkeypatch):
    seen = []
    from twinset.run import story

    tokens = story.tokenise
    monkeypatch.setattr(
        story, "tokenise", lambda r, *more: seen.extend(r.texts) or tokens(r, *more)
    )
    run = tmp_path / "run"
    given = QUICK | {"labels": {"label": ["pos", "neg"]}, "base_model": str(tiny_base)}
    made = generate(FRAME, "review", "label", run=run, hold_out=0.3, **given)
    assert "'label', declared by" in made.guarantee.sentence
    held = pd.read_parquet(run / "internal/held-out.parquet")
    rows = kept_rows(run / "internal")
    assert held.review.tolist() == FRAME.review.iloc[rows].tolist() and 0 < len(held) < 60
    assert seen == FRAME.review.drop(index=rows).tolist()
    assert Ledger.load(run / "model/ledger.json").records == 60 - len(held)
    config = json.loads((run / "internal/config.json").read_text())
    assert config["plan"]["records"] == 60 - len(held)
    for file in ("held-out.parquet", "held-out.json"):
        assert (run / "internal" / file).stat().st_mode & 0o077 == 0


def test_a_resumed_run_holds_out_the_same_rows(good_table, tiny_base, capsys, monkeypatch):
    from twinset.sampling import twin_model as module

    given = ["generate", "t.csv", "--text", "review", "--attribute", "label", "--hold-out", "0.3"]
    given += ["--base-model", tiny_base, "--run", "r", "--rows", "4", "--steps", "2"]
    given += ["--max-tokens", "12", "--epsilon", "50", "--quiet"]
    with monkeypatch.context() as patch:
        patch.setattr(module, "write_share", lambda *a: (_ for _ in ()).throw(OSError("full")))
        assert run_twinset(capsys, *given).code == 1
    held = Path(".r.partial/internal/held-out.parquet").read_bytes()
    assert run_twinset(capsys, *given, "--resume").code == 0
    assert Path("r/internal/held-out.parquet").read_bytes() == held


@pytest.mark.parametrize("share", [-0.1, 0.6, float("nan")])
def test_a_share_out_of_range_is_refused(share):
    with pytest.raises(InputError, match="`hold_out` must be a number from 0 to 0.5"):
        generate(FRAME, "review", "label", hold_out=share)
