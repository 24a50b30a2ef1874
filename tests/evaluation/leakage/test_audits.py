"""`twinset audit RUN|TWIN` and `twinset audit canaries`, on a tiny model."""

import numpy as np
import pandas as pd
import pytest

from evaluation.findings import Findings, Measured, proportion
from evaluation.leakage import audits
from evaluation.report.figures import explain_measure
from tests.helpers.commands import call
from tests.helpers.evaluated import reviews, small_run, small_world_in, tables_in

COLUMNS = ("--text", "text", "--attribute", "sentiment")
TABLES = ("--members", "train.csv", "--non-members", "test.csv", "--quiet")
PLANT = tuple("--policies uniform,none --copies 1,20 --each 2 --coins 40 --digits 2".split())
LITTLE = ("--rows", "8", "--steps", "2", "--batch-size", "16", "--max-tokens", "100", "--quiet")
PLANTING = ("audit", "canaries", "train.csv", *COLUMNS, "--prompt", "{sentiment}:", *PLANT, *LITTLE)


@pytest.fixture(autouse=True)
def small_world(tmp_path, monkeypatch):
    small_world_in(tmp_path, monkeypatch, test=80)


def test_a_run_is_attacked_through_its_model_and_its_rows(tiny_base, tmp_path):
    for name in ("test.csv", "train.csv"):  # both, or no member may be risky
        known = pd.read_csv(name)
        known.assign(text="=1+1 " + known["text"]).to_csv(name, index=False)
    run = small_run(tiny_base, *COLUMNS)
    ended = call("audit", run, *TABLES)
    assert ended.code == 0, ended.err
    path = tmp_path / "run" / "internal" / "audit.json"
    found = Findings.load(path)
    for sees in ("model", "released rows"):
        assert found.find("AUROC", sees=sees) is not None
    assert found.about["rows"]["members"] == 80
    assert found.find("AUROC", attack="calibrated loss") is not None
    assert "It was" not in path.read_text()
    riskiest = path.with_name("riskiest.csv")
    rows = pd.read_csv(riskiest)
    assert 0 < len(rows) <= 16 and rows["risk"].is_monotonic_decreasing
    # a spreadsheet runs none of them
    assert set(rows["text"]) <= set("'=1+1 " + known["text"]) and "sentiment" in rows
    assert riskiest.stat().st_mode & 0o777 == 0o600 and not call("verify", run).code


def test_a_twin_that_copies_is_caught_and_one_of_other_rows_is_not(tmp_path):
    """The negative control: what nobody copied shows nothing."""
    areas = {}
    for name, twin in {"copied": reviews(80, seed=0), "fresh": reviews(80, seed=2)}.items():
        twin.to_csv("twin.csv", index=False)
        output = f"{name}.json"
        ended = call("audit", "twin.csv", *TABLES, *COLUMNS, "--output", output)
        assert ended.code == 0, ended.err
        found = Findings.load(tmp_path / output)
        assert any("the model was not attacked" in note for note in found.notes)
        areas[name] = found.find("AUROC", sees="released rows")
        riskiest = found.find("members among the riskiest tenth")
        assert riskiest.value == 1 if name == "copied" else riskiest.low < 0.5
        assert riskiest.n == 16 and not list(tmp_path.rglob("riskiest.csv"))
        assert "riskiest.csv" not in explain_measure(riskiest.name) + str(found.notes)
    assert areas["copied"].low > 0.9
    assert areas["fresh"].low < 0.6
    copied, fresh = (Findings.load(tmp_path / f"{name}.json") for name in areas)
    for given in ({}, {"max_auroc": 0.75}, {"max_copied": 60}, {"max_copied": 80}):
        is_over = given in ({"max_auroc": 0.75}, {"max_copied": 60})
        assert bool(audits.check_limits(copied, **given)) == is_over, given
        assert not audits.check_limits(fresh, **given), given
    near = proportion("near-duplicates", 7, 25, "minimise")
    few = Findings("audit", {}, (Measured("leakage", near, {"against": "train"}),))
    assert audits.check_limits(few, max_copied=6) and not audits.check_limits(few, max_copied=7)
    nothing = Findings("audit", {}, ())
    assert audits.check_limits(nothing, 0.5, 0) == [
        "AUROC was not measured",
        "near-duplicates was not measured",
    ]


