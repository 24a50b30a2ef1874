"""One answer to each question, with its reasons, by rules that the page states. Measures nothing.

`judge` decides the three verdicts of a run, for the report, the commands and the end of a run.
`judge_hand_over` decides whether the twin may be handed over. Utility and leakage are never
averaged. A verdict counts how many comparisons went well.

The words for places are those of the measuring modules. Unknown measures are shown too. Sentences
that do not depend on the run are in meanings.toml.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from statistics import NormalDist
from typing import Literal, NamedTuple

from scipy.stats import hypergeom, norm

from twinset.errors import VerificationError
from twinset.privacy.statement.guarantee import Guarantee, says_little
from twinset.privacy.statement.theorems import FLAGGED_UNIT

from ..fidelity import columns
from ..fidelity.measures import SECOND, TRAIN
from ..findings import Measured, Question, Score
from ..leakage.copies import HELDOUT, NEAR, REPEATED, RUN_REPEATED, RUNS, SAMPLE
from ..leakage.names import KINDS, NAME, REPLAYED
from ..leakage.noise import NOISE, lacks_noise
from ..leakage.roc import AUROC, BOUND, CLAIM, MARGIN, PLACE, RATES, RISKIEST
from ..release import (
    BASELINE,
    FEW_ROWS,
    NON_PRIVATE,
    PRIVATE_CLASSIFIER,
    REAL,
    REAL_SMALL,
    TWIN,
    TWIN_SMALL,
)

COMMONEST = "the commonest label"
GUESSES = (COMMONEST, columns.COMMONEST)
NEARER = "nearer to train than to held-out"
GUESSING = {AUROC: 0.5, **RATES, NEARER: 0.5, RISKIEST: 0.5}  # values expected without any leak

# Kinds of rows in the order in which they are listed, with the colour that each has on every
# figure. What is compared most stands next to each other.
ROWS = {
    **{REAL: 1, TRAIN: 1, "train only": 1, SAMPLE: 1},
    **{SECOND: 5, HELDOUT: 5, "held-out only": 5, REAL_SMALL: 5},
    **{PRIVATE_CLASSIFIER: 4, NON_PRIVATE: 3, TWIN: 0, TWIN_SMALL: 0, BASELINE: 2},
}
MEANINGS = tomllib.loads(Path(__file__).with_name("meanings.toml").read_text("utf-8"))
TOO_FEW, REFUTED, COPIED = "Too few rows to say", "The claim is refuted", "Copies to read"
FEW_COPIES = 3  # of held-out rows: fewer say little about chance
FALSE_ALARMS = 0.025  # of one attack, and of all of a verdict together: those of a 95 % interval
COPY_TESTS = 2 + len(KINDS)  # that copies are compared by: rows, runs, personal data
# Of fidelity, the most important first: all of a text, what is missing, words, labels, lengths.
DECIDING = (
    "MAUVE",
    "recall of embeddings",
    "Jensen–Shannon divergence of words",
    "total variation distance of labels",
    "mean length",
)
# By how much columns may be worse than other real rows. Most pairs have little to do with one
# another: of clothing reviews, columns that were shuffled apart are off by 0.07 and 0.27.
OFF = {columns.PAIRS: 0.05, columns.MODEL: 0.1, columns.AGREEMENT: 0.1}

# Scores stand side by side if they differ in the first of these that their place has.
_COMPARED = ("rows", "against", "attack", "copies", "policy")
_NEEDS_NO_NAME = (
    *("label", "classifier", "attack", "policy", "rows", "value", "kind"),
    *("which", "column", "pair"),
)
_BLIND = PLACE["sees"]  # what sees neither model nor twin can only tell the tables apart
# One in a thousand false alarms needs more rows than most tables have, so it does not count.
COUNTED = (AUROC, "TPR at 1 % FPR", NEARER, RISKIEST)
# (rows that it was made from, their reference), the fairest pair first.
_PAIRS = ((SAMPLE, HELDOUT), (TRAIN, HELDOUT), ("train only", "held-out only"))

Tone = Literal["good", "mixed", "bad", "unknown"]


def format_number(value: float | None) -> str:
    """Return about three significant digits, or a dash if it is not finite.

    >>> [format_number(v) for v in (0.70449, 12345.6, -0.5, 1e-5, float("nan"))]
    ['0.704', '12,346', '−0.500', '1.0 × 10⁻⁵', '–']
    """
    if value is None or math.isnan(value):
        return "–"
    size = abs(value)
    if math.isinf(size):
        digits = "∞"
    elif 0 < size < 0.0005:
        digits = write_power(f"{size:.1e}")
    else:
        decimals = 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 10 else 3
        digits = f"{size:,.{decimals}f}"
    return f"−{digits}" if value < 0 else digits


def format_tick(value: float) -> str:
    """Return a round number, as on an axis, in as few digits as possible."""
    digits = f"{abs(value):.4g}" if abs(value) < 1000 else f"{abs(value):,.0f}"
    return ("−" if value < 0 else "") + write_power(digits)


def write_power(scientific: str) -> str:
    """Return "1.5e-07" as "1.5 × 10⁻⁷". Other numbers stay."""
    mantissa, mark, exponent = scientific.partition("e")
    if not mark:
        return scientific
    raised = "10" + str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return raised if mantissa == "1" else f"{mantissa} × {raised}"


def format_interval(score: Score) -> str:
    """Return a score's 95 % interval, or "" if it has none."""
    if any(map(math.isnan, (score.value, score.low, score.high))):
        return ""
    return f"[{format_number(score.low)}, {format_number(score.high)}]"


