"""Paper 002: its tables of reviews, its twins, and a run from the command to its files."""

import math
from pathlib import Path

import pytest
from opacus.accountants import RDPAccountant

from evaluation.papers import mattern, review_twins, stated_epsilon, study
from evaluation.papers.mattern import (
    ALL,
    MAIN,
    TWIN,
    UNLIMITED,
    Level,
    Mattern,
    Tables,
    baseline,
    twin,
)
from evaluation.papers.review_twins import ACCURACY, AMAZON, IMDB, Reviews, Scorer, Writer
from evaluation.papers.run_context import RunContext
from evaluation.papers.study import read_size
from evaluation.papers.study_rows import Results
from evaluation.utility.embeddings import SentenceEncoder
from tests.helpers.evaluated import reviews as made_up
from tests.helpers.evaluated import without_downloads
from tests.helpers.study_runs import run_study, stopped_and_finished
from twinset.errors import InputError
from twinset.privacy.accounting.accountant import epsilon
from twinset.privacy.accounting.events import SubsampledGaussian
from twinset.privacy.accounting.gaussian_mechanism import gaussian_epsilon
from twinset.progress import Silent

TINY = read_size("mattern", "tiny")


@pytest.fixture
def options(options_of, tiny_base):
    tables = {
        f"{data}-{part}": made_up(rows, seed).drop(columns=columns)
        for data, columns in (("imdb", ["product"]), ("amazon", []))
        for seed, (part, rows) in enumerate((("train", 80), ("test", 40)))
    }
    return options_of(tables, "--base-model", tiny_base)


@pytest.fixture
def size(tiny_base):
    return TINY | {"base_model": str(tiny_base)}


def table_of(name, spare=0):
    return Reviews(name, made_up(80, 0), made_up(40, 1), made_up(spare, 2))


def test_the_full_size_is_the_scripts():
    size = read_size("mattern", "full")
    assert (size["base_model"], size["batch_size"], size["epochs"]) == ("gpt2", 8, 3)
    assert size["few_steps"] == 3 * max(map(int, mattern.FEW)) // 8
    training = size["training"]
    assert (training["max_grad_norm"], training["learning_rate"]) == (0.1, 8e-6)
    forms = [loss["form"] for loss in (size["loss"], *size["other_losses"])]
    assert forms.count("published") == 3 and forms.count("bounded") == 2


def test_labels_that_no_model_was_trained_on_are_refused(options, tmp_path):
    (tmp_path / "imdb-test.csv").write_text("text,sentiment\nSo so.,mixed\n")
    with pytest.raises(InputError, match=r"imdb-test\.csv: has labels that imdb-train\.csv lacks"):
        run_study(Mattern, *options)


def test_few_records_are_of_all_labels():
    table = table_of(AMAZON)
    for records in map(int, mattern.FEW):
        drawn = table.drawn(records, seed=3)
        counts = drawn.groupby(["sentiment", "product"]).size()
        assert len(drawn) == records and counts.max() - counts.min() <= 1
        assert drawn.index.is_unique
        assert drawn.equals(table.drawn(records, seed=3))
        assert not drawn.equals(table.drawn(records, seed=4))
    assert table.drawn(None, seed=3) is table.train


def test_members_are_compared_with_spare_rows_where_there_are_enough(options, tmp_path):
    table = table_of(IMDB, spare=review_twins.FEWEST)
    assert table.others.equals(table.spare)
    assert table_of(IMDB, spare=review_twins.FEWEST - 1).others.equals(table.test)
    read = Reviews.read(IMDB, tmp_path / "imdb-train.csv", tmp_path / "imdb-test.csv", TINY)
    assert (len(read.train), len(read.spare), len(read.test)) == (60, 20, 40)
    whole = made_up(80, 0)
    assert sorted([*read.train["text"], *read.spare["text"]]) == sorted(whole["text"])


def test_short_rows_are_real_ones_cut_as_a_twins(size):
    table = table_of(IMDB)
    rows = table.drawn(12, seed=0)
    short = Writer(table, size, Silent()).cut(rows)
    assert short["sentiment"].equals(rows["sentiment"])
    for cut, whole in zip(short["text"], rows["text"], strict=True):
        assert whole.startswith(cut) and cut
    brief = size | {"training": size["training"] | {"max_tokens": 2}}
    cut = Writer(table, brief, Silent()).cut(rows)["text"]
    assert cut.str.len().lt(rows["text"].str.len()).all()


def test_every_row_has_a_key_of_its_own():
    keys = list(Mattern("tiny").keys(3))
    levels = [level for data in (IMDB, AMAZON) for level in mattern.levels(TINY, data)]
    assert len(set(keys)) == len(keys) == 3 * len(levels)
    assert (IMDB, mattern.BASELINE, "0", "0", "no mismatch loss", 0) in keys
    assert (AMAZON, TWIN, ALL, UNLIMITED, "bounded, λ = 8", 2) in keys


