"""Paper 000: does adaptive noise cost less than DP-SGD, and still hide a canary?

Wu, Gong and Xiong 2022, "Adaptive Differential Privacy for Language Modeling": a transformer
decoder on WikiText without noise, with DP-SGD, and with noise that follows how unusual a public
model finds each text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from statistics import fmean
from statistics import geometric_mean as middle
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

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
    perplexity,
    seeded,
    tokenised,
    train_model,
)
from evaluation.papers.noise import ATTACK, PolicyMaker, attack_row, attack_tables
from evaluation.papers.plots import crosses, make_panels, name_panel, seed_line
from evaluation.papers.results_store import Results, finite
from evaluation.papers.run_context import RunContext
from evaluation.papers.study import Study, main, paper_cells, reported
from evaluation.papers.texts import Subwords, drawn, spaced
from evaluation.results_store import Key
from evaluation.utility.dp_fitting import Recipe
from twinset.config import PolicyConfig
from twinset.data.tokenization import TokenisedRecords
from twinset.models.base_model import BaseModel, load_base
from twinset.policies import NoisePolicy
from twinset.policies.adaptive import normalised_over
from twinset.privacy.accounting.accountant import epsilon
from twinset.privacy.accounting.events import event_to_dict
from twinset.privacy.mechanism.privacy_weight import WeightScale
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
MODELS = ((NO_DP, 0.0), *((form, sigma) for sigma in SIGMAS for form in (DP_SGD, *ADAPTIVE)))
PLANTED = (0, 10, 100, 1000)  # copies of the canary; perplexities are of models that saw none
ATTACKED = (PUBLISHED, SOUND)  # where weights come from makes no difference


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


def mean_noise(form: str, policy: NoisePolicy) -> float:
    """Return the mean standard deviation of the noise so far, over σC."""
    scales: list[float] = policy.state().get("scales", [])
    return fmean(scales) if scales else multiplier_of(form, 1.0)


def _weight_quantiles(weights: Tensor | None, lines: int) -> dict[str, float] | None:
    """Return what privacy weights the lines have, and the canary where it was planted."""
    if weights is None:
        return None
    own, planted = weights[:lines], weights[lines:].tolist()
    quantiles = torch.quantile(own, torch.tensor([0.1, 0.5, 0.9], dtype=own.dtype)).tolist()
    known = dict(zip(("10 %", "median", "90 %"), quantiles, strict=True))
    return known | {"mean": float(own.mean())} | ({"canary": planted[0]} if planted else {})


def relative(results: Results, form: str, sigma: float) -> Interval:
    """Return the test perplexity over that of DP-SGD at the same σ, seed by seed.

    One seed has no interval: whatever noise was drawn once, more test lines do not tell.
    """
    ours, theirs = (results.values((f, sigma, 0), "perplexity_test") for f in (form, DP_SGD))
    return geometric_mean([ours[seed] / theirs[seed] for seed in ours])


def exposed(results: Results, *level: str | float) -> Interval:
    """Return the exposure of the canary in a model: form, σ, and how often it was planted."""
    return results.mean(level, "exposure", least=0.0, most=LARGEST_EXPOSURE)


def utility(results: Results) -> list[dict[str, object]]:
    """Return loss, perplexity and ε, beside the paper's, of models that saw no canary."""
    return [_utility(results, *model) for model in MODELS]


def _utility(results: Results, form: str, sigma: float) -> dict[str, object]:
    level, noisy = (form, sigma, 0), form != NO_DP
    losses = [math.log(value) for value in results.values(level, "perplexity_test").values()]
    noise = fmean(results.values(level, "mean_noise").values())
    most, least = (results.largest(level, f"epsilon_{w}_protected") for w in ("most", "least"))
    nominal = {NO_DP: None, SOUND: None, DP_SGD: least}
    return {
        "trained with": form,
        "σ": f"{sigma:g}",
        "loss, nats a token": mean_of(losses),
        "perplexity, test": results.geometric(level, "perplexity_test").text(1),
        f"÷ {DP_SGD}": relative(results, form, sigma) if noisy else None,
        "noise ÷ σC": f"{noise:.3g}" if noisy else None,
        "ε, nominal": nominal.get(form, results.largest(level, "epsilon_nominal")),
        "ε guaranteed, ρ = 1": most,
        "ε guaranteed, ρ = 0": least,
        **results.effort(level, "records_per_second", "lines/s"),
        **paper_cells(TABLE_1[ADP if form in ADAPTIVE else form, sigma]),
    }


