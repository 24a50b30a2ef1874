"""Label values as a run without noise would find them."""

from collections import Counter
from collections.abc import Mapping

from twinset.table.labels import SELECTED
from twinset.table.records import Records


def with_found(records: Records, notes: list[str], found: Mapping = {}) -> Records:
    """Return records with the values that were found; all of columns that are not named."""
    counts = {n: dict(Counter(records.values_of(n)).most_common()) for n in records.undeclared}
    return records.with_values(counts | dict(found), SELECTED, notes)
