"""The other columns of a twin: a graphical model of noisy tables, and rows drawn from it.

The model is a tree. Each column hangs on one other column at most, and all of them on the labels.
Released tables are raked until they agree (`rake`). The idea is that of McKenna, Sheldon and Miklau
2019, 'Graphical-model based estimation and inference for differential privacy'. Fitting and drawing
are post-processing: no record is read here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from twinset.errors import InputError
from twinset.files.atomic import write_json
from twinset.files.limits import read_text
from twinset.privacy.mechanism.counts import on_simplex
from twinset.table.columns import asked_values
from twinset.table.kinds import GAPS, IDENTIFIER, MOST_VALUES, TEXT, Column, series_of
from twinset.table.schema import plain, written_line

FILE, TABLES = "columns.json", "columns.safetensors"
PARTS = ("bins", "shares", "tables")  # names of arrays in that file, before a number
GROUP = 16  # cells of a grid that are counted together, and groups of groups
MOST_BINS = 48  # of a column of numbers in the model
CLEAR = 3.0  # deviations of noise from which something is taken to be there
# Rounds of fitting. On clothing reviews 120 rounds move a conditional share by up to 0.003 on
# average, and by up to 0.15 where a case is rare.
FIT_STEPS = 30
MOST_TABLE = 1 << 20  # cells of the largest table: labels × column × column
ROWS_AT_ONCE = 10_000  # that are drawn: each has a number for every value of its column


@dataclass(frozen=True)
class ColumnModel:
    """Released columns, and the probability of each value given labels and another column.

    Args:
        columns: A columns. Those after the last table are numbered, or empty.
        order: the columns' numbers, each after its parent.
        parents: of each column, the number of the column that it hangs on (-1: labels alone).
        bins: of each column (size,) the model's value for each of its values (-1: left out).
        shares: of each column (size,) the share of each value in its bin.
        tables: of each column (C, K of the parent or 1, K) probabilities, for C label combinations.
    """

    columns: tuple[Column, ...]
    order: tuple[int, ...]
    parents: tuple[int, ...]
    bins: tuple[np.ndarray, ...]
    shares: tuple[np.ndarray, ...]
    tables: tuple[np.ndarray, ...]

    @classmethod
    def without_tables(cls, columns: Sequence[Column]) -> ColumnModel:
        """Return a model of columns whose cells are numbered, or empty."""
        return cls(tuple(columns), (), (), (), (), ())

    def with_columns(self, columns: Sequence[Column]) -> ColumnModel:
        """Return the model with such columns too. They come after those with tables."""
        return replace(self, columns=(*self.columns, *columns))

    @property
    def texts(self) -> list[Column]:
        """The columns whose cells a language model writes."""
        return [column for column in self.columns if column.kind == TEXT]

    def draw(
        self,
        labels: np.ndarray,
        seed: int,
        texts: Sequence[Sequence[str]] = (),
        lines: Sequence[tuple[np.ndarray, ColumnModel]] = (),
    ) -> pd.DataFrame:
        """Return cells (n, A) for rows of these label combinations (n,), given by number.

        `texts` has the lines written for the columns `self.texts` of each row. Where the model says
        that a row has a gap, it is not used. `lines` of a plan say which rows (numbers, each once)
        are drawn from a model of `given`. By default this model draws all.
        """
        rng = np.random.default_rng([seed, 53])
        cells = {number: np.full(len(labels), None, object) for number in self.order}
        for rows, model in lines or [(np.arange(len(labels)), self)]:
            for number, found in model.draw_cells(labels[rows], rng):
                cells[number][rows] = found
        columns: list[pd.Series] = []
        for number, column in enumerate(self.columns):
            if column.kind == IDENTIFIER:  # new ones
                columns.append(column.new_identifiers(len(labels), rng))
            elif column.kind == GAPS:
                none = np.full(len(labels), None, object)
                columns.append(series_of(column.name, none, column.dtype or "object"))
            elif column.kind == TEXT:
                place = self.texts.index(column)
                texts_of = [row[place] or None for row in texts] or [""] * len(labels)
                written = np.array([*texts_of, None], object)[:-1]  # None: if there are no rows
                written[[cell is None for cell in cells[number]]] = None
                columns.append(series_of(column.name, written, column.dtype))
            else:
                columns.append(column.as_series(cells[number]))
        return pd.DataFrame({c.name: each for c, each in zip(self.columns, columns, strict=True)})

    def draw_cells(
        self, labels: np.ndarray, rng: np.random.Generator
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the number and the cells (n,) of each column in the tree, parents first.

        A cell has the model's distribution. Those of rows with the same labels and the same value
        of the parent are spread over it, so shares are as near to the model as whole rows allow.
        """
        drawn: dict[int, np.ndarray] = {}
        for number in self.order:
            table, parent = self.tables[number], self.parents[number]
            above = drawn[parent] if parent >= 0 else np.zeros(len(labels), np.int64)
            chances = table.astype(np.float64).cumsum(2)  # (C, K of the parent or 1, K)
            at = spread(labels * table.shape[1] + above, rng) * chances[labels, above, -1]
            drawn[number] = np.zeros(len(labels), np.int64)
            for start in range(0, len(labels), ROWS_AT_ONCE):
                some = slice(start, start + ROWS_AT_ONCE)
                is_below = chances[labels[some], above[some]] <= at[some, None]  # (n, K)
                drawn[number][some] = np.minimum(is_below.sum(1), table.shape[2] - 1)
            # a value within its bin
            column, bins = self.columns[number], self.bins[number]
            order = np.argsort(bins, kind="stable")
            within = np.where(bins >= 0, self.shares[number], 0.0)[order].cumsum()
            starts = np.searchsorted(bins[order], np.arange(table.shape[2]), side="left")
            ends = np.searchsorted(bins[order], np.arange(table.shape[2]), side="right")
            low = np.where(starts > 0, within[starts - 1], 0.0)[drawn[number]]
            high = within[ends - 1][drawn[number]]
            at = low + spread(drawn[number], rng) * (high - low)
            places = np.searchsorted(within, at, side="right")
            places = np.clip(places, starts[drawn[number]], ends[drawn[number]] - 1)
            yield number, column.decode(order[places], rng)

    def given(self, where: Mapping[str, Any]) -> tuple[ColumnModel, np.ndarray]:
        """Return the model of rows that meet conditions on columns, and how likely these are.

        It is exact: conditions go up the tree as messages, and tables are multiplied by them.

        Args:
            where: by column what `Column.select` takes.

        Returns:
            A model for `draw`, and (C,) the share of each label combination's rows that meet the
            conditions.

        Raises:
            InputError: a column is not in the model, or no row can meet the conditions on it.
        """
        places = {column.name: number for number, column in enumerate(self.columns)}
        columns, all_bins = list(self.columns), list(self.bins)
        shares, tables = list(self.shares), list(self.tables)
        said = {n: np.ones((len(self.tables[n]), self.tables[n].shape[2])) for n in self.order}
        for name, value in where.items():
            number = places.get(name, -1)
            if number not in self.order or self.columns[number].kind == TEXT:
                asked = [c.name for i, c in enumerate(self.columns) if i in self.order]
                known = [n for n in asked if self.columns[places[n]].kind != TEXT]
                raise InputError(f"`where`: cannot ask for {name!r}. Choose from {known}.")
            column = self.columns[number]
            is_range = isinstance(value, tuple) and bool(column.edges)
            fits = cache(partial(self._can_be, number))
            for one in [value] if is_range else asked_values(value, fits) or [()]:
                if not (fits(one) if isinstance(one, str) else self._can_be(number, one)):
                    about = f"{plain(one)[:60]!r}. It is a {column.about_steps}."
                    raise InputError(f"`where`: no row can have this {name!r}: {about}")
            columns[number], origin, share = column.select(value)
            bins = all_bins[number] = self.bins[number][origin]
            before = np.bincount(self.bins[number] + 1, self.shares[number])  # first those left out
            wanted = self.shares[number][origin] * share
            kept = np.bincount(bins + 1, wanted, len(before)) / np.maximum(before, 1e-300)
            # of each value they add up as before, so that none gets lost in rounding
            shares[number] = wanted / np.maximum(kept, 1e-300)[bins + 1]
            said[number] *= kept[1:]  # (C, K)
        likely = np.ones(len(self.tables[self.order[0]]) if self.order else 1)
        for number in reversed(self.order):  # (C, K of the parent, K)
            # what the condition and columns below say
            joint = tables[number].astype(np.float64) * said[number][:, None, :]
            message = joint.sum(2)  # (C, K of the parent)
            tables[number] = np.where(
                message[:, :, None] > 0,
                joint / np.maximum(message, 1e-300)[:, :, None],
                tables[number],
            )
            if self.parents[number] >= 0:
                said[self.parents[number]] *= message
            else:
                likely *= message[:, 0]
        parts = map(tuple, (all_bins, shares, tables))
        return ColumnModel(tuple(columns), self.order, self.parents, *parts), likely

    def _can_be(self, number: int, value: Any) -> bool:
        """Return whether a row can have a value or range in a column. No comma cuts a text."""
        wanted = written_line([value]) if isinstance(value, str) else value
        _, origin, share = self.columns[number].select(wanted)
        return bool(share[self.bins[number][origin] >= 0].any())

    def rebuild(self, twin: pd.DataFrame) -> pd.DataFrame:
        """Return the cells of some drawn rows, with the categories and types that `draw` gives."""
        columns = {}
        for column in self.columns:
            own = twin[column.name]
            if isinstance(own.dtype, pd.CategoricalDtype):
                others = [value for value in column.others if (own == value).any()]
                own = own.cat.set_categories(list(dict.fromkeys([*column.values, *others])))
            columns[column.name] = pd.Series(own.tolist(), dtype=own.dtype)
        return pd.DataFrame(columns)

    def save(self, folder: Path) -> None:
        """Write the model next to the weights."""
        from safetensors.numpy import save_file

        about = {
            "columns": [asdict(column) for column in self.columns],
            "order": self.order,
            "parents": self.parents,
        }
        write_json(folder / FILE, about)
        arrays = {}
        for part in PARTS:
            for number, array in enumerate(getattr(self, part)):
                arrays[f"{part}-{number}"] = np.ascontiguousarray(array)
        save_file(arrays, folder / TABLES)

    @classmethod
    def load(cls, folder: Path, combinations: int) -> ColumnModel | None:
        """Read files written by `save`, or return None if there are none.

        Raises:
            ValueError: the files are of no model for this number of label combinations.
        """
        from safetensors.numpy import load_file

        if not (folder / FILE).is_file():
            return None
        about = json.loads(read_text(folder / FILE))
        columns = []
        for each in about["columns"]:
            each |= {name: tuple(each[name]) for name in ("values", "edges", "lengths")}
            columns.append(Column(**each))
        kept = load_file(folder / TABLES)
        parts = [tuple(kept[f"{part}-{i}"] for i in range(len(about["order"]))) for part in PARTS]
        found = cls(tuple(columns), tuple(about["order"]), tuple(about["parents"]), *parts)
        found.check(combinations)
        return found

    def check(self, combinations: int) -> None:
        """Raise a ValueError if no run writes such a model."""
        for column in self.columns:
            column.check()
        seen: set[int] = {-1}
        for number in self.order:
            parent, column, table = self.parents[number], self.columns[number], self.tables[number]
            above = self.tables[parent].shape[2] if parent >= 0 else 1
            if not (
                parent in seen
                and table.shape[:2] == (combinations, above)
                and table.shape[2] <= MOST_VALUES + 2
                and (above == 1 or table.size <= MOST_TABLE)
                and self.bins[number].shape == self.shares[number].shape == (column.size,)
                and self.bins[number].max() == table.shape[2] - 1
                and np.isfinite(table).all()
                and (table >= 0).all()
                and np.allclose(table.sum(2), 1, atol=1e-3)
            ):
                raise ValueError("no run writes such columns")
            seen.add(number)
        if len(seen) != len(self.tables) + 1 or any(
            column.kind not in (IDENTIFIER, GAPS) for column in self.columns[len(self.tables) :]
        ):
            raise ValueError("no run writes such columns")


