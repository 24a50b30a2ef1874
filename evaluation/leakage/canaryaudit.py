"""What does training remember? `twinset audit canaries`: plant secrets, train, ask for them.

Two kinds of canaries enter every run. Secrets of a known space, planted 1, 10 and 100 times, are
ranked among all that they could have been: exposure. Others are records of their own that a coin
put in: telling them from those it left out bounds ε from below. Beside them, membership inference
on real rows. Results are kept after every policy, and the same command goes on from them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from evaluation.baseline import untrained_twin
from evaluation.canaries import MORE_FORMATS, draw_canaries, plant
from evaluation.exposure import Exposure, exposure
from evaluation.findings import Curve, Findings, Measured
from evaluation.leakage.coins import coin_canaries
from evaluation.leakage.echo import Bigrams, echo
from evaluation.leakage.membership import model_attacks, row_losses
from evaluation.leakage.onerun import include, one_run_audit
from evaluation.leakage.roc import separation
from evaluation.leakage.shift import shift, without_shared
from evaluation.leakage.textmembership import text_attacks
from evaluation.policycomparison import policy_config
from evaluation.policydata import Data, fingerprint, read_data, table, take
from evaluation.policydata import Wanted as Rows
from evaluation.scores import Score, mean
from evaluation.surroundings import machine, versions
from evaluation.twins import Twin, train_twin
from twinset.allocation import proportional
from twinset.basemodel import BaseModel, context_length, load_base
from twinset.config import RunConfig
from twinset.errors import InputError
from twinset.plan import default_delta, make_plan
from twinset.precision import frozen_dtype
from twinset.privacy.ledger import UNIT
from twinset.progress import Progress
from twinset.records import Records
from twinset.tokens import prompt_tokens, tokenise
from twinset.twinmodel import TwinModel

COPIES = (0, 1, 10, 100)  # those of no copy were never seen: what chance gives
EACH = 3  # canaries of each number of copies
COINS = 200  # canaries for the lower bound, half of them planted
OPENINGS = 32  # rows of the base model whose beginnings they share
CLAIM = "claimed epsilon"
EXPOSURE = "exposure by copies"


@dataclass(frozen=True)
class Wanted:
    """What is planted and attacked.

    Args:
        rows: the private table, policies, size of the twins, held-out rows.
        copies: how often secrets are planted.
        each: secrets of every number of copies.
        coins: canaries that a coin puts in or leaves out; 0 leaves the lower bound out.
        members: at most so many training rows, and held-out rows, for membership inference.
    """

    rows: Rows
    copies: tuple[int, ...] = COPIES
    each: int = EACH
    coins: int = COINS
    members: int = 1000


def copies_of(text: str) -> tuple[int, ...]:
    """Return the numbers of "0,1,10,100".

    Raises:
        InputError: something is no whole number.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise InputError("--copies takes whole numbers with commas between: 0,1,10,100")
    return tuple(dict.fromkeys(map(int, parts)))


def audit_canaries(
    wanted: Wanted, config: RunConfig, output: Path, command: str, progress: Progress
) -> Findings:
    """Plant, train and ask for each policy that the results at `output` lack.

    Raises:
        InputError: something cannot be used, or the results there are of other settings.
    """
    configs = {name: policy_config(config, name) for name in wanted.rows.policies}
    most = len(MORE_FORMATS) // len(wanted.copies)
    if wanted.each > most:
        raise InputError(f"--each {wanted.each}: there are sentences for {most} of each --copies")
    data = read_data(wanted.rows, config.training.seed, progress)
    settings = _settings(wanted, data, config)
    findings = _resumed(output, settings) or Findings(
        "canaries", _about(wanted, settings, command, data)
    )
    todo = [name for name in configs if name not in findings.about["policies"]]
    if todo:
        planting = _Planting(wanted, data, config, findings.about["coins"], progress)
        for name in todo:
            planting.check(configs[name])
        for number, name in enumerate(todo, start=1):
            progress.say(f"run {number} of {len(todo)}: {name}")
            findings = _joined(findings, name, planting.run(name, configs[name]))
            findings.save(output)
    return findings


@dataclass
class _Found:
    """What one run showed."""

    measured: list[Measured]
    curves: list[Curve]
    notes: list[str]
    bound: dict[str, Any]  # how the lower bound came about


