"""The sentences of the page that do not depend on the run: meanings.toml holds them."""

from __future__ import annotations

import tomllib
from pathlib import Path

from evaluation.findings import Score

_STATED = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
SECTIONS: dict[str, dict[str, str]] = _STATED["section"]
MISSING: dict[str, dict[str, str]] = _STATED["missing"]
RULES: dict[str, str] = _STATED["rule"]


def meaning(name: str, score: Score | None = None) -> str:
    """Return the sentence for a measure; for one that is not known here, which way it should go."""
    if name in _STATED["measure"]:
        return str(_STATED["measure"][name])
    for start, sentence in _STATED["start"].items():
        if name.lower().startswith(start.lower()):
            return str(sentence)
    return _STATED["goal"][score.goal] if score else "Read each line from left to right."
