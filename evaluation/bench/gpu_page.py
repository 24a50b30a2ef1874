"""The page of what `make gpu` found: each goal beside what was measured, and then every row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from evaluation.bench.gpu_run import Work
from evaluation.markdown import facts, page, table

STEPS, ROWS, RUN, FAILED = "steps", "rows", "run", "failed tests"
OURS, PLAIN, HUGGING_FACE = WAYS = ("ours", "without privacy", "Hugging Face")
PEERS = ("opacus-ghost", "fastdp")
NOISES = ("noise", "noise, moved", "torch.randn")
LARGEST, WIDEST = "gpt2-1558m", "32 512"
NOT_RUN = "not run"
ENGINES = {"torch": "rows a second", "compiled": "compiled"}  # as the page has them
WRITTEN = {"rows": 512, "tokens": 64, "at once": 256}
ABOUT = (
    "Random weights, bfloat16: frozen weights in it, weights that are all trained under "
    "autocast. Medians of seconds; a private step has its noise in it, and clips each unit. "
    "`without privacy` has the same kernels, `Hugging Face` its own loss. GB: the peak of the "
    "private step, model included. `noise, moved`: the processor's, there and back, "
    "of 16 million numbers at most, and scaled."
)
NOT_YET = [
    "Not run whole yet: a GPU was had for 15 minutes, which "
    "[went elsewhere](../../../docs/scaling.md#a-gpu). This installs nothing and fills this page:",
    "",
    "    make gpu    # needs a GPU",
]


def markdown(found: dict[str, Any]) -> str:
    """Return the page of the results; of none, the page that says so."""
    if not found:
        return page("On a GPU", NOT_YET, _goals(found))
    return page(
        "On a GPU", [ABOUT], _goals(found), facts(found, STEPS, ROWS, RUN, FAILED), *_tables(found)
    )


def _tables(found: dict[str, Any]) -> list[list[str]]:
    columns = (*WAYS, *PEERS, *NOISES, "trained", "GB")
    steps = table(["model, method, units, tokens", *columns], _cells(found.get(STEPS, []), columns))
    written = ", ".join(f"{name}: {number}" for name, number in WRITTEN.items())
    rows = [f"rows ({written})", *ENGINES.values()]
    failed = [f"- {test}" for test in found.get(FAILED, [])]
    return [steps, table(rows, _cells(found.get(ROWS, []), rows[1:])), failed]


def _goals(found: dict[str, Any]) -> list[str]:
    """Return the table of goals: what was measured, and of several cases the span."""
    cases, run = found.get(STEPS, []), found.get(RUN, {})
    steps = [row for row in cases if OURS in row]
    large = [row for row in cases if row["case"].startswith(LARGEST) and WIDEST in row["case"]]
    fit = [f"{row['case']}: {'no' if 'failed' in row else 'yes'}" for row in large]
    failure, unknown = run.get("failed"), "nvidia-smi said nothing" if "minutes" in run else None
    rows = {
        "a private step, of the same kernels without privacy: ≤ 1.15×": _span(
            [row[OURS] / row[PLAIN] for row in steps], "{:.2f}×"
        ),
        "a private step, of Hugging Face's: ≤ 1.0×": _span(
            [row[OURS] / row[HUGGING_FACE] for row in steps], "{:.2f}×"
        ),
        "GPT-2 of 1.5 billion weights, LoRA and full, 32×512: fits": "; ".join(fit),
        "noise: ≤ 3 % of a step": _span([row["noise"] / row[OURS] for row in steps], "{:.1%}"),
        f"minutes of a run ({Work()}): ≤ 5": _only(run, "minutes", "{:.1f}") or failure,
        "of them the GPU is busy: ≥ 80 %": _only(run, "busy", "{:.0%}") or failure or unknown,
    }
    return table(["goal", "measured"], [[goal, got or NOT_RUN] for goal, got in rows.items()])


def _only(row: dict[str, Any], name: str, form: str) -> str:
    return form.format(row[name]) if name in row else ""


def _span(numbers: Sequence[float], form: str) -> str:
    """Return the least and the most; nothing of none.

    >>> _span([1.5, 1.25], "{:.1f}"), _span([2], "{:.1f}"), _span([], "{:.1f}")
    ('1.2 to 1.5', '2.0', '')
    """
    ends = dict.fromkeys(form.format(of(numbers)) for of in (min, max)) if numbers else ()
    return " to ".join(ends)


def _cells(rows: Iterable[dict[str, Any]], columns: Sequence[str]) -> list[list[str]]:
    return [
        [row["case"], *([row["failed"], *[""] * (len(columns) - 1)] if "failed" in row else shown)]
        for row in rows
        for shown in [[_cell(row[name]) for name in columns if name in row]]
    ]


def _cell(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"
