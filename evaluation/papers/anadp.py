"""Paper 001: is noise better where parameters matter less?

Li, Zmigrod, Ma, Liu and Zhu 2024, "Fine-Tuning Language Models with Differential Privacy through
Adaptive Noise Allocation": encoders fine-tuned whole, by LoRA and by adapters, without privacy,
with uniform noise and with noise by importance; and how well a language model then knows the names
and telephone numbers of e-mails.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from torch import Tensor, nn
from torch.nn.functional import gelu

from evaluation.papers.email_leakage import MEASURES, PARTS, Passages
from evaluation.papers.intervals import Interval, difference, mean_of
from evaluation.papers.language_model import noise_for, train_model
from evaluation.papers.noise import ATTACK, PolicyMaker, attack_row, attack_tables
from evaluation.papers.plots import name_panel, seed_line
from evaluation.papers.run_context import RunContext
from evaluation.papers.study import Study, main
from evaluation.papers.study_rows import Results, finite
from evaluation.results_store import Key
from evaluation.utility.dp_fitting import Budget, Recipe
from evaluation.utility.encoder_classifier import Adapt, EncoderClassifier, whole
from twinset.config import PolicyConfig
from twinset.data.formats import read_frame
from twinset.errors import InputError
from twinset.models.hub import no_fetched_code
from twinset.policies import NoisePolicy
from twinset.policies.importance import Importance
from twinset.privacy.accounting.accountant import epsilon
from twinset.training.noise_plot import OUTSIDE, draw_cells, noise_cells

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Appendix A, "Training Details". δ is that of SST-2 and QNLI, the smaller sets.
EPSILON, DELTA, RANK = 8.0, 1e-5, 16

FULL, LORA, ADAPTERS = "full fine-tuning", "LoRA", "adapters"
METHODS = (FULL, LORA, ADAPTERS)
# All linear layers of attention and feed-forward network, as in Yu et al. 2021 (the paper's
# appendix), by their names in models of the BERT family.
_LINEAR = r".*\.encoder\.layer\.\d+\..*(query|key|value|dense)"

NO_DP, UNIFORM = "no privacy", "uniform"
PUBLISHED, SOUND = "importance, published", "importance, sound"
IMPORTANCE = (PUBLISHED, SOUND)
FORMS = (NO_DP, UNIFORM, *IMPORTANCE)
POLICIES = {
    UNIFORM: PolicyConfig(),
    PUBLISHED: PolicyConfig("importance", "published"),
    SOUND: PolicyConfig("importance", "sound"),
}
LEAKAGE = "e-mails"
ATTACKED_SIGMA = 1.0


class Labels(NamedTuple):
    """What is predicted of a text: a column of the tables, without the rows of some labels."""

    column: str
    without: tuple[str, ...] = ()


TEXT, LABEL = "text", "label"
SST2, AG_NEWS, YELP = "SST-2", "AG News", "Yelp"
SETS = {
    SST2: Labels("sentiment"),
    AG_NEWS: Labels("topic"),
    YELP: Labels("sentiment", ("neutral",)),
}
_DRAW = 0  # seed of which rows are taken: the same for all rows of the results


class Classifier(NamedTuple):
    """Key of an encoder: on which set, by which method, under what noise."""

    dataset: str
    method: str
    form: str
    seed: int


class Leakage(NamedTuple):
    """Key of a language model of e-mails: under what noise."""

    kind: str
    form: str
    seed: int


class Attack(NamedTuple):
    """Key of an attack on the noise. It reads no text and knows no seed: it is made once."""

    kind: str
    form: str
    seed: int = 0


def read_rows(path: Path, labels: Labels, most: int | None) -> pd.DataFrame:
    """Return texts and labels, equally many of each label, at most `most`, drawn at random.

    Raises:
        InputError: the file cannot be used, or has no rows of two labels.
    """
    frame = read_frame(path)
    for column in (TEXT, labels.column):
        if column not in frame:
            raise InputError(f"{path}: has no column {column!r}; rename one")
    frame = frame[[TEXT, labels.column]].dropna().astype(str).reset_index(drop=True)
    mixed = frame.iloc[np.random.default_rng(_DRAW).permutation(len(frame))]
    kept = mixed[~mixed[labels.column].isin(labels.without)]
    counts = kept[labels.column].value_counts()
    if len(counts) < 2:
        raise InputError(f"{path}: column {labels.column!r} has fewer than two labels to tell")
    each = min(counts.min(), len(kept) if most is None else most // len(counts))
    rows = kept.groupby(labels.column).head(each).sort_index()
    return rows.set_axis([TEXT, LABEL], axis=1)


class Corpus(NamedTuple):
    """One set: rows to train on, and rows to test on."""

    train: pd.DataFrame
    test: pd.DataFrame

    def facts(self) -> dict[str, Any]:
        """Return what a reader should know of it; a guess is the commonest label."""
        return {
            "train": len(self.train),
            "test": len(self.test),
            "classes": self.train[LABEL].nunique(),
            "guess": float(self.test[LABEL].value_counts(normalize=True).max()),
        }


def tune(model: Any, method: str, rank: int, tables: bool = True) -> Any:
    """Return a loaded sequence classifier with exactly a method's parameters trainable.

    Args:
        model: changed in place.
        method: one of `METHODS`.
        rank: of LoRA and adapters.
        tables: whether full fine-tuning trains the tables of tokens, positions and types too.
    """
    if method == LORA:
        return _with_lora(model, rank)
    if method == ADAPTERS:
        return _with_adapters(model, rank)
    model.base_model.embeddings.requires_grad_(tables)
    return model


class Bottleneck(nn.Module):
    """h + U gelu(D h) of a layer's output h: (…, d) through rank numbers; nothing at the start.

    Source: Houlsby et al. 2019, section 2.1.

    Args:
        layer: whose output it is.
        rank: numbers between D and U.
    """

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer, width = layer, layer.out_features
        self.down, self.up = nn.Linear(width, rank), nn.Linear(rank, width)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(…, d_in) → (…, d)."""
        h: Tensor = self.layer(x)
        change: Tensor = self.up(gelu(self.down(h)))
        return h + change


