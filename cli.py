"""The command line: parse, call, print. Results on stdout, progress on stderr.

Commands import what they need when they are called, so that `twinset --help` waits for no torch.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from twinset import __version__
from twinset.errors import InputError, VerificationError
from twinset.flags import takes
from twinset.options import (
    DECODING,
    OPTIONS,
    OVERWRITE,
    POLICY,
    PRIVACY,
    ROWS,
    RUN,
    SEED,
    SPEED,
    TABLE,
    TRAINING,
    TWIN_FILE,
    run_config,
    run_options,
)

if TYPE_CHECKING:
    from twinset.generate import Result
    from twinset.plan import Plan
    from twinset.request import Places, RowsWanted, Source

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
audit = typer.Typer(help="Attack twinset's own claims.")
app.add_typer(audit, name="audit")
STOPPED = 130  # exit code
Data = Annotated[str, typer.Argument(help="CSV, TSV, Parquet, JSONL, data-set folder or hub name.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Stop after the plan; write nothing.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


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


@app.command()
@takes(*OPTIONS.values())
def generate(
    data: Data,
    *,
    given: dict[str, Any],
    dry_run: DryRun = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Fine-tune on a private table and write its twin: everything in one go."""
    from twinset import generate as runs
    from twinset.console import Console

    request = _source(data, given), run_config(run_options(given)), _rows(given), _places(given)
    with Console(quiet) as progress:
        if dry_run:
            return _print_plan(runs.dry_run(*request, progress), as_json)
        result = runs.generate(*request, progress)
    _print_result(result, as_json)


