"""Whether the claim of paper 001 held, computed from intervals and from nothing else.

It has three parts: at the same stated ε importance loses less accuracy than uniform noise; names
and numbers are as well hidden; and mean-one noise keeps the stated ε.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from evaluation.papers.anadp.cases import LEAKAGE
from evaluation.papers.anadp.corpora import SETS
from evaluation.papers.anadp.found import MEASURES, Found
from evaluation.papers.anadp.noise import IMPORTANCE, NO_DP, PUBLISHED, UNIFORM
from evaluation.papers.anadp.published import EPSILON
from evaluation.papers.anadp.tuning import METHODS
from evaluation.papers.intervals import Interval
from evaluation.papers.verdict import Verdict, Word, needing_all, together, word_of


def verdicts(found: Found) -> Iterator[Verdict]:
    """Yield a verdict on each part of the claim, for each form."""
    for form in IMPORTANCE:
        gains = {method: found.mean_gain(method, form) for method in METHODS}
        yield utility(form, gains, [*_by_set(form, found), _price(form, found)])
    for form in IMPORTANCE:
        yield protection(form, found)
    yield guarantee(found.attacks(PUBLISHED))


def quoted(found: Found) -> Word:
    """Return the word on the quoted claim: of the published form, accuracy and ε both."""
    gains = {method: found.mean_gain(method, PUBLISHED) for method in METHODS}
    parts = utility(PUBLISHED, gains), guarantee(found.attacks(PUBLISHED))
    return needing_all(part.word for part in parts)


def utility(form: str, gains: Mapping[str, Interval], details: Sequence[str] = ()) -> Verdict:
    """Judge accuracies less those under uniform noise, means over the sets, by method.

    >>> str(utility("ours", {"LoRA": Interval(0.02, 0.01, 0.03, 3)}).word)
    'held'
    """
    word = together(word_of(gain.above(0)) for gain in gains.values())
    said = [f"{method}: mean accuracy less uniform {gain}" for method, gain in gains.items()]
    because = "it loses less accuracy than uniform noise at the same stated ε"
    return Verdict(form, because, word, [*said, *details])


def protection(form: str, found: Found) -> Verdict:
    """Judge what names and numbers leak, where training without privacy is shown to leak any."""
    words, details = [], []
    for measure, name in MEASURES.items():
        bare = found.learnt(measure, NO_DP)
        if bare is None or not bare.above(0):
            said = "none was found" if bare is None else f"learnt less held out {bare}"
            details.append(
                f"{name}: not judged, for it is not shown that training without privacy leaks "
                f"({said})"
            )
            continue
        less, more = (found.against(measure, form, than) for than in (NO_DP, UNIFORM))
        words.append(hidden(less, more))
        details.append(f"{name}, learnt less held out: less no privacy {less}; less uniform {more}")
    word = together(words) if words else Word.UNDECIDED
    because = "what can be judged leaks less than without privacy, no more is shown than by uniform"
    return Verdict(form, because, word, details)


def hidden(less: Interval, more: Interval) -> Word:
    """Judge one measure: leakage less that without privacy, and less that under uniform noise.

    The second is the paper's own criterion, that no difference shows; one seed would show none.

    >>> ours = Interval(0.0, -0.1, 0.1, 3)
    >>> [str(hidden(Interval(x, x - 0.1, x + 0.1, 3), ours)) for x in (-1, 0, 1)]
    ['held', 'undecided', 'not held']
    """
    below = less.below(0)
    if below is False or more.above(0):
        return Word.NOT_HELD
    return Word.UNDECIDED if below is None or math.isinf(more.high) else Word.HELD


def guarantee(findings: Sequence[Mapping[str, float]]) -> Verdict:
    """Judge the stated ε of the published form by attacks that prove a larger one."""
    refuted = any(found["lower_bound"] > found["claimed"] for found in findings)
    details = [
        f"{found['what']}: stated ε {found['claimed']:.2f}, shown at least "
        f"{found['lower_bound']:.2f} (δ = {found['delta']:g}); a theorem covers "
        f"{found['guaranteed']:.2f}"
        for found in findings
    ]
    word = Word.NOT_HELD if refuted else Word.UNDECIDED
    return Verdict(PUBLISHED, "noise of mean one keeps the ε of uniform noise", word, details)


def _by_set(form: str, found: Found) -> Iterator[str]:
    for dataset in SETS:
        gains = (f"{method} {found.gain(dataset, method, form)}" for method in METHODS)
        yield f"{dataset}, accuracy less uniform: {'; '.join(gains)}"


def _price(form: str, found: Found) -> str:
    rows = [row for d in SETS for m in METHODS for row in found.of(d, m, form)]
    spent, leaked = found.spent(rows), found.spent(found.leaking(form))
    return (
        f"stated ε {EPSILON:g}; guaranteed to every record of the sets is ε {spent}, and of the "
        f"{LEAKAGE} {leaked}"
    )
