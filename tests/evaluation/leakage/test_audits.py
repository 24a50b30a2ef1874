"""`twinset audit RUN|TWIN` and `twinset audit canaries`, on a tiny model."""

import numpy as np
import pandas as pd
import pytest

from evaluation.findings import Findings
from evaluation.leakage import canary_audit as canaryaudit
from evaluation.leakage.canaries import (
    FORMATS,
    Canary,
    numbered_formats,
    write_coin_canaries,
)
from evaluation.leakage.exposure import Bigrams, echo
from tests.helpers.commands import run_twinset
from tests.helpers.evaluated import reviews, small_run, small_world_in, tables_in

COLUMNS = ("--text", "text", "--attribute", "sentiment")
TABLES = ("--members", "train.csv", "--non-members", "test.csv", "--quiet")


@pytest.fixture(autouse=True)
def small_world(tmp_path, monkeypatch):
    small_world_in(tmp_path, monkeypatch, test=80)


def test_a_run_is_attacked_through_its_model_and_its_rows(tiny_base, tmp_path, capsys):
    run = small_run(capsys, tiny_base, *COLUMNS)
    ended = run_twinset(capsys, "audit", run, *TABLES)
    assert ended.code == 0, ended.err
    found = Findings.load(tmp_path / "run" / "internal" / "audit.json")
    for sees in ("model", "released rows"):
        assert found.find("AUROC", sees=sees) is not None
    assert found.about["rows"]["members"] == 80
    assert found.find("AUROC", attack="calibrated loss") is not None
    stored = (tmp_path / "run" / "internal" / "audit.json").read_text()
    assert "It was" not in stored


def test_a_twin_that_copies_is_caught_and_one_of_other_rows_is_not(tmp_path, capsys):
    """The negative control: what nobody copied shows nothing."""
    train, fresh = reviews(80, seed=0), reviews(80, seed=2)
    areas = {}
    for name, twin in {"copied": train, "fresh": fresh}.items():
        twin.to_csv("twin.csv", index=False)
        output = f"{name}.json"
        ended = run_twinset(capsys, "audit", "twin.csv", *TABLES, *COLUMNS, "--output", output)
        assert ended.code == 0, ended.err
        found = Findings.load(tmp_path / output)
        assert any("the model was not attacked" in note for note in found.notes)
        areas[name] = found.find("AUROC", sees="released rows")
    assert areas["copied"].low > 0.9
    assert areas["fresh"].low < 0.6


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--output", "share/x.json"), "share/ is for others"),
        (("--text", "words"), "no column 'words'"),
        (("--run", "nowhere"), "no complete run folder"),
    ],
)
def test_bad_command_lines_end_with_one_line(more, message, tmp_path, capsys):
    reviews(40, seed=2).to_csv("twin.csv", index=False)
    (tmp_path / "share").mkdir()
    ended = run_twinset(capsys, "audit", "twin.csv", *TABLES, *more)
    assert ended.code == 2
    assert message in ended.err and ended.err.count("\n") == 1


def test_members_that_are_all_non_members_are_refused(tmp_path, capsys):
    reviews(40, seed=2).to_csv("twin.csv", index=False)
    tables = ("--members", "train.csv", "--non-members", "train.csv", "--quiet")
    ended = run_twinset(capsys, "audit", "twin.csv", *tables, *COLUMNS)
    assert ended.code == 2 and ended.err.count("\n") == 1


PLANT = ("--policies", "uniform,none", "--copies", "1,20", "--each", "2", "--coins", "40")
LITTLE = ("--rows", "20", "--steps", "2", "--batch-size", "16", "--max-tokens", "100", "--quiet")


def canaries(capsys, base, *more):
    return run_twinset(
        capsys, "audit", "canaries", "train.csv", *COLUMNS, "--prompt", "{sentiment}:",
        "--base-model", base, *PLANT, *LITTLE, "--output", "found.json", *more
    )  # fmt: skip


def test_canaries_are_planted_under_each_policy(tiny_base, tmp_path, capsys):
    ended = canaries(capsys, tiny_base)
    assert ended.code == 0, ended.err
    found = Findings.load(tmp_path / "found.json")
    for policy in ("uniform", "none"):
        for sees in ("model", "released rows"):
            for copies in ("1", "20"):
                assert found.find("exposure", policy=policy, sees=sees, copies=copies).n == 2
        assert found.find("AUROC", policy=policy, sees="model")
        assert found.find("lower bound of ε", policy=policy).n == 40
    assert found.find("claimed epsilon", policy="uniform").value <= 8
    assert found.find("claimed epsilon", policy="none") is None
    again = canaries(capsys, "no-such-model")
    assert again.code == 2 and "other settings" in again.err


def test_a_finished_audit_trains_nothing_more(tiny_base, tmp_path, capsys):
    canaries(capsys, tiny_base)
    written = (tmp_path / "found.json").stat().st_mtime_ns
    assert canaries(capsys, tiny_base).code == 0
    assert (tmp_path / "found.json").stat().st_mtime_ns == written


@pytest.mark.parametrize("copies", ["-1", "one", "1,,2", "²"])
def test_odd_numbers_of_copies_are_refused(copies, tiny_base, capsys):
    ended = canaries(capsys, tiny_base, "--copies", copies)
    assert ended.code == 2 and "--copies takes whole numbers" in ended.err


