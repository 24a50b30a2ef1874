"""Results as a page of Markdown beside their JSON. Knows nothing of what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from twinset.files.atomic import write_json, write_text


def publish(path: Path, found: Mapping[str, Any], page: str) -> None:
    """Write what was found, and the page beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, found)
    write_text(path.with_suffix(".md"), page)


def page(title: str, *parts: Iterable[str]) -> str:
    """Return a page of parts of lines."""
    lines = [f"# {title}", *(line for part in parts for line in ("", *part))]
    return "\n".join(lines) + "\n"


def facts(found: Mapping[str, Any], *without: str) -> list[str]:
    """Return a bullet for each value, but for those named."""
    return [f"- {k.replace('_', ' ')}: {v}" for k, v in found.items() if k not in without]


def table(header: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> list[str]:
    """Return the lines of a table: the first columns to the left, the others to the right.

    Args:
        header: Markdown.
        rows: Markdown, a sequence of cells each.
        left: columns to the left: of words, not of numbers.

    >>> table(["", "time"], [["step", "2 s"]])
    ['|  | time |', '| --- | ---: |', '| step | 2 s |']
    """
    rule = ["---"] * left + ["---:"] * (len(header) - left)
    return [f"| {' | '.join(cells)} |" for cells in (header, rule, *rows)]
