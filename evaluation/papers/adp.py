"""Paper 000: does adaptive noise cost less than DP-SGD, and still hide a canary?

Wu, Gong and Xiong 2022, "Adaptive Differential Privacy for Language Modeling": a transformer
decoder on WikiText without noise, with DP-SGD, and with noise that follows how unusual a public
model finds each text.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from statistics import fmean
from statistics import geometric_mean as middle
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from evaluation.audit.mechanism import LEAST_SHARE, Finding
from evaluation.audit.report import MechanismAudit, guaranteed_for_json
from evaluation.leakage.canaries import Canary, numbered
from evaluation.leakage.exposure import UNKNOWN, Exposure, exposure
from evaluation.leakage.exposure_extrapolation import extrapolated_exposure
from evaluation.papers.intervals import Interval, difference, geometric_mean, mean_of
from evaluation.papers.language_model import (
    Gpt2Shape,
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
from evaluation.papers.texts import LINES, Subwords, drawn, read_lines, spaced
from evaluation.results_store import Key
from evaluation.utility.dp_fitting import Recipe
from twinset.config import PolicyConfig
from twinset.data.tokenization import TokenisedRecords
from twinset.models.base_model import BaseModel, load_base
from twinset.policies import MechanismParams, NoisePolicy, make_policy
from twinset.policies.adaptive import normalised_over
from twinset.privacy.accounting.accountant import epsilon
from twinset.privacy.accounting.events import Event, event_to_dict
from twinset.privacy.accounting.rounding import up_decimals
from twinset.privacy.mechanism.privacy_weight import WeightScale
from twinset.training.record_weights import fit_scale, text_nats

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NO_DP, DP_SGD, ADP = "No-DP", "DP-SGD", "ADP"
SIGMAS = (1.0, 5.0)
DELTA = 1e-5  # the paper states none


class Reported(NamedTuple):
    """A line of Table 1: test loss, test perplexity, and ε where there is one."""

    loss: float
    perplexity: float
    epsilon: float | None


# Table 1: (model, sigma) → what was found on WikiText-103. The line of No-DP stands there twice.
TABLE_1 = {
    (NO_DP, 0.0): Reported(7.08, 256.66, None),
    (DP_SGD, 1.0): Reported(13.08, 7582.65, 4.22),
    (ADP, 1.0): Reported(12.65, 4426.05, 6.35),
    (DP_SGD, 5.0): Reported(17.65, 20815.23, 0.1),
    (ADP, 5.0): Reported(14.85, 8635.66, 2.47),
}
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
ATTACK = "attack"
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


@dataclass(frozen=True)
class Corpora:
    """The texts.

    Args:
        public: lines that anyone may have: vocabulary, and constants of privacy weights.
        train: private lines to train on.
        test: private lines, read for the table alone.
        size: numbers of the size.
    """

    public: Sequence[str]
    train: Sequence[str]
    test: Sequence[str]
    size: Mapping[str, Any]

    @cached_property
    def tokens(self) -> Subwords:
        """Those of a tokenizer trained on the public lines."""
        return Subwords.of(self.public, self.size["vocabulary"])

    def records(self, copies: int) -> TokenisedRecords:
        """Return the lines to train on, and after them the canary's copies."""
        return self._tokenised([*self.train, *[canary(copies).text] * copies])

    @cached_property
    def tested(self) -> TokenisedRecords:
        """The lines of the test part."""
        return self._tokenised(self.test)

    def facts(self) -> dict[str, Any]:
        """Return what a reader should know of the texts."""
        train = self.records(0)
        return {
            "tokens": self.tokens.description,
            "vocabulary": self.tokens.size,
            "private lines": len(train),
            "private tokens": sum(map(len, train.texts)),
            "private lines cut": train.truncated,
            "test lines": len(self.tested),
            "test tokens": sum(map(len, self.tested.texts)),
            "context": self.size["shape"]["context"],
        }

    def _tokenised(self, lines: Sequence[str]) -> TokenisedRecords:
        return tokenised(map(spaced, lines), self.tokens, self.size["shape"]["context"])