def format_score(score: Score) -> str:
    """Return "0.812 [0.794, 0.829]", as far as it is known."""
    return f"{format_number(score.value)} {format_interval(score)}".rstrip()


def place_in_words(place: Mapping[str, str]) -> str:
    """Return a place in words.

    >>> place_in_words({"label": "sentiment", "classifier": "tfidf", "sees": "model"})
    'sentiment, tfidf, seeing model'
    """
    names = dict.fromkeys(_NEEDS_NO_NAME, "") | {"sees": "seeing "}
    return ", ".join(f"{names.get(k, f'{k} ')}{v}" for k, v in place.items())


def sort_rows(names: Iterable[str]) -> list[str]:
    """Return names in the usual order of kinds of rows, unknown ones last."""
    known = list(ROWS)
    return sorted(dict.fromkeys(names), key=lambda n: known.index(n) if n in ROWS else len(known))


@dataclass(frozen=True)
class Group:
    """Scores of one name whose places differ in one word only, by that word."""

    name: str  # of the scores
    place: Mapping[str, str]  # their common part
    # By the word in which they differ, or "" where they have none to differ in
    members: dict[str, Measured]

    @property
    def scores(self) -> dict[str, Score]:
        """The scores by the word in which they differ."""
        return {word: m.score for word, m in self.members.items()}

    @property
    def finite(self) -> dict[str, Score]:
        """The scores that are known together with their intervals."""
        return {w: s for w, s in self.scores.items() if math.isfinite(s.value + s.low + s.high)}

    @property
    def title(self) -> str:
        """Name and place in words."""
        return ", ".join(filter(None, (self.name, place_in_words(self.place))))


def group_scores(measured: Iterable[Measured]) -> list[Group]:
    """Put scores side by side whose places differ in one word only."""
    found: dict[tuple[object, ...], Group] = {}
    for m in measured:
        compared = next((word for word in _COMPARED if word in m.place), "")
        rest = {k: v for k, v in m.place.items() if k != compared}
        key = (m.score.name, compared, *sorted(rest.items()))
        group = found.setdefault(key, Group(m.score.name, rest, {}))
        group.members[m.place.get(compared, "")] = m
    return list(found.values())


def list_bounds(measured: Sequence[Measured]) -> Iterator[tuple[str, Score, float | None]]:
    """Yield each lower bound of ε: where it was found, the score, and the claimed ε or None."""
    claims = [(m.place.items(), m.score.value) for m in measured if m.score.name == CLAIM]
    for m in measured:
        if m.score.name == BOUND:
            claim = next((value for at, value in claims if at <= m.place.items()), math.nan)
            where = {k: v for k, v in m.place.items() if k != "attack"}
            yield place_in_words(where), m.score, claim if math.isfinite(claim) else None


@dataclass(frozen=True)
class Verdict:
    """The page's answer to one question."""

    question: str  # as a reader would ask it
    answer: str  # one or a few words
    line: str  # one sentence with the reason of the answer
    tone: Tone  # how the answer is shown, in addition to its words
    reasons: tuple[str, ...] = ()  # the comparisons, worst first
    rule: str = ""  # how the answer follows


