"""Paper 004: does protecting private tokens alone leave more to learn?

Shi, Cui, Li, Jia and Yu 2022, "Selective Differential Privacy for Language Modeling": LSTMs with
Selective-DPSGD as published, beside DPSGD, no noise and anonymised text, attacked by canaries and
membership inference; transformers that are trained in two phases.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from evaluation.papers.flagged_text import (
    HELD_OUT,
    SWAPPED,
    Corpus,
    Flagged,
    Row,
    Sides,
    canary,
    canary_exposure,
    dialogues,
    membership,
    planted,
    scored,
    wikitext,
)
from evaluation.papers.intervals import Interval, difference, ratio
from evaluation.papers.language_model import (
    FolderShape,
    Gpt2Shape,
    Shape,
    perplexity,
    plan_of,
    seeded,
    spending,
    train_model,
)
from evaluation.papers.lstm import Lstm, SelectiveDpsgd
from evaluation.papers.plots import (
    legend_beside,
    logarithmic,
    make_panels,
    name_rows,
    seed_bars,
)
from evaluation.papers.results_store import Results, finite
from evaluation.papers.run_context import RunContext
from evaluation.papers.study import Study, main, reported
from evaluation.papers.texts import LINES
from evaluation.results_store import Key
from evaluation.utility.dp_fitting import Count, MakePolicy, Recipe
from twinset.config import PolicyConfig
from twinset.detectors import detector_named
from twinset.errors import InputError
from twinset.models.base_model import BaseModel, context_length, load_base
from twinset.policies import make_policy
from twinset.policies.selective import MaskedPhase, PublishedSelective
from twinset.pretraining.tokenizer import train_tokenizer
from twinset.privacy.accounting.calibration import calibrate_noise_multiplier
from twinset.privacy.accounting.events import Event, MaskedAccess, event_to_dict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIKITEXT, DIALOGUES = "WikiText-2", "CustomerSim"
NO_DP, DPSGD, SDPSGD = "LSTM, no DP", "LSTM, DPSGD", "LSTM, S-DPSGD"
ANONYMISED = "LSTM, anonymised"
# The same with a canary that the policy function misses; section 5.4 has WikiText-2 alone.
ANONYMISED_MISSED, SDPSGD_MISSED = f"{ANONYMISED}, canary missed", f"{SDPSGD}, canary missed"
LSTMS = {
    WIKITEXT: (NO_DP, DPSGD, SDPSGD, ANONYMISED, ANONYMISED_MISSED, SDPSGD_MISSED),
    DIALOGUES: (NO_DP, DPSGD, SDPSGD),
}
ENTITIES, CONTEXTUAL = "entities", "contextual"  # detectors, and policy functions of section 6
POLICIES = (ENTITIES, CONTEXTUAL)
TRANSFORMER, REDACTED, SDP = "transformer", "redacted", "S-DP"
TRANSFORMER_NO_DP, TRANSFORMER_DPSGD = f"{TRANSFORMER}, no DP", f"{TRANSFORMER}, DPSGD"
DELTA = 8e-5
# Tables 2 and 3, and section 5.3, by text set and model: perplexity with its spread over five runs,
# top-1 accuracy, σ, C, ε, and the share of flagged tokens.
REPORTED = reported("sdp", "text", "model")
TRANSFORMER_EPSILON, TRANSFORMER_NORM = 2.58, 1.0  # the paper does not state the C of Table 3

MADE = "dialogues made by evaluation.demo_tables.support_dialogues, in the manner of CustomerSim"
DIALOGUES_MADE = 10_000  # CustomerSim has as many
_TRAIN_SEED, _TEST_SEED = 0, 1  # of those

# What a row may say of its ε: that a theorem covers it, that none does, or that there is no noise.
NOMINAL, NONE = "nominal, no guarantee", "none"
GUARANTEED = "guaranteed, the tokens taken as public"
FLAGGED_ONLY = "guaranteed for what is flagged, all else and the tokens taken as public"
LARGE_DELTA = f"{NOMINAL}: δ is not below 1/N"
UNEQUAL = "perplexities never met"
NO_NOISE = {"noise_multiplier": 0.0, "says": NONE, "epsilon": None}  # of a row


def redacted(policy: str) -> str:
    """Return the name of the model that is trained without what the policy function flags."""
    return f"{TRANSFORMER}, {REDACTED}, {policy}"


def selective(policy: str) -> str:
    """Return the name of the model that is then trained with DPSGD on texts as they are."""
    return f"{TRANSFORMER}, {SDP}, {policy}"


TRANSFORMERS = (
    TRANSFORMER_NO_DP,
    TRANSFORMER_DPSGD,
    *(model(policy) for policy in POLICIES for model in (redacted, selective)),
)


class Run(NamedTuple):
    """Key of a row: which texts, which model."""

    text: str
    model: str
    seed: int


@dataclass(frozen=True)
class LstmRow:
    """Makes a row of an LSTM: training, scores, attacks.

    Args:
        key: of the row.
        corpus: its texts.
        size: numbers of the size.
        run: of the study.
    """

    key: Run
    corpus: Corpus
    size: Mapping[str, Any]
    run: RunContext

    def row(self) -> dict[str, Any]:
        """Return scores, attacks, ε, and what they came from."""
        started, seed = time.monotonic(), self.key.seed
        model = seeded(lambda v: Lstm(v, self.size["width"]), len(self.corpus.tokenizer), seed)
        points: list[dict[str, Any]] = []
        spent = self._train(model, self._looking(lambda: points.append(self._point(model))))
        seconds = time.monotonic() - started
        test = scored(model, self.corpus.tested)
        return {
            **points[-1],
            "accuracy": test.accuracy,
            "private_perplexity": perplexity(test.private_groups),
            "membership": membership(model, Sides.of(self.corpus, self.size["members"]), seed),
            **spent,
            "points": points,
            "seconds": round(seconds, 1),
            "test_groups": test.groups.round(4).tolist(),
            "private_groups": test.private_groups.round(4).tolist(),
        }

    def _train(self, model: Lstm, count: Count) -> dict[str, Any]:
        name, seen = self.key.model, self.key.model not in (ANONYMISED_MISSED, SDPSGD_MISSED)
        rows = planted(self.corpus.train, canary(self.size["digits"]), seen)
        if name in (ANONYMISED, ANONYMISED_MISSED):
            rows = [Row(row.masked, ()) for row in rows]
        flagged = self.corpus.encoded(rows)
        if name in (SDPSGD, SDPSGD_MISSED):
            return self._selective(model, flagged, count)
        if name == DPSGD:
            return self._uniform(model, flagged, count)
        recipe = Recipe(**self.size["open"])
        train_model(model, flagged.records, recipe, 0.0, self.key.seed, count)
        return dict(NO_NOISE)

    def _uniform(self, model: Lstm, flagged: Flagged, count: Count) -> dict[str, Any]:
        known, records = REPORTED[self.key.text, DPSGD], flagged.records
        recipe = Recipe(**self.size["noisy"], max_grad_norm=known["max_grad_norm"])
        sigma = noise_for(len(records), recipe, known["epsilon"])
        events = train_model(model, records, recipe, sigma, self.key.seed, count)
        says = covered(GUARANTEED, len(records))
        return _noise(sigma, recipe.max_grad_norm, says) | spending(events, DELTA)

    def _selective(self, model: Lstm, flagged: Flagged, count: Count) -> dict[str, Any]:
        known, rate = REPORTED[self.key.text, SDPSGD], self.size["open"]["learning_rate"]
        norm, step = known["max_grad_norm"], self.size["step"]
        recipe = Recipe(**self.size["noisy"] | {"learning_rate": rate, "max_grad_norm": norm})
        texts, target = (flagged.records, flagged.flags), known["epsilon"]
        spent = SelectiveDpsgd(model, *texts, recipe, step, target, DELTA, count).train()
        noise = _noise(spent.noise_multiplier, norm, NOMINAL) | spending(spent.events, DELTA)
        return noise | {"proved": finite(spent.proved(DELTA)), "releases": spent.releases}

    def _looking(self, look: Callable[[], object]) -> Count:
        """Return a progress callback that looks at the model after all, half, … of the steps."""
        count, points = self.run.counter("training"), self.size["points"]

        def look_and_count(done: int, total: int) -> None:
            count(done, total)
            if done in {math.ceil(total / 2**k) for k in range(points)}:
                look()

        return look_and_count

    def _point(self, model: Lstm) -> dict[str, Any]:
        secret, tokenizer = canary(self.size["digits"]), self.corpus.tokenizer
        found = canary_exposure(model, tokenizer, secret, self.size["exact"], self.key.seed)
        return {
            "perplexity": perplexity(scored(model, self.corpus.tested).groups),
            "exposure": found.bits,
            "method": f"{found.method}, of {found.space:,}",
            "candidates": found.space,
        }


@dataclass(frozen=True)
class TransformerRow:
    """Makes a row of the transformer.

    Args:
        key: of the row.
        corpus: WikiText-2.
        size: numbers of the size.
        shape: of the base model.
        flagged_by: returns the training rows with what a policy function flags.
        run: its cache keeps the weights of redacted texts.
    """

    key: Run
    corpus: Corpus
    size: Mapping[str, Any]
    shape: Shape
    flagged_by: Callable[[str], Sequence[Row]]
    run: RunContext

    def row(self) -> dict[str, Any]:
        """Return perplexity, ε, and what they came from."""
        started = time.monotonic()
        model = seeded(self.shape.start, len(self.corpus.tokenizer), self.key.seed)
        spent = self._train(model)
        seconds = time.monotonic() - started
        test = scored(model, self.corpus.tested)
        return {
            "perplexity": perplexity(test.groups),
            "accuracy": test.accuracy,
            **spent,
            "seconds": round(seconds, 1),
            "test_groups": test.groups.round(4).tolist(),
        }

    def _train(self, model: Any) -> dict[str, Any]:
        name = self.key.model
        if name == TRANSFORMER_NO_DP:
            self._without_noise(model, self.corpus.train)
            return dict(NO_NOISE)
        if name == TRANSFORMER_DPSGD:
            return self._with_noise(model, GUARANTEED)
        (policy,) = (p for p in POLICIES if name in (redacted(p), selective(p)))
        self._on_redacted(model, policy)
        if name == redacted(policy):
            noise = dict(NO_NOISE)
        else:
            make, before = _phase(PublishedSelective, policy), [MaskedAccess(policy)]
            noise = self._with_noise(model, FLAGGED_ONLY, before, make)
        return noise | {"share": self.corpus.encoded(self.flagged_by(policy)).share}

    def _on_redacted(self, model: Any, policy: str) -> None:
        """Phase 1: train without noise on texts without what is flagged."""

        def train() -> None:
            rows = [Row(row.masked, ()) for row in self.flagged_by(policy)]
            self._without_noise(model, rows, _phase(MaskedPhase, policy))

        name = f"transformer of redacted texts, {policy}, seed {self.key.seed}"
        self.run.train_once(name, model, train)

    def _without_noise(
        self, model: Any, rows: Sequence[Row], make: MakePolicy = make_policy
    ) -> None:
        records, recipe = self.corpus.encoded(rows).records, Recipe(**self.size["fine"])
        train_model(model, records, recipe, 0.0, self.key.seed, self._count, make)

    def _with_noise(
        self,
        model: Any,
        says: str,
        before: Sequence[Event] = (),
        make: MakePolicy = make_policy,
    ) -> dict[str, Any]:
        """Train with DPSGD on texts as they are; its ε takes redacted texts as known."""
        records, norm = self.corpus.encoded(self.corpus.train).records, TRANSFORMER_NORM
        recipe = Recipe(**self.size["private"], max_grad_norm=norm)
        sigma = noise_for(len(records), recipe, TRANSFORMER_EPSILON)
        events = train_model(model, records, recipe, sigma, self.key.seed, self._count, make)
        noise = _noise(sigma, norm, covered(says, len(records)))
        shown = [event_to_dict(event) for event in before]
        spent = spending(events, DELTA)
        return noise | spent | {"events": [*shown, *spent["events"]]}

    @property
    def _count(self) -> Count:
        return self.run.counter("training")


def covered(says: str, records: int) -> str:
    """Return what ε is called; as in `twinset`, nothing is guaranteed with δ of 1/N or more.

    >>> covered(GUARANTEED, 1_000), covered(GUARANTEED, 20_000)
    ('guaranteed, the tokens taken as public', 'nominal, no guarantee: δ is not below 1/N')
    """
    return says if records * DELTA < 1 else LARGE_DELTA


def noise_for(records: int, recipe: Recipe, target: float) -> float:
    """Return σ with which `train_model` spends ε at δ."""
    plan = plan_of(records, recipe, 1.0)
    return calibrate_noise_multiplier(target, DELTA, plan.sample_rate, plan.steps)


def _phase(kind: type[MaskedPhase | PublishedSelective], policy: str) -> MakePolicy:
    """Return a maker of the policy of phase 1 or 2, as published."""
    options = PolicyConfig(noise_policy="selective", policy_form="published", detector=policy)
    return lambda setting: kind(replace(setting, options=options))


def _noise(sigma: float, norm: float, says: str) -> dict[str, Any]:
    return {"noise_multiplier": sigma, "max_grad_norm": norm, "says": says}


def perplexity_ratio(
    results: Results, text: str, ours: str, theirs: str, groups: str = "test_groups"
) -> Interval:
    """Return the ratio of two models' perplexities on the same held-out tokens."""
    found = (results.values((text, model), groups).items() for model in (ours, theirs))
    return ratio(*({seed: np.array(one) for seed, one in model} for model in found))


