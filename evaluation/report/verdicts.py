"""One line for each question, with its reasons, by rules that the page states. Measures nothing.

Utility and leakage are never averaged, into one another or over measures: a verdict counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal

from scipy.stats import hypergeom, norm

from evaluation.fidelity.measures import SECOND, TRAIN
from evaluation.findings import Measured, Score
from evaluation.leakage.one_run import BOUND
from evaluation.leakage.roc import AUROC, MARGIN, PLACE, RATES
from evaluation.private_table import (
    BASELINE,
    FEW_ROWS,
    PRIVATE_CLASSIFIER,
    REAL,
    TWIN,
    TWIN_SMALL,
)
from evaluation.report.charts.numbers import number, with_interval
from evaluation.report.charts.styles import HELD_OUT, TRAIN_SAMPLE
from evaluation.report.groups import GUESSING, NEARER, Group, claimed, groups, words
from evaluation.report.meanings import RULES

TOO_FEW = "Too few rows to say"
REFUTED = "The claim is refuted"
FALSE_ALARMS = 0.025  # of one attack, and of all of a verdict together: those of a 95 % interval
Tone = Literal["good", "mixed", "bad", "unknown"]
_BLIND = PLACE["sees"]  # what sees neither model nor twin can only tell the tables apart
# One in a thousand false alarms needs more rows than most tables have, so that it does not count.
_COUNTED = ("AUROC", "TPR at 1 % FPR", NEARER)
# Of fidelity, the most important first: all of a text, what is missing, words, labels, lengths.
DECIDING = (
    "MAUVE",
    "recall of embeddings",
    "Jensen–Shannon divergence of words",
    "total variation distance of labels",
    "mean length",
)
# (with what it was made from, the reference), the fairest pair first.
_PAIRS = ((TRAIN_SAMPLE, HELD_OUT), (TRAIN, HELD_OUT), ("train only", "held-out only"))
_ANSWERS: tuple[tuple[str, Tone], ...] = (("No", "bad"), ("In part", "mixed"), ("Yes", "good"))


@dataclass(frozen=True)
class Verdict:
    """What the page says to one question.

    Args:
        question: as a reader would ask it.
        answer: one or a few words.
        line: one sentence that says what the answer rests on.
        tone: how the answer is shown, beside its words.
        reasons: what was compared, worst first.
        rule: how the answer follows.
    """

    question: str
    answer: str
    line: str
    tone: Tone
    reasons: tuple[str, ...] = ()
    rule: str = ""


@dataclass(frozen=True)
class Comparison:
    """Two numbers held against each other.

    Args:
        is_well: for the twin.
        reason: in words.
        errors: standard errors by which a finding is off from chance; of two intervals that lie
            apart many.
    """

    is_well: bool
    reason: str
    errors: float = math.inf


def useful(measured: Sequence[Measured]) -> Verdict:
    """Judge whether classifiers learn more from the twin than from text without private data."""
    accuracies = [m for m in measured if m.score.name == "accuracy" and "value" not in m.place]
    return _counted(
        "Is it useful?",
        [c for group in groups(accuracies) for c in _beats_baseline(group)],
        "the twin is surely above text made with no private data (intervals apart) in {} of {} "
        "comparisons of accuracy",
        "no accuracy of a classifier trained on the twin beside one trained on no private data",
        RULES["useful"],
    )


def faithful(measured: Sequence[Measured]) -> Verdict:
    """Judge whether the twin is as near to real rows as a second real sample is.

    `DECIDING` names the few measures that decide, the most important first. Where none of them was
    measured, all that were decide alike.
    """
    deciding = deciding_groups(measured)
    compared = [c for group in deciding for c in _is_as_real(group)]
    line = "as good as that sample in {} of the {} measures that decide"
    missing = "no measure of the twin beside the same of a second real sample"
    found = _counted("Is it faithful?", compared, line, missing, RULES["faithful"])
    if not compared:
        return found
    others = [c for g in groups(measured) if g not in deciding for c in _is_as_real(g)]
    reasons = tuple(c.reason for c in [*compared, *sorted(others, key=lambda c: c.is_well)])
    line = f"{_beside_second(deciding[0])}; {found.line}"
    if found.tone == "mixed" and _is_far(deciding[0]):
        found = replace(found, answer="No", tone="bad")
    return replace(found, line=line, reasons=reasons)


def deciding_groups(measured: Sequence[Measured]) -> list[Group]:
    """Return the measures that decide whether a twin is faithful, the most important first."""
    known = [g for g in groups(measured) if {TWIN, SECOND} <= _known(g).keys()]
    deciding = [g for name in DECIDING for g in known if g.name == name]
    return deciding or known


def leaking(measured: Sequence[Measured]) -> Verdict:
    """Judge whether an attack found something.

    What was measured on other runs with planted canaries (they have a policy in their place) can
    refute a claim. It cannot clear this run, and it does not count as an attack on it.
    """
    bounds = list(_bounds(measured))
    own = [m for m in measured if "policy" not in m.place]
    tried = sorted([*_attacks(own), *_overlaps(own)], key=lambda c: c.is_well)
    reasons = tuple(c.reason for c in sorted([*bounds, *tried], key=lambda c: c.is_well))
    answer, line, tone = _leak_answer(all(c.is_well for c in bounds), tried)
    if tone == "good" and _of_few(own):
        answer, tone = TOO_FEW, "unknown"
    blind = tuple(_blind(own))
    return Verdict("Does it leak?", answer, line, tone, (*blind, *reasons), RULES["leaking"])


def _of_few(measured: Sequence[Measured]) -> bool:
    """Whether attacks on rows were tried, and on so few that none could have found anything."""
    tried = [m.score.n for m in measured if m.score.name == AUROC]
    return bool(tried) and max(tried) < 2 * FEW_ROWS


def _leak_answer(bounds_hold: bool, tried: Sequence[Comparison]) -> tuple[str, str, Tone]:
    if not bounds_hold:
        return REFUTED, "an attack shows more than is claimed: do not share", "bad"
    if not tried:
        return "Not measured", "no attack on this run was measured", "unknown"
    what, found = f"{len(tried)} attacks and comparisons found", [c for c in tried if not c.is_well]
    by_chance = NormalDist().inv_cdf(1 - FALSE_ALARMS / len(tried))  # Bonferroni's inequality
    if any(c.errors > by_chance for c in found):
        return "Signs of a leak", f"{len(found)} of {what} something", "bad"
    if found:
        line = f"{len(found)} of {what} something, no more than so many find by chance"
        return "No sure sign", line, "mixed"
    return "No leak found", f"none of {what} anything", "good"


def _counted(
    question: str, comparisons: Sequence[Comparison], line: str, missing: str, rule: str
) -> Verdict:
    if not comparisons:
        return Verdict(question, "Not measured", f"there is {missing}", "unknown", (), rule)
    well = sum(c.is_well for c in comparisons)
    answer, tone = _ANSWERS[(well > 0) + (well == len(comparisons))]
    reasons = tuple(c.reason for c in sorted(comparisons, key=lambda c: c.is_well))
    return Verdict(question, answer, line.format(well, len(comparisons)), tone, reasons, rule)


def _beats_baseline(group: Group) -> Iterator[Comparison]:
    scores = _known(group)
    if TWIN not in scores or BASELINE not in scores:
        return
    twin, baseline = scores.get(TWIN_SMALL, scores[TWIN]), scores[BASELINE]
    better = twin.low > baseline.high
    how = "above" if better else "below" if twin.high < baseline.low else "not apart from"
    reason = (
        f"{words(group.place) or group.name}: {with_interval(twin)}, {how} no private data "
        f"{with_interval(baseline)}"
    )
    if TWIN_SMALL in scores:
        reason += f", both of as many rows; all of the twin's give {number(scores[TWIN].value)}"
    if REAL in scores and scores[REAL].value > 0:
        share = scores[TWIN].value / scores[REAL].value
        reason += f"; {share:.0%} of what real rows give ({number(scores[REAL].value)})"
    if PRIVATE_CLASSIFIER in scores:
        reason += f"; a DP classifier of real rows gives {number(scores[PRIVATE_CLASSIFIER].value)}"
    yield Comparison(better, reason)


def _is_as_real(group: Group) -> Iterator[Comparison]:
    scores = _known(group)
    if TWIN not in scores or SECOND not in scores:
        return
    twin, second = scores[TWIN], scores[SECOND]
    enough, few = twin.high >= second.low, twin.low <= second.high
    well = {"maximise": enough, "minimise": few, "match": enough and few}[twin.goal]
    both = f"{with_interval(twin)}, a second real sample {with_interval(second)}"
    yield Comparison(well, f"{group.title}: {both}{'' if well else ': apart'}")


def _beside_second(group: Group) -> str:
    twin, second = group.scores[TWIN], group.scores[SECOND]
    return f"{group.title} {number(twin.value)} (a second real sample: {number(second.value)})"


def _is_far(group: Group) -> bool:
    """Return whether the twin is less than half, or more than double, of a second real sample."""
    scores = _known(group)
    twin, second = scores[TWIN], scores[SECOND]
    little, much = twin.high < second.low / 2, twin.low > second.high * 2
    return {"maximise": little, "minimise": much, "match": little or much}[twin.goal]


def _attacks(measured: Sequence[Measured]) -> Iterator[Comparison]:
    tried = {tuple(m.place.items()): m.score.n for m in measured if m.score.name == AUROC}
    for m in measured:
        if m.score.name in _COUNTED and m.place.get("sees") != _BLIND and _is_known(m.score):
            guessing = GUESSING[m.score.name]
            errors = _errors(m.score, tried.get(tuple(m.place.items()), 0) - m.score.n)
            leaks = errors > NormalDist().inv_cdf(1 - FALSE_ALARMS)
            how = f"{'above' if leaks else 'not above'} guessing ({guessing:g})"
            if m.score.low > guessing and not leaks:
                how = "no more than chance gives beside so few others"
            where = ", ".join(filter(None, (m.score.name, words(m.place))))
            yield Comparison(not leaks, f"{where}: {with_interval(m.score)}, {how}", errors)


def _errors(score: Score, others: int) -> float:
    """Return by how many standard errors a score is above guessing.

    Few others make the threshold of a low false-positive rate a matter of chance itself, which no
    interval shows: the members above it are then counted as if all were ranked at random.

    Args:
        score: of an attack.
        others: rows that it was tried on beside members; 0 or fewer: not known, or not of a rate.
    """
    above = score.value - GUESSING[score.name]
    if score.name in RATES and others > 0:
        found, allowed = round(score.value * score.n), int(RATES[score.name] * others + 1e-9)
        return float(norm.isf(hypergeom.cdf(allowed, score.n + others, others, found + allowed)))
    error = (score.value - score.low) / NormalDist().inv_cdf(1 - FALSE_ALARMS)
    return above / error if error > 0 else math.copysign(math.inf, above)


def _blind(measured: Sequence[Measured]) -> Iterator[str]:
    """Say where members and others can be told apart without the model."""
    for m in measured:
        blind = m.score.name == "AUROC" and m.place.get("sees") == _BLIND
        if blind and m.score.low > GUESSING["AUROC"] + MARGIN:
            yield (
                "Members and non-members can be told apart without model and twin "
                f"(AUROC {with_interval(m.score)}): attacks on membership mean little here"
            )


def _overlaps(measured: Sequence[Measured]) -> Iterator[Comparison]:
    for group in groups(measured):
        scores = {word: s for word, s in group.scores.items() if not math.isnan(s.value)}
        pair = next((p for p in _PAIRS if p[0] in scores and p[1] in scores), None)
        if pair is None or group.name in GUESSING:
            continue
        train, held_out = (scores[word] for word in pair)
        leaks = train.low > held_out.high if train.goal == "minimise" else train.high < held_out.low
        both = f"{with_interval(train)} of training rows, {with_interval(held_out)} of others"
        yield Comparison(not leaks, f"{group.title}: {both}{': apart' if leaks else ''}")


def _bounds(measured: Sequence[Measured]) -> Iterator[Comparison]:
    for m in measured:
        if m.score.name == BOUND and not math.isnan(m.score.value):
            claim = claimed(measured, m)
            stated = "nothing is claimed" if claim is None else f"claimed is {number(claim)}"
            kept = {k: v for k, v in m.place.items() if k not in ("attack", "sees")}
            of = f" with canaries, {words(kept)}" if kept else ""
            holds = claim is None or m.score.value <= claim
            yield Comparison(holds, f"{BOUND}{of}: {number(m.score.value)}; {stated}")


def _known(group: Group) -> dict[str, Score]:
    return {word: score for word, score in group.scores.items() if _is_known(score)}


def _is_known(score: Score) -> bool:
    return all(map(math.isfinite, (score.value, score.low, score.high)))
