"""Paper 002: is a private twin as good as the table, and better than a private classifier?

Mattern, Jin, Weggenmann, Schölkopf and Sachan 2022, "Differentially Private Language Models for
Secure Data Sharing": twins of film reviews and of product reviews from 25, 50 and all records at
ε = 3, 8 and ∞, beside what the same model writes without any private data, and beside a classifier
that is trained on the real rows with the same ε.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from evaluation.leakage.overlap import HELDOUT, RUN, SAMPLE, TRAIN
from evaluation.papers import stated_epsilon
from evaluation.papers.intervals import Interval, difference
from evaluation.papers.plots import legend_beside, make_panels, seed_line
from evaluation.papers.review_twins import (
    ACCURACY,
    ATTRIBUTES,
    DATA,
    DECODINGS,
    DISTINCT,
    FIDELITY,
    NO_LOSS,
    NUCLEUS,
    Loss,
    Reviews,
    Scorer,
    Trained,
    Writer,
    neural_classifiers,
)
from evaluation.papers.run_context import RunContext
from evaluation.papers.study import Study, main
from evaluation.papers.study_rows import Results
from evaluation.private_table import names_of
from evaluation.utility.dp_fitting import Budget
from evaluation.utility.embeddings import SentenceEncoder
from evaluation.utility.train_and_test import targets
from twinset.config.plan import default_delta
from twinset.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALL, UNLIMITED = "all", "∞"  # records; ε, without privacy
FEW, EPSILONS = ("25", "50"), ("3", "8")
RECORDS, BUDGETS = (*FEW, ALL), (*EPSILONS, UNLIMITED)
MAIN = "8"  # ε at which losses, decodings and prompts are compared
COMPARED = (MAIN, UNLIMITED)
GAP = 0.03  # section 1: "accuracies only ∼3% lower than those trained on the full original dataset"

REAL, DP_BASELINE, DP = "real rows", "real rows, DP classifier", "DP classifier"
SHORT = "real rows, as many and as short as a twin's"
ROWS = (REAL, SHORT, DP_BASELINE)
BASELINE, TWIN, APART = "no private data", "twin", "twin, one model per label"
COMPARISONS = ((REAL, TWIN), (TWIN, BASELINE), (TWIN, DP), (BASELINE, DP))

Line = dict[str, object]  # of a table
_RUNS = f"rows with a run of {RUN} words"


class Level(NamedTuple):
    """What classifiers are trained on, and what stands behind it: a row but for its seed."""

    data: str
    source: str
    records: str = ALL
    epsilon: str = UNLIMITED
    loss: str = str(NO_LOSS)

    @property
    def most(self) -> int | None:
        """How many records are trained on; None: all.

        >>> [Level("IMDb", SHORT, records).most for records in ("25", "10,000", "all")]
        [25, 10000, None]
        """
        return None if self.records == ALL else int(self.records.replace(",", ""))


class Run(NamedTuple):
    """Key of a row."""

    data: str
    source: str
    records: str
    epsilon: str
    loss: str
    seed: int

    @property
    def level(self) -> Level:
        """The row but for its seed."""
        return Level(*self[:-1])


def losses(size: Mapping[str, Any]) -> list[Loss]:
    """Return all losses that are compared: none, that of the main table, and the others."""
    return [NO_LOSS, *(Loss(**loss) for loss in (size["loss"], *size["other_losses"]))]


def baseline(data: str) -> Level:
    """Return what no record and no ε is spent on."""
    return Level(data, BASELINE, "0", "0")


def short(size: Mapping[str, Any], data: str) -> Level:
    """Return real rows of a twin's number and length: what a perfect twin would be good for."""
    return Level(data, SHORT, f"{size['rows'][data]:,}")


def twin(size: Mapping[str, Any], data: str, records: str = ALL, epsilon: str = MAIN) -> Level:
    """Return a twin of the main table."""
    return Level(data, TWIN, records, epsilon, str(Loss(**size["loss"])))


def by_loss(size: Mapping[str, Any], data: str, epsilon: str) -> Iterator[Level]:
    """Yield the twins of all records that differ in their loss alone."""
    return (Level(data, TWIN, ALL, epsilon, str(loss)) for loss in losses(size))


