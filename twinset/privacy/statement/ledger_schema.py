"""What each field of a ledger may hold. Knows no ledger."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from twinset.privacy.mechanism.privacy_weight import WeightScale

FORMAT_VERSION = 2  # of ledgers, and so of run folders, model folders and shares, which hold one
MOST = 2**63 - 1  # of whole numbers: arithmetic with floats fails on a JSON number that is larger


def _number(value: Any) -> bool:
    largest = sys.float_info.max  # a JSON number may be larger; NaN and infinity are none here
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= largest


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MOST


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _texts(value: Any) -> bool:
    return isinstance(value, tuple) and all(map(_text, value))


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _pairs(value: Any) -> bool:
    return isinstance(value, tuple) and all(_texts(pair) and len(pair) == 2 for pair in value)


def format_fault(stated: object) -> str | None:
    """Return why a file of this format cannot be read here, None where it can.

    What is no whole number is for the reader that expects one.
    """
    if not _whole(stated) or stated == FORMAT_VERSION:
        return None
    older = isinstance(stated, int) and stated < FORMAT_VERSION
    remedy = (
        "use the older twinset that wrote it, or make the run anew" if older else "upgrade twinset"
    )
    return f"has format_version {stated}, and this twinset reads {FORMAT_VERSION}; {remedy}"


CHECKS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "delta": ("a number between 0 and 1", lambda v: _number(v) and 0 < v < 1),
    "target_epsilon": (
        "a finite number above 0, or null",
        lambda v: v is None or (_number(v) and v > 0),
    ),
    "records": ("a whole number of at least 1", lambda v: _whole(v) and v >= 1),
    "sample_rate": ("above 0 and at most 1", lambda v: _number(v) and 0 < v <= 1),
    "max_grad_norm": ("a finite number above 0", lambda v: _number(v) and v > 0),
    "format_version": (str(FORMAT_VERSION), lambda v: _whole(v) and v == FORMAT_VERSION),
    "events": ("a list of events", lambda v: isinstance(v, list)),
    "library_versions": ("an object of texts", _pairs),
    "group_size": ("a whole number of at least 2", lambda v: v is None or (_whole(v) and v >= 2)),
    "weight_scale": ("an object, or null", lambda v: v is None or isinstance(v, WeightScale)),
    **dict.fromkeys(("randomness_is_private", "records_public"), ("true or false", _flag)),
    **dict.fromkeys(("public_inputs", "caveats"), ("a list of texts", _texts)),
    **dict.fromkeys(
        ("randomness", "policy", "policy_form", "unit", "neighbouring", "sampler", "clipping"),
        ("a text that is not blank", _text),
    ),
}
