"""Paper 003: does public text make private training possible?

Kerrigan, Slack and Tuyls 2020, "Differentially Private Language Models Benefit from Public
Pre-training": a language model of public text, of private text, and of one after the other, without
noise and with σ = 0.1 and 1.1.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from evaluation.papers.feedforward import FeedForward
from evaluation.papers.intervals import Groups, Interval, geometric_mean, ratio
from evaluation.papers.language_model import (
    GROUPS,
    FolderShape,
    Gpt2Shape,
    Shape,
    nats_of_groups,
    perplexity,
    seeded,
    tokenised,
    train_model,
)
from evaluation.papers.page import Section
from evaluation.papers.plots import logarithmic, name_ticks, seed_line
from evaluation.papers.results_store import Results
from evaluation.papers.run_context import RunContext
from evaluation.papers.study import Study, main
from evaluation.papers.texts import LINES, Subwords, Tokens, Words, drawn, read_lines, words
from evaluation.utility.dp_fitting import Recipe
from twinset.data.tokenization import TokenisedRecords
from twinset.errors import InputError
from twinset.models.base_model import load_base
from twinset.privacy.accounting.accountant import epsilon
from twinset.privacy.accounting.events import (
    Event,
    SubsampledGaussian,
    event_from_dict,
    event_to_dict,
)
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

# Table 1: (network, trained on, σ) → perplexity (development, test) on Reddit_10k.
TABLE_1 = {
    ("small", PUBLIC, 0.0): (1561.20, 1584.54),
    ("small", PRIVATE, 0.0): (3805.83, 3787.68),
    ("small", BOTH, 0.0): (1035.45, 1037.81),
    ("small", BOTH, 0.1): (1457.94, 1480.84),
    ("small", BOTH, 1.1): (1450.01, 1473.48),
    ("large", PUBLIC, 0.0): (1652.65, 1677.42),
    ("large", PRIVATE, 0.0): (1254.48, 1259.23),
    ("large", BOTH, 0.0): (1016.65, 1019.31),
    ("large", BOTH, 0.1): (1604.42, 1627.56),
    ("large", BOTH, 1.1): (math.inf, math.inf),
}
# Section 5: "We were unsuccessful in training a differentially private model on the Reddit data
# alone, as all models tested gave unreasonably high perplexities (i.e. useless models)."
USELESS = {(network, PRIVATE, sigma) for network in ("small", "large") for sigma in (0.1, 1.1)}
EPSILON = {0.1: 107.30, 1.1: 9.75}  # figure 4 (the table in appendix D), at DELTA
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
class FeedForwardShape:
    """`FeedForward`, not yet built.

    Args:
        hidden: units of each layer.
        embedding: length of a word's vector; 0 takes the word's number instead.
    """

    hidden: Sequence[int]
    embedding: int

    def build(self, vocabulary: int) -> FeedForward:
        """See `Shape`."""
        return FeedForward(vocabulary, self.embedding, tuple(self.hidden))

    start = build


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
        found = np.zeros((min(GROUPS, len(part)), 2))
        for i, text in enumerate(part.texts):
            found[i % GROUPS] += nats[text].sum(), len(text)
        return found

    def facts(self, test_lines: Sequence[str]) -> dict[str, Any]:
        """Return what a reader should know of the texts."""
        written, known = sum(len(words(line)) for line in test_lines), _tokens(self.test)
        return {
            "tokens": self.tokens.description,
            "vocabulary": self.tokens.size,
            "public lines": len(self.public),
            "private lines": len(self.private),
            "development lines": len(self.dev),
            "test lines": len(self.test),
            "test tokens": known,
            "lines cut": sum(p.truncated for p in (self.public, self.private, self.dev, self.test)),
            "unknown words of test": max(0.0, 1 - known / max(1, written)),  # of subwords, none
            "counts_groups": self.counts_groups(self.test).round(4).tolist(),
            "counts_groups_dev": self.counts_groups(self.dev).round(4).tolist(),
        }


def _tokens(part: TokenisedRecords) -> int:
    return sum(map(len, part.texts))


def folder_tokens(folder: Path) -> Tokens:
    """Return a folder's own tokens.

    Raises:
        InputError: its model cannot be used.
    """
    base = load_base(str(folder))
    if base.model.config.max_position_embeddings < CONTEXT:
        raise InputError(f"--gpt2 {folder}: reads fewer than {CONTEXT} tokens; name a larger one")
    return Subwords(base.tokenizer, folder.name, base.model.config.vocab_size)


def train_row(
    key: Run, model: Mapping[str, Any], shape: Shape, corpora: Corpora, run: RunContext
) -> dict[str, Any]:
    """Return perplexities, ε, and what they came from.

    Args:
        key: of the row.
        model: its entry in the size.
        shape: of the model.
        corpora: the texts in its tokens.
        run: its cache keeps the weights of public text.
    """
    started = time.monotonic()
    trained, events, shown = _trained(key, model, shape, corpora, run)
    seconds = time.monotonic() - started
    counter, begin = run.counter("scoring"), corpora.tokens.begin
    dev, test = (nats_of_groups(trained, p, begin, counter) for p in (corpora.dev, corpora.test))
    spent = epsilon(events, DELTA)
    return {
        "perplexity_dev": perplexity(dev),
        "perplexity_test": perplexity(test),
        "epsilon": None if math.isinf(spent) else spent,
        "events": [event_to_dict(event) for event in events],
        "seconds": round(seconds, 1),
        "records_per_second": round(shown / seconds, 1),
        "test_groups": test.round(4).tolist(),
    }


def _trained(
    key: Run, how: Mapping[str, Any], shape: Shape, corpora: Corpora, run: RunContext
) -> tuple[Any, list[Event], float]:
    """Return a trained model, what that spent, and how many lines it was shown."""
    shown, build = 0.0, shape.build if key.start == PRIVATE else shape.start
    model = seeded(build, corpora.tokens.size, key.seed)
    if key.start != PRIVATE:
        shown = _train_on_public(model, key, Recipe(**how["public"]), corpora, run)
    if key.start == PUBLIC:
        return model, [], shown
    recipe, counter = Recipe(**how["private"]), run.counter("training on private text")
    events = train_model(model, corpora.private, recipe, key.sigma, key.seed, counter)
    return model, events, shown + recipe.epochs * len(corpora.private)


def _train_on_public(
    model: Any, key: Run, recipe: Recipe, corpora: Corpora, run: RunContext
) -> float:
    """Train a model on public text, once for all rows; return how many lines it was shown now."""
    counter = run.counter("training on public text")

    def train() -> None:
        train_model(model, corpora.public, recipe, 0.0, key.seed, counter)

    trained = run.train_once(f"{key.model}, seed {key.seed}", model, train)
    return recipe.epochs * len(corpora.public) if trained else 0.0


@dataclass(frozen=True)
class ModelResults:
    """The rows of one model.

    Args:
        name: of the model.
        network: the paper's column: small, large or none.
        results: the rows of all models.
        counts: groups of the public text's word counts on the test lines.
    """

    name: str
    network: str
    results: Results
    counts: Groups

    def ratio(self, level: tuple[str, float], other: tuple[str, float] | None = None) -> Interval:
        """Return test perplexity over that of another level; None: over that of word counts."""
        ours = self._groups(level)
        theirs = dict.fromkeys(ours, self.counts) if other is None else self._groups(other)
        return ratio(ours, theirs)

    def of(self, level: tuple[str, float]) -> list[dict[str, Any]]:
        """Return the rows of one line of the table, a seed each."""
        return list(self.results.by_seed(self.name, *level).values())

    def _groups(self, level: tuple[str, float]) -> dict[int, Groups]:
        found = self.results.values((self.name, *level), "test_groups")
        return {seed: np.array(groups) for seed, groups in found.items()}


def models_of(results: Results) -> Iterator[tuple[Mapping[str, Any], list[ModelResults]]]:
    """Yield the facts of each kind of tokens, and the models that share it."""
    for block in results.facts["blocks"]:
        counts, names = np.array(block["counts_groups"]), block["contestants"].items()
        yield block, [ModelResults(name, network, results, counts) for name, network in names]


def claim(models: Sequence[ModelResults]) -> Section:
    """Return the ratios that the verdict rests on.

    "Possible at all" is four things: private training under noise improves on the public model; it
    beats private training from nothing; the latter is, under noise, no better than counting words
    in the public text; and without noise it is better, so that it is noise that makes it useless.
    """
    noisy = (PRIVATE, LARGEST)
    rows = [
        {
            "model": one.name,
            f"{BOTH}, σ = {LARGEST:g} ÷ {PUBLIC}": str(one.ratio((BOTH, LARGEST), (PUBLIC, 0.0))),
            f"÷ {PRIVATE}, σ = {LARGEST:g}": str(one.ratio((BOTH, LARGEST), noisy)),
            f"{PRIVATE}, σ = {LARGEST:g} ÷ word counts": str(one.ratio(noisy)),
            f"{PRIVATE}, σ = 0 ÷ word counts": str(one.ratio((PRIVATE, 0.0))),
        }
        for one in models
    ]
    note = (
        "Ratios of test perplexities. The claim needs the first two below 1, the third above 1, and"
        " the last below 1. An interval that includes 1 tells nothing."
    )
    return Section("What the verdict rests on", rows, [note])


def perplexities(results: Results) -> Iterator[Section]:
    """Yield a section for each kind of tokens, with a table for each model."""
    for block, models in models_of(results):
        title = f"Perplexity per token: {block['tokens']}"
        yield Section(title, notes=list(_text_notes(block)))
        for one in models:
            yield Section(one.name, [_line(one, *level) for level in LEVELS], depth=3)


def _text_notes(block: Mapping[str, Any]) -> Iterator[str]:
    counted = (perplexity(np.array(block[n])) for n in ("counts_groups_dev", "counts_groups"))
    dev, test = (f"{value:.1f}" for value in counted)
    yield (
        f"Public lines: {block['public lines']:,}; private: {block['private lines']:,}; "
        f"development: {block['development lines']:,}; test: {block['test lines']:,} with "
        f"{block['test tokens']:,} tokens; lines cut at the context: {block['lines cut']:,}."
    )
    yield (
        f"Words that no token stands for, left out: {block['unknown words of test']:.1%} of "
        "the test words."
    )
    yield (
        f"To be beaten: word counts of the public text, {dev} (development), {test} (test); "
        f"a blind guess, {block['vocabulary']:,}."
    )


def _line(one: ModelResults, start: str, sigma: float) -> dict[str, str]:
    rows, private = one.of((start, sigma)), start != PUBLIC
    dev, test = (geometric_mean([row[f"perplexity_{p}"] for row in rows]) for p in ("dev", "test"))
    relative = str(one.ratio((start, sigma), (PUBLIC, 0.0))) if private else ""
    return {
        "trained on": start,
        "σ": f"{sigma:g}" if private else "",
        "ε": _spent(rows),
        "perplexity, development": dev.text(1),
        "perplexity, test": test.text(1),
        f"÷ {PUBLIC}": relative,
        **_paper(one.network, start, sigma),
        "seeds": str(len(rows)),
        "lines/s": f"{np.mean([row['records_per_second'] for row in rows]):.0f}",
    }


def _spent(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the largest ε of some rows, rounded up."""
    found = [row["epsilon"] for row in rows]
    return "none" if None in found else up_decimals(max(found)) if max(found) else "0"


