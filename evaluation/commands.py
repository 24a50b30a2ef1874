"""The commands that measure and attack: `demo`, `compare`, `evaluate`, `audit`, `report`.

Parse, call, print. Commands import what they need when they are called, so that `--help` loads no
torch. Findings are kept in the owner's folder or a separate file, never under `share/`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from twinset.bounds import SEEDS, Bounds, check_number
from twinset.commandline.common import (
    OF_REAL_ROWS,
    Command,
    Data,
    Json,
    LogFile,
    Policies,
    Quiet,
    Test,
    form_of,
    listed,
    show,
    source_of,
    takes,
)
from twinset.commandline.entry_point import with_flags
from twinset.config import ROWS
from twinset.config.options import ANY_POLICY, BUDGET, OPTIONS, TABLE, run_config, run_options
from twinset.errors import InputError, Stopped, VerificationError
from twinset.files.environment import shell_line
from twinset.models.device import AUTO

from .findings import (
    ATTACKED,
    CANARIES,
    LENGTHS,
    PLANTED,
    RUNS,
    SECRETS,
    Findings,
    KeptFindings,
    Question,
    Score,
    check_output,
)

if TYPE_CHECKING:
    from twinset.run.request import Result, Source

RELEASE = "release"
WHY = (
    "These numbers were computed from the twin and its model only. They are post-processing and "
    "cost no further privacy. All others were computed on private rows."
)
NOT_PRIVATE = (
    "this twin has no guarantee for whole records, so nothing measured on it may be published"
)
TITLES: dict[Question, str] = {
    "utility": "Is it useful? Classifiers tested on real held-out rows",
    "fidelity": "Is it faithful? The twin's texts and a second real sample's",
    "leakage": "Does it leak?",
}
OTHERS = "The other columns, compared with held-out real rows"
# The dimension of places that becomes columns, and those that only the JSON and the report show.
_ACROSS: dict[Question, str] = {"utility": "classifier", "fidelity": "rows", "leakage": ""}
_LONG = ("method", "candidates")
TOO_FEW = "too few rows"  # to say anything


@takes(OPTIONS["device"])
def demo(
    *,
    given: dict[str, Any],
    data: Annotated[
        str,
        typer.Option(
            help="reviews: real film reviews. support: made-up dialogues with planted secrets."
        ),
    ] = "reviews",
    run: Annotated[Path | None, typer.Option(help="Run folder. Omitted: runs/demo-<n>.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace that run.")] = False,
    base_model: Annotated[
        str | None,
        typer.Option(
            help="gpt2-mini is quick, smollm2-135m-text writes better. Omitted: the latter for "
            "reviews, the former for support."
        ),
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Make a twin of a bundled table and measure it. Says first how long that takes."""
    from twinset.commandline.console import Console, Screen

    with Console(quiet) as progress:
        from .demo import run_demo

        made = run_demo(data, run, progress, overwrite, base_model, given.get("device", AUTO))
    if as_json:
        show({"run": made.run, **made.findings.to_dict()}, (), as_json)
    else:
        Screen().print(made)


