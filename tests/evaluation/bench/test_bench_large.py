"""The benchmark of large tables: its table, its page, and a small run of it."""

import pandas as pd
import pytest

from evaluation.bench.large import WORDS, Work, known_words, markdown, measure, write_table
from evaluation.results_store import ResultsStore
from twinset.data.records import read_records


def test_the_table_has_texts_of_sixty_words_that_differ(tmp_path):
    for name in ("a.csv", "b.csv"):
        write_table(tmp_path / name, 200)
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    frame = pd.read_csv(tmp_path / "a.csv")
    assert set(frame["review"].str.split().map(len)) == {WORDS} and frame["review"].is_unique
    records, _ = read_records(tmp_path / "a.csv", "review", ["mood", "product"])
    assert len(set(records.labels)) == len(records.schema.combinations) == 10
    assert len(known_words()) == len(set(known_words())) == 2000


def part(memory: int) -> dict:
    names = "read_frame records_from_frame prepare record_settings tokenise _write_twin".split()
    return {
        "bytes": memory,
        "token_bytes": 3_000_000,
        "start_seconds": [4.0, 3.0],
        "step_seconds": [0.5, 0.25],
        "seconds": {name: [2.0, 1.0] for name in names},
        "left": [],
    }


def test_the_page_has_a_column_for_each_size(tmp_path):
    size = {
        "table_bytes": 5_000_000,
        "draw_seconds": 0.001,
        "steps": 9,
        "batch_size": 4,
        "rows": 10,
    }
    store = ResultsStore.open(tmp_path / "large.json", {"machine": "m"}, "python -m x")
    for n in (10**7, 10**6):
        store.add((n,), size | {"first": part(n), "resumed": part(2 * n)})
    page = markdown(store)
    assert "|  | 1,000,000 records | 10,000,000 records |" in page
    assert "| **peak memory, first start to step 2** | 1 MB | 10 MB |" in page
    assert "| **peak memory, resumed to the end** | 2 MB | 20 MB |" in page
    assert "| **resumed: from start to first step** | 4.00 s (3.00 s) |" in page
    assert "| rows a second | 5 (10) |" in page and page.count("`python -m x`") == 1


@pytest.mark.slow
def test_a_small_run_is_measured_and_leaves_no_tokens(tmp_path):
    found = measure(300, Work(steps=4, batch_size=16, rows=4, max_tokens=32), tmp_path)
    first, resumed = found["first"], found["resumed"]
    assert first["bytes"] > 0 and first["token_bytes"] > 300 * 4 * 30
    assert first["left"] == ["values.bin"] and resumed["left"] == []
    assert first["seconds"]["tokenise"][0] > 0 and resumed["start_seconds"][0] > 0
    assert "_write_twin" in resumed["seconds"] and "_write_twin" not in first["seconds"]
    assert (tmp_path / "run/share/twin.csv").is_file() and found["draw_seconds"] > 0
