"""The noise of a run as it measured it: whole, half, and none. The last two must be found."""

import json
from pathlib import Path

import pytest

from evaluation.leakage.noise import STEPS, lacks_noise, measured_noise
from tests.helpers.commands import call
from tests.helpers.evaluated import small_run, small_world_in
from twinset.errors import InputError
from twinset.privacy.accounting.events import COLUMNS, LABEL_COUNTS, TEACHER, TOKEN_MARGINALS
from twinset.privacy.mechanism.noise import GaussianGrid

COLUMN_NAMES = ("--text", "text", "--attribute", "sentiment")
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
        run = small_run(tiny_base, *COLUMN_NAMES, *options)
    found = {m.place["release"]: m.score for m in measured_noise(Path(run, "internal"))}
    expected = {LABEL_COUNTS, TOKEN_MARGINALS, COLUMNS, STEPS}
    expected |= {TEACHER} if options == WITH_TEACHER else set()
    assert found.keys() >= expected
    # A few counts are too few to tell half of the noise from all of it.
    surely = {name for name, score in found.items() if score.n > 100}
    assert all(lacks_noise(found[name]) == (share < 1) for name in surely)
    assert surely >= expected - {LABEL_COUNTS, COLUMNS}
    many = [score.value for score in found.values() if score.n > 1000]
    assert many and all(value == pytest.approx(share, 0.1) for value in many)
    audited = ("audit", run, "--members", "train.csv", "--non-members", "test.csv", "--quiet")
    ended = call(*audited)
    assert ended.code == (0 if share == 1 else 1), ended.err
    if share < 1:
        assert "noise as measured" in ended.err and "The claim is refuted" in ended.out


def test_damaged_or_absent_figures_are_said(tmp_path):
    assert measured_noise(tmp_path) == []
    (tmp_path / "measured-noise.jsonl").write_text(json.dumps({"noise": "x"}))
    with pytest.raises(InputError, match="is damaged"):
        measured_noise(tmp_path)
