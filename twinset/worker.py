"""What the processes of a team do that do not lead: jobs, until there are none.

A worker draws no batch and no noise, and writes nothing but rows of the twin.
"""

from __future__ import annotations

import math
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinset.team import END, Team

if TYPE_CHECKING:
    from twinset.learner import Learner


def serve(team: Team) -> None:
    """Do what the leader asks for."""
    while (job := team.tell()) != END:
        _JOBS[job["job"]](team, job)


def learner_of(job: dict[str, Any]) -> Learner:
    """Return a model with the leader's very weights, in the leader's precision."""
    from twinset.basemodel import load_base
    from twinset.config import RunConfig
    from twinset.learner import Learner
    from twinset.progress import Silent

    config = RunConfig.from_dict(job["config"])
    learner = Learner(load_base(config.training.base_model), config, False, Silent())
    if job["fallen_back"]:
        learner.fall_back()
    return learner


def _train(team: Team, job: dict[str, Any]) -> None:
    """Form parts of clipped sums."""
    from twinset.clippedsum import ClippedSum, WrongPrompts
    from twinset.config import RunConfig
    from twinset.privacy.clipping import ClippingEngine
    from twinset.team import follow
    from twinset.tokens import TokenisedRecords

    config, learner = RunConfig.from_dict(job["config"]), learner_of(job)
    norm = config.privacy.max_grad_norm if job["is_clipped"] else math.inf
    engine = ClippingEngine(learner.model, norm, learner.how)
    records = TokenisedRecords.open(Path(job["tokens"]))
    try:
        follow(ClippedSum(engine, records, WrongPrompts(**job["wrong"]), config.speed), team)
    finally:
        engine.close()


def _sample(team: Team, job: dict[str, Any]) -> None:
    """Draw groups of rows."""
    from twinset.config import SamplingConfig
    from twinset.progress import Silent
    from twinset.rowgroups import RowGroups, draw_groups
    from twinset.twinmodel import TwinModel

    sampler = partial(TwinModel.load(job["model"]).sampler, SamplingConfig(**job["sampling"]))
    counts = {tuple(combination): rows for combination, rows in job["counts"]}
    kept = RowGroups(Path(job["rows"]))
    draw_groups(sampler, counts, Silent(), kept, team.rank, team.size)
    team.wait()


_JOBS = {"train": _train, "sample": _sample}


def serve_launched() -> None:
    """Join the team that a launcher started, and serve it."""
    from twinset.processes import joined

    with joined("env://") as team:
        serve(team)


def main(meeting: str, rank: str, size: str) -> None:
    """Join a team that `twinset.processes` started, and serve it."""
    from twinset.processes import joined

    with joined(f"file://{meeting}", int(rank), int(size)) as team:
        serve(team)


if __name__ == "__main__":
    main(*sys.argv[1:])