@pytest.mark.parametrize("stated", stated_epsilon.STATED)
def test_the_scripts_noise_is_that_of_1000_records(stated):
    """By the accountant that set it, it has the ε stated; a tighter one finds less."""
    sigma, delta = stated_epsilon.noise_multiplier(stated), 1000**-1.1
    renyi = RDPAccountant()
    renyi.history = [(sigma, 8 / 1000, 375)]
    assert stated - 2e-3 < renyi.get_epsilon(delta) <= stated
    assert float(stated_epsilon.poisson(stated, 1000)) < stated


def test_fewer_records_have_more_than_the_stated_epsilon():
    worth = [float(stated_epsilon.poisson(3.0, n)) for n in stated_epsilon.RECORDS]
    assert worth == sorted(worth, reverse=True)
    assert worth[1] > 3.0 > worth[2]
    # 25 records: 3 passes of 4 batches, each with 8 of 25
    event = SubsampledGaussian(stated_epsilon.noise_multiplier(3.0), 8 / 25, 12)
    assert epsilon([event], 1000**-1.1) == pytest.approx(worth[0], abs=0.01)
    assert float(stated_epsilon.poisson(3.0, 25, 1e-5)) > worth[0]
    # in the order of the file a record is in three sums, whatever N is
    mu = 3**0.5 / stated_epsilon.noise_multiplier(3.0)
    expected = gaussian_epsilon(mu, 1000**-1.1)
    assert float(stated_epsilon.file_order(3.0)) == pytest.approx(expected, abs=0.01)


def test_the_page_has_a_line_for_each_number_of_records():
    page = " ".join((study.PUBLISHED / "mattern.md").read_text("utf-8").split())
    for line in stated_epsilon.worth():
        assert f"| {' | '.join(line.values())} |" in page
    few = stated_epsilon.fewest()
    assert f"called ε = 3 have ε = {few['poisson']} at that δ" in page
    rows = Results.load(study.PUBLISHED / "mattern.json").rows.values()
    assert {row["delta"] for row in rows if row.get("epsilon")} == {stated_epsilon.OUR_DELTA}


def test_models_of_one_label_see_that_label_alone(size):
    writer = Writer(table_of(AMAZON), size, Silent())
    models = writer.train(None, float(MAIN), review_twins.NO_LOSS, 0, apart=True)
    moods = [(m, p) for m in ("negative", "positive") for p in ("film", "pan")]
    assert [one.combinations for one in models] == [(one,) for one in moods]
    for one in models:
        assert one.model.ledger.records == 20
        assert one.model.guarantee.epsilon <= float(MAIN)
    written = writer.written(models, review_twins.NUCLEUS, 0)
    assert written.groupby(["sentiment", "product"]).size().tolist() == [3, 3, 3, 3]


def test_a_model_that_writes_nothing_is_worth_a_guess(size, monkeypatch):
    without_downloads(monkeypatch)
    table = table_of(IMDB)

    def broken(*args):
        raise InputError("no usable rows")

    monkeypatch.setattr(Writer, "written", broken)
    context = RunContext(Silent(), Path("unused"))
    scorer = Scorer(table, size, SentenceEncoder())
    row = mattern.make_row(mattern.Run(*Level(IMDB, TWIN, ALL, MAIN), 0), size, scorer, context)
    assert row["rows"] == 0
    assert row[ACCURACY]["sentiment"]["tfidf"] == table.guesses()["sentiment"] == 0.5
    with pytest.raises(InputError, match="no usable rows"):  # of the main table it may not be
        mattern.make_row(mattern.Run(*twin(size, IMDB), 0), size, scorer, context)


def test_a_leak_is_what_is_above_the_same_seeds_chance(tmp_path):
    """Which records were drawn moves both; without pairs the interval would include 0."""
    results = Results(tmp_path / "a.json", {})
    for seed, drawn in enumerate((0.0, 0.1, 0.3)):
        chance = {"chance": {"25": {"nearest": 0.5 + drawn}}}
        results.rows[*baseline(IMDB), seed] = chance
        results.rows[*twin(TINY, IMDB, "25"), seed] = {
            "leaks": {"AUROC": {"nearest": 0.6 + drawn + seed / 1000}}
        }
    found = Tables(results, TINY).revealed(twin(TINY, IMDB, "25"), "nearest")
    assert found.value == pytest.approx(0.101) and found.above(0)


@pytest.mark.slow
def test_from_the_command_to_its_files(options, monkeypatch):
    without_downloads(monkeypatch)
    done = stopped_and_finished(Mattern, options, monkeypatch, mattern, "make_row", after=12)
    assert done.before == 12 and done.calls == len(done.found["rows"])
    for row in done.found["rows"]:
        check(row)
    for said in ("∼3% lower", "SHA-256", "one model per label", "typical 0.1", "bounded, λ = 8"):
        assert said in done.page


def check(row):
    """ε is as asked and stands only where noise was; shares are shares."""
    _, source, _, asked, _, _ = row["key"]
    scores = row[ACCURACY]
    assert all(0 <= value <= 1 for by in scores.values() for value in by.values())
    if source in (TWIN, mattern.APART):
        assert row["rows"] == 12
        assert math.isfinite(row.get("perplexity", 1.0))
        if asked == UNLIMITED:
            assert row["epsilon"] is None
        else:
            assert 0 < row["epsilon"] <= float(asked)
            assert row["epsilon"] > 0.9 * float(asked)