@no_fetched_code()
def _with_lora(model: Any, rank: int) -> Any:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        target_modules=_LINEAR,
        modules_to_save=_head(model),
        task_type="SEQ_CLS",
    )
    return get_peft_model(model, config)


def _with_adapters(model: Any, rank: int) -> Any:
    """Put one behind attention and one behind the feed-forward network of each layer."""
    model.requires_grad_(False)
    for layer in model.base_model.encoder.layer:
        for part in (layer.attention.output, layer.output):
            part.dense = Bottleneck(part.dense, rank)
            part.LayerNorm.requires_grad_(True)  # as in the source
    for name in _head(model):
        for parent in (model, model.base_model):
            if (part := getattr(parent, name, None)) is not None:
                part.requires_grad_(True)
    return model


def _head(model: Any) -> list[str]:
    """Return the names of what stands behind the layers; BERT has a part of it in the encoder."""
    has_pooler = getattr(model.base_model, "pooler", None) is not None
    return ["classifier", *(["pooler"] if has_pooler else [])]


def mean_noise(policy: NoisePolicy, names: Sequence[str]) -> dict[str, float]:
    """Return by trained parameter where noise went: 1 is as much as `uniform` draws; or nothing."""
    known = policy.mean_noise if isinstance(policy, Importance) else []
    return dict(zip(names, known, strict=bool(known)))