@takes(*ANY_POLICY, *BUDGET)
def compare(
    data: Data,
    *,
    given: dict[str, Any],
    policies: Policies = "uniform,adaptive,selective,importance",
    seeds: Annotated[int, typer.Option(help="Runs per policy.", **RUNS.limits)] = 3,
    rows: Annotated[int, typer.Option(help="Rows per twin.", **ROWS.limits)] = 1000,
    test: Test = None,
    classifier: Annotated[list[str] | None, typer.Option(help="Repeatable. Omitted: all.")] = None,
    output: Annotated[
        Path, typer.Option(help="Results: .json, .md and .png. The same command resumes from them.")
    ] = Path("policies"),
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train and score each noise policy with several seeds: one table, one figure."""
    from twinset.commandline.console import Console, Screen

    config, source = run_config(run_options(given), any_policy=True), source_of(data, given)
    with Console(quiet) as progress:
        from .comparison import as_table, compare_policies
        from .policy_runs import ComparisonRequest
        from .utility.classifiers import CLASSIFIERS

        names = tuple(classifier or CLASSIFIERS)
        request = ComparisonRequest(source, listed(policies), seeds, rows, test, names)
        results = compare_policies(request, config, output, shell_line("twinset"), progress)
    if as_json:
        show(results.to_dict(), (), as_json)
    else:
        Screen().print(as_table(results))


@takes(*(option for option in TABLE if option.name in OF_REAL_ROWS), OPTIONS["device"])
def evaluate(
    twin: Annotated[Path, typer.Argument(help="The twin, or its run folder.")],
    *,
    given: dict[str, Any],
    train: Annotated[Path, typer.Option(help="The private table that the twin was made from.")],
    test: Annotated[
        Path | None, typer.Option(help="Real rows to test on. Omitted: those held out.")
    ] = None,
    run: Annotated[Path | None, typer.Option(help="Run folder of a twin given as a file.")] = None,
    classifier: Annotated[
        list[str] | None, typer.Option(help="tfidf, svm, minilm or encoder. Repeatable.")
    ] = None,
    encoder: Annotated[
        str | None, typer.Option(help="What encoder fine-tunes: folder or hub name.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Training runs per classifier.", **RUNS.limits)] = 1,
    baseline: Annotated[
        Path | None, typer.Option(help="Rows made without private data. Omitted: made here.")
    ] = None,
    non_private: Annotated[Path | None, typer.Option(help="A twin made without noise.")] = None,
    sweep_epsilon: Annotated[
        str | None, typer.Option(help="Also make a twin for each ε, such as 1,2,4.")
    ] = None,
    exclude_overlap: Annotated[
        bool, typer.Option("--exclude-overlap", help="Leave out test rows that are also in train.")
    ] = False,
    output: Annotated[Path | None, typer.Option(help="JSON file. A run keeps its own.")] = None,
    publishable: Annotated[
        bool, typer.Option("--publishable", help="Print only numbers that may be published.")
    ] = False,
    quiet: Quiet = False,
    log_file: LogFile = None,
    as_json: Json = False,
) -> None:
    """Measure a twin: is it useful, is it faithful?"""
    form = form_of(given, train, test)
    from twinset.commandline.console import Console

    epsilons = OPTIONS["epsilon"].bounds
    assert epsilons is not None
    sweep = _parse_numbers("`sweep_epsilon`", sweep_epsilon, epsilons) if sweep_epsilon else ()
    compared = baseline, non_private, sweep, exclude_overlap
    with Console(quiet, log_file) as progress:
        from .evaluate import FILE, EvaluationRequest
        from .evaluate import evaluate as measure
        from .release import Release, open_real_rows
        from .utility.classifiers import CLASSIFIERS

        attributes, names = tuple(given.get("attribute", ())), tuple(classifier or CLASSIFIERS)
        release = Release.read(twin, run, given.get("device", AUTO))
        kept = _open_findings(release.run.internal / FILE if release.run else None, output)
        if publishable and not release.twin.is_of_whole_records:
            raise InputError(NOT_PRIVATE)
        with open_real_rows(release.run, train, test, *form) as real:
            request = EvaluationRequest(*real, attributes, names, encoder, seeds, *compared)
            findings = measure(release, request, shell_line("twinset"), progress, kept.save)
    if publishable:
        from twinset.privacy.statement.wording import paragraphs

        found = replace(findings, measured=tuple(findings.publishable()))
        lines = [
            f"{m.score.name}, {', '.join(m.place.values())}: {m.score}" for m in found.measured
        ]
        sentence = str(findings.about["guarantee"])
        plain = {"measured": found.to_dict()["measured"], "why": WHY, "guarantee": sentence}
        show(plain, [*lines, WHY, *paragraphs(sentence)], as_json)
    else:
        _show_findings(findings, as_json)
    _say_where(kept)


def report(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    show_real: Annotated[
        Path | None, typer.Option(help="Private table. Shows some of its rows next to the twin's.")
    ] = None,
    budget_file: Annotated[
        Path | None, typer.Option(help="The table's account. The dossier states its total.")
    ] = None,
) -> None:
    """Write all that is known of a run: internal/report.html, and a dossier.html to sign."""
    from .report.page import write_report

    page = write_report(run, show_real, budget_file)
    show(None, [str(page), str(page.with_name("dossier.html"))], as_json=False)


class _ReleaseByDefault(TyperGroup):
    """`audit X` means `audit release X` if X is not a command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the command's name."""
        # "audit RUN" is what nearly everybody means, so the name of the command may be left out.
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
        str | None, typer.Option(help="Plant this fault first. A wrong name lists all.")
    ] = None,
    noise_multiplier: Annotated[float, typer.Option(help="Noise multiplier σ.")] = 1.0,
    steps: Annotated[int, typer.Option(help="Steps of the short run.")] = 6,
    sample_rate: Annotated[float, typer.Option(help="Sample rate of the short run.")] = 0.5,
    trials: Annotated[int, typer.Option(help="Outputs with the record, and without.")] = 20_000,
    delta: Annotated[float, typer.Option(help="δ at which the claim is attacked.")] = 0.05,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Attack the noise step and each release. Exit code 1 if a claim is refuted."""
    from twinset.commandline.console import Console

    from .audit.report import MechanismAudit, finding_line

    config = run_config(given)
    asked = noise_multiplier, steps, sample_rate, trials, delta, config.speed.device
    audited = MechanismAudit(config.policy, fault, *asked)
    done = 0
    with Console(quiet) as progress:

        def advance(outputs: int) -> None:
            nonlocal done
            done += outputs
            progress.count("outputs", done, audited.outputs)

        findings = [*audited.run_steps(advance), *audited.run_releases(advance)]
    show(audited.to_dict(findings), map(finding_line, findings), as_json)
    # A refuted theorem is worse than a refuted nominal claim, so it is said first.
    if not all(finding.theorem_holds for finding in findings):
        raise VerificationError(
            "the outputs show more than is claimed. What is refuted is not private."
        )
    if not all(finding.holds for finding in findings):
        raise VerificationError("the outputs show more than the nominal claim of this form")


@audit.command(RELEASE, epilog="Example: twinset audit runs/reviews --members reviews.csv")
@takes(*(option for option in TABLE if option.name in OF_REAL_ROWS), OPTIONS["device"])
def release(
    release: Annotated[Path, typer.Argument(help="Run folder, or a twin.", metavar="RUN|TWIN")],
    *,
    given: dict[str, Any],
    members: Annotated[Path, typer.Option(help="The private table that the twin was made from.")],
    non_members: Annotated[
        Path | None,
        typer.Option(help="Real rows that it was not made from. Omitted: those held out."),
    ] = None,
    run: Annotated[Path | None, typer.Option(help="Run folder of a twin given as a file.")] = None,
    rows: Annotated[
        int, typer.Option(help="Members and non-members to try.", **ATTACKED.limits)
    ] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of what is drawn.", **SEEDS.limits)] = 0,
    max_auroc: Annotated[
        float | None, typer.Option(min=0.5, max=1, help="Fail if an attack's AUROC is above it.")
    ] = None,
    max_copied: Annotated[
        int | None,
        typer.Option(min=0, max=10**9, help="Fail if more twin rows are near-duplicates."),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="JSON file. A run keeps its own.")] = None,
    quiet: Quiet = False,
    log_file: LogFile = None,
    as_json: Json = False,
) -> None:
    """Attack a twin and its model: membership, verbatim overlap, replayed personal data."""
    form = form_of(given, members, non_members)
    from twinset.commandline.console import Console

    with Console(quiet, log_file) as progress:
        from .leakage.audits import FILE, AuditRequest, audit_release, check_limits
        from .release import Release, open_real_rows

        attacked = Release.read(release, run, given.get("device", AUTO))
        kept = _open_findings(attacked.run.internal / FILE if attacked.run else None, output)
        with open_real_rows(attacked.run, members, non_members, *form) as real:
            request = AuditRequest(*real, tuple(given.get("attribute", ())), rows, seed)
            findings = audit_release(attacked, request, shell_line("twinset"), progress)
    kept.save(findings)
    _show_findings(findings, as_json)
    _say_where(kept)
    if over := check_limits(findings, max_auroc, max_copied):
        raise VerificationError(f"the audit fails: {'. '.join(over)}")


@audit.command(
    cls=Command, epilog="Example: twinset audit canaries reviews.csv --policies uniform,none"
)
@takes(*ANY_POLICY)
def canaries(
    data: Data,
    *,
    given: dict[str, Any],
    policies: Policies = "uniform,none",
    copies: Annotated[str, typer.Option(help="How often each secret is planted.")] = "0,1,10,100",
    each: Annotated[
        int, typer.Option(help="Secrets for each number of copies.", **SECRETS.limits)
    ] = 3,
    digits: Annotated[
        int, typer.Option(help="Digits of a secret. With 3 also names.", **LENGTHS.limits)
    ] = 3,
    coins: Annotated[
        int, typer.Option(help="Canaries that a coin includes, to bound ε.", **CANARIES.limits)
    ] = 200,
    rows: Annotated[int, typer.Option(help="Rows per twin.", **ROWS.limits)] = 500,
    test: Test = None,
    output: Annotated[
        Path, typer.Option(help="JSON file for the results. The same command resumes from it.")
    ] = Path("canaries.json"),
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Plant secrets, train with each policy, and try to extract them."""
    from twinset.commandline.console import Console

    config, source = run_config(run_options(given), any_policy=True), source_of(data, given)
    numbers = tuple(map(int, _parse_numbers("`copies`", copies, PLANTED, is_whole=True)))
    check_output(output)
    with Console(quiet) as progress:
        from .leakage.audits import CanaryRequest, audit_canaries
        from .policy_runs import ComparisonRequest

        table = ComparisonRequest(source, listed(policies), 1, rows, test)
        request = CanaryRequest(table, numbers, each, digits, coins)
        findings = audit_canaries(request, config, output, shell_line("twinset"), progress)
    _show_findings(findings, as_json)
    _say_where(KeptFindings(output))


