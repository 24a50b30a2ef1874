"""Are the other columns faithful? Each column, each pair, models of one by all, and texts.

All tables are compared with held-out rows, equally many of each. Other real rows ("real") show how
near one can expect to come. Numbers and dates are cut at the private table's quantiles, so that
equal shares are compared.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from twinset.table.cells import DAY, Cells, loosely, read_number
from twinset.table.columns import text_cells

from ..findings import Histogram, Measured, mean, proportion
from ..release import HELD_OUT, REAL, TWIN, Tables
from ..utility.columns import (
    GAP,
    MODELLED_COLUMNS,
    MODELLED_ROWS,
    PARTS,
    REST,
    Cut,
    cell_number,
    column_model,
    column_tasks,
    cut_at,
)
from .texts import jackknife, leave_out_blocks

if TYPE_CHECKING:
    from twinset.progress import Progress

MOST_ROWS = 20_000  # of each table that are compared
MOST_PAIRS = 500  # compared, drawn by chance if there are more
NAMED_PAIRS = 12  # scored on their own, those that are worst
DRAWN_COLUMNS, NAMED_VALUES = 24, 8  # in pictures, and values of a column of texts
LABELLED = 20  # values of a column that is predicted from texts
COMMONEST = "the commonest value"
PICTURE = "column: "  # how a histogram of a column is called
COLUMNS, PAIRS = "column distance", "pair distance"
MODEL, AGREEMENT = "column model accuracy", "text–column agreement"
MEASURES = (COLUMNS, f"worst {COLUMNS}", PAIRS, f"worst {PAIRS}", MODEL, AGREEMENT)


def total_variation(real: np.ndarray, other: np.ndarray) -> float:
    """Return half the sum of differences of shares: 0 if tables agree, 1 if no value is shared.

    Values are whole numbers from 0.

    >>> total_variation(np.array([0, 1]), np.array([0, 0]))
    0.5
    """
    most = max(real.max(initial=0), other.max(initial=0)) + 1
    shares = (np.bincount(each, minlength=most) / max(1, len(each)) for each in (real, other))
    return float(np.abs(np.subtract(*shares)).sum() / 2)


def column_distances(
    real: pd.DataFrame, other: pd.DataFrame
) -> tuple[dict[str, float], dict[tuple[str, str], float]]:
    """Return the total variation of each column that both tables have, and of each pair of them."""
    codes = {}
    for name in (name for name in real if name in other):
        cut = Cut.of(real[name])
        parts = np.concatenate([cut.parts(real[name]), cut.parts(other[name])])
        codes[name] = pd.factorize(parts)[0]
    split = len(real)
    one = {name: total_variation(c[:split], c[split:]) for name, c in codes.items()}
    two = {}
    for a, b in combinations(codes, 2):
        both = join_codes(codes[a], codes[b])
        two[a, b] = total_variation(both[:split], both[split:])
    return one, two


def join_codes(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a number for each pair of values that occurs."""
    found: np.ndarray = np.unique(a * (b.max() + 1) + b, return_inverse=True)[1]
    return found


def compare_columns(tables: Tables, seed: int, progress: Progress) -> Iterator[Measured]:
    """Yield how far the twin's columns are from held-out rows, and how far other real rows are.

    - `column distance`: total variation, the mean over columns, and of each column. Labels count.
    - `pair distance`: the same of pairs of columns.
    - `column model accuracy`: how well a column is predicted from all others, the mean over
      columns. Models learn from the twin or from real rows, and are tested on held-out rows.
    - `text–column agreement`: the same from texts, for columns of few values that are no labels.

    Tables with nothing but texts and labels have none of these. The seed draws rows and pairs.
    """
    frames = {HELD_OUT: tables.heldout, REAL: tables.train, TWIN: tables.twin}
    labels = list(tables.attributes)
    others = find_others(tables)
    if not others:
        return
    rng, rows = np.random.default_rng(seed), min(MOST_ROWS, *map(len, frames.values()))
    frames = {n: f.iloc[rng.permutation(len(f))[:MOST_ROWS]] for n, f in frames.items()}
    cuts = {name: Cut.of(frames[REAL][name]) for name in (*labels, *others)}
    frames = {name: frame[:rows] for name, frame in frames.items()}
    parts = {n: [cut.parts(f[n]) for f in frames.values()] for n, cut in cuts.items()}
    codes = {n: pd.factorize(np.concatenate(each))[0] for n, each in parts.items()}  # (3 rows,)
    yield from _score_distances(COLUMNS, "column", codes, rows)
    pairs = list(combinations(codes, 2))
    if len(pairs) > MOST_PAIRS:
        pairs = [pairs[i] for i in np.sort(rng.permutation(len(pairs))[:MOST_PAIRS])]
    joint = {f"{a} × {b}": join_codes(codes[a], codes[b]) for a, b in pairs}
    yield from _score_distances(PAIRS, "pair", joint, rows, NAMED_PAIRS)
    progress.say("predicting each column from the others, and from texts")
    some = {name: [each[:MODELLED_ROWS] for each in found] for name, found in parts.items()}
    yield from score_models(some, cuts)
    texts = [
        [text or "" for text in text_cells(f[tables.text].iloc[:MODELLED_ROWS], "text")]
        for f in frames.values()
    ]
    yield from score_agreement(texts, {name: some[name] for name in others}, cuts)


