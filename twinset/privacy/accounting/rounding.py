"""Numbers of a guarantee in digits: rounded up, so that no stated ε or δ is below the computed."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Context, Decimal


def up_decimals(value: float) -> str:
    """Round up to two decimals; infinity is "infinite".

    >>> up_decimals(7.9964), up_decimals(0.001)
    ('8.00', '0.01')
    """
    if math.isinf(value):
        return "infinite"
    return str(Decimal(value).quantize(Decimal("0.01"), ROUND_CEILING))


def up_digits(value: float) -> str:
    """Round up to three significant digits.

    >>> up_digits(1e-5), up_digits(2.5114e-07)
    ('1e-05', '2.52e-07')
    """
    return f"{float(Context(prec=3, rounding=ROUND_CEILING).create_decimal(repr(value))):.3g}"
