"""What the clipping engine is measured against: one unit at a time through the model and autograd.

Shares no code with `twinset`: losses are written out again, gradients come from `torch.autograd`,
norms and sums are float64. Slow and plain on purpose.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Sequence = tuple[list[int], list[int]]  # prompt, text (with its end of text, where it has one)
Unit = list[Sequence]  # the record's own prompt first, then wrong ones
Loss = Callable[[list[Tensor], int], Tensor]  # mean losses of the sequences, tokens of the text


def randomise(model: nn.Module, spread: float = 0.3) -> nn.Module:
    """Give every parameter, biases and scales included, a value that is not special."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            noise = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            p.copy_(spread * noise + (1.0 if p.dim() == 1 else 0.0))
    return model


def plain(means: list[Tensor], tokens: int) -> Tensor:
    return means[0]


def sum_of_all(means: list[Tensor], tokens: int) -> Tensor:
    return torch.stack(means).sum()


def published(weight: float) -> Loss:
    def loss(means: list[Tensor], tokens: int) -> Tensor:
        return means[0] - weight * sum(means[1:]) / (len(means) - 1)

    return loss


def bounded(weight: float) -> Loss:
    def loss(means: list[Tensor], tokens: int) -> Tensor:
        right = -tokens * means[0]  # log-probability of the text under its own prompt
        lost = [torch.log1p(torch.exp(-tokens * wrong - right)) / tokens for wrong in means[1:]]
        return means[0] + weight * sum(lost) / len(lost)

    return loss


def mean_nll(model: nn.Module, prompt: list[int], text: list[int]) -> Tensor:
    logits = model(input_ids=torch.tensor([prompt + text])).logits[0]
    log_probabilities = logits[len(prompt) - 1 : -1].log_softmax(-1)
    return -log_probabilities.gather(1, torch.tensor(text)[:, None]).mean()


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def unit_gradient(model: nn.Module, unit: Unit, loss: Loss) -> list[Tensor]:
    model.eval()
    means = [mean_nll(model, prompt, text) for prompt, text in unit]
    total = loss(means, len(unit[0][1]))
    found = torch.autograd.grad(total, list(trained(model).values()), materialize_grads=True)
    return [g.double() for g in found]


def norm(gradient: list[Tensor]) -> float:
    return float(sum(g.double().square().sum() for g in gradient)) ** 0.5


@dataclass
class Clipped:
    """Norms of all units, and per trained parameter the clipped sum."""

    norms: list[float]
    sums: dict[str, Tensor]


def clip_and_sum(gradients: list[list[Tensor]], names: list[str], max_grad_norm: float) -> Clipped:
    norms = [norm(g) for g in gradients]
    within = (1 - 1e-5) * max_grad_norm
    factors = [min(1.0, within / n) if n else 1.0 for n in norms]
    sums = {
        name: sum(f * g[i] for f, g in zip(factors, gradients, strict=True))
        for i, name in enumerate(names)
    }
    return Clipped(norms, sums)


def clipped(model: nn.Module, units: list[Unit], loss: Loss, max_grad_norm: float) -> Clipped:
    gradients = [unit_gradient(model, unit, loss) for unit in units]
    return clip_and_sum(gradients, list(trained(model)), max_grad_norm)


def relative_error(actual: Tensor, expected: Tensor, least: float = 0.0) -> float:
    """‖actual - expected‖ / ‖expected‖; a gradient that is exactly zero must be so in both.

    One shorter than `least` is rounding alone, as that of attention to a single token.
    """
    off = float((actual.double() - expected.double()).norm())
    size = max(least, float(expected.double().norm()))
    return off / size if size else off


def largest_error(actual: Clipped, expected: Clipped) -> float:
    """Largest relative error over all norms and all parameters' sums."""
    assert actual.sums.keys() == expected.sums.keys()
    norms = [
        abs(a - e) / e if e else abs(a) for a, e in zip(actual.norms, expected.norms, strict=True)
    ]
    least = 1e-6 * norm([*expected.sums.values()])
    sums = [relative_error(actual.sums[name], each, least) for name, each in expected.sums.items()]
    return max(norms + sums)
