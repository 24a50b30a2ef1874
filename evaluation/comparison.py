"""`twinset compare`: noise policies side by side, each trained and scored with several seeds.

Everything it finds is computed on private rows and stays with their owner: label fidelity and
classifier accuracy of the twins, perplexity and canary exposure of the models that wrote them.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from twinset.config import RunConfig
from twinset.config.plan import settled
from twinset.errors import DAMAGED, InputError
from twinset.files.atomic import write_json, write_text
from twinset.files.limits import read_text
from twinset.models.base_model import BaseModel, context_length, load_base, special_token_strings
from twinset.models.layers import choose_execution
from twinset.privacy.accounting.accountant import up_decimals, up_digits
from twinset.progress import Progress, Silent
from twinset.release.card import code, plain
from twinset.sampling.allocation import proportional
from twinset.sampling.twin_model import TwinModel
from twinset.table.tokenization import prompt_tokens, text_budget, tokenise

from .findings import (
    OWNER_ONLY,
    Goal,
    Score,
    about,
    check_private_place,
    check_settings,
    markdown_table,
    mean,
)
from .leakage.canaries import COPIES, EACH, EXACT, FORMATS, UNKNOWN, draw_canaries, exposure, plant
from .leakage.membership import perplexity
from .policy_runs import ComparisonRequest, Data, policy_config, read_data, write_untrained_twin
from .release import BASELINE, normalised, records_to_frame, take_records
from .utility.classifiers import SentenceEncoder, make_classifiers
from .utility.usefulness import score_agreement, targets, train_on

if TYPE_CHECKING:
    from rich.table import Table

PERPLEXITY = "held-out perplexity"
REAL_ROWS = "real data"  # cut to the twins' number of rows
PERPLEXITY_ROWS = 250
JUDGE_ROWS = 4000  # at most, that judges of label fidelity learn from
EXPOSURES = {copies: f"exposure, planted {copies}×" for copies in COPIES}  # means, by copies


class Measure(NamedTuple):
    """One column of the table: its name, its desired direction, its range, digits to show."""

    name: str
    goal: Goal
    minimum: float
    maximum: float
    digits: int

    def format_score(self, score: Score) -> tuple[str, str]:
        """Return the mean and, for several seeds, its interval."""
        middle, low, high = (f"{v:.{self.digits}f}" for v in (score.value, score.low, score.high))
        return middle, "" if score.n == 1 else f"[{low}, {high}]"


@dataclass(frozen=True)
class PolicyRun:
    """One run with one seed."""

    values: Mapping[str, float]  # by measure, those that were taken
    epsilon: float | None = None  # ε of the run's guarantee, or None without one
    delta: float | None = None  # its δ
    guarantee: str = ""  # in words. Empty where nothing was trained.
    # Each canary's copies, format, |R|, rank, exposure and how the rank was found
    exposures: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class PolicyResults:
    """Finished runs, all made under the same settings. Their file grows run by run."""

    settings: Mapping[str, Any]  # everything that a run depends on, except its policy and seed
    facts: Mapping[str, Any]  # what else a reader should know
    commands: list[str]  # that the runs came from
    # By a policy, or what policies are compared with (`REAL_ROWS`, `BASELINE`), and a seed
    rows: dict[tuple[str, int], PolicyRun] = field(default_factory=dict)

    @property
    def measures(self) -> list[Measure]:
        """The columns, in order."""
        taught, most = self.settings["classifiers"], math.log2(self.facts["space"])
        return [
            *(Measure(f"label fidelity, {c}", "maximise", 0.0, 1.0, 3) for c in taught),
            *(Measure(f"accuracy, {c}", "maximise", 0.0, 1.0, 3) for c in taught),
            *(Measure(name, "minimise", 0.0, most, 2) for name in EXPOSURES.values()),
            Measure(PERPLEXITY, "minimise", 1.0, math.inf, 1),
        ]

    @property
    def runs(self) -> dict[str, list[PolicyRun]]:
        """The runs of each policy, one per seed, in the order of the policies' first runs."""
        found: dict[str, list[PolicyRun]] = {}
        for (name, _), run in self.rows.items():
            found.setdefault(name, []).append(run)
        return found

    def score(self, name: str, measure: Measure) -> Score | None:
        """Return the mean over the seeds, or None if the measure was not taken."""
        runs = self.runs[name]
        values = [run.values[measure.name] for run in runs if measure.name in run.values]
        return mean(measure.name, values, *measure[1:4]) if values else None

    def budget(self, name: str) -> tuple[str, str]:
        """Return ε, rounded up, and δ: the largest of the runs. Empty if none was trained."""
        runs = self.runs[name]
        if not any(run.guarantee for run in runs):
            return "", ""
        epsilons, deltas = [run.epsilon for run in runs], [run.delta for run in runs]
        if None in epsilons or None in deltas:
            return "none", "none"
        return up_decimals(max(e for e in epsilons if e)), up_digits(max(d for d in deltas if d))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, with null for numbers that JSON lacks."""
        scores = []
        for name, measure in product(self.runs, self.measures):
            if score := self.score(name, measure):
                finite = {k: None if v == math.inf else v for k, v in asdict(score).items()}
                scores.append({"policy": name, **finite})
        rows = [{"key": list(key)} | asdict(run) for key, run in self.rows.items()]
        stated = {"settings": self.settings, "facts": self.facts, "commands": self.commands}
        return {"scores": scores, **stated, "rows": rows}


def compare_policies(
    request: ComparisonRequest, config: RunConfig, output: Path, command: str, progress: Progress
) -> PolicyResults:
    """Make and score the runs that are missing at `output`, and write table and figure."""
    configs = {name: policy_config(config, name) for name in request.policies}
    check_private_place(output)
    data = read_data(request, config.training.seed, progress)
    # What a run depends on, except its policy and seed. Results of other settings are refused.
    sentences = [canary_format.pattern for canary_format in FORMATS]
    planted = {"copies": list(COPIES), "each": EACH, "sentences": sentences, "method": EXACT}
    rows = {"rows": request.rows, "judge rows": JUDGE_ROWS, "perplexity rows": PERPLEXITY_ROWS}
    settings = data.settings(config) | rows | {"canaries": planted, "about": about()}
    settings["classifiers"] = list(request.classifiers)
    trained_on = set(map(normalised, data.train.texts))
    many, held = len(data.train), len(data.heldout)
    table = "/".join(Path(request.source.name).parts[-2:])
    facts = {
        "title": f"{table}: noise policies on {many} training rows, {held} held out",
        "train": many,
        "held out": held,
        "planted": EACH * sum(COPIES),
        "rows": request.rows,
        "target": " × ".join(data.attributes),
        "coinciding": sum(normalised(text) in trained_on for text in data.heldout.texts),
        "judge rows": min(JUDGE_ROWS, many),
        "perplexity rows": min(PERPLEXITY_ROWS, held),
        "space": max(canary_format.space for canary_format in FORMATS),
    }
    json_file, page, picture = (
        output.with_name(output.name + ending) for ending in (".json", ".md", ".png")
    )
    results = PolicyResults(json.loads(json.dumps(settings)), facts, [command])
    if json_file.exists():
        try:
            kept = json.loads(read_text(json_file))
            for row in kept["rows"]:
                name, seed = row.pop("key")
                results.rows[name, seed] = PolicyRun(**row)
            results.commands = list(dict.fromkeys([*kept["commands"], command]))
            made_under = dict(kept["settings"])
        except DAMAGED as error:
            raise InputError(f"{json_file}: holds no results. Name another `output`.") from error
        check_settings(json_file, results.settings, made_under)
    seeds = range(config.training.seed, config.training.seed + request.seeds)
    keys = [(name, seed) for seed in seeds for name in (REAL_ROWS, BASELINE, *configs)]
    missing = [key for key in keys if key not in results.rows]
    if missing:
        # Each model counts in the table's account, if there is one.
        if account := request.source.open_account("compare", progress):
            of_account = {"budget": request.source.budget, "budget_file": account.file}
            data = replace(data, account=of_account)
            for each in (configs[name] for name, _ in missing if name in configs):
                account.check(each.privacy.target_epsilon is not None)  # before slow work
        # trials load a model
        trials = PolicyTrials(data, request, config, progress)
    for number, (name, seed) in enumerate(missing, start=1):
        progress.say(f"run {number} of {len(missing)}: {name}, seed {seed}")
        results.rows[name, seed] = trials.run(name, seed, configs.get(name))
        write_json(json_file, results.to_dict(), OWNER_ONLY)
    write_text(page, as_markdown(results), OWNER_ONLY)
    picture.touch(OWNER_ONLY)  # matplotlib would create it readable by all
    picture.chmod(OWNER_ONLY)
    write_figure(results, picture)
    return results


class PolicyTrials:
    """Makes runs and scores them, all against the same held-out rows."""

    def __init__(
        self, data: Data, request: ComparisonRequest, config: RunConfig, progress: Progress
    ) -> None:
        self._data, self._rows, self._config, self._progress = data, request.rows, config, progress
        self._train, self._heldout = records_to_frame(data.train), records_to_frame(data.heldout)
        base = load_base(config.training.base_model, say=progress.say)
        for policy in (policy_config(config, name).policy for name in request.policies):
            policy.policy_class.weight_scale(policy, base)  # or it is refused, before any run
        # Labels with the tokenizer's own marks can't be trained on. Found now, not after hours.
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
                f"{budget}. Raise `max_tokens`, or shorten `prompt`."
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
        data = self._data
        if name == REAL_ROWS:
            frame = self._train.sample(min(self._rows, len(self._train)), random_state=seed)
            return PolicyRun(self._score_rows(frame, judged=self._heldout))
        seeded = config or self._config
        training = replace(seeded.training, seed=seed, max_minutes=None)
        sampling = replace(seeded.sampling, seed=seed)
        seeded = replace(seeded, training=training, sampling=sampling)
        canaries = draw_canaries(data.train.schema.combinations, seed)
        epsilon, delta, sentence = None, None, ""
        writer: BaseModel | TwinModel
        if config is None:
            # The rows of the base model have the labels of the real rows in their true shares.
            seeded = settled(seeded, len(data.train))
            labels, schema = Counter(data.train.labels), data.train.schema
            shares = {c: float(labels[c]) for c in schema.combinations}
            counts = proportional(shares, self._rows)
            frame = write_untrained_twin(seeded, schema, data.template, counts, self._progress)
            base_model, device = seeded.training.base_model, seeded.speed.device
            dtype, say = choose_execution(seeded)[0], self._progress.say
            writer = load_base(base_model, dtype=dtype, device=device, say=say)
        else:
            planted = plant(self._train, data.text, data.attributes, canaries)
            writer, twin = data.train_twin(planted, seeded, self._rows, self._progress)
            frame, claim = twin.frame, writer.guarantee
            epsilon, delta, sentence = claim.epsilon, claim.delta, claim.sentence
        self._progress.say("scoring")
        values = self._score_rows(frame, judged=frame)
        values[PERPLEXITY] = perplexity(writer.model, self._probes)
        asked = writer.model, writer.tokenizer
        found = [exposure(*asked, self._prompts[c.label], c) for c in canaries]
        for copies in COPIES:
            bits = [e.bits for e in found if e.canary.copies == copies]
            values[EXPOSURES[copies]] = sum(bits) / len(bits)
        exposures = []
        for e in found:
            stated = {"rank": e.rank, "bits": e.bits, "method": e.method}
            known = {"format": e.canary.format.pattern, "space": e.canary.format.space}
            exposures.append({"copies": e.canary.copies, **known, **stated})
        return PolicyRun(values, epsilon, delta, sentence, exposures)

    def _score_rows(self, frame: pd.DataFrame, judged: pd.DataFrame) -> dict[str, float]:
        """Return accuracies on held-out rows of classifiers from a table, and label fidelity.

        Label fidelity is how often classifiers of real rows agree with the judged rows' labels.
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

    title, notes = results.facts["title"], "\n".join(_write_notes(results))
    table = Table(title=title, caption=notes, caption_justify="left", box=box.SIMPLE_HEAD)
    for name in ("measure", "policy"):
        table.add_column(name, no_wrap=True)
    for name in ("mean", "95 % interval", "seeds"):
        table.add_column(name, justify="right", no_wrap=True)
    blocks: dict[str, list[list[str]]] = {}
    for measure in results.measures:
        scores = ((name, results.score(name, measure)) for name in results.runs)
        taken = [[name, *measure.format_score(s), str(s.n)] for name, s in scores if s]
        blocks[measure.name] = taken
    spent = ((name, results.budget(name)[0]) for name in results.runs)
    blocks["ε"] = [[name, epsilon, "", ""] for name, epsilon in spent if epsilon]
    for title, block in blocks.items():
        for place, cells in enumerate(block, start=1):
            # The title stands once, above its block.
            table.add_row(title if place == 1 else "", *cells, end_section=place == len(block))
    return table


