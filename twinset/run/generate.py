"""Entry points of a run, for the command line, Python and `evaluation/`.

`generate` does everything in `twinset.run.story`, `sample_only` only its second half. `dry_run` and
`plan_run` stop before the first private step. Results appear whole or not at all.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from twinset.bounds import check_number
from twinset.config import HOLD_OUT, RECORDS, RunConfig, SamplingConfig
from twinset.config.plan import Plan, make_plan, plan_selection, settled, sized
from twinset.errors import InputError, Stopped
from twinset.files.atomic import has_checksums, replacing, write_json, write_text, writing
from twinset.files.turns import in_turn
from twinset.models.base_model import load_base
from twinset.models.device import AUTO, on_free_cores
from twinset.policies import policy_names
from twinset.privacy.statement.guarantee import guarantee
from twinset.privacy.statement.ledger import Ledger
from twinset.privacy.statement.wording import SPENT
from twinset.progress import Progress, Silent
from twinset.release.publish import check_output, publish
from twinset.release.share import LEDGER, PRIVACY, check_file_format, find_twins
from twinset.release.sign import sign
from twinset.release.verify import verify
from twinset.run import run_folder, story
from twinset.run.checkpoint import CHECKPOINTS, Checkpoints
from twinset.run.plan import PlanReport, Workload, plan_time, size_notes
from twinset.run.releases import chooses_prompt
from twinset.run.request import OutputPaths, Result, Run, Source
from twinset.run.run_folder import HELD_OUT, NUMBERS, SETTINGS, RunFolder
from twinset.run.story import UNFINISHED
from twinset.sampling.allocation import (
    RowsRequest,
    add_up,
    explicit,
    plan_columns,
    share_out_rows,
    usual_rows,
)
from twinset.sampling.decoding import check_decoding
from twinset.sampling.rows import RowGroups
from twinset.sampling.twin_model import DESCRIPTION, TwinModel, twin_frame
from twinset.table.cells import one_type_each
from twinset.table.read import write_frame
from twinset.table.schema import plain
from twinset.table.templates import kinds_of_text
from twinset.training.distributed import process_group

PROMPT_TOKENS = 16  # of the longest prompt, if there is no table to take labels from


@in_turn
def generate(
    source: Source,
    config: RunConfig,
    asked: RowsRequest | None,
    paths: OutputPaths,
    progress: Progress,
) -> Result:
    """Fine-tune on a private table, write its twin, and put both into a run folder.

    If no rows are requested, only a model is made, and `share/` stays empty.

    Raises:
        InputError: an input cannot be used. Nothing was written.
    """
    path = find_run_path(source, paths)
    final, replaced = path.resolve(), list[Path]()
    is_whole = run_folder.is_run(final) and has_checksums(final / "model")
    if paths.resume and is_whole and not run_folder.is_unfinished(final):
        return hand_out_again(final, source, config, asked, paths, progress)
    for other in [] if paths.run or paths.resume else run_folder.numbered_runs(source.name):
        if run_folder.is_abandoned(other):
            left = run_folder.place_near(other, "partial")
            progress.say(
                f"{left}: left by a run that was killed before its first checkpoint. It released "
                "nothing, but it may hold private texts. Delete it."
            )
    if paths.overwrite:  # the runs with a trained model that will be deleted in the end
        older = [final] if paths.resume else [final, run_folder.place_near(final, "partial")]
        replaced = [folder for folder in older if has_checksums(folder / "model")]
    run, folder = Run(config, source, asked, paths, progress), None
    try:
        # At the end of this block the folder is in its place, whole.
        with RunFolder.create(path, paths.overwrite, paths.resume) as folder:
            run.folder = folder
            for deleted in replaced:
                progress.warn(
                    f"{deleted}: `overwrite=True` will delete its trained model, and {SPENT}"
                )
            checkpoints = folder.internal / UNFINISHED / CHECKPOINTS
            for ledger in (folder.model / LEDGER, *sorted(checkpoints.glob(f"*/{LEDGER}"))):
                check_file_format(ledger)  # format of runs that can be resumed
            command = "finetune" if asked is None else "generate"
            run.account = source.open_account(command, progress)
            if run.account is not None:
                run.account.keep_id(folder.internal)
            with process_group(config.speed.processes) as run.group, unwound(run):
                if asked is not None:
                    check_twin_output(source, paths)
                for line in str(begin(run)).splitlines():
                    progress.say(line)  # `count` shows the plan's warnings
                if run.phases:
                    progress.expect(run.phases)
                learn(run, folder)
            how = (
                "The trained model is safe, and its ε need not be spent again. To write rows "
                "from it, repeat the command with `resume=True` (rows and decoding may differ), or "
                f"run {run_folder.sampling_command(folder.root)}."
            )
            try:
                if asked is not None:
                    story.sample(run)
                    story.share(run)
            except InputError as error:
                raise InputError(f"{str(error).rstrip('.')}. {how}") from error
            except Exception:
                progress.warn(how)
                raise
            shutil.rmtree(folder.internal / UNFINISHED, ignore_errors=True)
    except KeyboardInterrupt:
        if folder is not None and folder.is_kept and run_folder.is_unfinished(path):
            raise Stopped("Stopped. Run the same command with `resume=True` to continue.") from None
        raise
    return story.judge(run)


def begin(run: Run, spends: bool = True) -> PlanReport:
    """Read, check and plan everything, quickest checks first. Train nothing. Return the plan."""
    story.read(run)
    story.select(run, spends)
    story.plan(run)
    check_decoding(run.base.model, story.find_prompts(run), run.config.sampling)
    return PlanReport(run.plan, run.phases, owned=run.owned, most=run.most)


def learn(run: Run, folder: RunFolder) -> None:
    """Do the private part of a run, or load the model if the run already has one."""
    if folder.is_resumed:
        run_folder.check_settings(folder, run.settings())
    write_json(folder.internal / SETTINGS, run.settings())
    if has_checksums(folder.model):  # stopped after it was trained
        run.model = TwinModel.load(folder.model, run.config.speed.device)
        if run.account is not None:
            run.account.enter_trained(run.model.ledger)
        return
    if (held := run.held_out) is not None:  # the rows and their places, for their owner alone
        others = held.other_columns()
        others = None if others is None else one_type_each(others)
        frame = twin_frame(held.schema, held.texts, held.labels, others)
        write_frame(frame, folder.internal / HELD_OUT)
    if run.held_rows:
        write_json(folder.internal / NUMBERS, {"rows": run.held_rows})
    write_notes(run, folder)
    unfinished = folder.internal / UNFINISHED
    unfinished.mkdir(mode=0o700, exist_ok=True)
    run.checkpoints = Checkpoints(run, folder, unfinished)
    run.tokens_folder = unfinished / "tokens"
    try:
        finetune(run)
    finally:
        # They hold the texts. A killed process leaves them, and a resumed run removes them.
        shutil.rmtree(run.tokens_folder, ignore_errors=True)
        write_notes(run, folder)
    run.model.save(folder.model)
    folder.keep()


def write_notes(run: Run, folder: RunFolder) -> None:
    """Keep the lines that a run has shown to its owner."""
    write_text(folder.internal / "notes.txt", "".join(f"{note}\n" for note in run.notes))


def finetune(run: Run, progress: Progress | None = None) -> TwinModel:
    """Count, train and fit the teacher. This is the run's only private stage.

    Everything it releases is noisy: counts of labels and tokens, the gradients of training and, if
    requested, a teacher. Every release is recorded in the ledger. The returned value contains
    nothing else. For its guarantee see `twinset.privacy.statement.theorems`, RUN.

    Only `progress` sees figures computed on private records. By default it is the run's own.

    Raises:
        InputError: the kept state cannot be resumed.
        RuntimeError: `run` was used before. This model would start from the weights of the earlier
            one, and its ledger would not say so.
    """
    if run.is_used:
        raise RuntimeError("this base model was fine-tuned before. Prepare a new run.")
    run.is_used = True
    run.progress = progress or run.progress
    with on_free_cores(run.progress.say, run.group is not None), unwound(run):
        story.count(run)
        story.train(run)
        story.teach(run)
    if run.account is not None:
        run.account.progress = run.progress
        run.account.end(run.ledger.events)
    return run.model


@contextmanager
def unwound(run: Run) -> Iterator[None]:
    """If a run ends before its ledger is open, count only the label values that it selected.

    A refusal then says that they were paid for.
    """
    try:
        yield
    except BaseException as error:
        is_resumed = run.folder is not None and run.folder.is_resumed
        if is_resumed or hasattr(run, "ledger"):
            raise
        spent = run.selection if run.selected is not None else None
        if run.account is not None:
            run.account.end([] if spent is None else [spent])
        if spent is not None and isinstance(error, InputError):
            values = ", ".join(map(repr, run.selected or ()))
            raise InputError(
                f"{str(error).rstrip('.')}. Noisy counts had chosen the values of {values} before, "
                "which has spent a part of ε. Declare `labels`, and the next try spends none on it."
            ) from error
        raise


@in_turn
def sample_only(
    folder: Path,
    sampling: SamplingConfig,
    asked: RowsRequest,
    paths: OutputPaths,
    progress: Progress,
    device: str = AUTO,
) -> Result:
    """Write a twin from the model of a folder, to `paths.output` or into the run's `share/`.

    Raises:
        InputError: the model is missing, or the place cannot be used. Nothing was written.
    """
    run_folder.check_ended(folder)
    if paths.output is not None:
        check_output(paths.output, paths.overwrite)
    elif not (folder / "model" / DESCRIPTION).is_file():
        raise InputError(f"{folder} is no run folder. Say with `output` where the twin goes.")
    elif (folder / "share" / PRIVACY).exists() and not paths.overwrite:
        raise InputError(
            f"{folder}/share holds a twin. Replace it with `overwrite=True`, or give `output`."
        )
    model = TwinModel.load(folder, device)
    model, weights = model.given(asked.conditions)
    shares = weights if asked.where else None
    lines = plan_columns(model, asked)
    if lines:
        counts = add_up(model.schema, [(combination, rows) for combination, rows, _ in lines])
    else:
        counts = explicit(model.schema, asked) or share_out_rows(model, asked, progress, shares)
    for combination, rows in counts.items() if asked.where else ():
        if rows and not weights[combination] > 0:
            raise InputError(
                f"`where`: no row of label {','.join(map(plain, combination))} can meet it, by the "
                "noisy counts. Ask for other labels."
            )

    def write(share: Path) -> Path:
        form, guard = paths.twin_format(), paths.guard_formulas
        groups = RowGroups()
        rows = model.sample(counts, sampling, progress, groups, saved=folder, lines=lines)
        return model.share(rows, share, sampling, form, guard, groups.redrawn())

    if paths.output is None:
        with writing(folder), replacing(folder / "share") as new:
            new.chmod(0o755)
            twin = folder / "share" / write(new).name
    else:  # hidden next to it, until all three files are complete
        twin, prefix = paths.output, f".{paths.output.name}.partial-"
        with writing(twin), TemporaryDirectory(dir=twin.parent, prefix=prefix) as name:
            write(Path(name))
            publish(Path(name), twin, paths.overwrite)
    return Result(model.guarantee, None, twin, sum(counts.values()))


def dry_run(
    source: Source, config: RunConfig, asked: RowsRequest, paths: OutputPaths, progress: Progress
) -> PlanReport:
    """Do all that `generate` does before the first private step, and write nothing."""
    place = find_run_path(source, paths)
    with writing(place):
        run_folder.check_free(place.resolve(), paths.overwrite, paths.resume)
    check_twin_output(source, paths)
    run = Run(config, source, asked, progress=progress)
    run.account = source.open_account("generate", progress, writes=False)
    planned = begin(run, spends=False)
    for warning in run.plan.warnings:
        progress.warn(warning)
    return planned


@in_turn
def fit(source: Source, config: RunConfig, progress: Progress) -> TwinModel:
    """Return a model fitted to a table. Files kept meanwhile are only for the table's owner."""
    with TemporaryDirectory() as name:
        run = prepare(source, config, progress=progress, folder=Path(name), command="fit")
        with process_group(config.speed.processes) as run.group:
            if run.group is None:
                run.tokens_folder = None  # one process keeps tokens in memory
            return finetune(run)


