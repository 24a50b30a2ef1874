"""What of a private table's shape is released: names, dtypes and public values of its twin.

Nothing here may hang on a single record: dtypes are stated by the table, or follow from the public
values alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from twinset.table.chosen_columns import ChosenColumns
from twinset.table.formats import is_named_by_rows, stated_dtype
from twinset.table.label_codes import LabelCodes
from twinset.table.label_column import check_number_of_values
from twinset.table.label_rules import LabelRules
from twinset.table.label_values import OWNER, PROMPT, PublicLabels
from twinset.table.schema import ORDERED, Attribute, LabelValue, Schema

_CONVERTED = ("date", "time", "period", "decimal", "duration")  # dtypes whose values are changed


def schema_of(
    chosen: ChosenColumns,
    labels: Mapping[str, LabelCodes],
    public: Mapping[str, PublicLabels],
    rules: LabelRules | None,
) -> Schema:
    """Return the schema of records.

    Args:
        chosen: their columns.
        labels: of each attribute, row by row.
        public: the same with what is declared; empty: nothing of these rows is published.
        rules: which values are public.

    Raises:
        InputError: a column has one value, or too many.
    """
    bins = rules.bins if rules else {}
    return Schema(
        text=chosen.text,
        text_dtype=_dtype_name(chosen.frame, chosen.text, [""]),
        attributes=tuple(
            _declared(chosen, name, public[name], name in bins)
            if name in public and public[name].whose in (OWNER, PROMPT)
            else _from_rows(chosen, name, labels[name])
            for name in chosen.attributes
        ),
        columns=_order(chosen),
    )


def _declared(chosen: ChosenColumns, name: str, public: PublicLabels, is_binned: bool) -> Attribute:
    """Return a label column whose values were declared, by its owner or by the prompt."""
    values = tuple(public.codes.values)
    plain = str(pd.Series(values).dtype)
    return Attribute(name, plain if is_binned else _dtype_name(chosen.frame, name, values), values)


def _from_rows(chosen: ChosenColumns, name: str, found: LabelCodes) -> Attribute:
    """Return a label column whose values are those that rows have."""
    column = chosen.frame[name]
    rows = np.arange(len(found.numbers))
    check_number_of_values(found.of_rows(rows), chosen.places[name], name)
    distinct = {found.values[number] for number in np.unique(found.numbers).tolist()}
    order = column.cat.categories.tolist() if _is_ordered(column) else sorted(distinct)
    values = tuple(value for value in order if value in distinct)
    return Attribute(name, _dtype_name(chosen.frame, name, values), values)


def _order(chosen: ChosenColumns) -> tuple[str, ...]:
    """Return the order of the twin's columns: the table's, unless single rows decide that."""
    if is_named_by_rows(chosen.frame):
        return tuple(chosen.names)
    return tuple(str(name) for name in chosen.frame.columns if name in chosen.names)


def _dtype_name(frame: pd.DataFrame, name: str, values: Sequence[LabelValue]) -> str:
    """Return the dtype of a twin's column: as stated, or what the public values alone have."""
    if _is_ordered(frame[name]):
        return ORDERED
    stated, plain = stated_dtype(frame, name), str(pd.Series(list(values)).dtype)
    if stated is None or stated.startswith(_CONVERTED) or (stated == "object" and plain != "str"):
        return plain
    return stated


def _is_ordered(column: pd.Series) -> bool:
    return isinstance(column.dtype, pd.CategoricalDtype) and bool(column.dtype.ordered)
