"""Detectors: which spans of a text are private.

A detector is one file and one line in `DETECTORS`. What it does not flag, selective privacy does
not protect; `twinset detect` measures what it flags.
"""

from __future__ import annotations

from collections.abc import Callable

from twinset.detectors.custom import Own
from twinset.detectors.entities import Contextual, Entities
from twinset.detectors.patterns import Patterns
from twinset.detectors.spans import Detector, Span
from twinset.errors import InputError

DETECTORS: dict[str, Callable[[], Detector]] = {
    "patterns": Patterns,
    "entities": Entities,
    "contextual": Contextual,
}


def detector_named(name: str) -> Detector:
    """Return the detector of this name, or the user's own, written `module:function`.

    Raises:
        InputError: there is none, its library is not installed, or the function cannot be had.
    """
    if ":" in name:
        return Own(name)
    if name not in DETECTORS:
        choices = ", ".join(DETECTORS)
        raise InputError(f"`detector`: {name!r} is none of {choices}, nor written module:function")
    return DETECTORS[name]()


__all__ = ["DETECTORS", "Detector", "Span", "detector_named"]