def _paper(network: str, start: str, sigma: float) -> dict[str, str]:
    """Return what the paper reports, where it reports something."""
    key = network, start, sigma
    dev, test = (f"{value:.2f}" for value in TABLE_1[key]) if key in TABLE_1 else ("", "")
    if key in USELESS:
        dev = test = "useless"
    relative = TABLE_1[key][1] / TABLE_1[network, PUBLIC, 0.0][1] if key in TABLE_1 else None
    return {
        "paper: development": dev,
        "paper: test": test,
        f"paper: ÷ {PUBLIC}": f"{relative:.3f}" if relative and start != PUBLIC else "",
        "paper: ε": f"{EPSILON[sigma]:.2f}" if network and start == BOTH and sigma else "",
    }


def people(results: Results) -> Section:
    """Return what the noise is worth to people with several lines: the paper's rule and a bound."""
    events = {event_from_dict(event) for row in results.rows.values() for event in row["events"]}
    noisy = [event for event in events if isinstance(event, SubsampledGaussian)]
    noisy.sort(key=lambda e: (e.noise_multiplier, e.sample_rate, e.steps))
    note = (
        "Noise protects one line. Of a person with γ lines the paper says that ε becomes ε ÷ γ "
        "(sections 3.1 and 3.2; all its figures are for γ = 1), as if more lines were safer. That "
        "is the ε that one line would need for γ of them to have ε. It is the other way round: γ "
        "lines together have γε, and δ grows with it (a δ of 1 says nothing); or, with δ kept, the "
        "ε of the last column, an upper bound that need not be the least."
    )
    rows = [_of_person(event, size) for event in noisy for size in GROUP_SIZES]
    return Section("People with several lines", rows, [note])