def exposures(results: Results) -> list[dict[str, object]]:
    """Return the canary's exposure by how often it was planted."""
    return [
        {"trained with": form, "σ": f"{sigma:g}"}
        | {f"planted {n}×": exposed(results, form, sigma, n).text(1) for n in PLANTED}
        | {"seeds": len(results.by_seed(form, sigma, 0))}
        for form, sigma in MODELS
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


def _draw_perplexities(panel: Any, results: Results) -> None:
    def of(form: str, sigma: float) -> dict[int, float]:
        return results.values((form, sigma, 0), "perplexity_test")

    for form in (DP_SGD, *ADAPTIVE):
        seeds = [of(form, sigma) for sigma in SIGMAS]
        seed_line(panel, seeds, middle=middle, color=COLOURS[form], label=form)
    bare = middle(of(NO_DP, 0.0).values())
    panel.axhline(bare, color=COLOURS[NO_DP], linestyle="--", label=NO_DP)
    panel.axhline(results.facts["vocabulary"], color="0.6", linestyle=":", label="a blind guess")
    for model in (DP_SGD, ADP):
        known = [TABLE_1[model, sigma]["paper: PPL"] for sigma in SIGMAS]
        crosses(panel, known, color=COLOURS[model], label=f"{model} (paper, other tokens)")
    names = [f"σ = {sigma:g}" for sigma in SIGMAS]
    name_panel(panel, "test perplexity per token", names, logarithmic=True)
    panel.legend(fontsize=6)


def _draw_exposures(panel: Any, results: Results, sigma: float) -> None:
    for form, noise in MODELS:
        if noise in (0.0, sigma):
            seeds = [results.values((form, noise, copies), "exposure") for copies in PLANTED]
            seed_line(panel, seeds, color=COLOURS[form])
    panel.axhline(UNKNOWN, color="0.6", linestyle=":")
    name_panel(panel, f"exposure, bits, σ = {sigma:g}", [f"{copies}×" for copies in PLANTED])
    panel.set_ylim(0, 1.03 * LARGEST_EXPOSURE)


class Adp(Study):
    """Does adaptive noise cost less, and still hide a canary? Wu, Gong and Xiong 2022."""

    name = "adp"

    def keys(self, seeds: int) -> Iterator[Run | Attack]:
        """See `Study`."""
        yield from (Attack(ATTACK, form, sigma) for sigma in SIGMAS for form in ATTACKED)
        for seed in range(seeds):
            for copies in PLANTED:
                yield from (Run(*model, copies, seed) for model in MODELS)

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
        sigma = multiplier_of(key.form, key.sigma)
        if isinstance(key, Attack):
            return attack_row(POLICIES[key.form], sigma, self.size["trials"])
        return self._train_row(key, sigma, run)

    def _train_row(self, key: Run, sigma: float, run: RunContext) -> dict[str, Any]:
        """Return what a model knows, what it spent, and what it came from."""
        size, records, recipe = self.size, self.records(key.planted), Recipe(**self.size["recipe"])
        model = seeded(gpt2_shape(**size["shape"]).build, self.tokens.size, key.seed)
        weights = self._weights(key, run)
        maker, counter, started = (
            policy_maker(key.form, weights),
            run.counter("training"),
            monotonic(),
        )
        events = train_model(model, records, recipe, sigma, key.seed, counter, maker)
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
            "mean_noise": mean_noise(key.form, maker.policy),
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

    def _weights(self, key: Run, run: RunContext) -> Tensor | None:
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
        planted = torch.cat([nats[:-1], nats[-1:].expand(key.planted)])
        return weights_of(key.form, planted, scale)

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
            "exposures": exposures(results),
            "ranks": ", ".join(sorted(methods)),
            "less_exposed": less_exposed(results),
            **attack_tables(results, attacked),
            "weights": weights(results),
        }

    def figure(self, results: Results) -> Figure:
        """Draw perplexity against noise, and exposure against how often the canary was planted."""
        title, columns = f"Adaptive noise ({results.settings['size']})", 1 + len(SIGMAS)
        figure, ((first, *others),) = make_panels(title, 1, columns, (3.4 * columns, 3.8))
        _draw_perplexities(first, results)
        for panel, sigma in zip(others, SIGMAS, strict=True):
            _draw_exposures(panel, results, sigma)
        return figure


if __name__ == "__main__":
    main(Adp)