def classify(
    key: Any,
    corpus: Corpus,
    size: Mapping[str, Any],
    run: RunContext,
    maker: PolicyMaker | None = None,
    prepare: Adapt = whole,
    epsilon: float = EPSILON,
) -> dict[str, Any]:
    """Return an encoder's accuracy on test rows, what it spent, and where noise went.

    Args:
        key: which encoder: its method, form and seed.
        corpus: rows of its set.
        size: numbers of the study.
        run: shows progress.
        maker: of the noise; left out: that of `POLICIES`.
        prepare: changes the loaded encoder before a method is applied.
        epsilon: ε of the budget.
    """
    trained, private = dict[str, int](), key.form != NO_DP
    maker = maker or PolicyMaker(POLICIES.get(key.form))
    recipe = Recipe(**size["recipes"][key.method]["private" if private else "open"])

    def adapt(model: Any) -> Any:
        adapted = tune(prepare(model), key.method, RANK, size["tables"])
        named = adapted.named_parameters()
        trained.update((name, p.numel()) for name, p in named if p.requires_grad)
        return adapted

    classifier = EncoderClassifier(
        size.get("encoder"),
        budget=Budget(epsilon, DELTA) if private else None,
        recipe=recipe,
        seed=key.seed,
        say=run.progress.say,
        count=run.counter("training"),
        adapt=adapt,
        make=maker,
        max_tokens=size["tokens"],
    )
    started = time.monotonic()
    classifier.fit(*(corpus.train[column].tolist() for column in (TEXT, LABEL)))
    seconds = time.monotonic() - started
    right = classifier.predict(corpus.test[TEXT].tolist()) == corpus.test[LABEL]
    cells = noise_cells(mean_noise(maker.policy, list(trained)))
    return {
        "accuracy": float(right.mean()),
        "trained": sum(trained.values()),
        "noise_multiplier": maker.params.noise_multiplier,
        "epsilon": finite(classifier.epsilon),
        "epsilon_nominal": finite(maker.nominal(DELTA)),
        "noise": [[*place, factor] for place, factor in cells.items()],
        "rows_per_second": round(recipe.epochs * len(corpus.train) / seconds, 1),
    }


def leak(key: Leakage, passages: Passages, run: RunContext) -> dict[str, Any]:
    """Return how well a language model knows names and numbers of passages, trained on or not."""
    size, maker, sigma = passages.size, PolicyMaker(POLICIES.get(key.form)), 0.0
    model = passages.public_model(key.seed, run)
    records, recipe = passages.records(passages.train), Recipe(**size["private"])
    if key.form != NO_DP:
        sigma = noise_for(len(records), recipe, EPSILON, DELTA)
    counter = run.counter("training on e-mails")
    events = train_model(model, records, recipe, sigma, key.seed, counter, maker)
    return {
        "known": passages.known_by(model, run),
        "noise_multiplier": sigma,
        "epsilon": finite(epsilon(events, DELTA)),
        "epsilon_nominal": finite(maker.nominal(DELTA)),
    }


def mean_gain(results: Results, method: str, form: str) -> Interval:
    """Return the mean accuracy over the sets less that under uniform noise, seed by seed."""
    return difference(*(_mean_accuracies(results, method, f) for f in (form, UNIFORM)))


def _mean_accuracies(results: Results, method: str, form: str) -> dict[int, float]:
    each = [results.values((dataset, method, form), "accuracy") for dataset in SETS]
    return {seed: fmean(values[seed] for values in each) for seed in each[0]}


def share_won_back(results: Results, method: str, form: str) -> float | None:
    """Return the share of what uniform noise costs that a form wins back; None where it costs none.

    Of mean accuracies over sets and seeds.
    """
    cost = mean_gain(results, method, NO_DP).value
    return mean_gain(results, method, form).value / cost if cost > 0 else None


def known(results: Results, measure: str, form: str, part: str) -> dict[int, float]:
    """Return by seed how well names or numbers of a part are known; {} where there are none."""
    values = results.values((LEAKAGE, form), "known", part, measure)
    return {seed: value for seed, value in values.items() if value is not None}


def more_known(results: Results, measure: str, form: str) -> dict[int, float]:
    """Return by seed how much better those that were trained on are known than the held-out.

    Held-out names and numbers are better known, too, by a model that has seen how such look.
    """
    train, heldout = (known(results, measure, form, part) for part in PARTS)
    return {seed: value - heldout[seed] for seed, value in train.items() if seed in heldout}


def noise_of(
    results: Results, dataset: str, method: str, form: str
) -> dict[tuple[str, str], float]:
    """Return by layer and kind the noise over that of `uniform`, geometric mean over seeds."""
    cells = chain.from_iterable(results.values((dataset, method, form), "noise").values())
    frame = pd.DataFrame(cells, columns=["layer", "kind", "factor"])
    means: dict[tuple[str, str], float]
    means = frame.groupby(["layer", "kind"])["factor"].agg(geometric_mean).to_dict()
    return means


