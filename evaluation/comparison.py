"""The results table: what classifiers learn from real rows, from the twin, and from neither.

`compare` is the library's entry, `python -m evaluation.comparison` the command line's. Everything
either of them finds is computed on private rows and stays with their owner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer

from evaluation.baseline import untrained_twin
from evaluation.command import command_line, run_command
from evaluation.results import BASELINE, HELD_OUT, REAL, REAL_SMALL, TWIN, Comparison, Result
from evaluation.twins import Twin, generate_twin, read_twin, rows_per_label, timed, train_twin
from evaluation.utility import (
    CLASSIFIERS,
    Classifier,
    Target,
    accuracy,
    commonest_label,
    label_fidelity,
    make_classifiers,
    targets,
    train_on,
)
from twinset.artefact import write_json, write_text
from twinset.columns import choose_columns
from twinset.config import RunConfig
from twinset.console import Console
from twinset.errors import InputError
from twinset.flags import takes
from twinset.formats import read_frame, write_frame
from twinset.options import (
    DECODING,
    OPTIONS,
    PRIVACY,
    ROWS,
    RUN,
    SEED,
    SPEED,
    TRAINING,
    run_config,
    run_options,
)
from twinset.precision import frozen_dtype
from twinset.progress import Progress, Silent
from twinset.records import records_from_frame
from twinset.request import Places, RowsWanted, Source
from twinset.schema import Schema
from twinset.templates import Template, load_template

ROWS_DEFAULT = 2000
TWIN_OPTIONS = (
    *(OPTIONS[name] for name in ("text", "attribute", "prompt")),
    *PRIVACY,
    *TRAINING,
    *SPEED,
    *ROWS[:1],
    *DECODING,
    *RUN,
    *SEED,
)
Tables = Mapping[str, pd.DataFrame]  # by source, as `evaluation.results` names them


def compare(
    train: pd.DataFrame,
    heldout: pd.DataFrame,
    text: str,
    attributes: Sequence[str],
    config: RunConfig,
    prompt: str | None,
    rows: int,
    progress: Progress | None = None,
    *,
    twin: Twin | None = None,
    baseline: pd.DataFrame | None = None,
    classifiers: Sequence[str] = CLASSIFIERS,
    data: str = "table",
    keep_baseline: Callable[[pd.DataFrame], object] = lambda frame: None,
) -> Comparison:
    """Make a twin and its baseline, unless they are given, and measure them.

    Args:
        train: the private table.
        heldout: real rows to test on, which nothing is trained on.
        text: the text column.
        attributes: the label columns.
        config: the run's options.
        prompt: the template, as `load_template` takes it.
        rows: rows of the twin.
        progress: is told what happens.
        twin: an existing twin; spares training.
        baseline: existing rows made without private data.
        classifiers: names in `utility.CLASSIFIERS`.
        data: what to call the private table.
        keep_baseline: is given the baseline's rows as soon as they are made.

    Raises:
        InputError: a table cannot be used.
    """
    progress = progress or Silent()
    makers = make_classifiers(classifiers, progress.say)
    choose_columns(heldout, text, list(attributes), f"{data}, held-out table", [])
    schema = records_from_frame(train, text, attributes, source=data)[0].schema
    template = load_template(prompt, schema)
    if twin is None:
        _, twin = train_twin(train, text, attributes, config, template, rows, progress)
    seconds = dict(twin.seconds)
    if baseline is None:
        with timed(seconds, "baseline"):
            baseline = make_baseline(twin.frame, schema, template, config, progress)
        keep_baseline(baseline)
    tables = _tables(train, twin.frame, baseline, config.training.seed)
    progress.say("training and testing classifiers")
    with timed(seconds, "classifiers"):
        results = tuple(_results(tables, heldout, text, attributes, makers))
    commonest = {t: commonest_label(train, heldout, text, t) for t in targets(attributes)}
    return Comparison(
        data=data,
        epsilon=twin.epsilon,
        delta=twin.delta,
        guarantee=twin.sentence,
        prompt=template.pattern,
        config=config,
        rows={name: len(frame) for name, frame in tables.items()} | {HELD_OUT: len(heldout)},
        coinciding=coinciding_rows(train[text], heldout[text]),
        commonest={_name(target): score for target, score in commonest.items()},
        results=results,
        seconds=seconds,
    )


def make_baseline(
    twin: pd.DataFrame, schema: Schema, template: Template, config: RunConfig, progress: Progress
) -> pd.DataFrame:
    """Return as many rows of each label as the twin has, made without private data."""
    progress.say(f"writing {len(twin)} rows with the base model, without private data")
    return untrained_twin(
        config.training.base_model,
        schema,
        template,
        rows_per_label(twin, schema),
        config.sampling,
        config.training.max_tokens,
        dtype=frozen_dtype(config),  # as the twin's model
        progress=progress,
    )


def coinciding_rows(train: Iterable[object], heldout: Iterable[object]) -> int:
    """Count held-out texts that are training texts: lower-cased letters and digits compared.

    >>> coinciding_rows(["Good film!"], ["good film", "Bad film."])
    1
    """
    known = set(map(_normalised, train))
    return sum(_normalised(text) in known for text in heldout)


def _normalised(text: object) -> str:
    return "".join(c for c in str(text).lower() if c.isalnum())


def _tables(train: pd.DataFrame, twin: pd.DataFrame, baseline: pd.DataFrame, seed: int) -> Tables:
    small = train.sample(min(len(twin), len(train)), random_state=seed)
    return {REAL: train, REAL_SMALL: small, TWIN: twin, BASELINE: baseline}


def _results(
    tables: Tables,
    heldout: pd.DataFrame,
    text: str,
    attributes: Sequence[str],
    makers: Mapping[str, Classifier],
) -> Iterator[Result]:
    for target in targets(attributes):
        for name, maker in makers.items():
            models = {s: train_on(frame, text, target, maker) for s, frame in tables.items()}
            for source, model in models.items():
                score = accuracy(model, heldout, text, target)
                yield Result(source, _name(target), name, score)
            for source in (TWIN, BASELINE):
                score = label_fidelity(tables[source], text, target, models[REAL])
                yield Result(source, _name(target), name, score)


def _name(target: Target) -> str:
    return " × ".join(target)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
@takes(*TWIN_OPTIONS)
def measure(
    train: Annotated[Path, typer.Argument(help="The private table.")],
    *,
    given: dict[str, Any],
    test: Annotated[Path, typer.Option(help="Real rows, held out.")],
    output: Annotated[Path, typer.Option(help="Results: this .json, and .md beside it.")],
    twin: Annotated[Path | None, typer.Option(help="Score this twin; train nothing.")] = None,
    baseline: Annotated[Path | None, typer.Option(help="Score these untrained rows.")] = None,
    classifier: Annotated[list[str] | None, typer.Option(help="Repeat it; else all.")] = None,
) -> None:
    """Measure a twin against real rows and against text made without private data.

    The baseline's rows are kept beside the results, and --run keeps the twin's run folder; --twin
    and --baseline go on from these.
    """
    if not output.parent.is_dir():
        raise InputError(f"--output {output}: its folder does not exist; create it")
    frame, heldout, config = read_frame(train), read_frame(test), run_config(run_options(given))
    notes: list[str] = []
    text, attributes = choose_columns(frame, *_columns(given), str(train), notes)
    with Console() as progress:
        for note in notes:
            progress.say(note)
        comparison = compare(
            frame,
            heldout,
            text,
            attributes,
            config,
            given.get("prompt"),
            given.get("rows", ROWS_DEFAULT),
            progress,
            twin=_existing_twin(train, given, twin, progress),
            baseline=None if baseline is None else read_frame(baseline),
            classifiers=classifier or CLASSIFIERS,
            data="/".join(train.parts[-2:]),
            keep_baseline=partial(write_frame, path=output.with_suffix(".baseline.parquet")),
        )
    _write(comparison, output)


def _columns(given: dict[str, Any]) -> tuple[str | None, list[str]]:
    return given.get("text"), list(given.get("attribute", ()))


def _existing_twin(
    train: Path, given: dict[str, Any], twin: Path | None, progress: Progress
) -> Twin | None:
    """Return the twin of --twin, or one made into the run folder of --run; else None."""
    if twin is not None:
        return read_twin(twin)
    if "run" not in given:
        return None
    text, attributes = _columns(given)
    source = Source(str(train), text, tuple(attributes), prompt=given.get("prompt"))
    places = Places(Path(given["run"]), format="parquet")
    rows = RowsWanted(given.get("rows", ROWS_DEFAULT))
    return generate_twin(source, run_config(run_options(given)), rows, places, progress)


def _write(comparison: Comparison, output: Path) -> None:
    from rich import print as show

    comparison = replace(comparison, command=command_line("evaluation.comparison"))
    write_json(output, comparison.to_dict())
    write_text(output.with_suffix(".md"), comparison.as_markdown())
    show(comparison.as_table())


def main() -> None:
    """Run the command."""
    run_command(app)


if __name__ == "__main__":
    main()
