"""Whole runs on neighbouring tables, with the releases of the first run played back.

Whatever a run makes of its releases may not depend on the records. So a run on a table in which one
record differs, with the same releases, must write every byte of `share/` and `model/` again. What
differs is a leak that no ledger knows. The idea is that of an audit of twelve libraries in 2026
(arXiv 2602.17454). The sizes of the sums themselves are attacked in test_columns.py and in
`twinset audit mechanism`.
"""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow.parquet import write_table

from tests.helpers.commands import call
from twinset.privacy.mechanism import columns as pairs
from twinset.privacy.mechanism import noise, vector_sum
from twinset.privacy.mechanism.randomness import Randomness
from twinset.run import columns, releases
from twinset.run.columns import ColumnRelease

N, ODD = 90, 7  # records, and the number of the one that differs
rng = np.random.default_rng(0)
TABLE = pd.DataFrame(
    {
        "text": [f"the film {i} was {('good', 'bad')[i % 2]} and long" for i in range(N)],
        "label": ["pos", "neg"] * (N // 2),
        "title": [f"title {i}" for i in range(N)],
        "age": rng.integers(18, 90, N).astype(str),
        "city": np.array(["York", "Leeds", "Hull"])[rng.integers(0, 3, N)],
        "when": [f"2024-0{1 + i % 9}-{1 + i % 28:02}" for i in range(N)],
        "user_id": [f"u{i}" for i in range(N)],
        "who": [f"p{i // 3}" for i in range(N)],
    }
)
DECLARED = ("--labels", "label=pos,neg")
TRAINED = ("--steps", "2", "--batch-size", "20", *DECLARED)
PATHS = {
    "nothing trained": ("--steps", "0", *DECLARED),
    "undeclared labels": ("--steps", "0"),
    "owners": ("--steps", "0", "--owner", "who", *DECLARED),
    "text and labels": ("--steps", "0", "--columns", "none", *DECLARED),
    "no counts, no teacher": (*TRAINED, "--teacher-share", "0", "--marginal-share", "0"),
    "trained": TRAINED,
    "trained by owner": (*TRAINED, "--owner", "who"),
    "selective": (*TRAINED, "--noise-policy", "selective"),
    "importance": (*TRAINED, "--noise-policy", "importance"),
    "masked": (*TRAINED, "--redact-only"),
    "a file with types": ("--steps", "0", *DECLARED),
}
# One record differs in several ways at once. Each way alone would show, too.
NEIGHBOURS = {
    "other words, another label, gaps": {
        "text": "Zebras dance quietly in Ulaanbaatar 5550123",
        "label": "pos",
        **dict.fromkeys(("title", "age", "city", "when", "user_id"), ""),
    },
    "a long text, extremes": {
        "text": "so very long " * 300,
        "title": "so long " * 90,
        "age": "99999999999999",
        "when": "1801-01-01",
        "city": "A" * 70,
    },
    "special tokens, values of its own": {
        "text": "<|endoftext|> x",
        "title": "<|endoftext|>A\tB",
        "city": "Nowhere",
        "age": "17",
        "user_id": "u1",
    },
    "the text of another, cells of other kinds": {
        "text": TABLE["text"][8],
        "title": "7",
        "age": "free",
        "when": "soon",
        "city": "3,50",
    },
}
GIVEN = ("--text", "text", "--attribute", "label", "--epsilon", "8", "--delta", "1e-5", "--quiet")
SMALL = ("--rows", "12", "--max-tokens", "14", "--hold-out", "0", "--processes", "1")


class Tape:
    """What one run releases, played back to the next ones."""

    def __init__(self) -> None:
        self.outputs, self.at, self.records = [], 0, True

    def rewind(self) -> None:
        self.at, self.records = 0, False

    def play(self, output):
        if self.records:
            self.outputs.append(output)
            return output
        assert self.at < len(self.outputs), "the neighbour releases more"
        kept, self.at = self.outputs[self.at], self.at + 1
        assert getattr(kept, "shape", None) == getattr(output, "shape", None), "another shape"
        return kept


@pytest.fixture
def tape(monkeypatch):
    """Put a tape where noise is added. Batches are drawn alike in all runs."""
    tape, keys = Tape(), np.random.default_rng
    one, many = noise.add_gaussian_, noise.add_gaussian_to_each_

    def add_one(sums, *given, **more):
        return sums.copy_(tape.play(one(sums, *given, **more).clone()))

    def add_many(sums, *given, **more):
        many(sums, *given, **more)
        for each in sums:
            each.copy_(tape.play(each.clone()))

    def played(function):
        return lambda *given, **more: tape.play(function(*given, **more))

    def same_keys():
        fixed = keys(11)
        return Randomness._of(lambda: fixed.bytes(32), "fixed", True)

    for module in (vector_sum, pairs):
        monkeypatch.setattr(module, "add_gaussian_", add_one)
    monkeypatch.setattr(noise, "add_gaussian_to_each_", add_many)
    for module in (columns, releases):
        played_values = played(module.select_label_values)
        monkeypatch.setattr(module, "select_label_values", played_values)
    monkeypatch.setattr(releases, "release_label_counts", played(releases.release_label_counts))
    monkeypatch.setattr(Randomness, "from_os", staticmethod(same_keys))
    return tape


def written(base, folder: Path, changes, *options, is_typed=False) -> dict[str, bytes]:
    """Run on the table with one changed record. Return all bytes that are shared."""
    frame = TABLE.copy()
    for name, cell in changes.items():
        frame.loc[ODD, name] = cell
    folder.mkdir()
    data, run = folder / "t.csv", folder / "r"
    frame.to_csv(data, index=False)
    if is_typed:  # in both files the same types are stated, whatever the cells are
        data = folder / "t.parquet"
        numbers = pd.to_numeric(frame["age"], errors="coerce").clip(upper=2**30)
        columns_of = {name: pa.array(frame[name]) for name in frame if name not in ("age", "when")}
        columns_of["age"] = pa.array(numbers, pa.int32(), from_pandas=True)
        days = pd.to_datetime(frame["when"], errors="coerce")
        columns_of["when"] = pa.array(days, pa.timestamp("ms"), from_pandas=True)
        columns_of["old"] = pa.array(numbers.gt(40).mask(numbers.isna()), pa.bool_())
        write_table(pa.table(columns_of), data)
    given = ("generate", data, "--base-model", base, "--run", run, *GIVEN, *SMALL)
    found = call(*given, *options)
    assert found.code == 0, found.err
    paths = [p for part in ("share", "model") for p in sorted((run / part).rglob("*"))]
    return {str(p.relative_to(run)): p.read_bytes() for p in paths if p.is_file()}


@pytest.mark.parametrize("path", PATHS)
def test_neighbours_write_every_byte_again(tape, tiny_base, tmp_path, path):
    is_typed = path == "a file with types"
    first = written(tiny_base, tmp_path / "first", {}, *PATHS[path], is_typed=is_typed)
    assert {"share/privacy.json", "model/model.safetensors"} < first.keys()
    neighbours = NEIGHBOURS
    if path == "nothing trained":
        neighbours = {"itself": {}} | neighbours
    if path == "undeclared labels":
        neighbours = {"a label of its own": {"label": "odd"}} | neighbours
    for number, (name, changes) in enumerate(neighbours.items()):
        tape.rewind()
        place = tmp_path / str(number)
        other = written(tiny_base, place, changes, *PATHS[path], is_typed=is_typed)
        assert tape.at == len(tape.outputs), name
        assert [n for n in {*first, *other} if first.get(n) != other.get(n)] == [], name


def type_by_cells(release):
    """Choose a type by what the cells are, as a gap in a file once did."""
    find_kinds(release)
    place = release.names.index("age")
    has_gap = (release.cells[place].places < 0).any()
    release.columns[place] = replace(release.columns[place], dtype="Int64" if has_gap else "int64")


def words_of_the_table(run, base):
    """Count only the words that some text of the table has."""
    words = [token for ids in run.tokens.texts for token in ids]
    there = np.isin(np.arange(base.model.config.vocab_size), words)
    with pytest.MonkeyPatch.context() as patch:
        found = token_weights(base, run.progress)
        chosen = replace(found, weights=found.weights * there)
        patch.setattr(releases, "token_weights", lambda *given: chosen)
        return count_tokens(run, base)


find_kinds, count_tokens = ColumnRelease.find_kinds, releases.count_tokens
token_weights = releases.token_weights
# What is replaced, and by what. Each lets something past the releases.
FAULTS = {
    "a type by cells": (ColumnRelease, "find_kinds", type_by_cells),
    "the longest text of the table": (
        releases,
        "longest_text",
        lambda run: max(map(len, run.tokens.texts)),
    ),
    "labels counted exactly": (releases, "count_labels", lambda run: Counter(run.records.labels)),
    "words of the table": (releases, "count_tokens", words_of_the_table),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_leak_is_caught(tape, tiny_base, tmp_path, monkeypatch, fault):
    monkeypatch.setattr(*FAULTS[fault])
    options = (*PATHS["nothing trained"], "--max-tokens", "60")
    first, is_caught = written(tiny_base, tmp_path / "first", {}, *options), False
    for number, changes in enumerate(NEIGHBOURS.values()):
        if is_caught:
            break
        tape.rewind()
        try:
            is_caught = first != written(tiny_base, tmp_path / str(number), changes, *options)
        except AssertionError:  # other releases, or of other shapes
            is_caught = True
    assert is_caught