def exposure_at_equal_perplexity(
    results: Results, text: str, ours: str, theirs: str
) -> Interval | None:
    """Return our exposure at the end less theirs when their perplexity was ours, seed by seed.

    Figures 3, 4 and 6 compare so. Between the times that a model was looked at, exposure is taken
    as linear in the logarithm of perplexity.

    Returns:
        None where, in some seed, they were not looked at both above and below our perplexity.
    """
    last, others = results.by_seed(text, ours), results.by_seed(text, theirs)
    then = {seed: _exposure_when(others[seed], row["perplexity"]) for seed, row in last.items()}
    known = {seed: bits for seed, bits in then.items() if bits is not None}
    if len(known) < len(then):
        return None
    most = max(math.log2(row["candidates"]) for row in last.values())
    return difference(results.values((text, ours), "exposure"), known).within(-most, most)


def _exposure_when(row: Mapping[str, Any], perplexity: float) -> float | None:
    pairs = sorted((math.log(p["perplexity"]), p["exposure"]) for p in row["points"])
    places, bits = zip(*pairs, strict=True)
    place = math.log(perplexity)
    return float(np.interp(place, places, bits)) if places[0] <= place <= places[-1] else None


def comparisons(results: Results) -> list[dict[str, object]]:
    """Return what the verdict rests on."""
    lines = [
        *(line for text in LSTMS for line in _lstm_comparisons(results, text)),
        *_anonymisation_comparisons(results),
        *(line for policy in POLICIES for line in _transformer_comparisons(results, policy)),
    ]
    names = ("comparison", "result", "the claim needs", "paper")
    return [dict(zip(names, line, strict=True)) for line in lines]


