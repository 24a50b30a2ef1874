"""The commands that measure: `demo`, `compare` and `audit`. Parse, call, print.

They import what they need when they are called, as `cli` does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from twinset.commandline import Data, Json, Quiet, show, source_of
from twinset.errors import VerificationError
from twinset.flags import takes
from twinset.options import (
    DECODING,
    POLICY,
    PRIVACY,
    SEED,
    SPEED,
    TABLE,
    TRAINING,
    run_config,
    run_options,
)

audit = typer.Typer(help="Attack twinset's own claims.")


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
        show({"run": report.run, **report.comparison.to_dict()}, (), as_json)
    else:
        Stdout(highlight=False).print(report)


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
    wanted = Wanted(source_of(data, given), names, seeds, rows, test, classifiers)
    with Console(quiet) as progress:
        results = compare_policies(
            wanted,
            run_config(run_options(given), any_policy=True),
            output,
            shell_line("twinset"),
            progress,
        )
    if as_json:
        show(results.to_dict(), (), as_json)
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
    show(audited.to_dict(findings), map(finding_line, findings), as_json)
    if not all(finding.theorem_holds for finding in findings):
        raise VerificationError("the outputs show more than is claimed: the step is not private")
    if not all(finding.holds for finding in findings):
        raise VerificationError("the outputs show more than the nominal claim of this form")