class TextNats(nn.Module):
    """How unusual a public model finds the private lines and the canary; a module, to be cached.

    Args:
        lines: private lines there are.
    """

    def __init__(self, lines: int) -> None:
        super().__init__()
        self.register_buffer("nats", torch.zeros(lines + 1, dtype=torch.float64))
        self.scale = WeightScale("none yet", 0.0, 1.0, "none yet", (1.0, 0.0, 0.0, 0.0, 0.0))

    def planted(self, copies: int) -> Tensor:
        """(N + copies,) nats per token of the lines, and after them of the canary's copies."""
        nats: Any = self.nats
        return torch.cat([nats[:-1], nats[-1:].expand(copies)])

    def get_extra_state(self) -> dict[str, Any]:
        """Return the constants that make privacy weights of nats."""
        return self.scale.to_dict()

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take them back."""
        self.scale = WeightScale.from_dict(state)


def weigh(corpora: Corpora, run: RunContext) -> TextNats:
    """Return how unusual a public model finds the texts, asked once for all rows.

    The constants of privacy weights are fitted on public lines of the same length.

    Raises:
        InputError: the model cannot be used, or finds all public lines alike.
    """
    size, found = corpora.size, TextNats(len(corpora.train))

    def ask() -> None:
        base, most = load_base(size["public_model"], say=run.progress.say), size["weighed_tokens"]
        shown = _weighed_tokens(base, drawn(list(corpora.public), size["scale_lines"]), most)
        origin = f"{len(shown)} lines of the public text"
        found.scale = fit_scale(base, shown, origin, run.counter("public lines weighed"))
        lines = _weighed_tokens(base, [*corpora.train, canary(1).text], most)
        counter = run.counter("private lines weighed")
        found.nats = text_nats(base.model, base.tokenizer, lines, counter)

    run.train_once("nats per token of a public model", found, ask)
    return found


def _weighed_tokens(base: BaseModel, lines: Sequence[str], most: int) -> list[list[int]]:
    """Return the public model's tokens of each line with its end, cut at so many."""
    ids = base.tokenizer(list(map(spaced, lines)), add_special_tokens=False)["input_ids"]
    return [[*row, base.tokenizer.eos_token_id][:most] for row in ids]


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


@dataclass
class PolicyMaker:
    """Makes the policy of one way of training, and keeps it.

    Args:
        form: the way of training.
        weights: (N,) privacy weights, where noise is adaptive.
    """

    form: str
    weights: Tensor | None
    policy: NoisePolicy = field(init=False)

    def __call__(self, setting: MechanismParams) -> NoisePolicy:
        """See `evaluation.utility.dp_fitting.MakePolicy`."""
        self.policy = make_policy(
            replace(
                setting,
                options=POLICIES.get(self.form, PolicyConfig()),
                least_share=LEAST_SHARE if self.form == SOUND else 1.0,
                weights=self.weights,
            )
        )
        return self.policy

    def nominal(self, delta: float) -> float | None:
        """Return the ε that the paper would state for the noise so far; None but of its form."""
        return epsilon(spent, delta) if (spent := self.policy.nominal) else None

    def mean_noise(self) -> float:
        """Return the mean standard deviation of the noise so far, over σC."""
        scales: list[float] = self.policy.state().get("scales", [])
        return fmean(scales) if scales else multiplier_of(self.form, 1.0)


def train_row(key: Run, corpora: Corpora, texts: TextNats, run: RunContext) -> dict[str, Any]:
    """Return what a model knows, what it spent, and what it came from."""
    size, records, tokens = corpora.size, corpora.records(key.planted), corpora.tokens
    recipe = Recipe(**size["recipe"])
    model = seeded(Gpt2Shape(**size["shape"]).build, tokens.size, key.seed)
    maker = PolicyMaker(key.form, weights_of(key.form, texts.planted(key.planted), texts.scale))
    sigma, counter = multiplier_of(key.form, key.sigma), run.counter("training")
    started = time.monotonic()
    events = train_model(model, records, recipe, sigma, key.seed, counter, maker)
    seconds = time.monotonic() - started
    groups = nats_of_groups(model, corpora.tested, tokens.begin, run.counter("scoring"))
    known = _exposure(model, corpora, key)
    return {
        "perplexity_test": perplexity(groups),
        "exposure": known.bits,
        "rank": known.rank,
        "method": known.method,
        **_spent(events, maker),
        "weights": _weight_quantiles(maker.weights, len(corpora.train)),
        "seconds": round(seconds, 1),
        "records_per_second": round(recipe.epochs * len(records) / seconds, 1),
    }


def attack_row(key: Attack, trials: int) -> dict[str, Any]:
    """Return what an attack on a single step, and on a few, showed of ε; made-up records only."""
    sigma = multiplier_of(key.form, key.sigma)
    audit = MechanismAudit(POLICIES[key.form], noise_multiplier=sigma, trials=trials)
    return {"findings": [_for_json(finding) for finding in audit.run()]}


def _for_json(finding: Finding) -> dict[str, Any]:
    return asdict(finding) | {"guaranteed": guaranteed_for_json(finding.guaranteed)}


