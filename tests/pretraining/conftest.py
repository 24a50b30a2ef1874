"""What tests of pre-training share: a run that dies where it is told to."""

from contextlib import contextmanager

import pytest

from twinset.pretraining import training


@pytest.fixture
def dies_at(monkeypatch):
    """Write a checkpoint after each step, and have runs in a block die when so many are done."""
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", -1.0)
    plain = training._Run.step

    @contextmanager
    def block(done):
        def step(self):
            if self.done == done:
                raise RuntimeError
            plain(self)

        with monkeypatch.context() as patch:
            patch.setattr(training._Run, "step", step)
            yield

    return block
