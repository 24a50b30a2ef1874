"""One record more must not change another's gradient, rounding included; else no theorem holds."""

import itertools

import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.helpers.commands import texts
from twinset import Twinset
from twinset.data.tokenization import TokenisedRecords
from twinset.models.lora import with_lora
from twinset.models.precision import is_batch_invariant
from twinset.privacy.clipping import ClippingEngine, Sequences
from twinset.privacy.clipping.batch_invariance import TOLERANCE, batch_interference
from twinset.privacy.clipping.execution import FAST
from twinset.progress import Silent
from twinset.training import loop as training
from twinset.training import trainer as learner
from twinset.training.mismatch_loss import MismatchLoss

C = 1.0


@pytest.fixture
def model(tiny_base):
    return AutoModelForCausalLM.from_pretrained(tiny_base).eval()


def effect(model) -> float:
    clipping = ClippingEngine(model, C)
    try:
        found = batch_interference(clipping, model.config.vocab_size)
        assert not any(total.any() for total in clipping.sums)
        return found
    finally:
        clipping.close()


def mix_rows(share: float):
    def hook(module, args, output):
        return output + share * output.mean(0, keepdim=True)

    return hook


def test_float32_is_batch_invariant_to_rounding(model):
    assert effect(model) < 1e-5


@pytest.mark.parametrize("share", [0.01, 0.1])
def test_a_layer_that_mixes_rows_is_found_out(model, share):
    model.transformer.h[0].mlp.register_forward_hook(mix_rows(share))
    assert effect(model) > 2 * TOLERANCE
    assert not is_batch_invariant(model, C, FAST)


class Warnings(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def warn(self, line: str) -> None:
        self.lines.append(line)


@pytest.mark.parametrize("method", ["lora", "full"])
@pytest.mark.parametrize("isolated", [True, False])
def test_where_bfloat16_is_not_isolated_training_goes_on_in_float32(
    tiny_base, monkeypatch, isolated, method
):
    seen = []
    monkeypatch.setattr(
        learner, "is_batch_invariant", lambda model, c, how: seen.append(c) or isolated
    )
    engines = []
    monkeypatch.setattr(
        training, "ClippingEngine", lambda *a: engines.append(a) or ClippingEngine(*a)
    )
    told = Warnings()
    frame = pd.DataFrame({"text": texts(), "label": ["good", "bad"] * 30})
    options = {
        "precision": "bfloat16",
        "steps": 2,
        "max_tokens": 12,
        "epsilon": 50,
        "method": method,
    }
    twinset = Twinset(str(tiny_base), progress=told, **options).fit(frame, "text", ["label"])
    assert seen == [C]
    assert any("float32 instead" in line for line in told.lines) != isolated
    low = torch.bfloat16 if isolated else None
    frozen, autocast = (low or torch.float32, None) if method == "lora" else (torch.float32, low)
    assert next(twinset.model.model.parameters()).dtype is frozen
    assert [how.autocast for _, _, how in engines] == [autocast]


# -- the real base model -----------------------------------------------------------------------


def _texts(count: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(5)
    lengths = torch.randint(6, 60, (count,), generator=generator).tolist()
    return [torch.randint(49152, (n,), generator=generator).tolist() for n in lengths]


def _sum(model, records: TokenisedRecords, indices, own_width: bool) -> torch.Tensor:
    """Clip and add in physical batches of 16, padded to own widths or to the batch's longest."""
    clipping = ClippingEngine(model, C)
    key = records.padded_length if own_width else (lambda i: 0)
    order = sorted(indices, key=lambda i: len(records.texts[i]))
    for _, same in itertools.groupby(order, key):
        same = list(same)
        for start in range(0, len(same), 16):
            chosen = same[start : start + 16]
            made = records.sequences(chosen, 1, (0, 1))
            if not own_width:
                longest = int(made.loss_mask.nonzero()[:, 1].max()) + 1
                cut = (made.input_ids[:, :longest], made.loss_mask[:, :longest])
                made = Sequences(*cut, made.per_unit)
            clipping.add(made, MismatchLoss(8.0, "bounded"))
    clipping.close()
    return torch.cat([total.flatten().double() for total in clipping.sums])


@pytest.mark.slow
@pytest.mark.skipif(not torch.cpu._is_avx512_bf16_supported(), reason="no bfloat16 arithmetic")
def test_in_bfloat16_a_record_more_changes_the_sum_by_its_own_gradient():
    """And negative control: padded to the longest of the batch, it changes its neighbours' too."""
    from twinset.models.base_model import load_base

    base = load_base("smollm2-135m")
    torch.manual_seed(0)
    model = with_lora(base.model.to(torch.bfloat16), 8)
    labels = [("a",), ("b",)] * 20 + [("a",)]
    prompts = {("a",): [100, 200, 300], ("b",): [100, 250, 300, 400]}
    records = TokenisedRecords(_texts(41), labels, prompts, 0, 8192)

    def rounding(own_width: bool) -> float:
        everyone = _sum(model, records, range(41), own_width)
        alone = _sum(model, records, [0], own_width)
        return float((everyone - _sum(model, records, range(1, 41), own_width) - alone).norm())

    assert rounding(own_width=True) < TOLERANCE * C
    assert rounding(own_width=False) > 0.02 * C