class Comparison(NamedTuple):
    """Whether two numbers speak for the twin, and why, in words."""

    is_well: bool
    reason: str
    errors: float = math.inf  # by how many standard errors a finding is off from chance
    is_copied: bool = False  # whether the twin repeats used rows, and hardly any others


def judge(question: Question, measured: Sequence[Measured]) -> Verdict:
    """Answer a question: is it useful, is it faithful, does it leak?

    The same scores have the same answer everywhere. Fewer than `FEW_ROWS` rows of a kind allow no
    conclusion, except that a leak found in a few rows still counts.
    """
    rules = {"utility": judge_use, "fidelity": judge_fidelity, "leakage": judge_leakage}
    return rules[question](measured)


def judge_use(measured: Sequence[Measured]) -> Verdict:
    """Judge whether classifiers learn more from the twin than without it.

    The twin must be above every measured mark: text of the base model that saw no private data,
    and always guessing the most frequent label. Intervals must not overlap. "Yes" if every label
    and classifier is above all marks, "In part" if some are. If no text of the base model was
    tried, the best answer is "More than guessing".
    """
    accuracies = [m for m in measured if m.score.name == "accuracy" and "value" not in m.place]
    guesses = {
        m.place.get("label"): m.score for m in accuracies if m.place.get("rows") == COMMONEST
    }
    compared, shares, below, without_base, tested = [], [], 0, 0, 0
    for group in group_scores(accuracies):
        scores = group.finite
        # A larger twin is cut to the base's number of rows. More rows teach more, whatever their
        # source, and that says nothing about the private records.
        twin = scores.get(TWIN_SMALL, scores.get(TWIN))
        guess = guesses.get(group.place.get("label"))
        marks = {"no private data": scores.get(BASELINE), "guessing the commonest label": guess}
        known = {name: mark for name, mark in marks.items() if mark}
        if twin is None or not known:
            continue
        said = [f"{place_in_words(group.place) or group.name}: {format_score(twin)}"]
        for name, mark in known.items():
            worse = "below" if twin.high < mark.low else "not apart from"
            how = "above" if twin.low > mark.high else worse
            said.append(f"{how} {name} {format_score(mark)}")
        below += any(twin.high < mark.low for mark in known.values())
        without_base += BASELINE not in scores
        tested = max(tested, twin.n)
        reason = ", ".join(said)
        if TWIN_SMALL in scores:
            whole = format_number(scores[TWIN].value)
            reason += f", both with equally many rows (all of the twin's give {whole})"
        if REAL in scores and scores[REAL].value > 0:
            share = scores[TWIN].value / scores[REAL].value
            shares.append(share)
            reason += f", {share:.0%} of what real rows give ({format_number(scores[REAL].value)})"
        if PRIVATE_CLASSIFIER in scores:
            private = format_number(scores[PRIVATE_CLASSIFIER].value)
            reason += f". A DP classifier of real rows gives {private}"
        compared.append(Comparison(all(twin.low > m.high for m in known.values()), reason))
    line = "{} clearly more accurate than without private text"
    if below:
        line += f", and {below} clearly less"
    if shares:
        line += f". That is {min(shares):.0%} or more of what real rows give"
    missing = "no accuracy of a classifier taught by the twin to compare with one that was not"
    things, rule = "classifier{} that the twin taught", MEANINGS["rule"]["useful"]
    found = _count_well("Is it useful?", compared, things, line, missing, rule, tested)
    if without_base and found.tone in ("good", "mixed"):
        line = f"{found.line}. An evaluation also compares text of the base model"
        answer = "More than guessing" if found.tone == "good" else found.answer
        return replace(found, answer=answer, line=line, tone="mixed")
    return found