def find_others(tables: Tables) -> list[str]:
    """Return the columns of all three tables that are neither text nor label."""
    known = set(tables.train) & set(tables.heldout) - {tables.text, *tables.attributes}
    return [name for name in tables.twin if name in known]


def draw_columns(tables: Tables, seed: int) -> Iterator[Histogram]:
    """Yield shares of each other column's values, of the twin and of held-out rows.

    Texts are named only if the twin has them.
    """
    rng = np.random.default_rng(seed)
    some = [f.iloc[rng.permutation(len(f))[:MOST_ROWS]] for f in (tables.twin, tables.heldout)]
    for name in find_others(tables)[:DRAWN_COLUMNS]:
        cut = Cut.of(some[1][name])
        numbers = [read_number(text) for text in Cells.of(some[1][name]).texts]
        if not cut.by_gaps and (cut.edges or (len(numbers) > PARTS and all(numbers))):
            edges, bins = round_parts(some[1][name], cut.is_date, cut.has_commas)
            parts = [cut_at(frame[name], edges, bins, cut.has_commas) for frame in some]
        else:
            parts = [cut.parts(frame[name]) for frame in some]
            often = [each for each, _ in Counter(parts[0]).most_common() if each != GAP]
            bins = often[:NAMED_VALUES]
            known = {*bins, GAP}
            parts = [np.array([p if p in known else REST for p in each]) for each in parts]
            if all(map(read_number, bins)):
                bins.sort(key=cell_number)
        counts = [Counter(each) for each in parts]
        bins += [each for each in (REST, GAP) if any(count[each] for count in counts)]
        shares = ([count[each] / max(1, count.total()) for each in bins] for count in counts)
        series = dict(zip((TWIN, REAL), shares, strict=True))
        spelled = {loosely(text): text for text in Cells.of(some[0][name]).texts}
        bins = [spelled.get(each, each) for each in bins]
        yield Histogram("fidelity", f"{PICTURE}{name}", name, bins, series)


def round_parts(
    real: pd.Series, is_date: bool, has_commas: bool = False
) -> tuple[list[float], list[str]]:
    """Return round edges between about twenty parts of numbers or dates, and the parts' names.

    >>> round_parts(pd.Series(range(100)), is_date=False)[1][:2]
    ['< 5', '5–9']
    """
    from matplotlib.ticker import MaxNLocator

    cells = Cells.of(real)
    found = [cell_number(text, has_commas) for text in cells.texts]
    numbers = np.array([*found, np.nan])[cells.places]
    low, high = np.nanquantile(numbers, [0.01, 0.99])
    if is_date:
        unit = next((u for u, days in (("D", 60), ("M", 1_100)) if high - low < days * DAY), "Y")
        periods = pd.period_range(*pd.to_datetime([low, high], unit="s"), freq=unit)
        some = periods[:: math.ceil(len(periods) / PARTS)]
        starts = (period.start_time - pd.Timestamp(0) for period in some[1:])
        return [start.total_seconds() for start in starts], [str(period) for period in some]
    is_whole = bool(np.all((numbers == np.round(numbers)) | np.isnan(numbers)))
    locator = MaxNLocator(PARTS, integer=is_whole, steps=[1, 2, 5, 10])
    ticks = [round(float(tick), 9) for tick in locator.tick_values(low, high)]
    # to whole numbers their part's last one belongs, to others the next part's first one
    ends = [t - 1 for t in ticks] if is_whole else ticks
    pairs = list(zip(ticks[1:-2], ends[2:-1], strict=True))
    inner = [f"{a:.15g}–{b:.15g}" if a < b else f"{a:.15g}" for a, b in pairs]
    return ticks[1:-1], [f"< {ticks[1]:.15g}", *inner, f"≥ {ticks[-2]:.15g}"]


