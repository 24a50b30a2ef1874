"""What every rank but 0 does: form parts of clipped sums, until there are no more.

A worker draws no batch and no noise, and writes nothing. Loads torch only once it has work.
"""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twinset.training.trainer import Trainer


def is_worker() -> bool:
    """Return whether a launcher started this process as another rank than 0."""
    launched = int(os.environ.get("WORLD_SIZE", "1")) > 1
    return launched and os.environ.get("RANK", "0") != "0"


def run_worker(meeting: str = "env://", rank: int = -1, size: int = -1) -> None:
    """Join a process group and do its work; by default one that a launcher started.

    Args:
        meeting: where the processes find one another, a URL of `torch.distributed`.
        rank: of this process; -1: as the launcher says.
        size: of the group; -1: as the launcher says.
    """
    from twinset.config import RunConfig
    from twinset.privacy.clipping import ClippingEngine
    from twinset.table.tokenization import TokenisedRecords
    from twinset.training.clipped_sum import ClippedSum, WrongPrompts
    from twinset.training.distributed import END, follow, join_group

    with join_group(meeting, rank, size) as group:
        # Each message asks for parts of sums, see `loop.opening_message`.
        while (message := group.broadcast_message()) != END:
            config, trainer = RunConfig.from_dict(message["config"]), trainer_of(message)
            norm = math.inf if message["max_grad_norm"] is None else message["max_grad_norm"]
            engine = ClippingEngine(trainer.model, norm, trainer.execution)
            records = TokenisedRecords.open(Path(message["tokens"]))
            wrong = WrongPrompts(**message["wrong"])
            shapes = wrong.shapes(records, config.speed, message["batch_size"])
            try:
                follow(ClippedSum(engine, records, wrong, shapes), group)
            finally:
                engine.close()


def trainer_of(message: dict[str, Any]) -> Trainer:
    """Return a model with rank 0's very weights, in rank 0's precision."""
    from twinset.config import RunConfig
    from twinset.models.base_model import load_base
    from twinset.progress import Silent
    from twinset.training.trainer import Trainer

    config = RunConfig.from_dict(message["config"])
    trainer = Trainer(load_base(config.training.base_model), config, [], Silent())
    if message["fallen_back"]:
        trainer.fall_back()
    return trainer


if __name__ == "__main__":
    run_worker(f"file://{sys.argv[1]}", int(sys.argv[2]), int(sys.argv[3]))