def as_markdown(results: PolicyResults) -> str:
    """Return the same table in Markdown, with the guarantees and how it was made."""
    rows, stated = [], dict[str, None]()
    for name, runs in results.runs.items():
        found = [(m, results.score(name, m)) for m in results.measures]
        scores = (" ".join(m.format_score(score)).strip() if score else "" for m, score in found)
        rows.append([name, str(len(runs)), *results.budget(name), *scores])
        stated |= {f"{plain(name)}: {plain(r.guarantee)}": None for r in runs if r.guarantee}
    made = [f"{plain(k)}: {plain(v)}" for k, v in results.settings["about"].items()]
    parts = (
        [f"**{plain(results.facts['title'])}**"],
        markdown_table(["policy", "seeds", "ε", "δ", *(m.name for m in results.measures)], rows),
        [f"- {plain(note)}" for note in _write_notes(results)],
        ["Guarantees:"],
        [f"- {line}" for line in stated],
        [f"- {line}" for line in made] + [f"- command: {code(c)}" for c in results.commands],
    )
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def write_figure(results: PolicyResults, path: Path) -> None:
    """Draw a panel for each measure: a line for each policy with mean, interval and every seed."""
    from matplotlib.figure import Figure

    columns, names = 2, list(results.runs)
    lines = -(-len(results.measures) // columns)
    size = (10, 0.5 + lines * (0.9 + 0.32 * len(names)))  # inches
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False, sharey=True).flatten()
    for panel, measure in zip(panels, results.measures, strict=False):
        for place, (name, runs) in enumerate(results.runs.items()):
            if (score := results.score(name, measure)) is None:
                continue
            colour = "0.45" if name in (REAL_ROWS, BASELINE) else "C0"
            seeds = [run.values[measure.name] for run in runs if measure.name in run.values]
            panel.plot(seeds, [place + 0.25] * len(seeds), "|", color=colour, markersize=5)
            if score.n > 1:
                panel.plot([score.low, score.high], [place, place], color=colour, linewidth=1.5)
            panel.plot(score.value, place, "o", color=colour, markersize=6)
        unit = ""
        if measure.name in EXPOSURES.values():
            panel.axvline(UNKNOWN, color="0.6", linestyle=":", linewidth=1)
            panel.set_xlim(0, 1.03 * measure.maximum)
            unit = " (bits)"
        panel.set_yticks(range(len(names)), names, fontsize=8)
        panel.set_ylim(len(names) - 0.5, -0.5)
        panel.tick_params(axis="x", labelsize=8)
        panel.grid(axis="x", linewidth=0.4)
        better = "higher" if measure.goal == "maximise" else "lower"
        panel.set_title(f"{measure.name}{unit}: {better} is better", fontsize=9)
    for panel in panels[len(results.measures) :]:
        panel.set_visible(False)
    figure.suptitle(f"{results.facts['title']} (mean, 95 % t interval, seeds)", fontsize=10)
    figure.savefig(path, dpi=150)