def _exposure(model: Any, corpora: Corpora, key: Run) -> Exposure:
    tokens, planted, many = corpora.tokens, canary(key.planted), corpora.size.get("candidates")
    if many is None:
        return exposure(model, tokens.tokenizer, [tokens.begin], planted)
    return extrapolated_exposure(
        model, tokens.tokenizer, [tokens.begin], planted, seed=key.seed, candidates=many
    )


def _spent(events: list[Event], maker: PolicyMaker) -> dict[str, Any]:
    """Return ε for texts of privacy weight 1 and 0, and what the paper would state."""
    nominal = maker.nominal(DELTA)
    return {
        "epsilon_most_protected": _finite(epsilon(events, DELTA, 1.0)),
        "epsilon_least_protected": _finite(epsilon(events, DELTA)),
        "epsilon_nominal": None if nominal is None else _finite(nominal),
        "mean_noise": maker.mean_noise(),
        "events": [event_to_dict(event) for event in events],
    }


def _finite(value: float) -> float | None:
    return None if math.isinf(value) else value


def _weight_quantiles(weights: Tensor | None, lines: int) -> dict[str, float] | None:
    """Return what privacy weights the lines have, and the canary where it was planted."""
    if weights is None:
        return None
    own, planted = weights[:lines], weights[lines:].tolist()
    quantiles = torch.quantile(own, torch.tensor([0.1, 0.5, 0.9], dtype=own.dtype)).tolist()
    found = dict(zip(("10 %", "median", "90 %"), quantiles, strict=True))
    return found | {"mean": float(own.mean())} | ({"canary": planted[0]} if planted else {})


def relative(results: Results, form: str, sigma: float) -> Interval:
    """Return the test perplexity over that of DP-SGD at the same σ, seed by seed.

    One seed has no interval: whatever noise was drawn once, more test lines do not tell.
    """
    ours, theirs = (results.values((f, sigma, 0), "perplexity_test") for f in (form, DP_SGD))
    return geometric_mean([ours[seed] / theirs[seed] for seed in ours])


def bits(results: Results, *level: str | float) -> Interval:
    """Return the exposure of the canary in a model: form, σ, and how often it was planted."""
    return mean_of(list(results.values(level, "exposure").values()), 0.0, LARGEST_EXPOSURE)


def largest(results: Results, form: str, sigma: float, which: str) -> str:
    """Return the largest ε of some kind over seeds, rounded up; "none" where one has none.

    Args:
        results: the rows.
        form: of the model, which saw no canary.
        sigma: of the model.
        which: most_protected, least_protected or nominal.
    """
    values = results.values((form, sigma, 0), f"epsilon_{which}").values()
    return "none" if None in values else up_decimals(max(values))


def attacks(results: Results, form: str, sigma: float) -> Sequence[dict[str, Any]]:
    """Return the findings of the attack on one form's noise."""
    (findings,) = results.values((ATTACK, form, sigma), "findings").values()
    found: Sequence[dict[str, Any]] = findings
    return found


def less_exposed(results: Results) -> Section:
    """Return how much less the canary is exposed, where it is known without noise."""
    shown = [n for n in PLANTED[1:] if bits(results, NO_DP, 0.0, n).above(UNKNOWN)]
    rows = [
        {
            "trained with": form,
            "planted": f"{copies}×",
            "σ": f"{sigma:g}",
            f"less {NO_DP}": _bits_less(results, (form, sigma, copies), (NO_DP, 0.0, copies)),
            f"less {DP_SGD}": _bits_less(results, (form, sigma, copies), (DP_SGD, sigma, copies)),
        }
        for form in ADAPTIVE
        for copies in shown
        for sigma in SIGMAS
    ]
    note = (
        "Differences of exposure in bits, seed by seed; an interval that includes 0 tells nothing. "
        "Left out are numbers of copies of which training without noise is not shown to learn the "
        f"secret: its exposure is not above {UNKNOWN:.2f} bits, the mean of unknown secrets."
    )
    return Section("What hides the canary", rows, [note])


def _bits_less(results: Results, ours: Key, theirs: Key) -> str:
    return difference(*(results.values(level, "exposure") for level in (ours, theirs))).text(1)


def utility(results: Results) -> Section:
    """Return loss, perplexity and ε, beside the paper's."""
    facts = results.facts
    notes = (
        f"Tokens: {facts['tokens']}. A blind guess has perplexity {facts['vocabulary']:,}.",
        f"Lines to train on: {facts['private lines']:,} with {facts['private tokens']:,} tokens, "
        f"of which {facts['private lines cut']:,} lines are cut at {facts['context']} tokens; "
        f"test: {facts['test lines']:,} with {facts['test tokens']:,} tokens.",
        f"δ = {DELTA:g}; the largest ε over seeds. No canary was planted for this table.",
    )
    rows = [_utility_line(results, *model) for model in MODELS]
    return Section("Loss, perplexity and ε", rows, notes)


