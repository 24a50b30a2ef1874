"""Paper 001 on one set, where uniform noise itself learns: has importance anything to win back?

Of Li, Zmigrod, Ma, Liu and Zhu 2024, as `anadp`, which see. Beside the paper's form of noise and
ours there are variants that tell what stands in its way, up to importance that costs no privacy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import chain
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from evaluation.papers.anadp import (
    DELTA,
    NO_DP,
    POLICIES,
    PUBLISHED,
    RANK,
    SETS,
    SOUND,
    SST2,
    UNIFORM,
    Bottleneck,
    Corpus,
    accuracy,
    classify,
    read_rows,
)
from evaluation.papers.importance_arms import ByGradient, Oracle, OracleByGradient, Recentred
from evaluation.papers.last_layers import Known, keep_last_layers
from evaluation.papers.noise import PolicyMaker
from evaluation.papers.plots import make_panels, name_panel, seed_line
from evaluation.papers.run_context import RunContext
from evaluation.papers.study import Study, main
from evaluation.papers.study_rows import Results
from twinset.policies.importance import Importance

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RECENTRED, BY_GRADIENT = "importance, sound, re-centred", "importance by |g|, re-centred"
ORACLE, ORACLE_BY_GRADIENT = "oracle", "oracle by |g|"
VARIANTS: dict[str, type[Importance]] = {
    RECENTRED: Recentred,
    BY_GRADIENT: ByGradient,
    ORACLE: Oracle,
    ORACLE_BY_GRADIENT: OracleByGradient,
}
BY_IMPORTANCE = (PUBLISHED, SOUND, *VARIANTS)
FORMS = (NO_DP, UNIFORM, *BY_IMPORTANCE)

# Parts of what is trained, by what is in the name of a kind of weight; else it is the last.
PARTS = {
    "begins at zero": ("lora_B", ".up"),
    "in front of it": ("lora_A", ".down"),
    "all else": ("",),
}


class Arm(NamedTuple):
    """Key of a trained head or encoder: at what ε, by which method, under what noise."""

    epsilon: float
    method: str
    form: str
    seed: int


def maker_of(form: str) -> PolicyMaker:
    """Return what makes a form's noise."""
    if form in VARIANTS:
        return PolicyMaker(POLICIES[SOUND], VARIANTS[form])
    return PolicyMaker(POLICIES.get(form))


def prepared(model: Any, layers: int | None, known: Known) -> Any:
    """Return a loaded sequence classifier with its last layers alone to train; None: all.

    Where there are none, an adapter is put behind the first linear layer of the head, which then
    has in small what an encoder has: parameters that begin at zero, and others in front of them.
    """
    if layers is None:
        return model
    last = keep_last_layers(model, layers, known)
    if layers == 0:
        last.base_model.pooler.dense = Bottleneck(last.base_model.pooler.dense, RANK)
    return last


def part_of(kind: str) -> str:
    """Return the part of what is trained that a kind of weight belongs to.

    >>> part_of("attention.self.query.lora_B"), part_of("classifier")
    ('begins at zero', 'all else')
    """
    return next(part for part, words in PARTS.items() if any(word in kind for word in words))


def noise_of(results: Results, *level: Any) -> dict[str, float]:
    """Return by part the noise over that of `uniform`, geometric mean over weights and seeds."""
    cells = chain.from_iterable(results.values(level, "noise").values())
    frame = pd.DataFrame(cells, columns=["layer", "kind", "factor"])
    means = frame.groupby(frame["kind"].map(part_of))["factor"].agg(geometric_mean)
    return {part: float(means[part]) for part in PARTS if part in means}


def gain(results: Results, epsilon: float, method: str, form: str) -> dict[str, object]:
    """Return what a form gains over uniform noise, and where its noise went: a line of a table."""
    level, uniform = (epsilon, method, form), (epsilon, method, UNIFORM)
    found = results.difference(level, uniform, "accuracy")
    cost = results.difference((epsilon, method, NO_DP), uniform, "accuracy")
    noise = noise_of(results, *level)
    return {
        "method": method,
        "noise": form,
        "ε of uniform noise": f"{epsilon:g}",
        "accuracy less uniform": found,
        "of the gap to no privacy, won back": (
            f"{found.value / cost.value:.0%}" if cost.above(0) else "no gap is shown"
        ),
        **{f"noise ÷ uniform: {part}": f"{factor:.2f}" for part, factor in noise.items()},
    }


