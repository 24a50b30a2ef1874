"""`twinset compare`: the noise policies side by side, each trained and scored with several seeds.

Everything it finds is computed on private rows and stays with their owner: label fidelity and
classifier accuracy of the twins, perplexity and canary exposure of the models that wrote them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from evaluation.canaries import COPIES, EACH, FORMATS
from evaluation.exposure import EXACT
from evaluation.policybench import JUDGE_ROWS, PERPLEXITY_ROWS, Bench
from evaluation.policydata import NO_PRIVACY, POLICIES, Data, Wanted, read_data
from evaluation.policyreport import as_markdown, write_figure
from evaluation.policyresults import REAL_ROWS, PolicyResults, measures
from evaluation.tables import BASELINE, coinciding_rows
from twinset.artefact import write_text
from twinset.config import RunConfig
from twinset.errors import InputError
from twinset.progress import Progress
from twinset.surroundings import machine, versions


def compare_policies(
    wanted: Wanted, config: RunConfig, output: Path, command: str, progress: Progress
) -> PolicyResults:
    """Make and score every run that the results at `output` lack; write table and figure.

    Args:
        wanted: what to compare.
        config: the options of all runs; policy and seeds are set for each.
        output: results are written to this name with .json, .md and .png appended.
        command: that leads here, for the results.
        progress: is told what happens.

    Raises:
        InputError: something cannot be used, or the results there are of other settings.
    """
    configs = {name: policy_config(config, name) for name in wanted.policies}
    if not output.parent.is_dir():
        raise InputError(f"--output {output}: its folder does not exist; create it")
    data = read_data(wanted, config.training.seed, progress)
    results = _open_results(wanted, data, config, output, command)
    seeds = range(config.training.seed, config.training.seed + wanted.seeds)
    todo = [
        (name, seed)
        for seed in seeds
        for name in (REAL_ROWS, BASELINE, *configs)
        if (name, seed) not in results.rows
    ]
    if todo:
        bench = Bench(data, wanted, config, progress)
        for number, (name, seed) in enumerate(todo, start=1):
            progress.say(f"run {number} of {len(todo)}: {name}, seed {seed}")
            results.add(bench.run(name, seed, configs.get(name)))
    results.write()
    write_text(_beside(output, ".md"), as_markdown(results))
    write_figure(results, _beside(output, ".png"))
    return results


def policy_config(config: RunConfig, name: str) -> RunConfig:
    """Return the options of one policy's runs.

    Raises:
        InputError: there is no such policy, or it contradicts an option.
    """
    if name == NO_PRIVACY:
        return replace(config, privacy=replace(config.privacy, target_epsilon=None))
    if config.privacy.target_epsilon is None:
        raise InputError(f"--epsilon is needed; without privacy: --policies {NO_PRIVACY}")
    policy = next((policy for policy in POLICIES if policy == name), None)
    if policy is None:
        known = ", ".join((*POLICIES, NO_PRIVACY))
        raise InputError(f"--policies: there is no policy {name!r}; there are {known}")
    return replace(config, policy=replace(config.policy, noise_policy=policy))


def _open_results(
    wanted: Wanted, data: Data, config: RunConfig, output: Path, command: str
) -> PolicyResults:
    space = max(canary_format.space for canary_format in FORMATS)
    facts = {
        "data": "/".join(Path(wanted.source.data).parts[-2:]),
        "train": len(data.train),
        "held out": len(data.heldout),
        "planted": EACH * sum(COPIES),
        "rows": wanted.rows,
        "target": " × ".join(data.attributes),
        "coinciding": coinciding_rows(data.train.texts, data.heldout.texts),
        "judge rows": min(JUDGE_ROWS, len(data.train)),
        "perplexity rows": min(PERPLEXITY_ROWS, len(data.heldout)),
        "space": space,
    }
    results = PolicyResults(
        _beside(output, ".json"),
        _settings(wanted, data, config),
        facts,
        measures(wanted.classifiers, space),
        [command],
    )
    results.resume()
    return results


def _settings(wanted: Wanted, data: Data, config: RunConfig) -> dict[str, Any]:
    """Return what a run depends on, but its policy and seed; the tables by their hashes."""
    options = config.to_dict()
    del options["policy"]["noise_policy"]
    here = machine()
    return {
        "train": data.train.fingerprint(),
        "held out": data.heldout.fingerprint(),
        "prompt": data.template.pattern,
        "rows": wanted.rows,
        "judge rows": JUDGE_ROWS,
        "perplexity rows": PERPLEXITY_ROWS,
        "classifiers": list(wanted.classifiers),
        "canaries": {
            "copies": list(COPIES),
            "each": EACH,
            "sentences": [canary_format.pattern for canary_format in FORMATS],
            "method": EXACT,
        },
        "options": options,
        "about": {
            "versions": ", ".join(f"{k} {v}" for k, v in versions().items()),
            "machine": f"{here['cpu']}, {here['cores']} cores",
        },
    }


def _beside(output: Path, ending: str) -> Path:
    return output.with_name(output.name + ending)
