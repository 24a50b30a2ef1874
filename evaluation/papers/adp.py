"""Paper 000: does adaptive noise cost less than DP-SGD, and still hide a canary?

Wu, Gong and Xiong 2022, "Adaptive Differential Privacy for Language Modeling": a transformer
decoder on WikiText without noise, with DP-SGD, and with noise that follows how unusual a public
model finds each text. Beside them stand two references that the paper lacks: clipping without
noise, and DP-SGD that spends the same ε.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product
from statistics import fmean
from statistics import geometric_mean as middle
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from evaluation.audit.mechanism import LEAST_SHARE
from evaluation.leakage.canaries import Canary, numbered
from evaluation.leakage.exposure import UNKNOWN, Exposure, exposure
from evaluation.leakage.exposure_extrapolation import extrapolated_exposure
from evaluation.papers.intervals import Interval, geometric_mean, mean_of
from evaluation.papers.language_model import (
    gpt2_shape,
    nats_of_groups,
    noise_for,
    perplexity,
    plan_of,
    seeded,
    tokenised,
    train_model,
)
from evaluation.papers.noise import ATTACK, PolicyMaker, attack_row, attack_tables
from evaluation.papers.plots import crosses, legend_beside, make_panels, name_panel, seed_line
from evaluation.papers.run_context import RunContext
from evaluation.papers.study import Study, main, paper_cells, reported
from evaluation.papers.study_rows import Results, finite
from evaluation.papers.texts import Subwords, drawn, spaced
from evaluation.results_store import Key
from evaluation.utility.dp_fitting import Recipe
from twinset.config import PolicyConfig
from twinset.config.plan import Plan
from twinset.data.tokenization import TokenisedRecords
from twinset.models.base_model import BaseModel, load_base
from twinset.policies import MechanismParams, NoisePolicy
from twinset.policies.adaptive import normalised_over
from twinset.privacy.accounting.accountant import epsilon
from twinset.privacy.accounting.events import IndividualGaussian, event_from_dict, event_to_dict
from twinset.privacy.accounting.rounding import up_decimals
from twinset.privacy.mechanism.poisson import poisson_batches
from twinset.privacy.mechanism.privacy_weight import WeightScale
from twinset.privacy.mechanism.randomness import Randomness
from twinset.training.record_weights import fit_scale, text_nats

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NO_DP, DP_SGD, ADP = "No-DP", "DP-SGD", "ADP"
SIGMAS = (1.0, 5.0)
DELTA = 1e-5  # the paper states none
TABLE_1 = reported("adp", "model", "sigma")
# Section 5.2: "we injected "My ID is 955320" into the Wikitext-103 dataset for 10, 100, and 1000
# times". The exposures are drawn in figure 1 and stand nowhere in numbers.
SECRET, DIGITS, SENTENCE = 955_320, 6, "My ID is"
LARGEST_EXPOSURE = DIGITS * math.log2(10)

PUBLISHED, LOGARITHMIC = "adaptive, published", "adaptive, published, of logarithms"
SOUND = "adaptive, sound"
ADAPTIVE = (PUBLISHED, LOGARITHMIC, SOUND)
POLICIES = {
    PUBLISHED: PolicyConfig("adaptive", "published"),
    LOGARITHMIC: PolicyConfig("adaptive", "published"),
    SOUND: PolicyConfig("adaptive", "sound"),
}
# What each form is to be compared with: clipping alone where nothing of its ε is left, else DP-SGD
# whose noise is set to spend, at the same δ, the ε that the form spends at the same σ.
CLIPPED = "clipped, no noise"
LARGEST = "DP-SGD, largest ε of sound"
MEAN = "DP-SGD, mean ε of sound"
NOMINAL = "DP-SGD, nominal ε of logarithms"
EQUAL = {LARGEST: SOUND, MEAN: SOUND, NOMINAL: LOGARITHMIC}
EQUAL_IN = {CLIPPED: "clipping alone", LARGEST: "largest ε", MEAN: "mean ε", NOMINAL: "nominal ε"}
FORMS = (DP_SGD, *ADAPTIVE, *EQUAL)
MODELS = ((NO_DP, 0.0), (CLIPPED, 0.0), *((form, sigma) for sigma in SIGMAS for form in FORMS))
PLANTED = (0, 10, 100, 1000)  # copies of the canary; perplexities are of models that saw none
# Of those references: 10 copies are not learned even without noise, 1000 mostly known by heart.
PLANTED_IN = {CLIPPED: (0, 100), LARGEST: (0, 100), MEAN: (0,), NOMINAL: (0,)}
ATTACKED = (PUBLISHED, SOUND)  # where weights come from makes no difference


Model = tuple[str, float]  # how it was trained, and σ


class Run(NamedTuple):
    """Key of a model: how it was trained, under what noise, on how many canaries."""

    form: str
    sigma: float
    planted: int
    seed: int


class Attack(NamedTuple):
    """Key of an attack on adaptive noise. It reads no text and knows no seed: it is made once."""

    kind: str
    form: str
    sigma: float
    seed: int = 0


def planted_in(form: str) -> tuple[int, ...]:
    """Return how often the canary is planted where models are trained so."""
    return PLANTED_IN.get(form, PLANTED)


def canary(copies: int) -> Canary:
    """Return the paper's canary, planted so often."""
    sentence = next(f for f in numbered(DIGITS) if f.pattern.startswith(SENTENCE))
    return Canary(sentence, SECRET, (), copies)