def _of_person(event: SubsampledGaussian, size: int) -> dict[str, str]:
    alone = epsilon([event], DELTA)
    spent, delta = group_bound(alone, DELTA, size)
    return {
        "σ": f"{event.noise_multiplier:g}",
        "q": f"{event.sample_rate:.3g}",
        "steps": f"{event.steps:,}",
        "lines of a person, γ": str(size),
        f"paper: {GROUP_RULE}": up_decimals(alone / size),
        "γε": up_decimals(spent),
        "with δ of": up_digits(delta),
        f"ε at δ = {DELTA:g}": up_decimals(group_epsilon([event], DELTA, size)),
    }


def draw(results: Results) -> Figure:
    """Draw test perplexity against noise, a panel for each model."""
    from matplotlib.figure import Figure

    models = [one for _, several in models_of(results) for one in several]
    figure = Figure(figsize=(1 + 3.2 * len(models), 3.6), layout="constrained")
    panels = figure.subplots(1, len(models), squeeze=False)[0]
    for panel, one in zip(panels, models, strict=True):
        _draw_model(panel, one)
    panels[0].set_ylabel("perplexity per token")
    panels[0].legend(fontsize=6)
    size = results.settings["size"]
    figure.suptitle(f"Perplexity on private test lines, δ = {DELTA:g} ({size})", fontsize=10)
    return figure


