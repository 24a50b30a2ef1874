"""The report: one file that needs nothing else, made from a run folder and what was measured.

It holds numbers computed from private rows and, on request, private rows. So it stays in
`internal/`. Every text on it is escaped. Its own policy forbids requests and every script except
one, by its hash. Nothing here measures or judges.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from markupsafe import Markup

from evaluation.findings import Findings, Measured, Question
from evaluation.policy_runs import BASELINE_FILE
from evaluation.report.charts import replace_unseen
from evaluation.report.figures import (
    draw_headline,
    draw_section,
    draw_training,
    find_undrawn,
    map_noise,
)
from evaluation.report.tables import (
    MISSING,
    SECTIONS,
    list_by_label,
    list_scores,
    list_single_scores,
)
from evaluation.report.verdicts import judge_fidelity, judge_hand_over, judge_leakage, judge_use
from twinset import __version__
from twinset.commandline.entry_point import with_flags
from twinset.errors import DAMAGED, InputError
from twinset.files.atomic import sha256_file, write_text, writing
from twinset.files.limits import read_text
from twinset.privacy.accounting.accountant import up_decimals, up_digits
from twinset.privacy.accounting.events import GaussianRelease
from twinset.privacy.statement.guarantee import belief_sentence, guarantee
from twinset.privacy.statement.ledger import Ledger
from twinset.release.share import LEDGER, PRIVACY, check_file_format
from twinset.run.run_folder import SETTINGS, is_run
from twinset.table.read import format_of, read_frame

if TYPE_CHECKING:
    from pandas import DataFrame

REPORT = "report.html"
SHOWN, MOST_ROWS, MOST_LETTERS = 20, 200, 700  # rows at once, rows in all, letters of a cell
# Which findings answer a question. Canaries are planted in other runs than this one.
_FOUND_BY: dict[Question, tuple[str, ...]] = {
    "utility": ("evaluation",),
    "fidelity": ("evaluation",),
    "leakage": ("audit", "canaries"),
}
STALE = "{}: measured before the twin was sampled anew; run the command once more"

Row = tuple[dict[str, str], str]  # short cells by column, and the longest text
Parsed = TypeVar("Parsed")


@dataclass(frozen=True)
class Run:
    """What is known of a run. Whatever is not there is None or empty.

    Args:
        name: of the folder.
        ledger: what was spent.
        steps: figures of each training step.
        noise: by parameter, the mean factor of what `uniform` draws.
        twin: its rows.
        base: what the base model wrote without private data, for the same labels.
        base_model: what the user called it.
        written: the day on which the twin was written.
        findings: by kind, what was measured.
        stale: kinds that were measured on other rows than those that are there now.
    """

    name: str
    ledger: Ledger | None = None
    steps: tuple[dict[str, Any], ...] = ()
    noise: dict[str, float] = field(default_factory=dict)
    twin: DataFrame | None = None
    base: DataFrame | None = None
    base_model: str | None = None
    written: date | None = None
    findings: dict[str, Findings] = field(default_factory=dict)
    stale: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: Path) -> Run:
        """Read a run folder.

        Raises:
            InputError: there is no such folder, or a file in it is not what it should be.
        """
        if not path.is_dir():
            raise InputError(f"{path}: no such run folder; give one that `twinset generate` made")
        for file in (path / "model" / LEDGER, path / "share" / PRIVACY):
            check_file_format(file)
        internal = path / "internal"
        kinds = {kind: internal / f"{kind}.json" for kind in ("evaluation", "audit", "canaries")}
        findings = {kind: Findings.load(file) for kind, file in kinds.items() if file.is_file()}
        twin = next((file for file in sorted(path.glob("share/twin.*")) if format_of(file)), None)
        base = internal / BASELINE_FILE
        digest = None if twin is None else sha256_file(twin)
        return cls(
            name=path.resolve().name,
            ledger=_parse(
                path / "share" / PRIVACY, lambda text: Ledger.from_dict(json.loads(text)["ledger"])
            ),
            steps=_parse(
                internal / "metrics.jsonl",
                lambda text: tuple(dict(json.loads(s)) for s in text.splitlines() if s.strip()),
            )
            or (),
            noise=_parse(
                internal / "noise.json",
                lambda text: {name: float(factor) for name, factor in json.loads(text).items()},
            )
            or {},
            twin=None if twin is None else read_frame(twin),
            base=read_frame(base) if base.is_file() else None,
            base_model=_parse(
                internal / SETTINGS, lambda text: str(json.loads(text)["training"]["base_model"])
            ),
            written=None if twin is None else date.fromtimestamp(twin.stat().st_mtime),
            findings=findings,
            stale=tuple(
                kind
                for kind, found in findings.items()
                if digest and found.about.get("twin_sha256", digest) != digest
            ),
        )

    def measured(self, question: Question) -> list[Measured]:
        """Return the scores that help to answer a question."""
        return [m for findings in self.findings.values() for m in findings.of(question)]


def write_report(run: Path, show_real: Path | None = None) -> Path:
    """Write `internal/report.html`, whole or not at all, and return where it is.

    Args:
        run: the run folder.
        show_real: a private table of which a few rows are to be shown.

    Raises:
        InputError: this is no run, the table cannot be read, or the disk refuses. See
            `build_report`.
    """
    if not is_run(run):
        raise InputError(f"{run}: no such run folder; give one that `twinset generate` made")
    real = {} if show_real is None else {show_real.name: read_frame(show_real)}
    page = build_report(run, show_real=real)
    path = run / "internal" / REPORT
    with writing(path):
        path.parent.mkdir(mode=0o700, exist_ok=True)  # a run that was handed over has none
    write_text(path, page)
    return path


def build_report(run: Path, *, show_real: Mapping[str, DataFrame] | None = None) -> str:
    """Return the page of a run. What is missing is named with the command that makes it.

    Args:
        run: the run folder.
        show_real: private tables by name, of which a few rows are to be shown.

    Raises:
        InputError: there is no such folder, or a file in it is not what it should be.

    Example::

        page = build_report(Path("runs/reviews"))
    """
    from jinja2 import Environment, StrictUndefined

    found = Run.read(run)
    claim = guarantee(found.ledger) if found.ledger else None
    events = found.ledger.events if found.ledger else []
    use = judge_use(found.measured("utility"))
    leaks = judge_leakage(found.measured("leakage"))
    script = _resource("search.js")
    everything = [m for findings in found.findings.values() for m in findings.measured]
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: replace_unseen(value) if isinstance(value, str) else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    rows = None if found.twin is None else f"{len(found.twin):,} rows"
    base = found.base_model and f"written by {found.base_model}"
    day = found.written and f"{found.written:%d %B %Y}".lstrip("0")
    number = count()
    environment.filters |= {
        "decimals": up_decimals,
        "scientific": format_scientific,
        # One picture may stand on the page twice, and ids may not.
        "numbered": lambda svg: Markup(str(svg).replace("picture-", f"p{next(number)}-")),
    }
    return environment.from_string(_resource("page.html.jinja")).render(
        css=Markup(_resource("page.css")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        run=found,
        facts=[fact for fact in (rows, base, day, f"twinset {__version__}") if fact],
        claim=claim,
        belief=belief_sentence(claim) if claim else None,
        handing_over=judge_hand_over(claim, use, leaks),
        verdicts=[use, judge_fidelity(found.measured("fidelity")), leaks],
        headlines=_draw_headlines(found),
        notes=[
            *map(STALE.format, found.stale),
            *(with_flags(note) for findings in found.findings.values() for note in findings.notes),
        ],
        sections=[
            {
                "anchor": question,
                **SECTIONS[question],
                "figures": list(draw_section(question, list(found.findings.values()))),
                "tables": list_by_label(found.measured(question)),
                "single": list_single_scores(find_undrawn(found.measured(question))),
                "missing": [MISSING[kind] for kind in kinds if kind not in found.findings],
            }
            for question, kinds in _FOUND_BY.items()
        ],
        training=draw_training(found.steps, found.ledger),
        # A run that took no step has released everything once, or nothing at all.
        is_untrained=bool(events) and all(isinstance(e, GaussianRelease) for e in events),
        noise=map_noise(found.noise),
        pairs=_pair_rows(found),
        shown=SHOWN,
        private=_sample_private(found, show_real or {}),
        scores=list_scores(everything),
        about={kind: list(_flatten(each.about)) for kind, each in found.findings.items()},
    )


def format_scientific(value: float) -> Markup:
    """Return a rounded-up number whose exponent is raised by mark-up, in the font of the rest.

    >>> format_scientific(2.5e-7)
    Markup('2.5 × 10<sup>−7</sup>')
    """
    mantissa, mark, exponent = up_digits(value).partition("e")
    if not mark:
        return Markup(mantissa)
    factor = "" if mantissa == "1" else f"{mantissa} × "
    return Markup("{}10<sup>{}</sup>").format(factor, f"{int(exponent)}".replace("-", "−"))


def sample_rows(frame: DataFrame, text: str | None, most: int = SHOWN) -> list[Row]:
    """Draw a few different rows by a fixed seed: always the same of the same table.

    Args:
        frame: the table.
        text: the column of texts. None: the one with the longest cells.
        most: rows.
    """
    shown = frame.astype(str).drop_duplicates()  # a twin may say the same twice
    drawn = shown.sample(min(most, len(shown)), random_state=0)
    column = text if text in frame.columns else find_longest_column(drawn)
    rows = []
    for row in drawn.to_dict("records"):
        cells = {
            str(name): cell if len(cell) <= MOST_LETTERS else cell[:MOST_LETTERS].rstrip() + " …"
            for name, cell in row.items()
        }
        rows.append((cells, cells.pop(str(column), "")))
    return rows


def find_longest_column(frame: DataFrame) -> str | None:
    """Return the column whose cells are longest, or None if there is no column."""
    lengths = {name: sum(len(str(v)) for v in frame[name]) for name in frame.columns}
    return max(lengths, key=lambda name: lengths[name], default=None)


def _draw_headlines(run: Run) -> list[tuple[Any, dict[str, str], int]]:
    """Return each question's figure, or else what is missing, once for all columns it is for."""
    made = [
        (draw_headline(question, run.measured(question)), kinds[0])
        for question, kinds in _FOUND_BY.items()
    ]
    columns = Counter(kind for figure, kind in made if figure is None)
    return [
        (figure, MISSING[kind], columns[kind])
        for place, (figure, kind) in enumerate(made)
        if figure or (None, kind) not in made[:place]
    ]


