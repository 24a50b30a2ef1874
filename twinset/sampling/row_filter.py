"""Which rows are drawn again because nobody wants them: web debris, vulgar words. Knows texts only.

The patterns are public and the same for every table, so that filtering is post-processing: it moves
no guarantee. How often the private texts hold such words is not asked, since that would read them.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path

from twinset.config.run_config import Filter


def is_unwanted(text: str, kinds: Filter) -> bool:
    """Return whether a text holds what is filtered.

    >>> [is_unwanted("Labels:Class a fine film", kinds) for kinds in ("none", "debris", "vulgar")]
    [False, True, False]
    """
    return any(pattern.search(text) for pattern in _patterns(kinds))


@cache
def _patterns(kinds: Filter) -> list[re.Pattern[str]]:
    lists = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    chosen = {"none": [], "all": list(lists)}.get(kinds, [kinds])
    return [
        re.compile(line, re.IGNORECASE | re.MULTILINE) for kind in chosen for line in lists[kind]
    ]
