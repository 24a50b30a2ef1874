"""The report: one self-contained file, made from a run folder and its measurements.

It holds numbers computed from private rows and, on request, private rows. So it stays in
`internal/`. Every text on it is escaped. Its own policy forbids requests and every script except
one, by its hash. Nothing here measures or judges.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from twinset import __version__
from twinset.commandline.entry_point import with_flags
from twinset.errors import InputError
from twinset.files.atomic import write_text, writing
from twinset.privacy.accounting.accountant import up_decimals, up_digits
from twinset.privacy.accounting.events import (
    RELEASES,
    Event,
    IndividualGaussian,
    SubsampledGaussian,
)
from twinset.privacy.statement.guarantee import belief_sentence, guarantee
from twinset.privacy.statement.ledger import Ledger
from twinset.progress import OUTSIDE, noise_cells
from twinset.run.run_folder import METRICS, SETTINGS, check_ended, is_run
from twinset.table.columns import as_texts
from twinset.table.read import read_frame

from ..findings import Measured, Question, Score
from ..policy_runs import BASELINE_FILE
from ..release import forms_of, parse_file
from . import charts, figures
from .charts import Point, read_template
from .dossier import build_dossier
from .figures import Figure, Table
from .known_run import KnownRun, read_run
from .verdicts import (
    GUESSING,
    MEANINGS,
    format_interval,
    format_number,
    format_score,
    judge,
    judge_hand_over,
    place_in_words,
    sort_rows,
    write_power,
)

if TYPE_CHECKING:
    from pandas import DataFrame

SHOWN, MOST_ROWS, MOST_LETTERS = 20, 200, 700  # rows at once, rows in all, letters of a cell
# Which findings answer a question. Canaries are planted in other runs than this one.
_FOUND_BY: dict[Question, tuple[str, ...]] = {
    "utility": ("evaluation",),
    "fidelity": ("evaluation",),
    "leakage": ("audit", "canaries"),
}
STALE = "{}: measured before the twin was sampled again. Run the command once more."
_MOST_POINTS = 120  # of a curve over steps
_EPSILON_STEPS = 6  # where ε is computed: each takes as long as computing it for a card
_SHADES = 3  # of the map of noise, to each side of 1
_STEPS = (SubsampledGaussian, IndividualGaussian)

Row = tuple[dict[str, str], str]  # short cells by column, and the longest text
NoiseCell = tuple[str, int]  # a factor in words, and its shade: −3 (least noise) … 3 (most)


def write_report(run: Path, show_real: Path | None = None, account: Path | None = None) -> Path:
    """Write `internal/report.html` and `internal/dossier.html`, and return the path of the first.

    Args:
        run: the run folder.
        show_real: a private table, of which the report shows some rows.
        account: the account of the run's table, for the dossier.
    """
    check_ended(run)
    if not is_run(run):
        raise InputError(f"{run}: no such run folder. Give one that `twinset generate` made.")
    real: dict[str, DataFrame] = {}
    if show_real is not None:
        settings = run / "internal" / SETTINGS
        reading = parse_file(settings, lambda text: dict(json.loads(text).get("reading", {}))) or {}
        real = {show_real.name: read_frame(show_real, **forms_of(reading, show_real)[0])}
    known = read_run(run)  # once, because `verify` takes seconds
    pages = {
        "dossier.html": build_dossier(known, account),
        "report.html": build_report(run, show_real=real, known=known),
    }
    for name, page in pages.items():
        path = run / "internal" / name
        with writing(path):
            path.parent.mkdir(mode=0o700, exist_ok=True)  # a run that was handed over has none
        write_text(path, page)
    return path


def build_report(
    run: Path,
    *,
    show_real: Mapping[str, DataFrame] | None = None,
    known: KnownRun | None = None,
) -> str:
    """Return the page of a run. Missing parts are named with the commands that make them.

    `show_real` has private tables by name, of which a few rows are shown. Anything that is not a
    run folder, or has an invalid file in it, is refused. `known`: the run, if it was read already.
    """
    known = known or read_run(run)
    found, ledger, claim, internal = known.found, known.ledger, known.claim, run / "internal"
    steps = parse_file(
        internal / METRICS,
        lambda text: [dict(json.loads(line)) for line in text.splitlines() if line.strip()],
    )
    noise = parse_file(
        internal / "noise.json", lambda text: {k: float(v) for k, v in json.loads(text).items()}
    )
    base_rows = internal / BASELINE_FILE
    base = read_frame(base_rows) if base_rows.is_file() else None
    twin, facts = known.twin, [f"written by {known.base_model}"] if known.base_model else []
    if twin is not None and known.twin_file is not None:
        made = f"{date.fromtimestamp(known.twin_file.stat().st_mtime):%d %B %Y}".lstrip("0")
        facts = [f"{len(twin):,} rows", *facts, made]

    measured = {q: [m for each in found.values() for m in each.of(q)] for q in _FOUND_BY}
    groups = {question: figures.drawable_groups(scores) for question, scores in measured.items()}
    alone: dict[Question, list[Measured]] = {}  # scores without others to compare with
    for question, each in groups.items():
        single = (g for g in each if len(g.members) == 1 and g.name not in GUESSING)
        alone[question] = [m for g in single for m in g.members.values()]
    verdicts = {question: judge(question, scores) for question, scores in measured.items()}
    events = ledger.events if ledger else []
    headlines: list[tuple[Figure | None, dict[str, str], int]] = []
    for question, (kind, *_) in _FOUND_BY.items():
        figure = figures.draw_headline(question, measured[question])
        line = MEANINGS["missing"][kind]
        # Missing data is mentioned once for all its columns.
        if figure is None and headlines and headlines[-1] == (None, line, 1):
            headlines[-1] = None, line, 2
        else:
            headlines.append((figure, line, 1))
    text = None if twin is None or not len(twin) else find_longest_column(twin)
    # A text of the base model stands next to each of the twin's rows: of the same labels, each
    # once. Both are samples. The base model's show what no private data would have given.
    waiting: dict[str, list[str]] = {}
    if twin is not None and base is not None:
        for cells, words in sample_rows(base, text, len(base)):
            waiting.setdefault(repr(sorted(cells.items())), []).append(words)
    pairs: list[tuple[Row, str | None]] = []
    for cells, words in () if twin is None else sample_rows(twin, text, MOST_ROWS):
        # the base model's rows have no other columns
        own = sorted(pair for pair in cells.items() if base is not None and pair[0] in base)
        others = waiting.get(repr(own))
        pairs.append(((cells, words), others.pop(0) if others else None))
    private = []
    for name, real in (show_real or {}).items():
        same = real if twin is None else real.filter(list(twin))  # columns that the twin has too
        private.append({"name": name, "rows": sample_rows(same, text), "total": len(real)})
    css, script = (
        Path(__file__).with_name(name).read_text("utf-8") for name in ("page.css", "search.js")
    )
    template = read_template(
        "page.html.jinja",
        decimals=up_decimals,
        scientific=lambda value: write_power(up_digits(value)),
    )
    return template.render(
        css=Markup(css),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        name=run.resolve().name,
        facts=[*facts, f"twinset {__version__}"],
        claim=claim,
        belief=belief_sentence(claim) if claim else None,
        handing_over=judge_hand_over(
            claim, verdicts["utility"], verdicts["leakage"], known.failure
        ),
        verdicts=list(verdicts.values()),
        headlines=headlines,
        notes=[
            *map(STALE.format, known.stale),
            *dict.fromkeys(with_flags(note) for each in found.values() for note in each.notes),
        ],
        sections=[
            {
                "anchor": question,
                **MEANINGS["section"][question],
                "figures": list(figures.draw_section(question, list(found.values()))),
                "tables": list_by_label(measured[question]),
                "single": list_scores("Scores without a comparison", alone[question], 4),
                "missing": [MEANINGS["missing"][kind] for kind in kinds if kind not in known.whole],
            }
            for question, kinds in _FOUND_BY.items()
        ],
        training=draw_training(steps or [], ledger),
        # A run that took no step has released everything once, or nothing at all.
        is_untrained=bool(events) and all(isinstance(e, RELEASES) for e in events),
        noise=map_noise(noise or {}),
        pairs=pairs,
        rows=0 if twin is None else len(twin),
        shown=SHOWN,
        private=private,
        scores=list_scores("All scores", [m for each in found.values() for m in each.measured]),
        about={kind: list(_flatten(each.about)) for kind, each in found.items()},
    )


def sample_rows(frame: DataFrame, text: str | None, most: int = SHOWN) -> list[Row]:
    """Draw a few different rows by a fixed seed: always the same for the same table."""
    shown = as_texts(frame).drop_duplicates()  # a twin may say the same twice
    drawn = shown.sample(min(most, len(shown)), random_state=0)
    column = text if text in frame.columns else find_longest_column(drawn)
    rows = []
    for row in drawn.to_dict("records"):
        cells = {
            str(name): cell if len(cell) <= MOST_LETTERS else cell[:MOST_LETTERS].rstrip() + " …"
            for name, cell in row.items()
            if cell
        }
        rows.append((cells, cells.pop(str(column), "")))
    return rows


def find_longest_column(frame: DataFrame) -> str | None:
    """Return the column whose cells are longest, or None if there is no column."""
    lengths = {name: frame[name].astype(str).str.len().sum() for name in frame.columns}
    return max(lengths, key=lambda name: lengths[name], default=None)


def list_scores(caption: str, measured: Iterable[Measured], columns: int = 8) -> Table:
    """Return a table of scores with all that is known of them, or its first columns."""
    head = ("score", "where", "value", "95 % interval", "goal", "n", "question", "computed from")
    rows = []
    for m in measured:
        score, goal = m.score, "match real rows" if m.score.goal == "match" else m.score.goal
        found = score.name, place_in_words(m.place), format_number(score.value)
        more = format_interval(score), goal, f"{score.n:,}", m.question, score.where
        rows.append((*found, *more)[:columns])
    return Table(caption, head[:columns], tuple(rows))


def list_by_label(measured: Iterable[Measured]) -> list[Table]:
    """Return a table for each measure of single labels, columns or pairs, and of kinds of rows."""
    tables: dict[tuple[str, str], dict[str, dict[str, Score]]] = {}
    for m in measured:
        if m.part:
            rest = place_in_words({k: v for k, v in m.place.items() if k not in (m.part, "rows")})
            each = "label" if m.part == "value" else m.part
            which = "of the worst pairs" if m.part == "pair" else f"of each {each}"
            caption = f"{m.score.name} {which}" + (f": {rest}" if rest else "")
            cells = tables.setdefault((caption, each), {}).setdefault(m.place[m.part], {})
            cells[m.place.get("rows", "all rows")] = m.score
    made = []
    for (caption, each), by_value in tables.items():
        columns = sort_rows(column for row in by_value.values() for column in row)
        rows = (
            (value, *(format_score(row[c]) if c in row else "" for c in columns))
            for value, row in by_value.items()
        )
        made.append(Table(caption, (each, *columns), tuple(rows)))
    return made


def draw_training(steps: Sequence[Mapping[str, Any]], ledger: Ledger | None) -> list[Figure]:
    """Draw loss and clipped share over steps, and the ε that they spent."""
    points: dict[str, list[Point]] = {"ε": spend_over_steps(ledger) if ledger else []}
    for field in ("loss", "clipped"):
        pairs: list[tuple[Any, Any]] = [(s.get("step"), s.get(field)) for s in steps]
        known = (pair for pair in pairs if all(isinstance(v, int | float) for v in pair))
        # NaN compares false, and so do infinite numbers.
        most = sys.float_info.max
        numbers = [(float(x), float(y)) for x, y in known if abs(x) <= most and abs(y) <= most]
        # Means of neighbours if there are many steps.
        parts = np.array_split(numbers, min(len(numbers), _MOST_POINTS)) if numbers else []
        points[field] = [tuple(part.mean(0).tolist()) for part in parts]
    asked = ledger.target_epsilon if ledger else None
    marks = [] if asked is None else [(asked, f"asked for: {asked:g}")]
    listed = tuple((f"{step:,.0f}", format_number(eps)) for step, eps in points["ε"])
    spent = Table("ε spent by step", ("step", "ε"), listed)
    made = []
    for title, field, y, line, least, rules, table in (
        ("Loss", "loss", "mean loss of the batch", "loss", None, (), None),
        ("Clipped share", "clipped", "share of records", "clipped share", 0.0, (), None),
        ("ε spent", "ε", "ε", "ε", 0.0, marks, spent),
    ):
        drawn = charts.draw_lines(title, "step", y, {line: points[field]}, "", rules, least=least)
        if drawn is not None:
            name = f"{title} while training"
            made.append(Figure(name, figures.explain_measure(name), (("", drawn),), table))
    return made


def spend_over_steps(ledger: Ledger) -> list[Point]:
    """Return (step, ε) from the ledger alone. Empty if nothing is guaranteed."""
    total = sum(event.steps for event in ledger.events if isinstance(event, _STEPS))
    at = np.linspace(0, total, _EPSILON_STEPS + 1)[1:].round().astype(int).tolist()
    points: list[Point] = []
    # The whole run first: it decides about all.
    for step in sorted({max(1, step) for step in at} if total else (), reverse=True):
        left, events = step, list[Event]()
        for event in ledger.events:  # after this step
            if isinstance(event, _STEPS):
                taken = min(event.steps, left)
                left -= taken
                events += [replace(event, steps=taken)] if taken else []
            else:
                events.append(event)
        spent = guarantee(replace(ledger, events=events)).epsilon
        if spent is None:
            return []
        points.insert(0, (float(step), spent))
    return points


def map_noise(mean_noise: Mapping[str, float]) -> dict[str, dict[str, NoiseCell | None]]:
    """Return noise relative to `uniform`, by layer and kind of weight.

    Every layer has all kinds. The map is empty if there is nothing to show, or no number.
    """
    cells = noise_cells({n: f for n, f in mean_noise.items() if math.isfinite(f) and f > 0})
    most = max([0.1, *(abs(math.log2(factor)) for factor in cells.values())])
    layers = sorted({layer for layer, _ in cells}, key=lambda x: (x == OUTSIDE, x.zfill(4)))
    kinds = dict.fromkeys(kind for _, kind in cells)
    found: dict[str, dict[str, NoiseCell | None]] = {}
    for layer in layers:
        row = found.setdefault("outside the layers" if layer == OUTSIDE else layer, {})
        for kind in kinds:
            factor = cells.get((layer, kind))
            shade = 0 if factor is None else round(_SHADES * math.log2(factor) / most)
            row[kind] = None if factor is None else (f"{factor:.2f}", shade)
    return found


def _flatten(about: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Yield the origin of findings as pairs of words."""
    for key, value in about.items():
        name = f"{above} {key}".strip()
        if isinstance(value, Mapping):
            yield from _flatten(value, name)
        elif isinstance(value, list | tuple):
            yield name, ", ".join(map(str, value))
        else:
            yield name, "none" if value is None else str(value)
