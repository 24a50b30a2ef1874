"""Which of paper 002's claims held, computed from intervals over seeds and from nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from evaluation.papers.intervals import Interval, difference
from evaluation.papers.mattern.cases import (
    COMPARED,
    DATA,
    RECORDS,
    TWIN,
    Level,
    by_loss,
    names,
)
from evaluation.papers.mattern.found import (
    Found,
    baseline_over_rival,
    gap,
    joint,
    least_gap,
    over_baseline,
    over_rival,
    wanted,
)
from evaluation.papers.mattern.published import EPSILONS, FEW, GAP
from evaluation.papers.mattern.sizes import OFF
from evaluation.papers.verdict import Verdict, Word, together, word_of

SMALL_LEAK = 0.05  # of AUROC above chance, that is still called none


def verdicts(found: Found) -> Iterator[Verdict]:
    """Yield a verdict on each claim, for each table; that on the quoted one first."""
    by_data = [(data, target) for data in DATA for target in wanted(data)]
    yield from quoted(found)
    yield from (_rival(found, data, target) for data, target in by_data)
    yield from (_learnt(found, data, target) for data, target in by_data)
    yield from (_faithful(found, data) for data in DATA)
    yield from (_leaks(found, data) for data in DATA)


def quoted(found: Found) -> Iterator[Verdict]:
    """Yield the verdicts on the claim that is quoted, of about 3 %."""
    yield from (_utility(found, data, target) for data in DATA for target in wanted(data))


def utility(subject: str, gaps: Mapping[str, Interval], beside: Sequence[str] = ()) -> Verdict:
    """Judge what twins cost in accuracy against all real rows; say other things beside it.

    >>> gaps = [Interval(x, x - 0.005, x + 0.005, 3) for x in (0.02, 0.03, 0.2)]
    >>> [str(utility("tfidf", {"": found}).word) for found in gaps]
    ['held', 'undecided', 'not held']
    """
    because = f"a twin from {' or '.join(map(str, FEW))} records costs at most {GAP} of accuracy"
    details = [f"{what}: all real rows less the twin {found}" for what, found in gaps.items()]
    shown = [found.below(GAP) for found in gaps.values()]
    return _verdict(subject, because, shown, [*details, *beside])


def better(
    subject: str, because: str, differences: Mapping[str, Interval], beside: Sequence[str] = ()
) -> Verdict:
    """Judge differences that a claim says are above zero; say other things beside it.

    >>> found = {"ours": Interval(0.2, 0.1, 0.3, 3), "others": Interval(0.0, -0.1, 0.1, 3)}
    >>> str(better("IMDb", "it is better", found).word)
    'partly'
    """
    details = [f"{what}: {found}" for what, found in differences.items()]
    shown = [found.above(0) for found in differences.values()]
    return _verdict(subject, because, shown, [*details, *beside])


def leaks(
    subject: str, bare: Mapping[str, Interval], private: Mapping[str, Mapping[str, Interval]]
) -> Verdict:
    """Judge attacks on released texts, by AUROC less that of rows of no private data.

    Where not even a twin without privacy gives its rows away, the attack cannot tell what privacy
    prevents, and is not judged.

    Args:
        subject: what was attacked.
        bare: without privacy, by attack and records in words.
        private: by the same, and then by ε in words.
    """
    words: list[Word] = []
    details: list[str] = []
    for what, without in bare.items():
        details.append(f"{what}, without privacy: AUROC less chance {without}")
        if not without.above(0):
            details[-1] += ": not judged, for no leak is shown that ε could prevent"
            continue
        words += map(_leak_word, private[what].values())
        details += [
            f"{what}, {said}: AUROC less chance {found}" for said, found in private[what].items()
        ]
    word = together(words) if words else Word.UNDECIDED
    return Verdict(subject, "private texts do not tell whose rows were learnt from", word, details)


def _leak_word(found: Interval) -> Word:
    if found.above(0):
        return Word.NOT_HELD
    return Word.HELD if found.below(SMALL_LEAK) else Word.UNDECIDED


def _verdict(
    subject: str, because: str, shown: Sequence[bool | None], details: Sequence[str]
) -> Verdict:
    """Join comparisons, and count them: of many, one may seem shown by chance."""
    counted = f"{because} (of {len(shown)}: {shown.count(True)} yes, {shown.count(False)} no)"
    return Verdict(subject, counted, together(map(word_of, shown)), details)


def _utility(found: Found, data: str, target: str) -> Verdict:
    gaps = {
        f"{classifier}, {_said(records, epsilon)}": gap(
            found, data, target, classifier, records, epsilon
        )
        for classifier in found.size.classifiers
        for records in FEW
        for epsilon in EPSILONS
    }
    beside = [
        f"{classifier}, as many real rows as a twin's and as short, not judged: all real rows "
        f"less these {least_gap(found, data, target, classifier)}"
        for classifier in found.size.classifiers
    ]
    return utility(f"{data}, {target}", gaps, beside)


def _rival(found: Found, data: str, target: str) -> Verdict:
    differences = {
        f"{classifier}, {_said(records, epsilon)}, twin less DP classifier": over_rival(
            found, data, target, classifier, records, epsilon
        )
        for classifier in found.size.neural
        for records in RECORDS
        for epsilon in EPSILONS
    }
    beside = [
        f"{classifier}, {_said(records, epsilon)}, no private data less DP classifier, not judged: "
        f"{baseline_over_rival(found, data, target, classifier, records, epsilon)}"
        for classifier in found.size.neural
        for records in RECORDS
        for epsilon in EPSILONS
    ]
    because = "a classifier of the twin is better than a private classifier of the real rows"
    return better(f"{data}, {target}", because, differences, beside)


def _learnt(found: Found, data: str, target: str) -> Verdict:
    """Judge what the paper does not ask: whether private data had any part in it."""
    twins = [
        Level(data, TWIN, records, epsilon, found.size.mismatch)
        for records in RECORDS
        for epsilon in EPSILONS
    ]
    differences = {
        f"{classifier}, {_said(twin.records, twin.epsilon)}, twin less no private data": (
            over_baseline(found, twin, target, classifier)
        )
        for classifier in found.size.classifiers
        for twin in twins
    }
    because = "a private twin beats what the base model writes without any private data"
    return better(f"{data}, {target}", because, differences)


def _faithful(found: Found, data: str) -> Verdict:
    """Judge the mismatch loss by the label fidelity that it adds."""
    judge, differences = found.size.neural[0], {}
    for epsilon in (COMPARED, None):
        plain = Level(data, TWIN, None, epsilon, OFF)
        for level in by_loss(data, found.size, epsilon):
            if level.mismatch != OFF:
                ours, theirs = (found.fidelity(x, joint(data), judge) for x in (level, plain))
                said = f"{level.mismatch}, ε = {names(epsilon, None)[0]}, fidelity less without"
                differences[said] = difference(ours, theirs)
    return better(data, f"the mismatch loss adds label fidelity ({judge})", differences)


def _leaks(found: Found, data: str) -> Verdict:
    def area(attack: str, records: int | None, epsilon: float | None) -> Interval:
        twin = Level(data, TWIN, records, epsilon, found.size.mismatch)
        return found.revealed(twin, attack)

    asked = {
        f"{attack}, {names(None, records)[1]} records": (attack, records)
        for attack in found.attacks(data)
        for records in RECORDS
    }
    private = {
        what: {f"ε = {epsilon:g}": area(*one, epsilon) for epsilon in EPSILONS}
        for what, one in asked.items()
    }
    return leaks(data, {what: area(*one, None) for what, one in asked.items()}, private)


def _said(records: int | None, epsilon: float | None) -> str:
    spent, count = names(epsilon, records)
    return f"{count} records, ε = {spent}"
