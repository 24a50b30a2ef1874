"""The noise of a run as it measured it: whole, half, and none. The last two must be found."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from evaluation.leakage.noise import STEPS, lacks_noise, measured_noise
from tests.helpers.commands import call
from tests.helpers.evaluated import small_run, small_world_in
from twinset.config import PolicyConfig
from twinset.errors import InputError
from twinset.policies.importance import Importance, PublishedImportance
from twinset.policies.policy import MechanismParams
from twinset.privacy.accounting.events import (
    COLUMNS,
    LABEL_COUNTS,
    TEACHER,
    TOKEN_MARGINALS,
    GaussianRelease,
    LabelSelection,
    SubsampledGaussian,
)
from twinset.privacy.mechanism.gate import Gate
from twinset.privacy.mechanism.noise import GaussianGrid
from twinset.privacy.mechanism.randomness import Randomness
from twinset.privacy.statement.ledger import Ledger
from twinset.run.columns import SURVEY, ColumnRelease
from twinset.run.run_folder import COLUMN_VALUES, LABEL_VALUES
from twinset.table.kinds import ColumnRules
from twinset.training.loop import PrivateOptimizer

# The kind is declared: else a noisy survey of 80 cells decides whether values are selected.
COLUMN_NAMES = ("--text", "text", "--attribute", "sentiment", "--kind", "product=category")
plain_add = GaussianGrid.add


def add_less(share):
    """Return a faulty `add` that draws a share of the noise and lets the ledger say all of it."""

    def add(self, sums, std, step):
        if share:
            plain_add(self, sums, std * share, step)

    return add


WITH_TEACHER, IMPORTANCE = ("--teacher-share", "0.2"), ("--noise-policy", "importance")


@pytest.mark.parametrize(
    ("share", "options"),
    [(1, WITH_TEACHER), (0.5, WITH_TEACHER), (0, WITH_TEACHER), (0.5, IMPORTANCE)],
)
def test_a_run_with_less_noise_than_its_ledger_says_fails_its_audit(
    share, options, tiny_base, tmp_path, monkeypatch
):
    small_world_in(tmp_path, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(GaussianGrid, "add", add_less(share))
        # factors of a tiny model are too few to tell half of their noise
        run = small_run(tiny_base, *COLUMN_NAMES, *options, "--method", "lora")
    events = Ledger.load(Path(run, "model", "ledger.json")).events
    found = {m.place["release"]: m.score for m in measured_noise(Path(run, "internal"), events)}
    expected = {LABEL_VALUES, LABEL_COUNTS, TOKEN_MARGINALS, COLUMN_VALUES, COLUMNS, STEPS}
    expected |= {TEACHER} if options == WITH_TEACHER else set()
    assert found.keys() >= expected
    # A few counts are too few to tell half of the noise from all of it.
    surely = {name for name, score in found.items() if score.n > 100}
    assert all(lacks_noise(found[name]) == (share < 1) for name in surely)
    assert surely >= expected - {LABEL_VALUES, LABEL_COUNTS, COLUMN_VALUES, COLUMNS}
    many = [score.value for score in found.values() if score.n > 1000]
    assert many and all(value == pytest.approx(share, 0.1) for value in many)
    audited = ("audit", run, "--members", "train.csv", "--non-members", "test.csv", "--quiet")
    ended = call(*audited)
    assert ended.code == (0 if share == 1 else 1), ended.err
    if share < 1:
        assert "noise as measured" in ended.err and "The claim is refuted" in ended.out


@pytest.mark.parametrize("share", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("kind", [Importance, PublishedImportance])
def test_large_sums_hide_no_noise_that_importance_left_out(share, kind, monkeypatch):
    """From its second step on noise is stretched, and sums are a hundred times the noise."""
    monkeypatch.setattr(GaussianGrid, "add", add_less(share))
    weights = [torch.nn.Parameter(torch.randn(64, 64)) for _ in range(4)]
    params = MechanismParams(1.0, 1.0, 0.1, Randomness.for_tests(0), PolicyConfig())
    policy, adam = kind(params), torch.optim.Adam(weights, 0.001)
    schedule = torch.optim.lr_scheduler.ConstantLR(adam, 1.0)
    optimizer = PrivateOptimizer(weights, policy, 10.0, adam, schedule, Gate(print))
    measured = []
    for _ in range(4):
        stretched = [float(each.mean()) for each in policy.noise_shapes(weights)]
        optimizer.step([100 * torch.randn(64, 64) for _ in weights], [0])
        measured.append(optimizer.noise)
    assert stretched and max(abs(s - 1) for s in stretched) > 0.1
    assert measured == pytest.approx([share] * 4, abs=0.02)


@pytest.mark.parametrize("columns", [1, 3])
def test_a_selection_is_measured_as_one_vector_apart_from_the_survey(columns):
    """Else a correct run would look as if it lacked noise."""
    rng, kept = np.random.default_rng(0), {}
    frame = {f"c{n}": pd.Series(rng.integers(0, 200, 900).astype(str)) for n in range(columns)}
    rules = ColumnRules(kinds=dict.fromkeys(frame, "category"))
    selection, alone = LabelSelection(20.0, 60, columns, 1), [[i] for i in range(900)]
    gate = Gate(print, keep=lambda event, name, sums: kept.update({name: sums}))
    given = np.zeros(900, int), 1, alone, rules, 1.5, selection, gate, Randomness.for_tests(0)
    with gate.parts_of(GaussianRelease(1.5, COLUMNS)):
        ColumnRelease(frame, *given).find_model([900.0])
    ((added, numbers),) = kept.pop(COLUMN_VALUES)
    assert numbers > 150 * columns and added / 20 == pytest.approx(1, abs=0.15)
    measured, many = kept[COLUMNS][0]  # the other releases have too few numbers to tell
    assert many > 1000 and measured * SURVEY**0.5 / 1.5 == pytest.approx(1, abs=0.05)


def test_figures_that_are_damaged_or_missing_stop_an_audit(tmp_path):
    assert measured_noise(tmp_path, []) == []
    for event in (
        GaussianRelease(1.0, TEACHER),
        LabelSelection(4.0, 30, 1, 1),
        SubsampledGaussian(1.0, 0.1, 3),
    ):
        with pytest.raises(InputError, match="says nothing of the noise of"):
            measured_noise(tmp_path, [event])
    (tmp_path / "measured-noise.jsonl").write_text(json.dumps({"noise": "x"}))
    with pytest.raises(InputError, match="is damaged"):
        measured_noise(tmp_path, [])
