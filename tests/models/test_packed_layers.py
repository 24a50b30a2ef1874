"""Packed weights give the same products, bit for bit, inside the block alone."""

import pytest
import torch
from torch import nn

from twinset.models.device import has_bfloat16
from twinset.models.layers import PackedLinears, packed_bytes

PROCESSOR = torch.device("cpu")


def layers(dtype: torch.dtype) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 70), nn.Linear(70, 33, bias=False)).to(dtype)


@pytest.mark.skipif(not has_bfloat16(PROCESSOR), reason="needs a processor with bfloat16")
@pytest.mark.parametrize("rows", [1, 7, 64, 130])
def test_products_have_the_same_bits(rows):
    model, x = layers(torch.bfloat16), torch.randn(rows, 1, 24).bfloat16()
    with torch.inference_mode():
        packed, plain = PackedLinears(model), model(x)
        assert packed_bytes(model) == sum(layer.weight.nbytes for layer in model)
        model[1].weight.zero_()  # so that it is the copy that is multiplied by
        with packed.in_use():
            assert torch.equal(model(x), plain) and plain.any()
        assert not model(x).any()


def test_other_formats_and_layers_stay_as_they_are():
    class Other(nn.Linear):
        """Computes something else, perhaps."""

    model = nn.Sequential(layers(torch.float32), Other(33, 4).bfloat16())
    before = [module.forward for module in model.modules()]
    with PackedLinears(model).in_use():
        assert [module.forward for module in model.modules()] == before
    assert packed_bytes(model) == 0
