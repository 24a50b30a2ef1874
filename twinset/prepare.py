"""Everything that is read, checked and decided before the first private step, the quickest first.

Trains nothing and writes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from twinset.allocation import explicit
from twinset.basemodel import BaseModel, context_length, load_base, special_token_strings
from twinset.config import RunConfig
from twinset.errors import InputError
from twinset.estimate import USUAL_TOKENS, measure, usual_tokens
from twinset.finetune import check_policy
from twinset.formats import read_frame
from twinset.nf4 import check_method
from twinset.outlook import Outlook, noise_by_epsilon, plan_lines, policies_side_by_side
from twinset.plan import Plan, make_plan
from twinset.progress import Progress
from twinset.records import Records, check_reserved, records_from_frame
from twinset.request import RowsWanted, Source
from twinset.schema import Combination
from twinset.templates import Template, load_template
from twinset.tokens import prompt_tokens, text_room


@dataclass(frozen=True)
class Prepared:
    """Everything decided before the first private step."""

    records: Records
    notes: list[str]
    template: Template
    base: BaseModel
    plan: Plan
    counts: dict[Combination, int] | None


def prepare(
    source: Source,
    config: RunConfig,
    wanted: RowsWanted,
    progress: Progress,
    folder: Path | None = None,
) -> Prepared:
    """Read and check everything, the quickest first; train nothing.

    Args:
        source: of the private table.
        config: the run's options.
        wanted: rows of the twin.
        progress: is told what was found.
        folder: private to its owner: a large table is kept there, without a name. None: nothing is
            written, and the table is in memory.

    Raises:
        InputError: something cannot be used.
    """
    if source.owner is not None and config.privacy.group_size is not None:
        raise InputError(
            "--group-size is of records that are protected one by one, and with --owner all of an "
            "owner are one; leave one of them out"
        )
    check_method(config.training)
    frame = read_frame(source.data, source.split, folder)
    records, notes = records_from_frame(
        frame,
        source.text,
        source.attributes,
        source=source.data,
        drop_empty=source.drop_empty,
        owner=source.owner,
    )
    for note in notes:
        progress.say(note)
    template = load_template(source.prompt, records.schema)
    counts = explicit(records.schema, wanted)
    base = load_base(config.training.base_model, say=progress.say)
    check_reserved(records, frame, special_token_strings(base.tokenizer), source.data)
    prompts = prompt_tokens(template, records.schema.combinations, base.tokenizer)
    text_room(prompts, context_length(base.model), config.training.max_tokens)
    plan = make_plan(len(records.units(config)), config)
    check_policy(config, base, records)
    return Prepared(records, notes, template, base, plan, counts)


def tell(prepared: Prepared, progress: Progress) -> None:
    """Tell the plan; `finetune` tells its warnings."""
    if prepared.records.owners is not None:
        owners, records = prepared.plan.records, len(prepared.records)
        progress.say(f"each of {owners} owners of {records} records is protected as one")
    for line in plan_lines(prepared.plan):
        progress.say(line)


def look_ahead(
    source: Source | None,
    records: int | None,
    config: RunConfig,
    rows: int | None,
    progress: Progress,
) -> Outlook:
    """Plan a run and measure what it will cost, from a table or from a number of records."""
    if source is not None:
        prepared = prepare(source, config, RowsWanted(rows), progress)
        plan, base, texts = prepared.plan, prepared.base, prepared.records.texts
        prompts = prompt_tokens(
            prepared.template, prepared.records.schema.combinations, base.tokenizer
        )
        longest = max(map(len, prompts.values()))
        tokens = usual_tokens(texts, base.tokenizer, longest, config.training.max_tokens)
    elif records is None or records < 1:
        raise InputError("give a table, or --records with a number of at least 1")
    else:
        plan = make_plan(records, config)
        base, tokens = load_base(config.training.base_model, say=progress.say), USUAL_TOKENS
    for warning in plan.warnings:
        progress.warn(warning)
    progress.say("measuring speed on this machine")
    estimate = measure(base, config, plan, tokens, rows or plan.records)
    others = policies_side_by_side(plan.records, config)
    return Outlook(plan, estimate, noise_by_epsilon(plan.records, config), others)
