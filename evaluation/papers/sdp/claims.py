"""Which of paper 004's claims held, computed from rows and from nothing else.

Perplexities are compared by their ratio on the same held-out tokens; attacks by their difference,
that of canaries at equal perplexity, as in the paper's figures 3, 4 and 6.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from evaluation.papers.intervals import Interval, difference, geometric_mean, ratio
from evaluation.papers.rows import Rows
from evaluation.papers.sdp.attacks import HELD_OUT, SWAPPED
from evaluation.papers.sdp.cases import (
    ANONYMISED_MISSED,
    LSTMS,
    POLICIES,
    SDPSGD_MISSED,
    TRANSFORMER_DPSGD,
    redacted,
    selective,
)
from evaluation.papers.sdp.published import ANONYMISED, DPSGD, NO_DP, SDPSGD, WIKITEXT
from evaluation.papers.verdict import Verdict, Word, needing_all, word_of

SeedRows = Mapping[int, Mapping[str, Any]]


def verdicts(rows: Rows) -> Iterator[Verdict]:
    """Yield a verdict on each claim."""
    for text in LSTMS:
        yield _utility(rows, text)
        yield _canary(rows, text)
        yield _membership(rows, text)
    yield _anonymised(rows)
    yield _missed(rows)
    yield from (_two_phases(rows, policy) for policy in POLICIES)


def utility(rows: Rows, text: str) -> Interval:
    """Return the perplexity of S-DPSGD over that of DPSGD."""
    return of_groups(rows, text, SDPSGD, DPSGD)


def of_groups(
    rows: Rows, text: str, ours: str, theirs: str, groups: str = "test_groups"
) -> Interval:
    """Return the ratio of two models' perplexities."""
    found = (
        {s: np.array(row[groups]) for s, row in rows.by_seed(text, m).items()}
        for m in (ours, theirs)
    )
    return ratio(*found)


def at_equal_perplexity(ours: SeedRows, theirs: SeedRows) -> Interval | None:
    """Return our exposure at the end less theirs when their perplexity was ours, seed by seed.

    Between the times that they were looked at, their exposure is taken as straight in the logarithm
    of perplexity. None where, in some seed, they were not looked at both above and below ours.
    """
    last = {seed: row["exposure"] for seed, row in ours.items()}
    then = {}
    for seed, row in ours.items():
        known = _when(theirs[seed], row["perplexity"])
        if known is None:
            return None
        then[seed] = known
    most = max(math.log2(row["candidates"]) for row in ours.values())
    return difference(last, then).within(-most, most)


def _when(row: Mapping[str, Any], perplexity: float) -> float | None:
    pairs = sorted((math.log(p["perplexity"]), p["exposure"]) for p in row["points"])
    places, bits = zip(*pairs, strict=True)
    place = math.log(perplexity)
    return float(np.interp(place, places, bits)) if places[0] <= place <= places[-1] else None


def _utility(rows: Rows, text: str) -> Verdict:
    found = utility(rows, text)
    word = word_of(found.below(1))
    because = f"perplexity of S-DPSGD ÷ DPSGD, at equal nominal ε, is {found}"
    return Verdict(f"utility, {text}", because, word)


def _canary(rows: Rows, text: str) -> Verdict:
    ours, theirs = (rows.by_seed(text, model) for model in (SDPSGD, NO_DP))
    return _less_exposed(f"canary, {text}", "without DP", ours, theirs)


def _less_exposed(subject: str, other: str, ours: SeedRows, theirs: SeedRows) -> Verdict:
    found = at_equal_perplexity(ours, theirs)
    if found is None:
        because = f"{other} there was no time at which perplexity was that of S-DPSGD"
        return Verdict(subject, because, Word.UNDECIDED)
    because = f"exposure of S-DPSGD less that {other}, at equal perplexity, is {found} bits"
    return Verdict(subject, because, word_of(found.below(0)))


def _membership(rows: Rows, text: str) -> Verdict:
    """Two comparisons: the paper's, which secrets of another look decide too, and memory alone."""
    found = {side: _told_apart(rows, text, side) for side in (SWAPPED, HELD_OUT)}
    said = "; ".join(f"{side}, {one}" for side, one in found.items())
    because = f"accuracy against S-DPSGD less that without DP: {said}"
    word = needing_all(word_of(one.below(0)) for one in found.values())
    return Verdict(f"membership inference, {text}", because, word)


def _told_apart(rows: Rows, text: str, side: str) -> Interval:
    ours, theirs = (
        {s: row["membership"][side]["accuracy"] for s, row in rows.by_seed(text, m).items()}
        for m in (SDPSGD, NO_DP)
    )
    return difference(ours, theirs)


def _anonymised(rows: Rows) -> Verdict:
    """Two comparisons: to be better than another is little where both are worse than a guess."""
    found = of_groups(rows, WIKITEXT, SDPSGD, ANONYMISED, "private_groups")
    guess = rows.facts["texts"][WIKITEXT]["vocabulary"]
    because = (
        f"perplexity on private tokens, S-DPSGD ÷ anonymised, is {found}, and S-DPSGD must be "
        f"below {guess:,}, which all tokens alike would have"
    )
    below = found.below(1), _of_private(rows, SDPSGD).below(guess)
    said = ", ".join(
        f"{model} {_of_private(rows, model).value:,.1f}"
        for model in (NO_DP, DPSGD, SDPSGD, ANONYMISED)
    )
    return Verdict(
        "anonymisation", because, needing_all(map(word_of, below)), [f"private tokens: {said}"]
    )


def _of_private(rows: Rows, model: str) -> Interval:
    found = rows.by_seed(WIKITEXT, model).values()
    return geometric_mean([row["private_perplexity"] for row in found])


def _missed(rows: Rows) -> Verdict:
    ours, theirs = (rows.by_seed(WIKITEXT, m) for m in (SDPSGD_MISSED, ANONYMISED_MISSED))
    return _less_exposed("imperfect policy function", "of anonymised text", ours, theirs)


def _two_phases(rows: Rows, policy: str) -> Verdict:
    """Two comparisons, both of which the claim needs."""
    ours = selective(policy)
    against = {"DPSGD": TRANSFORMER_DPSGD, "redacted": redacted(policy)}
    found = {name: of_groups(rows, WIKITEXT, ours, theirs) for name, theirs in against.items()}
    said = ", ".join(f"÷ {name} {one}" for name, one in found.items())
    word = needing_all(word_of(one.below(1)) for one in found.values())
    return Verdict(f"transformer, {policy}", f"perplexity of S-DP {said}", word)
