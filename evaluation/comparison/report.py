"""The comparison of noise policies to be read: a table for terminal and Markdown, and a figure.

Computed on private rows, all of it: it stays with their owner. Knows nothing of training.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluation.comparison.results import REAL_ROWS, Measure, PolicyResults, PolicyRun, exposed
from evaluation.findings import Score
from evaluation.leakage.canaries import COPIES, EACH
from evaluation.leakage.exposure import EXACT, UNKNOWN
from evaluation.private_table import BASELINE
from evaluation.results import markdown_table
from twinset.privacy.accounting.accountant import up_decimals, up_digits
from twinset.release.markdown import bullets, code, plain

if TYPE_CHECKING:
    from rich.table import Table

REFERENCES = (REAL_ROWS, BASELINE)
_PANEL_COLUMNS = 2


def as_table(results: PolicyResults) -> Table:
    """Return a table for the terminal: a block for each measure, as a wide one does not fit."""
    from rich import box
    from rich.table import Table

    notes = "\n".join(_notes(results))
    table = Table(title=_title(results), caption=notes, caption_justify="left", box=box.SIMPLE_HEAD)
    for name in ("measure", "policy"):
        table.add_column(name, no_wrap=True)
    for name in ("mean", "95 % interval", "seeds"):
        table.add_column(name, justify="right", no_wrap=True)
    for title, block in _blocks(results):
        for left, cells in enumerate(block, start=1 - len(block)):
            table.add_row(title, *cells, end_section=left == 0)
            title = ""  # stands once, above its block
    return table


def _blocks(results: PolicyResults) -> Iterator[tuple[str, list[list[str]]]]:
    for measure in results.measures:
        scores = ((name, results.score(name, measure)) for name in results.names)
        taken = [[name, *_digits(measure, s), str(s.n)] for name, s in scores if s]
        yield measure.name, taken
    spent = ((name, *_spent(results.runs(name))) for name in results.names)
    yield "ε", [[name, epsilon, "", ""] for name, epsilon, _ in spent if epsilon]


def as_markdown(results: PolicyResults) -> str:
    """Return the same table in Markdown, with the guarantees and what made it."""
    header = ["policy", "seeds", "ε", "δ", *(m.name for m in results.measures), "training, s"]
    stated = {
        f"{plain(name)}: {plain(run.guarantee)}": None
        for name in results.names
        for run in results.runs(name)
        if run.guarantee
    }
    parts = (
        [f"**{plain(_title(results))}**"],
        markdown_table(header, [_cells(results, name) for name in results.names]),
        bullets(map(plain, _notes(results))),
        ["Guarantees:"],
        bullets(stated),
        [
            *bullets(f"{plain(k)}: {plain(v)}" for k, v in results.settings["about"].items()),
            *bullets(f"command: {code(command)}" for command in results.commands),
        ],
    )
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _title(results: PolicyResults) -> str:
    facts = results.facts
    return (
        f"{facts['data']}: noise policies on {facts['train']} training rows, "
        f"{facts['held out']} held out"
    )


def _cells(results: PolicyResults, name: str) -> list[str]:
    runs = results.runs(name)
    found = [(m, results.score(name, m)) for m in results.measures]
    scores = (" ".join(_digits(m, score)).strip() if score else "" for m, score in found)
    seconds = _mean_seconds(runs, "fine-tuning")
    return [name, str(len(runs)), *_spent(runs), *scores, f"{seconds:.0f}" if seconds else ""]


def _digits(measure: Measure, score: Score) -> tuple[str, str]:
    """Return the mean and, of several seeds, its interval."""
    mean, low, high = (f"{v:.{measure.digits}f}" for v in (score.value, score.low, score.high))
    return mean, "" if score.n == 1 else f"[{low}, {high}]"


def _spent(runs: list[PolicyRun]) -> tuple[str, str]:
    """Return ε, rounded up, and δ: the largest of the runs; nothing where none was trained."""
    if not any(run.guarantee for run in runs):
        return "", ""
    epsilons, deltas = [run.epsilon for run in runs], [run.delta for run in runs]
    if None in epsilons or None in deltas:
        return "none", "none"
    epsilon, delta = max(e for e in epsilons if e), max(d for d in deltas if d)
    return up_decimals(epsilon), up_digits(delta)


def _mean_seconds(runs: list[PolicyRun], phase: str) -> float:
    taken = [run.seconds[phase] for run in runs if phase in run.seconds]
    return sum(taken) / len(taken) if taken else 0.0


def _notes(results: PolicyResults) -> Iterator[str]:
    facts = results.facts
    yield "Computed on private rows: stays with their owner. Only twins may be handed over."
    yield (
        "Mean and 95 % t interval over the seeds, which change training, noise, sampling and "
        "canaries; the held-out rows are the same for all. One seed has no interval."
    )
    yield (
        f"Labels predicted: {facts['target']}. Each twin has {facts['rows']} rows. Label fidelity "
        f"is judged by classifiers of {facts['judge rows']} real training rows. The row of real "
        "data has as many training rows as a twin; its label fidelity is the judges' accuracy on "
        f"the held-out rows, which a perfect twin would reach. The rows of “{BASELINE}” have the "
        "labels of the real rows in their true shares, and nothing else of them."
    )
    yield (
        f"Exposure in bits: {EXACT} among |R| = {facts['space']} secrets behind the canary's own "
        f"prompt; mean of {EACH} canaries planted {' and '.join(map(str, COPIES))} times, in all "
        f"{facts['planted']} rows beside the training rows. "
        f"{UNKNOWN:.2f} is what an ignorant model has on average, "
        f"{math.log2(facts['space']):.2f} the most."
    )
    yield (
        f"Held-out perplexity: {facts['perplexity rows']} held-out rows. Held-out texts that are "
        f"training texts too: {facts['coinciding']}."
    )
    yield f"Mean seconds of a run: {'; '.join(_phases(results))}."


def _phases(results: PolicyResults) -> Iterator[str]:
    for name in results.names:
        runs = results.runs(name)
        phases = dict.fromkeys(phase for run in runs for phase in run.seconds)
        spent = ", ".join(f"{phase} {_mean_seconds(runs, phase):.0f}" for phase in phases)
        yield f"{name}: {spent}"


def write_figure(results: PolicyResults, path: Path) -> None:
    """Draw a panel for each measure: a line for each policy with mean, interval and every seed."""
    from matplotlib.figure import Figure

    lines = -(-len(results.measures) // _PANEL_COLUMNS)
    height = 0.9 + 0.32 * len(results.names)
    figure = Figure(figsize=(10, 0.5 + lines * height), layout="constrained")
    panels = figure.subplots(lines, _PANEL_COLUMNS, squeeze=False, sharey=True).flatten()
    for panel, measure in zip(panels, results.measures, strict=False):
        _draw(panel, results, measure)
    for panel in panels[len(results.measures) :]:
        panel.set_visible(False)
    figure.suptitle(f"{_title(results)} (mean, 95 % t interval, seeds)", fontsize=10)
    figure.savefig(path, dpi=150)


def _draw(panel: Any, results: PolicyResults, measure: Measure) -> None:
    for place, name in enumerate(results.names):
        score, colour = results.score(name, measure), "0.45" if name in REFERENCES else "C0"
        if score is None:
            continue
        seeds = results.values(name, measure)
        panel.plot(seeds, [place + 0.25] * len(seeds), "|", color=colour, markersize=5)
        if score.n > 1:
            panel.plot([score.low, score.high], [place, place], color=colour, linewidth=1.5)
        panel.plot(score.value, place, "o", color=colour, markersize=6)
    if measure.name in map(exposed, COPIES):
        panel.axvline(UNKNOWN, color="0.6", linestyle=":", linewidth=1)
        panel.set_xlim(0, 1.03 * measure.maximum)
    panel.set_yticks(range(len(results.names)), results.names, fontsize=8)
    panel.set_ylim(len(results.names) - 0.5, -0.5)
    panel.tick_params(axis="x", labelsize=8)
    panel.grid(axis="x", linewidth=0.4)
    better = "higher" if measure.goal == "maximise" else "lower"
    unit = " (bits)" if measure.name in map(exposed, COPIES) else ""
    panel.set_title(f"{measure.name}{unit}: {better} is better", fontsize=9)