Line = tuple[str, object, str, object]  # of the table above


def _lstm_comparisons(results: Results, text: str) -> Iterator[Line]:
    known = (REPORTED[text, model]["perplexity"] for model in (SDPSGD, DPSGD))
    found = perplexity_ratio(results, text, SDPSGD, DPSGD)
    yield f"{text}: perplexity, S-DPSGD ÷ DPSGD", found, "below 1", _quotient(*known)
    bits = exposure_at_equal_perplexity(results, text, SDPSGD, NO_DP)
    yield f"{text}: exposure, S-DPSGD less no DP", bits or UNEQUAL, "below 0", None
    for side in (SWAPPED, HELD_OUT):
        models = (text, SDPSGD), (text, NO_DP)
        found = results.difference(*models, "membership", side, "accuracy")
        yield f"{text}: accuracy, {side}, S-DPSGD less no DP", found, "below 0", None


def _anonymisation_comparisons(results: Results) -> Iterator[Line]:
    guess = results.facts["texts"][WIKITEXT]["vocabulary"]
    private = f"{WIKITEXT}: perplexity of private tokens"
    found = perplexity_ratio(results, WIKITEXT, SDPSGD, ANONYMISED, "private_groups")
    yield f"{private}, S-DPSGD ÷ anonymised", found, "below 1", None
    mean = results.geometric((WIKITEXT, SDPSGD), "private_perplexity").text(1)
    yield f"{private}, S-DPSGD", mean, f"below {guess:,}, a blind guess", None
    bits = exposure_at_equal_perplexity(results, WIKITEXT, SDPSGD_MISSED, ANONYMISED_MISSED)
    what = "exposure, canary missed, S-DPSGD less anonymised"
    yield f"{WIKITEXT}: {what}", bits or UNEQUAL, "below 0", None