def main_levels(size: Mapping[str, Any], data: str) -> Iterator[Level]:
    """Yield the levels of a data set's main table."""
    for records in RECORDS:
        yield Level(data, REAL, records)
        yield from (Level(data, DP_BASELINE, records, epsilon) for epsilon in EPSILONS)
    yield from (short(size, data), baseline(data))
    for records in RECORDS:
        yield from (twin(size, data, records, epsilon) for epsilon in BUDGETS)


def levels(size: Mapping[str, Any], data: str) -> Iterator[Level]:
    """Yield all levels of a data set."""
    yield from main_levels(size, data)
    for epsilon in COMPARED:
        known = twin(size, data, ALL, epsilon)
        yield from (level for level in by_loss(size, data, epsilon) if level != known)
    yield Level(data, APART, ALL, MAIN)


def make_row(key: Run, size: Mapping[str, Any], scorer: Scorer, run: RunContext) -> dict[str, Any]:
    """Return what one row comes to."""
    started, writer = time.monotonic(), Writer(scorer.reviews, size, run.progress)
    if key.source in ROWS:
        row = real_row(key, writer, scorer, run)
    else:
        row = _twin_row(key, size, writer, scorer, run)
    return row | {"seconds": round(time.monotonic() - started, 1)}


def real_row(key: Run, writer: Writer, scorer: Scorer, run: RunContext) -> dict[str, Any]:
    """Return the accuracies of classifiers, private or not, of real rows."""
    rows = scorer.reviews.drawn(key.level.most, key.seed)
    counts: dict[str, Any] = {"records": len(rows)}
    if key.source == DP_BASELINE:
        budget = Budget(float(key.epsilon), default_delta(len(rows)))
        private = scorer.accuracies(rows, key.seed, budget, run.counter("private steps"))
        return counts | {"delta": budget.delta, ACCURACY: private}
    if key.source == SHORT:
        rows = writer.cut(rows)
    return counts | {ACCURACY: scorer.accuracies(rows, key.seed)}


def _twin_row(
    key: Run, size: Mapping[str, Any], writer: Writer, scorer: Scorer, run: RunContext
) -> dict[str, Any]:
    """Return what a twin, or rows without private data, come to."""
    none = baseline(key.data)
    models = [] if key.level == none else _trained(key, size, writer)
    main = key.level in (none, twin(size, key.data, key.records, key.epsilon))

    def scores_of(decoding: str) -> dict[str, Any]:
        return scorer.scores(_frame(writer, models, decoding, key.seed, run), key.seed)

    frame = _frame(writer, models, NUCLEUS, key.seed, run, needed=main)
    row: dict[str, Any] = scorer.scores(frame, key.seed)
    others = list(DECODINGS)[1:] if key.level in (none, twin(size, key.data)) else []
    row["decodings"] = {name: scores_of(name) for name in others}
    claims = [one.model.guarantee for one in models]  # of models that saw other records each
    for name in ("epsilon", "delta"):
        values = [getattr(claim, name) for claim in claims]
        row[name] = None if None in values else max(values, default=0.0)
    if key.source != APART:
        row["perplexity"] = writer.perplexity(models[0].model if models else None)
    if main:
        row["leaks"] = scorer.leaks(frame, key.level.most or None, key.seed)
    if key.level == none:
        counts = {n: Level(key.data, TWIN, n).most for n in RECORDS}
        row["chance"] = {n: scorer.areas(frame, many, key.seed) for n, many in counts.items()}
    return row


def _trained(key: Run, size: Mapping[str, Any], writer: Writer) -> list[Trained]:
    (loss,) = (loss for loss in losses(size) if str(loss) == key.loss)
    epsilon = None if key.epsilon == UNLIMITED else float(key.epsilon)
    return writer.train(key.level.most, epsilon, loss, key.seed, apart=key.source == APART)


def _frame(
    writer: Writer,
    models: Sequence[Trained],
    decoding: str,
    seed: int,
    run: RunContext,
    needed: bool = False,
) -> pd.DataFrame:
    """Return rows; none at all where a model writes nothing that could be used.

    Raises:
        InputError: there are none, and they are needed.
    """
    if not models:
        return writer.untrained(decoding, seed)
    try:
        return writer.written(models, decoding, seed)
    except InputError as error:
        if needed:
            raise
        run.progress.warn(f"no twin: {error}")
        return pd.DataFrame()