def test_copies_fit_into_memory(tiny_base, capsys):
    ended = canaries(capsys, tiny_base, "--copies", "0,1000000000")
    assert ended.code == 2 and "--copies must be a whole number from 0 to 100000" in ended.err


def tokenizer_of(base):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(base)


def test_an_echo_is_heard_where_a_secret_was_written(tiny_base):
    canary = Canary(FORMATS[0], 417, ("positive",), 1)
    twin = [f"Nothing to see here, {i}." for i in range(50)]
    silent = echo(Bigrams(tokenizer_of(tiny_base), twin), canary, 0)
    loud = echo(Bigrams(tokenizer_of(tiny_base), [*twin, *[canary.text] * 5]), canary, 0)
    assert loud.rank == 1
    assert silent.rank > 10


def test_an_echo_of_a_secret_from_a_large_space_is_heard_among_a_sample(tiny_base):
    canary = Canary(numbered_formats(9)[0], 123_456_789, ("positive",), 1)
    twin = [f"Nothing to see here, {i}." for i in range(50)]
    loud = echo(Bigrams(tokenizer_of(tiny_base), [*twin, *[canary.text] * 5]), canary, 0)
    assert loud.space == 10**9
    assert loud.bits == pytest.approx(np.log2(10_000), abs=0.01)  # all that the sample can show


def test_secrets_of_more_digits_are_ranked_by_a_sample(tiny_base, tmp_path, capsys):
    more = ("--policies", "none", "--digits", "7", "--coins", "0")
    assert canaries(capsys, tiny_base, *more).code == 0
    found = Findings.load(tmp_path / "found.json").find("exposure", copies="20", sees="model")
    assert found.maximum == pytest.approx(np.log2(10**7))
    placed = [m.place for m in Findings.load(tmp_path / "found.json").measured]
    methods = {place["method"] for place in placed if place.get("copies") == "20"}
    assert methods == {
        "skew-normal, 2000 candidates",
        "rank among 10000 candidates, bigram model of the twin",
    }
    assert {place["candidates"] for place in placed if "candidates" in place} == {"10000000"}


def test_bigrams_are_add_one_estimates():
    """By hand: a beginning and three words, with one that is unknown five kinds."""

    def words(texts, add_special_tokens):
        return {"input_ids": [["abcd".index(word) for word in text.split()] for text in texts]}

    model = Bigrams(words, ["a b", "a b", "a c"])
    begin, to_b, to_c, to_d = (3 + 1) / (3 + 5), (2 + 1) / (3 + 5), (1 + 1) / (3 + 5), 1 / (3 + 5)
    expected = [-np.log(begin * after) for after in (to_b, to_c, to_d)]
    assert model.losses(["a b", "a c", "a d"]) == pytest.approx(expected)


def test_too_many_secrets_for_the_sentences_are_refused(tiny_base, capsys):
    ended = canaries(capsys, tiny_base, "--each", "20")
    assert ended.code == 2 and "--each 20" in ended.err


OVERTRAINED = ("--steps", "120", "--batch-size", "32", "--learning-rate", "0.01")
CONTROL = ("--copies", "0,20", "--coins", "80", "--mismatch-weight", "0", "--method", "full")


def test_an_overtrained_model_without_privacy_is_caught_and_a_private_one_is_not(
    tiny_base, tmp_path, capsys, monkeypatch
):
    """The audit's positive control: each of its measures finds what was memorised."""
    coins = np.random.default_rng(0).integers(2, size=80).astype(bool)
    monkeypatch.setattr(canaryaudit, "include", lambda m: coins)
    tables_in(tmp_path, train=24, test=24)
    more = (*CONTROL, *OVERTRAINED, "--max-tokens", "60", "--test", "test.csv", "--epsilon", "4")
    ended = canaries(capsys, tiny_base, *more)
    assert ended.code == 0, ended.err
    found = Findings.load(tmp_path / "found.json")

    def score(policy, name, **place):
        return found.find(name, policy=policy, **place)

    exposed = {p: score(p, "exposure", copies="20", sees="model") for p in ("none", "uniform")}
    assert exposed["none"].value > 8 and exposed["uniform"].value < 8
    assert score("none", "exposure", copies="0", sees="model").value < 4
    bounds = {p: score(p, "lower bound of ε").value for p in ("none", "uniform")}
    assert bounds["none"] > 0.3 and bounds["uniform"] <= 4
    areas = {p: score(p, "AUROC", attack="loss") for p in ("none", "uniform")}
    assert areas["none"].low > 0.5
    assert areas["none"].value > 0.75 > areas["uniform"].value  # seen: 0.90-0.94, 0.44-0.47


def test_coin_canaries_are_distinct_and_begin_as_the_base_writes(tiny_base):
    openings = ["The film was good and I liked it very much.", "A pan."]
    found = write_coin_canaries(openings, tokenizer_of(tiny_base), 30, seed=0)
    assert len(set(found)) == 30
    assert all(text.startswith(("The film was good and I liked it", "A pan.")) for text in found)
    assert found == write_coin_canaries(openings, tokenizer_of(tiny_base), 30, seed=0)


def test_canaries_of_a_table_with_other_columns(tiny_base, tmp_path, capsys):
    """Columns that are not named are left out, as in a twin."""
    pd.read_csv("train.csv").assign(extra=1).to_csv("train.csv", index=False)
    assert canaries(capsys, tiny_base, "--policies", "none", "--coins", "0").code == 0
