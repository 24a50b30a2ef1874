"""Coverage counts by hand, and `twinset detect` from the command line."""

import json
import stat
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.helpers.commands import MARKER, run_twinset
from twinset.policies.detection.coverage import NOT_PROTECTED, measure_coverage
from twinset.policies.detection.detectors import detector_named
from twinset.policies.detection.masking import mask

CUSTOMERS = Path(__file__).parents[3] / "shared" / "data" / "customersim" / "valid.csv.gz"


class Fixed:
    """Flags the same spans each time."""

    name = "fixed"

    def __init__(self, *spans):
        self._spans = spans

    def spans(self, texts):
        yield from self._spans


def measured(texts, secrets, *spans):
    return measure_coverage(texts, secrets, Fixed(*spans), lambda done, total: None)


def test_counts_by_hand():
    texts = ["Ann Lee called Ann.", "No one", "12 Elm, 12"]
    secrets = {"name": ["Ann", None, "Bo"], "house": [None, "  ", "12"]}
    coverage = measured(texts, secrets, [(0, 3)], [], [(0, 2), (3, 6)])
    found = {"occurrences": 2, "flagged": 1, "recall": 0.5}
    assert coverage.to_dict() == {
        "secrets": {
            "name": {"cells": 2, "not_in_text": 1, **found},
            "house": {"cells": 1, "not_in_text": 0, **found},
        },
        "records": 3,
        "flagged_records": 2,
        "words": 4 + 2 + 3,
        "flagged_words": 1 + 0 + 2,
        "characters": 19 + 6 + 10,
        "flagged_characters": 3 + 6,  # "Ann" and "12 Elm", which masking joins
        "flagged_secret_characters": 3 + 2,
        "precision": 5 / 9,
    }


@pytest.mark.parametrize(
    ("text", "cell", "spans", "occurrences", "flagged"),
    [
        ("Al also sees Al", "Al", [(0, 2)], 2, 1),  # not the one in "also"
        ("id A-1, A-1b", "A-1", [(3, 6)], 1, 1),
        ("call (555) 01.", "(555) 01.", [(6, 9), (11, 13)], 1, 1),  # letters and digits count
        ("call (555) 01.", "(555) 01.", [(6, 9)], 1, 0),  # only in part
        ("a+b", "a+b", [(0, 3)], 1, 1),  # no regular expression
        ("Ann ", " Ann ", [(0, 3)], 1, 1),
        ("ann", "Ann", [(0, 3)], 0, 0),
    ],
)
def test_occurrences(text, cell, spans, occurrences, flagged):
    found = measured([text], {"s": [cell]}, spans).secrets["s"]
    assert (found.occurrences, found.flagged) == (occurrences, flagged)
    assert found.not_in_text == (occurrences == 0)
    assert found.recall == (flagged / occurrences if occurrences else None)


def test_precision_needs_secrets_and_flags():
    assert measured(["a 1"], {}, [(2, 3)]).precision is None
    assert measured(["a 1"], {"s": ["1"]}, []).precision is None
    assert measured(["a 1"], {"s": ["1"]}, [(0, 3)]).precision == 1 / 3


def test_progress_counts_the_texts():
    calls = []
    texts = ["a", "b"]
    measure_coverage(texts, {}, Fixed([], []), lambda *done: calls.append(done))
    assert calls == [(1, 2), (2, 2)]


TABLE = pd.DataFrame(
    {
        "message": [f"{MARKER} says: order {n} of Ann is late" for n in range(100, 130)] + [None],
        "order": [*range(100, 129), 7, 8],
        "name": ["Ann"] * 31,
    }
)


@pytest.fixture
def policy(tmp_path, monkeypatch, capsys):
    """Run `twinset detect` on a table of messages, t.csv in the working folder."""
    monkeypatch.chdir(tmp_path)
    TABLE.to_csv("t.csv", index=False)
    return lambda *flags: run_twinset(capsys, "detect", "t.csv", "--text", "message", *flags)


def test_lines_say_first_what_is_not_protected(policy):
    outcome = policy("--secret", "order", "--secret", "name")
    assert outcome.code == 0
    assert outcome.out.splitlines() == [
        NOT_PROTECTED,
        "records with anything flagged: 30 of 30 (100.0%)",
        "words flagged: 90 of 270 (33.3%)",
        "characters flagged: 390 of 1,230 (31.7%)",
        "recall of 'order': 29 of 29 (100.0%) (1 of 30 cells are not in their text)",
        "recall of 'name': 0 of 30 (0.0%) (0 of 30 cells are not in their text)",
        "precision, flagged characters that belong to one of these: 87 of 390 (22.3%)",
    ]
    assert "texts 30/30" in outcome.err and MARKER not in outcome.err


