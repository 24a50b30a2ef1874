"""Is the noise there? That of each release of a run as measured, next to what the ledger says.

No attack from outside can tell half of the noise from all of it. But the owner of an exact sum
can subtract it. So a run measures its own noise wherever it adds some, and keeps the figures in
`internal/`. This compares them with what the ledger counts. It finds noise that is too small, too
rare or recorded too large, in the very run that is handed over. It does not find noise that someone
can predict: `twinset audit mechanism` attacks that.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

from twinset.errors import InputError
from twinset.privacy.accounting.events import (
    Event,
    GaussianRelease,
    IndividualGaussian,
    LabelSelection,
    SubsampledGaussian,
)
from twinset.run.run_folder import COLUMN_VALUES, LABEL_VALUES, MEASURED_NOISE, METRICS

from ..findings import Measured, Score
from ..release import parse_file

NOISE = "noise as measured"
STEPS = "training steps"
LEAST = 0.98  # of what the ledger says. Rounding moves a measurement by less.
CHANCE = 0.0005  # with which all of a release's noise is measured as less than it is


def measured_noise(internal: Path, events: Sequence[Event]) -> list[Measured]:
    """Return for each kind of release its smallest noise, as a share of what the ledger says.

    A value of 1 is right. The interval is that of the standard deviation of these normal numbers,
    at 1 - 2 `CHANCE` for all of a kind. If it ends below `LEAST`, noise is missing: see
    `lacks_noise`. Releases without privacy are left out.

    Args:
        internal: that folder of a run.
        events: of the run's ledger.

    Raises:
        InputError: a file is damaged, or says nothing of a release in the ledger.
    """
    from scipy.stats import chi2

    found: dict[str, list[tuple[float, int]]] = {}
    for name in (MEASURED_NOISE, METRICS):
        for release, noise, numbers in parse_file(internal / name, read_noise) or ():
            found.setdefault(release, []).extend([] if noise is None else [(noise, numbers)])
    expected = {event.what for event in events if isinstance(event, GaussianRelease)}
    expected |= {STEPS for e in events if isinstance(e, SubsampledGaussian | IndividualGaussian)}
    missing = sorted(expected - found.keys())
    selections = [event for event in events if isinstance(event, LabelSelection)]
    if len(selections) > len({LABEL_VALUES, COLUMN_VALUES} & found.keys()):
        missing.append("selected values")
    if missing:
        raise InputError(
            f"{internal}: says nothing of the noise of {missing[0]}. Restore {MEASURED_NOISE} and "
            f"{METRICS}. Without them no audit can tell whether this noise was added."
        )
    measured = []
    for release, several in found.items():
        if not several:  # a step without noise, or a selection from no values
            continue
        noise, numbers = min(several)
        chance = CHANCE / len(several)  # the smallest of several is smaller by chance
        low, high = (noise * (numbers / chi2.isf(p, numbers)) ** 0.5 for p in (chance, 1 - chance))
        score = Score(NOISE, noise, float(low), float(high), "match", 0.0, math.inf, numbers)
        measured.append(Measured("leakage", score, {"release": release}))
    return measured


def read_noise(text: str) -> list[tuple[str, float | None, int]]:
    """Return of each line the release, its noise as a share if it has one, and of how many numbers.

    Raises:
        ValueError: a noise is neither a number nor null. Other faults raise their own errors.
    """
    found = []
    for line in map(json.loads, text.splitlines()):
        noise = line.get("noise")
        share = None if noise is None else float(noise)
        found.append((str(line.get("release", STEPS)), share, int(line.get("numbers", 0))))
    return found


def lacks_noise(score: Score) -> bool:
    """Return whether a release surely had less noise than the ledger says."""
    return score.name == NOISE and not score.high >= LEAST  # not a number fails, too
