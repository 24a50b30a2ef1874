"""Numbers as a reader wants to see them. No text that these return needs more digits to be read."""

from __future__ import annotations

import math

from evaluation.findings import Score

UNKNOWN = "–"
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float | None) -> str:
    """Return about three digits that count; a dash for what is no number.

    >>> number(0.70449), number(12345.6), number(-0.5), number(1e-5), number(float("nan"))
    ('0.704', '12,346', '−0.500', '1.0 × 10⁻⁵', '–')
    """
    if value is None or math.isnan(value):
        return UNKNOWN
    size = abs(value)
    if math.isinf(size):
        digits = "∞"
    elif 0 < size < 0.0005:
        digits = power(f"{size:.1e}")
    else:
        decimals = 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 10 else 3
        digits = f"{size:,.{decimals}f}"
    return f"−{digits}" if value < 0 else digits


def power(scientific: str) -> str:
    """Write out what `%e` or `%g` returned; other numbers stay.

    >>> power("2.52e-07"), power("1e-05"), power("0.001")
    ('2.52 × 10⁻⁷', '10⁻⁵', '0.001')
    """
    mantissa, mark, exponent = scientific.partition("e")
    if not mark:
        return scientific
    raised = "10" + str(int(exponent)).translate(_SUPERSCRIPT)
    return raised if mantissa == "1" else f"{mantissa} × {raised}"


def short(value: float) -> str:
    """Return a round number, as on an axis, in as few digits as it has.

    >>> short(0.5), short(2000.0), short(1e-5), short(-1.0), short(0.25)
    ('0.5', '2,000', '10⁻⁵', '−1', '0.25')
    """
    digits = f"{abs(value):.4g}" if abs(value) < 1000 else f"{abs(value):,.0f}"
    return ("−" if value < 0 else "") + power(digits)


def interval(score: Score) -> str:
    """Return a score's 95 % interval, "" where it has none."""
    if not has_interval(score):
        return ""
    return f"[{number(score.low)}, {number(score.high)}]"


def with_interval(score: Score) -> str:
    """Return "0.812 [0.794, 0.829]", as far as it is known."""
    return f"{number(score.value)} {interval(score)}".rstrip()


def has_interval(score: Score) -> bool:
    """Return whether a value is known, and how well."""
    return not any(map(math.isnan, (score.value, score.low, score.high)))