@app.command()
@takes(*TABLE, *PRIVACY, *POLICY, *TRAINING, *SPEED, *RUN, *OVERWRITE, *SEED)
def finetune(
    data: Data,
    *,
    given: dict[str, Any],
    dry_run: DryRun = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Fine-tune on a private table: the first half of `generate`."""
    from twinset import generate as runs
    from twinset.console import Console
    from twinset.request import RowsWanted

    source, config, places = _source(data, given), run_config(run_options(given)), _places(given)
    with Console(quiet) as progress:
        if dry_run:
            plan = runs.dry_run(source, config, RowsWanted(), places, progress)
            return _print_plan(plan, as_json)
        result = runs.finetune_only(source, config, places, progress)
    _print_result(result, as_json)


@app.command()
@takes(*ROWS, *DECODING, *TWIN_FILE, *OVERWRITE, *SEED)
def sample(
    model: Annotated[Path, typer.Argument(help="Run folder or model folder.")],
    *,
    given: dict[str, Any],
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Write a twin from a trained model: the second half of `generate`."""
    from twinset import generate as runs
    from twinset.console import Console

    sampling = run_config(run_options(given)).sampling
    with Console(quiet) as progress:
        result = runs.sample_only(model, sampling, _rows(given), _places(given), progress)
    _print_result(result, as_json)


@app.command()
@takes(*TABLE, *PRIVACY, *POLICY, *TRAINING, *SPEED, *ROWS[:1], *SEED)
def plan(
    data: Annotated[str | None, typer.Argument(help="The table; or give --records.")] = None,
    *,
    given: dict[str, Any],
    records: Annotated[int | None, typer.Option(help="Plan for this many records.")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Say what a run would spend, need and cost, before any training."""
    from twinset import generate as runs
    from twinset.console import Console

    source = _source(data, given) if data is not None else None
    config, rows = run_config(run_options(given)), _rows(given).rows
    with Console(quiet) as progress:
        outlook = runs.look_ahead(source, records, config, rows, progress)
    _print(outlook.to_dict(), outlook.lines(), as_json)


@app.command()
@takes(*(OPTIONS[name] for name in ("text", "base_model", "max_tokens", "precision", "seed")))
def weights(
    tables: Annotated[list[str], typer.Argument(help="Public tables of texts.")],
    *,
    given: dict[str, Any],
    output: Annotated[Path, typer.Option(help="The constants; see --weight-scale.")],
    rows: Annotated[int, typer.Option(min=10, help="Texts of each table.")] = 250,
    origin: Annotated[str | None, typer.Option(help="What they are, for the card.")] = None,
    quiet: Quiet = False,
) -> None:
    """Fit, on public texts, which perplexity makes a record private (adaptive noise)."""
    from twinset.artefact import write_json
    from twinset.console import Console
    from twinset.weights import fit_scale_on_tables

    config = run_config({name: value for name, value in given.items() if name != "text"})
    with Console(quiet) as progress:
        text = given.get("text", "text")
        scale = fit_scale_on_tables(tables, text, config, rows, origin, progress)
    write_json(output, scale.to_dict())
    _print(scale.to_dict(), [f"{k}: {v}" for k, v in scale.to_dict().items()], as_json=False)


@app.command()
def verify(
    path: Annotated[Path, typer.Argument(help="Run, its share/, or a twin with its companions.")],
    as_json: Json = False,
) -> None:
    """Check a shared twin against its own ledger; needs no model and no private data."""
    from dataclasses import asdict

    from twinset.verify import verify as check

    report = check(path)
    lines = [
        *(f"ok: {line}" for line in report.checked),
        report.guarantee.sentence,
        *(f"cannot be shown by this check: {line}" for line in report.cannot_show),
    ]
    _print(asdict(report), lines, as_json)


@app.command()
def policy(
    data: Data,
    text: Annotated[str, typer.Option(help="Column of texts.", metavar="COLUMN")],
    detector: Annotated[
        str, typer.Option(help="patterns, entities, contextual or module:function.")
    ] = "patterns",
    secret: Annotated[
        list[str] | None,
        typer.Option(help="Column of known secrets; repeat it for several.", metavar="COLUMN"),
    ] = None,
    split: Annotated[str | None, typer.Option(help="Split of a data set that has several.")] = None,
    samples: Annotated[Path | None, typer.Option(help="Write masked texts to this file.")] = None,
    number: Annotated[int, typer.Option(min=1, help="Of samples.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Chooses the samples.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace that file.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Show what a detector of private spans flags in a table, and what it misses."""
    from twinset import coverage as measure
    from twinset.console import Console
    from twinset.detectors import detector_named

    if samples is not None:
        measure.check_samples(samples, overwrite)
    flags = detector_named(detector)
    table = measure.read_texts(data, text, secret or (), split)
    with Console(quiet) as progress:
        tick = partial(progress.count, "texts")
        coverage = measure.measure_coverage(table.texts, table.secrets, flags, tick)
        if samples is not None:
            rows = measure.write_samples(samples, table, flags, number, seed)
            progress.say(f"{samples}: {rows} masked texts; what was missed is in it: keep it")
    facts = {"not_protected": measure.NOT_PROTECTED, "detector": flags.name, "rows": table.total}
    lines = [measure.NOT_PROTECTED, *coverage.lines()]
    _print(facts | coverage.to_dict(), lines, as_json)


@app.command()
def demo(
    run: Annotated[Path | None, typer.Option(help="Run folder; left out: runs/demo-<n>.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace that run.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Make a twin of real film reviews and measure it: a few minutes."""
    from rich.console import Console as Stdout

    from evaluation.demo import run_demo
    from twinset.console import Console

    with Console(quiet) as progress:
        report = run_demo(run, progress, overwrite)
    if as_json:
        _print({"run": report.run, **report.comparison.to_dict()}, (), as_json)
    else:
        Stdout(highlight=False).print(report)


@app.command()
@takes(
    *TABLE,
    *(option for option in PRIVACY if option.name != "no_privacy"),
    *(option for option in POLICY if option.name != "noise_policy"),
    *TRAINING,
    *SPEED,
    *DECODING,
    *SEED,
)
def compare(
    data: Data,
    *,
    given: dict[str, Any],
    policies: Annotated[
        str, typer.Option(help="Noise policies; none: without privacy.")
    ] = "uniform,adaptive,selective,importance",
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each policy.")] = 3,
    rows: Annotated[int, typer.Option(min=1, help="Rows of each twin.")] = 1000,
    test: Annotated[str | None, typer.Option(help="Real rows, held out; else a fifth.")] = None,
    classifier: Annotated[list[str] | None, typer.Option(help="Repeat it; else all.")] = None,
    output: Annotated[
        Path, typer.Option(help="Results: .json, .md and .png. The same command goes on from them.")
    ] = Path("policies"),
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train and score each noise policy with several seeds: one table, one figure."""
    from rich.console import Console as Stdout

    from evaluation.command import shell_line
    from evaluation.policycomparison import compare_policies
    from evaluation.policydata import Wanted
    from evaluation.policyreport import as_table
    from evaluation.utility import CLASSIFIERS
    from twinset.console import Console

    names = tuple(dict.fromkeys(name.strip() for name in policies.split(",")))
    classifiers = tuple(classifier or CLASSIFIERS)
    wanted = Wanted(_source(data, given), names, seeds, rows, test, classifiers)
    with Console(quiet) as progress:
        results = compare_policies(
            wanted, run_config(run_options(given)), output, shell_line("twinset"), progress
        )
    if as_json:
        _print(results.to_dict(), (), as_json)
    else:
        Stdout(highlight=False).print(as_table(results))


@audit.command()
def mechanism(
    noise_policy: Annotated[str, typer.Option(help="The policy to attack.")] = "uniform",
    policy_form: Annotated[str, typer.Option(help="sound or published.")] = "sound",
    fault: Annotated[
        str | None, typer.Option(help="Break the step first; a wrong name lists all.")
    ] = None,
    noise_multiplier: Annotated[float, typer.Option(help="Sigma.")] = 1.0,
    steps: Annotated[int, typer.Option(min=1, help="Of the short run.")] = 6,
    sample_rate: Annotated[float, typer.Option(help="Of the short run.")] = 0.5,
    trials: Annotated[int, typer.Option(min=100, help="Outputs with, and without.")] = 20_000,
    delta: Annotated[float, typer.Option(help="Where the claim is attacked.")] = 0.05,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Attack the noise step with worst-case neighbours; exit code 1 if its claim is refuted."""
    from rich.console import Console as Stderr
    from rich.progress import Progress

    from evaluation.audit.report import MechanismAudit, finding_line

    policy = run_config({"noise_policy": noise_policy, "policy_form": policy_form}).policy
    audited = MechanismAudit(policy, fault, noise_multiplier, steps, sample_rate, trials, delta)
    with Progress(console=Stderr(stderr=True), disable=quiet, transient=True) as bar:
        task = bar.add_task("attacking", total=audited.ticks)
        findings = audited.run(lambda: bar.advance(task))
    _print(audited.to_dict(findings), map(finding_line, findings), as_json)
    if not all(finding.holds for finding in findings):
        raise VerificationError("the outputs show more than is claimed: the step is not private")


@app.command()
def models(as_json: Json = False) -> None:
    """List the base models that come as assets."""
    from twinset.assets import ASSETS

    bases = {a.name: a.description for a in ASSETS.values() if a.kind == "causal-lm"}
    note = "Also: a local folder, or any causal LM of the GPT-2 or Llama family on the hub."
    _print(bases, [*(f"{name}: {text}" for name, text in bases.items()), note], as_json)


@app.command()
def prompts(as_json: Json = False) -> None:
    """List the built-in prompt templates."""
    from twinset.templates import builtin_templates

    patterns = {name: file.pattern for name, file in builtin_templates().items()}
    _print(patterns, [f"{name}: {pattern}" for name, pattern in patterns.items()], as_json)


def _source(data: str, given: dict[str, Any]) -> Source:
    from twinset.request import Source

    names = {"text": "text", "attribute": "attributes", "split": "split"}
    names |= {"drop_empty": "drop_empty", "prompt": "prompt"}
    return Source(data, **{names[k]: v for k, v in given.items() if k in names})


def _rows(given: dict[str, Any]) -> RowsWanted:
    from twinset.request import RowsWanted

    return RowsWanted(given.get("rows"), given.get("rows_per_label", ()), given.get("plan_file"))


def _places(given: dict[str, Any]) -> Places:
    from twinset.request import Places

    run, output = given.get("run"), given.get("output")
    return Places(
        run=Path(run) if run is not None else None,
        output=Path(output) if output is not None else None,
        format=given.get("format"),
        overwrite=given.get("overwrite", False),
        guard_formulas=not given.get("no_formula_guard", False),
    )


def _print(data: Any, lines: Iterable[str], as_json: bool) -> None:
    typer.echo(json.dumps(data, ensure_ascii=False, default=str) if as_json else "\n".join(lines))


def _print_plan(plan: Plan, as_json: bool) -> None:
    from twinset.outlook import plan_lines, plan_to_dict

    _print(plan_to_dict(plan), plan_lines(plan), as_json)


def _print_result(result: Result, as_json: bool) -> None:
    facts = {"run": result.run, "twin": result.twin, "rows": result.rows}
    facts |= {"epsilon": result.guarantee.epsilon, "delta": result.guarantee.delta}
    lines = [f"{k}: {v}" for k, v in facts.items() if k in ("run", "twin", "rows") and v]
    sentence = result.guarantee.sentence
    _print(facts | {"guarantee": sentence}, [*lines, sentence], as_json)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 1 (failed), 2 (bad input) or 130 (stopped)."""
    previous = {s: signal.signal(s, _stop) for s in (signal.SIGINT, signal.SIGTERM)}
    if not _debugging():
        warnings.simplefilter("ignore")  # of libraries, to developers
    try:
        code = app(args=arguments, prog_name="twinset", standalone_mode=False) or 0
        return _failed(KeyboardInterrupt()) if code == STOPPED else code  # typer says it so
    except BaseException as error:
        return _failed(error)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _debugging() -> bool:
    return os.environ.get("TWINSET_DEBUG") == "1"


def _stop(number: int, frame: object) -> NoReturn:
    """Stop once: a second signal must not disturb the clearing up."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


def _failed(error: BaseException) -> int:
    """Tell in one line what ended the command; return the exit code."""
    line, code = _verdict(error)
    typer.echo(" ".join(line.split()), err=True)
    if _debugging():
        traceback.print_exception(error)
    return code


def _verdict(error: BaseException) -> tuple[str, int]:
    if isinstance(error, KeyboardInterrupt):
        return "stopped; nothing half-written is left", STOPPED
    if isinstance(error, InputError):
        return f"error: {error}", 2
    if isinstance(error, VerificationError):
        return f"error: {error}", 1
    if hasattr(error, "format_message"):  # typer's: an unknown flag, a number that is none
        return f"error: {error.format_message()}; see twinset --help", 2
    what = f"unexpected {type(error).__name__} {_place(error)}"  # its message may quote a record
    return f"error: {what}; TWINSET_DEBUG=1 shows more", 1


def _place(error: BaseException) -> str:
    """Return the last place in twinset's own code that the error passed through."""
    home = Path(__file__).resolve().parent
    roots = (home / "cli.py", home / "twinset", home / "evaluation")
    frames = traceback.extract_tb(error.__traceback__)
    passed = [(Path(frame.filename).resolve(), frame.lineno) for frame in frames]
    own = [(p, line) for p, line in passed if any(p.is_relative_to(root) for root in roots)]
    return f"in {own[-1][0].name}:{own[-1][1]}" if own else "outside twinset"


if __name__ == "__main__":
    sys.exit(main())
