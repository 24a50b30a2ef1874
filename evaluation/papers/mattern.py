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
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from evaluation.leakage.overlap import HELDOUT, RUN, SAMPLE, TRAIN
from evaluation.papers.intervals import Interval, difference, geometric_mean, mean_of
from evaluation.papers.page import Section
from evaluation.papers.plots import legend_beside, seed_line
from evaluation.papers.results_store import Results
from evaluation.papers.review_twins import (
    ACCURACY,
    ATTRIBUTES,
    DATA,
    DECODINGS,
    DISTINCT,
    FIDELITY,
    NO_LOSS,
    NUCLEUS,
    PAIRS,
    Loss,
    Reviews,
    Scorer,
    Trained,
    Writer,
    neural_classifiers,
)
from evaluation.papers.run_context import RunContext
from evaluation.papers.study import Study, main
from evaluation.private_table import names_of
from evaluation.utility.dp_fitting import Budget
from evaluation.utility.embeddings import SentenceEncoder
from evaluation.utility.train_and_test import targets
from twinset.config.plan import default_delta
from twinset.errors import InputError
from twinset.privacy.accounting.rounding import up_decimals

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALL, UNLIMITED = "all", "∞"  # records; ε, without privacy
FEW, EPSILONS = ("25", "50"), ("3", "8")
RECORDS, BUDGETS = (*FEW, ALL), (*EPSILONS, UNLIMITED)
COMPARED = "8"  # ε at which losses, decodings and prompts are compared
GAP = 0.03  # section 1: "accuracies only ∼3% lower than those trained on the full original dataset"

REAL, RIVAL = "real rows", "real rows, DP classifier"
SHORT = "real rows, as many and as short as a twin's"
BASELINE, TWIN, APART = "no private data", "twin", "twin, one model per label"

_RUNS = f"rows with a run of {RUN} words"


class Level(NamedTuple):
    """What classifiers are trained on, and what stands behind it: a row but for its seed."""

    data: str
    source: str
    records: str = ALL
    epsilon: str = UNLIMITED
    loss: str = str(NO_LOSS)


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


def twin(size: Mapping[str, Any], data: str, records: str = ALL, epsilon: str = COMPARED) -> Level:
    """Return a twin of the main table."""
    return Level(data, TWIN, records, epsilon, str(Loss(**size["loss"])))


def by_loss(size: Mapping[str, Any], data: str, epsilon: str) -> Iterator[Level]:
    """Yield the twins of all records that differ in their loss alone."""
    return (Level(data, TWIN, ALL, epsilon, str(loss)) for loss in losses(size))


def main_levels(size: Mapping[str, Any], data: str) -> Iterator[Level]:
    """Yield the levels of a data set's main table."""
    for records in RECORDS:
        yield Level(data, REAL, records)
        yield from (Level(data, RIVAL, records, epsilon) for epsilon in EPSILONS)
    yield from (short(size, data), baseline(data))
    for records in RECORDS:
        yield from (twin(size, data, records, epsilon) for epsilon in BUDGETS)


def levels(size: Mapping[str, Any], data: str) -> Iterator[Level]:
    """Yield all levels of a data set."""
    yield from main_levels(size, data)
    for epsilon in (COMPARED, UNLIMITED):
        known = twin(size, data, ALL, epsilon)
        yield from (level for level in by_loss(size, data, epsilon) if level != known)
    yield Level(data, APART, ALL, COMPARED)


def records_of(level: Level) -> int | None:
    """Return how many records are trained on; None: all.

    >>> [records_of(Level("IMDb", SHORT, records)) for records in ("25", "10,000", "all")]
    [25, 10000, None]
    """
    return None if level.records == ALL else int(level.records.replace(",", ""))


def make_row(key: Run, size: Mapping[str, Any], scorer: Scorer, run: RunContext) -> dict[str, Any]:
    """Return what was found of one row."""
    started = time.monotonic()
    writer = Writer(scorer.reviews, size, run.progress)
    if key.source in (REAL, SHORT, RIVAL):
        found = _real_row(key, writer, scorer, run)
    else:
        found = _twin_row(key, size, writer, scorer, run)
    return found | {"seconds": round(time.monotonic() - started, 1)}