def test_json_and_quiet(policy):
    outcome = policy("--secret", "order", "--json", "--quiet")
    data = json.loads(outcome.out)
    assert data["not_protected"] == NOT_PROTECTED and data["detector"] == "patterns"
    assert (data["rows"], data["records"], data["secrets"]["order"]["recall"]) == (31, 30, 1.0)
    assert outcome.err == "" and MARKER not in outcome.out
    assert list(Path().iterdir()) == [Path("t.csv")]  # nothing is written unasked


def test_samples_are_masked_shut_and_chosen_by_seed(policy):
    def sample(name, *flags):
        assert policy("--samples", name, "--number", 5, *flags).code == 0
        return Path(name).read_text("utf-8")

    first = sample("a.txt")
    assert first == sample("b.txt") != sample("c.txt", "--seed", 1)
    rows = [int(line.split()[-1]) for line in first.splitlines() if line.startswith("--- row")]
    assert len(rows) == 5 == len(set(rows)) and rows == sorted(rows) and 32 not in rows
    texts = TABLE["message"].dropna().tolist()
    masks = list(map(mask, texts, detector_named("patterns").spans(texts)))
    assert first == "\n".join(f"--- row {row}\n{masks[row - 2]}\n" for row in rows)
    assert "7731" not in first and "order ___ of Ann" in first
    assert stat.S_IMODE(Path("a.txt").stat().st_mode) == 0o600
    assert {path.name for path in Path().iterdir()} == {"t.csv", "a.txt", "b.txt", "c.txt"}


def test_samples_of_fewer_texts_than_requested(policy):
    assert policy("--samples", "all.txt", "--number", 500).code == 0
    assert Path("all.txt").read_text().count("--- row") == 30


def test_an_existing_file_is_kept_without_overwrite(policy):
    Path("mine.txt").write_text("mine")
    refused = policy("--samples", "mine.txt")
    assert refused.code == 2 and "exists; --overwrite to replace it" in refused.err
    assert Path("mine.txt").read_text() == "mine"
    assert policy("--samples", "mine.txt", "--overwrite").code == 0
    assert "--- row" in Path("mine.txt").read_text()
    assert stat.S_IMODE(Path("mine.txt").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--detector regex", "'regex' is none of patterns, entities, contextual"),
        ("--detector own_quotes:quotes", "failed with ValueError at text 1"),
        ("--secret gone", "no column 'gone'; it has columns 'message', 'order', 'name'"),
        ("--secret message", "is both --text and --secret"),
        ("--text gone", "no column 'gone'"),
        ("--text order", "holds no text"),
        ("--samples no/where.txt", "there is no such folder"),
        ("--samples .", "exists"),
        ("--number 0", "--number"),
    ],
)
def test_refusals_are_one_line_without_a_cell(policy, flags, said):
    Path("own_quotes.py").write_text("def quotes(text):\n    raise ValueError(text)\n")
    outcome = policy(*flags.split(), "--quiet")
    assert outcome.code == 2 and said in outcome.err
    assert len(outcome.err.splitlines()) == 1 and outcome.out == ""
    assert MARKER not in outcome.err and "Ann" not in outcome.err


def test_a_table_without_texts_is_refused(policy):
    pd.DataFrame({"message": [" ", "  "], "n": [1, 2]}).to_csv("t.csv", index=False)
    outcome = policy()
    assert outcome.code == 2 and "every 'message' is blank" in outcome.err


@pytest.mark.skipif(not CUSTOMERS.exists(), reason="needs the shared data")
def test_patterns_find_the_numbers_of_customers_and_not_their_names():
    frame = pd.read_csv(CUSTOMERS).replace({np.nan: None})
    columns = ("phone", "order_number", "tracking_number", "customer_name")
    secrets = {name: frame[name].tolist() for name in columns}
    texts = frame["dialog"].tolist()
    coverage = measure_coverage(
        texts, secrets, detector_named("patterns"), lambda done, total: None
    )
    recalls = {name: found.recall for name, found in coverage.secrets.items()}
    assert all(recalls[name] >= 0.99 for name in columns[:3])
    assert recalls["customer_name"] < 0.01  # the control: patterns know no names
