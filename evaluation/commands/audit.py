"""The commands that attack: `audit RUN|TWIN`, `audit canaries`, `audit mechanism`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from evaluation.findings import ATTACKED, CANARIES, LENGTHS, SECRETS
from twinset.bounds import SEEDS
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
from twinset.errors import VerificationError

RELEASE = "release"


class _ReleaseByDefault(TyperGroup):
    """`audit X` is `audit release X` wherever X is no command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the command's name in."""
        if args and args[0] not in (*self.commands, "-h", "--help"):
            args = [RELEASE, *args]
        return super().parse_args(ctx, args)


audit = typer.Typer(
    cls=_ReleaseByDefault,
    help="Attack twinset's own claims: audit RUN|TWIN, audit canaries DATA, audit mechanism.",
    epilog="Example: twinset audit runs/reviews --members reviews.csv",
)


@audit.command(epilog="Example: twinset audit mechanism --noise-policy importance")
@takes(*(OPTIONS[name] for name in ("noise_policy", "policy_form", "device")))
def mechanism(
    *,
    given: dict[str, Any],
    fault: Annotated[
        str | None, typer.Option(help="Break a step or a release first; a wrong name lists all.")
    ] = None,
    noise_multiplier: Annotated[float, typer.Option(help="Sigma.")] = 1.0,
    steps: Annotated[int, typer.Option(help="Of the short run.")] = 6,
    sample_rate: Annotated[float, typer.Option(help="Of the short run.")] = 0.5,
    trials: Annotated[int, typer.Option(help="Outputs with, and without.")] = 20_000,
    delta: Annotated[float, typer.Option(help="Where the claim is attacked.")] = 0.05,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Attack the noise step and what is released once; exit code 1 if a claim is refuted."""
    from rich.console import Console as Stderr
    from rich.progress import Progress

    from evaluation.audit.report import MechanismAudit, finding_line

    config = run_config(given)
    audited = MechanismAudit(
        config.policy,
        fault,
        noise_multiplier,
        steps,
        sample_rate,
        trials,
        delta,
        config.speed.device,
    )
    with Progress(console=Stderr(stderr=True), disable=quiet, transient=True) as bar:
        task = bar.add_task("attacking", total=audited.outputs)
        findings = audited.run(lambda: bar.advance(task))
    show(audited.to_dict(findings), map(finding_line, findings), as_json)
    if not all(finding.theorem_holds for finding in findings):
        raise VerificationError(
            "the outputs show more than is claimed: what is refuted is not private"
        )
    if not all(finding.holds for finding in findings):
        raise VerificationError("the outputs show more than the nominal claim of this form")


@audit.command(RELEASE, epilog="Example: twinset audit runs/reviews --members reviews.csv")
@takes(*(option for option in TABLE if option.name in OF_REAL_ROWS), OPTIONS["device"])
def release(
    release: Annotated[Path, typer.Argument(help="Run folder, or a twin.", metavar="RUN|TWIN")],
    *,
    given: dict[str, Any],
    members: Annotated[Path, typer.Option(help="The private table that it was made from.")],
    non_members: Annotated[
        Path | None,
        typer.Option(help="Real rows that it was not made from; else those that the run held out."),
    ] = None,
    run: Annotated[Path | None, typer.Option(help="Run folder of a twin given as a file.")] = None,
    rows: Annotated[
        int, typer.Option(help="Members, and others, that are tried.", **ATTACKED.limits)
    ] = 1000,
    seed: Annotated[int, typer.Option(help="Of what is drawn.", **SEEDS.limits)] = 0,
    output: Annotated[Path | None, typer.Option(help="JSON; a run keeps its own.")] = None,
    quiet: Quiet = False,
    log_file: LogFile = None,
    as_json: Json = False,
) -> None:
    """Attack a twin and its model: membership, verbatim overlap, replayed personal data."""
    check_tables_there(members, non_members)
    from evaluation.commands.findings_output import KeptFindings, place_of, show_findings
    from evaluation.leakage.release_audit import FILE, AuditRequest, audit_release
    from evaluation.release import Release, open_real_rows
    from twinset.commandline.console import Console
    from twinset.files.environment import shell_line
    from twinset.models.device import AUTO

    attributes = tuple(given.get("attribute", ()))
    form = given.get("text"), layout_of(given)
    request = AuditRequest(members, non_members or members, None, attributes, rows, seed)
    attacked = Release.read(release, run, given.get("device", AUTO))
    kept = KeptFindings(place_of(attacked.run, output, FILE))
    with (
        Console(quiet, log_file) as progress,
        open_real_rows(attacked.run, members, non_members, *form) as real,
    ):
        request = replace(
            request,
            members=real.known,
            non_members=real.others,
            text=real.text,
            layout=real.layout,
        )
        findings = audit_release(attacked, request, shell_line("twinset"), progress)
    kept.save(findings)
    show_findings(findings, as_json)
    kept.show_place()


@audit.command(epilog="Example: twinset audit canaries reviews.csv --policies uniform,none")
@takes(*ANY_POLICY)
def canaries(
    data: Data,
    *,
    given: dict[str, Any],
    policies: Policies = "uniform,none",
    copies: Annotated[str, typer.Option(help="How often secrets are planted.")] = "0,1,10,100",
    each: Annotated[
        int, typer.Option(help="Secrets of each number of copies.", **SECRETS.limits)
    ] = 3,
    digits: Annotated[
        int, typer.Option(help="Of a secret; with 3, names are planted too.", **LENGTHS.limits)
    ] = 3,
    coins: Annotated[
        int,
        typer.Option(help="Canaries that a coin puts in, for the lower bound.", **CANARIES.limits),
    ] = 200,
    rows: Annotated[int, typer.Option(help="Rows of each twin.", **ROWS.limits)] = 500,
    test: Test = None,
    output: Annotated[Path, typer.Option(help="JSON; the same command resumes from it.")] = Path(
        "canaries.json"
    ),
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Plant secrets, train with each policy, and ask for them."""
    from evaluation.commands.findings_output import check_output, show_findings, show_place
    from evaluation.leakage.canary_audit import CanaryRequest, audit_canaries, parse_copies
    from evaluation.policy_runs import ComparisonRequest
    from twinset.commandline.console import Console
    from twinset.files.environment import shell_line

    config = run_config(run_options(given), any_policy=True)
    table = ComparisonRequest(source_of(data, given), listed(policies), 1, rows, test)
    request = CanaryRequest(table, parse_copies(copies), each, digits, coins)
    check_output(output)
    with Console(quiet) as progress:
        findings = audit_canaries(request, config, output, shell_line("twinset"), progress)
    show_findings(findings, as_json)
    show_place(output)
