"""One run from a private table to a twin that may be shared: the story, from top to bottom.

`generate` is the whole of it, `finetune_only` and `sample_only` its halves. What can be refused is
refused before anything slow begins, and results appear whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from twinset.allocation import explicit, proportional
from twinset.artefact import (
    RunFolder,
    check_free,
    default_run_path,
    write_json,
    write_text,
    writing,
)
from twinset.assets import replacing
from twinset.basemodel import BaseModel, context_length, load_base, special_token_strings
from twinset.card import TwinDescription
from twinset.config import RunConfig, SamplingConfig
from twinset.errors import InputError
from twinset.estimate import USUAL_TOKENS, measure, usual_tokens
from twinset.finetune import check_policy, finetune
from twinset.formats import read_frame
from twinset.outlook import Outlook, noise_by_epsilon, plan_lines, policies_side_by_side
from twinset.plan import Plan, make_plan
from twinset.privacy.guarantee import Guarantee
from twinset.progress import Progress, Recorded
from twinset.publish import check_output, publish
from twinset.records import Records, records_from_frame
from twinset.request import Places, RowsWanted, Source
from twinset.schema import Combination
from twinset.share import PRIVACY, write_share
from twinset.templates import Template, load_template
from twinset.tokens import prompt_tokens, text_room
from twinset.twinmodel import DESCRIPTION, TwinModel


@dataclass(frozen=True)
class Result:
    """What a command made.

    Args:
        guarantee: of everything it made, taken together.
        run: the run folder; None where none was made.
        twin: the twin's file; None where only a model was trained.
        rows: the twin's.
    """

    guarantee: Guarantee
    run: Path | None = None
    twin: Path | None = None
    rows: int = 0


@dataclass(frozen=True)
class Prepared:
    """Everything decided before the first private step."""

    records: Records
    notes: list[str]
    template: Template
    base: BaseModel
    plan: Plan
    counts: dict[Combination, int] | None


def generate(
    source: Source, config: RunConfig, wanted: RowsWanted, places: Places, progress: Progress
) -> Result:
    """Fine-tune on a private table, write its twin, and lay both into a run folder.

    Raises:
        InputError: something cannot be used; nothing was written.
    """
    with _run_folder(source, places) as run:
        _check_output(source, places)
        prepared = prepare(source, config, wanted, progress)
        tell(prepared, progress)
        model = _finetune(prepared, config, run, progress)
        counts = _counts(model, wanted, prepared.counts)
        twin = _write_twin(model, counts, config.sampling, places, run.share, source.data, progress)
        if places.output is not None:
            publish(run.share, places.output, places.overwrite)
    twin = places.output or run.share / twin.name
    return Result(model.guarantee, run.root, twin, sum(counts.values()))


def finetune_only(source: Source, config: RunConfig, places: Places, progress: Progress) -> Result:
    """Fine-tune on a private table: a run folder whose `share/` is still empty."""
    with _run_folder(source, places) as run:
        prepared = prepare(source, config, RowsWanted(), progress)
        tell(prepared, progress)
        model = _finetune(prepared, config, run, progress)
    return Result(model.guarantee, run.root)


def sample_only(
    folder: Path, sampling: SamplingConfig, wanted: RowsWanted, places: Places, progress: Progress
) -> Result:
    """Write a twin from a model alone: beside `places.output`, or into the `share/` of its run.

    Raises:
        InputError: there is no model, or no place; nothing was written.
    """
    if places.output is not None:
        check_output(places.output, places.overwrite)
    elif not (folder / "model" / DESCRIPTION).is_file():
        raise InputError(f"{folder} is no run folder: say with --output where the twin goes")
    elif (folder / "share" / PRIVACY).exists() and not places.overwrite:
        raise InputError(f"{folder}/share holds a twin; --overwrite to replace it, or --output")
    model = TwinModel.load(folder)
    counts = _counts(model, wanted, explicit(model.schema, wanted))
    with _share_folder(folder, places) as share:
        twin = _write_twin(model, counts, sampling, places, share, "", progress)
        if places.output is not None:
            publish(share, places.output, places.overwrite)
    twin = places.output or folder / "share" / twin.name
    return Result(model.guarantee, None, twin, sum(counts.values()))


def dry_run(
    source: Source, config: RunConfig, wanted: RowsWanted, places: Places, progress: Progress
) -> Plan:
    """Do all that `generate` does before the first private step, and write nothing."""
    with writing(_run_path(source, places)):
        check_free(_run_path(source, places).resolve(), places.overwrite)
    _check_output(source, places)
    prepared = prepare(source, config, wanted, progress)
    tell(prepared, progress)
    for warning in prepared.plan.warnings:
        progress.warn(warning)
    return prepared.plan


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


def prepare(source: Source, config: RunConfig, wanted: RowsWanted, progress: Progress) -> Prepared:
    """Read and check everything, the quickest first; train nothing and write nothing."""
    frame = read_frame(source.data, source.split)
    read = partial(
        records_from_frame,
        frame,
        source.text,
        source.attributes,
        source=source.data,
        drop_empty=source.drop_empty,
    )
    records, notes = read()
    for note in notes:
        progress.say(note)
    template = load_template(source.prompt, records.schema)
    counts = explicit(records.schema, wanted)
    base = load_base(config.training.base_model, say=progress.say)
    read(reserved=special_token_strings(base.tokenizer))  # again, for these characters alone
    prompts = prompt_tokens(template, records.schema.combinations, base.tokenizer)
    text_room(prompts, context_length(base.model), config.training.max_tokens)
    plan = make_plan(len(records), config)
    check_policy(config, base)
    return Prepared(records, notes, template, base, plan, counts)


def tell(prepared: Prepared, progress: Progress) -> None:
    """Tell the plan; `finetune` tells its warnings."""
    for line in plan_lines(prepared.plan):
        progress.say(line)


def _finetune(
    prepared: Prepared, config: RunConfig, run: RunFolder, progress: Progress
) -> TwinModel:
    write_json(run.internal / "config.json", config.to_dict() | {"plan": asdict(prepared.plan)})
    write_text(run.internal / "notes.txt", "".join(f"{note}\n" for note in prepared.notes))
    recorded = Recorded(progress, run.internal)
    model = finetune(prepared.records, prepared.template, config, prepared.base, recorded)
    model.save(run.model)
    return model


def _counts(
    model: TwinModel, wanted: RowsWanted, counts: dict[Combination, int] | None
) -> dict[Combination, int]:
    rows = wanted.rows or model.ledger.records
    return counts or proportional(model.label_counts, rows)


def _write_twin(
    model: TwinModel,
    counts: dict[Combination, int],
    sampling: SamplingConfig,
    places: Places,
    share: Path,
    data: str,
    progress: Progress,
) -> Path:
    """Sample the twin and write it with card and ledger; return its file."""
    frame = model.sample(counts, sampling, progress)
    description = TwinDescription(model.base_origin, model.template, model.schema, sampling)
    form = places.twin_format(data)
    return write_share(share, frame, model.ledger, description, form, places.guard_formulas).twin


def _check_output(source: Source, places: Places) -> None:
    output, data = places.output, Path(source.data)
    if output is None:
        return
    if output.exists() and data.exists() and output.samefile(data):
        raise InputError(f"--output {output}: is the private table itself; name another file")
    check_output(output, places.overwrite)


def _run_path(source: Source, places: Places) -> Path:
    return places.run or default_run_path(source.data)


@contextmanager
def _run_folder(source: Source, places: Places) -> Iterator[RunFolder]:
    with RunFolder.create(_run_path(source, places), places.overwrite) as run:
        yield run


@contextmanager
def _share_folder(folder: Path, places: Places) -> Iterator[Path]:
    """Yield an empty folder for the three shared files, out of sight until the block ends."""
    if places.output is not None:
        prefix = f".{places.output.name}.partial-"
        with (
            writing(places.output),
            TemporaryDirectory(dir=places.output.parent, prefix=prefix) as name,
        ):
            yield Path(name)
    else:
        with writing(folder), replacing(folder / "share") as new:
            new.chmod(0o755)
            yield new
