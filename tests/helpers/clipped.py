"""Small models, ragged units and one call of the engine, for the tests of clipping."""

import random
from collections.abc import Sequence

import torch
from torch import nn

from tests.helpers import oracle
from tests.helpers.models import LLAMA, tiny_model
from tests.helpers.oracle import Clipped, Unit
from twinset.models.adapters import add_factors, add_lora
from twinset.privacy.clipping import ClippingEngine, Execution, Scale, Sequences
from twinset.privacy.clipping.engine import FAST
from twinset.training.clipped_sum import MismatchLoss

VOCABULARY, CONTEXT, C = 31, 48, 1.0
PADDING_BELOW = VOCABULARY - 1  # ids that may stand in padding; the last one is poisoned in a test
EXACT = 1e-9
FAMILIES = ["gpt2-tied", "gpt2-untied", "llama-tied", "llama-untied"]
LOSSES = {
    "plain": (MismatchLoss(0.0, "published"), oracle.plain),
    "published": (MismatchLoss(0.7, "published"), oracle.published(0.7)),
    "bounded": (MismatchLoss(0.7, "bounded"), oracle.bounded(0.7)),
}


def build(family: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    name, _, tied = family.partition("-")
    config, sizes = {"gpt2": ("GPT2Config", {}), "llama": ("LlamaConfig", LLAMA)}[name]
    return random_model(config, tie_word_embeddings=tied == "tied", **sizes).to(dtype)


def random_model(config: str, **sizes) -> nn.Module:
    """Make a float64 model of a family with no special value in any parameter."""
    made = tiny_model(
        config, vocab_size=VOCABULARY, max_position_embeddings=CONTEXT, pad_token_id=None, **sizes
    )
    return oracle.randomise(made).double().eval()


def with_adapters(model: nn.Module, zero: bool = False) -> nn.Module:
    """LoRA as the product makes it; B starts at zero, and elsewhere during training."""
    torch.manual_seed(3)
    adapted = add_lora(model, 3)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, p in adapted.named_parameters():
            if "lora_B" in name and not zero:
                p.copy_(0.3 * torch.randn(p.shape, generator=generator))
            if p.requires_grad and model.dtype == torch.float64:
                p.data = p.data.double()
    return adapted


def with_factors(model: nn.Module) -> nn.Module:
    """(IA)³ as the product makes it, later in training."""
    scaled = add_factors(model)
    with torch.no_grad():
        for factors in oracle.trained(scaled).values():
            factors += torch.linspace(-0.5, 2, len(factors))
    return scaled.to(model.dtype)


def random_units(seed: int, units: int, per_unit: int, prompt=(1, 7), text=(1, 12)) -> list[Unit]:
    """Ragged units; texts repeat tokens, and take tokens from their prompts."""
    draw = random.Random(seed)

    def ids(low: int, high: int) -> list[int]:
        return [draw.randrange(VOCABULARY) for _ in range(draw.randint(low, high))]

    made = []
    for _ in range(units):
        prompts = [ids(*prompt) for _ in range(per_unit)]
        words = ids(*text)
        shared = [draw.choice([w, prompts[0][0], words[0]]) for w in words]
        made.append([(p, shared) for p in prompts])
    return made


def to_sequences(units: list[Unit], padding_seed: int = 0) -> Sequences:
    """Pad on the right, with random ids: what stands in padding must not matter."""
    rows = [row for unit in units for row in unit]
    width = max(len(p) + len(t) for p, t in rows) + padding_seed % 3
    generator = torch.Generator().manual_seed(padding_seed)
    ids = torch.randint(PADDING_BELOW, (len(rows), width), generator=generator)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for i, (prompt, text) in enumerate(rows):
        ids[i, : len(prompt) + len(text)] = torch.tensor(prompt + text)
        mask[i, len(prompt) : len(prompt) + len(text)] = True
    return Sequences(ids, mask, len(units[0]))


def run_engine(
    model: nn.Module,
    units: list[Unit],
    loss,
    physical: int = 10**6,
    max_grad_norm: float = C,
    execution: Execution = FAST,
    scales: Sequence[Scale] = (),
) -> Clipped:
    names = list(oracle.trained(model))
    clipper = ClippingEngine(model, max_grad_norm, execution)
    norms: list[float] = []
    if scales:
        clipper.rescale(scales)
    try:
        for start in range(0, len(units), physical):
            report = clipper.add(to_sequences(units[start : start + physical], start), loss)
            norms += report.norms.tolist()
    finally:
        clipper.close()
    return Clipped(norms, dict(zip(names, clipper.sums, strict=True)))


def keep_trained(model: nn.Module, *wanted: str) -> nn.Module:
    for name, p in model.named_parameters():
        p.requires_grad_(any(w in name for w in wanted))
    return model


def total_norm(sums: dict[str, torch.Tensor]) -> float:
    return oracle.norm(list(sums.values()))


def difference(left: Clipped, right: Clipped) -> float:
    return oracle.norm([left.sums[n] - right.sums[n] for n in left.sums])