def _joined(findings: Findings, name: str, found: _Found) -> Findings:
    about = findings.about
    about = {
        **about,
        "policies": [*about["policies"], name],
        "bounds": {**about["bounds"], name: found.bound},
    }
    joined = replace(
        findings,
        about=about,
        measured=(*findings.measured, *found.measured),
        notes=tuple(dict.fromkeys((*findings.notes, *found.notes))),
    )
    others = [c for c in findings.curves if not c.name.startswith(EXPOSURE)]
    return replace(joined, curves=(*_curves(joined), *others, *found.curves))


class _Planting:
    """The table with its canaries, and what every run on it is asked."""

    def __init__(
        self,
        wanted: Wanted,
        data: Data,
        config: RunConfig,
        coins: Sequence[int],
        progress: Progress,
    ) -> None:
        self._wanted, self._data, self._progress = wanted, data, progress
        seed, schema = config.training.seed, data.train.schema
        self._base = load_base(
            config.training.base_model, dtype=frozen_dtype(config), say=progress.say
        )
        self._prompts = prompt_tokens(data.template, schema.combinations, self._base.tokenizer)
        self._canaries = draw_canaries(
            schema.combinations, seed, wanted.copies, wanted.each, MORE_FORMATS
        )
        self._coins = self._coin_records(config)
        self._included = np.array(coins, dtype=bool)
        self._frame = self._planted()

    def check(self, config: RunConfig) -> None:
        """Refuse before anything is trained what would be refused."""
        make_plan(len(self._frame), config)

    def run(self, name: str, config: RunConfig) -> _Found:
        data = self._data
        model, twin = train_twin(
            self._frame,
            data.text,
            data.attributes,
            config,
            data.template,
            self._wanted.rows.rows,
            self._progress,
        )
        self._progress.say("asking for the canaries")
        place = {"policy": name}
        texts = [str(cell) for cell in twin.frame[data.text].dropna()]
        found = self._membership(model, texts, place, config.training.seed)
        found.measured += self._exposures(model, texts, place)
        if model.guarantee.unit == UNIT:
            delta = self._delta(config)
            found.measured += [*self._lower_bound(model, place, delta, found.bound)]
            found.measured += _claim(twin, place)
        else:
            found.notes.append(
                f"{name}: no lower bound; it protects {model.guarantee.unit}, which canaries lack"
            )
        return found

    def _delta(self, config: RunConfig) -> float:
        """Return one δ for all policies: that of the claims."""
        delta = config.privacy.target_delta
        return default_delta(len(self._frame)) if delta is None else delta

    def _exposures(
        self, model: TwinModel, texts: list[str], place: dict[str, str]
    ) -> Iterator[Measured]:
        bigrams = Bigrams(model.tokenizer, texts)
        prompts = self._prompts
        seen = {
            "model": [
                exposure(model.model, model.tokenizer, prompts[c.label], c) for c in self._canaries
            ],
            "released rows": [echo(bigrams, c) for c in self._canaries],
        }
        for sees, found in seen.items():
            for copies in self._wanted.copies:
                some = [e for e in found if e.canary.copies == copies]
                how = {"candidates": str(some[0].space), "method": some[0].method}
                where = {**place, "copies": str(copies), "sees": sees, **how}
                yield Measured("leakage", _mean_exposure(some), where)

    def _lower_bound(
        self, model: TwinModel, place: dict[str, str], delta: float, told: dict[str, Any]
    ) -> Iterator[Measured]:
        if not self._wanted.coins:
            return
        before, after = (self._losses(writer) for writer in (self._base, model))
        found = one_run_audit(before - after, self._included, delta)
        told.update(asdict(found))
        yield found.measured(place)

    def _losses(self, writer: BaseModel | TwinModel) -> np.ndarray:
        """(coins,) nats of each canary behind its prompt."""
        context, template = context_length(writer.model), self._data.template
        tokens = tokenise(self._coins, template, writer.tokenizer, context, self._longest)
        return row_losses(writer.model, tokens).total

    def _membership(
        self, model: TwinModel, texts: list[str], place: dict[str, str], seed: int
    ) -> _Found:
        """Tell training rows from held-out ones: without the shared, and what two tables show."""
        members, others, shared = without_shared(self._data.train, self._data.heldout)
        shifted, differ = shift(members.texts, others.texts, seed)
        rng, most = np.random.default_rng(seed), self._wanted.members
        members, others = (
            take(rows, rng.permutation(len(rows))[:most]) for rows in (members, others)
        )
        attacks, notes = model_attacks(model, self._base, members, others, self._progress)
        attacks += text_attacks(texts, members.texts, others.texts, None, self._progress)
        judged = separation(attacks, seed, place)
        measured = [*judged.measured, *([] if shifted is None else [shifted])]
        curve = replace(judged.curve, name=f"{judged.curve.name}, policy {place['policy']}")
        return _Found(measured, [curve], [*shared, *differ, *notes, *judged.notes], {})

    def _coin_records(self, config: RunConfig) -> Records:
        """Return the canaries of the lower bound with labels drawn at random."""
        schema, many = self._data.train.schema, self._wanted.coins
        self._longest = config.training.max_tokens
        counts = proportional({c: 1.0 for c in schema.combinations}, OPENINGS)
        written = untrained_twin(
            config.training.base_model,
            schema,
            self._data.template,
            counts,
            config.sampling,
            self._longest,
            dtype=frozen_dtype(config),
            progress=self._progress,
        )
        openings = [str(cell) for cell in written[schema.text]]
        texts = coin_canaries(openings, self._base.tokenizer, many, config.training.seed)
        rng = np.random.default_rng(config.training.seed)
        drawn = rng.integers(len(schema.combinations), size=many)
        return Records(texts, [schema.combinations[i] for i in drawn], schema)

    def _planted(self) -> pd.DataFrame:
        """Return the private table with every canary that goes in."""
        data = self._data
        secrets = plant(table(data.train), data.text, data.attributes, self._canaries)
        chosen = take(self._coins, np.flatnonzero(self._included))
        return pd.concat([secrets, table(chosen)[secrets.columns]], ignore_index=True)