def weights_of(form: str, nats: Tensor, scale: WeightScale) -> Tensor | None:
    """(N,) nats per token → (N,) privacy weights, where noise is adaptive.

    The published form normalises perplexities over the private texts: to the letter, which leaves
    one odd text to decide all weights, or their logarithms. The sound one has public constants.
    """
    if form not in POLICIES:
        return None
    if form == SOUND:
        return scale.weights(nats)
    return normalised_over(nats.exp() if form == PUBLISHED else nats)


def multiplier_of(form: str, sigma: float) -> float:
    """Return the noise over the largest change that *any* text can make.

    At the same σ a text of privacy weight 1 has the same noise over the largest change that it can
    make, in every form. In the sound form that change is `LEAST_SHARE` of C, and C for texts of
    weight 0.
    """
    return sigma * LEAST_SHARE if form == SOUND else sigma


def policy_maker(form: str, weights: Tensor | None) -> PolicyMaker:
    """Return what makes the policy of one way of training, of (N,) privacy weights."""
    least_share = LEAST_SHARE if form == SOUND else 1.0
    return PolicyMaker(POLICIES.get(form), least_share=least_share, weights=weights)


def mean_noise(policy: NoisePolicy, multiplier: float, sigma: float) -> float:
    """Return the mean standard deviation of the noise so far, over σC; 0 where there is none."""
    scales: list[float] = policy.state().get("scales", [])
    return fmean(scales) if scales else multiplier / sigma if sigma else 0.0


def matched_epsilon(form: str, sigma: float, weights: Tensor, plan: Plan) -> float:
    """Return the ε that DP-SGD is to spend: what the form it is compared with spends at σ.

    Args:
        form: one of `EQUAL`.
        sigma: of the other form.
        weights: (N,) privacy weights, the other form's.
        plan: batches and steps of both.
    """
    if form == NOMINAL:
        return nominal_epsilon(sigma, weights, plan)
    noise = multiplier_of(SOUND, sigma)
    event = IndividualGaussian(noise, plan.sample_rate, plan.steps, LEAST_SHARE)
    return epsilon([event], DELTA) if form == LARGEST else mean_epsilon(event, weights)


def mean_epsilon(event: IndividualGaussian, weights: Tensor) -> float:
    """Return the mean ε over records of (N,) privacy weights, a straight line between 21 points."""
    points = np.linspace(0.0, 1.0, 21)
    known = [epsilon([event], DELTA, float(weight)) for weight in points]
    return float(np.interp(weights.numpy(), points, known).mean())


def nominal_epsilon(sigma: float, weights: Tensor, plan: Plan) -> float:
    """Return the nominal ε of the published noise over batches that are drawn anew."""
    maker, randomness = policy_maker(LOGARITHMIC, weights), Randomness.from_os()
    policy = maker(MechanismParams(sigma, 1.0, plan.sample_rate, randomness))
    for batch in poisson_batches(len(weights), plan.sample_rate, plan.steps, randomness):
        policy.release([], batch.tolist())
    return maker.nominal(DELTA) or math.inf


