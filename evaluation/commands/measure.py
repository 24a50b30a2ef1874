"""The commands that measure: `demo`, `compare`, `evaluate`, `report`. Parse, call, print.

They import what they need when they are called, as `cli` does.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from evaluation.findings import RUNS
from twinset.commandline.common import (
    OF_REAL_ROWS,
    Data,
    Json,
    LogFile,
    Policies,
    Quiet,
    Test,
    check_tables_there,
    layout_of,
    listed,
    show,
    source_of,
)
from twinset.commandline.flags import takes
from twinset.config import ROWS
from twinset.config.options import ANY_POLICY, OPTIONS, TABLE, run_config, run_options


@takes(OPTIONS["device"])
def demo(
    *,
    given: dict[str, Any],
    data: Annotated[
        str,
        typer.Option(
            help="reviews: real film reviews. support: made-up dialogues with planted personal "
            "data, which are counted in the twin; no download."
        ),
    ] = "reviews",
    run: Annotated[Path | None, typer.Option(help="Run folder; left out: runs/demo-<n>.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace that run.")] = False,
    base_model: Annotated[
        str | None,
        typer.Option(
            help="gpt2-mini is quick, smollm2-135m-text teaches more; or your own. Left out: "
            "smollm2-135m-text for reviews, gpt2-mini for support."
        ),
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Make a twin of a table that comes along and measure it: a few minutes."""
    from rich.console import Console as Stdout

    from evaluation.demo.demos import demo_named
    from evaluation.demo.run_demo import run_demo
    from twinset.commandline.console import Console
    from twinset.models.device import AUTO

    with Console(quiet) as progress:
        made = run_demo(
            demo_named(data), run, progress, overwrite, base_model, given.get("device", AUTO)
        )
    if as_json:
        show({"run": made.run, **made.findings.to_dict()}, (), as_json)
    else:
        Stdout(highlight=False).print(made)


@takes(*ANY_POLICY)
def compare(
    data: Data,
    *,
    given: dict[str, Any],
    policies: Policies = "uniform,adaptive,selective,importance",
    seeds: Annotated[int, typer.Option(help="Runs of each policy.", **RUNS.limits)] = 3,
    rows: Annotated[int, typer.Option(help="Rows of each twin.", **ROWS.limits)] = 1000,
    test: Test = None,
    classifier: Annotated[list[str] | None, typer.Option(help="Repeat it; else all.")] = None,
    output: Annotated[
        Path, typer.Option(help="Results: .json, .md and .png. The same command resumes from them.")
    ] = Path("policies"),
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train and score each noise policy with several seeds: one table, one figure."""
    from rich.console import Console as Stdout

    from evaluation.comparison.compare import compare_policies
    from evaluation.comparison.report import as_table
    from evaluation.policy_runs import ComparisonRequest
    from evaluation.utility.classifiers import CLASSIFIERS
    from twinset.commandline.console import Console
    from twinset.files.environment import shell_line

    classifiers = tuple(classifier or CLASSIFIERS)
    config = run_config(run_options(given), any_policy=True)
    request = ComparisonRequest(
        source_of(data, given), listed(policies), seeds, rows, test, classifiers
    )
    with Console(quiet) as progress:
        results = compare_policies(
            request,
            config,
            output,
            shell_line("twinset"),
            progress,
        )
    if as_json:
        show(results.to_dict() | {"scores": results.scores}, (), as_json)
    else:
        Stdout(highlight=False).print(as_table(results))


@takes(*(option for option in TABLE if option.name in OF_REAL_ROWS), OPTIONS["device"])
def evaluate(
    twin: Annotated[Path, typer.Argument(help="The twin, or its run folder.")],
    *,
    given: dict[str, Any],
    train: Annotated[Path, typer.Option(help="The private table that it was made from.")],
    test: Annotated[
        Path | None, typer.Option(help="Real rows, held out; else those that the run held out.")
    ] = None,
    run: Annotated[Path | None, typer.Option(help="Run folder of a twin given as a file.")] = None,
    classifier: Annotated[
        list[str] | None, typer.Option(help="tfidf, svm, minilm, encoder; repeat it.")
    ] = None,
    encoder: Annotated[
        str | None, typer.Option(help="What `encoder` fine-tunes: folder or hub name.")
    ] = None,
    seeds: Annotated[
        int, typer.Option(help="Times each classifier is trained.", **RUNS.limits)
    ] = 1,
    baseline: Annotated[
        Path | None, typer.Option(help="Rows made without private data; else made here.")
    ] = None,
    non_private: Annotated[Path | None, typer.Option(help="A twin made without noise.")] = None,
    sweep_epsilon: Annotated[
        str | None, typer.Option(help="Train a twin for each of these too: 1,2,4.")
    ] = None,
    exclude_overlap: Annotated[
        bool, typer.Option("--exclude-overlap", help="Leave out test rows that are in train.")
    ] = False,
    output: Annotated[Path | None, typer.Option(help="JSON; a run keeps its own.")] = None,
    publishable: Annotated[
        bool, typer.Option("--publishable", help="Print only what may be published.")
    ] = False,
    quiet: Quiet = False,
    log_file: LogFile = None,
    as_json: Json = False,
) -> None:
    """Measure a twin: is it useful, is it faithful?"""
    check_tables_there(train, test)
    from evaluation.commands.findings_output import (
        KeptFindings,
        check_publishable,
        place_of,
        show_findings,
        show_publishable,
    )
    from evaluation.evaluate import FILE, EvaluationRequest, budgets
    from evaluation.evaluate import evaluate as measure
    from evaluation.release import Release, open_real_rows
    from evaluation.utility.classifiers import CLASSIFIERS
    from twinset.commandline.console import Console
    from twinset.files.environment import shell_line
    from twinset.models.device import AUTO

    request = EvaluationRequest(
        train,
        test or train,
        None,
        tuple(given.get("attribute", ())),
        tuple(classifier or CLASSIFIERS),
        encoder,
        seeds,
        baseline,
        non_private,
        budgets(sweep_epsilon),
        exclude_overlap,
    )
    form = given.get("text"), layout_of(given)
    release = Release.read(twin, run, given.get("device", AUTO))
    kept = KeptFindings(place_of(release.run, output, FILE))
    if publishable:
        check_publishable(release)

    with (
        Console(quiet, log_file) as progress,
        open_real_rows(release.run, train, test, *form) as real,
    ):
        request = replace(
            request, train=real.known, test=real.others, text=real.text, layout=real.layout
        )
        findings = measure(release, request, shell_line("twinset"), progress, kept.save)
    if publishable:
        show_publishable(findings, as_json)
    else:
        show_findings(findings, as_json)
    kept.show_place()


def report(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    show_real: Annotated[
        Path | None, typer.Option(help="Private table: some of its rows beside the twin's.")
    ] = None,
) -> None:
    """Draw everything that is known of a run: one page, internal/report.html."""
    from evaluation.report.page import write_report

    typer.echo(write_report(run, show_real))