def _claim(twin: Twin, place: dict[str, str]) -> Iterator[Measured]:
    """Yield the ε that was claimed, if one was."""
    if (epsilon := twin.epsilon) is not None:
        score = Score(CLAIM, epsilon, epsilon, epsilon, "minimise", 0.0, math.inf, 1)
        yield Measured("leakage", score, place)


def _mean_exposure(found: Sequence[Exposure]) -> Score:
    spaces = {e.space for e in found}
    most = float(np.log2(max(spaces)))
    return mean("exposure", [e.bits for e in found], "minimise", 0.0, most)


def _curves(findings: Findings) -> Iterator[Curve]:
    """Yield exposure against copies, a line each policy: by the model, and by the released rows."""
    for sees in ("model", "released rows"):
        series: dict[str, list[tuple[float, ...]]] = {}
        for m in findings.measured:
            if m.score.name == "exposure" and m.place["sees"] == sees:
                point = (float(m.place["copies"]), m.score.value, m.score.low, m.score.high)
                series.setdefault(m.place["policy"], []).append(point)
        title = f"{EXPOSURE}, seen in the {sees}"
        yield Curve("leakage", title, "copies", "exposure, bits", series)


def _settings(wanted: Wanted, data: Data, config: RunConfig) -> dict[str, Any]:
    options = config.to_dict()
    del options["policy"]["noise_policy"]
    return {
        "train": fingerprint(data.train),
        "held out": fingerprint(data.heldout),
        "prompt": data.template.pattern,
        "copies": list(wanted.copies),
        "each": wanted.each,
        "coins": wanted.coins,
        "members": wanted.members,
        "rows": wanted.rows.rows,
        "options": options,
    }


def _about(wanted: Wanted, settings: dict[str, Any], command: str, data: Data) -> dict[str, Any]:
    return {
        "command": command,
        "rows": {"train": len(data.train), "held out": len(data.heldout)},
        "settings": settings,
        "coins": include(wanted.coins).astype(int).tolist(),
        "policies": [],
        "bounds": {},
        "versions": versions(),
        "machine": machine(),
    }


def _resumed(output: Path, settings: dict[str, Any]) -> Findings | None:
    if not output.is_file():
        return None
    found = Findings.load(output)
    if found.kind != "canaries" or found.about["settings"] != settings:
        raise InputError(f"{output} holds results of other settings; name another file")
    return found