def _write_notes(results: PolicyResults) -> list[str]:
    """Return what a reader of the table must know."""
    facts = results.facts
    return [
        "Computed on private rows. Keep it. Only twins may be handed over.",
        "Mean and 95 % t interval over the seeds, which change training, noise, sampling and "
        "canaries. The held-out rows are the same for all. One seed has no interval.",
        f"Labels predicted: {facts['target']}. Each twin has {facts['rows']} rows. Label fidelity "
        f"is judged by classifiers of {facts['judge rows']} real training rows. The row of real "
        "data has equally many training rows. Its label fidelity is the judges' accuracy on "
        f"the held-out rows, which a perfect twin would reach. The rows of “{BASELINE}” have the "
        "labels of the real rows in their true shares, and nothing else from them.",
        f"Exposure in bits: {EXACT} among |R| = {facts['space']} secrets behind the canary's own "
        f"prompt. Mean of {EACH} canaries planted {' and '.join(map(str, COPIES))} times, in all "
        f"{facts['planted']} rows added to the training rows. "
        f"{UNKNOWN:.2f} is what an ignorant model has on average, "
        f"{math.log2(facts['space']):.2f} the most.",
        f"Held-out perplexity: {facts['perplexity rows']} held-out rows. Held-out texts that are "
        f"training texts too: {facts['coinciding']}.",
    ]