def _transformer_comparisons(results: Results, policy: str) -> Iterator[Line]:
    ours = selective(policy)
    for name, theirs in (("DPSGD", TRANSFORMER_DPSGD), (REDACTED, redacted(policy))):
        found = perplexity_ratio(results, WIKITEXT, ours, theirs)
        known = (REPORTED[WIKITEXT, model]["perplexity"] for model in (ours, theirs))
        what = f"transformer, {policy}: perplexity, S-DP ÷ {name}"
        yield what, found, "below 1", _quotient(*known)


def _quotient(ours: float, theirs: float) -> str:
    return f"{ours / theirs:.3f}"


def utility(results: Results, text: str, model: str) -> dict[str, object]:
    """Return perplexity, accuracy and ε of an LSTM, beside the paper's: a line of a table."""
    level, known = (text, model), REPORTED.get((text, model), {})
    row = results.first(level)
    return {
        "model": model,
        "perplexity": results.geometric(level, "perplexity").text(2),
        "top-1": results.mean(level, "accuracy", least=0.0, most=1.0),
        "private tokens: perplexity": results.geometric(level, "private_perplexity").text(1),
        "σ": _sigma(results, level),
        "C": row.get("max_grad_norm"),
        "ε": results.largest(level, "epsilon"),
        "what ε is": row["says"],
        "paper: perplexity": "{perplexity:.2f} ± {spread:.2f}".format(**known) if known else None,
        "paper: top-1": "{accuracy:.2f}".format(**known) if known else None,
        "paper: σ": known.get("noise_multiplier"),
        "paper: ε": known.get("epsilon"),
        "seeds": len(results.by_seed(*level)),
    }