def prepare(
    source: Source,
    config: RunConfig,
    asked: RowsRequest | None = None,
    progress: Progress | None = None,
    folder: Path | None = None,
    spends: bool = True,
    command: str = "",
) -> Run:
    """Read, check and plan everything, and return a run for `finetune`.

    If it `spends`, noisy counts have selected label values. A run of a `command` enters the table's
    account, if there is one. The folder is private to its owner. A large table is kept there in an
    unnamed file, and tokens too. Without a folder both are in memory.

    Raises:
        InputError: an input cannot be used.
    """
    run = Run(config, source, asked, progress=progress or Silent(), tokens_folder=folder)
    if command:
        run.account = source.open_account(command, run.progress)
    with unwound(run):
        begin(run, spends)
    return run


@in_turn
def plan_run(
    source: Source | None,
    records: int | None,
    config: RunConfig,
    rows: int | None,
    progress: Progress,
    hold_out: float | None = 0.0,
) -> PlanReport:
    """Plan a run and measure its time, for a table or for a future table of `records`.

    If no number of rows is given, the twin has the default number, if time allows. `hold_out` is
    the share of `records` that the run keeps from training, see `held_share`.

    Raises:
        InputError: an input cannot be used, or there is neither a table nor a number of records.
    """
    owned, most = None, 1
    if source is not None:
        if records is not None:
            raise InputError("give a table or `records`, not both")
        run = prepare(source, config, RowsRequest(rows), progress, spends=False)
        planned, phases, config = run.plan, run.phases, run.config
        owned, most = run.owned, run.most
        base, work = run.base, story.find_workload(run)
    else:
        if hold_out is not None:
            check_number("`hold_out`", hold_out, HOLD_OUT)
        if records is None:
            raise InputError("give a table, or `records` with a number")
        check_number("`records`", records, RECORDS, is_whole=True)
        if held := round(records * run_folder.held_share(hold_out, records)):
            progress.say(run_folder.held_out_line(held))
        # one label column with undeclared values
        selection = plan_selection(records - held, config.privacy, 1, 1)
        config = settled(config, records - held, selection=selection)
        planned, phases = make_plan(records - held, config, selection), ()
        prompts = len(kinds_of_text()) if chooses_prompt(planned, config) else 0
        wanted = rows or usual_rows(planned.records)
        work = Workload(PROMPT_TOKENS, wanted, rows is not None, prompts=prompts)
        base = load_base(config.training.base_model, device=config.speed.device, say=progress.say)
    if not phases:
        planned, phases, _ = plan_time(planned, config, base, work, progress, always=True)
    if source is None:
        for note in size_notes(planned, config.training.batch_size):
            progress.say(note)
    for warning in planned.warnings:
        progress.warn(warning)
    # What each policy would need in its sound form, with this budget and number of steps.
    same, policies = sized(config, planned.steps, planned.batch_size), dict[str, Plan | None]()
    is_trained = planned.steps and config.privacy.target_epsilon is not None
    for policy in policy_names() if is_trained else ():
        sound: dict[str, Any] = {"noise_policy": policy, "policy_form": "sound"}
        policies[policy] = None
        with suppress(InputError):
            other = replace(same, policy=replace(same.policy, **sound, redact_only=False))
            policies[policy] = make_plan(
                planned.records,
                other,
                planned.selection,
                planned.column_selection,
                bool(planned.column_noise),
            )
    return PlanReport(planned, phases, policies, owned, most)


