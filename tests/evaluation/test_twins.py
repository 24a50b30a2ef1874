"""A twin that is made to be measured."""

from types import SimpleNamespace

import pytest

from evaluation import policy_runs as twins
from twinset.config.options import run_config
from twinset.progress import Silent


class Heard(Silent):
    def __init__(self):
        self.lines = []

    def say(self, line):
        self.lines.append(line)


@pytest.mark.parametrize(
    ("options", "records", "said"),
    [({}, 50, True), ({}, 10_000, False), ({"steps": 4}, 50, False), ({"steps": 0}, 50, False)],
)
def test_that_few_records_are_trained_on_all_the_same_is_said(monkeypatch, options, records, said):
    prepared = SimpleNamespace(records=range(records))
    monkeypatch.setattr(twins, "prepare", lambda source, config: prepared)
    monkeypatch.setattr(twins, "finetune", lambda *of: 1 / 0)  # what is said is said before
    heard = Heard()
    with pytest.raises(ZeroDivisionError):
        twins.train_twin(None, run_config({"epsilon": 8.0, **options}), 10, heard)
    assert (twins.TRAINED_ALL_THE_SAME in heard.lines) == said
