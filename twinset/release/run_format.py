"""The format that a run's files are of: those of another are refused before anything in them is."""

from __future__ import annotations

import json
from pathlib import Path

from twinset.errors import DAMAGED, InputError
from twinset.files.limits import read_text
from twinset.privacy.statement.ledger import format_fault

LEDGER = "ledger.json"  # of a model folder, and of a checkpoint


def check_format(path: Path, stated: object) -> None:
    """Refuse a file that says it is of another format than this twinset's.

    Raises:
        InputError: it does; the line names both, and what to do.
    """
    if wrong := format_fault(stated):
        raise InputError(f"{path}: {wrong}")


def check_file_format(path: Path) -> None:
    """Refuse a ledger or `privacy.json` of another format; what else is wrong is for its reader.

    Raises:
        InputError: see `check_format`.
    """
    try:
        stated = json.loads(read_text(path))["format_version"]
    except DAMAGED:
        return
    check_format(path, stated)