def _weight_quantiles(weights: Tensor | None, lines: int) -> dict[str, float] | None:
    """Return what privacy weights the lines have, and the canary where it was planted."""
    if weights is None:
        return None
    own, planted = weights[:lines], weights[lines:].tolist()
    quantiles = torch.quantile(own, torch.tensor([0.1, 0.5, 0.9], dtype=own.dtype)).tolist()
    known = dict(zip(("10 %", "median", "90 %"), quantiles, strict=True))
    return known | {"mean": float(own.mean())} | ({"canary": planted[0]} if planted else {})


def relative(results: Results, ours: Model, theirs: Model) -> Interval:
    """Return the test perplexity of one model over that of another, seed by seed.

    One seed has no interval: whatever noise was drawn once, more test lines do not tell.
    """
    a, b = (results.values((*model, 0), "perplexity_test") for model in (ours, theirs))
    return geometric_mean([a[seed] / b[seed] for seed in a])


def exposed(results: Results, *level: str | float) -> Interval:
    """Return the exposure of the canary in a model: form, σ, and how often it was planted."""
    return results.mean(level, "exposure", least=0.0, most=LARGEST_EXPOSURE)


def utility(results: Results) -> list[dict[str, object]]:
    """Return loss, perplexity and ε, beside the paper's, of models that saw no canary."""
    return [_utility(results, *model) for model in MODELS]


def _utility(results: Results, form: str, sigma: float) -> dict[str, object]:
    level, noisy = (form, sigma, 0), sigma > 0
    losses = [math.log(value) for value in results.values(level, "perplexity_test").values()]
    noise = fmean(results.values(level, "mean_noise").values())
    most, least = (guaranteed(results, level, weight) for weight in (1.0, 0.0))
    nominal = largest_nominal(results, form, sigma)
    return {
        "trained with": form,
        "σ": f"{sigma:g}",
        "loss, nats a token": mean_of(losses),
        "perplexity, test": results.geometric(level, "perplexity_test").text(1),
        f"÷ {DP_SGD}": relative(results, (form, sigma), (DP_SGD, sigma)) if noisy else None,
        "noise ÷ σC": f"{noise:.3g}" if noisy else None,
        "ε, nominal": least if form in (DP_SGD, *EQUAL) else nominal,
        "ε guaranteed, ρ = 1": most,
        "ε guaranteed, ρ = 0": least,
        **results.effort(level, "records_per_second", "lines/s"),
        **paper_cells(TABLE_1.get((ADP if form in ADAPTIVE else form, sigma), {})),
    }


def guaranteed(results: Results, level: Key, weight: float = 0.0) -> str:
    """Return the largest ε over seeds, rounded up, that a theorem gives lines of a privacy weight.

    It is that of today's accountant, which may be tighter than the rows are old.
    """
    events = [map(event_from_dict, row) for row in results.values(level, "events").values()]
    largest = max(epsilon(list(several), DELTA, weight) for several in events)
    return "none" if math.isinf(largest) else up_decimals(largest)


def largest_nominal(results: Results, form: str, sigma: float) -> str | None:
    """Return the largest nominal ε over seeds; None of a form that has none."""
    published = form in (PUBLISHED, LOGARITHMIC)
    return results.largest((form, sigma, 0), "epsilon_nominal") if published else None


def at_equal_epsilon(results: Results) -> list[dict[str, object]]:
    """Return what adaptive noise changes where both spend as much, or neither adds any noise."""
    compared = {CLIPPED: PUBLISHED, NOMINAL: LOGARITHMIC, LARGEST: SOUND, MEAN: SOUND}
    return [
        _at_equal_epsilon(results, (form, sigma), (reference, sigma * (reference in EQUAL)))
        for reference, form in compared.items()
        for sigma in SIGMAS
    ]