@dataclass(frozen=True)
class Tables:
    """The sections of the page.

    Args:
        results: every row.
        size: numbers of the size.
    """

    results: Results
    size: Mapping[str, Any]

    @property
    def classifiers(self) -> list[str]:
        """Names of all classifiers."""
        return list(self.size["classifiers"])

    @property
    def judge(self) -> str:
        """The classifier that figure and mismatch loss are judged by."""
        return neural_classifiers(self.size)[0]

    def less(
        self, ours: Level, theirs: Level, target: str, classifier: str, measure: str = ACCURACY
    ) -> Interval:
        """Return a measure of one level less that of another, seed by seed."""
        return self.results.difference(ours, theirs, measure, target, classifier)

    def revealed(self, level: Level, attack: str) -> Interval:
        """Return the AUROC of a twin less what it is by chance: of rows without private data.

        Which rows were drawn moves an AUROC, whatever was written; so seeds are paired.
        """
        chance = self.results.values(baseline(level.data), "chance", level.records, attack)
        return difference(self.results.values(level, "leaks", "AUROC", attack), chance)

    @property
    def attacks(self) -> list[str]:
        """Names of the attacks."""
        return list(self.results.values(baseline(DATA[0]), "leaks", "AUROC")[0])

    def all(self) -> dict[str, Any]:
        """Return what the page's template calls `tables`."""
        return {
            "accuracy": list(self.accuracy_differences()),
            "accuracies": {d: list(map(self.accuracies, main_levels(self.size, d))) for d in DATA},
            "losses": {d: list(self.by_losses(d)) for d in DATA},
            "decodings": list(self.decodings()),
            "apart": list(self.apart()),
            "leaks": [line for data in DATA for line in self.leaks(data)],
            "stated": list(stated_epsilon.worth()),
            "few": stated_epsilon.fewest(),
            "loss": str(Loss(**self.size["loss"])),
            "judge": self.judge,
            "run": RUN,
            "joint": {data: joint(data) for data in DATA},
        }

    def accuracy_differences(self) -> Iterator[Line]:
        """Yield what twins cost, what their private records added, and private classifiers."""
        for (data, target), classifier, n in product(labels(), self.classifiers, RECORDS):
            line: Line = {"data": data, "label": target, "classifier": classifier, "records": n}
            for (ours, theirs), e in product(COMPARISONS, EPSILONS):
                levels = {TWIN: twin(self.size, data, n, e), BASELINE: baseline(data)}
                levels |= {REAL: Level(data, REAL), DP: Level(data, DP_BASELINE, n, e)}
                if theirs != DP or classifier in neural_classifiers(self.size):
                    less = self.less(levels[ours], levels[theirs], target, classifier)
                    line[f"{ours} less {theirs}, ε = {e}"] = less
            if n == ALL:
                less = self.less(Level(data, REAL), short(self.size, data), target, classifier)
                line[f"{REAL} less as many and as short as a twin's"] = less
            yield line

    def accuracies(self, level: Level) -> Line:
        """Return a line of the main table of a data set."""
        row = self.results.first(level)
        return {
            "trained on": level.source,
            "records": level.records,
            "asked ε": level.epsilon,
            "spent ε": self._spent(level),
            **{
                f"{t}, {c}": self.results.share(level, ACCURACY, t, c)
                if c in row[ACCURACY][t]
                else None
                for t in map(names_of, targets(ATTRIBUTES[level.data]))
                for c in self.classifiers
            },
            "perplexity": self._perplexity(level) if "perplexity" in row else None,
            **self.results.effort(level, "seconds", "s"),
        }

    def _spent(self, level: Level) -> str:
        """Return the largest ε that was spent; a DP classifier's noise is set to its ε."""
        if level.source == DP_BASELINE:
            return level.epsilon
        return self.results.largest(level, "epsilon") if level.source not in ROWS else "none"

    def _perplexity(self, level: Level) -> str:
        return self.results.geometric(level, "perplexity").text(1)

    def by_losses(self, data: str) -> Iterator[Line]:
        """Yield label fidelity and accuracy by loss, and what the loss adds to fidelity."""
        for epsilon in COMPARED:
            none, *others = by_loss(self.size, data, epsilon)
            for level in (none, *others):
                less = self.less(level, none, joint(data), self.judge, FIDELITY)
                yield {
                    "loss": level.loss,
                    "asked ε": epsilon,
                    f"{FIDELITY} less without, {self.judge}": less if level != none else None,
                    **self._means(level, (FIDELITY, ACCURACY)),
                    "perplexity": self._perplexity(level),
                }

    def _means(
        self, level: Level, measures: Iterable[str], decoding: str = NUCLEUS
    ) -> dict[str, Interval]:
        """Return measures of all labels together, by classifier."""
        return {
            f"{measure}, {c}": self.results.share(
                level, *_where(decoding), measure, joint(level.data), c
            )
            for measure in measures
            for c in self.classifiers
        }

    def decodings(self) -> Iterator[Line]:
        """Yield what the way of drawing rows changes."""
        for data in DATA:
            for level, decoding in product((twin(self.size, data), baseline(data)), DECODINGS):
                yield {
                    "table": data,
                    "written by": level.source,
                    "drawn from": decoding,
                    **self._means(level, (ACCURACY, FIDELITY), decoding),
                    DISTINCT: self.results.mean(level, *_where(decoding), DISTINCT),
                }

    def apart(self) -> Iterator[Line]:
        """Yield one model for each combination of labels, less one model behind prompts."""
        for data in DATA:
            ours, compared = Level(data, APART, ALL, MAIN), list(by_loss(self.size, data, MAIN))[:2]
            every = map(names_of, targets(ATTRIBUTES[data]))
            for target, level in product(every, compared):
                yield {"table": data, "label": target, "less": level.loss} | {
                    f"{measure}, {c}": self.less(ours, level, target, c, measure)
                    for measure in (ACCURACY, FIDELITY)
                    for c in self.classifiers
                }

    def leaks(self, data: str) -> Iterator[Line]:
        """Yield AUROC and shared runs of words: first of what is written without private data."""
        for n in RECORDS:
            none = baseline(data)
            chance = {a: self.results.share(none, "chance", n, a) for a in self.attacks}
            runs = self._runs(none) if n == ALL else {}
            line = _written(none._replace(records=n))
            yield line | _named("AUROC", chance) | runs
        for n, epsilon in product(RECORDS, BUDGETS):
            level = twin(self.size, data, n, epsilon)
            areas = {
                f"AUROC, {a}": self.results.share(level, "leaks", "AUROC", a) for a in self.attacks
            }
            above = {f"above chance, {a}": self.revealed(level, a) for a in self.attacks}
            yield _written(level) | areas | above | self._runs(level)

    def _runs(self, level: Level) -> dict[str, object]:
        """Return shared runs of words, with rows trained on and with others."""
        shared = list(self.results.values(level, "leaks", "shared").values())
        equal = SAMPLE if f"{_RUNS}, {SAMPLE}" in shared[0] else TRAIN

        def longest(where: str) -> str:
            return f"{max(one[f'longest verbatim run, {where}'] for one in shared):.0f}"

        def share(where: str) -> Interval:
            return self.results.share(level, "leaks", "shared", f"{_RUNS}, {where}")

        return {
            "longest shared run, any trained on": longest(TRAIN),
            "as many": longest(equal),
            "others": longest(HELDOUT),
            f"{RUN} words, as many trained on": share(equal),
            f"{RUN} words, others": share(HELDOUT),
        }


