"""Steps done again from a recording: pretended here, recorded by a GPU in `test_gpu`."""

from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM

from twinset.config import SamplingConfig
from twinset.sampling import decoding, recorded_steps
from twinset.sampling.recorded_steps import RecordedSteps

PROMPTS = [[5, 6, 7 + i % 3, 8] for i in range(11)]


def done_again(work, device, pool=None):
    """Return a recording that does the work again."""
    return SimpleNamespace(replay=work, pool=lambda: 1)


def stale(work, device, pool=None):
    """Return one that forgot to read its tokens: what they make is that of the first time."""
    work()
    return SimpleNamespace(replay=lambda: None, pool=lambda: 1)


def impossible(work, device, pool=None):
    raise RuntimeError("operation not permitted when stream is capturing")


@pytest.fixture
def written(tiny_base, monkeypatch):
    """Write rows with recordings of a kind; None: without any."""
    model = AutoModelForCausalLM.from_pretrained(tiny_base).eval()
    made: list[RecordedSteps] = []

    class Kept(RecordedSteps):
        def __init__(self, step):
            super().__init__(step)
            made.append(self)

    def rows(recording=None):
        monkeypatch.setattr(decoding, "has_graphs", lambda device: recording is not None)
        monkeypatch.setattr(decoding, "RecordedSteps", Kept)
        monkeypatch.setattr(recorded_steps, "record_graph", recording)
        config, generator = SamplingConfig(batch_size=4), torch.Generator().manual_seed(0)
        return decoding.generate(model, PROMPTS, -1, 30, config, generator), made

    return rows


def test_rows_are_those_of_the_steps_themselves(written):
    plain, _ = written()
    found, (steps,) = written(done_again)
    assert found == plain and steps.in_use
    assert len(steps._recordings) > 1  # one for each number of columns
    assert all(one.compared == recorded_steps.COMPARED for one in steps._recordings.values())


@pytest.mark.parametrize("fault", [stale, impossible])
def test_a_faulty_recording_is_not_relied_on(written, fault):
    plain, _ = written()
    found, (steps,) = written(fault)
    assert found == plain and not steps.in_use and not steps._recordings


def test_a_stale_one_would_write_other_rows(written, monkeypatch):
    """Control: relied on without being compared."""
    plain, _ = written()
    monkeypatch.setattr(recorded_steps, "COMPARED", 1)
    assert written(stale)[0] != plain
