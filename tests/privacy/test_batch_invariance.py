"""One unit more must not change another's gradient, rounding included; else no theorem holds.

A unit is a record, or all records of an owner: drawn, clipped and summed together.
"""

import math
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.helpers import oracle
from tests.helpers.commands import Heard, texts
from twinset import Twinset
from twinset.config import PrivacyConfig, SpeedConfig
from twinset.models.layers import BatchShape, batch_interference, is_batch_invariant
from twinset.privacy.clipping import ClippingEngine, Sequences
from twinset.privacy.clipping.engine import FAST, Execution
from twinset.privacy.mechanism.randomness import Randomness
from twinset.privacy.mechanism.units import Units
from twinset.table.tokenization import TokenisedRecords, batches_of_one_length
from twinset.training import clipped_sum as learner
from twinset.training import loop as training
from twinset.training.clipped_sum import Batch, ClippedSum, MismatchLoss, units_at_once

C = 1.0
SHAPES = [BatchShape(12, 1, 16), BatchShape(5, 2, 32), BatchShape(1, 2, 48)]
LOSS = MismatchLoss(2.0, "bounded")
SPEED = SpeedConfig(physical_tokens=256)
LOW = Execution(autocast=torch.bfloat16)


@pytest.fixture
def model(tiny_base):
    return AutoModelForCausalLM.from_pretrained(tiny_base).eval()


def effect(model, how: Execution = FAST) -> float:
    clipping = ClippingEngine(model, C, how)
    try:
        found = batch_interference(clipping, model.config.vocab_size, SHAPES)
        assert not any(total.any() for total in clipping.sums)
        return found
    finally:
        clipping.close()


def round_by_shape(module, args, output):
    """A kernel that rounds by how many rows there are, as those for bfloat16 do."""
    return output * (1 + 1e-3 * (output.shape[0] % 7))


@pytest.mark.parametrize("how", [FAST, LOW], ids=["float32", "bfloat16"])
def test_at_a_constant_shape_others_change_no_bit_and_a_layer_that_mixes_rows_is_found(model, how):
    assert effect(model, how) == 0

    def mix(module, args, output):
        return output + 1e-6 * output.mean(0, keepdim=True)

    model.transformer.h[0].mlp.register_forward_hook(mix)
    assert effect(model) > 0
    assert not is_batch_invariant(model, C, FAST, SHAPES)


@pytest.mark.parametrize("leak", [1e-2, math.nan])
def test_a_unit_that_leaks_into_the_sum_is_detected(model, monkeypatch, leak):
    """Norms that are right do not do: what is added must be the same, too, and a number."""
    original = ClippingEngine._add_scaled

    def leaking(self, scales):
        original(self, scales + scales.mean() * leak)

    monkeypatch.setattr(ClippingEngine, "_add_scaled", leaking)
    assert not is_batch_invariant(model, C, FAST, SHAPES)


# -- the sum of a batch ------------------------------------------------------------------------


def records_of(lengths: list[int]) -> TokenisedRecords:
    generator = torch.Generator().manual_seed(5)
    texts = [torch.randint(5, 200, (n,), generator=generator).tolist() for n in lengths]
    labels = [[("a",), ("b",)][i % 2] for i in range(len(lengths))]
    return TokenisedRecords(texts, labels, {("a",): [5, 6, 7], ("b",): [8, 9]}, 0, 128)


def norms(model, records, units: list[int], how: Execution) -> dict[int, float]:
    """Each unit's norm before clipping, to the last bit, by its number."""
    clipping = ClippingEngine(model, math.inf, how)
    clip_and_sum = ClippedSum(clipping, records, LOSS, SPEED, 10_000)
    try:
        report = clip_and_sum.compute_clipped_sum(Batch(1, [[unit] for unit in units]))
        widths = [(1, records.padded_length(unit)) for unit in units]  # as they are computed
        cut = batches_of_one_length(
            range(len(units)), widths.__getitem__, lambda w: units_at_once(SPEED, 10_000, 2 * w[1])
        )
        order = [units[place] for _, places in cut for place in places]
        return dict(zip(order, report.norms.tolist(), strict=True))
    finally:
        clipping.close()


LENGTHS = [4, 9, 9, 12, 14, 20, 25, 27, 30, 41, 44, 60, 70, 90, 100]


@pytest.mark.parametrize("how", [FAST, LOW], ids=["float32", "bfloat16"])
def test_a_units_norm_does_not_depend_on_its_batch(model, how, monkeypatch):
    """The control: physical batches as large as there are units, whose shape tells."""
    model.transformer.h[0].mlp.register_forward_hook(round_by_shape)
    records = records_of(LENGTHS)
    everyone = norms(model, records, [*range(15)], how)
    for others in ([*reversed(range(15))], [0, 3, 4, 7, 9, 14], [3]):
        assert norms(model, records, others, how) == {unit: everyone[unit] for unit in others}
    changed = norms(model, records_of([*LENGTHS[:-1], 5]), [*range(15)], how)  # one replaced
    assert [unit for unit in range(15) if everyone[unit] != changed[unit]] == [14]
    monkeypatch.setattr(Sequences, "filled", lambda self, units: self)
    everyone = norms(model, records, [*range(15)], how)
    assert norms(model, records, [3], how)[3] != everyone[3]