def _pair_rows(run: Run) -> list[tuple[Row, str | None]]:
    """Put a text of the base model next to each of the twin's rows: of the same labels, each once.

    Both are samples. The base model's texts show what no private data would have given.
    """
    if run.twin is None or not len(run.twin):
        return []
    text = find_longest_column(run.twin)
    waiting: dict[str, list[str]] = {}
    if run.base is not None and len(run.base):
        for cells, words in sample_rows(run.base, text, len(run.base)):
            waiting.setdefault(repr(sorted(cells.items())), []).append(words)
    # Of each combination of labels the base model's texts are given out in turn.
    paired = []
    for cells, words in sample_rows(run.twin, text, MOST_ROWS):
        others = waiting.get(repr(sorted(cells.items())))
        paired.append(((cells, words), others.pop(0) if others else None))
    return paired


def _sample_private(run: Run, show_real: Mapping[str, DataFrame]) -> list[dict[str, Any]]:
    """Return rows of private tables that somebody asked for, with the twin's columns only."""
    twin = run.twin if run.twin is not None and len(run.twin) else None
    text = None if twin is None else find_longest_column(twin)
    made = []
    for name, real in show_real.items():
        shared = real if twin is None else real[[c for c in twin.columns if c in real.columns]]
        made.append({"name": name, "rows": sample_rows(shared, text), "total": len(real)})
    return made


def _flatten(about: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Yield how findings were made, as pairs of words."""
    for key, value in about.items():
        name = f"{above} {key}".strip()
        if isinstance(value, Mapping):
            yield from _flatten(value, name)
        elif isinstance(value, list | tuple):
            yield name, ", ".join(map(str, value))
        else:
            yield name, "none" if value is None else str(value)


def _parse(path: Path, parse: Callable[[str], Parsed]) -> Parsed | None:
    """Return what a file of the run holds, or None if it is not there."""
    if not path.is_file():
        return None
    try:
        return parse(read_text(path))
    except DAMAGED as error:
        raise InputError(
            f"{path}: is damaged ({type(error).__name__}); restore it, or take it away"
        ) from error


def _resource(name: str) -> str:
    return files("evaluation.report").joinpath(name).read_text("utf-8")
