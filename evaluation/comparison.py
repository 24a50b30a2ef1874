"""`twinset compare`: noise policies side by side, each trained and scored with several seeds.

Everything it finds is computed on private rows and stays with their owner: label fidelity and
classifier accuracy of the twins, perplexity and canary exposure of the models that wrote them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from twinset.config import RunConfig
from twinset.config.plan import with_teacher
from twinset.errors import InputError
from twinset.files.atomic import write_text
from twinset.models.base_model import BaseModel, context_length, load_base, special_token_strings
from twinset.models.layers import frozen_dtype
from twinset.privacy.accounting.accountant import up_decimals, up_digits
from twinset.progress import Progress, Silent
from twinset.release.card import bullets, code, plain
from twinset.sampling.allocation import proportional
from twinset.sampling.twin_model import TwinModel
from twinset.table.tokenization import prompt_tokens, text_budget, tokenise

from .findings import (
    OWNER_ONLY,
    Goal,
    ResultsStore,
    Score,
    about,
    check_private_place,
    markdown_table,
    mean,
)
from .leakage.canaries import (
    COPIES,
    EACH,
    EXACT,
    FORMATS,
    UNKNOWN,
    draw_canaries,
    exposure,
    plant,
)
from .leakage.membership import perplexity
from .policy_runs import (
    ComparisonRequest,
    Data,
    policy_config,
    read_data,
    timed,
    write_untrained_twin,
)
from .release import BASELINE, Seconds, coinciding_rows, records_to_frame, take_records
from .utility.classifiers import SentenceEncoder, make_classifiers
from .utility.usefulness import score_agreement, targets, train_on

if TYPE_CHECKING:
    from rich.table import Table

PERPLEXITY = "held-out perplexity"
REAL_ROWS = "real data"  # as many rows as the twins have
PERPLEXITY_ROWS = 250
JUDGE_ROWS = 4000  # at most, that judges of label fidelity learn from


class Measure(NamedTuple):
    """One column of the table: its name, the way it should go, its range, digits to show."""

    name: str
    goal: Goal
    minimum: float
    maximum: float
    digits: int


def name_exposure(copies: int) -> str:
    """Return the name of the mean exposure of canaries with a number of copies.

    >>> name_exposure(10)
    'exposure, planted 10×'
    """
    return f"exposure, planted {copies}×"


@dataclass(frozen=True)
class PolicyRun:
    """One run with one seed."""

    values: Mapping[str, float]  # by measure, those that were taken
    seconds: Mapping[str, float]  # by phase
    epsilon: float | None = None  # ε of the run's guarantee, or None without one
    delta: float | None = None  # its δ
    guarantee: str = ""  # in words. Empty where nothing was trained.
    # Each canary's copies, format, |R|, rank, exposure and how the rank was found
    exposures: list[dict[str, Any]] = field(default_factory=list)


class PolicyResults(ResultsStore):
    """All runs made under the same settings.

    The key of a row is a policy, or what policies are compared with (`REAL_ROWS`, `BASELINE`), and
    a seed.
    """

    @property
    def measures(self) -> list[Measure]:
        """The columns, in order."""
        taught, most = self.settings["classifiers"], math.log2(self.facts["space"])
        return [
            *(Measure(f"label fidelity, {c}", "maximise", 0.0, 1.0, 3) for c in taught),
            *(Measure(f"accuracy, {c}", "maximise", 0.0, 1.0, 3) for c in taught),
            *(Measure(name_exposure(k), "minimise", 0.0, most, 2) for k in COPIES),
            Measure(PERPLEXITY, "minimise", 1.0, math.inf, 1),
        ]

    @property
    def names(self) -> list[str]:
        """Policies and what they are compared with, in the order of their first runs."""
        return list(dict.fromkeys(str(name) for name, _ in self.rows))

    def runs(self, name: str) -> list[PolicyRun]:
        """Return the runs of one name, one for each seed."""
        return [PolicyRun(**row) for (case, _), row in self.rows.items() if case == name]

    def values(self, name: str, measure: Measure) -> list[float]:
        """Return one measure of one name, a value for each seed. Empty if it was not taken."""
        return [r.values[measure.name] for r in self.runs(name) if measure.name in r.values]

    def score(self, name: str, measure: Measure) -> Score | None:
        """Return the mean over the seeds, or None if the measure was not taken."""
        values = self.values(name, measure)
        return mean(measure.name, values, *measure[1:4]) if values else None

    @property
    def scores(self) -> list[dict[str, Any]]:
        """The means as plain values, with null for what JSON has no number for."""
        found = [(name, self.score(name, m)) for name in self.names for m in self.measures]
        return [
            {"policy": name}
            | {k: None if v in (-math.inf, math.inf) else v for k, v in asdict(score).items()}
            for name, score in found
            if score
        ]

    def budget(self, name: str) -> tuple[str, str]:
        """Return ε, rounded up, and δ: the largest of the runs. Empty where none was trained."""
        runs = [run for run in self.runs(name)]
        if not any(run.guarantee for run in runs):
            return "", ""
        epsilons, deltas = [run.epsilon for run in runs], [run.delta for run in runs]
        if None in epsilons or None in deltas:
            return "none", "none"
        return up_decimals(max(e for e in epsilons if e)), up_digits(max(d for d in deltas if d))

    def seconds(self, name: str) -> dict[str, float]:
        """Return the mean time that each phase took."""
        taken: dict[str, list[float]] = {}
        for run in self.runs(name):
            for phase, seconds in run.seconds.items():
                taken.setdefault(phase, []).append(seconds)
        return {phase: sum(each) / len(each) for phase, each in taken.items()}

    @property
    def title(self) -> str:
        """What was compared, on how many rows."""
        facts = self.facts
        trained = f"{facts['train']} training rows, {facts['held out']} held out"
        return f"{facts['data']}: noise policies on {trained}"


def compare_policies(
    request: ComparisonRequest, config: RunConfig, output: Path, command: str, progress: Progress
) -> PolicyResults:
    """Make and score every run that the results at `output` lack, and write table and figure.

    Raises:
        InputError: something cannot be used, or the results there are of other settings.
    """
    configs = {name: policy_config(config, name) for name in request.policies}
    check_private_place(output)
    data = read_data(request, config.training.seed, progress)
    # What a run depends on, except its policy and seed. Results of other settings are refused.
    settings = data.settings(config) | {
        "rows": request.rows,
        "judge rows": JUDGE_ROWS,
        "perplexity rows": PERPLEXITY_ROWS,
        "classifiers": list(request.classifiers),
        "canaries": {
            "copies": list(COPIES),
            "each": EACH,
            "sentences": [canary_format.pattern for canary_format in FORMATS],
            "method": EXACT,
        },
        "about": about(),
    }
    json_file, page, picture = (
        output.with_name(output.name + ending) for ending in (".json", ".md", ".png")
    )
    results = PolicyResults.open(json_file, settings, command, OWNER_ONLY)
    results.facts = {
        "data": "/".join(Path(request.source.name).parts[-2:]),
        "train": len(data.train),
        "held out": len(data.heldout),
        "planted": EACH * sum(COPIES),
        "rows": request.rows,
        "target": " × ".join(data.attributes),
        "coinciding": coinciding_rows(data.train.texts, data.heldout.texts),
        "judge rows": min(JUDGE_ROWS, len(data.train)),
        "perplexity rows": min(PERPLEXITY_ROWS, len(data.heldout)),
        "space": max(canary_format.space for canary_format in FORMATS),
    }
    seeds = range(config.training.seed, config.training.seed + request.seeds)
    keys = [(name, seed) for seed in seeds for name in (REAL_ROWS, BASELINE, *configs)]
    trials: PolicyTrials | None = None  # loads a model: not where nothing is missing
    for turn, (name, seed) in results.missing(keys):
        trials = trials or PolicyTrials(data, request, config, progress)
        progress.say(f"run {turn}: {name}, seed {seed}")
        row = trials.run(str(name), int(seed), configs.get(str(name)))
        results.add((name, seed), asdict(row))
    results.write(scores=results.scores)
    write_text(page, as_markdown(results), OWNER_ONLY)
    picture.touch(OWNER_ONLY)  # matplotlib would create it readable by all
    picture.chmod(OWNER_ONLY)
    write_figure(results, picture)
    return results


class PolicyTrials:
    """Makes runs and scores them, all against the same held-out rows.

    Raises:
        InputError: the base model cannot be used, or it would cut the canaries off.
    """

    def __init__(
        self, data: Data, request: ComparisonRequest, config: RunConfig, progress: Progress
    ) -> None:
        self._data, self._rows, self._config, self._progress = data, request.rows, config, progress
        self._train, self._heldout = records_to_frame(data.train), records_to_frame(data.heldout)
        base = load_base(config.training.base_model, say=progress.say)
        for policy in (policy_config(config, name).policy for name in request.policies):
            policy.policy_class.weight_scale(policy, base)  # or it is refused, before any run
        # Texts with the tokenizer's own marks can't be trained on. Found now, not after hours.
        reserved = special_token_strings(base.tokenizer)
        read_data(request, config.training.seed, Silent(), reserved)  # for these characters alone
        self._prompts = prompt_tokens(data.template, data.train.schema.combinations, base.tokenizer)
        max_tokens, context = config.training.max_tokens, context_length(base.model)
        # Canaries whose secret would be cut off teach nothing, so they are refused.
        budget = text_budget(self._prompts, context, max_tokens)
        spaced = [f" {text}" for canary_format in FORMATS for text in canary_format.candidates()]
        longest = max(map(len, base.tokenizer(spaced, add_special_tokens=False)["input_ids"]))
        if longest >= budget:
            raise InputError(
                f"canaries have up to {longest} tokens and an end, but texts are cut after "
                f"{budget}; raise `max_tokens`, or shorten `prompt`"
            )
        # The held-out rows that perplexity is taken of are the same for all.
        order = np.random.default_rng(config.training.seed).permutation(len(data.heldout))
        probes = take_records(data.heldout, order[:PERPLEXITY_ROWS])
        self._probes = tokenise(probes, data.template, base.tokenizer, context, max_tokens)
        embeddings = SentenceEncoder(progress.say, config.speed.device)
        self._makers = make_classifiers(request.classifiers, progress.say, embeddings=embeddings)
        self._target = targets(data.attributes)[-1]  # all labels together
        progress.say("training classifiers on real rows")
        known = self._train.sample(frac=1, random_state=config.training.seed).head(JUDGE_ROWS)
        self._judges = {
            name: train_on(known, data.text, self._target, maker)
            for name, maker in self._makers.items()
        }

    def run(self, name: str, seed: int, config: RunConfig | None) -> PolicyRun:
        """Make one run and score it."""
        data, seconds = self._data, Seconds()
        if name == REAL_ROWS:
            frame = self._train.sample(min(self._rows, len(self._train)), random_state=seed)
            with timed(seconds, "classifiers"):
                values = self._score_rows(frame, judged=self._heldout)
            return PolicyRun(values, seconds)
        seeded = config or self._config
        seeded = replace(
            seeded,
            training=replace(seeded.training, seed=seed),
            sampling=replace(seeded.sampling, seed=seed),
        )
        canaries = draw_canaries(data.train.schema.combinations, seed)
        epsilon, delta, sentence = None, None, ""
        writer: BaseModel | TwinModel
        if config is None:
            # The rows of the base model have the labels of the real rows in their true shares.
            seeded = with_teacher(seeded, len(data.train))
            labels, schema = Counter(data.train.labels), data.train.schema
            shares = {c: float(labels[c]) for c in schema.combinations}
            with timed(seconds, "sampling"):
                counts = proportional(shares, self._rows)
                frame = write_untrained_twin(seeded, schema, data.template, counts, self._progress)
            writer = load_base(
                seeded.training.base_model,
                dtype=frozen_dtype(seeded),
                device=seeded.speed.device,
                say=self._progress.say,
            )
        else:
            planted = plant(self._train, data.text, data.attributes, canaries)
            writer, twin = data.train_twin(planted, seeded, self._rows, self._progress)
            frame, claim = twin.frame, writer.guarantee
            seconds |= twin.seconds
            epsilon, delta, sentence = claim.epsilon, claim.delta, claim.sentence
        self._progress.say("scoring")
        with timed(seconds, "classifiers"):
            values = self._score_rows(frame, judged=frame)
        with timed(seconds, "perplexity"):
            values[PERPLEXITY] = perplexity(writer.model, self._probes)
        with timed(seconds, "exposure"):
            found = [
                exposure(writer.model, writer.tokenizer, self._prompts[c.label], c)
                for c in canaries
            ]
        for copies in COPIES:
            bits = [e.bits for e in found if e.canary.copies == copies]
            values[name_exposure(copies)] = sum(bits) / len(bits)
        exposures = [
            {
                "copies": e.canary.copies,
                "format": e.canary.format.pattern,
                "space": e.space,
                "rank": e.rank,
                "bits": e.bits,
                "method": e.method,
            }
            for e in found
        ]
        return PolicyRun(values, seconds, epsilon, delta, sentence, exposures)

    def _score_rows(self, frame: pd.DataFrame, judged: pd.DataFrame) -> dict[str, float]:
        """Return accuracies on held-out rows of what learns from a table, and label fidelity.

        Args:
            frame: rows that classifiers learn from.
            judged: rows whose labels classifiers of real rows are to agree with.
        """
        text, target, values = self._data.text, self._target, {}
        for name, maker in self._makers.items():
            model = train_on(frame, text, target, maker)
            found = score_agreement("accuracy", model, self._heldout, text, target)
            values[f"accuracy, {name}"] = found.value
        for name, judge in self._judges.items():
            found = score_agreement("label fidelity", judge, judged, text, target)
            values[f"label fidelity, {name}"] = found.value
        return values


def as_table(results: PolicyResults) -> Table:
    """Return a table for the terminal: a block for each measure, because a wide one won't fit."""
    from rich import box
    from rich.table import Table

    notes = "\n".join(_write_notes(results))
    table = Table(title=results.title, caption=notes, caption_justify="left", box=box.SIMPLE_HEAD)
    for name in ("measure", "policy"):
        table.add_column(name, no_wrap=True)
    for name in ("mean", "95 % interval", "seeds"):
        table.add_column(name, justify="right", no_wrap=True)
    blocks: dict[str, list[list[str]]] = {}
    for measure in results.measures:
        scores = ((name, results.score(name, measure)) for name in results.names)
        taken = [[name, *_format_mean(measure, s), str(s.n)] for name, s in scores if s]
        blocks[measure.name] = taken
    spent = ((name, results.budget(name)[0]) for name in results.names)
    blocks["ε"] = [[name, epsilon, "", ""] for name, epsilon in spent if epsilon]
    for title, block in blocks.items():
        for place, cells in enumerate(block, start=1):
            # The title stands once, above its block.
            table.add_row(title if place == 1 else "", *cells, end_section=place == len(block))
    return table


