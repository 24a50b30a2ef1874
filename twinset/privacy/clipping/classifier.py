"""Exact clipping for text classifiers: encoders of the BERT family with one label a row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from twinset.privacy.clipping.engine import UnitClipping, UnitReport
from twinset.privacy.clipping.execution import FAST, Execution
from twinset.privacy.clipping.gradient_uses import accumulation_dtype


@dataclass(frozen=True)
class LabelledRows:
    """B units of K labelled rows, right-padded to T tokens; unit i owns rows i·K … i·K+K-1.

    Args:
        input_ids: (B·K, T) token ids.
        attention_mask: (B·K, T) true where a token is no padding.
        labels: (B·K,) class of each row.
        per_unit: K.
    """

    input_ids: Tensor
    attention_mask: Tensor
    labels: Tensor
    per_unit: int = 1

    @property
    def units(self) -> int:
        """B, the number of units."""
        return len(self.labels) // self.per_unit


class ClassifierClipping(UnitClipping):
    """Exact clipping of whole units for an encoder with a classification head.

    Guarantee: that of `UnitClipping`; a unit's loss is the mean cross-entropy of its rows.

    Args:
        model: a sequence classifier of the BERT family, put in evaluation mode: no dropout.
        max_grad_norm: C; `math.inf` only for runs without privacy.
        execution: memory against time, and number formats.

    Raises:
        UnsupportedModule: a trained parameter lives in a module that has no rule.
    """

    def __init__(self, model: nn.Module, max_grad_norm: float, execution: Execution = FAST) -> None:
        super().__init__(model, max_grad_norm, execution, rows_only=True)
        tables = [m for name, m in model.named_modules() if name.endswith("position_embeddings")]
        padding = tables[0].padding_idx if tables else None
        self._first_position = 0 if padding is None else int(padding) + 1  # as in RoBERTa

    def add(self, rows: LabelledRows, limits: Tensor | None = None) -> UnitReport:
        """Add the clipped gradients of B units to `sums`; limits (B,) as in `ClippingEngine`."""

        def forward() -> Tensor:
            logits = self._logits(rows)
            losses = cross_entropy(logits, rows.labels.to(logits.device), reduction="none")
            return losses.view(rows.units, rows.per_unit).mean(1)

        return self._clip(rows.units, rows.input_ids.shape, forward, limits)

    def _logits(self, rows: LabelledRows) -> Tensor:
        """(R, T) → (R, classes). Positions and types are given per row: none is shared by rows."""
        device = self.parameters[0].device
        ids = rows.input_ids.to(device)
        positions = torch.arange(ids.shape[1], device=ids.device) + self._first_position
        with self._execution.casting(ids.device):
            logits: Tensor = self._model(
                input_ids=ids,
                attention_mask=rows.attention_mask.to(device),
                position_ids=positions.expand(*ids.shape),
                token_type_ids=torch.zeros_like(ids),
            ).logits
        return logits.to(accumulation_dtype(logits))