def share_run(root: Path, key: Path | None, paths: OutputPaths) -> str | None:
    """Check a run's twin, sign it, and copy it to `paths.output`. Return who signed it, or None.

    Args:
        root: of the run, or its `share/`.
        key: a private key, see `twinset.release.sign.sign`.
        paths: the output, if any.

    Raises:
        InputError: the run is not finished, or a file cannot be used.
        VerificationError: something is not as stated. It is not signed.
    """
    run_folder.check_ended(root)
    share = root if (root / PRIVACY).is_file() else root / "share"
    by, output = verify(share).signed_by, paths.output
    if output is not None:
        ending = (twin := find_twins(share)[0]).name.removeprefix("twin")
        if not output.name.endswith(ending):
            raise InputError(f"`output={output}`: the twin is {twin.name}. End it in {ending}.")
        if not output.exists():  # else `publish` knows whether it is the same
            check_output(output, paths.overwrite)
    if key is not None:
        by = sign(share / PRIVACY, key)
    if output is not None:
        publish(share, output, paths.overwrite)
    return by


# -- places, and what is there already -----------------------------------------------------------


def find_run_path(source: Source, paths: OutputPaths) -> Path:
    """Return where the run folder is or will be. The default is the first free `runs/<table>-<n>`.

    To resume, it is the last unfinished run, or else the last of all.
    """
    if paths.run or not paths.resume:
        return paths.run or run_folder.numbered_runs(source.name)[-1]
    runs = run_folder.numbered_runs(source.name)
    unfinished = [run for run in runs if run_folder.is_unfinished(run)]
    return unfinished[-1] if unfinished else runs[max(0, len(runs) - 2)]


