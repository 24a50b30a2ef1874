"""What every rank but 0 does: what messages ask for, until there are none.

A worker draws no batch and no noise, and writes nothing but rows of the twin.
"""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twinset.training.distributed import ProcessGroup
    from twinset.training.trainer import Trainer


def is_worker() -> bool:
    """Return whether a launcher started this process as another rank than 0; loads no torch."""
    launched = int(os.environ.get("WORLD_SIZE", "1")) > 1
    return launched and os.environ.get("RANK", "0") != "0"


def worker_loop(group: ProcessGroup) -> None:
    """Do what rank 0 asks for."""
    from twinset.training.distributed import END

    while (message := group.broadcast_message()) != END:
        _TASKS[message["task"]](group, message)


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


def _train(group: ProcessGroup, message: dict[str, Any]) -> None:
    """Form parts of clipped sums."""
    from twinset.config import RunConfig
    from twinset.privacy.clipping import ClippingEngine
    from twinset.table.tokenization import TokenisedRecords
    from twinset.training.clipped_sum import ClippedSum, WrongPrompts
    from twinset.training.distributed import follow

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


def _sample(group: ProcessGroup, message: dict[str, Any]) -> None:
    """Draw groups of rows."""
    from twinset.run.row_processes import draw_share

    draw_share(message, group.rank)
    group.barrier()


_TASKS = {"train": _train, "sample": _sample}


def run_launched_worker() -> None:
    """Join the process group that a launcher started, and do its work."""
    from twinset.training.distributed import join_group

    with join_group("env://") as group:
        worker_loop(group)


def main(meeting: str, rank: str, size: str) -> None:
    """Join a process group that `twinset.training.distributed` started, and do its work."""
    from twinset.training.distributed import join_group

    with join_group(f"file://{meeting}", int(rank), int(size)) as group:
        worker_loop(group)


if __name__ == "__main__":
    main(*sys.argv[1:])
