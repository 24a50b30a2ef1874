"""Paper 003 by a second recipe: what is the same as in the first, and a whole run."""

import pytest

from evaluation.papers import kerrigan
from evaluation.papers.kerrigan import BOTH, LARGEST, LEVELS, PRIVATE
from evaluation.papers.kerrigan_large_batches import KerriganLargeBatches
from evaluation.papers.study import read_size
from tests.helpers.study_runs import stopped_and_finished


def test_models_and_private_lines_are_those_of_the_first_recipe():
    """So that what differs is how they are trained, and the public text."""
    first, second = (read_size(name, "cpu") for name in ("kerrigan", "kerrigan_large_batches"))
    shapes = {model["name"]: model["shape"] for model in first["models"]}
    for model in second["models"]:
        assert model["shape"] == shapes[model["name"]]
    for name in ("vocabulary", "private_lines", "scored_lines"):
        assert first[name] == second[name]
    batches = {model["private"]["batch_size"] for model in first["models"]}
    assert all(model["private"]["batch_size"] >= 8 * max(batches) for model in second["models"])


def test_the_levels_are_what_the_claim_is_judged_by():
    assert set(KerriganLargeBatches.levels) <= set(LEVELS)
    assert {(PRIVATE, 0.0), (PRIVATE, LARGEST), (BOTH, LARGEST)} < set(KerriganLargeBatches.levels)


@pytest.mark.slow
def test_from_the_command_to_its_files(options_of, sentences, monkeypatch):
    names = ("public", "private-train", "private-dev", "private-test")
    options = options_of({name: sentences(120, seed) for seed, name in enumerate(names)})
    done = stopped_and_finished(
        KerriganLargeBatches, options, monkeypatch, kerrigan, "train_model", after=5
    )
    # one training a row, on public text or on private
    assert done.calls == len(done.found["rows"]) == 2 * len(KerriganLargeBatches.levels)
    spent = {tuple(row["key"][1:3]): row["epsilon"] for row in done.found["rows"]}
    assert spent[PRIVATE, 0.0] is None and spent[BOTH, LARGEST] == spent[PRIVATE, LARGEST] > 0
