"""The command line: parse, call, print. Results on stdout, progress on stderr.

Commands import what they need when they are called. `twinset --help` does not wait for PyTorch.
"""

import os
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from twinset import __version__
from twinset.bounds import SEEDS
from twinset.commandline import entry_point as exits
from twinset.commandline.common import (
    Command,
    Data,
    DryRun,
    Json,
    LogFile,
    Quiet,
    read_pairs,
    request_of,
    show,
    show_result,
    source_of,
    takes,
)
from twinset.commandline.entry_point import with_flags
from twinset.config import RECORDS
from twinset.config.options import (
    BUDGET,
    DECODING,
    OPTIONS,
    OVERWRITE,
    PANELS,
    POLICY,
    PRIVACY,
    ROWS,
    RUN,
    SEED,
    SPEED,
    TIME,
    TRAINING,
    TWIN_FILE,
    WHERE,
    options_of,
)
from twinset.errors import InputError
from twinset.files.import_path import import_evaluation
from twinset.pretraining import PretrainConfig
from twinset.table.schema import read_toml

AUTOMATIC = {"hold_out": None, "columns": ("all",)}  # in a run, unless somebody says otherwise

app = typer.Typer(
    epilog="For completion by Tab, once: twinset --install-completion",
    pretty_exceptions_enable=False,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
evaluation = import_evaluation("commands")
app.add_typer(evaluation.audit, name="audit")
EXAMPLES = {
    "generate": "generate reviews.csv --text review --attribute sentiment --epsilon 8",
    "finetune": "finetune reviews.csv --text review --attribute sentiment --run runs/reviews",
    "sample": "sample runs/reviews --rows 2000 --output twin.csv",
    "plan": "plan reviews.csv, or plan --records 10000",
    "weight-scale": "weight-scale public.csv --text text --output scale.json",
    "verify": "verify runs/reviews/share",
    "share": "share runs/reviews --sign ~/.ssh/id_ed25519 --output twin.csv",
    "budget": "budget reviews.csv",
    "detect": "detect notes.csv --text note --detector patterns",
    "demo": "demo --data support",
    "compare": "compare reviews.csv --policies uniform,importance,none --output compared.json",
    "evaluate": "evaluate runs/reviews --train reviews.csv --test held-out.csv",
    "report": "report runs/reviews",
    "pretrain": "pretrain public/ --output my-base --max-minutes 60",
    "models": "models",
    "prompts": "prompts",
}


def _command(function: Callable[..., None]) -> Callable[..., None]:
    """Turn a function into a command, with an example after its help."""
    name = function.__name__.replace("_", "-")
    return app.command(name, cls=Command, epilog=f"Example: twinset {EXAMPLES[name]}")(function)


@app.callback(invoke_without_command=True)
def _twinset(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    """Turn a private, labelled table of texts into a synthetic twin that may be shared."""
    if version:
        typer.echo(__version__)
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


@_command
@takes(*OPTIONS.values())
def generate(
    data: Data,
    *,
    given: dict[str, Any],
    dry_run: DryRun = False,
    quiet: Quiet = False,
    log_file: LogFile = None,
    as_json: Json = False,
) -> None:
    """Make a synthetic twin of a private table, and state what is guaranteed."""
    _make(data, given, dry_run, quiet, log_file, as_json)


@_command
@takes(
    *(*PANELS["Table"], *PRIVACY, *BUDGET, *POLICY, *TRAINING, *TIME, *SPEED),
    *(*RUN, *OVERWRITE, *SEED),
)
def finetune(
    data: Data,
    *,
    given: dict[str, Any],
    dry_run: DryRun = False,
    quiet: Quiet = False,
    log_file: LogFile = None,
    as_json: Json = False,
) -> None:
    """Learn a private model of a table: the first half of `generate`."""
    _make(data, given, dry_run, quiet, log_file, as_json, model_only=True)


def _make(
    data: str,
    given: dict[str, Any],
    dry_run: bool,
    quiet: bool,
    log_file: Path | None,
    as_json: bool,
    model_only: bool = False,
) -> None:
    """Make a run, or plan it."""
    launched = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if launched and os.environ.get("RANK", "0") != "0":  # a launcher started this worker
        from twinset.training.distributed import run_worker

        return run_worker()
    config, rows, places = request_of(given)
    source = source_of(data, AUTOMATIC | given)  # refused before PyTorch is imported
    from twinset.commandline.console import Console

    with Console(quiet, log_file) as progress:
        from twinset.run import generate as runs

        if dry_run:
            planned = runs.dry_run(source, config, rows, places, progress)
            return show(planned.to_dict(), [with_flags(str(planned))], as_json)
        asked = None if model_only else rows
        result = runs.generate(source, config, asked, places, progress)
    show_result(result, as_json)
    # a person waits for the answer: show at once whether the twin is useful
    if not (model_only or quiet or as_json):
        evaluation.show_first_verdict(result, source, config.speed.device)


@_command
@takes(OPTIONS["device"], *ROWS, WHERE, *DECODING, *TWIN_FILE, *OVERWRITE, *SEED)
def sample(
    model: Annotated[Path, typer.Argument(help="Run folder or model folder.")],
    *,
    given: dict[str, Any],
    quiet: Quiet = False,
    log_file: LogFile = None,
    as_json: Json = False,
) -> None:
    """Write a twin from a trained model: the second half of `generate`."""
    from twinset.commandline.console import Console

    config, rows, places = request_of(given)
    with Console(quiet, log_file) as progress:
        from twinset.run import generate as runs

        result = runs.sample_only(
            model, config.sampling, rows, places, progress, config.speed.device
        )
    show_result(result, as_json)


@_command
@takes(*PANELS["Table"], *PRIVACY, *POLICY, *TRAINING, *TIME, *SPEED, *ROWS[:1], *SEED)
def plan(
    data: Annotated[str | None, typer.Argument(help="The table. Omit it with --records.")] = None,
    *,
    given: dict[str, Any],
    records: Annotated[
        int | None, typer.Option(help="Plan for this many records.", **RECORDS.limits)
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Show what a run would spend and how long it takes, before any training."""
    config, asked, _ = request_of(given, any_policy=True)
    source = source_of(data, AUTOMATIC | given) if data is not None else None
    from twinset.commandline.console import Console

    with Console(quiet) as progress:
        from twinset.run.generate import plan_run

        hold_out = (AUTOMATIC | given)["hold_out"]
        found = plan_run(source, records, config, asked.rows, progress, hold_out)
    show(found.to_dict(), [with_flags(str(found))], as_json)


@_command
@takes(*(OPTIONS[n] for n in ("text", "base_model", "max_tokens", "precision", "device", "seed")))
def weight_scale(
    tables: Annotated[list[str], typer.Argument(help="Public tables with texts.")],
    *,
    given: dict[str, Any],
    output: Annotated[Path, typer.Option(help="File to write, for --weight-scale.")],
    rows: Annotated[int, typer.Option(min=10, max=10**9, help="Texts of each table.")] = 250,
    origin: Annotated[str | None, typer.Option(help="What the texts are, for the card.")] = None,
    quiet: Quiet = False,
) -> None:
    """Fit the scale of adaptive noise on public texts. It will be published."""
    from dataclasses import asdict

    from twinset.commandline.console import Console
    from twinset.files.atomic import write_json
    from twinset.release.publish import check_output
    from twinset.training.record_weights import fit_scale_on_tables

    check_output(output)  # before anything slow
    config, _, _ = request_of(given)
    with Console(quiet) as progress:
        text = given.get("text", "text")
        scale = fit_scale_on_tables(tables, text, config, rows, origin, progress)
    facts = asdict(scale)
    write_json(output, facts)
    show(facts, [f"{k}: {v}" for k, v in facts.items()], as_json=False)


@_command
def verify(
    path: Annotated[
        Path,
        typer.Argument(help="Run, its share/, or a twin with card and ledger."),
    ],
    key: Annotated[
        Path | None,
        typer.Option(help="Public key that must have signed it: id_ed25519.pub.", metavar="FILE"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check a shared twin against its ledger. Needs no model and no private data."""
    from dataclasses import asdict

    from twinset.privacy.statement.wording import paragraphs
    from twinset.release.verify import verify as check
    from twinset.run.run_folder import check_ended

    check_ended(path)
    report = check(path, key)
    lines = [
        *(f"ok: {line}" for line in report.checked),
        *paragraphs(report.guarantee.sentence),
        *(f"this check cannot show: {with_flags(line)}" for line in report.cannot_show),
    ]
    show(asdict(report), lines, as_json)


@_command
@takes(*TWIN_FILE[:1], *OVERWRITE)
def share(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    *,
    given: dict[str, Any],
    sign: Annotated[
        Path | None,
        typer.Option(help="Private Ed25519 key of OpenSSH: id_ed25519.", metavar="FILE"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check a run's twin, sign it with a key of OpenSSH, and copy it to where it is handed over."""
    from twinset.run.generate import share_run

    places = request_of(given)[2]
    by = share_run(run, sign, places)
    shared, signed = str(places.output or run), f"signed by {by}" if by else "not signed"
    show({"shared": shared, "signed_by": by}, [f"{shared}: {signed}"], as_json)


@_command
@takes(BUDGET[1], has_file=False)
def budget(data: Data, *, given: dict[str, Any], as_json: Json = False) -> None:
    """Show the account of a table: its runs, what they spend together, and what is left."""
    from twinset.run.budget import Book, describe

    file = source_of(data, given).account_file
    book = None if file is None else Book.load(file)
    if file is None or book is None:
        raise InputError(f"{data}: has no account. A run with `budget` opens one.")
    facts, lines = describe(file, book)
    show(facts, lines, as_json)


@_command
def detect(
    data: Data,
    text: Annotated[str, typer.Option(help="Column that holds the text.", metavar="COLUMN")],
    detector: Annotated[
        str, typer.Option(help="patterns, entities, contextual or module:function.")
    ] = "patterns",
    secret: Annotated[
        list[str] | None,
        typer.Option(help="Column of known secrets. Repeat for several.", metavar="COLUMN"),
    ] = None,
    split: Annotated[str | None, typer.Option(help="Split of a data set.")] = None,
    samples: Annotated[
        Path | None, typer.Option(help="Private file to write masked texts to.")
    ] = None,
    number: Annotated[int, typer.Option(min=1, max=10**9, help="Masked texts to write.")] = 20,
    seed: Annotated[int, typer.Option(help="Seed of their choice.", **SEEDS.limits)] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace that file.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Show which private spans a detector finds in a table, and which it misses."""
    from twinset.commandline.console import Console
    from twinset.policies import detection

    if samples is not None:
        # Samples must have a place to go to, before any work.
        place = f"`samples={samples}`"
        if samples.exists() and Path(data).exists() and samples.samefile(data):
            raise InputError(f"{place}: is the private table. Name another file.")
        if samples.is_dir() or (samples.exists() and not overwrite):
            raise InputError(f"{place}: exists. Name another file, or use `overwrite`.")
        if not samples.absolute().parent.is_dir():
            raise InputError(f"{place}: its folder does not exist. Create it.")
    flags = detection.detector_named(detector)
    with Console(quiet) as progress:
        on_progress = partial(progress.count, "texts")
        found, texts = detection.measure_coverage(
            data, text, flags, secret or (), split, on_progress
        )
        if samples is not None:
            written = detection.write_samples(samples, texts, flags, number, seed)
            progress.say(f"{samples}: {written} masked texts. They may hold secrets. Keep them.")
    facts = {"not_protected": detection.NOT_PROTECTED, "detector": flags.name}
    # In lines for people, each share has its n.
    names = {"records": "records with anything", "words": "words", "characters": "characters"}
    shares = [(f"{s} flagged", found[f"flagged_{n}"], found[n], "") for n, s in names.items()]
    for name, n in found["secrets"].items():
        missing = f" ({n['not_in_text']:,} of {n['cells']:,} cells are not in their text)"
        shares.append((f"recall of {name!r}", n["flagged"], n["occurrences"], missing))
    if found["secrets"]:
        inside, what = found["flagged_secret_characters"], "characters that belong to one of these"
        shares.append((f"precision, flagged {what}", inside, found["flagged_characters"], ""))
    lines = [detection.NOT_PROTECTED]
    for what, part, whole, more in shares:
        share = f"{part:,} of {whole:,} ({part / whole:.1%})" if whole else "none of 0"
        lines.append(f"{what}: {share}{more}")
    show(facts | found, lines, as_json)


for command in (evaluation.demo, evaluation.compare, evaluation.evaluate, evaluation.report):
    _command(command)


@_command
@takes(*options_of(PretrainConfig), has_file=False)
def pretrain(
    corpus: Annotated[list[Path], typer.Argument(help="Public text: .txt, tables, .gz, folders.")],
    *,
    given: dict[str, Any],
    output: Annotated[Path, typer.Option(help="Folder of the model. A stopped run is resumed.")],
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[START=]PROMPT",
            help="Prompt before half of the rows that have its {columns}, or of the files whose "
            "names begin with START. Repeatable.",
        ),
    ] = None,
    share: Annotated[
        list[str] | None,
        typer.Option(
            metavar="START=NUMBER",
            help="Share to read of files whose names begin with START. Repeatable.",
        ),
    ] = None,
    decontaminate: Annotated[
        list[Path] | None,
        typer.Option(help="Text to leave out (not DP). Repeatable."),
    ] = None,
    licences: Annotated[
        Path | None, typer.Option(help='TOML: "beginning of a file\'s name" = "licence".')
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train a base model on PUBLIC text, without privacy. The same command resumes it."""
    stated = {} if licences is None else read_toml(licences, str(licences))
    config = PretrainConfig(
        **given,
        prompts=tuple(prompt or ()),
        shares=read_pairs(share or (), "share"),
        licences={name: str(licence) for name, licence in stated.items()},
        decontaminate=tuple(decontaminate or ()),
    )
    from accelerate import PartialState  # after the error was reported

    from twinset.commandline.console import Console
    from twinset.files.environment import shell_line
    from twinset.models.device import device_of, is_cpu
    from twinset.pretraining.pretrain import pretrain as train_base

    # The card is for others, so folders of this machine are left out of the command.
    words = shlex.split(shell_line("twinset"))
    line = shlex.join(Path(word).name if "/" in word else word for word in words)
    leading = PartialState(cpu=is_cpu(device_of())).is_main_process
    with Console(quiet or not leading) as console:
        facts = train_base(corpus, output, config, line, console)
    if not leading:  # only one process of several prints
        return
    validation = facts["validation"]
    lines = [f"model: {output}", f"validation: {validation['bits_per_byte']:.3f} bits per byte"]
    if not facts["finished"]:
        lines.append(f"{validation['steps']} of {validation['of']} steps. Repeat this to resume.")
    show(facts, lines, as_json)


@_command
def models(as_json: Json = False) -> None:
    """List the base models that need no hub."""
    from twinset.models.base_model import builtin_models

    bases = builtin_models()
    note = "Also: a local folder, or any causal LM of the GPT-2 or Llama family on the hub."
    show(bases, [*(f"{name}: {text}" for name, text in bases.items()), note], as_json)


@_command
def prompts(as_json: Json = False) -> None:
    """List the built-in prompt templates."""
    from twinset.table.templates import builtin_templates, kinds_of_text

    patterns = {name: file.pattern for name, file in builtin_templates().items()}
    lines = [f"{name}: {pattern}" for name, pattern in patterns.items()]
    listed = ", ".join(kinds_of_text())
    lines.append(f"without --prompt: the best fit of these, or of generic with one of {listed}")
    show(patterns, lines, as_json)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. See `twinset.commandline.entry_point.run`."""
    return exits.run(lambda: app(args=arguments, prog_name="twinset", standalone_mode=False))