def _named(what: str, by_attack: Mapping[str, Interval]) -> Line:
    return {f"{what}, {attack}": value for attack, value in by_attack.items()}


def _written(level: Level) -> Line:
    return {
        "table": level.data,
        "written by": level.source,
        "records": level.records,
        "asked ε": level.epsilon,
    }


def labels() -> list[tuple[str, str]]:
    """Return data sets and targets that claims speak of: each attribute alone."""
    return [(data, names_of((name,))) for data in DATA for name in ATTRIBUTES[data]]


def joint(data: str) -> str:
    """Return the target of all attributes together."""
    return names_of(ATTRIBUTES[data])


def _where(decoding: str) -> tuple[str, ...]:
    """Return where the measures of a row that was drawn so stand in it."""
    return () if decoding == NUCLEUS else ("decodings", decoding)


_COLOURS = dict(zip(BUDGETS, ("C3", "C1", "C0"), strict=True))


def _draw_accuracies(panel: Any, tables: Tables, data: str, target: str) -> None:
    def seeds(every: Iterable[Level]) -> list[dict[int, float]]:
        path = ACCURACY, target, tables.judge
        return [tables.results.values(level, *path) for level in every]

    for epsilon, colour in _COLOURS.items():
        twins = seeds(twin(tables.size, data, n, epsilon) for n in RECORDS)
        seed_line(panel, twins, color=colour, label=f"twin, ε = {epsilon}")
        if epsilon != UNLIMITED:
            baselines = seeds(Level(data, DP_BASELINE, n, epsilon) for n in RECORDS)
            label = f"DP classifier, ε = {epsilon}"
            seed_line(panel, baselines, form="o--", color=colour, label=label)
    real = seeds(Level(data, REAL, n) for n in RECORDS)
    seed_line(panel, real, form="o:", color="0.3", label=REAL)
    every, least = (fmean(seeds([one])[0].values()) for one in (Level(data, REAL), baseline(data)))
    panel.axhspan(every - GAP, every, color="0.9", label=f"paper: within {GAP} of all")
    panel.axhline(least, color="C2", label=BASELINE)
    panel.set_xticks(range(len(RECORDS)), RECORDS)
    panel.set_xlabel("records")
    panel.set_title(f"{data}: accuracy, {target}", fontsize=9)


