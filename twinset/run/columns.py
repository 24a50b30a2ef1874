"""The release of the other columns: kinds, values, grids, tables and pairs, all with noise.

It has five parts. Each depends on those before it, and together they are one Gaussian release and
one selection of values (theorem COLUMNS). Records are read by the functions of
`twinset.privacy.mechanism` alone. The rest is post-processing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations as pairs_of

import numpy as np
import pandas as pd

from twinset.config.plan import least_threshold
from twinset.privacy.accounting.events import LabelSelection
from twinset.privacy.mechanism.columns import release_histograms, release_pair_scores, unit_weights
from twinset.privacy.mechanism.counts import on_simplex, select_label_values
from twinset.privacy.mechanism.gate import Gate, Noisy
from twinset.privacy.mechanism.randomness import Randomness
from twinset.run.run_folder import COLUMN_VALUES
from twinset.sampling.column_model import (
    CLEAR,
    MOST_BINS,
    ColumnModel,
    choose_tree,
    cut_bins,
    fit_columns,
    grid_shares,
    level_codes,
)
from twinset.table.cells import LINED, SURVEY_SIZES, Cells, survey_codes
from twinset.table.kinds import (
    CATEGORY,
    DATE,
    GAPS,
    HARDLY,
    IDENTIFIER,
    MOST_VALUES,
    NUMBER,
    OTHER,
    TEXT,
    TRUTH,
    Column,
    ColumnRules,
)
from twinset.table.survey import SOME, describe_column, text_dtype, with_values
from twinset.table.tokenization import OTHER_TOKENS

# Parts of σ⁻², which adds up: of kinds and ranges, of grids, of labels with each column, of the
# scores of pairs, and of the chosen pairs.
SURVEY, GRIDS, LABELS, SCORES, PAIRS = 0.2, 0.2, 0.25, 0.05, 0.3
IN_MODEL = (CATEGORY, NUMBER, DATE, TRUTH, TEXT)
MOST_TEXTS = 3  # columns of texts that are kept without being declared. Each takes time to write.
HALF = 0.5  # share of a category's cells that its released values must have
NOISE_COST = 0.2  # records that a cell's noise moves, for a deviation of 1, once fitted
FEW = 2.0  # deviations of noise that a cell has on average, in a table with labels or of a pair


class ColumnRelease:
    """Releases the columns of one run, part by part.

    Args:
        private: by name (N,) cells.
        labels: (N,) number of each record's label combination.
        combinations: C, of labels.
        units: records of each unit that are counted, m at most.
        rules: what the owner declared.
        noise_multiplier: σ of all histograms and scores together. 0: no privacy.
        selection: of values, planned for all columns without declared values. None: all columns
            have them, or there is no privacy.
        gate: which all parts pass, and the selection.
        randomness: its noise streams are used.
        together: units whose δ together was planned.
    """

    def __init__(
        self,
        private: Mapping[str, pd.Series],
        labels: np.ndarray,
        combinations: int,
        units: Sequence[Sequence[int]],
        rules: ColumnRules,
        noise_multiplier: float,
        selection: LabelSelection | None,
        gate: Gate,
        randomness: Randomness,
        together: int = 1,
    ) -> None:
        self.labels, self.combinations, self.units = labels, combinations, units
        self.rules, self.gate, self.together = rules, gate, together
        self.sigma, self.selection, self.randomness = noise_multiplier, selection, randomness
        self.stated = [column.iloc[:0] for column in private.values()]
        self.cells = [Cells.of(column) for column in private.values()]
        self.weights = unit_weights(units, len(labels))
        self.columns: list[Column] = []
        self.lines: list[np.ndarray] = []  # of each column, the share of lines by their words
        self.codes: list[np.ndarray] = []  # (N,) of each column, the number of each cell's value

    def count(
        self,
        part: float,
        codes: Sequence[np.ndarray],
        sizes: Sequence[int],
        most: int | None = None,
    ) -> tuple[list[np.ndarray], float]:
        """Return noisy histograms, paid for by a part of σ⁻², and the deviation of their noise."""
        sigma = self.sigma / part**0.5
        return self.gate.release(
            release_histograms(codes, sizes, self.weights, sigma, self.randomness, most)
        )

    def find_kinds(self) -> None:
        """Count what cells are, how they are written and how large, and decide on kinds."""
        codes = [code for column in self.cells for code in survey_codes(column).T]
        columns = len(self.cells)
        found, deviation = self.count(SURVEY, codes, [*SURVEY_SIZES] * columns, 3 * columns)
        for place, stated in enumerate(self.stated):
            survey = found[3 * place : 3 * place + 3]
            self.columns.append(describe_column(stated, survey, deviation, self.rules))
            lines = survey[2][LINED:]
            self.lines.append(on_simplex(np.where(lines > CLEAR * deviation, lines, 0.0)))

    def find_values(self) -> None:
        """Select the values of categories, and of what may be identifiers, by noisy counts.

        Declared values are public, so nothing is counted.
        """
        declared = self.rules.values
        for place, own in enumerate(self.columns):
            if own.name in declared:
                own = with_values(own, declared[own.name], self.stated[place])
                self.columns[place] = replace(own, is_closed=True)
        those = [i for i, c in enumerate(self.columns) if c.kind in (CATEGORY, IDENTIFIER)]
        chosen = [i for i in those if self.columns[i].name not in declared]
        if not chosen:
            return
        counted = [row for unit in self.units for row in unit]
        texts = []
        for column in (self.cells[i] for i in chosen):
            texts.append([column.texts[p] for p in column.places[counted].tolist() if p >= 0])
        if self.selection is None:
            counts = (Counter(each).most_common() for each in texts)
            exact = [{value: n for value, n in each if n > 1} for each in counts]
            found = self.gate.release(Noisy(exact, None))
        else:
            # fewer columns than planned have less noise, and cost no more δ
            planned, units = self.selection, self.together
            selection = least_threshold(
                planned.noise_multiplier, len(chosen), planned.most, units, planned.delta(units)
            )
            noisy = select_label_values(texts, selection, self.randomness)
            found = self.gate.release(noisy, COLUMN_VALUES)
        for place, values in zip(chosen, found, strict=True):
            own, kept = self.columns[place], sorted(list(values)[:MOST_VALUES])
            if own.kind == IDENTIFIER and kept and own.name not in self.rules.kinds:
                # a code that repeats, and no identifier
                own = own.repeating()
            if own.kind == CATEGORY:
                own = with_values(own, kept, self.stated[place])
            self.columns[place] = own

    def find_grids(self) -> list[np.ndarray]:
        """Count numbers and dates on their grids. Return (size,) the share of each value.

        The same release tells how many cells have a public value of their category. If most have
        none, the column is no category, unless it was declared.
        """
        codes, sizes, starts = list[np.ndarray](), list[int](), list[int]()
        for column, cells in zip(self.columns, self.cells, strict=True):
            starts.append(len(codes))
            self.codes.append(own := column.encode(cells))
            if column.kind == CATEGORY:
                inside = np.where(own < len(column.values), 0, 1)
                codes.append(np.where(cells.places < 0, -1, inside))
                sizes.append(2)
            if column.kind in (NUMBER, DATE):
                grid = len(column.edges) - 1
                for level, size in level_codes(np.where(own == grid, -1, own), grid):
                    codes.append(level)
                    sizes.append(size)
        if not codes:
            return [np.ones(column.size) for column in self.columns]
        found, deviation = self.count(GRIDS, codes, sizes)
        shares = []
        for place, (column, start) in enumerate(zip(self.columns, starts, strict=True)):
            levels = found[start : [*starts, len(codes)][place + 1]]
            if column.kind == CATEGORY:
                inside, outside = levels.pop(0)
                repeats = inside >= HALF * (inside + outside) and len(column.values) > 0
                if not repeats and column.name not in self.rules.kinds:
                    if any(isinstance(value, int) for value in column.values):
                        column = Column(column.name, IDENTIFIER, column.dtype)  # of large numbers
                    else:
                        column = Column(column.name, TEXT, text_dtype(self.stated[place]))
                    self.codes[place] = column.encode(self.cells[place])
                if column.is_closed and outside > max(CLEAR * deviation, SOME * inside):
                    odd = outside / max(outside, inside + outside)
                    column = replace(column, odd=round(float(odd), 3))
            own_shares = np.ones(column.size)
            if levels:
                own_shares[:-1] = grid_shares(levels, deviation)
            self.columns[place] = column
            shares.append(own_shares)
        return shares

    def find_bins(
        self, shares: Sequence[np.ndarray], kept: Sequence[int]
    ) -> tuple[list[np.ndarray], list[int]]:
        """Return the model's value of each value (size,), and how many there are of each column.

        Numbers are cut into bins so large that noise does not drown a table of them: with labels,
        and of two columns.
        """
        records = len(self.units)  # N is public
        deviation = self.sigma / LABELS**0.5 * (2 * len(kept)) ** 0.5
        of_labels = records / max(1e-9, FEW * deviation * self.combinations)
        deviation = self.sigma / PAIRS**0.5 * (len(kept) - 1) ** 0.5
        of_pairs = (records / max(1e-9, FEW * deviation)) ** 0.5
        most = int(min(MOST_BINS, max(2.0, min(of_labels, of_pairs))))
        bins, sizes = [], []
        for place in kept:
            column = self.columns[place]
            own = np.arange(column.size)
            if column.edges:
                own = np.append(cut_bins(shares[place][:-1], most), 0)
                own[-1] = own.max() + 1  # a gap
            bins.append(own)
            sizes.append(int(own.max()) + 1)
        return bins, sizes

    def find_model(self, label_counts: Sequence[float]) -> ColumnModel | None:
        """Release all parts, and return the fitted model. None: no column can be kept.

        Args:
            label_counts: (C,) noisy counts of label combinations, released before.
        """
        self.find_kinds()
        self.find_values()
        shares = self.find_grids()
        texts = [i for i, c in enumerate(self.columns) if c.kind == TEXT]
        for i in texts:
            self.columns[i] = replace(self.columns[i], lengths=tuple(self.lines[i].tolist()))
        free = [i for i in texts if self.columns[i].name not in self.rules.kinds]
        left_out = free[MOST_TEXTS:]
        kept = [i for i, c in enumerate(self.columns) if c.kind in IN_MODEL and i not in left_out]
        made = [c for c in self.columns if c.kind in (IDENTIFIER, GAPS)]
        if not kept:
            return ColumnModel.without_tables(made) if made else None
        bins, sizes = self.find_bins(shares, kept)
        labels, combinations = self.labels, self.combinations
        codes = [
            np.append(own, -1)[self.codes[place]] for place, own in zip(kept, bins, strict=True)
        ]

        # each column alone, and with the labels
        joint = [
            np.where(code < 0, -1, labels * size + code)
            for size, code in zip(sizes, codes, strict=True)
        ]
        found, deviation = self.count(
            LABELS, [*codes, *joint], [*sizes, *(combinations * size for size in sizes)]
        )
        alone = found[: len(kept)]
        # others and gaps that are hardly more than noise are not there
        is_there = []
        for place, counts in zip(kept, alone, strict=True):
            mask = np.ones(len(counts), bool)
            own = self.columns[place]
            last = 1 + len(own.others) if own.kind == CATEGORY else 1
            mask[-last:] = counts[-last:] > CLEAR * deviation
            is_there.append(mask if mask.any() else ~mask)
        counted, predicted = [], []  # (C, K) of each column, and the same of 0 or more
        for number, (mask, size) in enumerate(zip(is_there, sizes, strict=True)):
            both = found[len(kept) + number].reshape(combinations, size)[:, mask]
            counted.append(both)
            table = np.zeros((combinations, size))
            table[:, mask] = on_simplex(both.ravel()).reshape(both.shape) * max(both.sum(), 1.0)
            predicted.append(table)

        # pairs that labels do not explain
        pairs = list(pairs_of(range(len(kept)), 2))
        edges: list[tuple[int, int]] = []
        if pairs:
            mass = np.maximum(predicted[0].sum(1), 1e-9)  # (C,)

            def expected(a: int, b: int) -> np.ndarray:
                shares_of_b = predicted[b] / np.maximum(predicted[b].sum(1, keepdims=True), 1e-9)
                rows = predicted[a] * (mass / np.maximum(predicted[a].sum(1), 1e-9))[:, None]
                product: np.ndarray = rows.T @ shares_of_b
                return product

            sigma = self.sigma / SCORES**0.5
            noisy = release_pair_scores(
                codes, sizes, pairs, expected, self.weights, sigma, self.randomness
            )
            scores, _ = self.gate.release(noisy)
            noise = self.sigma / PAIRS**0.5 * max(1, len(kept) - 1) ** 0.5
            gains = []
            for score, (a, b) in zip(scores.tolist(), pairs, strict=True):
                # What chance alone moves, and a part of what the noise of a table would.
                chance = np.sqrt(2 / math.pi * expected(a, b)).sum()
                cost = NOISE_COST * noise * sizes[a] * sizes[b]
                gains.append(score - chance - cost)
            edges = choose_tree(pairs, gains, sizes, combinations)
        tables = {}  # (K, K') of each chosen pair
        if edges:
            crossed = [
                np.where((codes[a] < 0) | (codes[b] < 0), -1, codes[a] * sizes[b] + codes[b])
                for a, b in edges
            ]
            found, _ = self.count(PAIRS, crossed, [sizes[a] * sizes[b] for a, b in edges])
            for (a, b), counts in zip(edges, found, strict=True):
                both = counts.reshape(sizes[a], sizes[b])
                tables[a, b] = both[is_there[a]][:, is_there[b]]
        for number, mask in enumerate(is_there):  # number what is there from 0
            new = np.where(mask, np.cumsum(mask) - 1, -1)
            bins[number] = new[bins[number]]
        return fit_columns(
            [self.columns[place] for place in kept],
            bins,
            [shares[place] for place in kept],
            label_counts,
            [own[mask] for own, mask in zip(alone, is_there, strict=True)],
            counted,
            tables,
        ).with_columns(made)


def column_notes(columns: Sequence[Column], left_out: Sequence[str]) -> list[str]:
    """Return what became of the other columns, for their owner. All of it follows from releases."""
    stated = [f"{column.name!r} ({column.kind})" for column in columns]
    found = [f"the twin has {', '.join(stated)}"] if stated else []
    if texts := [repr(column.name) for column in columns if column.kind == TEXT]:
        them = "they have" if len(texts) > 1 else "it has"
        found.append(
            f"the model writes {', '.join(texts)} behind each text. In the twin {them} one line of "
            f"{OTHER_TOKENS} tokens at most."
        )
    ones = {NUMBER: "a number", DATE: "a date", TRUTH: "a yes or a no"}
    ones |= {CATEGORY: "a declared value"}
    for column in columns:
        if column.kind == IDENTIFIER:  # all of its cells are new
            continue
        name, one = repr(column.name), ones.get(column.kind, "filled")
        if column.odd >= HARDLY:  # or outside a range, where they are no gaps
            found.append(
                f"about {column.odd:.0%} of the filled cells of {name} are not {one} that fits. "
                "The twin has gaps there, or only what fits. Declare other `kinds`, `ranges` or "
                "`values`."
            )
        elif column.odd:
            found.append(
                f"about {column.odd:.1%} of the filled cells of {name} are not {one}. They are "
                "gaps in the twin."
            )
        elif column.kind == CATEGORY and not column.values:
            found.append(
                f"no value of {name} is in enough records to be kept, so all of its cells are "
                f"{OTHER!r}. Leave it out of `kinds`."
            )
    if left_out:
        found.append(
            f"leaving out {', '.join(map(repr, left_out))}: only {MOST_TEXTS} further columns of "
            "texts are kept, as each takes time to write, and no lists or objects. Declare a text "
            "as in `kinds={'NAME': 'text'}`. Write lists and objects as text before."
        )
    return found
