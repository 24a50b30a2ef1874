"""Paper 003: does public text make private training possible?

Kerrigan, Slack and Tuyls 2020, "Differentially Private Language Models Benefit from Public
Pre-training": a language model of public text, of private text, and of one after the other, without
noise and with σ = 0.1 and 1.1.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from evaluation.papers.feedforward import feed_forward
from evaluation.papers.intervals import Groups, Interval, ratio
from evaluation.papers.language_model import (
    Shape,
    folder_shape,
    gpt2_shape,
    in_groups,
    nats_of_groups,
    perplexity,
    seeded,
    spending,
    tokenised,
    train_model,
)
from evaluation.papers.plots import crosses, make_panels, name_panel, seed_line
from evaluation.papers.run_context import RunContext
from evaluation.papers.study import Study, main, paper_cells, reported
from evaluation.papers.study_rows import Results
from evaluation.papers.texts import Subwords, Tokens, Words, words
from evaluation.utility.dp_fitting import Recipe
from twinset.data.tokenization import TokenisedRecords
from twinset.errors import InputError
from twinset.models.base_model import load_base
from twinset.privacy.accounting.accountant import epsilon
from twinset.privacy.accounting.events import Event, SubsampledGaussian, event_from_dict
from twinset.privacy.accounting.group_privacy import group_bound, group_epsilon
from twinset.privacy.accounting.rounding import up_decimals, up_digits

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PUBLIC, PRIVATE, BOTH = "public only", "private only", "public, then private"
SIGMAS = (0.0, 0.1, 1.1)
LARGEST = max(SIGMAS)
DELTA = 1e-5
LEVELS = ((PUBLIC, 0.0), *((start, sigma) for start in (PRIVATE, BOTH) for sigma in SIGMAS))
CONTEXT = 256  # tokens of a line; those of reddit10000 have fewer than 200 words
GPT2 = "GPT-2"
Level = tuple[str, str, float]  # a model, what it was trained on, and σ

TABLE_1 = reported("kerrigan", "network", "start", "sigma")
# Sections 3.1 and 3.2 on people with γ > 1 sentences: "the only necessary change is a
# post-processing scaling of ε ↦ ε/γ". Every figure there is for γ = 1.
GROUP_RULE = "ε ÷ γ"
GROUP_SIZES = (1, 2, 5, 10)


class Run(NamedTuple):
    """Key of a row: a model, what it was trained on, under what noise."""

    model: str
    start: str
    sigma: float
    seed: int


@dataclass(frozen=True)
class Corpora:
    """The four texts in one kind of tokens."""

    tokens: Tokens
    public: TokenisedRecords
    private: TokenisedRecords
    dev: TokenisedRecords
    test: TokenisedRecords

    @classmethod
    def of(cls, lines: Mapping[str, Sequence[str]], tokens: Tokens) -> Corpora:
        """Return lines, by file, as tokens.

        Raises:
            InputError: of a private text no word is known.
        """
        parts = {name: tokenised(some, tokens, CONTEXT) for name, some in lines.items()}
        for name, part in parts.items():
            if not len(part):
                option = name.replace("_", "-")
                raise InputError(f"--{option}: shares no word with the public text")
        return cls(tokens, *parts.values())

    def counts_groups(self, part: TokenisedRecords) -> Groups:
        """Return (G, 2) nats and tokens of `part` if each token cost its share of public text.

        One is added to each count, so that none is zero.
        """
        counts = np.bincount(np.concatenate(self.public.texts), minlength=self.tokens.size) + 1.0
        nats = -np.log(counts / counts.sum())
        return in_groups(*np.array([(nats[text].sum(), len(text)) for text in part.texts]).T)

    def facts(self, test_lines: Sequence[str]) -> dict[str, Any]:
        """Return what a reader should know of the texts."""
        known, written = sum(map(len, self.test.texts)), sum(len(words(t)) for t in test_lines)
        parts = self.public, self.private, self.dev, self.test
        names = (f"{name} lines" for name in ("public", "private", "development", "test"))
        return {
            "tokens": self.tokens.description,
            "vocabulary": self.tokens.size,
            **dict(zip(names, map(len, parts), strict=True)),
            "test tokens": known,
            "lines cut": sum(part.truncated for part in parts),
            "unknown words of test": max(0.0, 1 - known / max(1, written)),  # of subwords, none
            "counts_groups": self.counts_groups(self.test).round(4).tolist(),
            "counts_groups_dev": self.counts_groups(self.dev).round(4).tolist(),
        }


def folder_tokens(folder: Path) -> Tokens:
    """Return a folder's own tokens.

    Raises:
        InputError: its model cannot be used.
    """
    base = load_base(str(folder))
    if base.model.config.max_position_embeddings < CONTEXT:
        raise InputError(f"--gpt2 {folder}: reads fewer than {CONTEXT} tokens; name a larger one")
    return Subwords(base.tokenizer, folder.name, base.model.config.vocab_size)


def perplexity_ratio(results: Results, level: Level, other: Level | None = None) -> Interval:
    """Return test perplexity over that of another level; None: over that of word counts."""
    ours = results.arrays(level, "test_groups")
    counts = dict.fromkeys(ours, np.array(_block(results, level[0])["counts_groups"]))
    return ratio(ours, results.arrays(other, "test_groups") if other else counts)


def _block(results: Results, model: str) -> dict[str, Any]:
    """Return the facts of a model's kind of tokens."""
    blocks: list[dict[str, Any]] = results.facts["blocks"]
    return next(block for block in blocks if model in block["contestants"])


