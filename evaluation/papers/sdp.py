"""Paper 004: does protecting private tokens alone leave more to learn?

Shi, Cui, Li, Jia and Yu 2022, "Selective Differential Privacy for Language Modeling": LSTMs with
Selective-DPSGD as published, beside DPSGD, no noise and anonymised text, attacked by canaries and
membership inference; transformers that are trained in two phases.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from time import monotonic
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
    folder_shape,
    gpt2_shape,
    noise_for,
    perplexity,
    seeded,
    spending,
    train_model,
)
from evaluation.papers.lstm import Lstm, SelectiveDpsgd
from evaluation.papers.plots import (
    crosses,
    legend_beside,
    make_logarithmic,
    make_panels,
    name_panel,
    seed_line,
)
from evaluation.papers.run_context import RunContext
from evaluation.papers.study import Study, main, paper_cells, reported
from evaluation.papers.study_rows import Results, finite
from evaluation.results_store import Key
from evaluation.utility.dp_fitting import Count, MakePolicy, Recipe
from twinset.config import PolicyConfig
from twinset.data.tokenization import TokenisedRecords
from twinset.detectors import detector_named
from twinset.errors import InputError
from twinset.models.base_model import BaseModel, context_length, load_base
from twinset.policies import make_policy
from twinset.policies.selective import MaskedPhase, PublishedSelective
from twinset.pretraining.tokenizer import train_tokenizer
from twinset.privacy.accounting.events import MaskedAccess, event_to_dict

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


def covered(says: str, records: int) -> str:
    """Return what ε is called; as in `twinset`, nothing is guaranteed with δ of 1/N or more.

    >>> covered(GUARANTEED, 1_000), covered(GUARANTEED, 20_000)
    ('guaranteed, the tokens taken as public', 'nominal, no guarantee: δ is not below 1/N')
    """
    return says if records * DELTA < 1 else LARGE_DELTA


def train_privately(
    model: Any,
    records: TokenisedRecords,
    recipe: Recipe,
    target: float,
    says: str,
    seed: int,
    count: Count,
    make: MakePolicy = make_policy,
) -> dict[str, Any]:
    """Train with DPSGD that spends ε = `target`; return what a row says of its noise and its ε."""
    sigma = noise_for(len(records), recipe, target, DELTA)
    events = train_model(model, records, recipe, sigma, seed, count, make)
    noise = {"noise_multiplier": sigma, "max_grad_norm": recipe.max_grad_norm}
    return noise | {"says": covered(says, len(records))} | spending(events, DELTA)


def _phase(kind: type[MaskedPhase | PublishedSelective], policy: str) -> MakePolicy:
    """Return a maker of the policy of phase 1 or 2, as published."""
    options = PolicyConfig(noise_policy="selective", policy_form="published", detector=policy)
    return lambda params: kind(replace(params, options=options))


def perplexity_ratio(
    results: Results, text: str, ours: str, theirs: str, groups: str = "test_groups"
) -> Interval:
    """Return the ratio of two models' perplexities on the same held-out tokens."""
    return ratio(*(results.arrays((text, model), groups) for model in (ours, theirs)))


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
    yield f"{text}: perplexity, S-DPSGD ÷ DPSGD", *_ratios(results, text, SDPSGD, DPSGD)
    bits = exposure_at_equal_perplexity(results, text, SDPSGD, NO_DP)
    yield f"{text}: exposure, S-DPSGD less no DP", bits or UNEQUAL, "below 0", None
    for side in (SWAPPED, HELD_OUT):
        models = (text, SDPSGD), (text, NO_DP)
        less = results.difference(*models, "membership", side, "accuracy")
        yield f"{text}: accuracy, {side}, S-DPSGD less no DP", less, "below 0", None


def _anonymisation_comparisons(results: Results) -> Iterator[Line]:
    guess = results.facts["texts"][WIKITEXT]["vocabulary"]
    private = f"{WIKITEXT}: perplexity of private tokens"
    below = perplexity_ratio(results, WIKITEXT, SDPSGD, ANONYMISED, "private_groups")
    yield f"{private}, S-DPSGD ÷ anonymised", below, "below 1", None
    mean = results.geometric((WIKITEXT, SDPSGD), "private_perplexity").text(1)
    yield f"{private}, S-DPSGD", mean, f"below {guess:,}, a blind guess", None
    bits = exposure_at_equal_perplexity(results, WIKITEXT, SDPSGD_MISSED, ANONYMISED_MISSED)
    what = "exposure, canary missed, S-DPSGD less anonymised"
    yield f"{WIKITEXT}: {what}", bits or UNEQUAL, "below 0", None