def accuracy(results: Results, *level: Any) -> dict[str, object]:
    """Return accuracy and ε of one set, or budget, method and form: a line of a table."""
    (dataset, method, form), row = level, results.first(level)
    uniform = (dataset, method, UNIFORM)
    return {
        "method": method,
        "noise": form,
        "accuracy, test": results.share(level, "accuracy"),
        "less uniform": results.difference(level, uniform, "accuracy") if form != UNIFORM else None,
        **_epsilons(results, level),
        "σ": f"{row['noise_multiplier']:.3f}",
        "numbers trained": f"{row['trained']:,}",
        **results.effort(level, "rows_per_second", "rows/s"),
    }


def _epsilons(results: Results, level: Key) -> dict[str, str | None]:
    """Return the ε of the paper's accounting, and that of a theorem; one but of published noise."""
    guaranteed = results.largest(level, "epsilon")
    has_claim = results.first(level)["epsilon_nominal"] is not None
    stated = results.largest(level, "epsilon_nominal") if has_claim else guaranteed
    return {"ε stated": None if level[-1] == NO_DP else stated, "ε guaranteed": guaranteed}


def won_back(results: Results, method: str, form: str) -> dict[str, object]:
    """Return what importance gains over uniform noise, over all sets: a line of a table."""
    share = share_won_back(results, method, form)
    return {
        "method": method,
        "noise": form,
        "mean accuracy less uniform": mean_gain(results, method, form),
        "of the gap to no privacy, won back": (
            "uniform noise cost nothing" if share is None else f"{share:.0%}"
        ),
    }


def leakage(results: Results, measure: str, form: str) -> dict[str, object]:
    """Return how well names or numbers are known, and how much of that noise hides."""
    ours = more_known(results, measure, form)

    def less(than: str) -> Interval | None:
        known_then = more_known(results, measure, than)
        return difference(ours, known_then) if ours and than != form else None

    return {
        "measure": MEASURES[measure],
        "noise": form,
        **{part: _mean(known(results, measure, form, part)) for part in PARTS},
        "train less held-out": _mean(ours),
        f"less {NO_DP}": less(NO_DP),
        f"less {UNIFORM}": less(UNIFORM),
        **_epsilons(results, (LEAKAGE, form)),
        "seeds": len(results.by_seed(LEAKAGE, form)),
    }


def _mean(values: Mapping[int, float]) -> Interval | None:
    return mean_of(list(values.values())) if values else None


def layers(results: Results) -> list[dict[str, str]]:
    """Return the noise of each layer over that of uniform noise: mean over its kinds of weights."""
    means = {
        f"{form.split(', ')[1]}: {method}": pd.Series(noise_of(results, SST2, method, form))
        for form in IMPORTANCE
        for method in METHODS
    }
    table = pd.DataFrame({name: one.groupby(level=0).mean() for name, one in means.items()})
    order = sorted(table.index, key=lambda name: (name == OUTSIDE, name.zfill(4)))
    return [
        {"layer": "outside" if layer == OUTSIDE else layer}
        | {name: f"{factor:.2f}" for name, factor in table.loc[layer].dropna().items()}
        for layer in order
    ]


_COLOURS = {NO_DP: "0.4", UNIFORM: "C3", PUBLISHED: "C1", SOUND: "C0"}


def _draw_accuracies(panel: Any, results: Results, dataset: str) -> None:
    for shift, form in enumerate(FORMS):
        places = [place + 0.15 * (shift - 1.5) for place in range(len(METHODS))]
        seeds = [results.values((dataset, method, form), "accuracy") for method in METHODS]
        style: dict[str, Any] = {"color": _COLOURS[form], "label": form, "markersize": 4}
        seed_line(panel, seeds, places=places, form="o", **style)
    guess = results.facts["sets"][dataset]["guess"]
    panel.axhline(guess, color="0.6", linestyle=":", label="a guess")
    name_panel(panel, f"accuracy, {dataset}", METHODS, fontsize=7, rotation=20)