def _real_row(key: Run, writer: Writer, scorer: Scorer, run: RunContext) -> dict[str, Any]:
    """Return the accuracies of classifiers, private or not, of real rows."""
    rows = scorer.reviews.drawn(records_of(key.level), key.seed)
    counts: dict[str, Any] = {"records": len(rows)}
    if key.source == RIVAL:
        budget = Budget(float(key.epsilon), default_delta(len(rows)))
        found = scorer.private_accuracies(rows, budget, key.seed, run.counter("private steps"))
        return counts | {"delta": budget.delta, ACCURACY: found}
    if key.source == SHORT:
        rows = writer.cut(rows)
    return counts | {ACCURACY: scorer.accuracies(rows, key.seed)}


def _twin_row(
    key: Run, size: Mapping[str, Any], writer: Writer, scorer: Scorer, run: RunContext
) -> dict[str, Any]:
    """Return what a twin, or rows without private data, come to."""
    models = [] if key.source == BASELINE else _trained(key, size, writer)
    main = key.level in (baseline(key.data), twin(size, key.data, key.records, key.epsilon))
    several = key.level in (baseline(key.data), twin(size, key.data))
    frames = {
        name: _frame(writer, models, name, key.seed, main and name == NUCLEUS, run)
        for name in (DECODINGS if several else [NUCLEUS])
    }
    frame = frames.pop(NUCLEUS)
    found: dict[str, Any] = scorer.scores(frame, key.seed)
    found["decodings"] = {name: scorer.scores(one, key.seed) for name, one in frames.items()}
    found |= _claimed(models)
    if key.source != APART:
        found["perplexity"] = writer.perplexity(models[0].model if models else None)
    if main:
        found["leaks"] = scorer.leaks(frame, records_of(key.level) or None, key.seed)
    if key.source == BASELINE:
        found["chance"] = {
            records: scorer.areas(frame, records_of(Level(key.data, TWIN, records)), key.seed)
            for records in RECORDS
        }
    return found


def _trained(key: Run, size: Mapping[str, Any], writer: Writer) -> list[Trained]:
    (loss,) = (loss for loss in losses(size) if str(loss) == key.loss)
    epsilon = None if key.epsilon == UNLIMITED else float(key.epsilon)
    return writer.train(records_of(key.level), epsilon, loss, key.seed, apart=key.source == APART)