def as_markdown(results: PolicyResults) -> str:
    """Return the same table in Markdown, with the guarantees and how it was made."""
    header = ["policy", "seeds", "ε", "δ", *(m.name for m in results.measures), "training, s"]
    rows, stated = [], dict[str, None]()
    for name in results.names:
        runs, seconds = results.runs(name), results.seconds(name).get("fine-tuning")
        found = [(m, results.score(name, m)) for m in results.measures]
        scores = (" ".join(_format_mean(m, score)).strip() if score else "" for m, score in found)
        trained = f"{seconds:.0f}" if seconds else ""
        rows.append([name, str(len(runs)), *results.budget(name), *scores, trained])
        stated |= {f"{plain(name)}: {plain(r.guarantee)}": None for r in runs if r.guarantee}
    made = [f"{plain(k)}: {plain(v)}" for k, v in results.settings["about"].items()]
    parts = (
        [f"**{plain(results.title)}**"],
        markdown_table(header, rows),
        bullets(map(plain, _write_notes(results))),
        ["Guarantees:"],
        bullets(stated),
        bullets([*made, *(f"command: {code(command)}" for command in results.commands)]),
    )
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def write_figure(results: PolicyResults, path: Path) -> None:
    """Draw a panel for each measure: a line for each policy with mean, interval and every seed."""
    from matplotlib.figure import Figure

    columns, names = 2, results.names
    lines = -(-len(results.measures) // columns)
    size = (10, 0.5 + lines * (0.9 + 0.32 * len(names)))  # inches
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False, sharey=True).flatten()
    exposures = [name_exposure(copies) for copies in COPIES]
    for panel, measure in zip(panels, results.measures, strict=False):
        for place, name in enumerate(names):
            if (score := results.score(name, measure)) is None:
                continue
            colour = "0.45" if name in (REAL_ROWS, BASELINE) else "C0"
            seeds = results.values(name, measure)
            panel.plot(seeds, [place + 0.25] * len(seeds), "|", color=colour, markersize=5)
            if score.n > 1:
                panel.plot([score.low, score.high], [place, place], color=colour, linewidth=1.5)
            panel.plot(score.value, place, "o", color=colour, markersize=6)
        if measure.name in exposures:
            panel.axvline(UNKNOWN, color="0.6", linestyle=":", linewidth=1)
            panel.set_xlim(0, 1.03 * measure.maximum)
        panel.set_yticks(range(len(names)), names, fontsize=8)
        panel.set_ylim(len(names) - 0.5, -0.5)
        panel.tick_params(axis="x", labelsize=8)
        panel.grid(axis="x", linewidth=0.4)
        unit = " (bits)" if measure.name in exposures else ""
        better = "higher" if measure.goal == "maximise" else "lower"
        panel.set_title(f"{measure.name}{unit}: {better} is better", fontsize=9)
    for panel in panels[len(results.measures) :]:
        panel.set_visible(False)
    figure.suptitle(f"{results.title} (mean, 95 % t interval, seeds)", fontsize=10)
    figure.savefig(path, dpi=150)


