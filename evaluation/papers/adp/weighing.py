"""How unusual a public model finds the private lines and the canary: nats per token, taken once.

The constants that make privacy weights of them are fitted on public lines of the same length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from evaluation.papers.adp.corpora import Corpora, canary
from evaluation.papers.texts import drawn
from evaluation.papers.workshop import Workshop
from twinset.basemodel import BaseModel, load_base
from twinset.privacy.weightscale import WeightScale
from twinset.weights import fit_scale, text_nats

_UNKNOWN = WeightScale("none yet", 0.0, 1.0, "none yet", (1.0, 0.0, 0.0, 0.0, 0.0))


class Weighing(nn.Module):
    """What a public model thinks; a module, so that a workshop can keep it.

    Args:
        lines: private lines there are.
    """

    def __init__(self, lines: int) -> None:
        super().__init__()
        self.register_buffer("nats", torch.zeros(lines + 1, dtype=torch.float64))
        self.scale = _UNKNOWN

    def planted(self, copies: int) -> Tensor:
        """(N + copies,) nats per token of the lines, and after them of the canary's copies."""
        nats: Any = self.nats
        return torch.cat([nats[:-1], nats[-1:].expand(copies)])

    @property
    def canary(self) -> Tensor:
        """(1,) nats per token of the canary."""
        nats: Any = self.nats
        return nats[-1:]

    def get_extra_state(self) -> dict[str, Any]:
        """Return the constants."""
        return self.scale.to_dict()

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take them back."""
        self.scale = WeightScale.from_dict(state)


def weigh(corpora: Corpora, workshop: Workshop) -> Weighing:
    """Return what the public model thinks, newly asked or from an earlier row.

    Raises:
        InputError: it cannot be used, or finds all public lines alike.
    """
    size, found = corpora.size, Weighing(len(corpora.train))

    def ask() -> None:
        base = load_base(size.public_model, say=workshop.progress.say)
        public = drawn(list(corpora.public), size.scale_lines)
        shown = _tokens(base, public, size.weighed_tokens)
        origin = f"{len(shown)} lines of the public text"
        found.scale = fit_scale(base, shown, origin, workshop.counting("public lines weighed"))
        lines = _tokens(base, [*corpora.train, canary(1).text], size.weighed_tokens)
        tick = workshop.counting("private lines weighed")
        found.nats = text_nats(base.model, base.tokenizer, lines, tick)

    workshop.once("nats per token of a public model", found, ask)
    return found


def _tokens(base: BaseModel, lines: Sequence[str], most: int) -> list[list[int]]:
    """Return the public model's tokens of each line with its end, cut at so many."""
    spaced = [f" {line.strip()}" for line in lines]
    ids = base.tokenizer(spaced, add_special_tokens=False)["input_ids"]
    return [[*row, base.tokenizer.eos_token_id][:most] for row in ids]