def check_twin_output(source: Source, paths: OutputPaths, again: bool = False) -> None:
    """Refuse to write a twin over its private table, or over a file that may not be replaced.

    `again`: a twin that is handed out again may overwrite itself.
    """
    if paths.output is None:
        return
    data = Path(source.name)
    if paths.output.exists() and data.exists() and paths.output.samefile(data):
        raise InputError(f"`output={paths.output}`: is the private table. Name another file.")
    if not again:
        check_output(paths.output, paths.overwrite)


def hand_out_again(
    root: Path,
    source: Source,
    config: RunConfig,
    asked: RowsRequest | None,
    paths: OutputPaths,
    progress: Progress,
) -> Result:
    """Return the result of a finished run if this command would make the same result.

    Raises:
        InputError: the run had other inputs, or has no twin although one is requested.
    """
    command = run_folder.sampling_command(root)
    if not (root / "internal" / SETTINGS).is_file():
        raise InputError(f"{root}: does not say what it was made from. {command} writes rows.")
    folder = RunFolder(root, root, is_resumed=True)
    run = Run(config, source, folder=folder)
    story.read(run)
    story.select(run)
    story.plan(run)
    run_folder.check_settings(folder, run.settings())
    account = source.open_account("finetune" if asked is None else "generate", progress)
    if account is not None:
        account.keep_id(folder.internal)
        account.enter_trained(Ledger.load(root / "model" / LEDGER))
    progress.say(
        f"{root}: is finished, so there is nothing to resume. Its result is shown again. To write "
        f"other rows, run {command}."
    )
    if not (root / "share" / PRIVACY).exists():
        if asked is not None:
            raise InputError(f"{root}: has a model and no twin. {command} writes one.")
        return Result(guarantee(Ledger.load(root / "model" / LEDGER)), root)
    check_twin_output(source, paths, again=True)
    found, twin = verify(root), find_twins(root / "share")[0]
    made = Result(found.guarantee, root, twin, found.rows)
    if asked is None or paths.output is None:
        return made
    if not twin.name.endswith(f".{paths.twin_format(source.name)}"):
        raise InputError(f"{root}: its twin is {twin.name}. {command} writes other formats.")
    publish(twin.parent, paths.output, paths.overwrite)
    return replace(made, twin=paths.output)