def _sigma(results: Results, level: Key) -> str:
    """Return σ, from the least to the largest where seeds differ."""
    values = results.values(level, "noise_multiplier").values()
    ends = dict.fromkeys(f"{value:.3f}" for value in (min(values), max(values)))
    return " to ".join(ends) if max(values) else ""


def attacks(results: Results, text: str, model: str) -> dict[str, object]:
    """Return what canaries and membership inference showed of an LSTM: a line of a table."""
    level, row = (text, model), results.first((text, model))
    most = math.log2(row["candidates"])
    return {
        "model": model,
        "exposure, bits": results.mean(level, "exposure", least=0.0, most=most).text(2),
        "how": row["method"],
    } | {
        f"{what}: {side}": results.mean(level, "membership", side, name, least=0.0, most=1.0)
        for side in (SWAPPED, HELD_OUT)
        for what, name in (("accuracy", "accuracy"), ("AUROC", "value"))
    }


def proved(results: Results) -> list[dict[str, object]]:
    """Return the nominal ε of S-DPSGD beside what can be proved."""
    levels = [(text, m) for text in LSTMS for m in LSTMS[text] if m.startswith(SDPSGD)]
    return [
        {
            "model": ": ".join(level),
            "σ": _sigma(results, level),
            "nominal ε": results.largest(level, "epsilon"),
            "private segments of one record": max(results.values(level, "releases").values()),
            "ε that can be proved": results.largest(level, "proved"),
        }
        for level in levels
    ]


def two_phases(results: Results, model: str) -> dict[str, object]:
    """Return perplexity and ε of a transformer, beside the paper's: a line of a table."""
    level, known = (WIKITEXT, model), REPORTED[WIKITEXT, model]
    row = results.first(level)
    return {
        "model": _short(model),
        "flagged": f"{row['share']:.1%}" if "share" in row else None,
        "perplexity": results.geometric(level, "perplexity").text(2),
        "σ": _sigma(results, level),
        "ε": results.largest(level, "epsilon"),
        "what ε is": row["says"],
        "paper: flagged": f"{known['flagged']:.1%}" if "flagged" in known else None,
        "paper: perplexity": f"{known['perplexity']:.2f}",
        "paper: ε": known.get("epsilon"),
        "seeds": len(results.by_seed(*level)),
    }


def _short(model: str) -> str:
    return model.removeprefix(f"{TRANSFORMER}, ")


