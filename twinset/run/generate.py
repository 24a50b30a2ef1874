"""One run from a private table to a twin that may be shared: the story, from top to bottom.

`generate` is the whole of it, `finetune_only` and `sample_only` its halves. What can be refused is
refused before anything slow begins, and results appear whole or not at all.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from twinset.config import RunConfig, SamplingConfig
from twinset.config.plan import Plan
from twinset.errors import InputError, Stopped
from twinset.files.atomic import has_checksums, replacing, write_text, writing
from twinset.models.device import AUTO
from twinset.privacy.statement.wording import SPENT
from twinset.progress import Progress
from twinset.release.publish import check_output, publish, publish_again
from twinset.release.run_format import LEDGER, check_file_format
from twinset.release.share import PRIVACY
from twinset.run.finetune import finetune
from twinset.run.hold_out import keep_held_out
from twinset.run.plan_lines import report_cost, report_plan
from twinset.run.prepare import Prepared, prepare
from twinset.run.request import OutputPaths, Source
from twinset.run.row_processes import RowsToDraw, draw_by_processes
from twinset.run.run_folder import (
    RunFolder,
    check_free,
    default_run_path,
    is_unfinished,
    left_behind,
    models_replaced,
    sampling_command,
)
from twinset.run.run_result import Result, finished_result
from twinset.run.run_settings import as_begun, known_settings, record_settings
from twinset.run.twin_rows import (
    drawn_rows,
    row_counts,
    rows_by_released_length,
)
from twinset.sampling.allocation import RowsRequest, explicit
from twinset.sampling.decoding import check_decoding
from twinset.sampling.sampler import RowGroups
from twinset.sampling.twin_model import DESCRIPTION, TwinModel
from twinset.table.schema import Combination
from twinset.training.distributed import ProcessGroup, process_group
from twinset.training.metrics_log import MetricsLog
from twinset.training.resume import CHECKPOINTS, Resumption, RunContext

UNFINISHED = "unfinished"  # part of `internal/` while a run is being made


def generate(
    source: Source, config: RunConfig, asked: RowsRequest, paths: OutputPaths, progress: Progress
) -> Result:
    """Fine-tune on a private table, write its twin, and lay both into a run folder.

    Raises:
        InputError: something cannot be used; nothing was written.
    """
    if finished := _finished(source, config, paths, progress):
        return _with_twin(finished, source, config, asked, paths, progress)
    with (
        _run_folder(source, paths, progress) as run,
        process_group(config.speed.processes) as group,
    ):
        _check_output(source, paths)
        prepared = _prepared(source, config, asked, run, progress)
        report_plan(prepared, progress)
        _check_decoding(prepared)
        model = _finetune(prepared, run, paths, progress, group)
        with _model_is_safe(run, progress):
            asked = rows_by_released_length(prepared, model, run.internal)
            counts = row_counts(model, asked, prepared.counts, progress)
            folder = run.internal / UNFINISHED / "rows"
            rows = drawn_rows(folder, config.sampling, counts)
            to_draw = RowsToDraw(run.model, config.speed.device, config.sampling, counts, folder)
            draw_by_processes(model, to_draw, progress, group)
            twin = _write_twin(
                model, counts, config.sampling, paths, run.share, source.name, progress, rows
            )
            if paths.output is not None:
                publish(run.share, paths.output, paths.overwrite)
            _clear(run)
    twin = paths.output or run.share / twin.name
    return Result(model.guarantee, run.root, twin, sum(counts.values()))


def finetune_only(
    source: Source, config: RunConfig, paths: OutputPaths, progress: Progress
) -> Result:
    """Fine-tune on a private table: a run folder whose `share/` is still empty."""
    if finished := _finished(source, config, paths, progress):
        return finished
    with (
        _run_folder(source, paths, progress) as run,
        process_group(config.speed.processes) as group,
    ):
        prepared = _prepared(source, config, None, run, progress)
        report_plan(prepared, progress)
        model = _finetune(prepared, run, paths, progress, group)
        _clear(run)
    return Result(model.guarantee, run.root)


def sample_only(
    folder: Path,
    sampling: SamplingConfig,
    asked: RowsRequest,
    paths: OutputPaths,
    progress: Progress,
    device: str = AUTO,
) -> Result:
    """Write a twin from a model alone: beside `paths.output`, or into the `share/` of its run.

    Raises:
        InputError: there is no model, or no place; nothing was written.
    """
    if paths.output is not None:
        check_output(paths.output, paths.overwrite)
    elif not (folder / "model" / DESCRIPTION).is_file():
        raise InputError(f"{folder} is no run folder: say with `output` where the twin goes")
    elif (folder / "share" / PRIVACY).exists() and not paths.overwrite:
        raise InputError(
            f"{folder}/share holds a twin; `overwrite=True` to replace it, or `output`"
        )
    model = TwinModel.load(folder, device)
    counts = row_counts(model, asked, explicit(model.schema, asked), progress)
    with _share_folder(folder, paths) as share, TemporaryDirectory() as drawn:
        to_draw = RowsToDraw(folder, device, sampling, counts, Path(drawn))
        draw_by_processes(model, to_draw, progress, None)
        rows = RowGroups(to_draw.folder)
        twin = _write_twin(model, counts, sampling, paths, share, "", progress, rows)
        if paths.output is not None:
            publish(share, paths.output, paths.overwrite)
    twin = paths.output or folder / "share" / twin.name
    return Result(model.guarantee, None, twin, sum(counts.values()))


def dry_run(
    source: Source, config: RunConfig, asked: RowsRequest, paths: OutputPaths, progress: Progress
) -> Plan:
    """Do all that `generate` does before the first private step, and write nothing."""
    with writing(_run_path(source, paths)):
        check_free(_run_path(source, paths).resolve(), paths.overwrite, paths.resume)
    _check_output(source, paths)
    prepared = prepare(source, config, asked, progress)
    report_cost(prepared, progress)  # the plan is what this returns
    _check_decoding(prepared)
    for warning in prepared.plan.warnings:
        progress.warn(warning)
    return prepared.plan


def _finetune(
    prepared: Prepared,
    run: RunFolder,
    paths: OutputPaths,
    progress: Progress,
    group: ProcessGroup | None,
) -> TwinModel:
    """Return the model, trained or, in a run that was stopped later, as it is."""
    record_settings(prepared, run)
    if has_checksums(run.model):
        return TwinModel.load(run.model, prepared.config.speed.device)
    if prepared.held_out is not None:
        keep_held_out(run.internal, prepared.held_out)
    write_text(run.internal / "notes.txt", "".join(f"{note}\n" for note in prepared.notes))
    recorded, folder = MetricsLog(progress, run.internal), run.internal / UNFINISHED
    folder.mkdir(mode=0o700, exist_ok=True)
    resumption = Resumption(
        folder,
        prepared.plan.steps,
        len(prepared.config.policy.policy_class.phases()),
        recorded,
        paths.accept_spend,
        run.keep,
        run.is_resumed,
    )
    context = RunContext(folder / "tokens", resumption, group)
    with resumption.alone():
        with context.cleared():
            model = finetune(prepared, recorded, context)
        model.save(run.model)
    run.keep()
    return model


def _prepared(
    source: Source,
    config: RunConfig,
    asked: RowsRequest | None,
    run: RunFolder,
    progress: Progress,
) -> Prepared:
    """Prepare a run, one that is resumed as it was begun."""
    if not run.is_resumed:
        return prepare(source, config, asked, progress, run.internal)
    if asked is not None:
        asked = replace(asked, most=known_settings(run.internal).get("rows", {}).get("most"))
    return prepare(source, config, asked, progress, run.internal, **as_begun(run.internal))


def _check_decoding(prepared: Prepared) -> None:
    """Refuse what could draw no row after the training."""
    check_decoding(prepared.base.model, prepared.prompts, prepared.config.sampling)


@contextmanager
def _model_is_safe(run: RunFolder, progress: Progress) -> Iterator[None]:
    """Say, whatever ends the block early, that the model need not be trained and paid for again."""
    how = (
        "the trained model is safe and need not be paid for again: the same command with "
        "`resume=True`, and with other rows or decoding settings where these were the trouble, "
        f"goes on; so does {sampling_command(run.root)}"
    )
    try:
        yield
    except InputError as error:
        raise InputError(f"{error}; {how}") from error
    except Exception:
        progress.warn(how)
        raise


def _clear(run: RunFolder) -> None:
    """Take away what only an unfinished run needs."""
    shutil.rmtree(run.internal / UNFINISHED, ignore_errors=True)


def _write_twin(
    model: TwinModel,
    counts: dict[Combination, int],
    sampling: SamplingConfig,
    paths: OutputPaths,
    share: Path,
    data: str,
    progress: Progress,
    rows: RowGroups | None = None,
) -> Path:
    """Sample the twin and write it with card and ledger; return its file."""
    form, guard = paths.twin_format(data), paths.guard_formulas
    return model.write_twin(share, counts, sampling, progress, rows, form, guard)


def _check_output(source: Source, paths: OutputPaths) -> None:
    if paths.output is not None:
        _check_is_another(source, paths.output)
        check_output(paths.output, paths.overwrite)


def _check_is_another(source: Source, output: Path) -> None:
    """Refuse to write a twin over the table that it is of."""
    data = Path(source.name)
    if output.exists() and data.exists() and output.samefile(data):
        raise InputError(f"`output={output}`: is the private table itself; name another file")


def _run_path(source: Source, paths: OutputPaths) -> Path:
    return paths.run or default_run_path(source.name, paths.resume)


def _finished(
    source: Source, config: RunConfig, paths: OutputPaths, progress: Progress
) -> Result | None:
    """Return what the run made that is to be resumed and is whole already; None: it is not."""
    run = _run_path(source, paths).resolve()
    return finished_result(source, config, run, progress) if paths.resume else None


def _with_twin(
    made: Result,
    source: Source,
    config: RunConfig,
    asked: RowsRequest,
    paths: OutputPaths,
    progress: Progress,
) -> Result:
    """Hand out the twin of a finished run; one that has a model alone writes its rows first."""
    assert made.run is not None
    if paths.output is not None:
        _check_is_another(source, paths.output)
    if made.twin is None:
        paths = replace(paths, format=paths.twin_format(source.name))
        device = config.speed.device
        written = sample_only(made.run, config.sampling, asked, paths, progress, device)
        return replace(written, run=made.run)
    if asked.rows not in (None, made.rows) or asked.per_label or asked.plan_file:
        rows = "1 row" if made.rows == 1 else f"{made.rows:,} rows"
        progress.warn(f"it has {rows}; {sampling_command(made.run)} writes others")
    if paths.output is None:
        return made
    if not made.twin.name.endswith(f".{paths.twin_format(source.name)}"):
        command = sampling_command(made.run)
        raise InputError(f"{made.run}: its twin is {made.twin.name}; {command} writes others")
    publish_again(made.twin.parent, paths.output, paths.overwrite)
    return replace(made, twin=paths.output)


@contextmanager
def _run_folder(source: Source, paths: OutputPaths, progress: Progress) -> Iterator[RunFolder]:
    path, run = _run_path(source, paths), None
    for left in [] if paths.run or paths.resume else left_behind(source.name):
        progress.say(
            f"{left}: left by a run that was killed before its first checkpoint; nothing of it was "
            "released; delete it, as it may hold private texts"
        )
    replaced = models_replaced(path.resolve(), paths.resume) if paths.overwrite else []
    try:
        with RunFolder.create(path, paths.overwrite, paths.resume) as run:
            for older in replaced:
                progress.warn(
                    f"{older}: `overwrite=True` will delete its trained model, and {SPENT}"
                )
            _check_resumed(run)
            yield run
    except KeyboardInterrupt:
        if run is not None and run.is_kept and is_unfinished(path):
            raise Stopped("stopped; the same command with `resume=True` goes on") from None
        raise


def _check_resumed(run: RunFolder) -> None:
    """Refuse to resume what was written in another format."""
    states = sorted((run.internal / UNFINISHED / CHECKPOINTS).glob(f"*/{LEDGER}"))
    for ledger in (run.model / LEDGER, *states):
        check_file_format(ledger)


@contextmanager
def _share_folder(folder: Path, paths: OutputPaths) -> Iterator[Path]:
    """Yield an empty folder for the three shared files, out of sight until the block ends."""
    if paths.output is not None:
        prefix = f".{paths.output.name}.partial-"
        with (
            writing(paths.output),
            TemporaryDirectory(dir=paths.output.parent, prefix=prefix) as name,
        ):
            yield Path(name)
    else:
        with writing(folder), replacing(folder / "share") as new:
            new.chmod(0o755)
            yield new
