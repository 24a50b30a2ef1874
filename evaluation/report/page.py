"""The report: one file that needs nothing else, made from a run folder and what was measured.

It holds numbers computed from private rows and, on request, private rows: it stays in `internal/`.
Every text on it is escaped, and its own policy forbids scripts and requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from evaluation.report.charts.numbers import power
from evaluation.report.charts.svg import visible
from evaluation.report.making import noise_map, training_figures
from evaluation.report.reading import Run, read_run
from evaluation.report.rows import Sample, longest_column, sample_rows
from evaluation.report.sections import about, sections
from evaluation.report.tables import all_scores
from evaluation.report.verdicts import faithful, leaking, useful
from twinset.data.formats import read_frame
from twinset.errors import InputError
from twinset.files.atomic import write_text, writing
from twinset.pipeline.run_folder import is_run
from twinset.privacy.accounting.rounding import up_decimals, up_digits
from twinset.privacy.statement.guarantee import guarantee

if TYPE_CHECKING:
    from pandas import DataFrame

REPORT = "report.html"
STALE = "{}: measured before the twin was sampled anew; run the command once more"


def write_report(run: Path, show_real: Path | None = None) -> Path:
    """Write `internal/report.html`, whole or not at all, and return where it is.

    Args:
        run: the run folder.
        show_real: a private table, a few rows of which are to be shown.

    Raises:
        InputError: this is no run; see `build_report`; the table cannot be read; or the disk
            refuses.
    """
    if not is_run(run):
        raise InputError(f"{run}: no such run folder; give one that `twinset generate` made")
    real = {} if show_real is None else {show_real.name: read_frame(show_real)}
    page = build_report(run, show_real=real)
    path = run / "internal" / REPORT
    with writing(path):
        path.parent.mkdir(mode=0o700, exist_ok=True)  # of a run that was handed over
    write_text(path, page)
    return path


def build_report(run: Path, *, show_real: Mapping[str, DataFrame] | None = None) -> str:
    """Return the page of a run. What is not there yet is said, with the command that makes it.

    Args:
        run: the run folder.
        show_real: private tables by name, a few rows of which are to be shown.

    Raises:
        InputError: there is no such folder, or a file in it is not what it should be.
    """
    found = read_run(run)
    return _template().render(
        css=Markup(_resource("page.css")),
        run=found,
        claim=guarantee(found.ledger) if found.ledger else None,
        verdicts=[
            useful(found.measured("utility")),
            faithful(found.measured("fidelity")),
            leaking(found.measured("leakage")),
        ],
        notes=[*map(STALE.format, found.stale), *found.notes],
        sections=list(sections(found)),
        training=training_figures(found.steps, found.ledger),
        noise=noise_map(found.noise),
        samples=_samples(found, show_real or {}),
        scores=all_scores(m for f in found.findings.values() for m in f.measured),
        about={kind: about(findings) for kind, findings in found.findings.items()},
    )


def _samples(run: Run, show_real: Mapping[str, DataFrame]) -> list[Sample]:
    twin = run.twin if run.twin is not None and len(run.twin) else None
    text = longest_column(twin) if twin is not None else None
    made = [] if twin is None else [sample_rows("the twin", twin, text)]
    for name, real in show_real.items():
        shared = real if twin is None else real[[c for c in twin.columns if c in real.columns]]
        made.append(sample_rows(name, shared, text, is_private=True))
    return made


def _template() -> Any:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"decimals": up_decimals, "scientific": lambda x: power(up_digits(x))}
    return environment.from_string(_resource("page.html.jinja"))


def _finalize(value: Any) -> Any:
    return visible(value) if isinstance(value, str) else value


def _resource(name: str) -> str:
    return files("evaluation.report").joinpath(name).read_text("utf-8")