def _draw_losses(panel: Any, tables: Tables, data: str) -> None:
    """Draw label fidelity, a place for each loss."""

    def seeds(level: Level) -> dict[int, float]:
        return tables.results.values(level, FIDELITY, joint(data), tables.judge)

    for epsilon in COMPARED:
        every = [seeds(level) for level in by_loss(tables.size, data, epsilon)]
        seed_line(panel, every, color=_COLOURS[epsilon])
    panel.axhline(fmean(seeds(baseline(data)).values()), color="C2")
    names = list(map(str, losses(tables.size)))
    panel.set_xticks(range(len(names)), names, rotation=60, fontsize=7)
    panel.set_title(f"{data}: label fidelity, all records", fontsize=9)


class Mattern(Study):
    """Is a private twin as good as its table? Mattern, Jin, Weggenmann and others 2022."""

    name = "mattern"

    def keys(self, seeds: int) -> Iterator[Run]:
        """See `Study`."""
        for seed in range(seeds):
            for data in DATA:
                yield from (Run(*level, seed) for level in levels(self.size, data))

    def settings(self) -> dict[str, Any]:
        """See `Study`."""
        return super().settings() | {"decodings": DECODINGS}

    def facts(self) -> Mapping[str, Any]:
        """See `Study`."""
        return {data: reviews.facts() for data, reviews in self._reviews.items()}

    def row(self, key: Run, run: RunContext) -> Mapping[str, Any]:
        """See `Study`."""
        return make_row(key, self.size, self._scorers[key.data], run)

    def tables(self, results: Results) -> Mapping[str, Any]:
        """See `Study`."""
        return Tables(results, self.size).all()

    def figure(self, results: Results) -> Figure:
        """Draw every seed and the means; dashed: a DP classifier of the real rows at the same ε."""
        tables, columns = Tables(results, self.size), len(labels())
        title = f"Twins of reviews, classifier {tables.judge} ({results.settings['size']})"
        figure, (above, below) = make_panels(title, 2, columns, (3.3 * columns, 7))
        for panel, (data, target) in zip(above, labels(), strict=True):
            _draw_accuracies(panel, tables, data, target)
        for panel, data in zip(below, DATA, strict=False):
            _draw_losses(panel, tables, data)
        legend_beside(below[-1], above[0])
        return figure

    @cached_property
    def _reviews(self) -> dict[str, Reviews]:
        def read(data: str) -> Reviews:
            train, test = (self.paths[f"{data.lower()}_{part}"] for part in ("train", "test"))
            return Reviews.read(data, train, test, self.size)

        return {data: read(data) for data in DATA}

    @cached_property
    def _scorers(self) -> dict[str, Scorer]:
        embeddings = SentenceEncoder()
        return {d: Scorer(reviews, self.size, embeddings) for d, reviews in self._reviews.items()}


if __name__ == "__main__":
    main(Mattern)