def spread(strata: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return (n,) numbers in [0, 1), each uniform, and evenly spaced within each stratum (n,).

    The order within a stratum is random. This is systematic sampling (Madow 1944).

    >>> found = np.sort(spread(np.array([0, 2, 0, 0, 0]), np.random.default_rng(0))[[0, 2, 3, 4]])
    >>> np.diff(found).round(6).tolist()
    [0.25, 0.25, 0.25]
    """
    order = rng.permutation(len(strata))
    order = order[np.argsort(strata[order], kind="stable")]  # stratum by stratum
    sizes = np.bincount(strata)
    places = np.empty(len(strata))
    places[order] = np.arange(len(strata)) - (sizes.cumsum() - sizes)[strata[order]]
    found: np.ndarray = (places + rng.random(len(sizes))[strata]) / sizes[strata]
    return np.minimum(found, np.nextafter(1, 0))  # also where the sum was rounded up


# -- grids and bins --------------------------------------------------------------------------------


def level_codes(codes: np.ndarray, cells: int) -> list[tuple[np.ndarray, int]]:
    """Return the places of numbers in a grid and in its groups, coarsest last, with their sizes.

    >>> [(c.tolist(), n) for c, n in level_codes(np.array([0, 40, -1]), 50)]
    [([0, 40, -1], 50), ([0, 2, -1], 4)]
    """
    levels = [(codes, cells)]
    while levels[-1][1] > 2 * GROUP:
        below, size = levels[-1]
        levels.append((np.where(below < 0, -1, below // GROUP), -(-size // GROUP)))
    return levels


def grid_shares(levels: Sequence[np.ndarray], deviation: float) -> np.ndarray:
    """Return (G,) the share of each cell of a grid, by noisy counts of cells and of their groups.

    Each group is shared out among its cells. Differences between these are shrunk by as much as
    noise explains (James and Stein 1961), so a group that holds hardly more than noise is even.

    >>> grid_shares([np.array([40.0, 0.0, 10.0])], deviation=0.0)
    array([0.8, 0. , 0.2])
    """
    shares = on_simplex(_shrunk(levels[-1], deviation))
    for counts in levels[-2::-1]:
        finer = np.zeros(len(counts))
        for group, share in enumerate(shares.tolist()):
            own = slice(group * GROUP, min((group + 1) * GROUP, len(counts)))
            finer[own] = share * on_simplex(_shrunk(counts[own], deviation))
        shares = finer
    return shares


def _shrunk(counts: np.ndarray, deviation: float) -> np.ndarray:
    """Return noisy counts (n,), nearer to their mean."""
    away = counts - counts.mean()
    noise = (len(counts) - 1) * deviation**2
    kept: np.ndarray = counts.mean() + away * max(0.0, 1 - noise / max(1e-9, np.square(away).sum()))
    return kept


def cut_bins(shares: np.ndarray, most: int) -> np.ndarray:
    """Return (G,) the bin of each cell: neighbours with about the same share together.

    >>> cut_bins(np.array([0.5, 0.1, 0.1, 0.05, 0.25]), most=3).tolist()
    [0, 1, 1, 1, 2]
    """
    bins, number, held, left = np.zeros(len(shares), np.int64), 0, 0.0, float(shares.sum())
    for place, share in enumerate(shares.tolist()):
        goal = left / max(1, most - number)
        if held and number < most - 1 and held + share > 1.2 * goal:
            number, left, held = number + 1, left - held, 0.0
        bins[place], held = number, held + share
    return bins


# -- the model -------------------------------------------------------------------------------------


def rake(
    table: np.ndarray,
    margins: Sequence[tuple[np.ndarray, tuple[int, ...]]],
    rounds: int = FIT_STEPS,
) -> np.ndarray:
    """Return the table nearest to one, in relative entropy, that has these sums over some axes.

    Iterative proportional fitting (Deming and Stephan 1940). The last margin is met exactly.

    >>> rake(np.ones((2, 2)), [(np.array([0.5, 0.5]), (0,)), (np.array([0.9, 0.1]), (1,))])
    array([[0.45, 0.45],
           [0.05, 0.05]])
    """
    for _ in range(rounds):
        for wanted, axes in margins:
            found = table.sum(axes, keepdims=True)
            shape = [1 if axis in axes else size for axis, size in enumerate(table.shape)]
            table = table * (wanted.reshape(shape) / np.maximum(found, 1e-300))
    return table


def choose_tree(
    pairs: Sequence[tuple[int, int]],
    gains: Sequence[float],
    sizes: Sequence[int],
    combinations: int,
) -> list[tuple[int, int]]:
    """Return the pairs of the best tree among those that gain something (Kruskal).

    >>> choose_tree([(0, 1), (0, 2), (1, 2)], [5.0, 3.0, 4.0], [2, 2, 2], 2)
    [(0, 1), (1, 2)]
    """
    root, chosen = list(range(len(sizes))), []
    for gain, (a, b) in sorted(zip(gains, pairs, strict=True), reverse=True):
        fits = combinations * sizes[a] * sizes[b] <= MOST_TABLE
        if gain > 0 and fits and root[a] != root[b]:
            chosen.append((a, b))
            root = [root[a] if each == root[b] else each for each in root]
    return chosen


def fit_columns(
    columns: Sequence[Column],
    bins: Sequence[np.ndarray],
    shares: Sequence[np.ndarray],
    label_counts: Sequence[float],
    alone: Sequence[np.ndarray],
    joint: Sequence[np.ndarray],
    pairs: Mapping[tuple[int, int], np.ndarray],
) -> ColumnModel:
    """Fit the graphical model to released tables.

    Args:
        columns: A columns.
        bins: as in `ColumnModel`.
        shares: as in `ColumnModel`.
        label_counts: (C,) noisy.
        alone: noisy counts (K,) of each column. All tables here have the same noise but `pairs`.
        joint: noisy counts (C, K) of each column with the labels.
        pairs: by the columns' numbers, noisy counts (K, K') of the pairs of a tree.
    """
    count, combinations = len(columns), len(label_counts)
    label_shares = on_simplex(np.asarray(label_counts, float))  # (C,)
    shares_of, of_labels = [], []
    for own, both in zip(alone, joint, strict=True):
        # two counts of the same thing, by the noise of each
        mean = np.average([own, both.sum(0)], 0, [1.0, 1.0 / combinations])
        shares_of.append(on_simplex(mean))
        start = on_simplex(both.ravel()).reshape(both.shape)
        of_labels.append(rake(start, [(label_shares, (1,)), (shares_of[-1], (0,))]))
    neighbours: dict[int, list[int]] = {i: [] for i in range(count)}
    for a, b in pairs:
        neighbours[a].append(b)
        neighbours[b].append(a)
    parents, order = [-1] * count, list[int]()
    for root in range(count):
        waiting = [] if root in order else [root]
        while waiting:
            above = waiting.pop(0)
            order.append(above)
            for other in neighbours[above]:
                if other not in order and other not in waiting:
                    parents[other] = above
                    waiting.append(other)
    conditional: dict[int, np.ndarray] = {}
    fitted: dict[int, np.ndarray] = {}  # (C, K) of each column
    for number in order:
        parent, own = parents[number], of_labels[number]
        if parent < 0:
            cube = own[:, None, :]
        else:
            is_above = (parent, number) in pairs
            counts = pairs[parent, number] if is_above else pairs[number, parent].T
            shared = on_simplex(counts.ravel()).reshape(counts.shape)
            shared = rake(shared, [(shares_of[parent], (1,)), (shares_of[number], (0,))])
            first = fitted[parent]
            start = first[:, :, None] * own[:, None, :] * shared[None] + 1e-15
            cube = rake(start, [(own, (1,)), (shared, (0,)), (first, (2,))])
        fitted[number] = cube.sum(1)
        # a case that never occurs has the shares of all
        cube = cube + 1e-9 * cube.sum((0, 1), keepdims=True) + 1e-15
        conditional[number] = (cube / cube.sum(2, keepdims=True)).astype(np.float32)
    drawn_from = tuple(conditional[number] for number in range(count))
    return ColumnModel(
        tuple(columns), tuple(order), tuple(parents), tuple(bins), tuple(shares), drawn_from
    )