def _transformer_comparisons(results: Results, policy: str) -> Iterator[Line]:
    for name, theirs in (("DPSGD", TRANSFORMER_DPSGD), (REDACTED, redacted(policy))):
        what = f"transformer, {policy}: perplexity, S-DP ÷ {name}"
        yield what, *_ratios(results, WIKITEXT, selective(policy), theirs)


def _ratios(results: Results, text: str, ours: str, theirs: str) -> tuple[Interval, str, str]:
    """Return a ratio of perplexities, what the claim needs, and the paper's own ratio."""
    a, b = (REPORTED[text, model]["perplexity"] for model in (ours, theirs))
    return perplexity_ratio(results, text, ours, theirs), "below 1", f"{a / b:.3f}"


def utility(results: Results, text: str, model: str) -> dict[str, object]:
    """Return perplexity, accuracy and ε of a model, beside the paper's: a line of a table."""
    level, row = (text, model), results.first((text, model))
    private = "private_perplexity"
    return {
        "model": _short(model),
        "perplexity": results.geometric(level, "perplexity").text(2),
        "top-1": results.share(level, "accuracy"),
        **(
            {"private tokens: perplexity": results.geometric(level, private).text(1)}
            if private in row
            else {"flagged": f"{row['share']:.1%}" if "share" in row else None}
        ),
        "σ": _sigma(results, level),
        "C": row.get("max_grad_norm"),
        "ε": results.largest(level, "epsilon"),
        "what ε is": row["says"],
        **(_proved(results, level) if "proved" in row else {}),
        "seeds": len(results.by_seed(*level)),
        **paper_cells(REPORTED.get(level, {})),
    }


def _proved(results: Results, level: Key) -> dict[str, object]:
    """Return what can be proved where the ε of S-DPSGD is nominal, and what that rests on."""
    return {
        "ε that can be proved": results.largest(level, "proved"),
        "private segments of one record": max(results.values(level, "releases").values()),
    }


def _short(model: str) -> str:
    return model.removeprefix(f"{TRANSFORMER}, ")


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
        f"{what}: {side}": results.share(level, "membership", side, name)
        for side in (SWAPPED, HELD_OUT)
        for what, name in (("accuracy", "accuracy"), ("AUROC", "value"))
    }


_SLANTED: dict[str, Any] = {"rotation": 20, "ha": "right", "fontsize": 7}


def _draw_perplexities(panel: Any, results: Results, text: str, models: Sequence[str]) -> None:
    for place, model in enumerate(models):
        seeds = results.values((text, model), "perplexity")
        seed_line(panel, [seeds], places=[place], form="o", color=f"C{place}")
    known = [REPORTED.get((text, model), {}).get("perplexity") for model in models]
    crosses(panel, known, color="C3", label="paper, other tokens")
    kind = f", {TRANSFORMER}s" if models == TRANSFORMERS else ""
    title, names = f"{text}{kind}: perplexity", list(map(_short, models))
    name_panel(panel, title, names, logarithmic=True, **_SLANTED)
    panel.legend(fontsize=7)


def _draw_exposures(panel: Any, results: Results, text: str) -> None:
    for place, model in enumerate(LSTMS[text]):
        for number, points in enumerate(results.values((text, model), "points").values()):
            xs, ys = ([point[name] for point in points] for name in ("perplexity", "exposure"))
            label = model if number == 0 else None
            panel.plot(xs, ys, "o-", color=f"C{place}", label=label, markersize=3, linewidth=0.8)
    make_logarithmic(panel, "x")
    panel.set_title(f"{text}: the canary's exposure, bits, while training", fontsize=9)
    panel.set_xlabel("perplexity", fontsize=8)
    panel.tick_params(labelsize=7)