def _draw_perplexities(
    panel: Any, results: Results, title: str, text: str, models: Sequence[str]
) -> None:
    seeds = {_short(m): list(results.values((text, m), "perplexity").values()) for m in models}
    seed_bars(panel, seeds)
    for place, model in enumerate(models):
        if known := REPORTED.get((text, model)):
            panel.plot([known["perplexity"]], [place], "rx")
    logarithmic(panel, "x")
    panel.set_title(f"{title}: perplexity (x: paper, other tokens)", fontsize=9)


def _draw_exposures(panel: Any, results: Results, text: str) -> None:
    for place, model in enumerate(LSTMS[text]):
        for number, points in enumerate(results.values((text, model), "points").values()):
            xs, ys = ([point[name] for point in points] for name in ("perplexity", "exposure"))
            label = model if number == 0 else None
            panel.plot(xs, ys, "o-", color=f"C{place}", label=label, markersize=3, linewidth=0.8)
    logarithmic(panel, "x")
    panel.set_title(f"{text}: the canary's exposure, bits, while learning", fontsize=9)
    panel.set_xlabel("perplexity", fontsize=8)
    panel.tick_params(labelsize=7)


def _draw_memberships(panel: Any, results: Results, text: str) -> None:
    models = LSTMS[text]
    for shift, (side, mark) in enumerate(((SWAPPED, "o"), (HELD_OUT, "s"))):
        for place, model in enumerate(models):
            path = ("membership", side, "accuracy")
            values = list(results.values((text, model), *path).values())
            label = side if place == 0 else None
            heights = [place + 0.2 * (shift - 0.5)] * len(values)
            panel.plot(values, heights, mark, color=f"C{shift}", label=label, markersize=4)
    panel.axvline(0.5, color="0.6", linestyle=":")
    name_rows(panel, models)
    panel.set_title(f"{text}: accuracy of membership inference", fontsize=9)


