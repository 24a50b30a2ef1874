"""What does training remember? `twinset audit canaries`: plant secrets, train, ask for them.

Two kinds of canaries enter every run. Secrets of a known space, planted 1, 10 and 100 times, are
ranked among all that they could have been: exposure. Others are records of their own that a coin
put in: telling them from those it left out bounds ε from below. Beside them, membership inference
on real rows. Results are kept after every policy, and the same command resumes from them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from evaluation.findings import Curve, Findings, Measured, Score, mean
from evaluation.leakage.canaries import Canary
from evaluation.leakage.echo import CANDIDATES as ECHOED
from evaluation.leakage.echo import Bigrams, echo
from evaluation.leakage.exposure import LARGEST_SPACE, Exposure, exposure
from evaluation.leakage.exposure_extrapolation import extrapolated_exposure
from evaluation.leakage.membership import model_attacks, row_losses
from evaluation.leakage.one_run import include, one_run_audit
from evaluation.leakage.planting import CanaryRequest, planted
from evaluation.leakage.roc import separation
from evaluation.leakage.shift import Sides, sides
from evaluation.leakage.text_membership import text_attacks
from evaluation.policy_runs import Data, policy_config, read_data
from evaluation.results import check_settings
from twinset.config import RunConfig
from twinset.config.plan import default_delta, make_plan
from twinset.errors import InputError
from twinset.files.environment import machine, versions
from twinset.models.base_model import BaseModel, context_length, load_base
from twinset.models.precision import frozen_dtype
from twinset.privacy.statement.theorems import UNIT
from twinset.progress import Progress
from twinset.sampling.twin_model import TwinModel
from twinset.table.tokenization import prompt_tokens, tokenise

RELEASED = "released rows"
CLAIM = "claimed epsilon"
EXPOSURE = "exposure by copies"


def audit_canaries(
    request: CanaryRequest, config: RunConfig, output: Path, command: str, progress: Progress
) -> Findings:
    """Plant, train and ask for each policy that the results at `output` lack.

    Raises:
        InputError: something cannot be used, or the results there are of other settings.
    """
    configs = {name: policy_config(config, name) for name in request.rows.policies}
    data = read_data(request.rows, config.training.seed, progress)
    settings = _settings(request, data, config)
    findings = _resumed(output, settings) or Findings(
        "canaries", _about(request, settings, command, data)
    )
    todo = [name for name in configs if name not in findings.about["policies"]]
    if todo:
        asked = _Questions(request, data, config, findings.about["coins"], progress)
        for name in todo:
            asked.check(configs[name])
        for number, name in enumerate(todo, start=1):
            progress.say(f"run {number} of {len(todo)}: {name}")
            findings = _joined(findings, name, asked.of(name, configs[name]))
            findings.save(output)
    return findings


def _joined(findings: Findings, name: str, found: Findings) -> Findings:
    """Add what one run showed; its `about` is how the lower bound came about."""
    about = dict(findings.about)
    about |= {"policies": [*about["policies"], name]}
    about |= {"bounds": about["bounds"] | {name: found.about}}
    joined = replace(
        findings,
        about=about,
        measured=(*findings.measured, *found.measured),
        notes=tuple(dict.fromkeys((*findings.notes, *found.notes))),
    )
    others = [c for c in findings.curves if not c.name.startswith(EXPOSURE)]
    return replace(joined, curves=(*_curves(joined), *others, *found.curves))


class _Questions:
    """What every run on the table with its canaries is asked."""

    def __init__(
        self,
        request: CanaryRequest,
        data: Data,
        config: RunConfig,
        coins: Sequence[int],
        progress: Progress,
    ) -> None:
        self._request, self._data, self._progress = request, data, progress
        self._seed, self._longest = config.training.seed, config.training.max_tokens
        base = load_base(
            config.training.base_model,
            dtype=frozen_dtype(config),
            device=config.speed.device,
            say=progress.say,
        )
        self._base = base
        combinations = data.train.schema.combinations
        self._prompts = prompt_tokens(data.template, combinations, base.tokenizer)
        self._planted = planted(request, data, config, base, coins, progress)

    def check(self, config: RunConfig) -> None:
        """Refuse before anything is trained what would be refused."""
        make_plan(len(self._planted.frame), config)

    def of(self, name: str, config: RunConfig) -> Findings:
        model, twin = self._data.train_twin(
            self._planted.frame, config, self._request.rows.rows, self._progress
        )
        self._progress.say("asking for the canaries")
        place = {"policy": name}
        texts = [str(cell) for cell in twin.frame[self._data.text].dropna()]
        curve, measured, notes = self._membership(model, texts, place)
        measured += self._exposures(model, texts, place)
        bound: dict[str, Any] = {}
        if model.guarantee.unit == UNIT:
            measured += self._lower_bound(model, place, config, bound)
            if (claimed := twin.epsilon) is not None:
                score = Score(CLAIM, claimed, claimed, claimed, "minimise", 0.0, math.inf, 1)
                measured.append(Measured("leakage", score, place))
        else:
            notes.append(
                f"{name}: no lower bound; it protects {model.guarantee.unit}, which canaries lack"
            )
        return Findings("canaries", bound, tuple(measured), (curve,), notes=tuple(notes))

    def _exposures(
        self, model: TwinModel, texts: list[str], place: dict[str, str]
    ) -> Iterator[Measured]:
        bigrams, secrets = Bigrams(model.tokenizer, texts), self._planted.secrets
        seen = {
            "model": [self._exposure(model, secret) for secret in secrets],
            RELEASED: [echo(bigrams, secret, self._seed) for secret in secrets],
        }
        for sees, found in seen.items():
            for copies in self._request.copies:
                some = [e for e in found if e.canary.copies == copies]
                how = {"candidates": str(some[0].space), "method": some[0].method}
                where = {**place, "copies": str(copies), "sees": sees, **how}
                most = min(some[0].space, ECHOED) if sees == RELEASED else some[0].space
                bits = [e.bits for e in some]
                score = mean("exposure", bits, "minimise", 0.0, float(np.log2(most)))
                yield Measured("leakage", score, where)

    def _exposure(self, model: TwinModel, secret: Canary) -> Exposure:
        asked = model.model, model.tokenizer, self._prompts[secret.label], secret
        if secret.format.space <= LARGEST_SPACE:
            return exposure(*asked)
        return extrapolated_exposure(*asked, seed=self._seed)

    def _lower_bound(
        self, model: TwinModel, place: dict[str, str], config: RunConfig, found: dict[str, Any]
    ) -> Iterator[Measured]:
        if not self._request.coins:
            return
        stated = config.privacy.target_delta  # one δ for all policies: that of the claims
        delta = default_delta(len(self._planted.frame)) if stated is None else stated
        gained = self._before - self._losses(model)
        audit = one_run_audit(gained, self._planted.included, delta)
        found.update(asdict(audit))
        yield audit.measured(place)

    @cached_property
    def _before(self) -> np.ndarray:
        return self._losses(self._base)

    def _losses(self, writer: BaseModel | TwinModel) -> np.ndarray:
        """(coins,) nats of each canary behind its prompt."""
        context, template = context_length(writer.model), self._data.template
        tokens = tokenise(self._planted.coins, template, writer.tokenizer, context, self._longest)
        return row_losses(writer.model, tokens).total

    def _membership(
        self, model: TwinModel, texts: list[str], place: dict[str, str]
    ) -> tuple[Curve, list[Measured], list[str]]:
        tried = self._sides
        members, others = tried.members, tried.non_members
        attacks, notes = model_attacks(model, self._base, members, others, self._progress)
        attacks += text_attacks(texts, members.texts, others.texts, None, self._progress)
        judged = separation(attacks, self._seed, place)
        curve = replace(judged.curve, name=f"{judged.curve.name}, policy {place['policy']}")
        measured = [*judged.measured, *tried.measured]
        return curve, measured, [*tried.notes, *notes, *judged.notes]

    @cached_property
    def _sides(self) -> Sides:
        return sides(self._data.train, self._data.heldout, self._request.members, self._seed)


def _curves(findings: Findings) -> Iterator[Curve]:
    """Yield exposure against copies, a line each policy: by the model, and by the released rows."""
    for sees in ("model", RELEASED):
        series: dict[str, list[tuple[float, ...]]] = {}
        for m in findings.measured:
            if m.score.name == "exposure" and m.place["sees"] == sees:
                point = (float(m.place["copies"]), m.score.value, m.score.low, m.score.high)
                series.setdefault(m.place["policy"], []).append(point)
        title = f"{EXPOSURE}, seen in the {sees}"
        yield Curve("leakage", title, "copies", "exposure, bits", series)


def _settings(request: CanaryRequest, data: Data, config: RunConfig) -> dict[str, Any]:
    return data.settings(config) | {
        "copies": list(request.copies),
        "each": request.each,
        "digits": request.digits,
        "coins": request.coins,
        "members": request.members,
        "rows": request.rows.rows,
    }


def _about(
    request: CanaryRequest, settings: dict[str, Any], command: str, data: Data
) -> dict[str, Any]:
    return {
        "command": command,
        "rows": {"train": len(data.train), "held out": len(data.heldout)},
        "settings": settings,
        "coins": include(request.coins).astype(int).tolist(),
        "policies": [],
        "bounds": {},
        "versions": versions(),
        "machine": machine(),
    }


def _resumed(output: Path, settings: dict[str, Any]) -> Findings | None:
    if not output.is_file():
        return None
    found = Findings.load(output)
    if found.kind != "canaries":
        raise InputError(f"{output}: holds no audit of canaries; name another `output`")
    check_settings(output, settings, found.about["settings"])
    return found
