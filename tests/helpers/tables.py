"""Made-up columns, what a release makes of them, and labels as a run without noise finds them."""

from collections import Counter

import numpy as np
import pandas as pd

from twinset.privacy.mechanism.gate import Gate
from twinset.privacy.mechanism.randomness import Randomness
from twinset.run.columns import ColumnRelease
from twinset.table.kinds import ColumnRules
from twinset.table.labels import SELECTED

N = 600
rng = np.random.default_rng(0)
LABELS = rng.integers(0, 2, N)
DAYS = [pd.Timestamp("2023-01-01") + pd.Timedelta(days=int(d)) for d in rng.integers(0, 700, N)]
HOURS = pd.Series(DAYS) + pd.to_timedelta(np.arange(N) % 24, "h")


def release(frame, rules=None, sigma=0.0):
    private, noise = {c: frame[c] for c in frame}, Randomness.for_tests(0)
    gate = Gate(print, is_private=False)
    units, rules = [[i] for i in range(N)], rules or ColumnRules()
    found = ColumnRelease(private, LABELS, 2, units, rules, sigma, None, gate, noise)
    model = found.find_model(np.bincount(LABELS).tolist())
    return {c.name: c for c in found.columns}, model


def with_found(records, notes, found=()):
    """Return records with the values that were found; all of columns that are not named."""
    counts = {n: dict(Counter(records.values_of(n)).most_common()) for n in records.undeclared}
    return records.with_values(counts | dict(found), SELECTED, notes)
