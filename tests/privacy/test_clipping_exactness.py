"""The clipping engine against `oracle`: all it adds, in float64, on both model families."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import oracle
from tests.helpers.clipped import (
    EXACT,
    FAMILIES,
    LOSSES,
    VOCABULARY,
    C,
    assert_exact,
    build,
    keep_trained,
    random_units,
    run_engine,
    to_sequences,
    with_adapters,
)
from tests.helpers.oracle import Unit
from twinset.privacy.clipping import ClippingEngine, Execution, Sequences, engine
from twinset.privacy.clipping import gradient_uses as matrices
from twinset.privacy.clipping import output_head as vocabulary
from twinset.privacy.clipping.engine import KEPT_BYTES
from twinset.privacy.clipping.gradient_uses import Workspace, squares


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("per_unit", "loss"),
    [(1, "plain"), (2, "published"), (2, "bounded"), (5, "published"), (5, "bounded")],
)
def test_every_trained_parameter_matches_one_record_at_a_time(family, per_unit, loss):
    assert_exact(build(family), random_units(3, 5, per_unit), loss)


# name → (FORM_FROM, FORM_ANYWAY, bytes kept): the ways to a matrix's norm and its sum
WAYS = {
    "gram": (math.inf, math.inf, 2**30),
    "gram, residuals made twice": (math.inf, math.inf, 0),
    "formed and kept": (0.0, 0.0, 2**30),
    "formed and dropped": (0.0, 0.0, 0),
    "some of each": (0.25, 1.0, 20_000),
}


@pytest.fixture(params=WAYS)
def kept_bytes(request, monkeypatch) -> int:
    form_from, form_anyway, kept = WAYS[request.param]
    monkeypatch.setattr(matrices, "FORM_FROM", form_from)
    monkeypatch.setattr(matrices, "FORM_ANYWAY", form_anyway)
    return kept


@pytest.mark.parametrize(
    ("model", "loss"),
    [
        (lambda: build("gpt2-tied"), "bounded"),
        (lambda: build("gpt2-untied"), "published"),
        (lambda: build("llama-tied"), "published"),
        (lambda: with_adapters(build("llama-untied")), "bounded"),
    ],
)
def test_every_way_is_exact(model, loss, kept_bytes):
    assert_exact(model(), random_units(3, 5, 2), loss, execution=Execution(kept_bytes))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("physical", [1, 3, 7])
def test_physical_batches_change_nothing(family, physical):
    assert_exact(build(family), random_units(4, 7, 2), "bounded", physical)


def test_rows_cut_out_of_longer_ones_are_taken():
    """A slice of a tensor is not contiguous; what it is must not matter."""
    units, loss = random_units(4, 4, 2), LOSSES["bounded"][0]
    made, sums = to_sequences(units), []
    wide = [torch.nn.functional.pad(x, (0, 5)) for x in (made.input_ids, made.loss_mask)]
    for ids, mask in ((made.input_ids, made.loss_mask), [x[:, :-5] for x in wide]):
        clipper = ClippingEngine(build("gpt2-tied"), C)
        clipper.add(Sequences(ids, mask, 2), loss)
        sums.append(clipper.sums)
    for one, other in zip(*sums, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_hard_shapes(family):
    units: list[Unit] = [
        [([5], [9]), ([6], [9])],  # one-token text behind a one-token prompt
        [([2, 2, 2], [2] * 9), ([2], [2] * 9)],  # one token over and over, in prompt and text
        [([1, 2, 3], [3, 2, 1, 0]), ([3, 2, 1], [3, 2, 1, 0])],
        [([4] * 30, [8, 8]), ([7], [8, 8])],  # sequences of one unit of very different lengths
    ]
    assert_exact(build(family), units, "published")


@pytest.mark.parametrize("zero", [True, False])
@pytest.mark.parametrize("family", ["gpt2-tied", "llama-tied", "llama-untied"])
def test_lora(family, zero):
    assert_exact(with_adapters(build(family), zero), random_units(5, 4, 2), "bounded", 3)


@pytest.mark.parametrize(
    ("family", "trained"),
    [
        ("gpt2-tied", ("h.0.", "ln_f")),  # embeddings frozen, and the layer behind them trained
        ("gpt2-tied", ("h.1.mlp",)),
        ("gpt2-tied", ("wpe",)),
        ("gpt2-tied", ("wte",)),
        ("gpt2-untied", ("lm_head",)),
        ("gpt2-untied", ("wte",)),
        ("llama-untied", ("lm_head",)),
        ("llama-tied", ("layernorm", "norm.weight")),
        ("llama-untied", ("embed_tokens",)),
        ("llama-tied", ("k_proj", "v_proj")),
    ],
)
def test_frozen_parts(family, trained):
    model = keep_trained(build(family), *trained)
    assert 0 < len(oracle.trained(model)) < len(list(model.parameters()))
    mine, theirs = LOSSES["published"]
    units = random_units(6, 4, 2)
    expected = oracle.clipped(model, units, theirs, 0.05)
    actual = run_engine(model, units, mine, 3, max_grad_norm=0.05)
    assert oracle.largest_error(actual, expected) < EXACT


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    family=st.sampled_from(FAMILIES),
    lora=st.booleans(),
    units=st.integers(1, 5),
    per_unit=st.integers(1, 4),
    longest=st.integers(1, 20),
    physical=st.integers(1, 5),
    bounded=st.booleans(),
    kept_bytes=st.sampled_from([0, 10_000, KEPT_BYTES]),
    max_grad_norm=st.sampled_from([1e-3, 0.5, 5.0, math.inf]),
    seed=st.integers(0, 10**6),
)
def test_any_shape(
    family, lora, units, per_unit, longest, physical, bounded, kept_bytes, max_grad_norm, seed
):
    model = with_adapters(build(family)) if lora else build(family)
    made = random_units(seed, units, per_unit, prompt=(1, longest), text=(1, longest))
    name = "plain" if per_unit == 1 else "bounded" if bounded else "published"
    mine, theirs = LOSSES[name]
    expected = oracle.clipped(model, made, theirs, max_grad_norm)
    actual = run_engine(model, made, mine, physical, max_grad_norm, Execution(kept_bytes))
    assert oracle.largest_error(actual, expected) < EXACT


@pytest.mark.parametrize("family", ["gpt2-tied", "llama-untied"])
def test_buffers_and_chunks_change_nothing(family, monkeypatch):
    monkeypatch.setattr(vocabulary, "PIECE", 3)
    monkeypatch.setattr(engine, "BUFFER_NUMBERS", 2 * VOCABULARY * 16)
    assert_exact(build(family), random_units(7, 5, 2), "published")


CHECKPOINTED = Execution(gradient_checkpointing=True)


@pytest.mark.parametrize(
    "model",
    [
        lambda: build("gpt2-tied"),
        lambda: build("llama-untied"),
        lambda: with_adapters(build("llama-tied")),
        lambda: with_adapters(build("gpt2-untied")),
        lambda: keep_trained(build("gpt2-tied"), "h.0.attn", "ln_f"),  # the graph starts in a layer
        lambda: keep_trained(build("llama-tied"), "layers.1.mlp"),
        lambda: keep_trained(build("llama-untied"), "lm_head"),  # no layer is trained
    ],
)
def test_layers_computed_twice_change_nothing(model):
    assert_exact(model(), random_units(12, 5, 2), "bounded", 3, execution=CHECKPOINTED)


def test_checkpointing_computes_each_layer_twice_until_closed():
    model, calls = build("gpt2-tied"), []
    model.transformer.h[1].mlp.register_forward_hook(lambda *_: calls.append(1))
    clipper = ClippingEngine(model, C, CHECKPOINTED)
    calls.clear()
    clipper.add(to_sequences(random_units(12, 5, 2)), LOSSES["bounded"][0])
    assert len(calls) == 2
    clipper.close()
    model(input_ids=torch.ones(1, 4, dtype=torch.long))
    assert len(calls) == 3 and "forward" not in vars(model.transformer.h[1])


@pytest.mark.parametrize("family", FAMILIES)
def test_float32_stays_within_1e_4(family):
    """Stated tolerance of float32: 1e-4 relative, per norm and per parameter, against float64."""
    units, (mine, theirs) = random_units(8, 6, 2), LOSSES["bounded"]
    expected = oracle.clipped(build(family), units, theirs, C)
    actual = run_engine(build(family, torch.float32), units, mine, 4)
    assert oracle.largest_error(actual, expected) < 1e-4


def test_norms_of_long_gradients_are_not_read_too_small():
    """A float32 total of ten million small squares stops growing; rows are totalled in 64 bits."""
    gradients = torch.full((1, 2**22, 4), 1e-4)
    assert float(squares(gradients).sqrt()) == pytest.approx(1e-4 * 2**12, rel=1e-6)


@pytest.mark.parametrize("common", [1.0, 1e3, 1e4])
def test_gram_norms_survive_activations_that_share_a_large_part(common):
    """Uncorrected, float32 Gram matrices err by percents at 1e3 and turn negative at 1e4."""
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(3, 40, 96, generator=generator) for _ in range(2))
    left, right = left + common, right - right.mean(1, keepdim=True)
    exact = (left.double().transpose(1, 2) @ right.double()).square().sum((1, 2))
    use = matrices.MatrixUse(left, right, Workspace(0))
    torch.testing.assert_close(use.squared_norms(), exact, rtol=2e-5, atol=0)
    if common > 100:
        grams = (left @ left.transpose(1, 2)) * (right @ right.transpose(1, 2))
        assert ((grams.sum((1, 2)) - exact).abs() > 1e-3 * exact).any()


@pytest.mark.parametrize("left_over", [1.0, 1e-3, 1e-5])
def test_norms_of_a_tied_table_survive_uses_that_cancel(left_over):
    """Control: ‖H‖² + ‖E‖² + 2⟨H, E⟩ in float32 errs by more than all of it at 1e-5."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(7, 64, generator=generator)
    hidden = 10 * weight[2:3]  # so sure of token 2 that its probability is 1
    ids, target = torch.tensor([[2, 5]]), torch.tensor([5])
    head = vocabulary.HeadUse(hidden, weight, target, [0, 1], Workspace(1 << 30), True, 1, ids)
    vocabulary.TokenNLL.apply(hidden.clone().requires_grad_(), weight, head).sum().backward()
    rest = left_over * torch.randn(1, 2, 64, generator=generator)
    embedding = matrices.EmbeddingUse(ids, torch.stack([-hidden[0], hidden[0]])[None] + rest, 7)
    exact = (head.unit_gradients(0, 1).double() + embedding.unit_gradients(0, 1)).square().sum()
    found = engine._squared_norms([head, embedding], weight.numel(), 1)
    assert float(found) == pytest.approx(float(exact), rel=1e-5)
    if left_over < 1e-4:
        apart = head.squared_norms() + embedding.squared_norms() + 2 * head.cross(embedding)
        assert abs(float(apart - exact)) > float(exact)