def _draw_leakage(panel: Any, results: Results, measure: str) -> None:
    for part, mark, colour in zip(PARTS, "ox", ("C3", "C0"), strict=True):
        seeds = [known(results, measure, form, part) for form in FORMS]
        for place, values in enumerate(seeds):
            label = part if place == 0 else None
            panel.plot(
                [place] * len(values), list(values.values()), mark, color=colour, label=label
            )
    panel.legend(fontsize=6)
    name_panel(panel, MEASURES[measure], FORMS, fontsize=6, rotation=25)


class Anadp(Study):
    """Is noise better where parameters matter less? Li, Zmigrod, Ma, Liu and Zhu 2024."""

    name = "anadp"

    def keys(self, seeds: int) -> Iterator[Classifier | Leakage | Attack]:
        """See `Study`."""
        yield from (Attack(ATTACK, form) for form in IMPORTANCE)
        for seed in range(seeds):
            yield from (Leakage(LEAKAGE, form, seed) for form in FORMS)
            for dataset in SETS:
                for method in METHODS:
                    yield from (Classifier(dataset, method, form, seed) for form in FORMS)

    def settings(self) -> dict[str, Any]:
        """See `Study`."""
        constants = {"epsilon": EPSILON, "delta": DELTA, "rank": RANK, "attacked": ATTACKED_SIGMA}
        return super().settings() | constants

    def facts(self) -> Mapping[str, Any]:
        """See `Study`: counts alone."""
        sets = {name: corpus.facts() for name, corpus in self._corpora.items()}
        return {"sets": sets, LEAKAGE: self._passages.facts()}

    def row(self, key: Classifier | Leakage | Attack, run: RunContext) -> Mapping[str, Any]:
        """See `Study`."""
        if isinstance(key, Attack):
            return attack_row(POLICIES[key.form], ATTACKED_SIGMA, self.size["trials"])
        if isinstance(key, Classifier):
            return classify(key, self._corpora[key.dataset], self.size, run)
        return leak(key, self._passages, run)

    def tables(self, results: Results) -> Mapping[str, Any]:
        """See `Study`."""
        ways = [(method, form) for method in METHODS for form in FORMS]
        return {
            "accuracies": {s: [accuracy(results, s, *way) for way in ways] for s in SETS},
            "won_back": [won_back(results, *way) for way in ways if way[1] in IMPORTANCE],
            "leakage": [leakage(results, measure, form) for measure in MEASURES for form in FORMS],
            "scored": results.first((LEAKAGE, NO_DP))["known"],
            **attack_tables(results, {(ATTACK, f): {"attack on": f} for f in IMPORTANCE}),
            "layers": layers(results),
        }

    def figure(self, results: Results) -> Figure:
        """Draw every seed and the means: accuracies, leakage, and where noise went."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(12, 7.5), layout="constrained")
        halves: Any = figure.subfigures(2, 1)
        panels = halves[0].subplots(1, len(SETS) + len(MEASURES))
        for panel, dataset in zip(panels, SETS, strict=False):
            _draw_accuracies(panel, results, dataset)
        for panel, measure in zip(panels[len(SETS) :], MEASURES, strict=True):
            _draw_leakage(panel, results, measure)
        panels[0].legend(fontsize=6)
        for panel, form in zip(halves[1].subplots(1, len(IMPORTANCE)), IMPORTANCE, strict=True):
            draw_cells(panel, noise_of(results, SST2, LORA, form))
            panel.set_title(f"noise ÷ uniform, {SST2}, {LORA}: {form}", fontsize=8)
            panel.tick_params(labelsize=6)
        figure.suptitle(f"Noise by importance ({results.settings['size']})", fontsize=10)
        return figure

    @cached_property
    def _corpora(self) -> dict[str, Corpus]:
        def read(name: str, part: str, most: str) -> pd.DataFrame:
            path = self.paths[f"{name.lower().replace('-', '').replace(' ', '_')}_{part}"]
            return read_rows(path, SETS[name], self.size.get(most))

        parts = ("train", "rows"), ("test", "scored_rows")
        return {name: Corpus(*(read(name, *part) for part in parts)) for name in SETS}

    @cached_property
    def _passages(self) -> Passages:
        return Passages.read(self.paths["emails"], self.paths["public"], self.size)


if __name__ == "__main__":
    main(Anadp)
