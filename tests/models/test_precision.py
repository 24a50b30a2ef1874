"""Fused kernels compute what the plain ones do."""

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from twinset.models.layers import fuse

IDS = torch.arange(1, 25).view(2, 12)


@pytest.mark.parametrize("folder", ["tiny_base", "tiny_llama"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_logits_stay(request, folder, dtype):
    plain = AutoModelForCausalLM.from_pretrained(request.getfixturevalue(folder)).to(dtype)
    with torch.no_grad():
        expected = plain(input_ids=IDS).logits
        fused = fuse(plain)
        rounding = {torch.float64: 1e-6, torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]
        torch.testing.assert_close(fused(input_ids=IDS).logits, expected, rtol=0, atol=rounding)
    assert fused is plain
    assert (fused.config._attn_implementation == "eager") == (dtype is torch.bfloat16)


def test_gpt2_loses_its_elementwise_gelu_and_saves_the_same_weights(tiny_base, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(tiny_base)
    before = model.state_dict().keys()
    fuse(model)
    assert type(model.transformer.h[0].mlp.act) is nn.GELU
    assert model.state_dict().keys() == before
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(again(input_ids=IDS).logits, model(input_ids=IDS).logits)