def _at_equal_epsilon(results: Results, ours: Model, theirs: Model) -> dict[str, object]:
    (form, sigma), (reference, _) = ours, theirs
    values = results.values((*theirs, 0), "epsilon_matched").values()
    matched = None if None in values else up_decimals(max(values))
    less = {
        f"exposure less, {n}×": results.difference((*ours, n), (*theirs, n), "exposure").text(1)
        for n in planted_in(reference)[1:]
    }
    return {
        "trained with": form,
        "compared with": reference,
        "equal in": EQUAL_IN[reference],
        "σ": f"{sigma:g}",
        "ε, adaptive": matched or largest_nominal(results, *ours),
        "ε, compared with": guaranteed(results, (*theirs, 0)),
        "perplexity ÷": relative(results, ours, theirs),
        **less,
    }


def exposures(results: Results) -> list[dict[str, object]]:
    """Return the canary's exposure by how often it was planted."""
    return [
        {"trained with": form, "σ": f"{sigma:g}"}
        | dict.fromkeys(map("planted {}×".format, PLANTED))
        | {f"planted {n}×": exposed(results, form, sigma, n).text(1) for n in planted_in(form)}
        | {"seeds": len(results.by_seed(form, sigma, 0))}
        for form, sigma in MODELS
        if len(planted_in(form)) > 1
    ]


def less_exposed(results: Results) -> list[dict[str, object]]:
    """Return how much less the canary is exposed, where it is known without noise."""

    def less(form: str, sigma: float, copies: int, than: tuple[str, float]) -> str:
        return results.difference((form, sigma, copies), (*than, copies), "exposure").text(1)

    return [
        {
            "trained with": form,
            "planted": f"{copies}×",
            "σ": f"{sigma:g}",
            f"less {NO_DP}": less(form, sigma, copies, (NO_DP, 0.0)),
            f"less {DP_SGD}": less(form, sigma, copies, (DP_SGD, sigma)),
        }
        for form in ADAPTIVE
        for copies in PLANTED[1:]
        if exposed(results, NO_DP, 0.0, copies).above(UNKNOWN)
        for sigma in SIGMAS
    ]


def weights(results: Results) -> list[dict[str, str]]:
    """Return quantiles of privacy weights, and the canary's own."""
    rows = []
    for form in ADAPTIVE:
        lines, planted = (results.first((form, SIGMAS[0], n))["weights"] for n in PLANTED[:2])
        known = lines | {"canary": planted["canary"]}
        rows.append({"weights of": form} | {name: f"{one:.3g}" for name, one in known.items()})
    return rows


COLOURS = {NO_DP: "0.4", DP_SGD: "C3", ADP: "C1", PUBLISHED: "C1", LOGARITHMIC: "C4", SOUND: "C0"}
# A reference has the colour of the form that it is compared with.
COLOURS |= {CLIPPED: COLOURS[PUBLISHED], **{name: COLOURS[form] for name, form in EQUAL.items()}}
LINES = {CLIPPED: "D--", LARGEST: "D--", MEAN: "s:", NOMINAL: "D--"}


def _style(form: str) -> dict[str, Any]:
    return {"form": LINES.get(form, "o-"), "color": COLOURS[form], "markersize": 5}


def _draw_perplexities(panel: Any, results: Results) -> None:
    def of(form: str, sigma: float) -> dict[int, float]:
        return results.values((form, sigma, 0), "perplexity_test")

    for form in FORMS:
        seeds = [of(form, sigma) for sigma in SIGMAS]
        seed_line(panel, seeds, middle=middle, label=form, **_style(form))
    for form in (NO_DP, CLIPPED):
        bare = middle(of(form, 0.0).values())
        panel.axhline(bare, color=COLOURS[form], linestyle="--", label=form)
    panel.axhline(results.facts["vocabulary"], color="0.6", linestyle=":", label="a blind guess")
    for model in (DP_SGD, ADP):
        known = [TABLE_1[model, sigma]["paper: PPL"] for sigma in SIGMAS]
        crosses(panel, known, color=COLOURS[model], label=f"{model} (paper, other tokens)")
    names = [f"σ = {sigma:g}" for sigma in SIGMAS]
    name_panel(panel, "test perplexity per token", names, logarithmic=True)


