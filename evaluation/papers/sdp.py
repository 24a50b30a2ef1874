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
from evaluation.papers.intervals import Interval, difference, geometric_mean, mean_of, ratio
from evaluation.papers.language_model import (
    FolderShape,
    Gpt2Shape,
    Shape,
    perplexity,
    plan_of,
    seeded,
    train_model,
)
from evaluation.papers.lstm import Lstm, SelectiveDpsgd
from evaluation.papers.page import Section
from evaluation.papers.plots import legend_beside, logarithmic, name_rows, seed_bars
from evaluation.papers.results_store import Results
from evaluation.papers.run_context import RunContext
from evaluation.papers.study import Study, main
from evaluation.papers.texts import LINES
from evaluation.utility.dp_fitting import Count, MakePolicy, Recipe
from twinset.config import PolicyConfig
from twinset.detectors import detector_named
from twinset.errors import InputError
from twinset.models.base_model import BaseModel, context_length, load_base
from twinset.policies import make_policy
from twinset.policies.selective import MaskedPhase, PublishedSelective
from twinset.pretraining.tokenizer import train_tokenizer
from twinset.privacy.accounting.accountant import epsilon
from twinset.privacy.accounting.calibration import calibrate_noise_multiplier
from twinset.privacy.accounting.events import Event, MaskedAccess, event_to_dict
from twinset.privacy.accounting.rounding import up_decimals

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


class Reported(NamedTuple):
    """A line of Table 2: perplexity, its spread over five runs, and top-1 accuracy."""

    perplexity: float
    spread: float
    accuracy: float


class ReportedNoise(NamedTuple):
    """The noise of a line of Table 2: σ, C and ε."""

    noise_multiplier: float
    max_grad_norm: float
    epsilon: float


TABLE_2 = {
    (WIKITEXT, NO_DP): Reported(60.98, 0.48, 0.36),
    (WIKITEXT, DPSGD): Reported(305.86, 3.00, 0.27),
    (WIKITEXT, SDPSGD): Reported(160.04, 4.86, 0.31),
    (DIALOGUES, NO_DP): Reported(3.06, 0.01, 0.75),
    (DIALOGUES, DPSGD): Reported(11.82, 0.76, 0.70),
    (DIALOGUES, SDPSGD): Reported(10.42, 0.91, 0.69),
}
NOISE = {
    (WIKITEXT, DPSGD): ReportedNoise(0.50, 0.10, 4.89),
    (WIKITEXT, SDPSGD): ReportedNoise(0.50, 1e-3, 4.91),
    (DIALOGUES, DPSGD): ReportedNoise(0.60, 0.01, 2.51),
    (DIALOGUES, SDPSGD): ReportedNoise(0.70, 5e-3, 2.74),
}
FLAGGED = {WIKITEXT: 0.028, DIALOGUES: 0.183}  # section 5.3: share of sensitive tokens
# Table 3: (model, policy function) → perplexity, ε.
TABLE_3: dict[tuple[str, str], tuple[float, float | None]] = {
    ("no DP", ""): (20.47, None),
    ("DPSGD", ""): (27.05, 2.58),
    (REDACTED, ENTITIES): (24.30, None),
    (SDP, ENTITIES): (22.56, 2.58),
    (REDACTED, CONTEXTUAL): (38.66, None),
    (SDP, CONTEXTUAL): (25.61, 2.48),
}
# Of the text; one row of the table says 10.40 % instead of 16.4 %.
TABLE_3_FLAGGED = {ENTITIES: 0.164, CONTEXTUAL: 0.348}
TRANSFORMER_EPSILON, TRANSFORMER_NORM = 2.58, 1.0  # the paper does not state the C of Table 3

MADE = "dialogues made by evaluation.demo_tables.support_dialogues, in the manner of CustomerSim"
DIALOGUES_MADE = 10_000  # CustomerSim has as many
_TRAIN_SEED, _TEST_SEED = 0, 1  # of those