def _reported(results: Results, model: str, start: str, sigma: float) -> dict[str, Any]:
    """Return what the paper reports of the network that a model is compared with, if anything."""
    return TABLE_1.get((_block(results, model)["contestants"][model], start, sigma), {})


def models_of(results: Results) -> list[str]:
    """Return the models, those of the same tokens one behind the other."""
    return [name for block in results.facts["blocks"] for name in block["contestants"]]


def claim(results: Results, model: str) -> dict[str, object]:
    """Return the ratios that the verdict rests on: a line of a table.

    "Possible at all" is four things: private training under noise improves on the public model; it
    beats private training from nothing; the latter is, under noise, no better than counting words
    in the public text; and without noise it is better, so that it is noise that makes it useless.
    """
    noise, both, private = f"σ = {LARGEST:g}", (model, BOTH, LARGEST), (model, PRIVATE, LARGEST)
    return {
        "model": model,
        f"{BOTH}, {noise} ÷ {PUBLIC}": perplexity_ratio(results, both, (model, PUBLIC, 0.0)),
        f"÷ {PRIVATE}, {noise}": perplexity_ratio(results, both, private),
        f"{PRIVATE}, {noise} ÷ word counts": perplexity_ratio(results, private),
        f"{PRIVATE}, σ = 0 ÷ word counts": perplexity_ratio(results, (model, PRIVATE, 0.0)),
    }


def perplexities(results: Results, model: str, start: str, sigma: float) -> dict[str, object]:
    """Return perplexities and ε, beside the paper's: a line of a model's table."""
    level, public, private = (model, start, sigma), (model, PUBLIC, 0.0), start != PUBLIC
    return {
        "trained on": start,
        "σ": f"{sigma:g}" if private else None,
        "ε": results.largest(level, "epsilon") if private else "0",
        "perplexity, development": results.geometric(level, "perplexity_dev").text(1),
        "perplexity, test": results.geometric(level, "perplexity_test").text(1),
        f"÷ {PUBLIC}": perplexity_ratio(results, level, public) if private else None,
        **results.effort(level, "records_per_second", "lines/s"),
        **paper_cells(_reported(results, *level)),
    }


def people(results: Results) -> Iterator[dict[str, str]]:
    """Yield what the noise is worth to people with several lines: the paper's rule and a bound."""
    events = {event_from_dict(event) for row in results.rows.values() for event in row["events"]}
    noisy = [event for event in events if isinstance(event, SubsampledGaussian)]
    for event in sorted(noisy, key=lambda e: (e.noise_multiplier, e.sample_rate, e.steps)):
        alone = epsilon([event], DELTA)
        for size in GROUP_SIZES:
            spent, delta = group_bound(alone, DELTA, size)
            yield {
                "σ": f"{event.noise_multiplier:g}",
                "q": f"{event.sample_rate:.3g}",
                "steps": f"{event.steps:,}",
                "lines of a person, γ": str(size),
                f"paper: {GROUP_RULE}": up_decimals(alone / size),
                "γε": up_decimals(spent),
                "with δ of": up_digits(delta),
                f"ε at δ = {DELTA:g}": up_decimals(group_epsilon([event], DELTA, size)),
            }


def _draw_model(panel: Any, results: Results, model: str, sigmas: Sequence[float]) -> None:
    """Draw test perplexity against noise, where there are rows."""

    def of(start: str, sigma: float) -> dict[int, float]:
        return results.values((model, start, sigma), "perplexity_test")

    for start, colour in ((PRIVATE, "C3"), (BOTH, "C0")):
        places = [place for place, sigma in enumerate(sigmas) if of(start, sigma)]
        shown = [of(start, sigmas[place]) for place in places]
        seed_line(panel, shown, places=places, color=colour, label=start)
        known = [_reported(results, model, start, sigma).get("paper: test") for sigma in sigmas]
        if any(known):
            crosses(panel, known, color=colour, label=f"{start} (paper, other words)")
    public, counts = fmean(of(PUBLIC, 0.0).values()), _block(results, model)["counts_groups"]
    panel.axhline(public, color="C2", linestyle="--", label=PUBLIC)
    beaten = perplexity(np.array(counts))
    panel.axhline(beaten, color="0.6", linestyle=":", label="word counts of public text")
    name_panel(panel, model, [f"σ = {sigma:g}" for sigma in sigmas], logarithmic=True)


