"""Paper 002's experiment, from the command line to its files, on made-up reviews."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from evaluated import reviews as made_up
from evaluated import without_downloads
from experiments import run, stopped_and_finished

from evaluation.embeddings import SentenceEncoder
from evaluation.papers.intervals import Interval
from evaluation.papers.mattern import scoring
from evaluation.papers.mattern.__main__ import app
from evaluation.papers.mattern.cases import (
    APART,
    BASELINE,
    BUDGETS,
    COMPARED,
    DATA,
    RECORDS,
    RIVAL,
    TWIN,
    Case,
    Level,
    baseline,
    cases,
    levels,
)
from evaluation.papers.mattern.claims import better, leaks, utility, verdicts
from evaluation.papers.mattern.found import Found, gap, over_rival
from evaluation.papers.mattern.published import AMAZON, EPSILONS, FEW, GAP, IMDB, SAMPLE_SIZE, spent
from evaluation.papers.mattern.reviews import FEWEST, Paths, Reviews, read_reviews
from evaluation.papers.mattern.sizes import NUCLEUS, OFF, SIZES
from evaluation.papers.mattern.tables import sections
from evaluation.papers.mattern.writing import Writer
from evaluation.papers.rows import Rows
from evaluation.papers.verdict import Word
from evaluation.papers.workshop import Workshop
from twinset.errors import InputError
from twinset.progress import Silent

TINY = SIZES["tiny"]
FILES = ("imdb-train", "imdb-test", "amazon-train", "amazon-test")


@pytest.fixture
def options(tmp_path, tiny_base):
    found = ["--base-model", str(tiny_base)]
    for seed, name in enumerate(FILES):
        path = tmp_path / f"{name}.csv"
        frame = made_up(80 if "train" in name else 40, seed)
        frame.drop(columns=[] if "amazon" in name else ["product"]).to_csv(path, index=False)
        found += [f"--{name}", str(path)]
    return [*found, "--size", "tiny", "--seeds", "1", "--output", str(tmp_path / "out")]


def table_of(name, spare=0):
    return Reviews(name, made_up(80, 0), made_up(40, 1), made_up(spare, 2))


def test_a_plan_reads_no_test_rows_and_trains_nothing(options, tmp_path):
    for name in ("imdb", "amazon"):
        (tmp_path / f"{name}-test.csv").unlink()
    plan = run(app, *options, "--dry-run")
    assert "2 steps of 25 from 25 records" in plan
    assert "4 models, each ε = 8" in plan
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("size", SIZES)
def test_a_plan_needs_no_files(size, tmp_path):
    plan = run(app, "--size", size, "--seeds", "2", "--output", tmp_path / "out", "--dry-run")
    assert "as many rows as the size takes" in plan
    rows = 2 * sum(len(list(levels(data, SIZES[size]))) for data in DATA)
    assert plan.endswith(f"{rows} rows with 2 seeds\n")


def test_the_full_plan_has_the_papers_sizes():
    plan = run(app, "--size", "full", "--dry-run")
    for said in (
        "gpt2,",
        "from 5,000 records",
        "from 4,000 records",
        "C = 0.1",
        "8e-06",
        "encoder",
    ):
        assert said in plan
    assert [loss.form for loss in SIZES["full"].losses].count("published") == 4  # and none


@pytest.mark.parametrize(("more", "option"), [([], "--imdb-train"), (FILES[:1], "--imdb-test")])
def test_files_are_asked_for(more, option):
    named = [part for name in more for part in (f"--{name}", "a.csv")]
    with pytest.raises(InputError, match=f"{option}.*: name a file"):
        run(app, *named)


def test_labels_that_nobody_learnt_are_refused(options, tmp_path):
    (tmp_path / "imdb-test.csv").write_text("text,sentiment\nSo so.,mixed\n")
    with pytest.raises(InputError, match=r"imdb-test\.csv: has labels that imdb-train\.csv lacks"):
        run(app, *options)


def test_few_records_are_of_all_labels():
    table = table_of(AMAZON)
    for records in FEW:
        drawn = table.drawn(records, seed=3)
        counts = drawn.groupby(["sentiment", "product"]).size()
        assert len(drawn) == records and counts.max() - counts.min() <= 1
        assert drawn.index.is_unique
        assert drawn.equals(table.drawn(records, seed=3))
        assert not drawn.equals(table.drawn(records, seed=4))
    assert table.drawn(None, seed=3) is table.train


def test_members_are_told_from_spare_rows_where_there_are_enough(options, tmp_path):
    table = table_of(IMDB, spare=FEWEST)
    assert table.others.equals(table.spare)
    assert table_of(IMDB, spare=FEWEST - 1).others.equals(table.test)
    read = read_reviews(Paths(*(tmp_path / f"{name}.csv" for name in FILES)), TINY, IMDB)
    assert (len(read.train), len(read.spare), len(read.test)) == (60, 20, 40)
    whole = made_up(80, 0)
    assert sorted([*read.train["text"], *read.spare["text"]]) == sorted(whole["text"])


def test_short_rows_are_real_ones_cut_as_a_twins(tiny_base):
    table, size = table_of(IMDB), replace(TINY, base_model=str(tiny_base))
    rows = table.drawn(12, seed=0)
    short = Writer(table, size, Silent()).cut(rows)
    assert short["sentiment"].equals(rows["sentiment"])
    for cut, whole in zip(short["text"], rows["text"], strict=True):
        assert whole.startswith(cut) and cut
    brief = Writer(table, replace(size, max_tokens=2), Silent()).cut(rows)["text"]
    assert brief.str.len().lt(rows["text"].str.len()).all()


def test_every_row_has_a_name_of_its_own():
    keys = [case.key for case in cases(TINY, 3)]
    assert len(set(keys)) == len(keys) == 3 * sum(len(list(levels(d, TINY))) for d in DATA)
    assert Case(baseline(IMDB), 0).key == (IMDB, BASELINE, "0", "0", str(OFF), 0)


def test_the_scripts_noise_is_not_what_they_say():
    assert spent(3.0, SAMPLE_SIZE) == pytest.approx(3.0, abs=0.02)
    assert spent(3.0, 25) > spent(3.0, 50) > 10
    assert spent(3.0, 5000) < 3.0


def test_models_of_one_label_see_that_label_alone(tiny_base):
    table = table_of(AMAZON)
    size = replace(TINY, base_model=str(tiny_base))
    level = Level(AMAZON, APART, None, COMPARED)
    models = Writer(table, size, Silent()).trained(Case(level, 0))
    moods = [(m, p) for m in ("negative", "positive") for p in ("film", "pan")]
    assert [one.combinations for one in models] == [(one,) for one in moods]
    for one in models:
        assert one.model.ledger.records == 20
        assert one.model.guarantee.epsilon <= COMPARED
    twin = Writer(table, size, Silent()).written(models, NUCLEUS, 0)
    assert twin.groupby(["sentiment", "product"]).size().tolist() == [3, 3, 3, 3]


def near(value, width=0.01):
    return Interval(value, value - width, value + width, 3)


@pytest.mark.parametrize(
    ("gaps", "word"),
    [
        ([near(0.0), near(0.01)], Word.HELD),
        ([near(0.0), near(0.2)], Word.PARTLY),
        ([near(0.2), near(0.1)], Word.NOT_HELD),
        ([near(GAP), near(GAP)], Word.UNDECIDED),
    ],
)
def test_the_cost_of_a_twin_is_judged_by_intervals(gaps, word):
    assert utility("tfidf", dict(zip("ab", gaps, strict=True))).word == word


@pytest.mark.parametrize(
    ("difference", "word"),
    [(near(0.1), Word.HELD), (near(-0.1), Word.NOT_HELD), (near(0.0), Word.UNDECIDED)],
)
def test_what_is_better_is_above_zero(difference, word):
    assert better("IMDb", "it is better", {"a": difference}).word == word


@pytest.mark.parametrize(
    ("private", "bare", "word"),
    [
        (near(0.01), near(0.2), Word.HELD),
        (near(0.1), near(0.2), Word.NOT_HELD),
        (near(0.04, 0.05), near(0.2), Word.UNDECIDED),
        (near(0.01), near(0.0), Word.UNDECIDED),  # nothing that privacy could prevent
    ],
)
def test_a_leak_is_judged_where_one_can_be_seen(private, bare, word):
    judged = leaks("IMDb", {"nearest": bare}, {"nearest": {"ε = 3": private}})
    assert judged.word == word
    assert ("not judged" in judged.details[-1]) == (not bare.above(0))


def test_a_model_that_writes_nothing_is_worth_a_guess(tiny_base, monkeypatch):
    without_downloads(monkeypatch)
    table = table_of(IMDB)
    size = replace(TINY, base_model=str(tiny_base))

    def broken(*args):
        raise InputError("no usable rows")

    monkeypatch.setattr(Writer, "written", broken)
    workshop = Workshop(Silent(), Path("unused"))
    scorer = scoring.Scorer(table, size, SentenceEncoder())
    row = scorer.row(Case(Level(IMDB, TWIN, None, COMPARED), 0), workshop)
    assert row["rows"] == 0
    assert row[scoring.ACCURACY]["sentiment"]["tfidf"] == table.guesses()["sentiment"] == 0.5
    main = Case(Level(IMDB, TWIN, None, COMPARED, TINY.mismatch), 0)
    with pytest.raises(InputError, match="no usable rows"):  # of the main table it may not be
        scorer.row(main, workshop)


def made_row(case, accuracy, fidelity):
    """A row as `scoring` makes it, with the same number for all targets and classifiers."""
    level, shift = case.level, 0.001 * case.seed
    names = ["sentiment"] if level.data == IMDB else ["sentiment", "product", "sentiment × product"]

    def by_target(value):
        return {t: dict.fromkeys(TINY.classifiers, value + shift) for t in names}

    row = {"records": 50, "rows": 12, "seconds": 1.0, "epsilon": 1.0, "delta": 1e-5}
    row |= {scoring.ACCURACY: by_target(accuracy), scoring.FIDELITY: by_target(fidelity)}
    row[scoring.DISTINCT] = 0.5
    if level.source in (TWIN, BASELINE, APART):
        row["decodings"] = dict.fromkeys(("typical 0.1", "all tokens"), dict(row))
        row["perplexity"] = 100.0 + shift
        drawn = 0.1 * case.seed  # which rows were drawn moves both, so that only pairs are judged
        auroc = 0.7 if level.epsilon is None else 0.5
        where = ("train", "held-out")
        names = ("longest verbatim run", "rows with a run of 8 words")
        shared = {f"{name}, {at}": 0.0 for name in names for at in where}
        row["leaks"] = {"AUROC": {"nearest": auroc + drawn}, "shared": shared}
        row["chance"] = dict.fromkeys(("25", "50", "all"), {"nearest": 0.5 + drawn})
    return row


@pytest.fixture
def finished(tmp_path):
    rows = Rows.open(tmp_path / "a.json", {"size": "tiny"}, "command")
    for case in cases(TINY, 3):
        better_by_loss = case.level.mismatch != OFF and case.level.source == TWIN
        accuracy = {TWIN: 0.79, RIVAL: 0.7, BASELINE: 0.5}.get(case.level.source, 0.8)
        rows.rows[case.key] = made_row(case, accuracy, 0.9 if better_by_loss else 0.6)
    facts = {"train": 60, "test": 40, "coinciding": 0, "others": "test rows"}
    facts["guesses"] = {"sentiment": 0.5}
    rows.facts = dict.fromkeys(DATA, facts)
    return Found(rows, TINY)


def test_all_claims_hold_of_rows_made_to_hold(finished):
    judged = list(verdicts(finished))
    assert {str(one.word) for one in judged} == {"held"}
    assert len(judged) == 3 * 3 + 2 * 2  # each attribute's accuracy, and two more of each table
    assert gap(finished, IMDB, "sentiment", "tfidf", 25, 3.0).value == pytest.approx(0.01)
    assert over_rival(finished, AMAZON, "product", "minilm", None, 8.0).value == pytest.approx(0.09)


def test_claims_fail_of_rows_made_to_fail(finished):
    for (data, source, *_, seed), row in finished.rows.rows.items():
        if source == TWIN:
            nothing = finished.of(baseline(data))[seed]
            row[scoring.ACCURACY] = nothing[scoring.ACCURACY]
            row["leaks"]["AUROC"] = {"nearest": 0.9}
    by_claim = {one.because.split(" (")[0]: one.word for one in verdicts(finished)}
    *accuracy, learnt, faithful, leaked = by_claim.values()
    assert accuracy == [Word.NOT_HELD, Word.NOT_HELD]
    assert (learnt, faithful, leaked) == (Word.UNDECIDED, Word.HELD, Word.NOT_HELD)


def test_tables_have_a_line_for_every_level(finished):
    by_title = {section.title: section.lines for section in sections(finished)}
    lines = [x for x in by_title["IMDb: accuracy on real test rows"] if x.startswith("| ")]
    twins = len(RECORDS) * len(BUDGETS)
    assert len(lines) == 2 + len(RECORDS) * (1 + len(EPSILONS)) + 2 + twins
    assert sum(line.startswith(f"| {TWIN} ") for line in lines) == twins
    losses = by_title["Amazon: with and without the mismatch loss"]
    assert sum(line.startswith(("| 8 ", "| ∞ ")) for line in losses) == 2 * len(TINY.losses)


@pytest.mark.slow
def test_from_the_command_line_to_its_files(options, tmp_path, monkeypatch):
    without_downloads(monkeypatch)
    done = stopped_and_finished(app, options, monkeypatch, scoring.Scorer, "row", after=12)
    keys = [tuple(row["key"]) for row in done.found["rows"]]
    assert keys == [case.key for case in cases(TINY, 1)]
    assert done.before == 12 and done.calls == len(keys)
    for row in done.found["rows"]:
        check(row)
    for said in ("∼3% lower", "SHA-256", "one model per label", "typical 0.1", "bounded, λ = 8"):
        assert said in done.page


def check(row):
    """ε is as asked and stands only where noise was; shares are shares."""
    _, source, _, asked, _, _ = row["key"]
    scores = row[scoring.ACCURACY]
    assert all(0 <= value <= 1 for by in scores.values() for value in by.values())
    if source in (TWIN, APART):
        assert row["rows"] == 12
        assert math.isfinite(row.get("perplexity", 1.0))
        if asked == "∞":
            assert row["epsilon"] is None
        else:
            assert 0 < row["epsilon"] <= float(asked)
            assert row["epsilon"] > 0.9 * float(asked)
