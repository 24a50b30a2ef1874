"""The YAML header of a data-set card: what `datasets` and a hub read, and the privacy figures.

Knows nothing of the card's text below it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from twinset.markdown import one_line
from twinset.privacy.guarantee import Guarantee
from twinset.privacy.ledger import FLAGGED_UNIT

_HEADER = re.compile(r"---\n(.*?\n)---\n", re.DOTALL)
_SIZES = (("n<1K", 10**3), ("1K<n<10K", 10**4), ("10K<n<100K", 10**5), ("100K<n<1M", 10**6))
_READ_AS_WRITTEN: dict[str, dict[str, Any]] = {  # in CSV and TSV "NA" and "null" are texts
    "csv": {"keep_default_na": False},
    "tsv": {"sep": "\t", "keep_default_na": False},
}


def ledger_digest(ledger: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a ledger's plain values; the order of its fields does not count."""
    return hashlib.sha256(json.dumps(ledger, sort_keys=True).encode()).hexdigest()


def stated_numbers(ledger: Mapping[str, Any], claim: Guarantee, rows: int) -> dict[str, Any]:
    """Return what the card's header says under `privacy`, for `verify` to compare."""
    return {
        "epsilon": claim.epsilon,
        "delta": claim.delta,
        "unit": claim.unit,
        "neighbouring": claim.neighbouring,
        "rows": rows,
        "ledger_sha256": ledger_digest(ledger),
    }


def render_header(
    title: str, licence: str, format: str, labelled: bool, numbers: Mapping[str, Any]
) -> str:
    """Return the header with the lines of dashes around it.

    Args:
        title: shown by a hub.
        licence: a hub's identifier for it.
        format: the twin's, an ending of `FORMATS` without its dot.
        labelled: whether the twin has label columns.
        numbers: of `stated_numbers`.
    """
    import yaml

    private = numbers["epsilon"] is not None and numbers["unit"] != FLAGGED_UNIT
    options = _READ_AS_WRITTEN.get(format.split(".")[0], {})
    header = {
        "pretty_name": one_line(title),
        "license": one_line(licence),
        "tags": ["synthetic", *(["differential-privacy"] if private else [])],
        **({"task_categories": ["text-classification"]} if labelled else {}),
        "size_categories": [_size(numbers["rows"])],
        "configs": [{"config_name": "default", "data_files": f"twin.{format}", **options}],
        "privacy": dict(numbers),
    }
    text = yaml.safe_dump(header, allow_unicode=True, sort_keys=False, width=float("inf"))
    return f"---\n{text}---\n"


def read_header(card: str) -> dict[str, Any]:
    """Return the YAML header of a card as plain values.

    Raises:
        ValueError: there is none, or it is not a YAML mapping.
    """
    import yaml

    found = _HEADER.match(card)
    try:
        header = yaml.safe_load(found[1]) if found else None
    except (yaml.YAMLError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise ValueError("the card has no readable YAML header")
    return header


def data_file(header: Mapping[str, Any]) -> Any:
    """Return the file that a header has `datasets` read, or None where it is not just one."""
    match header.get("configs"):
        case [{"data_files": file}]:
            return file
    return None


def _size(rows: int) -> str:
    return next((name for name, limit in _SIZES if rows < limit), "n>1M")