def show_first_verdict(result: Result, source: Source, device: str) -> None:
    """Print to stderr, for the owner alone, how good a twin is. No run fails because of it."""
    from twinset.commandline.console import Console

    from .evaluate import judge_finished_run

    assert result.run is not None
    with Console() as progress:
        try:
            lines = judge_finished_run(result.run, source, progress, device)
        except InputError as error:
            lines = [f"no verdict: {error}"]
        except (KeyboardInterrupt, Stopped):
            lines = [f"no verdict: stopped. The run is finished: {result.run}"]
        for line in lines:
            is_command = line.startswith(" ")  # to be pasted, so it is not broken
            progress.say(line if is_command else fill(line, 80, subsequent_indent=" " * 22))


def _parse_numbers(
    option: str, text: str, bounds: Bounds, is_whole: bool = False
) -> tuple[float, ...]:
    """Return the numbers of "1,2,4", or refuse anything that is not a number within bounds."""
    try:
        kind = int if is_whole else float
        found = dict.fromkeys(map(kind, text.split(",")))
    except ValueError:
        raise InputError(f"{option}: cannot be read. Write numbers as 1,2,4.") from None
    for number in found:
        check_number(option, number, bounds, is_whole)
    return tuple(found)


def _open_findings(of_run: Path | None, output: Path | None) -> KeptFindings:
    """Return the file for findings: `output`, or the run's own file, or none."""
    if output is not None:
        check_output(output)
    return KeptFindings(of_run if output is None else output)


