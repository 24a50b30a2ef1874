"""Σᵢ ĝᵢ: every unit's whole gradient, clipped, summed over a logical batch of any size.

Knows nothing of noise, sampling or accounting; it is given units and a loss, and adds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from twinset.privacy.clipping.capture import Capture, UnsupportedModule
from twinset.privacy.clipping.sequences import Sequences
from twinset.privacy.clipping.uses import EmbeddingUse, Use, accumulation_dtype, squares
from twinset.privacy.clipping.vocabulary import HeadUse, TokenNLL
from twinset.privacy.clipping.workspace import Workspace

UnitLoss = Callable[[Tensor, Tensor], Tensor]
BUFFER_NUMBERS = 1 << 26  # per-unit gradients formed at once: 256 MB of float32
KEPT_BYTES = 2 << 30


@dataclass(frozen=True)
class UnitReport:
    """What clipping saw, per unit of one physical batch. Private: `internal/` only.

    Args:
        losses: (B,) loss of each unit.
        norms: (B,) float64 norms before clipping; not finite where a gradient was not.
        scales: (B,) factors applied, min(1, C / norm); 0 for a gradient that was not finite.
    """

    losses: Tensor
    norms: Tensor
    scales: Tensor


class ClippingEngine:
    """Exact clipping of whole units for causal language models of the GPT-2 and Llama families.

    Guarantee:
        After any calls of `add`, `sums` holds Σᵢ ĝᵢ with ĝᵢ = gᵢ · min(1, C/‖gᵢ‖), where gᵢ is the
        gradient of unit i's loss with respect to *all* trained parameters: all sequences of the
        unit, all tokens, and all uses of a shared (tied) parameter. So adding or removing one unit
        changes `sums` by at most C in Euclidean norm, up to rounding (float32 products, float64
        totals), in whatever physical batches the units came. A unit whose gradient is not finite
        counts as zero. The unit's loss may be any function of the mean losses of its own K
        sequences; it must not look at other units, nor at draws that other units share in. With
        low-precision (bfloat16) layers the gradient that is bounded is the one they computed; norm
        and sum are formed from the same numbers in float32.

    Args:
        model: a causal LM (or its `peft` wrapping), put in evaluation mode: no dropout.
        max_grad_norm: C; `math.inf` only for runs without privacy.
        kept_bytes: memory for what makes a step faster; 0 makes it slower and changes no result.

    Raises:
        UnsupportedModule: a trained parameter lives in a module that has no rule, or the model
            computes its logits in another way than output layer times last hidden state.
    """

    def __init__(
        self, model: nn.Module, max_grad_norm: float, kept_bytes: int = KEPT_BYTES
    ) -> None:
        if not max_grad_norm > 0:
            raise ValueError("max_grad_norm must be above 0")
        self.max_grad_norm = max_grad_norm
        unwrap: Any = getattr(model, "get_base_model", None)
        self._model: nn.Module = unwrap() if unwrap else model
        self._backbone: nn.Module = self._model.base_model  # type: ignore[assignment]
        self._head: nn.Module = self._model.get_output_embeddings()  # type: ignore[operator]
        self._model.eval()
        self._check_head()
        self._workspace = Workspace(kept_bytes)
        self._capture = Capture(self._model, self._head, self._workspace)
        self.parameters = self._capture.parameters
        self.sums = [torch.zeros_like(p, dtype=accumulation_dtype(p)) for p in self.parameters]

    def zero(self) -> None:
        """Start a new logical batch."""
        for total in self.sums:
            total.zero_()

    def close(self) -> None:
        """Remove hooks; parameters are trainable by autograd again."""
        self._capture.close()

    def add(self, sequences: Sequences, unit_loss: UnitLoss) -> UnitReport:
        """Add the clipped gradients of B units to `sums`.

        Args:
            sequences: the units' rows.
            unit_loss: (B, K) mean token losses of the sequences and (B, K) numbers of tokens with
                loss → (B,) losses. It must not mix units.
        """
        self._capture.begin(sequences.units, sequences.input_ids.shape)
        try:
            losses = self._forward_backward(sequences, unit_loss)
            norms = self._norms(sequences.units)
            scales = (self.max_grad_norm / norms).clamp(max=1.0)
            scales = torch.where(norms.isfinite(), scales, torch.zeros_like(scales))
            self._add_scaled(scales)
        finally:
            self._capture.end()
        return UnitReport(losses, norms, scales)

    def _forward_backward(self, sequences: Sequences, unit_loss: UnitLoss) -> Tensor:
        """Run both passes; return (B,) losses and leave every parameter's uses in the capture."""
        with torch.enable_grad():
            nll = self._token_losses(sequences)  # (N,)
            counts = sequences.tokens_per_row
            row = torch.arange(len(counts), device=nll.device).repeat_interleave(counts)
            rows = torch.zeros(len(counts), dtype=nll.dtype, device=nll.device)
            means = rows.index_add(0, row, nll) / counts
            shape = (sequences.units, sequences.per_unit)
            losses = unit_loss(means.view(shape), counts.view(shape))
            losses.sum().backward()
        return losses.detach()

    def _token_losses(self, sequences: Sequences) -> Tensor:
        ids = sequences.input_ids
        hidden = self._hidden_states(ids).flatten(0, 1)  # (B·K·T, d)
        hidden = hidden.index_select(0, sequences.predicting)  # (N, d)
        if not hidden.requires_grad:  # nothing below the output layer is trained
            hidden = hidden.detach().requires_grad_(True)
        weight = self._head.weight
        assert isinstance(weight, Tensor)
        head = self._head_use(sequences, hidden.detach(), weight)
        loss: Tensor = TokenNLL.apply(hidden, weight, head)
        return loss

    def _head_use(self, sequences: Sequences, hidden: Tensor, weight: Tensor) -> HeadUse:
        trained, units = self._capture.trains(weight), sequences.units
        per_unit = sequences.tokens_per_row.view(units, -1).sum(1)
        offsets = [0, *per_unit.cumsum(0).tolist()]
        embedding = self._model.get_input_embeddings()  # type: ignore[operator]
        ids = sequences.input_ids.view(units, -1) if embedding.weight is weight else None
        use = HeadUse(hidden, weight, sequences.targets, offsets, self._workspace, trained, ids)
        if trained:
            self._capture.uses[id(weight)].append(use)
        return use

    def _hidden_states(self, ids: Tensor) -> Tensor:
        """(R, T) → (R, T, d). Right padding needs no mask: causal attention never looks ahead."""
        positions = torch.arange(ids.shape[1], device=ids.device).expand(*ids.shape)
        output = self._backbone(input_ids=ids, position_ids=positions, use_cache=False)
        hidden: Tensor = output.last_hidden_state
        return hidden

    def _norms(self, units: int) -> Tensor:
        """(B,) float64 norms of the whole gradients: squares of all parameters' sums of uses."""
        squared = torch.zeros(units, dtype=torch.float64, device=self.sums[0].device)
        for parameter in self.parameters:
            squared += _squared_norms(self._uses_of(parameter), parameter.numel(), units)
        return squared.sqrt()

    def _add_scaled(self, scales: Tensor) -> None:
        """Add Σ scaleᵢ gᵢ to the sums, and let go of each parameter's uses on the way."""
        if not bool((scales != 0).any()):
            return
        for parameter, total in zip(self.parameters, self.sums, strict=True):
            uses = self._capture.uses.pop(id(parameter))
            for use in uses:
                use.add_to(total, scales)

    def _uses_of(self, parameter: nn.Parameter) -> list[Use]:
        uses = self._capture.uses[id(parameter)]
        if not uses:
            name = next(n for n, p in self._model.named_parameters() if p is parameter)
            raise UnsupportedModule(f"{name} is trained but took no part in the loss; freeze it")
        return uses

    @torch.no_grad()
    def _check_head(self) -> None:
        """Refuse a model whose logits are more than output layer times last hidden state."""
        ids = torch.arange(4, device=next(self._model.parameters()).device)[None]
        expected = self._model(input_ids=ids, use_cache=False).logits
        actual = self._hidden_states(ids) @ self._head.weight.t()  # type: ignore[operator]
        tolerance = 1e-3 if expected.dtype.itemsize >= 4 else 2e-2  # relative: logits may be small
        if (actual - expected).double().norm() > tolerance * expected.double().norm():
            name = type(self._model).__name__
            raise UnsupportedModule(f"{name} scales or shifts its logits, which is not supported")


def _squared_norms(uses: list[Use], numbers: int, units: int) -> Tensor:
    """(B,) float64, of the sum of all uses of one parameter of so many numbers."""
    match uses:
        case [use]:
            return use.squared_norms()
        case [HeadUse() as head, EmbeddingUse() as embedding] if head.ids is not None:
            apart = head.squared_norms() + embedding.squared_norms()
            return apart + 2 * head.cross(embedding)
    step = max(1, BUFFER_NUMBERS // numbers)
    spans = ((start, min(start + step, units)) for start in range(0, units, step))
    return torch.cat([squares(_sum_of_uses(uses, *span)) for span in spans])


def _sum_of_uses(uses: list[Use], start: int, stop: int) -> Tensor:
    total = uses[0].unit_gradients(start, stop).clone()
    for use in uses[1:]:
        total += use.unit_gradients(start, stop)
    return total