def _frame(
    writer: Writer,
    models: Sequence[Trained],
    decoding: str,
    seed: int,
    needed: bool,
    run: RunContext,
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


def _claimed(models: Sequence[Trained]) -> dict[str, float | None]:
    """Return the guarantee of all models together, which saw other records each."""
    if not models:
        return {"epsilon": 0.0, "delta": 0.0}
    claims = [one.model.guarantee for one in models]
    return {name: _worst([getattr(c, name) for c in claims]) for name in ("epsilon", "delta")}


def _worst(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None


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
        found: list[str] = self.size["classifiers"]
        return found

    @property
    def judge(self) -> str:
        """The classifier that figure and mismatch loss are judged by."""
        return neural_classifiers(self.size)[0]

    def values(
        self, level: Level, measure: str, target: str, classifier: str, decoding: str = NUCLEUS
    ) -> dict[int, float]:
        """Return a measure by seed."""
        return self.results.values(level, *_where(decoding), measure, target, classifier)

    def less(
        self, ours: Level, theirs: Level, target: str, classifier: str, measure: str = ACCURACY
    ) -> Interval:
        """Return a measure of one level less that of another, seed by seed."""
        both = (self.values(level, measure, target, classifier) for level in (ours, theirs))
        return difference(*both)

    def chance(self, data: str, records: str, attack: str) -> dict[int, float]:
        """Return the AUROC of rows without private data against the same records, by seed."""
        return self.results.values(baseline(data), "chance", records, attack)

    def revealed(self, level: Level, attack: str) -> Interval:
        """Return the AUROC of a twin less what it is by chance.

        Which rows were drawn moves an AUROC, whatever was written; so seeds are paired.
        """
        found = self.results.values(level, "leaks", "AUROC", attack)
        return difference(found, self.chance(level.data, level.records, attack))

    @property
    def attacks(self) -> list[str]:
        """Names of the attacks."""
        return list(self.results.values(baseline(DATA[0]), "leaks", "AUROC")[0])

    def sections(self) -> Iterator[Section]:
        """Yield the tables that the verdict rests on, then all that was measured."""
        note = "Differences seed by seed; an interval that includes 0 tells nothing."
        yield Section("What the verdict rests on", notes=[note])
        yield from (self.costs(), self.over_rivals(), self.over_baseline())
        yield from (self.more_faithful(), self.more_revealed())
        yield from map(self.accuracies, DATA)
        yield from map(self.by_losses, DATA)
        yield from (self.decodings(), self.apart(), self.leaks())

    def costs(self) -> Section:
        """Return what twins of few records cost in accuracy, against all real rows."""
        rows = [
            {"data": data, "label": target, "classifier": classifier}
            | {
                f"{n} records, ε = {epsilon}": str(
                    self.less(
                        Level(data, REAL), twin(self.size, data, n, epsilon), target, classifier
                    )
                )
                for n in FEW
                for epsilon in EPSILONS
            }
            | {
                "as many real rows as a twin's and as short": str(
                    self.less(Level(data, REAL), short(self.size, data), target, classifier)
                )
            }
            for data, target in labels()
            for classifier in self.classifiers
        ]
        note = "Accuracy of a classifier of all real rows less that of one of a twin's rows."
        return Section("What a twin of few records costs", rows, [note], 3, depth=3)

    def over_rivals(self) -> Section:
        """Return how much better twins are than private classifiers of the same ε."""
        rows = []
        for data, target in labels():
            for classifier in neural_classifiers(self.size):
                for n in RECORDS:
                    row = {"data": data, "label": target, "classifier": classifier, "records": n}
                    for epsilon in EPSILONS:
                        rival = Level(data, RIVAL, n, epsilon)
                        for one in (twin(self.size, data, n, epsilon), baseline(data)):
                            found = self.less(one, rival, target, classifier)
                            row[f"{one.source}, ε = {epsilon}"] = str(found)
                    rows.append(row)
        note = (
            "Accuracy of a classifier of a twin's rows, and of rows written without private data, "
            "less that of a private classifier of the real rows."
        )
        return Section("Twins against private classifiers", rows, [note], 4, depth=3)

    def over_baseline(self) -> Section:
        """Return whether private data had any part in what a private twin is good for."""
        rows = [
            {"data": data, "label": target, "classifier": classifier, "records": n}
            | {
                f"ε = {epsilon}": str(
                    self.less(twin(self.size, data, n, epsilon), baseline(data), target, classifier)
                )
                for epsilon in EPSILONS
            }
            for data, target in labels()
            for classifier in self.classifiers
            for n in RECORDS
        ]
        note = "Accuracy of a classifier of a twin's rows less that of rows without private data."
        return Section("What the private records added", rows, [note], 4, depth=3)

    def more_faithful(self) -> Section:
        """Return what the mismatch losses add to label fidelity."""
        rows = []
        for data in DATA:
            by_epsilon = [list(by_loss(self.size, data, e)) for e in (COMPARED, UNLIMITED)]
            for private, open_ in list(zip(*by_epsilon, strict=True))[1:]:
                row = {"data": data, "loss": private.loss}
                for one, (none, *_) in zip((private, open_), by_epsilon, strict=True):
                    found = self.less(one, none, joint(data), self.judge, FIDELITY)
                    row[f"ε = {one.epsilon}"] = str(found)
                rows.append(row)
        note = f"Label fidelity ({self.judge}) less that without mismatch loss; all records."
        return Section("What the mismatch loss adds", rows, [note], 2, depth=3)

    def more_revealed(self) -> Section:
        """Return what attacks see in the released texts, above chance."""
        rows = [
            {"data": data, "attack": attack, "records": n}
            | {
                f"ε = {epsilon}": str(self.revealed(twin(self.size, data, n, epsilon), attack))
                for epsilon in BUDGETS
            }
            for data in DATA
            for attack in self.attacks
            for n in RECORDS
        ]
        note = (
            "AUROC less that of rows without private data against the same records. Where no leak "
            "is shown without privacy (ε = ∞), there is none that ε could prevent."
        )
        return Section("Which records were trained on", rows, [note], 3, depth=3)

    def accuracies(self, data: str) -> Section:
        """Return the main table of a data set."""
        facts = self.results.facts[data]
        guesses = ", ".join(f"{name} {value:.3f}" for name, value in facts["guesses"].items())
        notes = (
            f"{facts['train']:,} real rows are all; {facts['test']:,} test rows, of which "
            f"{facts['coinciding']:,} are training rows too. A twin has "
            f"{self.size['rows'][data]:,}.",
            f"Always answering the commonest label: {guesses}.",
            f"Twins: {Loss(**self.size['loss'])}, {NUCLEUS}. {BASELINE.capitalize()}: the base "
            "model behind the same prompts, the row that the paper lacks.",
            "A twin's ε covers all targets and the texts; a DP classifier spends its ε on each "
            "target anew.",
            "Perplexity: of test rows behind their prompts; below that of no private data, "
            "something was learned.",
        )
        rows = [self._accuracies(level) for level in main_levels(self.size, data)]
        return Section(f"{data}: accuracy on real test rows", rows, notes, 2)

    def _accuracies(self, level: Level) -> dict[str, str]:
        rows = list(self.results.by_seed(*level).values())
        known = rows[0][ACCURACY]
        return {
            "learnt from": level.source,
            "records": level.records,
            "asked ε": level.epsilon,
            "spent ε": _spent(level, rows),
            **{
                f"{t}, {c}": _mean(self.values(level, ACCURACY, t, c)) if c in known[t] else ""
                for t in map(names_of, targets(ATTRIBUTES[level.data]))
                for c in self.classifiers
            },
            "perplexity": self._perplexity(level) if "perplexity" in rows[0] else "",
            "seeds": str(len(rows)),
            "s": f"{fmean(row['seconds'] for row in rows):.0f}",
        }

    def _perplexity(self, level: Level) -> str:
        found = self.results.values(level, "perplexity").values()
        return geometric_mean(list(found)).text(1)

    def by_losses(self, data: str) -> Section:
        """Return label fidelity and accuracy by loss."""
        target = joint(data)
        note = (
            f"All records. Label fidelity: the share of a twin's rows whose {target} a classifier "
            "of all real rows finds; such classifiers err too. Published: a mismatched prompt's "
            "loss is subtracted, and may grow without bound. Bounded: a penalty that ends once the "
            "text tells prompts apart. A model that writes no usable row counts as one whose twin "
            "teaches nothing: a guess, and no fidelity."
        )
        rows = [
            {"asked ε": level.epsilon, "loss": level.loss}
            | self._means(level, target, (FIDELITY, ACCURACY))
            | {"perplexity": self._perplexity(level)}
            for epsilon in (COMPARED, UNLIMITED)
            for level in by_loss(self.size, data, epsilon)
        ]
        return Section(f"{data}: with and without the mismatch loss", rows, [note], 2)

    def _means(
        self, level: Level, target: str, measures: Iterable[str], decoding: str = NUCLEUS
    ) -> dict[str, str]:
        return {
            f"{measure}, {c}": _mean(self.values(level, measure, target, c, decoding))
            for measure in measures
            for c in self.classifiers
        }

    def decodings(self) -> Section:
        """Return what the way of drawing rows changes."""
        note = (
            f"The same model's rows drawn in other ways: the twin of all records at ε = {COMPARED}"
            ", and the base model. Accuracy and fidelity of all labels together. Distinct-2: the "
            f"share of different ones among a table's pairs of words, {PAIRS:,} at most; shorter "
            "tables have fewer, and so a larger share."
        )
        rows = [
            {"table": data, "written by": level.source, "drawn from": decoding}
            | self._means(level, joint(data), (ACCURACY, FIDELITY), decoding)
            | {DISTINCT: self._distinct(level, decoding)}
            for data in DATA
            for level in (twin(self.size, data), baseline(data))
            for decoding in DECODINGS
        ]
        return Section("Decoding", rows, [note], 3)

    def _distinct(self, level: Level, decoding: str) -> str:
        found = self.results.values(level, *_where(decoding), DISTINCT)
        return str(mean_of(list(found.values())))

    def apart(self) -> Section:
        """Compare one model behind prompts with one for each combination of labels."""
        note = (
            f"All records at ε = {COMPARED}, each combination of labels with a model of its own "
            "and the same visits in all, less one model of all labels behind prompts with the loss "
            "named. Each of the models has less data, and as much noise."
        )
        rows = [
            {"table": data, "label": target, "less": level.loss}
            | {
                f"{measure}, {c}": str(
                    self.less(Level(data, APART, ALL, COMPARED), level, target, c, measure)
                )
                for measure in (ACCURACY, FIDELITY)
                for c in self.classifiers
            }
            for data in DATA
            for target in map(names_of, targets(ATTRIBUTES[data]))
            for level in list(by_loss(self.size, data, COMPARED))[:2]
        ]
        return Section("Prompts against one model per label", rows, [note], 3)

    def leaks(self) -> Section:
        """Return AUROC and shared runs of words."""
        others = (f"{data}: {self.results.facts[data]['others']}" for data in DATA)
        note = (
            "AUROC: rows that were trained on against others, told apart by the nearest row that "
            "was written; 0.5 knows nothing. Shared runs: rows written that share a run of "
            f"{RUN} words with rows trained on, and with as many others, which is what chance is; "
            "the longest also with any row trained on, of which there may be more. "
            f"{BASELINE.capitalize()}: against the same records, from which nothing was learned: "
            "what an AUROC is by chance, which the verdict takes off it, seed by seed. Others: "
            f"{', '.join(others)}."
        )
        rows = []
        for data in DATA:
            rows += [self._chance(data, records) for records in RECORDS]
            rows += [
                self._leaks(twin(self.size, data, n, epsilon))
                for n in RECORDS
                for epsilon in BUDGETS
            ]
        return Section("What the released texts give away", rows, [note], 3)

    def _chance(self, data: str, records: str) -> dict[str, str]:
        areas = {f"AUROC, {a}": _mean(self.chance(data, records, a)) for a in self.attacks}
        runs = self._runs(baseline(data))
        if records != ALL:
            runs = dict.fromkeys(runs, "")
        return self._written(baseline(data)._replace(records=records)) | areas | runs

    def _leaks(self, level: Level) -> dict[str, str]:
        areas = {
            f"AUROC, {a}": _mean(self.results.values(level, "leaks", "AUROC", a))
            for a in self.attacks
        }
        return self._written(level) | areas | self._runs(level)

    def _written(self, level: Level) -> dict[str, str]:
        return {
            "table": level.data,
            "written by": level.source,
            "records": level.records,
            "asked ε": level.epsilon,
        }

    def _runs(self, level: Level) -> dict[str, str]:
        """Return shared runs of words, with rows trained on and with others."""
        shared = list(self.results.values(level, "leaks", "shared").values())
        equal = SAMPLE if f"{_RUNS}, {SAMPLE}" in shared[0] else TRAIN

        def longest(where: str) -> str:
            return f"{max(one[f'longest verbatim run, {where}'] for one in shared):.0f}"

        def share(where: str) -> str:
            return str(mean_of([one[f"{_RUNS}, {where}"] for one in shared], 0.0, 1.0))

        return {
            "longest shared run, any learnt from": longest(TRAIN),
            "as many": longest(equal),
            "others": longest(HELDOUT),
            f"{RUN} words, as many learnt from": share(equal),
            f"{RUN} words, others": share(HELDOUT),
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


def _mean(values: Mapping[int, float]) -> str:
    return str(mean_of(list(values.values()), 0.0, 1.0))


def _spent(level: Level, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the largest ε that was spent, rounded up; a DP classifier's noise is set to its ε."""
    if level.source == RIVAL:
        return level.epsilon
    spent = _worst([row.get("epsilon") for row in rows])
    return "none" if spent is None else up_decimals(spent)


_COLOURS = dict(zip(BUDGETS, ("C3", "C1", "C0"), strict=True))


def draw(tables: Tables) -> Figure:
    """Draw every seed and the means; dashed: a DP classifier of the real rows at the same ε."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.3 * len(labels()), 7), layout="constrained")
    above, below = figure.subplots(2, len(labels()))
    for panel, (data, target) in zip(above, labels(), strict=True):
        _draw_accuracies(panel, tables, data, target)
    for panel, data in zip(below, DATA, strict=False):
        _draw_losses(panel, tables, data)
    legend_beside(below[-1], above[0])
    size = tables.results.settings["size"]
    figure.suptitle(f"Twins of reviews, classifier {tables.judge} ({size})", fontsize=10)
    return figure


def _draw_accuracies(panel: Any, tables: Tables, data: str, target: str) -> None:
    def seeds(every: Iterable[Level]) -> list[list[float]]:
        found = (tables.values(level, ACCURACY, target, tables.judge) for level in every)
        return [list(values.values()) for values in found]

    for epsilon, colour in _COLOURS.items():
        twins = seeds(twin(tables.size, data, n, epsilon) for n in RECORDS)
        seed_line(panel, twins, color=colour, label=f"twin, ε = {epsilon}")
        if epsilon != UNLIMITED:
            rivals = seeds(Level(data, RIVAL, n, epsilon) for n in RECORDS)
            said = f"DP classifier, ε = {epsilon}"
            seed_line(panel, rivals, form="o--", color=colour, label=said)
    real = seeds(Level(data, REAL, n) for n in RECORDS)
    seed_line(panel, real, form="o:", color="0.3", label=REAL)
    every, (least,) = fmean(real[-1]), seeds([baseline(data)])
    panel.axhspan(every - GAP, every, color="0.9", label=f"paper: within {GAP} of all")
    panel.axhline(fmean(least), color="C2", label=BASELINE)
    panel.set_xticks(range(len(RECORDS)), RECORDS)
    panel.set_xlabel("records")
    panel.set_title(f"{data}: accuracy, {target}", fontsize=9)


def _draw_losses(panel: Any, tables: Tables, data: str) -> None:
    """Draw label fidelity, a place for each loss."""

    def seeds(level: Level) -> list[float]:
        return list(tables.values(level, FIDELITY, joint(data), tables.judge).values())

    for epsilon in (COMPARED, UNLIMITED):
        every = [seeds(level) for level in by_loss(tables.size, data, epsilon)]
        seed_line(panel, every, color=_COLOURS[epsilon])
    panel.axhline(fmean(seeds(baseline(data))), color="C2")
    names = list(map(str, losses(tables.size)))
    panel.set_xticks(range(len(names)), names, rotation=60, fontsize=7)
    panel.set_title(f"{data}: label fidelity, all records", fontsize=9)


class Mattern(Study):
    """Is a private twin as good as its table? Mattern, Jin, Weggenmann and others 2022."""

    name = "mattern"
    files = {
        "imdb_train": "film reviews to train on: a table with columns text and sentiment",
        "imdb_test": "film reviews to test on",
        "amazon_train": "product reviews to train on: columns text, sentiment and product",
        "amazon_test": "product reviews to test on",
    }
    models = {"base_model": "that writes the twins: an asset, a folder or a hub name"}

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

    def sections(self, results: Results) -> Iterator[Section]:
        """See `Study`."""
        return Tables(results, self.size).sections()

    def figure(self, results: Results) -> Figure:
        """See `Study`."""
        return draw(Tables(results, self.size))

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