def test_a_limit_of_ones_own_decides_the_exit_code(tmp_path):
    reviews(80, seed=0).to_csv("twin.csv", index=False)
    given = ("audit", "twin.csv", *TABLES, *COLUMNS, "--output", "found.json")
    ended = call(*given, "--max-copied", "0", "--max-auroc", "0.55")
    assert ended.code == 1 and "near-duplicates (train) is 80" in ended.err
    assert (tmp_path / "found.json").exists()  # what was found is kept


def canaries(base, *more):
    given = ("--base-model", base, "--output", "found.json")
    return call(*PLANTING, *given, *more)


@pytest.fixture(scope="module")
def audited(tiny_base, tmp_path_factory):
    """Folder with a finished audit of canaries."""
    folder = tmp_path_factory.mktemp("audited")
    with pytest.MonkeyPatch.context() as patch:
        small_world_in(folder, patch, test=80)
        patch.setattr(audits, "OPENINGS", 4)
        assert canaries(tiny_base).code == 0
    return folder


def test_canaries_are_planted_under_each_policy(audited, tiny_base, monkeypatch):
    found = Findings.load(audited / "found.json")
    for policy in ("uniform", "none"):
        for sees in ("model", "released rows"):
            for copies in ("1", "20"):
                assert found.find("exposure", policy=policy, sees=sees, copies=copies).n == 2
        assert found.find("AUROC", policy=policy, sees="model")
        for sees in ("model", "released rows"):
            bound = found.find("lower bound of ε", policy=policy, sees=sees)
            assert bound.n == 40 and bound.value <= bound.maximum < 5
    assert found.find("claimed epsilon", policy="uniform").value <= 8
    assert found.find("claimed epsilon", policy="none") is None
    monkeypatch.chdir(audited)
    written = (audited / "found.json").stat().st_mtime_ns
    assert canaries(tiny_base).code == 0  # trains nothing more
    assert (audited / "found.json").stat().st_mtime_ns == written
    again = canaries("no-such-model")
    assert again.code == 2 and "other settings" in again.err


OVERTRAINED = ("--steps", "120", "--batch-size", "32", "--learning-rate", "0.01")
CONTROL = tuple("--digits 3 --copies 0,20 --coins 80 --mismatch-weight 0 --method full".split())


@pytest.mark.slow  # test_membership has a fast control: an overfitted model
def test_an_overtrained_model_without_privacy_is_caught_and_a_private_one_is_not(
    tiny_base, tmp_path, monkeypatch
):
    """The audit's positive control: each of its measures finds what was memorised."""
    coins = np.random.default_rng(0).integers(2, size=80).astype(bool)
    monkeypatch.setattr(audits.roc, "include", lambda m: coins)
    tables_in(tmp_path, train=24, test=24)
    more = (*CONTROL, *OVERTRAINED, "--max-tokens", "60", "--test", "test.csv", "--epsilon", "4")
    ended = canaries(tiny_base, *more)
    assert ended.code == 0, ended.err
    found = Findings.load(tmp_path / "found.json")
    open_one, private = (
        {
            "exposure": found.find("exposure", policy=p, copies="20", sees="model").value,
            "bound": found.find("lower bound of ε", policy=p, sees="model").value,
            "area": found.find("AUROC", policy=p, attack="loss").value,
        }
        for p in ("none", "uniform")
    )
    assert open_one["exposure"] > 8 > private["exposure"]
    assert found.find("exposure", policy="none", copies="0", sees="model").value < 4
    assert open_one["bound"] > 0.3 and private["bound"] <= 4
    assert open_one["area"] > 0.75 > private["area"]  # seen: 0.90-0.94, 0.44-0.47