def judge_fidelity(measured: Sequence[Measured]) -> Verdict:
    """Judge whether the twin is as near to real rows as a second real sample is.

    `DECIDING` names the few measures that decide, the most important first. If none of them was
    measured, all measured ones decide. Other columns that are off make "Yes" an "In part".
    """
    deciding, groups = find_deciding(measured), group_scores(measured)
    compared: list[Comparison] = []
    others: list[Comparison] = []
    for group in (*deciding, *(g for g in groups if g not in deciding)):
        # Nothing can be expected to come closer than a second real sample.
        scores = group.finite
        if TWIN in scores and SECOND in scores:
            twin, second = scores[TWIN], scores[SECOND]
            # Intervals that meet count as equal. Few rows make wide ones, as the rule says.
            enough, few = twin.high >= second.low, twin.low <= second.high
            well = {"maximise": enough, "minimise": few, "match": enough and few}[twin.goal]
            both = f"{format_score(twin)}, a second real sample {format_score(second)}"
            made = Comparison(well, f"{group.title}: {both}{'' if well else ' (they differ)'}")
            (compared if group in deciding else others).append(made)
    missing = "no measure of both the twin and a second real sample"
    rule, things = MEANINGS["rule"]["faithful"], "deciding measure{}"
    counted = [[m.score.n for m in measured if m.place.get("rows") == r] for r in (TWIN, SECOND)]
    rows = min(max(each, default=0) for each in counted)
    line = "{} as good as for that sample"
    found = _count_well("Is it faithful?", compared, things, line, missing, rule, rows)
    if not compared:
        return found
    of_columns = sorted(compare_columns(measured), key=lambda c: c.is_well)
    reasons = tuple(
        c.reason for c in [*compared, *of_columns, *sorted(others, key=lambda c: c.is_well)]
    )
    first = deciding[0]
    twin, second = first.scores[TWIN], first.scores[SECOND]
    both = f"{format_number(twin.value)} (a second real sample: {format_number(second.value)})"
    # Less than half, or more than double, of a second real sample in the first measure is a "No".
    little, much = twin.high < second.low / 2, twin.low > second.high * 2
    is_far = {"maximise": little, "minimise": much, "match": little or much}[twin.goal]
    if found.tone == "mixed" and is_far:
        found = replace(found, answer="No", tone="bad")
    line = f"{first.title} {both}. {found.line[:1].upper()}{found.line[1:]}"
    if of_columns and of_columns[0].is_well:
        line += ". The other columns are faithful"
    elif of_columns:
        off = [c.reason for c in of_columns if not c.is_well]
        alone = "faithful, but texts do not follow them"  # their only fault
        how = alone if off[0].startswith(columns.AGREEMENT) else "not faithful"
        line += f". The other columns are {how}: {off[0]}"
        if found.tone == "good":
            found = replace(found, answer="In part", tone="mixed")
    return replace(found, line=line, reasons=reasons)


def compare_columns(measured: Sequence[Measured]) -> list[Comparison]:
    """Compare the other columns with other real rows, and name the column or pair furthest off."""
    compared = []
    for name, most in OFF.items():
        off: dict[str, tuple[float, Score, Score]] = {}  # by column or pair, and "" of all
        for group in group_scores(m for m in measured if m.score.name == name):
            scores = group.finite
            if TWIN in scores and REAL in scores:
                twin, real = scores[TWIN], scores[REAL]
                further = twin.value - real.value
                further = further if twin.goal == "minimise" else -further
                off[place_in_words(group.place)] = further, twin, real
        if "" in off:
            further, twin, real = off.pop("")
            both = "{} (real rows: {})"
            reason = f"{name} {both.format(format_number(twin.value), format_number(real.value))}"
            if off:
                worst = max(off, key=lambda each: off[each][0])
                values = (format_number(score.value) for score in off[worst][1:])
                reason += f". Furthest off is {worst}, {both.format(*values)}"
            compared.append(Comparison(further <= most, reason))
    return compared


def find_deciding(measured: Sequence[Measured]) -> list[Group]:
    """Return the measures that decide whether a twin is faithful, the most important first."""
    known = [g for g in group_scores(measured) if {TWIN, SECOND} <= g.finite.keys()]
    return [g for name in DECIDING for g in known if g.name == name] or known


def _count_well(
    question: str,
    compared: Sequence[Comparison],
    things: str,
    line: str,
    missing: str,
    rule: str,
    rows: int,
) -> Verdict:
    """Return Yes, In part or No, by how many comparisons went well and their numbers of rows."""
    if not compared:
        return Verdict(question, "Not measured", f"there is {missing}", "unknown", (), rule)
    well, number = sum(c.is_well for c in compared), len(compared)
    answers: tuple[tuple[str, Tone], ...] = (("No", "bad"), ("In part", "mixed"), ("Yes", "good"))
    answer, tone = answers[(well > 0) + (well == number)]
    if rows < FEW_ROWS:
        answer, tone = TOO_FEW, "unknown"
    if number == 1:
        subject = f"the only {things.format('')} is{'' if well else ' not'}"
    else:
        how_many = {0: "none of", number: "all"}.get(well, f"{well} of")
        subject = f"{how_many} {number} {things.format('s')} {'is' if well < 2 else 'are'}"
    said = line.format(subject)
    reasons = tuple(c.reason for c in sorted(compared, key=lambda c: c.is_well))
    return Verdict(question, answer, said, tone, reasons, rule)