# What a row may say of its ε: that a theorem covers it, that none does, or that there is no noise.
NOMINAL, NONE = "nominal, no guarantee", "none"
GUARANTEED = "guaranteed, the tokens taken as public"
FLAGGED_ONLY = "guaranteed for what is flagged, all else and the tokens taken as public"
LARGE_DELTA = f"{NOMINAL}: δ is not below 1/N"


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
        return _no_noise()

    def _uniform(self, model: Lstm, flagged: Flagged, count: Count) -> dict[str, Any]:
        reported, records = NOISE[self.key.text, DPSGD], flagged.records
        recipe = Recipe(**self.size["noisy"], max_grad_norm=reported.max_grad_norm)
        sigma = noise_for(len(records), recipe, reported.epsilon)
        events = train_model(model, records, recipe, sigma, self.key.seed, count)
        says = covered(GUARANTEED, len(records))
        return _noise(sigma, recipe.max_grad_norm, says, epsilon(events, DELTA), events)

    def _selective(self, model: Lstm, flagged: Flagged, count: Count) -> dict[str, Any]:
        reported, rate = NOISE[self.key.text, SDPSGD], self.size["open"]["learning_rate"]
        norm, step = reported.max_grad_norm, self.size["step"]
        recipe = Recipe(**self.size["noisy"] | {"learning_rate": rate, "max_grad_norm": norm})
        texts = flagged.records, flagged.flags
        spent = SelectiveDpsgd(model, *texts, recipe, step, reported.epsilon, DELTA, count).train()
        sigma, nominal = spent.noise_multiplier, spent.nominal(DELTA)
        noise = _noise(sigma, norm, NOMINAL, nominal, spent.events)
        return noise | {"proved": _finite(spent.proved(DELTA)), "releases": spent.releases}

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
            return _no_noise()
        if name == TRANSFORMER_DPSGD:
            return self._with_noise(model, GUARANTEED)
        (policy,) = (p for p in POLICIES if name in (redacted(p), selective(p)))
        self._on_redacted(model, policy)
        if name == redacted(policy):
            noise = _no_noise()
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
        says = covered(says, len(records))
        return _noise(sigma, norm, says, epsilon(events, DELTA), [*before, *events])

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


def _no_noise() -> dict[str, Any]:
    return {"noise_multiplier": 0.0, "says": NONE, "epsilon": None}


