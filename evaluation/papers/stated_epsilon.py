"""What the ε that paper 002's released twins are named after is worth.

The authors' scripts set the noise for 1,000 records and a δ of as many, whatever N is, by the Rényi
accountant of their library, which Opacus has too.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from functools import cache
from itertools import product

from twinset.privacy.accounting.accountant import epsilon
from twinset.privacy.accounting.events import SubsampledGaussian
from twinset.privacy.accounting.rounding import up_decimals

ASSUMED, BATCH, PASSES = 1_000, 8, 3  # records that noise is set for; a step; over all records
THEIR_DELTA = ASSUMED**-1.1  # the default of their library
OUR_DELTA = 1e-5  # of all twins that were made here
STATED, RECORDS = (3.0, 8.0), (25, 50, ASSUMED, 5_000)


@cache
def noise_multiplier(stated: float) -> float:
    """Return σ of the scripts, for the ε that they state."""
    from opacus.accountants.utils import get_noise_multiplier

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # σ far too large or small is tried too
        return get_noise_multiplier(
            target_epsilon=stated,
            target_delta=THEIR_DELTA,
            sample_rate=BATCH / ASSUMED,
            epochs=PASSES,
            accountant="rdp",
            epsilon_tolerance=1e-3,
        )


def poisson(stated: float, records: int, delta: float = THEIR_DELTA) -> str:
    """Return the ε of their steps over N records, rounded up, were batches drawn by Poisson."""
    steps = PASSES * math.ceil(records / BATCH)
    event = SubsampledGaussian(noise_multiplier(stated), BATCH / records, steps)
    return up_decimals(epsilon([event], delta))


def file_order(stated: float) -> str:
    """Return the ε of their own batches, rounded up, for blanking one record.

    Whatever N is, a record is in one batch of each pass, and blanking it moves no other.
    """
    event = SubsampledGaussian(noise_multiplier(stated), 1.0, PASSES)
    return up_decimals(epsilon([event], THEIR_DELTA))


def worth() -> Iterator[dict[str, str]]:
    """Yield a line for each stated ε and number of records."""
    for stated, records in product(STATED, RECORDS):
        yield {
            "ε, stated": f"{stated:g}",
            "records": f"{records:,}",
            "σ": f"{noise_multiplier(stated):.3f}",
            f"ε, Poisson, δ = {THEIR_DELTA:.1g}": poisson(stated, records),
            f"ε, Poisson, δ = {OUR_DELTA:g}": poisson(stated, records, OUR_DELTA),
            f"ε, file's order, δ = {THEIR_DELTA:.1g}": file_order(stated),
        }


def fewest() -> dict[str, str]:
    """Return what the smallest stated ε is worth for the fewest records, by how they are drawn."""
    return {"poisson": poisson(STATED[0], RECORDS[0]), "file_order": file_order(STATED[0])}
