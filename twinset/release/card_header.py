"""The YAML header of a data-set card: what `datasets` and a hub read, and the privacy figures.

Knows nothing of the card's text below it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from twinset.privacy.statement.guarantee import Guarantee, protects_whole_records
from twinset.release.markdown import one_line

_HEADER = re.compile(r"---\n(.*?\n)---\n", re.DOTALL)
_MOST_DEPTH = 20  # ours have 3
_MOST_HEADER = 20_000  # characters; ours have 700
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

    private = protects_whole_records(numbers["epsilon"], numbers["unit"])
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
        header = _plain_yaml(found[1]) if found and len(found[1]) <= _MOST_HEADER else None
    except (yaml.YAMLError, ValueError, ArithmeticError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise ValueError("the card has no readable YAML header")
    return header


def _plain_yaml(text: str) -> Any:
    """Read YAML without what lets a few lines stand for a great many, or for other than values.

    Raises:
        ValueError: it has an anchor, an alias, a merge or a tag, or is deep: the time that the
            parser takes grows with the square of the depth.
    """
    import yaml

    depth = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        refers = isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None
        tagged = getattr(event, "tag", None) is not None or getattr(event, "value", "") == "<<"
        if refers or tagged or depth > _MOST_DEPTH:
            raise ValueError("the header must hold plain values")
    return yaml.safe_load(text)


def data_file(header: Mapping[str, Any]) -> Any:
    """Return the file that a header has `datasets` read, or None where it is not just one."""
    match header.get("configs"):
        case [{"data_files": file}]:
            return file
    return None


def _size(rows: int) -> str:
    return next((name for name, limit in _SIZES if rows < limit), "n>1M")