def _draw_model(panel: Any, one: ModelResults) -> None:
    def of(start: str, sigma: float) -> list[float]:
        return [row["perplexity_test"] for row in one.of((start, sigma))]

    for start, colour in ((PRIVATE, "C3"), (BOTH, "C0")):
        seed_line(panel, [of(start, sigma) for sigma in SIGMAS], color=colour, label=start)
    public, counts = float(np.mean(of(PUBLIC, 0.0))), perplexity(one.counts)
    panel.axhline(public, color="C2", linestyle="--", label=PUBLIC)
    panel.axhline(counts, color="0.6", linestyle=":", label="word counts of public text")
    for start, colour in ((PRIVATE, "C3"), (BOTH, "C0")):
        reported = [TABLE_1.get((one.network, start, s), (math.inf, math.inf))[1] for s in SIGMAS]
        known = [(i, value) for i, value in enumerate(reported) if math.isfinite(value)]
        if known:
            style = {"color": colour, "alpha": 0.6, "label": f"{start} (paper, other words)"}
            panel.plot(*zip(*known, strict=True), "x", **style)
    logarithmic(panel, "y")
    name_ticks(panel, [f"σ = {sigma:g}" for sigma in SIGMAS])
    panel.set_title(one.name, fontsize=9)


class Kerrigan(Study):
    """Does public text make private training possible? Kerrigan, Slack and Tuyls 2020."""

    name = "kerrigan"
    files = {
        "public": f"text that anyone may have; {LINES}",
        "private_train": f"private text to train on; {LINES}",
        "private_dev": f"private text on which choices were made; {LINES}",
        "private_test": f"private text, read for the table alone; {LINES}",
    }
    models = {"gpt2": "folder of a public GPT-2 to begin from, with tokens of its own"}

    def keys(self, seeds: int) -> Iterator[Run]:
        """See `Study`."""
        for seed in range(seeds):
            for model in self.size["models"]:
                yield from (Run(model["name"], *level, seed) for level in LEVELS)

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
        (model,) = (one for one in self.size["models"] if one["name"] == key.model)
        return train_row(key, model, self._shape(model), self._corpora[key.model], run)

    def sections(self, results: Results) -> Iterator[Section]:
        """See `Study`."""
        yield claim([one for _, models in models_of(results) for one in models])
        yield from perplexities(results)
        yield people(results)

    def figure(self, results: Results) -> Figure:
        """See `Study`."""
        return draw(results)

    def _shape(self, model: Mapping[str, Any]) -> Shape:
        if model["name"] == GPT2:
            folder = self.size.get("gpt2")
            return FolderShape(Path(folder)) if folder else Gpt2Shape(**model["shape"])
        return FeedForwardShape(**model["shape"])

    @cached_property
    def _lines(self) -> dict[str, list[str]]:
        most = {"public": "public_lines", "private_train": "private_lines"}
        return {
            name: drawn(read_lines(path), self.size.get(most.get(name, "scored_lines")))
            for name, path in self.paths.items()
        }

    @cached_property
    def _corpora(self) -> dict[str, Corpora]:
        """The texts by model: as words of the public text, or as a folder's own tokens."""
        of_words = Words.of(self._lines["public"], self.size.get("vocabulary"))
        found = dict.fromkeys(
            (model["name"] for model in self.size["models"]), Corpora.of(self._lines, of_words)
        )
        if folder := self.size.get("gpt2"):
            found[GPT2] = Corpora.of(self._lines, folder_tokens(Path(folder)))
        return found


if __name__ == "__main__":
    main(Kerrigan)
