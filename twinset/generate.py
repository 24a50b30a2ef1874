"""One run from a private table to a twin that may be shared: the story, from top to bottom.

`generate` is the whole of it, `finetune_only` and `sample_only` its halves. What can be refused is
refused before anything slow begins, and results appear whole or not at all.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from twinset.allocation import explicit, proportional
from twinset.artefact import write_json, write_text, writing
from twinset.assets import replacing
from twinset.card import TwinDescription
from twinset.config import RunConfig, SamplingConfig
from twinset.errors import InputError, Stopped
from twinset.finetune import finetune
from twinset.plan import Plan
from twinset.prepare import Prepared, prepare, tell
from twinset.privacy.guarantee import Guarantee
from twinset.privacy.ledger import OWNER_UNIT
from twinset.processes import team_of, team_size
from twinset.progress import Progress, Recorded
from twinset.publish import check_output, publish
from twinset.request import Places, RowsWanted, Source
from twinset.resumption import Resumption
from twinset.rowgroups import RowGroups, draw_groups
from twinset.runfolder import RunFolder, check_free, default_run_path, is_unfinished
from twinset.schema import Combination
from twinset.sealed import is_sealed
from twinset.share import PRIVACY, write_share
from twinset.team import Team
from twinset.twinmodel import DESCRIPTION, TwinModel
from twinset.vllmengine import check_engine
from twinset.workplace import Workplace

UNFINISHED = "unfinished"  # part of `internal/` while a run is being made


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


def generate(
    source: Source, config: RunConfig, wanted: RowsWanted, places: Places, progress: Progress
) -> Result:
    """Fine-tune on a private table, write its twin, and lay both into a run folder.

    Raises:
        InputError: something cannot be used; nothing was written.
    """
    check_engine(config.sampling, team_size(config.speed.processes))
    with _run_folder(source, places) as run, team_of(config.speed.processes) as team:
        _check_output(source, places)
        prepared = prepare(source, config, wanted, progress, run.internal)
        tell(prepared, progress)
        model = _finetune(prepared, config, run, places, wanted, progress, team)
        counts = _counts(model, wanted, prepared.counts)
        folder = run.internal / UNFINISHED / "rows"
        rows = RowGroups(folder)
        if team:
            team.tell(_sampling_job(run.model, counts, config.sampling, folder))
            draw = partial(model.sampler, config.sampling)
            draw_groups(draw, counts, progress, rows, team.rank, team.size)
            team.wait()
        twin = _write_twin(
            model, counts, config.sampling, places, run.share, source.data, progress, rows
        )
        _clear(run)
        if places.output is not None:
            publish(run.share, places.output, places.overwrite)
    twin = places.output or run.share / twin.name
    return Result(model.guarantee, run.root, twin, sum(counts.values()))


def finetune_only(source: Source, config: RunConfig, places: Places, progress: Progress) -> Result:
    """Fine-tune on a private table: a run folder whose `share/` is still empty."""
    with _run_folder(source, places) as run, team_of(config.speed.processes) as team:
        prepared = prepare(source, config, RowsWanted(), progress, run.internal)
        tell(prepared, progress)
        model = _finetune(prepared, config, run, places, RowsWanted(), progress, team)
        _clear(run)
    return Result(model.guarantee, run.root)


def sample_only(
    folder: Path, sampling: SamplingConfig, wanted: RowsWanted, places: Places, progress: Progress
) -> Result:
    """Write a twin from a model alone: beside `places.output`, or into the `share/` of its run.

    Raises:
        InputError: there is no model, or no place; nothing was written.
    """
    check_engine(sampling)
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
    check_engine(config.sampling, team_size(config.speed.processes))
    with writing(_run_path(source, places)):
        check_free(_run_path(source, places).resolve(), places.overwrite, places.resume)
    _check_output(source, places)
    prepared = prepare(source, config, wanted, progress)
    tell(prepared, progress)
    for warning in prepared.plan.warnings:
        progress.warn(warning)
    return prepared.plan


def _finetune(
    prepared: Prepared,
    config: RunConfig,
    run: RunFolder,
    places: Places,
    wanted: RowsWanted,
    progress: Progress,
    team: Team | None,
) -> TwinModel:
    """Return the model, trained or, in a run that was stopped later, as it is."""
    _check_same(prepared, config, run, wanted)
    if is_sealed(run.model):
        return TwinModel.load(run.model)
    write_text(run.internal / "notes.txt", "".join(f"{note}\n" for note in prepared.notes))
    recorded, folder = Recorded(progress, run.internal), run.internal / UNFINISHED
    folder.mkdir(mode=0o700, exist_ok=True)
    resumption = Resumption(
        folder,
        prepared.plan.steps,
        config.policy.phases,
        recorded,
        places.accept_spend,
        run.keep,
    )
    place = Workplace(folder / "tokens", resumption, team)
    given = (prepared.records, prepared.template, config, prepared.base, recorded, place)
    with place.cleared():
        model = finetune(*given)
    model.save(run.model)
    resumption.finished()
    run.keep()
    return model


def _check_same(prepared: Prepared, config: RunConfig, run: RunFolder, wanted: RowsWanted) -> None:
    """Write what a run is made from; one that is gone on with must be made from the same."""
    made_from = {
        **config.to_dict(),
        "plan": asdict(prepared.plan),
        "rows": asdict(wanted),
        "prompt": prepared.template.to_dict(),
        "table": prepared.records.fingerprint(),  # private, as all of `internal/` is
    }
    path, plain = run.internal / "config.json", json.loads(json.dumps(made_from))
    if not run.is_resumed:
        return write_json(path, plain)
    known = _that_matters(json.loads(path.read_text("utf-8")))
    asked = _that_matters(plain)
    if other := [name for name in asked if known.get(name) != asked[name]]:
        raise InputError(
            f"{run.final}: was begun with other settings ({', '.join(other)}); repeat the command "
            "that began it, with --resume, or start anew with --overwrite"
        )


def _that_matters(made_from: dict[str, Any]) -> dict[str, Any]:
    """Return what a run must be gone on with: all but what changes time and memory alone."""
    kept = {name: value for name, value in made_from.items() if name != "speed"}
    if isinstance(sampling := kept.get("sampling"), dict):
        kept["sampling"] = {name: v for name, v in sampling.items() if name != "engine"}
    return kept


def _clear(run: RunFolder) -> None:
    """Take away what only an unfinished run needs."""
    shutil.rmtree(run.internal / UNFINISHED, ignore_errors=True)


def _counts(
    model: TwinModel, wanted: RowsWanted, counts: dict[Combination, int] | None
) -> dict[Combination, int]:
    return counts or proportional(model.label_counts, wanted.rows or _as_many(model))


def _as_many(model: TwinModel) -> int:
    """Return how many records there are; of owners, how many were counted, with noise."""
    if model.ledger.unit != OWNER_UNIT:
        return model.ledger.records
    return max(1, round(sum(model.label_counts.values())))


def _write_twin(
    model: TwinModel,
    counts: dict[Combination, int],
    sampling: SamplingConfig,
    places: Places,
    share: Path,
    data: str,
    progress: Progress,
    rows: RowGroups | None = None,
) -> Path:
    """Sample the twin and write it with card and ledger; return its file."""
    frame = model.sample(counts, sampling, progress, rows)
    description = TwinDescription(model.base_origin, model.template, model.schema, sampling)
    form = places.twin_format(data)
    return write_share(share, frame, model.ledger, description, form, places.guard_formulas).twin


def _sampling_job(
    model: Path, counts: dict[Combination, int], sampling: SamplingConfig, rows: Path
) -> dict[str, Any]:
    """Return what others must know to draw their share of the twin's rows."""
    return {
        "job": "sample",
        "model": str(model),
        "sampling": asdict(sampling),
        "counts": [[list(combination), number] for combination, number in counts.items()],
        "rows": str(rows),
    }


def _check_output(source: Source, places: Places) -> None:
    output, data = places.output, Path(source.data)
    if output is None:
        return
    if output.exists() and data.exists() and output.samefile(data):
        raise InputError(f"--output {output}: is the private table itself; name another file")
    check_output(output, places.overwrite)


def _run_path(source: Source, places: Places) -> Path:
    return places.run or default_run_path(source.data, places.resume)


@contextmanager
def _run_folder(source: Source, places: Places) -> Iterator[RunFolder]:
    path = _run_path(source, places)
    try:
        with RunFolder.create(path, places.overwrite, places.resume) as run:
            yield run
    except KeyboardInterrupt:
        if is_unfinished(path):
            raise Stopped("stopped; the same command with --resume goes on") from None
        raise


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