def _noise(
    sigma: float, norm: float, says: str, spent: float, events: Sequence[Event]
) -> dict[str, Any]:
    return {
        "noise_multiplier": sigma,
        "max_grad_norm": norm,
        "says": says,
        "epsilon": _finite(spent),
        "events": [event_to_dict(event) for event in events],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


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


def accuracy_difference(results: Results, text: str, side: str) -> Interval:
    """Return the accuracy of membership inference on S-DPSGD less that without DP."""
    path = ("membership", side, "accuracy")
    return difference(*(results.values((text, model), *path) for model in (SDPSGD, NO_DP)))


def comparisons(results: Results) -> Section:
    """Return what the verdict rests on."""
    lines = [
        *(line for text in LSTMS for line in _lstm_comparisons(results, text)),
        *_anonymisation_comparisons(results),
        *(line for policy in POLICIES for line in _transformer_comparisons(results, policy)),
    ]
    names = ("comparison", "found", "the claim needs", "paper")
    rows = [dict(zip(names, line, strict=True)) for line in lines]
    note = (
        "Taken seed by seed; an interval that reaches across its bound tells nothing. "
        "Perplexities are of the same held-out tokens; exposures, in bits, are compared at equal "
        "perplexity; membership inference by its accuracy."
    )
    return Section("What the verdict rests on", rows, [note])


def _lstm_comparisons(results: Results, text: str) -> Iterator[tuple[str, ...]]:
    ours, theirs = TABLE_2[text, SDPSGD].perplexity, TABLE_2[text, DPSGD].perplexity
    found = str(perplexity_ratio(results, text, SDPSGD, DPSGD))
    yield f"{text}: perplexity, S-DPSGD ÷ DPSGD", found, "below 1", f"{ours / theirs:.3f}"
    bits = exposure_at_equal_perplexity(results, text, SDPSGD, NO_DP)
    yield f"{text}: exposure, S-DPSGD less no DP", _bits(bits), "below 0", ""
    for side in (SWAPPED, HELD_OUT):
        found = str(accuracy_difference(results, text, side))
        yield f"{text}: accuracy, {side}, S-DPSGD less no DP", found, "below 0", ""


def _anonymisation_comparisons(results: Results) -> Iterator[tuple[str, ...]]:
    guess = results.facts["texts"][WIKITEXT]["vocabulary"]
    private = f"{WIKITEXT}: perplexity of private tokens"
    found = perplexity_ratio(results, WIKITEXT, SDPSGD, ANONYMISED, "private_groups")
    yield f"{private}, S-DPSGD ÷ anonymised", str(found), "below 1", ""
    values = results.values((WIKITEXT, SDPSGD), "private_perplexity").values()
    blind = f"below {guess:,}, a blind guess"
    yield f"{private}, S-DPSGD", geometric_mean(list(values)).text(1), blind, ""
    bits = exposure_at_equal_perplexity(results, WIKITEXT, SDPSGD_MISSED, ANONYMISED_MISSED)
    what = "exposure, canary missed, S-DPSGD less anonymised"
    yield f"{WIKITEXT}: {what}", _bits(bits), "below 0", ""


def _transformer_comparisons(results: Results, policy: str) -> Iterator[tuple[str, ...]]:
    ours, _ = TABLE_3[SDP, policy]
    against = {"DPSGD": (TRANSFORMER_DPSGD, ""), REDACTED: (redacted(policy), policy)}
    for name, (model, of) in against.items():
        found = str(perplexity_ratio(results, WIKITEXT, selective(policy), model))
        theirs, _ = TABLE_3[name, of]
        what = f"transformer, {policy}: perplexity, S-DP ÷ {name}"
        yield what, found, "below 1", f"{ours / theirs:.3f}"


def _bits(found: Interval | None) -> str:
    return "perplexities never met" if found is None else str(found)


def utility(results: Results, text: str) -> Section:
    """Return perplexity, accuracy and ε of one text set, beside the paper's."""
    facts = results.facts["texts"][text]
    notes = [
        f"Training rows: {facts['rows']:,}, as {facts['records']:,} records with the canaries; "
        f"held-out rows: {facts['heldout']:,} with {facts['tokens']:,} tokens; vocabulary: "
        f"{facts['vocabulary']:,}.",
        f"Private tokens: {facts['share']:.1%} of the training tokens; paper: {FLAGGED[text]:.1%}.",
    ]
    notes += [facts["source"]] if facts["source"] else []
    rows = [_utility_line(results, text, model) for model in LSTMS[text]]
    return Section(f"{text}: utility, δ = {DELTA:g}", rows, notes)


def _utility_line(results: Results, text: str, model: str) -> dict[str, str]:
    rows = list(results.by_seed(text, model).values())
    known, noise = TABLE_2.get((text, model)), NOISE.get((text, model))
    private = geometric_mean([row["private_perplexity"] for row in rows])
    return {
        "model": model,
        "perplexity": geometric_mean([row["perplexity"] for row in rows]).text(2),
        "top-1": mean_of([row["accuracy"] for row in rows], 0.0, 1.0).text(3),
        "private tokens: perplexity": private.text(1),
        "σ": _sigma(rows),
        "C": f"{rows[0]['max_grad_norm']:g}" if "max_grad_norm" in rows[0] else "",
        "ε": _largest(rows, "epsilon"),
        "what ε is": rows[0]["says"],
        "paper: perplexity": f"{known.perplexity:.2f} ± {known.spread:.2f}" if known else "",
        "paper: top-1": f"{known.accuracy:.2f}" if known else "",
        "paper: σ": f"{noise.noise_multiplier:g}" if noise else "",
        "paper: ε": f"{noise.epsilon:g}" if noise else "",
        "seeds": str(len(rows)),
    }


def _sigma(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return σ, from the least to the largest where seeds differ."""
    values = sorted(row["noise_multiplier"] for row in rows)
    ends = dict.fromkeys(f"{value:.3f}" for value in (values[0], values[-1]))
    return " to ".join(ends) if values[-1] else ""


def _largest(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    """Return the largest ε over seeds, rounded up; "none" where one has none."""
    values = [row[name] for row in rows]
    return "none" if None in values else up_decimals(max(values))


def attacks(results: Results, text: str) -> Section:
    """Return what canaries and membership inference found in one text set."""
    rows = [_attack_line(results, text, model) for model in LSTMS[text]]
    return Section(f"{text}: attacks", rows)


def _attack_line(results: Results, text: str, model: str) -> dict[str, str]:
    rows = list(results.by_seed(text, model).values())
    most = math.log2(rows[0]["candidates"])
    found = {
        f"{what}: {side}": mean_of([r["membership"][side][name] for r in rows], 0.0, 1.0).text(3)
        for side in (SWAPPED, HELD_OUT)
        for what, name in (("accuracy", "accuracy"), ("AUROC", "value"))
    }
    return {
        "model": model,
        "exposure, bits": mean_of([row["exposure"] for row in rows], 0.0, most).text(2),
        "how found": rows[0]["method"],
    } | found


def proved(results: Results) -> Section:
    """Return the nominal ε of S-DPSGD beside what can be proved."""
    note = (
        "No theorem covers the nominal ε of S-DPSGD. What can be proved is of changing what is "
        "flagged in one record, with as many tokens in the same places, to who knows everything "
        "else; see “Noisy states” and “What is missing” below."
    )
    rows = [
        _proved_line(f"{text}: {model}", list(results.by_seed(text, model).values()))
        for text, models in LSTMS.items()
        for model in models
        if model.startswith(SDPSGD)
    ]
    return Section("What ε of S-DPSGD is worth", rows, [note])


def _proved_line(name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    return {
        "model": name,
        "σ": _sigma(rows),
        "nominal ε": _largest(rows, "epsilon"),
        "private segments of one record": str(max(row["releases"] for row in rows)),
        "ε that can be proved": _largest(rows, "proved"),
    }


def two_phases(results: Results) -> Section:
    """Return perplexity and ε of the transformers, beside the paper's."""
    rows = [_transformer_line(results, model) for model in TRANSFORMERS]
    return Section("Transformers with two phases", rows, [results.facts["transformer"]])


def _transformer_line(results: Results, model: str) -> dict[str, str]:
    rows, name = list(results.by_seed(WIKITEXT, model).values()), _short(model)
    kind, _, policy = name.partition(", ")
    reported, spent = TABLE_3[kind, policy]
    return {
        "model": name,
        "flagged": f"{rows[0]['share']:.1%}" if policy else "",
        "perplexity": geometric_mean([row["perplexity"] for row in rows]).text(2),
        "σ": _sigma(rows),
        "ε": _largest(rows, "epsilon"),
        "what ε is": rows[0]["says"],
        "paper: flagged": f"{TABLE_3_FLAGGED[policy]:.1%}" if policy else "",
        "paper: perplexity": f"{reported:.2f}",
        "paper: ε": "" if spent is None else f"{spent:g}",
        "seeds": str(len(rows)),
    }


def _short(model: str) -> str:
    return model.removeprefix(f"{TRANSFORMER}, ")


def draw(results: Results) -> Figure:
    """Draw a row of panels for each text set, and one for transformers."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 3.4 * (len(LSTMS) + 1)), layout="constrained")
    panels = figure.subplots(len(LSTMS) + 1, 3)
    for line, (text, models) in zip(panels, LSTMS.items(), strict=False):
        reported = {m: TABLE_2[text, m].perplexity for m in models if (text, m) in TABLE_2}
        _draw_perplexities(line[0], text, _perplexities(results, text, models), reported)
        _draw_exposures(line[1], results, text)
        _draw_memberships(line[2], results, text)
    found = _perplexities(results, WIKITEXT, TRANSFORMERS)
    reported = {", ".join(filter(None, key)): value for key, (value, _) in TABLE_3.items()}
    ours = {_short(model): values for model, values in found.items()}
    _draw_perplexities(panels[-1][0], f"{TRANSFORMER}s", ours, reported)
    for empty, drawn in zip(panels[-1][1:], panels[0][1:], strict=True):
        legend_beside(empty, drawn)
    size = results.settings["size"]
    figure.suptitle(f"Selective DP, δ = {DELTA:g} ({size}); ε of S-DPSGD is nominal", fontsize=10)
    return figure


def _perplexities(results: Results, text: str, models: Sequence[str]) -> dict[str, list[float]]:
    return {m: list(results.values((text, m), "perplexity").values()) for m in models}


def _draw_perplexities(
    panel: Any, title: str, found: Mapping[str, list[float]], reported: Mapping[str, float]
) -> None:
    seed_bars(panel, found)
    for place, name in enumerate(found):
        if name in reported:
            panel.plot([reported[name]], [place], "rx")
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

    def sections(self, results: Results) -> Iterator[Section]:
        """See `Study`."""
        yield comparisons(results)
        for text in LSTMS:
            yield utility(results, text)
            yield attacks(results, text)
        yield proved(results)
        yield two_phases(results)

    def figure(self, results: Results) -> Figure:
        """See `Study`."""
        return draw(results)

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