def _utility_line(results: Results, form: str, sigma: float) -> dict[str, str]:
    rows = list(results.by_seed(form, sigma, 0).values())
    perplexities = [row["perplexity_test"] for row in rows]
    noise, noisy = fmean(row["mean_noise"] for row in rows), form != NO_DP
    return {
        "trained with": form,
        "σ": f"{sigma:g}",
        "loss, nats a token": str(mean_of(list(map(math.log, perplexities)))),
        "perplexity, test": geometric_mean(perplexities).text(1),
        f"÷ {DP_SGD}": str(relative(results, form, sigma)) if noisy else "",
        "noise ÷ σC": f"{noise:.3g}" if noisy else "",
        "ε, nominal": _nominal(results, form, sigma),
        "ε guaranteed, ρ = 1": largest(results, form, sigma, "most_protected"),
        "ε guaranteed, ρ = 0": largest(results, form, sigma, "least_protected"),
        **_paper(form, sigma),
        "seeds": str(len(rows)),
        "lines/s": f"{fmean(row['records_per_second'] for row in rows):.0f}",
    }


def _nominal(results: Results, form: str, sigma: float) -> str:
    """Return the ε of the paper's accounting: of DP-SGD the guaranteed one."""
    if form in (NO_DP, SOUND):
        return ""
    return largest(results, form, sigma, "least_protected" if form == DP_SGD else "nominal")


def _paper(form: str, sigma: float) -> dict[str, str]:
    """Return what the paper reports; its one form stands beside all forms of adaptive noise."""
    adaptive = form in ADAPTIVE
    line = TABLE_1[ADP if adaptive else form, sigma]
    share = line.perplexity / TABLE_1[DP_SGD, sigma].perplexity if adaptive else None
    return {
        "paper: loss": f"{line.loss:.2f}",
        "paper: PPL": f"{line.perplexity:.2f}",
        f"paper: ÷ {DP_SGD}": "" if share is None else f"{share:.3f}",
        "paper: ε": "" if line.epsilon is None else f"{line.epsilon:g}",
    }


def exposures(results: Results) -> Section:
    """Return the canary's exposure by how often it was planted."""
    methods = {row["method"] for row in results.rows.values() if "method" in row}
    notes = (
        f"“{SENTENCE} {SECRET}”, of {10**DIGITS:,} secrets: {LARGEST_EXPOSURE:.2f} bits are a "
        f"secret known by heart, {UNKNOWN:.2f} the mean of secrets that a model does not know. "
        "“Planted 0×” is that same secret where it was not planted.",
        f"Ranks: {', '.join(sorted(methods))}.",
        "A canary that was planted k times is k records: ε of one record says little of it.",
        "The paper draws its exposures and gives no number.",
    )
    rows = [
        {"trained with": form, "σ": f"{sigma:g}"}
        | {f"planted {copies}×": bits(results, form, sigma, copies).text(1) for copies in PLANTED}
        | {"seeds": str(len(results.by_seed(form, sigma, 0)))}
        for form, sigma in MODELS
    ]
    return Section("Exposure of the canary, in bits", rows, notes)


def attacked(results: Results) -> Section:
    """Return the lower bounds of ε that attacks on the noise itself show."""
    found = [(f, s, one) for f in ATTACKED for s in SIGMAS for one in attacks(results, f, s)]
    _, _, first = found[0]
    note = (
        "The project's own noise step on made-up records, seen by somebody who knows all records "
        f"but one: lower bounds of ε at 95 % confidence and δ = {first['delta']:g}, from "
        f"{first['trials']:,} outputs with the record and as many without. In the published form "
        "the length of the noise tells who was in the batch, whatever σ is."
    )
    rows = [
        {
            "attack on": form,
            "σ": f"{sigma:g}",
            "experiment": one["what"],
            "claimed ε": f"{one['claimed']:.2f}",
            "shown, at least": f"{one['lower_bound']:.2f}",
            "ε of a theorem": str(one["guaranteed"] or f"{one['claimed']:.2f}"),
        }
        for form, sigma, one in found
    ]
    return Section("What the noise gives away", rows, [note])