def _say_where(kept: KeptFindings) -> None:
    """Say where findings are kept, if they are, and where the earlier ones are."""
    from twinset.commandline.console import Screen

    said = Screen(stderr=True)
    if kept.path is not None:
        said.print(f"kept in {kept.path}")
    if kept.earlier is not None:
        said.print(f"the earlier findings are in {kept.earlier}")


def _show_findings(findings: Findings, as_json: bool) -> None:
    """Print findings: notes, and for each question a short table and a conclusion.

    A table has a row for each measure and place, and a column for what differs.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from twinset.commandline.console import Screen

    from .fidelity.columns import MEASURES
    from .report.verdicts import judge

    if as_json:
        return show(findings.to_dict(), (), as_json)
    console = Screen()
    for note in findings.notes:
        console.print(Text(f"note: {with_flags(note)}"))
    for question, title in TITLES.items():
        # Scores of each label, column and pair are for the report alone.
        found = [m for m in findings.of(question) if not m.part]
        if not found:
            continue
        across = _ACROSS[question]
        apart = [m for m in found if m.score.name in MEASURES]
        texts = [m for m in found if m.score.name not in MEASURES]
        for heading, some in ((title, texts), (OTHERS, apart)):
            columns = list(dict.fromkeys(m.place.get(across, "") for m in some))
            cells: dict[tuple[str, str], dict[str, str]] = {}
            for m in some:
                place = (
                    f"{value} {dimension}" if value.isdecimal() else value  # alone it says nothing
                    for dimension, value in m.place.items()
                    if dimension not in (across, *_LONG)
                )
                row = cells.setdefault((m.score.name, ", ".join(place)), {})
                row[m.place.get(across, "")] = format_short(m.score)
            table = Table(title=heading, box=box.SIMPLE_HEAD, title_justify="left")
            table.pad_edge = False
            table.add_column("measure")
            table.add_column("of")
            for name in columns:
                table.add_column(Text(name or "value"), justify="right", no_wrap=not across)
            for head, row in cells.items():
                table.add_row(*map(Text, (*head, *(row.get(column, "") for column in columns))))
            if some:
                console.print(table)
        verdict = judge(question, findings.of(question))
        console.print(Text(f"{verdict.question} {verdict.answer}: {verdict.line}.\n", "bold"))
    return None


def format_short(score: Score) -> str:
    """Return a score and the longer half of its interval, or what is known without one.

    >>> format_short(Score("accuracy", 0.71, 0.68, 0.73, "maximise", 0.0, 1.0, 800))
    '0.71 ±0.03'
    """
    half = max(score.high - score.value, score.value - score.low)
    if not math.isfinite(half):
        most = f", of at most {score.maximum:.2f}" if math.isfinite(score.maximum) else ""
        return f"{score.value:.2f} or more{most}"
    # An interval as wide as a fifth of what is possible, to either side, says nothing.
    possible = score.maximum - score.minimum
    says_nothing = half >= possible / 5 if math.isfinite(possible) else half >= abs(score.value) > 0
    return TOO_FEW if says_nothing else f"{score.value:.2f} ±{half:.2f}"