def _format_mean(measure: Measure, score: Score) -> tuple[str, str]:
    """Return the mean and, of several seeds, its interval."""
    average, low, high = (f"{v:.{measure.digits}f}" for v in (score.value, score.low, score.high))
    return average, "" if score.n == 1 else f"[{low}, {high}]"


def _write_notes(results: PolicyResults) -> list[str]:
    """Return what a reader of the table must know."""
    facts = results.facts
    times = (
        f"{name}: {', '.join(f'{phase} {s:.0f}' for phase, s in results.seconds(name).items())}"
        for name in results.names
    )
    return [
        "Computed on private rows: stays with their owner. Only twins may be handed over.",
        "Mean and 95 % t interval over the seeds, which change training, noise, sampling and "
        "canaries; the held-out rows are the same for all. One seed has no interval.",
        f"Labels predicted: {facts['target']}. Each twin has {facts['rows']} rows. Label fidelity "
        f"is judged by classifiers of {facts['judge rows']} real training rows. The row of real "
        "data has as many training rows as a twin; its label fidelity is the judges' accuracy on "
        f"the held-out rows, which a perfect twin would reach. The rows of “{BASELINE}” have the "
        "labels of the real rows in their true shares, and nothing else of them.",
        f"Exposure in bits: {EXACT} among |R| = {facts['space']} secrets behind the canary's own "
        f"prompt; mean of {EACH} canaries planted {' and '.join(map(str, COPIES))} times, in all "
        f"{facts['planted']} rows beside the training rows. "
        f"{UNKNOWN:.2f} is what an ignorant model has on average, "
        f"{math.log2(facts['space']):.2f} the most.",
        f"Held-out perplexity: {facts['perplexity rows']} held-out rows. Held-out texts that are "
        f"training texts too: {facts['coinciding']}.",
        f"Mean seconds of a run: {'; '.join(times)}.",
    ]
