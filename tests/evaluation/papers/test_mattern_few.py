"""Paper 002's claim on few records: what its twins spend, its differences, and a whole run."""

import pytest

from evaluation.papers import mattern_few
from evaluation.papers.mattern import DP_BASELINE, REAL, TWIN, Level, baseline
from evaluation.papers.mattern_few import MatternFew, OwnRecipe, Tables, levels, twin
from evaluation.papers.review_twins import ACCURACY, DATA, IMDB, NO_LOSS, NUCLEUS, Reviews
from evaluation.papers.study import read_size
from evaluation.papers.study_rows import Results
from tests.helpers.evaluated import reviews as made_up
from tests.helpers.evaluated import without_downloads
from tests.helpers.study_runs import stopped_and_finished
from twinset.privacy.accounting.events import SubsampledGaussian
from twinset.progress import Silent

TINY = read_size("mattern_few", "tiny")


def test_no_size_trains_a_step():
    """What takes no steps has no other releases than counts: the page says so of all twins."""
    for size in ("tiny", "cpu", "full"):
        assert read_size("mattern_few", size)["training"]["steps"] == 0


def test_a_twin_spends_its_epsilon_on_counts_alone(tiny_base):
    size = TINY | {"base_model": str(tiny_base)}
    writer = OwnRecipe(Reviews(IMDB, made_up(80, 0), made_up(40, 1), made_up(0, 2)), size, Silent())
    (one,) = writer.train(25, 3.0, NO_LOSS, seed=0)
    events = one.model.ledger.events
    assert one.model.ledger.records == 25 and 2.7 < one.model.guarantee.epsilon <= 3
    assert events and not any(isinstance(event, SubsampledGaussian) for event in events)
    assert one.model.tilt is not None and one.model.teacher is None
    assert set(writer.written([one], NUCLEUS, 0)["sentiment"]) == {"negative", "positive"}


def test_a_cost_is_all_real_rows_less_a_twin_seed_by_seed(tmp_path):
    results = Results(tmp_path / "r.json", {})
    for data in DATA:
        for level in levels(TINY, data):
            for seed in range(3):
                worth = {REAL: 0.9, TWIN: 0.6}.get(level.source, 0.7) + seed / 100
                shown = {c: worth for c in TINY["classifiers"]}
                targets = ("sentiment", "product", "sentiment × product")
                results.rows[(*level, seed)] = {ACCURACY: dict.fromkeys(targets, shown)}
    for line in Tables(results, TINY).differences():
        assert line["all real rows less twin"].value == pytest.approx(0.3)
        assert line["all real rows less twin"].above(0)
        assert line["twin less no private data"].value == pytest.approx(-0.1)
        assert ("twin less DP classifier" in line) == (line["classifier"] == "minilm")


def test_levels_are_those_of_the_claim():
    found = list(levels(TINY, IMDB))
    assert len(found) == len(set(found))
    assert {level.records for level in found if level.source == TWIN} == {"25", "50"}
    assert twin(IMDB, "50", "8") in found and baseline(IMDB) in found
    assert Level(IMDB, DP_BASELINE, "25", "3") in found


@pytest.mark.slow
def test_from_the_command_to_its_files(options_of, tiny_base, monkeypatch):
    tables = {
        f"{data}-{part}": made_up(rows, seed).drop(columns=columns)
        for data, columns in (("imdb", ["product"]), ("amazon", []))
        for seed, (part, rows) in enumerate((("train", 80), ("test", 40)))
    }
    without_downloads(monkeypatch)
    options = options_of(tables, "--base-model", tiny_base)
    done = stopped_and_finished(MatternFew, options, monkeypatch, mattern_few, "make_row", after=9)
    assert done.before == 9 and done.calls == len(done.found["rows"])
    for row in done.found["rows"]:
        _, source, _, asked, _, _ = row["key"]
        if source == TWIN:
            assert row["rows"] == 12 and 0.9 * float(asked) < row["epsilon"] <= float(asked)
    assert "SHA-256" in done.page and "same few" in done.page
