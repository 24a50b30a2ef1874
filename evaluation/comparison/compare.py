"""`twinset compare`: the noise policies side by side, each trained and scored with several seeds.

Everything it finds is computed on private rows and stays with their owner: label fidelity and
classifier accuracy of the twins, perplexity and canary exposure of the models that wrote them.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from evaluation.comparison.report import as_markdown, write_figure
from evaluation.comparison.results import REAL_ROWS, PolicyResults
from evaluation.comparison.runs import JUDGE_ROWS, PERPLEXITY_ROWS, PolicyTrials
from evaluation.findings import OWNER_ONLY, check_private_place
from evaluation.leakage.canaries import COPIES, EACH, FORMATS
from evaluation.leakage.exposure import EXACT
from evaluation.policy_runs import ComparisonRequest, Data, policy_config, read_data
from evaluation.private_table import BASELINE, coinciding_rows
from evaluation.results import about
from twinset.config import RunConfig
from twinset.files.atomic import write_text
from twinset.progress import Progress


def compare_policies(
    request: ComparisonRequest, config: RunConfig, output: Path, command: str, progress: Progress
) -> PolicyResults:
    """Make and score every run that the results at `output` lack; write table and figure.

    Args:
        request: what to compare.
        config: the options of all runs; policy and seeds are set for each.
        output: results are written to this name with .json, .md and .png appended.
        command: that leads here, for the results.
        progress: is notified of what happens.

    Raises:
        InputError: something cannot be used, or the results there are of other settings.
    """
    configs = {name: policy_config(config, name) for name in request.policies}
    check_private_place(output)
    data = read_data(request, config.training.seed, progress)
    results = _open_results(request, data, config, output, command)
    seeds = range(config.training.seed, config.training.seed + request.seeds)
    keys = [(name, seed) for seed in seeds for name in (REAL_ROWS, BASELINE, *configs)]
    trials: PolicyTrials | None = None
    for turn, (name, seed) in results.missing(keys):
        trials = trials or PolicyTrials(data, request, config, progress)
        progress.say(f"run {turn}: {name}, seed {seed}")
        row = trials.run(str(name), int(seed), configs.get(str(name)))
        results.add((name, seed), asdict(row))
    results.write(scores=results.scores)
    write_text(_beside(output, ".md"), as_markdown(results), OWNER_ONLY)
    figure = _beside(output, ".png")
    figure.touch(OWNER_ONLY)
    figure.chmod(OWNER_ONLY)
    write_figure(results, figure)
    return results


def _open_results(
    request: ComparisonRequest, data: Data, config: RunConfig, output: Path, command: str
) -> PolicyResults:
    settings = _settings(request, data, config)
    results = PolicyResults.open(_beside(output, ".json"), settings, command, OWNER_ONLY)
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
    return results


def _settings(request: ComparisonRequest, data: Data, config: RunConfig) -> dict[str, Any]:
    """Return what a run depends on, but its policy and seed."""
    return data.settings(config) | {
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


def _beside(output: Path, ending: str) -> Path:
    return output.with_name(output.name + ending)