_COLOURS = {NO_DP: "0.4", UNIFORM: "C3", PUBLISHED: "C1", SOUND: "C0", RECENTRED: "C9"}


def _draw_accuracies(panel: Any, results: Results, epsilon: float, method: str) -> None:
    for place, form in enumerate(FORMS):
        seeds = [results.values((epsilon, method, form), "accuracy")]
        colour = _COLOURS.get(form, "C2")
        seed_line(panel, seeds, places=[place], form="o", color=colour, markersize=4)
    uniform = results.mean((epsilon, method, UNIFORM), "accuracy").value
    panel.axhline(uniform, color="C3", linewidth=0.7)
    title = f"accuracy, {SST2}, {method}, ε = {epsilon:g}"
    name_panel(panel, title, FORMS, fontsize=6, rotation=30)


def _draw_noise(panel: Any, results: Results, epsilon: float, method: str) -> None:
    for part, colour in zip(PARTS, ("C3", "C0", "0.5"), strict=True):
        means = [noise_of(results, epsilon, method, form).get(part) for form in BY_IMPORTANCE]
        panel.plot(range(len(means)), means, "o", color=colour, label=part)
    panel.axhline(1.0, color="0.6", linestyle=":")
    panel.set_yscale("log", base=2)
    panel.legend(fontsize=6)
    title = f"noise ÷ uniform, {method}, ε = {epsilon:g}"
    name_panel(panel, title, BY_IMPORTANCE, fontsize=6, rotation=30)


class AnadpOneSet(Study):
    """Does importance gain where uniform noise itself learns? Li, Zmigrod, Ma, Liu, Zhu 2024."""

    name = "anadp_one_set"

    def keys(self, seeds: int) -> Iterator[Arm]:
        """See `Study`."""
        for seed in range(seeds):
            for way in self._ways:
                yield from (Arm(*way, form, seed) for form in FORMS)

    def settings(self) -> dict[str, Any]:
        """See `Study`."""
        return super().settings() | {"delta": DELTA, "rank": RANK}

    def facts(self) -> Mapping[str, Any]:
        """See `Study`: counts alone."""
        return {"sets": {SST2: self._corpus.facts()}}

    def row(self, key: Arm, run: RunContext) -> Mapping[str, Any]:
        """See `Study`."""

        def prepare(model: Any) -> Any:
            return prepared(model, self.size.get("layers"), self._known)

        maker = maker_of(key.form)
        return classify(key, self._corpus, self.size, run, maker, prepare, key.epsilon)

    def tables(self, results: Results) -> Mapping[str, Any]:
        """See `Study`."""
        return {
            "accuracies": [accuracy(results, *way, f) for way in self._ways for f in FORMS],
            "forms": len(FORMS),
            "gains": [gain(results, *way, f) for way in self._ways for f in BY_IMPORTANCE],
        }

    def figure(self, results: Results) -> Figure:
        """Draw every seed and the means, and where noise went."""
        title = f"Noise by importance on one set ({results.settings['size']})"
        figure, panels = make_panels(title, len(self._ways), 2, (11, 4.2 * len(self._ways)))
        for (left, right), way in zip(panels, self._ways, strict=True):
            _draw_accuracies(left, results, *way)
            _draw_noise(right, results, *way)
        return figure

    @property
    def _ways(self) -> list[tuple[float, str]]:
        return [(e, method) for e in self.size["epsilons"] for method in self.size["methods"]]

    @cached_property
    def _known(self) -> Known:
        return {}

    @cached_property
    def _corpus(self) -> Corpus:
        parts = ("train", "rows"), ("test", "scored_rows")
        read = (
            read_rows(self.paths[f"sst2_{part}"], SETS[SST2], self.size.get(most))
            for part, most in parts
        )
        return Corpus(*read)


if __name__ == "__main__":
    main(AnadpOneSet)
