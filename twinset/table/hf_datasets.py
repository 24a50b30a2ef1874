"""Tables kept by the `datasets` library: folders of `save_to_disk`, and the hub.

Never runs code that comes with a data set. Whatever that library raises may quote the data, so its
messages are not passed on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from twinset.errors import InputError
from twinset.files.limits import check_names
from twinset.table.arrow_files import table_frame
from twinset.table.lazy_columns import ROWS_AT_ONCE, Reading

_HUB_TIMEOUT = 10.0  # seconds until the hub counts as out of reach
_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


def saved(folder: Path, split: str | None) -> Reading:
    """Return the ways to read a folder of `datasets.save_to_disk`, with or without splits.

    Raises:
        InputError: another kind of folder, or a split that is not in it.
    """
    from datasets import DatasetDict, load_from_disk

    try:
        loaded = load_from_disk(str(folder))
    except Exception:
        raise InputError(
            f"{folder}: not a folder saved by datasets.save_to_disk; name a file in it"
        ) from None
    if not isinstance(loaded, DatasetDict):
        loaded = {str(loaded.split) if loaded.split else "train": loaded}
    if split is None and len(loaded) == 1:
        split = next(iter(loaded))
    if split not in loaded:
        raise InputError(f"{folder}: choose a split with `split`: {', '.join(loaded)}")
    return dataset(loaded[split], str(folder), "save the data set again")


def dataset(data: Any, source: str, remedy: str) -> Reading:
    """Return the ways to read a `datasets.Dataset`."""
    check_names(data.column_names, source)
    tables = data.with_format("arrow")
    damaged = f"{source}: its data are damaged; {remedy}"

    @contextmanager
    def checked() -> Iterator[None]:
        try:
            yield
        except Exception:  # a damaged cell; the message may hold it
            raise InputError(damaged) from None

    def whole() -> pd.DataFrame:
        with checked():
            return table_frame(tables[:])

    def pieces() -> Iterator[pd.DataFrame]:
        with checked():
            yield from map(table_frame, tables.iter(ROWS_AT_ONCE))

    def column(place: int, name: str) -> pd.Series:
        with checked():
            return table_frame(tables.select_columns([name])[:])[name]

    kinds = {name: str(getattr(kind, "dtype", "")) for name, kind in data.features.items()}
    declared = {n: kind for n, kind in kinds.items() if re.fullmatch(r"u?int\d+|bool", kind)}
    return Reading(whole, pieces, column, declared)


def on_hub(name: str, split: str | None) -> Reading:
    """Return the ways to read a data set of the hub (`owner/name`); its own cache keeps a copy.

    Raises:
        InputError: not a hub name, no network, no such data set or split, or several splits.
    """
    missing = f"{name}: no such file or folder"
    if not _HUB_NAME.fullmatch(name):
        raise InputError(f"{missing}; check the path")
    from datasets import get_dataset_split_names, load_dataset
    from huggingface_hub import HfApi, constants

    try:
        if not constants.HF_HUB_OFFLINE:  # offline, the library's own cache may still have it
            # One try: `datasets` would retry for half a minute, and print every one of them.
            HfApi().dataset_info(name, timeout=_HUB_TIMEOUT)
        splits = [split] if split is not None else get_dataset_split_names(name)
        loaded = load_dataset(name, split=splits[0]) if len(splits) == 1 else None
    except Exception:  # no network, no such name or split, gated, code of its own: dozens of kinds
        raise InputError(
            f"{missing}, and no such data set or split can be loaded from the hub; download it "
            "and give a CSV, Parquet or JSONL file"
        ) from None
    if loaded is None:
        raise InputError(f"{name}: choose a split with `split`: {', '.join(splits)}")
    return dataset(loaded, name, "download the data set again")
