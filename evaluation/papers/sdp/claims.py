"""Which of paper 004's claims held, computed from rows and from nothing else.

Perplexities are compared by their ratio on the same held-out tokens; attacks by their difference,
that of canaries at equal perplexity, as in the paper's figures 3, 4 and 6.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from evaluation.papers.intervals import Interval, difference, geometric_mean, ratio
from evaluation.papers.rows import Rows
from evaluation.papers.sdp.attacks import SWAPPED
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
from evaluation.papers.verdict import Verdict, word_of

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


def at_equal_perplexity(ours: SeedRows, theirs: SeedRows) -> Interval:
    """Return our exposure at the end less theirs when their perplexity was ours, seed by seed.

    Between the times that they were looked at, their exposure is taken as straight in the logarithm
    of perplexity; beyond these times, it is that of the nearest.
    """
    last = {seed: row["exposure"] for seed, row in ours.items()}
    then = {seed: _when(theirs[seed], ours[seed]["perplexity"]) for seed in last if seed in theirs}
    return difference(last, then)


def _when(row: Mapping[str, Any], perplexity: float) -> float:
    pairs = sorted((np.log(p["perplexity"]), p["exposure"]) for p in row["points"])
    places, bits = zip(*pairs, strict=True)
    return float(np.interp(np.log(perplexity), places, bits))


def _utility(rows: Rows, text: str) -> Verdict:
    found = utility(rows, text)
    word = word_of(found.below(1))
    because = f"perplexity of S-DPSGD ÷ DPSGD, at equal nominal ε, is {found}"
    return Verdict(f"utility, {text}", because, word)


def _canary(rows: Rows, text: str) -> Verdict:
    found = at_equal_perplexity(rows.by_seed(text, SDPSGD), rows.by_seed(text, NO_DP))
    word = word_of(found.below(0))
    because = f"exposure of S-DPSGD less that without DP, at equal perplexity, is {found} bits"
    return Verdict(f"canary, {text}", because, word)


def _membership(rows: Rows, text: str) -> Verdict:
    ours, theirs = (
        {s: row["membership"][SWAPPED]["accuracy"] for s, row in rows.by_seed(text, m).items()}
        for m in (SDPSGD, NO_DP)
    )
    found = difference(ours, theirs)
    because = f"accuracy against S-DPSGD less that without DP is {found}"
    return Verdict(f"membership inference, {text}", because, word_of(found.below(0)))


def _anonymised(rows: Rows) -> Verdict:
    found = of_groups(rows, WIKITEXT, SDPSGD, ANONYMISED, "private_groups")
    because = f"perplexity on private tokens, S-DPSGD ÷ anonymised, is {found}"
    return Verdict("anonymisation", because, word_of(found.below(1)), [_against_a_guess(rows)])


def _against_a_guess(rows: Rows) -> str:
    """Say whether private tokens were foretold at all: better than another would not mean that."""
    found = {
        model: geometric_mean(
            [row["private_perplexity"] for row in rows.by_seed(WIKITEXT, model).values()]
        )
        for model in (NO_DP, DPSGD, SDPSGD, ANONYMISED)
    }
    guess = rows.facts["texts"][WIKITEXT]["vocabulary"]
    said = ", ".join(f"{model} {perplexity.value:,.1f}" for model, perplexity in found.items())
    return f"private tokens: {said}; all tokens alike would be {guess:,}"


def _missed(rows: Rows) -> Verdict:
    ours, theirs = (rows.by_seed(WIKITEXT, m) for m in (SDPSGD_MISSED, ANONYMISED_MISSED))
    found = at_equal_perplexity(ours, theirs)
    because = (
        f"exposure of S-DPSGD less that of anonymised text, at equal perplexity, is {found} bits"
    )
    return Verdict("imperfect policy function", because, word_of(found.below(0)))


def _two_phases(rows: Rows, policy: str) -> Verdict:
    """Two comparisons, both of which the claim needs."""
    ours = selective(policy)
    against = {"DPSGD": TRANSFORMER_DPSGD, "redacted": redacted(policy)}
    found = {name: of_groups(rows, WIKITEXT, ours, theirs) for name, theirs in against.items()}
    better = [one.below(1) for one in found.values()]
    shown = False if False in better else None if None in better else True
    said = ", ".join(f"÷ {name} {one}" for name, one in found.items())
    return Verdict(f"transformer, {policy}", f"perplexity of S-DP {said}", word_of(shown))
