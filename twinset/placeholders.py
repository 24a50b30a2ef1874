"""Where a prompt says that a column's value goes, and how values are put there. Knows no schema."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# A placeholder is a column name between braces, looked up as it stands. `str.format` is never used:
# its attribute access, indices and conversions have no meaning here, and column names may hold any
# of their characters ("star rating", "star.rating").
PLACEHOLDER = re.compile(r"\{([^{}]+)\}")


def placeholders(pattern: str) -> list[str]:
    """Return the columns that a prompt names."""
    return list(dict.fromkeys(PLACEHOLDER.findall(pattern)))


def fill(pattern: str, values: Mapping[str, Any]) -> str:
    """Return a prompt with its placeholders' values.

    >>> fill("Write a {star rating} review:", {"star rating": 5.0, "text": "Good."})
    'Write a 5 review:'
    """
    return PLACEHOLDER.sub(lambda match: plain(values[match[1]]), pattern)


def plain(value: Any) -> str:
    """Return a value as a person writes it: 5 for 5.0."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