class Sdp(Study):
    """Does protecting private tokens alone leave more to learn? Shi, Cui, Li, Jia and Yu 2022."""

    name = "sdp"
    files = {
        "wikitext_train": f"WikiText-2, to train on; {LINES}",
        "wikitext_test": f"WikiText-2, read for the tables alone; {LINES}",
    }
    optional_files = {
        "dialogs_train": "CustomerSim, to train on: a table; left out, dialogues are made",
        "dialogs_test": "CustomerSim, read for the tables alone; both tables or none",
    }
    models = {"base": "GPT-2 that transformers begin from: an asset, a folder or a hub name"}

    def keys(self, seeds: int) -> Iterator[Run]:
        """See `Study`."""
        for seed in range(seeds):
            for text, models in LSTMS.items():
                yield from (Run(text, model, seed) for model in models)
            yield from (Run(WIKITEXT, model, seed) for model in TRANSFORMERS)

    def sources(self) -> dict[str, str]:
        """See `Study`; dialogues that are made have no file.

        Raises:
            InputError: there is one file of dialogues without the other.
        """
        named = [name for name in self.optional_files if name in self.paths]
        if len(named) == 1:
            raise InputError("--dialogs-train and --dialogs-test: name both, or none")
        return super().sources() | ({} if named else {"dialogs": MADE})

    def facts(self) -> Mapping[str, Any]:
        """See `Study`."""
        corpus, base = self._transformer_corpus, self._base
        train, test = (len(corpus.encoded(rows).records) for rows in (corpus.train, corpus.test))
        return {
            "texts": {text: self._text_facts(text) for text in LSTMS},
            "transformer": (
                f"Base model: {base.origin if base else 'random weights'}; training records: "
                f"{train:,}; held out: {test:,}."
            ),
        }

    def _text_facts(self, text: str) -> dict[str, Any]:
        corpus = self._corpora[text]
        train = corpus.encoded(planted(corpus.train, canary(self.size["digits"]), True))
        return {
            "rows": len(corpus.train),
            "heldout": len(corpus.test),
            "records": len(train.records),
            "tokens": sum(map(len, corpus.tested.records.texts)),
            "vocabulary": len(corpus.tokenizer),
            "share": train.share,
            "source": MADE if text == DIALOGUES and "dialogs_train" not in self.paths else "",
        }

    def row(self, key: Run, run: RunContext) -> Mapping[str, Any]:
        """See `Study`."""
        if key.model not in TRANSFORMERS:
            return LstmRow(key, self._corpora[key.text], self.size, run).row()
        base = self.size.get("base")
        shape = FolderShape(Path(base)) if base else Gpt2Shape(**self.size["transformer"])
        flagged_by = partial(self._flagged_by, run.counter("rows flagged"))
        corpus = self._transformer_corpus
        return TransformerRow(key, corpus, self.size, shape, flagged_by, run).row()

    def tables(self, results: Results) -> Mapping[str, Any]:
        """See `Study`."""
        return {
            "comparisons": comparisons(results),
            "utility": {t: [utility(results, t, m) for m in LSTMS[t]] for t in LSTMS},
            "attacks": {t: [attacks(results, t, m) for m in LSTMS[t]] for t in LSTMS},
            "proved": proved(results),
            "two_phases": [two_phases(results, model) for model in TRANSFORMERS],
            "flagged": {t: REPORTED[t, SDPSGD]["flagged"] for t in LSTMS},
        }

    def figure(self, results: Results) -> Figure:
        """Draw a row of panels for each text set, and one for transformers."""
        title = f"Selective DP, δ = {DELTA:g} ({results.settings['size']}); ε of S-DPSGD is nominal"
        rows = len(LSTMS) + 1
        figure, panels = make_panels(title, rows, 3, (14, 3.4 * rows))
        for line, (text, models) in zip(panels, LSTMS.items(), strict=False):
            _draw_perplexities(line[0], results, text, text, models)
            _draw_exposures(line[1], results, text)
            _draw_memberships(line[2], results, text)
        _draw_perplexities(panels[-1][0], results, f"{TRANSFORMER}s", WIKITEXT, TRANSFORMERS)
        for empty, drawn in zip(panels[-1][1:], panels[0][1:], strict=True):
            legend_beside(empty, drawn)
        return figure

    @cached_property
    def _base(self) -> BaseModel | None:
        return load_base(self.size["base"]) if "base" in self.size else None

    @cached_property
    def _corpora(self) -> dict[str, Corpus]:
        """The text sets in the tokens of LSTMs."""
        most, scored_most = (self.size.get(name) for name in ("rows", "scored"))
        lines = (
            wikitext(self.paths["wikitext_train"], most),
            wikitext(self.paths["wikitext_test"], scored_most),
        )
        made, few = most or DIALOGUES_MADE, scored_most or DIALOGUES_MADE // 10
        talks = (
            dialogues(self.paths.get("dialogs_train"), most, made, _TRAIN_SEED),
            dialogues(self.paths.get("dialogs_test"), scored_most, few, _TEST_SEED),
        )
        return {WIKITEXT: self._corpus(*lines), DIALOGUES: self._corpus(*talks)}

    def _corpus(self, train: Sequence[Row], test: Sequence[Row]) -> Corpus:
        """Return rows in the base model's tokens; where a size has its own, in these.

        They are trained on rows as the policy function leaves them, without canaries.
        """
        if "vocabulary" in self.size:
            masked = [f" {row.masked}" for row in train]
            tokenizer = train_tokenizer(masked, self.size["vocabulary"])
        else:
            assert self._base is not None, "a size has a vocabulary or a base"
            tokenizer = self._base.tokenizer
        return Corpus(train, test, tokenizer, self.size["context"])

    @cached_property
    def _transformer_corpus(self) -> Corpus:
        corpus, base = self._corpora[WIKITEXT], self._base
        context = self.size["transformer"]["context"]
        if base is None:
            return replace(corpus, context=context)
        if (longest := context_length(base.model)) < context:
            name = self.size["base"]
            raise InputError(f"--base {name}: reads {longest} tokens; {context} are needed")
        return replace(corpus, tokenizer=base.tokenizer, context=context)

    @cached_property
    def _flagged(self) -> dict[str, list[Row]]:
        return {}

    def _flagged_by(self, count: Count, policy: str) -> list[Row]:
        """Return the training rows of WikiText-2 with what a detector flags, found once.

        Raises:
            InputError: the detector's library is not installed.
        """
        if policy not in self._flagged:
            texts = [row.text for row in self._transformer_corpus.train]
            found: list[Row] = []
            for text, spans in zip(texts, detector_named(policy).spans(texts), strict=True):
                found.append(Row(text, tuple((start, end, policy) for start, end in spans)))
                count(len(found), len(texts))
            self._flagged[policy] = found
        return self._flagged[policy]


if __name__ == "__main__":
    main(Sdp)
