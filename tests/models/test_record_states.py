"""Private records read in batches on a device: each as if no other were there, or by itself."""

import numpy as np
import pytest
import torch

from tests.helpers.pretended import pretended_gpu
from twinset.models import hidden_states
from twinset.models.base_model import load_base
from twinset.models.hidden_states import Questions, is_read_alone, states_of_records

RECORDS = [[5] * 3, [7, 8] * 20, [9] * 7, list(range(4, 60)), [6] * 3, [], [11] * 16]


@pytest.fixture(params=["tiny_base", "tiny_llama"])
def base(request):
    return str(request.getfixturevalue(request.param))


@pytest.fixture
def on_device(base, monkeypatch):
    """What reads texts on the pretended device, a few at once."""
    monkeypatch.setattr(hidden_states, "GPU_TOKENS", 256)
    with pretended_gpu(monkeypatch):
        loaded = load_base(base, device="cuda")
        yield Questions(loaded.model, loaded.tokenizer, ["mood"])


def states(questions, records):
    found = dict(states_of_records(questions, records))
    assert sorted(found) == list(range(len(records)))
    return [found[i] for i in range(len(records))]


def test_they_are_those_of_a_processor(base, on_device):
    loaded = load_base(base)
    here = Questions(loaded.model, loaded.tokenizer, ["mood"])
    expected = [here.states_of_text(ids) for ids in RECORDS]
    for records in (states(here, RECORDS), states(on_device, RECORDS)):
        assert np.array(records) == pytest.approx(np.array(expected), abs=1e-4)
    assert len(on_device.alone) > 2 and all(on_device.alone.values())


def test_company_changes_no_bit(on_device):
    together = states(on_device, RECORDS)
    for kept in ([0, 4], [3], [6, 5, 1, 0]):
        alone = states(on_device, [RECORDS[i] for i in kept])
        assert all((alone[n] == together[i]).all() for n, i in enumerate(kept))


def test_where_rows_do_not_fit_into_memory_records_are_read_one_by_one(on_device, monkeypatch):
    plain = Questions.hidden

    def short(self, ids):
        if len(ids) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return plain(self, ids)

    monkeypatch.setattr(Questions, "hidden", short)
    assert len(states(on_device, RECORDS)) == len(RECORDS)
    assert on_device.alone and not any(on_device.alone.values())


@pytest.mark.parametrize("rows", [2, 3, 8])
def test_where_company_shows_records_are_read_one_by_one(on_device, monkeypatch, rows):
    """Control: a device whose rows lean on the rest of their batch."""
    plain, sizes = Questions.hidden, []

    def leaning(self, ids):
        sizes.append(len(ids))
        found = plain(self, ids)
        return found + 1e-3 * found.mean(0, keepdim=True)

    monkeypatch.setattr(Questions, "hidden", leaning)
    assert not is_read_alone(on_device, (rows, 32))
    sizes.clear()
    states(on_device, RECORDS)
    assert sizes.count(1) == len(RECORDS)
