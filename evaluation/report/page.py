"""The report: one file that needs nothing else, made from a run folder and what was measured.

It holds numbers computed from private rows and, on request, private rows: it stays in `internal/`.
Every text on it is escaped. Its own policy forbids requests and every script but one, by its hash.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from evaluation.findings import Question
from evaluation.report.charts.svg import visible
from evaluation.report.figures import headline_figure
from evaluation.report.handing_over import may_hand_over
from evaluation.report.making import is_untrained, noise_map, training_figures
from evaluation.report.meanings import MISSING
from evaluation.report.reading import Run, read_run
from evaluation.report.rows import (
    MOST_ROWS,
    SHOWN,
    Row,
    Sample,
    beside,
    longest_column,
    sample_rows,
)
from evaluation.report.sections import about, sections
from evaluation.report.tables import all_scores
from evaluation.report.verdicts import faithful, leaking, useful
from twinset import __version__
from twinset.commandline.entry_point import with_flags
from twinset.errors import InputError
from twinset.files.atomic import write_text, writing
from twinset.privacy.accounting.accountant import up_decimals, up_digits
from twinset.privacy.statement.guarantee import belief_sentence, guarantee
from twinset.run.run_folder import is_run
from twinset.table.read import read_frame

if TYPE_CHECKING:
    from pandas import DataFrame

REPORT = "report.html"
_HEADLINES: dict[Question, str] = {  # a question, and the findings that answer it
    "utility": "evaluation",
    "fidelity": "evaluation",
    "leakage": "audit",
}
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
    claim = guarantee(found.ledger) if found.ledger else None
    is_useful = useful(found.measured("utility"))
    leaks = leaking(found.measured("leakage"))
    script = _resource("search.js")
    return _template().render(
        css=Markup(_resource("page.css")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        run=found,
        facts=_facts(found),
        claim=claim,
        belief=belief_sentence(claim) if claim else None,
        handing_over=may_hand_over(claim, is_useful, leaks),
        verdicts=[is_useful, faithful(found.measured("fidelity")), leaks],
        headlines=_headlines(found),
        notes=[*map(STALE.format, found.stale), *map(with_flags, found.notes)],
        sections=list(sections(found)),
        training=training_figures(found.steps, found.ledger),
        is_untrained=is_untrained(found.ledger),
        noise=noise_map(found.noise),
        pairs=_pairs(found),
        shown=SHOWN,
        private=_private(found, show_real or {}),
        scores=all_scores(m for f in found.findings.values() for m in f.measured),
        about={kind: about(findings) for kind, findings in found.findings.items()},
    )


def _headlines(run: Run) -> list[tuple[Any, dict[str, str], int]]:
    """Return each question's figure, or else what is missing, once for all columns it is for."""
    made = [
        (headline_figure(question, run.measured(question)), kind)
        for question, kind in _HEADLINES.items()
    ]
    columns = Counter(kind for figure, kind in made if figure is None)
    return [
        (figure, MISSING[kind], columns[kind])
        for place, (figure, kind) in enumerate(made)
        if figure or (None, kind) not in made[:place]
    ]


def _facts(run: Run) -> list[str]:
    """Say what the twin is: rows, base, date, version."""
    rows = None if run.twin is None else f"{len(run.twin):,} rows"
    base = run.base_model and f"written by {run.base_model}"
    day = run.written and f"{run.written:%d %B %Y}".lstrip("0")
    return [fact for fact in (rows, base, day, f"twinset {__version__}") if fact]


def _pairs(run: Run) -> list[tuple[Row, str | None]]:
    if run.twin is None or not len(run.twin):
        return []
    text = longest_column(run.twin)
    return beside(sample_rows("the twin", run.twin, text, MOST_ROWS), run.base, text)


def _private(run: Run, show_real: Mapping[str, DataFrame]) -> list[Sample]:
    twin = run.twin if run.twin is not None and len(run.twin) else None
    text = None if twin is None else longest_column(twin)
    made = []
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
    environment.filters |= {"decimals": up_decimals, "scientific": _scientific}
    return environment.from_string(_resource("page.html.jinja"))


def _finalize(value: Any) -> Any:
    return visible(value) if isinstance(value, str) else value


def _scientific(value: float) -> Markup:
    """Return a rounded-up number whose exponent is raised by mark-up, in the font of the rest.

    >>> _scientific(2.5e-7)
    Markup('2.5 × 10<sup>−7</sup>')
    """
    mantissa, mark, exponent = up_digits(value).partition("e")
    if not mark:
        return Markup(mantissa)
    factor = "" if mantissa == "1" else f"{mantissa} × "
    return Markup("{}10<sup>{}</sup>").format(factor, f"{int(exponent)}".replace("-", "−"))


def _resource(name: str) -> str:
    return files("evaluation.report").joinpath(name).read_text("utf-8")