def _draw_memberships(panel: Any, results: Results, text: str) -> None:
    for colour, side in (("C0", SWAPPED), ("C1", HELD_OUT)):
        path = "membership", side, "accuracy"
        seeds = [results.values((text, model), *path) for model in LSTMS[text]]
        seed_line(panel, seeds, form="o", color=colour, label=side)
    panel.axhline(0.5, color="0.6", linestyle=":")
    name_panel(panel, f"{text}: accuracy of membership inference", LSTMS[text], **_SLANTED)


class Sdp(Study):
    """Does protecting private tokens alone leave more to learn? Shi, Cui, Li, Jia and Yu 2022."""

    name = "sdp"

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
        named = [name for name in self.options("optional_files") if name in self.paths]
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
        make = self._transformer_row if key.model in TRANSFORMERS else self._lstm_row
        return make(key, run)

    def _lstm_row(self, key: Run, run: RunContext) -> dict[str, Any]:
        """Return scores, attacks, ε, and what they came from."""
        corpus, counter, started = self._corpora[key.text], run.counter("training"), monotonic()
        model = seeded(lambda v: Lstm(v, self.size["width"]), len(corpus.tokenizer), key.seed)
        points: list[dict[str, Any]] = []

        def look(done: int, total: int) -> None:  # after all, half, … of the steps
            counter(done, total)
            if done in {math.ceil(total / 2**k) for k in range(self.size["points"])}:
                points.append(self._point(model, corpus, key.seed))

        spent = self._train_lstm(model, key, corpus, look)
        seconds, test = monotonic() - started, scored(model, corpus.tested)
        return {
            **points[-1],
            "accuracy": test.accuracy,
            "private_perplexity": perplexity(test.private_groups),
            "membership": membership(model, Sides.of(corpus, self.size["members"]), key.seed),
            **spent,
            "points": points,
            "seconds": round(seconds, 1),
            "test_groups": test.groups.round(4).tolist(),
            "private_groups": test.private_groups.round(4).tolist(),
        }

    def _train_lstm(self, model: Lstm, key: Run, corpus: Corpus, count: Count) -> dict[str, Any]:
        seen = key.model not in (ANONYMISED_MISSED, SDPSGD_MISSED)
        rows = planted(corpus.train, canary(self.size["digits"]), seen)
        if key.model in (ANONYMISED, ANONYMISED_MISSED):
            rows = [row.redacted for row in rows]
        flagged, known = corpus.encoded(rows), REPORTED.get((key.text, key.model), {})
        if key.model in (SDPSGD, SDPSGD_MISSED):
            return self._train_selectively(model, flagged, key.text, count)
        if key.model == DPSGD:
            recipe = Recipe(**self.size["noisy"], max_grad_norm=known["max_grad_norm"])
            how = known["epsilon"], GUARANTEED, key.seed, count
            return train_privately(model, flagged.records, recipe, *how)
        recipe = Recipe(**self.size["open"])
        train_model(model, flagged.records, recipe, 0.0, key.seed, count)
        return NO_NOISE

    def _train_selectively(
        self, model: Lstm, flagged: Flagged, text: str, count: Count
    ) -> dict[str, Any]:
        known, rate = REPORTED[text, SDPSGD], self.size["open"]["learning_rate"]
        norm, how = known["max_grad_norm"], (self.size["step"], known["epsilon"], DELTA, count)
        recipe = Recipe(**self.size["noisy"] | {"learning_rate": rate, "max_grad_norm": norm})
        spent = SelectiveDpsgd(model, flagged.records, flagged.flags, recipe, *how).train()
        return {
            "noise_multiplier": spent.noise_multiplier,
            "max_grad_norm": norm,
            "says": NOMINAL,
            **spending(spent.events, DELTA),
            "proved": finite(spent.proved(DELTA)),
            "releases": spent.releases,
        }

    def _point(self, model: Lstm, corpus: Corpus, seed: int) -> dict[str, Any]:
        secret, exact = canary(self.size["digits"]), self.size["exact"]
        exposed = canary_exposure(model, corpus.tokenizer, secret, exact, seed)
        return {
            "perplexity": perplexity(scored(model, corpus.tested).groups),
            "exposure": exposed.bits,
            "method": f"{exposed.method}, of {exposed.space:,}",
            "candidates": exposed.space,
        }

    def _transformer_row(self, key: Run, run: RunContext) -> dict[str, Any]:
        """Return perplexity, ε, and what they came from."""
        corpus, base, started = self._transformer_corpus, self.size.get("base"), monotonic()
        shape = folder_shape(Path(base)) if base else gpt2_shape(**self.size["transformer"])
        model = seeded(shape.start, len(corpus.tokenizer), key.seed)
        spent = self._train_transformer(model, key, corpus, run)
        seconds, test = monotonic() - started, scored(model, corpus.tested)
        return {
            "perplexity": perplexity(test.groups),
            "accuracy": test.accuracy,
            **spent,
            "seconds": round(seconds, 1),
            "test_groups": test.groups.round(4).tolist(),
        }

    def _train_transformer(
        self, model: Any, key: Run, corpus: Corpus, run: RunContext
    ) -> dict[str, Any]:
        """Train in one phase or two; ε of the second takes redacted texts as known."""
        count = run.counter("training")

        def train_openly(rows: Sequence[Row], make: MakePolicy = make_policy) -> None:
            records, recipe = corpus.encoded(rows).records, Recipe(**self.size["fine"])
            train_model(model, records, recipe, 0.0, key.seed, count, make)

        records = corpus.encoded(corpus.train).records
        recipe = Recipe(**self.size["private"], max_grad_norm=TRANSFORMER_NORM)
        if key.model == TRANSFORMER_NO_DP:
            train_openly(corpus.train)
            return NO_NOISE
        if key.model == TRANSFORMER_DPSGD:
            how = TRANSFORMER_EPSILON, GUARANTEED, key.seed, count
            return train_privately(model, records, recipe, *how)
        (policy,) = (p for p in POLICIES if key.model in (redacted(p), selective(p)))
        flagged = self._flagged_by(policy, run.counter("rows flagged"))
        share, rows = corpus.encoded(flagged).share, [row.redacted for row in flagged]
        name = f"transformer of redacted texts, {policy}, seed {key.seed}"
        run.train_once(name, model, partial(train_openly, rows, _phase(MaskedPhase, policy)))
        if key.model == redacted(policy):
            return NO_NOISE | {"share": share}
        second = TRANSFORMER_EPSILON, FLAGGED_ONLY, key.seed, count
        make = _phase(PublishedSelective, policy)
        spent = train_privately(model, records, recipe, *second, make)
        events = [event_to_dict(MaskedAccess(policy)), *spent["events"]]
        return spent | {"events": events, "share": share}

    def tables(self, results: Results) -> Mapping[str, Any]:
        """See `Study`."""
        return {
            "comparisons": comparisons(results),
            "utility": {t: [utility(results, t, m) for m in LSTMS[t]] for t in LSTMS},
            "attacks": {t: [attacks(results, t, m) for m in LSTMS[t]] for t in LSTMS},
            "two_phases": [utility(results, WIKITEXT, model) for model in TRANSFORMERS],
            "flagged": {t: REPORTED[t, SDPSGD]["flagged"] for t in LSTMS},
        }

    def figure(self, results: Results) -> Figure:
        """Draw a row of panels for each text set, and one for transformers."""
        title = f"Selective DP, δ = {DELTA:g} ({results.settings['size']}); ε of S-DPSGD is nominal"
        rows = len(LSTMS) + 1
        figure, panels = make_panels(title, rows, 3, (14, 3.6 * rows))
        for line, (text, models) in zip(panels, LSTMS.items(), strict=False):
            _draw_perplexities(line[0], results, text, models)
            _draw_exposures(line[1], results, text)
            _draw_memberships(line[2], results, text)
        _draw_perplexities(panels[-1][0], results, WIKITEXT, TRANSFORMERS)
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

    def _flagged_by(self, policy: str, count: Count) -> list[Row]:
        """Return the training rows of WikiText-2 with what a detector flags, looked for once.

        Raises:
            InputError: the detector's library is not installed.
        """
        if policy not in self._flagged:
            rows, texts = list[Row](), [row.text for row in self._transformer_corpus.train]
            for text, spans in zip(texts, detector_named(policy).spans(texts), strict=True):
                rows.append(Row(text, tuple((start, end, policy) for start, end in spans)))
                count(len(rows), len(texts))
            self._flagged[policy] = rows
        return self._flagged[policy]


if __name__ == "__main__":
    main(Sdp)
