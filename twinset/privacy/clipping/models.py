"""Exact clipping of the two kinds of model that are trained, and a check of their arithmetic.

`ClippingEngine` clips causal language models, where each token is predicted from those before it.
`ClassifierClipping` clips encoders of the BERT family with one label a row. `batch_interference`
measures, on made-up tokens, whether a unit's gradient is the same to the bit whatever stands next
to it in a batch.

A kernel chooses its blocks by the shape of what it multiplies, and rounds each row accordingly. In
bfloat16, one record more in a physical batch would change every other's gradient by percents of C,
which no theorem covers. At a constant shape the arithmetic of each row is the same, wherever it
stands. So all physical batches of units of one size have one shape, with filler for what is
missing, and products over tokens of several units come in pieces of one size. The check tests the
machine for that, shape by shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from twinset.privacy.clipping.engine import (
    FAST,
    Execution,
    UnitClipping,
    UnitReport,
    UnsupportedModule,
    is_out_of_memory,
)
from twinset.privacy.clipping.gradient_uses import PLAIN, accumulation_dtype
from twinset.privacy.clipping.output_head import HeadUse, TokenNLL, piece_of, whole_pieces

UnitLoss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Sequences:
    """B units of K sequences, right-padded to T tokens; unit i owns rows i·K … i·K+K-1.

    Args:
        input_ids: (B·K, T) token ids. On the processor, so the places of losses are known without
            asking a device. The engine moves them to the model's.
        loss_mask: (B·K, T) true where a token carries loss (text and end of text, never prompt or
            padding). Column 0 must be false: nothing predicts the first token.
        per_unit: K.
        filler: how many of the units, the last ones, are nobody's. They take part in the products,
            which then always have one shape, and in nothing else.
    """

    input_ids: Tensor
    loss_mask: Tensor
    per_unit: int
    filler: int = 0

    def __post_init__(self) -> None:
        """Refuse rows that cannot be grouped into units or that carry no loss."""
        if self.input_ids.shape != self.loss_mask.shape or self.input_ids.dim() != 2:
            raise ValueError("input_ids and loss_mask must both be (rows, tokens)")
        if self.input_ids.shape[0] % self.per_unit:
            raise ValueError("the number of rows must be a multiple of the sequences per unit")
        if bool(self.loss_mask[:, 0].any()) or not bool(self.loss_mask.any(1).all()):
            raise ValueError("every row needs a token with loss, and the first token carries none")

    @property
    def units(self) -> int:
        """B, the number of units, filler among them."""
        return self.input_ids.shape[0] // self.per_unit

    def filled(self, units: int) -> Sequences:
        """Return the same with filler behind, up to a number of units.

        Raises:
            ValueError: there are more already.
        """
        more = units - self.units
        if more < 0:
            raise ValueError(f"{self.units} units do not fit into a batch of {units}")
        ids = self.input_ids.new_zeros(more * self.per_unit, self.input_ids.shape[1])
        mask = torch.zeros_like(ids, dtype=torch.bool)
        mask[:, 1] = True
        ids, mask = torch.cat([self.input_ids, ids]), torch.cat([self.loss_mask, mask])
        return Sequences(ids, mask, self.per_unit, self.filler + more)


class ClippingEngine(UnitClipping):
    """Exact clipping of whole units for causal language models of the GPT-2 and Llama families.

    Guarantee: that of `UnitClipping`.

    Args:
        model: a causal LM (or its `peft` wrapping), put in evaluation mode: no dropout.
        max_grad_norm: C; `math.inf` only for runs without privacy.
        execution: memory against time, and number formats.

    Raises:
        UnsupportedModule: a trained parameter lives in a module that has no rule, or the model
            computes its logits in another way than output layer times last hidden state.
    """

    def __init__(self, model: nn.Module, max_grad_norm: float, execution: Execution = FAST) -> None:
        unwrap: Any = getattr(model, "get_base_model", None)
        plain: Any = unwrap() if unwrap else model
        self._backbone: nn.Module = plain.base_model
        self._head: Any = plain.get_output_embeddings()
        super().__init__(plain, max_grad_norm, execution, self._head)
        # The logits must be output layer times last hidden state, and no more.
        ids = torch.arange(4, device=next(plain.parameters()).device)[None]
        with torch.no_grad():
            with execution.casting(ids.device):
                expected = plain(input_ids=ids, use_cache=False).logits
                actual = self._hidden_states(ids) @ self._head.weight.t()
            tolerance = (
                1e-3 if expected.dtype.itemsize >= 4 else 2e-2
            )  # relative: they may be small
            if (actual - expected).double().norm() > tolerance * expected.double().norm():
                self.close()
                raise UnsupportedModule(
                    f"{type(plain).__name__} scales or shifts its logits, which is not supported"
                )

    def add(
        self, sequences: Sequences, unit_loss: UnitLoss, limits: Tensor | None = None
    ) -> UnitReport:
        """Add the clipped gradients of B units to `sums`.

        Args:
            sequences: the units' rows.
            unit_loss: (B, K) mean token losses of the sequences and (B, K) numbers of tokens with
                loss → (B,) losses. It must not mix units.
            limits: (B,) norm that each unit is clipped to, at most C; `None`: C.
        """

        def forward() -> Tensor:
            nll = self._token_losses(sequences)  # (N,)
            counts = sequences.loss_mask.sum(1)  # (B·K,) tokens with loss
            row = torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
            row, counts = row.to(nll.device), counts.to(nll.device)
            rows = torch.zeros(len(counts), dtype=nll.dtype, device=nll.device)
            means = rows.index_add(0, row, nll) / counts
            per_unit = (sequences.units, sequences.per_unit)  # (B·K,) → (B, K)
            return unit_loss(means.view(per_unit), counts.view(per_unit))

        shape = sequences.input_ids.shape
        return self._clip(sequences.units, shape, forward, limits, sequences.filler)

    def _token_losses(self, sequences: Sequences) -> Tensor:
        """Return (N,) losses of the tokens with loss, row by row."""
        mask, room = sequences.loss_mask, sequences.input_ids.numel()
        shifted = torch.zeros_like(mask)
        shifted[:, :-1] = mask[:, 1:]
        predicting = shifted.reshape(-1).nonzero().squeeze(1)  # (N,) places whose next token counts
        targets = sequences.input_ids[mask]  # (N,) those tokens
        tokens = len(targets)
        filled = (0, whole_pieces(tokens, piece_of(room)) - tokens)

        device = self.parameters[0].device
        hidden = self._hidden_states(sequences.input_ids.to(device)).flatten(0, 1)  # (B·K·T, d)
        positions = pad(predicting, filled).to(device)
        hidden = hidden.index_select(0, positions)  # (N, d), filled to whole pieces
        if not hidden.requires_grad:  # nothing below the output layer is trained
            hidden = hidden.detach().requires_grad_(True)
        weight, low = self._head.weight, self._execution.autocast
        hidden, used = (x if low is None else x.to(low) for x in (hidden, weight))

        units = sequences.units
        per_unit = mask.sum(1).view(units, -1).sum(1)  # (B,) tokens with loss
        tied = self._model.get_input_embeddings().weight is weight  # type: ignore[operator]
        head = HeadUse(
            hidden.detach(),
            used,
            targets=pad(targets, filled).to(device),
            offsets=[0, *per_unit.cumsum(0).tolist()],
            workspace=self._workspace,
            trained=id(weight) in self._capture.trained,
            room=room,
            ids=sequences.input_ids.reshape(units, -1).to(device) if tied else None,
            scale=self._capture.scales.get(id(weight), PLAIN),
        )
        if head.trained:
            self._capture.uses[id(weight)].append(head)
        losses: Tensor = TokenNLL.apply(hidden, used, head)
        return losses[:tokens]

    def _hidden_states(self, ids: Tensor) -> Tensor:
        """(R, T) → (R, T, d). Right padding needs no mask: causal attention never looks ahead."""
        positions = torch.arange(ids.shape[1], device=ids.device).expand(*ids.shape)
        with self._execution.casting(ids.device):
            output = self._backbone(input_ids=ids, position_ids=positions, use_cache=False)
        hidden: Tensor = output.last_hidden_state
        return hidden


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
        """Add the clipped gradients of B units to `sums`.

        Args:
            rows: the units' rows.
            limits: (B,) norm that each unit is clipped to, at most C; `None`: C.
        """

        def forward() -> Tensor:
            # Positions and types are given per row: none is shared by rows.
            device = self.parameters[0].device
            ids = rows.input_ids.to(device)  # (R, T)
            positions = torch.arange(ids.shape[1], device=ids.device) + self._first_position
            with self._execution.casting(ids.device):
                logits: Tensor = self._model(
                    input_ids=ids,
                    attention_mask=rows.attention_mask.to(device),
                    position_ids=positions.expand(*ids.shape),
                    token_type_ids=torch.zeros_like(ids),
                ).logits
            logits = logits.to(accumulation_dtype(logits))  # (R, classes)
            losses = cross_entropy(logits, rows.labels.to(logits.device), reduction="none")
            return losses.view(rows.units, rows.per_unit).mean(1)

        return self._clip(rows.units, rows.input_ids.shape, forward, limits)


# -- whether units keep apart ----------------------------------------------------------------------

SUM_ROUNDING = 1e-4  # of C: sums are float32, and their order is the batch's
LITTLE = 1e-9  # of C: what others may add where one unit's part of the sum is looked at


class BatchShape(NamedTuple):
    """B units of K rows of T tokens."""

    units: int
    per_unit: int
    tokens: int


def batch_interference(
    engine: ClippingEngine, vocabulary: int, shapes: Sequence[BatchShape]
) -> float:
    """Return the largest change of a unit's gradient by others, over C; 0 means not by a bit.

    Each shape is computed twice. The second time the units stand elsewhere, a third of them are
    others, and a third filler. Where memory is short, a shape is what a run then makes of it: half
    the units.

    Args:
        engine: over the model as it is to be trained, in its precision. Its sums are left at zero.
        vocabulary: number of token ids that may be drawn.
        shapes: that physical batches will have.
    """
    generator, found = torch.Generator().manual_seed(0), [0.0]
    for shape in shapes:
        while True:
            try:
                found.append(_interference(engine, vocabulary, shape, generator))
                break
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                if shape.units == 1 and not engine.checkpoint_layers():
                    raise
            shape = shape._replace(units=max(1, shape.units // 2))
    engine.zero()
    return torch.tensor(found, dtype=torch.float64).max().item()


def _interference(
    engine: ClippingEngine, vocabulary: int, shape: BatchShape, generator: torch.Generator
) -> float:
    units, per_unit, tokens = shape
    ids = torch.randint(vocabulary, (2 * units, per_unit, tokens), generator=generator)
    order = torch.randperm(units, generator=generator)[: units - units // 3]  # who stays, and where
    others = order[: units // 3]  # whose place a stranger takes
    second = torch.where(torch.isin(order, others), order + units, order)

    def clipped(ids: Tensor, one: int) -> tuple[Tensor, Tensor]:
        """Return (B,) norms, and the sum to which all units but one add next to nothing."""
        mask = torch.ones_like(ids, dtype=torch.bool)
        mask[:, :, : max(1, tokens // 4)] = False  # as behind a prompt
        limits = torch.full((len(ids),), LITTLE * engine.max_grad_norm)
        limits[one] = engine.max_grad_norm
        engine.zero()
        batch = Sequences(ids.flatten(0, 1), mask.flatten(0, 1), per_unit).filled(units)
        report = engine.add(batch, lambda means, counts: means.sum(1), limits)
        return report.norms.cpu(), torch.cat([total.flatten().double() for total in engine.sums])

    norms, part = clipped(ids[:units], int(order[-1]))  # one that stays, so its part does
    again, part_again = clipped(ids[second], len(order) - 1)
    stays = second < units
    worst = (norms[order[stays]] - again[stays]).abs().max() / engine.max_grad_norm
    moved = float((part - part_again).norm()) / engine.max_grad_norm
    # Python's max would lose a NaN.
    both = torch.tensor(
        [float(worst), 0.0 if moved <= SUM_ROUNDING else moved], dtype=torch.float64
    )
    return both.max().item()
