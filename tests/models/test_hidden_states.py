"""Hidden states as features: each record as if alone, and the teacher that is fitted to them."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.helpers.pretended import pretended_gpu
from twinset.models import hidden_states
from twinset.models.base_model import load_base
from twinset.models.device import has_bfloat16
from twinset.models.hidden_states import (
    CONSTANT,
    Questions,
    Teacher,
    Whitening,
    is_read_alone,
    states_of_records,
)
from twinset.models.layers import PackedLinears, copy_in, fuse

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


def others_change_no_bit(questions):
    """Read records together, then some of them. Return whether each has the same states."""
    together = states(questions, RECORDS)
    for kept in ([0, 4], [3], [6, 5, 1, 0]):
        alone = states(questions, [RECORDS[i] for i in kept])
        if any((alone[n] != together[i]).any() for n, i in enumerate(kept)):
            return False
    return True


def test_states_ignore_other_records_on_either_device(base, on_device, monkeypatch):
    loaded = load_base(base)
    here = Questions(loaded.model, loaded.tokenizer, ["mood"])
    expected = np.array([here.states_of_batch([ids])[0] for ids in RECORDS])
    packed = PackedLinears(loaded.model)
    readers = [(here, 1e-4), (on_device, 1e-4)]
    readers.append((Questions(loaded.model, loaded.tokenizer, ["mood"], packed=packed), 1e-4))
    if has_bfloat16(torch.device("cpu")):  # as runs read with such a processor
        low = fuse(copy_in(load_base(base).model, torch.bfloat16))
        packed = Questions(low, loaded.tokenizer, ["mood"], packed=PackedLinears(low))
        readers.append((packed, 0.1))
    for reader, rounding in readers:
        assert np.array(states(reader, RECORDS)) == pytest.approx(expected, abs=rounding)
        assert len(reader.alone) > 2 and all(reader.alone.values())
        assert others_change_no_bit(reader)
    before, plain = [0.0], Questions.hidden

    def leaky(self, ids):  # the control: what was read before shows
        found = plain(self, ids) + before[0]
        before[0] = float(found[0, -1, 0])
        return found

    monkeypatch.setattr(Questions, "hidden", leaky)
    assert not others_change_no_bit(here)


@pytest.mark.parametrize("fault", ["memory", "company"])
def test_where_rows_cannot_be_read_together_they_are_read_one_by_one(on_device, monkeypatch, fault):
    """Controls: memory for one row alone, and rows that depend on the rest of their batch."""
    plain, sizes = Questions.hidden, []

    def faulty(self, ids):
        sizes.append(len(ids))
        if fault == "memory" and len(ids) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        found = plain(self, ids)
        return found + 1e-3 * found.mean(0, keepdim=True)

    monkeypatch.setattr(Questions, "hidden", faulty)
    assert not any(is_read_alone(on_device, (rows, 32)) for rows in (2, 3, 8))
    sizes.clear()
    states(on_device, RECORDS)
    assert sizes.count(1) == len(RECORDS) and not any(on_device.alone.values())


@pytest.mark.parametrize(("layer", "read"), [(None, 2), (1, 1)])
def test_features_are_a_layers_hidden_states_behind_each_question(tiny_base, layer, read):
    base = load_base(str(tiny_base))
    questions = Questions(base.model, base.tokenizer, ["mood", "kind_of_film"], layer)
    asked = "\n\nThe mood of this text is\n\nThe kind of film of this text is"
    ids = [
        base.tokenizer.bos_token_id,
        *base.tokenizer(" It works well." + asked, add_special_tokens=False)["input_ids"],
    ]
    with torch.no_grad():
        plain = base.model(input_ids=torch.tensor([ids]), output_hidden_states=True)
    (found,) = questions.states_of_batch([questions.tokens("It works well.", 100)])
    assert found[1] == pytest.approx(plain.hidden_states[read][0, -1].numpy(), abs=1e-4)


def test_whitened_vectors_have_length_one_a_constant_and_fewer_components_under_noise():
    states = np.random.default_rng(0).normal(size=(50, 40))
    found = [Whitening.fit(states, 300, noise)(states[0]) for noise in (0, 2, 9)]
    assert [len(vector) for vector in found] == [40 + 1, 25 + 1, 8 + 1]
    for vector in found:
        assert np.linalg.norm(vector[:-1]) == pytest.approx(1) and vector[-1] == CONSTANT
    alike = Whitening.fit(np.ones((4, 3)), 300, 0)  # texts that are all alike
    assert np.isfinite(alike(np.ones(3))).all()


def teacher_of(seed, hidden=3):
    rng = np.random.default_rng(seed)
    whiten = Whitening(rng.normal(size=hidden), rng.normal(size=(hidden, 2)))
    return Teacher([whiten, whiten], [rng.normal(size=(2, 3)), rng.normal(size=(4, 3))], 5)


def test_a_saved_teacher_is_loaded_unchanged(tmp_path):
    teacher, states = teacher_of(0), np.ones((2, 3))
    teacher.save(tmp_path)
    read = Teacher.load(tmp_path, (2, 4), SimpleNamespace(hidden_size=3, num_hidden_layers=6))
    assert read.layer == 5
    pairs = zip(teacher.log_probabilities(states), read.log_probabilities(states), strict=True)
    for one, other in pairs:
        assert (one == other).all()
        assert np.exp(one).sum() == pytest.approx(1)
    for classes, hidden, layers in (((2, 5), 3, 6), ((2, 4), 4, 6), ((2, 4), 3, 4)):
        config = SimpleNamespace(hidden_size=hidden, num_hidden_layers=layers)
        with pytest.raises(ValueError):  # noqa: PT011
            Teacher.load(tmp_path, classes, config)