def _score_distances(
    name: str, kind: str, codes: Mapping[str, np.ndarray], rows: int, most: int | None = None
) -> Iterator[Measured]:
    """Yield distances from the first rows of `codes`: their mean, the worst, and single ones.

    `codes` are of held-out rows, then of real rows, then of the twin's.
    """
    if not codes:
        return
    names, blocks, found = list(codes), leave_out_blocks(rows), dict[str, np.ndarray]()
    for source, start in ((TWIN, 2 * rows), (REAL, rows)):
        pairs = [(c[:rows], c[start : start + rows]) for c in codes.values()]
        # (blocks, columns): of all rows, then without each block of rows in turn
        found[source] = np.array(
            [[total_variation(a[kept], b[kept]) for a, b in pairs] for kept in blocks]
        )
    # the worst first: further off than real rows are
    order = np.argsort(found[REAL][0] - found[TWIN][0], kind="stable")[:most].tolist()

    def score(title: str, of_blocks: np.ndarray, source: str, **place: str) -> Measured:
        left = iter(of_blocks.tolist())
        found = jackknife(title, lambda kept: next(left), rows, "minimise", 0.0, 1.0)
        return Measured("fidelity", found, {"rows": source, **place})

    for source, values in found.items():  # (blocks, columns)
        yield score(name, values.mean(1), source)
        yield score(f"worst {name}", values[:, order[0]], source, which=names[order[0]])
        for place in order:
            yield score(name, values[:, place], source, **{kind: names[place]})


def score_models(
    parts: Mapping[str, Sequence[np.ndarray]], cuts: Mapping[str, Cut]
) -> Iterator[Measured]:
    """Yield how well columns are predicted from the others, in parts of held-out rows first."""
    right = dict[str, dict[str, np.ndarray]]()
    for name, (held, real, twin), wanted in column_tasks(parts, cuts, by=1):
        taught = {REAL: (real, held), TWIN: (twin, held)}
        right[name] = _teach(taught, wanted, column_model())
    yield from _score_right(MODEL, right)


def score_agreement(
    texts: Sequence[Sequence[str]],
    parts: Mapping[str, Sequence[np.ndarray]],
    cuts: Mapping[str, Cut],
) -> Iterator[Measured]:
    """Yield how well columns of few values are predicted from texts of the same rows."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import SGDClassifier

    few = [n for n, p in parts.items() if 2 <= len(set(p[1])) <= LABELLED and cuts[n] == Cut()]
    taught = {}
    for source, own in zip((REAL, TWIN), texts[1:], strict=True):
        words = TfidfVectorizer(sublinear_tf=True, token_pattern=r"(?u)\b\w+\b")
        if not few or not any(map(words.build_analyzer(), own)):
            return
        taught[source] = words.fit_transform(own), words.transform(texts[0])
    # a logistic regression. Its gradient is of single rows: others take minutes for many values.
    model = SGDClassifier(loss="log_loss", random_state=0)
    right = {name: _teach(taught, parts[name], model) for name in few[:MODELLED_COLUMNS]}
    yield from _score_right(AGREEMENT, right)


def _teach(
    taught: Mapping[str, tuple[Any, Any]], wanted: Sequence[np.ndarray], model: Any
) -> dict[str, np.ndarray]:
    """Return by source (rows,) whether a model of its rows finds the values of held-out rows.

    `taught` are the source's inputs and those of held-out rows, `wanted` the values of held-out,
    real and twin rows.
    """
    held, *values = wanted
    right = {COMMONEST: held == pd.Series(values[0]).mode()[0]}
    for (source, (inputs, of_held)), known in zip(taught.items(), values, strict=True):
        if len(set(known)) > 1:
            right[source] = model.fit(inputs, known).predict(of_held) == held
        else:
            right[source] = held == known[0]
    return right


def _score_right(name: str, right: Mapping[str, Mapping[str, np.ndarray]]) -> Iterator[Measured]:
    """Yield the share of right predictions by source: the mean over columns, and each column's."""
    for source in (TWIN, REAL, COMMONEST) if right else ():
        found = {column: each[source] for column, each in right.items()}
        by_row = np.mean(list(found.values()), axis=0).tolist()
        yield Measured("fidelity", mean(name, by_row, "maximise", 0.0, 1.0), {"rows": source})
        for column, hits in found.items():
            score = proportion(name, int(hits.sum()), len(hits))
            yield Measured("fidelity", score, {"rows": source, "column": column})