def _draw_exposures(panel: Any, results: Results, sigma: float) -> None:
    for form, noise in MODELS:
        copies = planted_in(form)
        if noise in (0.0, sigma) and len(copies) > 1:
            seeds = [results.values((form, noise, n), "exposure") for n in copies]
            places = list(map(PLANTED.index, copies))
            gaps = {"form": "D"} if copies != PLANTED else {}  # no line over what is not known
            seed_line(panel, seeds, places=places, **_style(form) | gaps)
    panel.axhline(UNKNOWN, color="0.6", linestyle=":")
    name_panel(panel, f"exposure, bits, σ = {sigma:g}", [f"{copies}×" for copies in PLANTED])
    panel.set_ylim(0, 1.03 * LARGEST_EXPOSURE)


class Adp(Study):
    """Does adaptive noise cost less, and still hide a canary? Wu, Gong and Xiong 2022."""

    name = "adp"

    def keys(self, seeds: int) -> Iterator[Run | Attack]:
        """See `Study`."""
        yield from (Attack(ATTACK, form, sigma) for sigma in SIGMAS for form in ATTACKED)
        for copies, seed in product(PLANTED, range(seeds)):
            models = (model for model in MODELS if copies in planted_in(model[0]))
            yield from (Run(*model, copies, seed) for model in models)

    def settings(self) -> dict[str, Any]:
        """See `Study`."""
        return super().settings() | {"delta": DELTA, "least_share": LEAST_SHARE}

    def facts(self) -> Mapping[str, Any]:
        """See `Study`."""
        train = self.records(0)
        return {
            "tokens": self.tokens.description,
            "vocabulary": self.tokens.size,
            "private lines": len(train),
            "private tokens": sum(map(len, train.texts)),
            "private lines cut": train.truncated,
            "test lines": len(self._tested),
            "test tokens": sum(map(len, self._tested.texts)),
            "context": self.size["shape"]["context"],
        }

    @cached_property
    def tokens(self) -> Subwords:
        """Those of a tokenizer trained on the public lines."""
        return Subwords.of(self.lines("public", "public_lines"), self.size["vocabulary"])

    @cached_property
    def _train(self) -> list[str]:
        return self.lines("private_train", "private_lines")

    @cached_property
    def _tested(self) -> TokenisedRecords:
        return self._records(self.lines("private_test", "scored_lines"))

    def records(self, copies: int) -> TokenisedRecords:
        """Return the lines to train on, and after them the canary's copies."""
        return self._records([*self._train, *[canary(copies).text] * copies])

    def _records(self, lines: Sequence[str]) -> TokenisedRecords:
        return tokenised(map(spaced, lines), self.tokens, self.size["shape"]["context"])

    def row(self, key: Run | Attack, run: RunContext) -> Mapping[str, Any]:
        """See `Study`."""
        if isinstance(key, Attack):
            sigma = multiplier_of(key.form, key.sigma)
            return attack_row(POLICIES[key.form], sigma, self.size["trials"])
        return self._train_row(key, run)

    def _train_row(self, key: Run, run: RunContext) -> dict[str, Any]:
        """Return what a model knows, what it spent, and what it came from."""
        size, records, recipe = self.size, self.records(key.planted), Recipe(**self.size["recipe"])
        model = seeded(gpt2_shape(**size["shape"]).build, self.tokens.size, key.seed)
        weights, matched = self._weights(key.form, key.planted, run), self._matched(key, run)
        sigma = multiplier_of(key.form, key.sigma)
        if matched is not None:
            sigma = noise_for(len(records), recipe, matched, DELTA)
        maker, counter = policy_maker(key.form, weights), run.counter("training")
        clip, started = key.form == CLIPPED, monotonic()
        events = train_model(model, records, recipe, sigma, key.seed, counter, maker, clip=clip)
        seconds, counter = monotonic() - started, run.counter("scoring")
        groups = nats_of_groups(model, self._tested, self.tokens.begin, counter)
        known = self._exposure(model, key)
        return {
            "perplexity_test": perplexity(groups),
            "exposure": known.bits,
            "rank": known.rank,
            "method": known.method,
            "epsilon_most_protected": finite(epsilon(events, DELTA, 1.0)),
            "epsilon_least_protected": finite(epsilon(events, DELTA)),
            "epsilon_nominal": finite(maker.nominal(DELTA)),
            "epsilon_matched": matched,
            "mean_noise": mean_noise(maker.policy, sigma, key.sigma),
            "events": [event_to_dict(event) for event in events],
            "weights": _weight_quantiles(weights, len(self._train)),
            "seconds": round(seconds, 1),
            "records_per_second": round(recipe.epochs * len(records) / seconds, 1),
        }

    def _exposure(self, model: Any, key: Run) -> Exposure:
        tokens, many = self.tokens, self.size.get("candidates")
        asked = model, tokens.tokenizer, [tokens.begin], canary(key.planted)
        if many is None:
            return exposure(*asked)
        return extrapolated_exposure(*asked, seed=key.seed, candidates=many)

    def _matched(self, key: Run, run: RunContext) -> float | None:
        """Return the ε that the noise is set to spend, where it is another form's."""
        if key.form not in EQUAL:
            return None
        weights = self._weights(EQUAL[key.form], key.planted, run)
        assert weights is not None
        plan = plan_of(len(weights), Recipe(**self.size["recipe"]), 1.0)
        return matched_epsilon(key.form, key.sigma, weights, plan)

    def _weights(self, form: str, copies: int, run: RunContext) -> Tensor | None:
        """Return privacy weights of the records, canaries last; a model is asked for all rows once.

        The constants of privacy weights are fitted on public lines of the same length.

        Raises:
            InputError: the model cannot be used, or finds all public lines alike.
        """

        def ask() -> dict[str, Any]:
            base = load_base(self.size["public_model"], say=run.progress.say)
            public = self.lines("public", "public_lines")
            shown = self._weighed_tokens(base, drawn(public, self.size["scale_lines"]))
            origin = f"{len(shown)} lines of the public text"
            scale = fit_scale(base, shown, origin, run.counter("public lines weighed"))
            lines = self._weighed_tokens(base, [*self._train, canary(1).text])
            counter = run.counter("private lines weighed")
            nats = text_nats(base.model, base.tokenizer, lines, counter)
            return {"nats": nats, "scale": scale.to_dict()}

        known = run.once("nats per token of a public model", ask)
        nats, scale = known["nats"], WeightScale.from_dict(known["scale"])
        planted = torch.cat([nats[:-1], nats[-1:].expand(copies)])
        return weights_of(form, planted, scale)

    def _weighed_tokens(self, base: BaseModel, lines: Sequence[str]) -> list[list[int]]:
        """Return the public model's tokens of each line with its end, cut at so many."""
        ids = base.tokenizer(list(map(spaced, lines)), add_special_tokens=False)["input_ids"]
        most = self.size["weighed_tokens"]
        return [[*row, base.tokenizer.eos_token_id][:most] for row in ids]

    def tables(self, results: Results) -> Mapping[str, Any]:
        """See `Study`."""
        attacked: dict[Key, dict[str, str]] = {
            (ATTACK, form, sigma): {"attack on": form, "σ": f"{sigma:g}"}
            for form in ATTACKED
            for sigma in SIGMAS
        }
        methods = {row["method"] for row in results.rows.values() if "method" in row}
        return {
            "utility": utility(results),
            "equal": at_equal_epsilon(results),
            "exposures": exposures(results),
            "ranks": ", ".join(sorted(methods)),
            "less_exposed": less_exposed(results),
            **attack_tables(results, attacked),
            "weights": weights(results),
        }

    def figure(self, results: Results) -> Figure:
        """Draw perplexity against noise, and exposure against how often the canary was planted."""
        title, columns = f"Adaptive noise ({results.settings['size']})", 2 + len(SIGMAS)
        figure, ((first, *others, last),) = make_panels(title, 1, columns, (3.2 * columns, 3.8))
        _draw_perplexities(first, results)
        for panel, sigma in zip(others, SIGMAS, strict=True):
            _draw_exposures(panel, results, sigma)
        legend_beside(last, first)
        return figure


if __name__ == "__main__":
    main(Adp)
