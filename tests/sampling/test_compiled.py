"""A compiled token step: the same rows from few graphs, and a clear line where nothing compiles."""

from dataclasses import replace

import pytest
import torch

from tests.sampling.test_decoding import GREEDY, PROMPTS, _load
from twinset.errors import InputError
from twinset.models.precision import fuse
from twinset.sampling.compiled import check_compiler, compiled
from twinset.sampling.decoding import check_decoding, generate

COMPILED = replace(GREEDY, engine="compiled")


def graphs() -> int:
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


@pytest.mark.slow  # half a minute each to compile
@pytest.mark.parametrize("name", ["tiny_base", "tiny_llama"])
def test_compiled_rows_are_the_same_and_few_graphs_serve_all_shapes(name, request):
    model = fuse(_load(request.getfixturevalue(name)))
    wrong = PROMPTS[1:] + PROMPTS[:1]
    asked = (model, PROMPTS * 3, -1, 40)  # from 3 columns of tokens on; slots for 42 and fewer
    made = graphs()
    found = generate(*asked, COMPILED, torch.Generator(), against=wrong * 3)
    assert found == generate(*asked, GREEDY, torch.Generator(), against=wrong * 3)
    assert 1 <= graphs() - made <= 4  # one for the check; a few, as PyTorch learns what varies
    few = graphs()
    generate(*asked, replace(COMPILED, batch_size=9), torch.Generator(), against=wrong * 3)
    assert graphs() == few


def test_where_nothing_compiles_it_is_said_before_training(tiny_base, monkeypatch):
    def broken(function):
        raise RuntimeError("no C++ compiler\nand a long story")

    check_compiler.cache_clear()
    monkeypatch.setattr(torch, "compile", broken)
    model = _load(tiny_base)
    for use in (lambda: compiled(model), lambda: check_decoding(model, {("a",): [5]}, COMPILED)):
        with pytest.raises(InputError, match=r"^`engine=compiled`: PyTorch cannot .*no C\+\+ comp"):
            use()
    check_decoding(model, {("a",): [5], ("b",): [6]}, GREEDY)