def weights(results: Results) -> Section:
    """Return quantiles of privacy weights, and the canary's own."""
    few = PLANTED[1]
    note = (
        "Of the private lines; where weights are normalised over them, without canaries. The "
        f"canary's is that where it was planted {few} times. The published form draws noise by the "
        "mean of a batch, so that a canary's own weight hardly protects it."
    )
    return Section("Privacy weights ρ", [_weights(results, f, few) for f in ADAPTIVE], [note])


def _weights(results: Results, form: str, few: int) -> dict[str, str]:
    lines, planted = (results.by_seed(form, SIGMAS[0], n)[0]["weights"] for n in (0, few))
    found = lines | {"canary": planted["canary"]}
    return {"weights of": form} | {name: f"{value:.3g}" for name, value in found.items()}


COLOURS = {NO_DP: "0.4", DP_SGD: "C3", ADP: "C1", PUBLISHED: "C1", LOGARITHMIC: "C4", SOUND: "C0"}


def draw(results: Results) -> Figure:
    """Draw perplexity against noise, and exposure against how often the canary was planted."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.4 * (1 + len(SIGMAS)), 3.8), layout="constrained")
    first, *others = figure.subplots(1, 1 + len(SIGMAS))
    _draw_perplexities(first, results)
    for panel, sigma in zip(others, SIGMAS, strict=True):
        _draw_exposures(panel, results, sigma)
    first.legend(fontsize=6)
    figure.suptitle(f"Adaptive noise ({results.settings['size']})", fontsize=10)
    return figure


def _draw_perplexities(panel: Any, results: Results) -> None:
    def of(form: str, sigma: float) -> list[float]:
        return list(results.values((form, sigma, 0), "perplexity_test").values())

    for form in (DP_SGD, *ADAPTIVE):
        seeds = [of(form, sigma) for sigma in SIGMAS]
        seed_line(panel, seeds, middle=middle, color=COLOURS[form], label=form)
    panel.axhline(middle(of(NO_DP, 0.0)), color=COLOURS[NO_DP], linestyle="--", label=NO_DP)
    guess = results.facts["vocabulary"]
    panel.axhline(guess, color="0.6", linestyle=":", label="a blind guess")
    for model in (DP_SGD, ADP):
        reported = [TABLE_1[model, sigma].perplexity for sigma in SIGMAS]
        style = {"color": COLOURS[model], "label": f"{model} (paper, other tokens)"}
        panel.plot(range(len(SIGMAS)), reported, "x", alpha=0.6, **style)
    name_ticks(panel, [f"σ = {sigma:g}" for sigma in SIGMAS])
    logarithmic(panel, "y")
    panel.set_title("test perplexity per token", fontsize=9)


def _draw_exposures(panel: Any, results: Results, sigma: float) -> None:
    for form, noise in MODELS:
        if noise in (0.0, sigma):
            levels = [(form, noise, copies) for copies in PLANTED]
            seeds = [list(results.values(level, "exposure").values()) for level in levels]
            seed_line(panel, seeds, color=COLOURS[form])
    panel.axhline(UNKNOWN, color="0.6", linestyle=":")
    name_ticks(panel, [f"{copies}×" for copies in PLANTED])
    panel.set_ylim(0, 1.03 * LARGEST_EXPOSURE)
    panel.set_title(f"exposure, bits, σ = {sigma:g}", fontsize=9)


class Adp(Study):
    """Does adaptive noise cost less, and still hide a canary? Wu, Gong and Xiong 2022."""

    name = "adp"
    files = {
        "public": f"text that anyone may have; {LINES}",
        "private_train": f"private text to train on; {LINES}",
        "private_test": f"private text, read for the table alone; {LINES}",
    }
    models = {"public_model": "that weighs texts: an asset, a folder or a hub name"}

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
        return self._corpora.facts()

    def row(self, key: Run | Attack, run: RunContext) -> Mapping[str, Any]:
        """See `Study`."""
        if isinstance(key, Attack):
            return attack_row(key, self.size["trials"])
        return train_row(key, self._corpora, weigh(self._corpora, run), run)

    def sections(self, results: Results) -> Iterator[Section]:
        """See `Study`."""
        yield utility(results)
        yield exposures(results)
        yield less_exposed(results)
        yield attacked(results)
        yield weights(results)

    def figure(self, results: Results) -> Figure:
        """See `Study`."""
        return draw(results)

    @cached_property
    def _corpora(self) -> Corpora:
        def lines(name: str, most: str) -> list[str]:
            return drawn(read_lines(self.paths[name]), self.size.get(most))

        return Corpora(
            lines("public", "public_lines"),
            lines("private_train", "private_lines"),
            lines("private_test", "scored_lines"),
            self.size,
        )


if __name__ == "__main__":
    main(Adp)
