"""Paper 002's claim on few records, asked of this project's own recipe and its default base model.

Of Mattern, Jin, Weggenmann, Schölkopf and Sachan 2022, as `mattern`, which see. There a base model
of 4 million parameters is trained as in the paper; here one of 135 million stays as it is, and all
of ε goes into noisy counts of labels and words, which is what `twinset generate` does by itself
with so few records.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

from evaluation.papers.intervals import Interval
from evaluation.papers.mattern import (
    BASELINE,
    DP,
    DP_BASELINE,
    FEW,
    GAP,
    REAL,
    ROWS,
    SHORT,
    TWIN,
    Level,
    Line,
    Mattern,
    Run,
    baseline,
    joint,
    labels,
    real_row,
    short,
)
from evaluation.papers.plots import legend_beside, make_panels, seed_line
from evaluation.papers.review_twins import (
    ACCURACY,
    ATTRIBUTES,
    DATA,
    FIDELITY,
    NO_LOSS,
    NUCLEUS,
    Loss,
    Scorer,
    Writer,
    neural_classifiers,
)
from evaluation.papers.run_context import RunContext
from evaluation.papers.study import Study, main
from evaluation.papers.study_rows import Results
from evaluation.private_table import names_of
from evaluation.utility.train_and_test import targets
from twinset.config import SamplingConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEW_REAL = "real rows, the same few"


class OwnRecipe(Writer):
    """Writes twins by this project's defaults, but for what the size names."""

    def _options(self, records: int, few: bool, loss: Loss, parts: int) -> dict[str, Any]:
        return {**self._size["training"], "base_model": self._size["base_model"]}

    def _sampling(self, decoding: str, seed: int) -> SamplingConfig:
        settled = self._config.sampling.settled(teacher=False)
        return replace(settled, seed=seed, max_redraws=self._size["redraws"])


def twin(data: str, records: str, epsilon: str) -> Level:
    """Return a twin."""
    return Level(data, TWIN, records, epsilon)


def levels(size: Mapping[str, Any], data: str) -> Iterator[Level]:
    """Yield all levels of a data set."""
    yield from (Level(data, REAL), short(size, data), baseline(data))
    for records in FEW:
        yield Level(data, REAL, records)
        for epsilon in size["epsilons"]:
            yield from (Level(data, DP_BASELINE, records, epsilon), twin(data, records, epsilon))


def make_row(key: Run, size: Mapping[str, Any], scorer: Scorer, run: RunContext) -> dict[str, Any]:
    """Return what one row comes to."""
    started, writer = time.monotonic(), OwnRecipe(scorer.reviews, size, run.progress)
    if key.source in ROWS:
        row = real_row(key, writer, scorer, run)
    elif key.source == BASELINE:
        row = scorer.scores(writer.untrained(NUCLEUS, key.seed), key.seed) | {"epsilon": 0.0}
    else:
        models = writer.train(key.level.most, float(key.epsilon), NO_LOSS, key.seed)
        row = scorer.scores(writer.written(models, NUCLEUS, key.seed), key.seed)
        row |= {"epsilon": models[0].model.guarantee.epsilon}
    return row | {"seconds": round(time.monotonic() - started, 1)}