class Kerrigan(Study):
    """Does public text make private training possible? Kerrigan, Slack and Tuyls 2020."""

    name = "kerrigan"
    levels: ClassVar[Sequence[tuple[str, float]]] = LEVELS  # what of, and σ; public text first

    def keys(self, seeds: int) -> Iterator[Run]:
        """See `Study`."""
        for seed in range(seeds):
            for model in self.size["models"]:
                yield from (Run(model["name"], *level, seed) for level in self.levels)

    def facts(self) -> Mapping[str, Any]:
        """See `Study`: of each kind of tokens, with the models that share it."""
        blocks: dict[str, dict[str, Any]] = {}
        for model in self.size["models"]:
            corpora = self._corpora[model["name"]]
            kind = corpora.tokens.description
            if kind not in blocks:
                blocks[kind] = corpora.facts(self._lines["private_test"]) | {"contestants": {}}
            blocks[kind]["contestants"][model["name"]] = model.get("paper", "")
        return {"blocks": list(blocks.values())}

    def row(self, key: Run, run: RunContext) -> Mapping[str, Any]:
        """See `Study`."""
        corpora, started = self._corpora[key.model], time.monotonic()
        model, events, shown = self._trained(key, corpora, run)
        seconds = time.monotonic() - started
        counter, begin = run.counter("scoring"), corpora.tokens.begin
        dev, test = (nats_of_groups(model, p, begin, counter) for p in (corpora.dev, corpora.test))
        return {
            "perplexity_dev": perplexity(dev),
            "perplexity_test": perplexity(test),
            **spending(events, DELTA),
            "seconds": round(seconds, 1),
            "records_per_second": round(shown / seconds, 1),
            "test_groups": test.round(4).tolist(),
        }

    def _trained(
        self, key: Run, corpora: Corpora, run: RunContext
    ) -> tuple[Any, list[Event], float]:
        """Return a trained model, what that spent, and how many lines it was shown."""
        (how,) = (one for one in self.size["models"] if one["name"] == key.model)
        shape, shown = self._shape(how), 0.0
        build = shape.build if key.start == PRIVATE else shape.start
        model = seeded(build, corpora.tokens.size, key.seed)

        def train(part: TokenisedRecords, which: str, sigma: float) -> list[Event]:
            nonlocal shown
            recipe, counter = Recipe(**how[which]), run.counter(f"training on {which} text")
            shown += recipe.epochs * len(part)
            return train_model(model, part, recipe, sigma, key.seed, counter)

        if key.start != PRIVATE:  # once for all rows
            on_public = partial(train, corpora.public, "public", 0.0)
            run.train_once(f"{key.model}, seed {key.seed}", model, on_public)
        if key.start == PUBLIC:
            return model, [], shown
        return model, train(corpora.private, "private", key.sigma), shown

    def tables(self, results: Results) -> Mapping[str, Any]:
        """See `Study`."""
        models = models_of(results)
        return {
            "claim": [claim(results, model) for model in models],
            "models": {m: [perplexities(results, m, *at) for at in self.levels] for m in models},
            "people": list(people(results)),
            "perplexity": lambda groups: f"{perplexity(np.array(groups)):.1f}",
        }

    def figure(self, results: Results) -> Figure:
        """Draw test perplexity against noise, a panel for each model."""
        models, size = models_of(results), results.settings["size"]
        title = f"Perplexity on private test lines, δ = {DELTA:g} ({size})"
        figure, (panels,) = make_panels(title, 1, len(models), (1 + 3.2 * len(models), 3.6))
        sigmas = sorted({sigma for _, sigma in self.levels})
        for panel, model in zip(panels, models, strict=True):
            _draw_model(panel, results, model, sigmas)
        panels[0].set_ylabel("perplexity per token")
        panels[0].legend(fontsize=6)
        return figure

    def _shape(self, model: Mapping[str, Any]) -> Shape:
        if model["name"] == GPT2:
            folder = self.size.get("gpt2")
            return folder_shape(Path(folder)) if folder else gpt2_shape(**model["shape"])
        build = partial(feed_forward, **model["shape"])
        return Shape(build, build)

    @cached_property
    def _lines(self) -> dict[str, list[str]]:
        most = {"public": "public_lines", "private_train": "private_lines"}
        return {name: self.lines(name, most.get(name, "scored_lines")) for name in self.paths}

    @cached_property
    def _corpora(self) -> dict[str, Corpora]:
        """The texts by model: as words of the public text, or as a folder's own tokens."""
        of_words = Words.of(self._lines["public"], self.size.get("vocabulary"))
        corpora = dict.fromkeys(
            (model["name"] for model in self.size["models"]), Corpora.of(self._lines, of_words)
        )
        if folder := self.size.get("gpt2"):
            corpora[GPT2] = Corpora.of(self._lines, folder_tokens(Path(folder)))
        return corpora


if __name__ == "__main__":
    main(Kerrigan)
