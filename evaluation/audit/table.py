"""`python -m evaluation.audit.table`: every policy and every fault audited many times over.

What README's table of the audit is made of. Made-up data only.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from evaluation.audit.faults import FAULTS
from evaluation.audit.mechanism import Finding, Step, Target, audit_step
from evaluation.audit.neighbours import worst_case
from evaluation.audit.report import MechanismAudit, guaranteed_for_json
from evaluation.command import command_line, run_command
from twinset.artefact import write_json, write_text
from twinset.config import PolicyConfig
from twinset.surroundings import machine, versions

RESULTS = Path(__file__).parent / "results"
POLICIES = (
    PolicyConfig("uniform"),
    PolicyConfig("adaptive"),
    PolicyConfig("selective"),
    PolicyConfig("importance"),
    PolicyConfig("adaptive", "published"),
    PolicyConfig("importance", "published"),
)


@dataclass(frozen=True)
class Line:
    """One experiment, repeated.

    Args:
        case: policy and form, or the fault.
        what: the experiment.
        claimed: ε.
        guaranteed: ε of a theorem, where the claim is nominal; "none" where there is none.
        bounds: lower bounds of ε, one for each repetition.
    """

    case: str
    what: str
    claimed: float
    guaranteed: float | str | None
    bounds: list[float]

    @property
    def held(self) -> int:
        """How often the claim survived."""
        return sum(bound <= self.claimed for bound in self.bounds)


@dataclass(frozen=True)
class Effort:
    """How often, with how many outputs, and at which δ."""

    repetitions: int
    trials: int
    fault_trials: int
    delta: float


def audits(effort: Effort, known: Collection[str]) -> Iterator[Line]:
    """Yield a line for each experiment not known yet: policies in full, faults by a single step."""
    for policy in POLICIES:
        case = f"{policy.noise_policy}, {policy.policy_form}"
        if case not in known:
            audit = MechanismAudit(policy, trials=effort.trials, delta=effort.delta)
            rounds = [audit.run() for _ in range(effort.repetitions)]
            yield from (_line(case, list(found)) for found in zip(*rounds, strict=True))
    for fault, kind in FAULTS.items():
        if f"fault: {fault}" not in known:
            found = [_faulty(kind, effort) for _ in range(effort.repetitions)]
            yield _line(f"fault: {fault}", found)


def _faulty(kind: type[Step], effort: Effort) -> Finding:
    step = kind(worst_case(), Target())
    try:
        return audit_step(step, effort.fault_trials, effort.delta, lambda: None)
    finally:
        step.engine.close()


def _line(case: str, found: list[Finding]) -> Line:
    first = found[0]
    bounds = [f.lower_bound for f in found]
    return Line(case, first.what, first.claimed, guaranteed_for_json(first.guaranteed), bounds)


def as_markdown(lines: list[Line], facts: dict[str, Any]) -> str:
    """Return the table with how it was made."""
    header = (
        "| step | experiment | claimed ε | shown: median, most | claim held | a theorem covers |"
    )
    rows = (
        f"| {line.case} | {line.what} | {line.claimed:.2f} | {median(line.bounds):.2f}, "
        f"{max(line.bounds):.2f} | {line.held} of {len(line.bounds)} | {_theorem(line)} |"
        for line in lines
    )
    made = (
        f"σ = 1, δ = {facts['delta']:g}; lower bounds at 95 % confidence; {facts['trials']:,} "
        f"outputs with the target and as many without, of faults {facts['fault_trials']:,}. "
        f"{facts['machine']['cpu']}; "
        + ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    )
    return "\n".join(
        [
            header,
            "|---|---|---:|---:|---:|---:|",
            *rows,
            "",
            made,
            "",
            f"    {facts['command']}",
            "",
        ]
    )


def _theorem(line: Line) -> str:
    if line.case.startswith("fault"):
        return "nothing"
    stated = line.claimed if line.guaranteed is None else line.guaranteed
    return "nothing" if stated == "none" else f"{stated:.2f}"


app = typer.Typer(add_completion=False)


@app.command()
def main(
    repetitions: Annotated[int, typer.Option(min=1)] = 20,
    trials: Annotated[int, typer.Option(min=100)] = 3000,
    fault_trials: Annotated[int, typer.Option(min=100)] = 20_000,
    delta: float = 0.05,
    output: Path = RESULTS / "mechanism.json",
) -> None:
    """Audit everything many times over: about an hour on one core. Goes on from its output."""
    effort = Effort(repetitions, trials, fault_trials, delta)
    lines = _read(output, effort)
    for line in audits(effort, {line.case for line in lines}):
        lines.append(line)
        typer.echo(f"{line.case}, {line.what}: held {line.held} of {repetitions}", err=True)
    facts = asdict(effort) | {
        "command": command_line("evaluation.audit.table"),
        "versions": versions(),
        "machine": machine(),
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    write_json(output, facts | {"lines": [asdict(line) for line in lines]})
    write_text(output.with_suffix(".md"), as_markdown(lines, facts))


def _read(output: Path, effort: Effort) -> list[Line]:
    """Return the lines that an earlier call wrote; none where its effort was another."""
    if not output.is_file():
        return []
    stored = json.loads(output.read_text("utf-8"))
    same = all(stored.get(name) == value for name, value in asdict(effort).items())
    return [Line(**line) for line in stored["lines"]] if same else []


if __name__ == "__main__":
    run_command(lambda: app(standalone_mode=False))