def test_every_shape_of_a_run_is_known_beforehand():
    records = records_of(LENGTHS)
    lengths = records.padded_lengths(100)
    assert {records.padded_length(i) for i in range(15)} <= set(lengths)
    units = [units_at_once(SpeedConfig(), 512, 2 * length) for length in lengths]
    assert (lengths[0], units[0], lengths[-1], units[-1]) == (16, 32, 112, 4)


@pytest.mark.parametrize(("method", "invariant"), [("full", True), ("lora", False)])
def test_training_falls_back_to_float32_if_bfloat16_is_not_batch_invariant(
    tiny_base, monkeypatch, invariant, method
):
    asked, engines, progress = [], [], Heard()
    monkeypatch.setattr(
        learner, "is_batch_invariant", lambda *given: asked.append(given) or invariant
    )
    monkeypatch.setattr(
        training, "ClippingEngine", lambda *a: engines.append(a) or ClippingEngine(*a)
    )
    frame = pd.DataFrame({"text": texts(), "label": ["good", "bad"] * 30})
    options = {"precision": "bfloat16", "steps": 2, "mismatch_weight": 8, "method": method}
    made = Twinset(base_model=tiny_base, progress=progress, epsilon=50, max_tokens=12, **options)
    twinset = made.fit(frame, "text", ["label"])
    [(_, norm, _, shapes)] = asked
    assert norm == PrivacyConfig().max_grad_norm and {shape.per_unit for shape in shapes} == {2}
    assert any("float32 instead" in line for line in progress.lines) != invariant
    low = torch.bfloat16 if invariant else None
    frozen, autocast = (low or torch.float32, None) if method == "lora" else (torch.float32, low)
    assert next(twinset.model.model.parameters()).dtype is frozen
    assert [how.autocast for _, _, how in engines] == [autocast]


# -- owners, and how sums are rounded --------------------------------------------------------------


def test_an_owners_records_are_drawn_afresh_and_evenly():
    units = Units(7, np.array([2, 0, 1, 0, 0, 2, 0]), most=2)
    bits = Randomness.for_tests(0).sampling
    assert len(units) == 3
    drawn = [units.draw(np.array([0, 1, 2]), bits) for _ in range(3000)]
    assert all(records[1:] == [[2], [0, 5]] for records in drawn)
    pairs = Counter(tuple(records[0]) for records in drawn)
    assert len(pairs) == 6  # of the four records 1, 3, 4 and 6
    expected = len(drawn) / 6
    statistic = sum((count - expected) ** 2 / expected for count in pairs.values())
    assert statistic < 33.0  # chi-square, 5 degrees of freedom, 4 in 10⁶
    alone = Units(3)  # without owners each record is a unit
    assert alone.draw(np.array([2, 0]), bits) == [[2], [0]] and len(alone) == 3


def sums_of(model, records, units, norm=math.inf) -> list[torch.Tensor]:
    engine = ClippingEngine(model, norm)
    clipped = ClippedSum(engine, records, LOSS, SPEED, 64)
    try:
        clipped.compute_clipped_sum(Batch(1, units))
        return [total.clone() for total in engine.sums]
    finally:
        engine.close()


def length(sums) -> float:
    return oracle.norm(list(sums))


def difference(left, right) -> float:
    return length([a - b for a, b in zip(left, right, strict=True)])


def test_an_owners_gradient_is_the_sum_of_its_records(model):
    """By autograd, record by record; the control leaves one out."""
    records, owned = records_of(LENGTHS[:9]), [0, 3, 4, 8]
    loss, prompts = oracle.bounded(LOSS.weight), records.prompts
    expected = [torch.zeros_like(p) for p in model.eval().parameters() if p.requires_grad]
    for record in owned:
        text, own = records.texts[record], records.labels[record]
        order = [prompts[own], *(ids for label, ids in prompts.items() if label != own)]
        unit = [(prompt, text) for prompt in order]
        for total, g in zip(expected, oracle.unit_gradient(model, unit, loss), strict=True):
            total += g
    size = length(expected)
    assert difference(expected, sums_of(model, records, [owned])) < 1e-5 * size
    assert difference(expected, sums_of(model, records, [owned[:3]])) > 1e-2 * size


def test_one_record_hardly_changes_how_the_others_are_rounded(model):
    """Float32 addition is not associative; what SECURITY.md says of it, for small batches."""
    records, norm = records_of([4 + i % 10 for i in range(32)]), 0.01
    everyone = [[i] for i in range(32)]
    whole = sums_of(model, records, everyone, norm)
    for left_out in (0, 15):
        units = everyone[:left_out] + everyone[left_out + 1 :]
        given = [whole, *(sums_of(model, records, u, norm) for u in (units, [[left_out]]))]

        def moved(dtype, given=given) -> tuple[float, float]:
            parts = list(
                zip(*([s.to(dtype).double() for s in sums] for sums in given), strict=True)
            )
            return length([a - b for a, b, _ in parts]), length([a - b - c for a, b, c in parts])

        alone, others = moved(torch.float32)
        assert alone < norm and others < 1e-5 * norm
        assert moved(torch.bfloat16)[1] > 1e-3 * norm  # sums of less precision would show it
