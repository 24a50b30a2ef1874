"""The pre-training loop: blocks → loss → gradient → Muon and AdamW, on one process or several.

Public text only: nothing here is private, and nothing is noised. A run that is killed and begun
again takes the same steps as one that never was.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from twinset.errors import InputError
from twinset.files.checkpoints import Checkpoints, save_state
from twinset.models.device import device_of, has_bfloat16, is_cpu
from twinset.pretraining.bits_per_byte import bits_per_byte
from twinset.pretraining.config import PretrainConfig
from twinset.pretraining.optimizers import adapter_optimizers, optimizers
from twinset.pretraining.packing import Blocks, Order
from twinset.pretraining.token_losses import TokenLosses
from twinset.progress import PretrainingReport

MAX_GRAD_NORM = 1.0
STATE = "state.pt"
LOWEST = 0.1  # of the learning rate, at the end
CHECKPOINT_SECONDS = 180.0
VALIDATIONS = 60  # a run, about
OF_ADAPTERS = 20  # likewise; their bases are large


@dataclass(frozen=True)
class Text:
    """What is trained and validated on.

    Args:
        training: blocks of the corpus.
        heldout: blocks of held-out documents.
        heldout_size: their bytes.
        blocks_before: of the corpus before guarded documents were left out: it sets the number of
            steps, which is published.
    """

    training: Blocks
    heldout: Blocks
    heldout_size: int
    blocks_before: int


def steps_of(blocks: int, config: PretrainConfig) -> int:
    """Return T."""
    return max(1, math.ceil(config.epochs * blocks / config.batch_size))


def train(
    model: Any,
    text: Text,
    config: PretrainConfig,
    folder: Path,
    on_progress: Callable[[PretrainingReport], object],
    max_seconds: float = math.inf,
) -> PretrainingReport:
    """Train a model in place from its newest checkpoint on, and return its last step, validated.

    Args:
        model: causal LM.
        text: blocks.
        config: how long and how fast.
        folder: of the checkpoints.
        on_progress: called after each step, on the main process.
        max_seconds: it stops after so long, with a checkpoint.

    Raises:
        InputError: the batch cannot be shared by these processes, or training diverged.
    """
    run = _Run(model, text, config, Checkpoints(folder))
    if config.lora_rank and not run.done:
        run.report(on_progress, validate=True)  # the base itself
    while run.done < run.steps:
        run.step()
        if run.done == run.steps or run.agreed(run.seconds > max_seconds):
            break
        if run.agreed(run.is_due):
            run.save()
        run.report(on_progress)
    run.save()
    return run.report(on_progress, validate=True)


class _Run:
    """A model with its optimiser, spread over processes by accelerate."""

    def __init__(
        self, model: Any, text: Text, config: PretrainConfig, checkpoints: Checkpoints
    ) -> None:
        from accelerate import Accelerator

        self._text, self._config, self._checkpoints = text, config, checkpoints
        # Accelerate keeps one precision for the life of a process; autocast is a run's own.
        self._accelerator = Accelerator(cpu=on_cpu(), mixed_precision="no")
        self._low = is_low(config) and config.lora_rank is None  # a frozen base is low itself
        self._micro = self._blocks_at_once()
        self._order = Order(len(text.training), config.batch_size, config.seed)
        self.steps = steps_of(text.blocks_before, config)
        self._every = max(1, self.steps // (OF_ADAPTERS if config.lora_rank else VALIDATIONS))
        made = (
            adapter_optimizers(model)
            if config.lora_rank
            else optimizers(model, config.weight_decay)
        )
        self._plain, losses = model.train(), TokenLosses(model)
        self._losses, *self._optimizers = self._accelerator.prepare(losses, *made)
        self._kept: int | None = None  # steps done at the newest checkpoint
        self.done = self._first = self._load()
        self._loss = math.nan
        self._began = self._saved = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since training began."""
        return time.monotonic() - self._began

    @property
    def is_due(self) -> bool:
        """Whether it is time for a checkpoint."""
        return time.monotonic() - self._saved > CHECKPOINT_SECONDS

    def agreed(self, answer: bool) -> bool:
        """Return what the main process answers: clocks differ, and all must do the same."""
        from accelerate.utils import broadcast

        if self._accelerator.num_processes == 1:
            return answer
        asked = torch.tensor([float(answer)], device=self._accelerator.device)
        return bool(broadcast(asked).item())

    def step(self) -> None:
        """Take a step."""
        step = self.done
        torch.manual_seed(self._seed_of(step))  # of dropout: nothing of it must be kept either
        parts = list(self._mine(step))
        self._loss = sum(self._learn(part, last=part is parts[-1]) for part in parts)
        if not self.agreed(math.isfinite(self._loss)):
            raise InputError(f"training diverged at step {step + 1}; lower `learning_rate`")
        self._accelerator.clip_grad_norm_(self._losses.parameters(), MAX_GRAD_NORM)
        share = rate(step, self.steps, self._config.warmup)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self._config.learning_rate * share
            optimizer.step()
            optimizer.zero_grad()
        self.done += 1

    def save(self) -> None:
        """Write a checkpoint, unless there is one of this step."""
        if self._accelerator.is_main_process and self._kept != self.done:
            trained = {n: p for n, p in self._plain.named_parameters() if p.requires_grad}
            states = [optimizer.state_dict() for optimizer in self._optimizers]
            state = {"model": trained, "optimizers": states}
            self._checkpoints.write(self.done, lambda folder: save_state(state, folder / STATE))
        self._accelerator.wait_for_everyone()
        self._saved, self._kept = time.monotonic(), self.done

    def _load(self) -> int:
        """Take the newest checkpoint up and return the steps done."""
        newest = self._checkpoints.newest()
        if newest is None:
            return 0
        path, device = newest.folder / STATE, self._accelerator.device
        state = torch.load(path, map_location=device, weights_only=True)
        self._plain.load_state_dict(state["model"], strict=False)  # a frozen part is not kept
        for optimizer, kept in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(kept)
        self._kept = newest.step
        return newest.step

    def report(
        self, on_progress: Callable[[PretrainingReport], object], validate: bool = False
    ) -> PretrainingReport:
        """Report the last step, on the main process; validate now and then."""
        bits, leads = None, self._accelerator.is_main_process
        if leads and (validate or self.done % self._every == 0):
            bits = bits_per_byte(self._plain, self._text.heldout, self._text.heldout_size)
        tokens = self.done * self._config.batch_size * (self._config.context - 1)
        loss = self._loss if math.isfinite(self._loss) else None  # none taken
        taken = self.done - self._first
        report = PretrainingReport(self.done, self.steps, loss, tokens, self.seconds, taken, bits)
        if leads:
            on_progress(report)
        return report

    def _blocks_at_once(self) -> int:
        processes, config = self._accelerator.num_processes, self._config
        if config.batch_size % processes:
            raise InputError(
                f"`batch_size={config.batch_size}` cannot be shared by {processes} processes"
            )
        return min(config.micro_batch, config.batch_size // processes)

    def _mine(self, step: int) -> Iterator[np.ndarray]:
        accelerator = self._accelerator
        numbers = self._order.of_step(step)[accelerator.process_index :: accelerator.num_processes]
        for start in range(0, len(numbers), self._micro):
            yield numbers[start : start + self._micro]

    def _learn(self, numbers: np.ndarray, last: bool) -> float:
        """Add the gradients of some blocks, weighted by their share, and return their loss."""
        ids = torch.from_numpy(self._text.training.read(numbers)).to(self._accelerator.device)
        share = len(numbers) * self._accelerator.num_processes / self._config.batch_size
        with contextlib.nullcontext() if last else self._accelerator.no_sync(self._losses):
            with torch.autocast(ids.device.type, torch.bfloat16, enabled=self._low):
                loss = self._losses(ids).mean()
            self._accelerator.backward(loss * share)
        return loss.item() * share

    def _seed_of(self, step: int) -> int:
        entropy = [self._config.seed, step, self._accelerator.process_index]
        return int(np.random.SeedSequence(entropy).generate_state(1)[0])


def rate(step: int, steps: int, warmup: float) -> float:
    """Return the share of the highest learning rate: a straight rise, then a cosine to a tenth."""
    rise = max(1, round(warmup * steps))
    if step < rise:
        return (step + 1) / rise
    done = (step - rise) / max(1, steps - rise)
    return LOWEST + (1 - LOWEST) * (1 + math.cos(math.pi * done)) / 2


def on_cpu() -> bool:
    """Return whether there is nothing better."""
    return is_cpu(device_of())


def is_low(config: PretrainConfig) -> bool:
    """Return whether products are in bfloat16; weights and their updates are always in float32."""
    has_low = has_bfloat16(device_of())
    return {"auto": has_low, "bfloat16": True, "float32": False}[config.precision]