def judge_leakage(measured: Sequence[Measured]) -> Verdict:
    """Judge whether an attack found something. A further sign never makes the answer milder.

    Other runs with planted canaries have a policy in their place. They can refute a claim, but
    they cannot clear this run and do not count as an attack on it.
    """
    bounds = []
    for where, score, claim in list_bounds(measured):
        if not math.isnan(score.value):
            stated = "no claim" if claim is None else f"the claim is {format_number(claim)}"
            name = f"{BOUND} with canaries, {where}" if where else BOUND
            most = f", of {format_number(score.maximum)} that it could show"
            could = most if math.isfinite(score.maximum) else ""
            reason = f"{name}: {format_number(score.value)}{could}, {stated}"
            bounds.append(Comparison(claim is None or score.value <= claim, reason))
    for m in measured:
        if m.score.name == NOISE:
            share = f"{NOISE}, {place_in_words(m.place)}: {m.score.value:.2f} of what is stated"
            bounds.append(Comparison(not lacks_noise(m.score), share))
    own = [m for m in measured if "policy" not in m.place]
    areas = [m for m in own if m.score.name == AUROC]
    # An area counts members and others, a rate members alone.
    members = {tuple(m.place.items()): m.score.n for m in own if m.score.name in RATES}
    sides = [(m.score.n, members.get(tuple(m.place.items()), m.score.n // 2)) for m in areas]
    few = areas and max(min(some, n - some) for n, some in sides) < FEW_ROWS
    tried = sorted(_compare(own), key=lambda c: (c.is_well, -c.errors))
    reasons = [
        "Members and non-members can be told apart without model and twin "
        f"(AUROC {format_score(m.score)}). Attacks on membership mean little here"
        for m in areas
        if m.place.get("sees") == _BLIND and m.score.low > GUESSING[AUROC] + MARGIN
    ]
    copied = [c for c in tried if c.is_copied]
    reasons += [c.reason for c in sorted((*bounds, *tried), key=lambda c: c.is_well)]

    answer, line = "Not measured", "no attack on this run was measured"
    if len(own) < len(measured):
        line = "only other runs were attacked, with planted canaries or to compare policies"
    tone: Tone = "unknown"
    if not all(c.is_well for c in bounds):
        answer, line, tone = REFUTED, "more is shown than is claimed. Do not share", "bad"
    elif tried:
        found = [c for c in tried if not c.is_well]
        line = f"{len(found) or 'none'} of {len(tried)} attacks and comparisons found a signal"
        # Bonferroni's inequality. Other signals do not count: each would make this one less sure.
        silent = sum(c.is_well and not c.is_copied for c in tried)
        by_chance = NormalDist().inv_cdf(1 - FALSE_ALARMS / (1 + silent))
        if any(c.errors > by_chance for c in found):
            answer, tone = "Signs of a leak", "bad"
        elif not all(c.is_well for c in copied):
            answer, tone = COPIED, "mixed"
        elif few:
            answer, line, tone = TOO_FEW, f"{line}, but rows are few", "unknown"
        else:
            is_clean = not found and not copied
            answer, tone = ("No leak found", "good") if is_clean else ("No sure sign", "mixed")
        if copied:
            line += f". See {copied[0].reason}"
        elif found and tone != "bad":
            line += ". Chance alone finds as much"
    rule = MEANINGS["rule"]["leaking"]
    return Verdict("Does it leak?", answer, line, tone, tuple(reasons), rule)


def _compare(measured: Sequence[Measured]) -> Iterator[Comparison]:
    """Compare each attack with guessing, and the twin's overlap with seen and unseen rows."""
    tried = {tuple(m.place.items()): m.score.n for m in measured if m.score.name == AUROC}
    limit = NormalDist().inv_cdf(1 - FALSE_ALARMS)
    for m in measured:
        score = m.score
        is_finite = math.isfinite(score.value + score.low + score.high)
        if score.name not in COUNTED or m.place.get("sees") == _BLIND or not is_finite:
            continue
        guessing, others = GUESSING[score.name], tried.get(tuple(m.place.items()), 0) - score.n
        above = score.value - guessing
        if score.name in RATES and others > 0:
            # With few others, the threshold of a low false-positive rate is a matter of chance
            # itself, which no interval shows. So the members above it are counted as if all rows
            # were ranked at random.
            found, allowed = round(score.value * score.n), int(RATES[score.name] * others + 1e-9)
            by_chance = hypergeom.cdf(allowed, score.n + others, others, found + allowed)
            errors = float(norm.isf(by_chance))
        else:
            error = (score.value - score.low) / limit
            errors = above / error if error > 0 else math.copysign(math.inf, above)
        leaks = errors > limit
        how = f"{'above' if leaks else 'not above'} guessing ({guessing:g})"
        if score.low > guessing and not leaks:
            how = "no more than chance gives with few non-members"
        where = ", ".join(filter(None, (score.name, place_in_words(m.place))))
        yield Comparison(not leaks, f"{where}: {format_score(score)}, {how}", errors)
    # The twin's overlap with training rows, and with rows that it never saw.
    for group in group_scores(measured):
        scores = {word: s for word, s in group.scores.items() if not math.isnan(s.value)}
        pair = next((p for p in _PAIRS if p[0] in scores and p[1] in scores), None)
        # Attacks are compared with guessing instead. Rows of a twin may repeat the same real row.
        if pair is None or group.name in (*GUESSING, NEAR, RUNS):
            continue
        train, held_out = (scores[word] for word in pair)
        if train.goal == "minimise" and math.isinf(held_out.high):  # nothing could be above it
            continue
        if group.name in (REPEATED, RUN_REPEATED, REPLAYED):
            # Without a leak, any of the rows that are repeated may as well have been held out.
            used, others = (round(score.value * score.n) for score in (train, held_out))
            by_chance = float(hypergeom.sf(used - 1, train.n + held_out.n, used + others, train.n))
            leaks = by_chance <= FALSE_ALARMS / COPY_TESTS
            errors = float(norm.isf(by_chance))
            is_copied = others < FEW_COPIES and train.value > held_out.value
            is_copied &= group.place.get("kind") != NAME and (leaks or group.name != RUN_REPEATED)
            said = f"{used:,} of {train.n:,} used and {others:,} of {held_out.n:,} others"
            said += f", by chance with probability {format_number(by_chance)}"
        else:
            near, far = (train, held_out) if train.goal == "minimise" else (held_out, train)
            error = math.hypot(near.value - near.low, far.high - far.value) / limit
            leaks, is_copied = near.low > far.high, False
            errors = (near.value - far.value) / error if error > 0 else math.inf
            said = f"{format_score(train)} of training rows, {format_score(held_out)} of others"
            said += " (they differ)" * leaks
        yield Comparison(not leaks, f"{group.title}: {said}", errors, is_copied)


def judge_hand_over(
    claim: Guarantee | None, use: Verdict, leaks: Verdict, failure: Exception | None = None
) -> Verdict:
    """Say whether the twin may be handed over, regardless of fidelity.

    The first case that holds decides. meanings.toml has the answer and the rule of each.

    Args:
        claim: the guarantee, or None if it is unknown.
        use: the verdict on usefulness.
        leaks: the verdict on leakage.
        failure: the error of `verify`. None: the files agree, or they were just written.
    """
    disagrees = isinstance(failure, VerificationError)
    how = "do not agree with the ledger" if disagrees else "could not be checked"
    if claim is None:
        case = "unknown"
    elif failure is not None:
        case = "altered"
    elif claim.epsilon is None:
        case = "open"
    elif leaks.answer in (REFUTED, COPIED):
        case = "refuted" if leaks.answer == REFUTED else "copied"
    elif leaks.tone == "bad":
        case = "leaking"
    elif claim.unit == FLAGGED_UNIT:
        case = "flagged"
    elif not says_little(claim):
        case = "bounded"
    else:
        case = "unaudited" if leaks.tone == "unknown" else "audited"
    cases, parts = MEANINGS["handing"], ("answer", "tone", "where", "says")
    answer, tone, where, says = (cases[case][part] for part in parts)
    line = says.format(leaks=leaks.line, files=f"{how}: {str(failure).rstrip('.')}")
    if tone != "bad" and use.tone == "bad":
        line += ". But the twin was not found useful"
    rule = MEANINGS["rule"]["handing"]
    for said, some in groupby(cases.values(), key=lambda each: each["answer"]):
        rule += f" {said}, where {', or '.join(one['where'] for one in some)}."
    return Verdict("May I hand this over?", answer, line, tone, (where,), rule)
