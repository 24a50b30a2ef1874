"""What the base model writes without any private data: the mark that every twin must beat.

Knows the public schema, the prompts and how many rows of each label are wanted; no record, no
trained model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from twinset.config import RunConfig
from twinset.models.base_model import context_length, load_base
from twinset.models.precision import frozen_dtype, fuse
from twinset.models.threads import on_free_cores
from twinset.progress import Progress
from twinset.sampling.row_shards import draw_groups
from twinset.sampling.sampler import RowGroups, Sampler
from twinset.sampling.twin_model import twin_frame
from twinset.table.schema import Combination, Schema
from twinset.table.templates import Template
from twinset.table.tokenization import prompt_tokens, text_budget

if TYPE_CHECKING:
    from pandas import DataFrame

BASELINE_FILE = "no-private-data.parquet"  # in a run's `internal/`


def untrained_twin(
    config: RunConfig,
    schema: Schema,
    template: Template,
    counts: Mapping[Combination, int],
    progress: Progress,
    kept: RowGroups | None = None,
) -> DataFrame:
    """Return rows from the base model as it is, asked just as the twin's model is.

    Args:
        config: the twin's: base model, precision, sampling, longest text.
        schema: shape of the private table; public.
        template: the twin's.
        counts: rows of every label combination: the twin's.
        progress: is notified of how many rows are written.
        kept: where finished groups of rows are; what is there is not drawn again.
    """
    training = config.training
    base = load_base(
        training.base_model,
        dtype=frozen_dtype(config),
        device=config.speed.device,
        say=progress.say,
    )
    prompts = prompt_tokens(template, schema.combinations, base.tokenizer)
    longest = text_budget(prompts, context_length(base.model), training.max_tokens)
    sampling = config.sampling.settled(bool(config.privacy.teacher_share))
    asked = fuse(base.model), base.tokenizer, prompts, sampling, longest
    groups = RowGroups() if kept is None else kept
    with on_free_cores(progress.say):
        made = draw_groups(lambda stream: Sampler(*asked, stream), counts, progress, groups)
    rows = [row for number in range(made) for row in groups.read(number)]
    return twin_frame(schema, [row.text for row in rows], [row.combination for row in rows])