class Tables:
    """The sections of the page.

    Args:
        results: every row.
        size: numbers of the size.
    """

    def __init__(self, results: Results, size: Mapping[str, Any]) -> None:
        self._results, self._size = results, size

    def all(self) -> dict[str, Any]:
        """Return what the page's template calls `tables`."""
        return {
            "differences": list(self.differences()),
            "accuracies": {d: list(map(self._line, levels(self._size, d))) for d in DATA},
        }

    def differences(self) -> Iterator[Line]:
        """Yield what a twin costs, and what it adds to each thing that costs less."""
        for (data, target), classifier, n, e in product(
            labels(), self._size["classifiers"], FEW, self._size["epsilons"]
        ):
            ours = twin(data, n, e)
            others = {BASELINE: baseline(data), FEW_REAL: Level(data, REAL, n)}
            if classifier in neural_classifiers(self._size):
                others[DP] = Level(data, DP_BASELINE, n, e)
            cost = self._less(Level(data, REAL), ours, target, classifier)
            yield {
                "data": data,
                "label": target,
                "classifier": classifier,
                "records": n,
                "ε": e,
                "all real rows less twin": cost,
                "a twin's number and length alone": self._less(
                    Level(data, REAL), short(self._size, data), target, classifier
                ),
            } | {
                f"twin less {name}": self._less(ours, other, target, classifier)
                for name, other in others.items()
            }

    def _less(self, ours: Level, theirs: Level, target: str, classifier: str) -> Interval:
        return self._results.difference(ours, theirs, ACCURACY, target, classifier)

    def _line(self, level: Level) -> Line:
        """Return a line of the table of a data set."""
        known, judged = self._results.first(level), joint(level.data)
        return {
            "trained on": level.source,
            "records": level.records,
            "asked ε": level.epsilon,
            "spent ε": self._results.largest(level, "epsilon") if "epsilon" in known else "",
            **{
                f"{t}, {c}": self._results.share(level, ACCURACY, t, c)
                if c in known[ACCURACY][t]
                else None
                for t in map(names_of, targets(ATTRIBUTES[level.data]))
                for c in self._size["classifiers"]
            },
            f"{FIDELITY}, {judged}": self._results.share(
                level, FIDELITY, judged, self._size["classifiers"][0]
            )
            if FIDELITY in known
            else None,
            **self._results.effort(level, "seconds", "s"),
        }


def _draw(panel: Any, results: Results, size: Mapping[str, Any], data: str, target: str) -> None:
    judge = size["classifiers"][0]

    def seeds(every: list[Level]) -> list[dict[int, float]]:
        return [results.values(level, ACCURACY, target, judge) for level in every]

    for place, epsilon in enumerate(size["epsilons"]):
        twins = seeds([twin(data, n, epsilon) for n in FEW])
        seed_line(panel, twins, color=f"C{place}", label=f"twin, ε = {epsilon}")
    few = seeds([Level(data, REAL, n) for n in FEW])
    seed_line(panel, few, form="o:", color="0.3", label=FEW_REAL)
    for level, colour, name in (
        (Level(data, REAL), "0.3", "all real rows"),
        (short(size, data), "0.6", SHORT),
        (baseline(data), "C8", BASELINE),
    ):
        panel.axhline(results.mean(level, ACCURACY, target, judge).value, color=colour, label=name)
    every = results.mean(Level(data, REAL), ACCURACY, target, judge).value
    panel.axhspan(every - GAP, every, color="0.9", label=f"paper: within {GAP} of all")
    panel.set_xticks(range(len(FEW)), FEW)
    panel.set_xlabel("records")
    panel.set_title(f"{data}: accuracy, {target}, {judge}", fontsize=9)


class MatternFew(Mattern):
    """Do twins of 25 or 50 records teach what all records do? Mattern and others 2022."""

    name = "mattern_few"

    def keys(self, seeds: int) -> Iterator[Run]:
        """See `Study`."""
        for seed in range(seeds):
            for data in DATA:
                yield from (Run(*level, seed) for level in levels(self.size, data))

    def settings(self) -> dict[str, Any]:
        """See `Study`."""
        return Study.settings(self)

    def row(self, key: Run, run: RunContext) -> Mapping[str, Any]:
        """See `Study`."""
        return make_row(key, self.size, self._scorers[key.data], run)

    def tables(self, results: Results) -> Mapping[str, Any]:
        """See `Study`."""
        return Tables(results, self.size).all()

    def figure(self, results: Results) -> Figure:
        """Draw every seed and the means, beside rows without private data and real ones."""
        title = f"Twins of few reviews, by this project's recipe ({results.settings['size']})"
        columns = len(labels()) + 1
        figure, ((*panels, empty),) = make_panels(title, 1, columns, (3.3 * columns, 4))
        for panel, (data, target) in zip(panels, labels(), strict=True):
            _draw(panel, results, self.size, data, target)
        legend_beside(empty, panels[0])
        return figure


if __name__ == "__main__":
    main(MatternFew)
