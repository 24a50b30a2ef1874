"""What does training remember? `twinset audit canaries`: plant secrets, train, ask for them.

Two kinds of canaries enter every run. Secrets of a known space, planted 0, 1, 10 and 100 times, are
ranked among all that they could have been: exposure. Others are records of their own that a coin
put in: telling them from those it left out bounds ε from below. Beside them, membership inference
on real rows. Results are kept after every policy, and the same command resumes from them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from twinset.bounds import check_number, check_options, within
from twinset.config import ROWS, RunConfig
from twinset.config.plan import default_delta, make_plan
from twinset.errors import InputError
from twinset.files.environment import machine, versions
from twinset.models.base_model import BaseModel, context_length, load_base
from twinset.models.layers import frozen_dtype
from twinset.privacy.statement.theorems import UNIT
from twinset.progress import Progress
from twinset.sampling.allocation import proportional
from twinset.sampling.twin_model import TwinModel
from twinset.table.records import Records
from twinset.table.tokenization import prompt_tokens, tokenise

from ..findings import (
    CANARIES,
    LENGTHS,
    PLANTED,
    SECRETS,
    Curve,
    Findings,
    Measured,
    Score,
    check_settings,
    mean,
)
from ..policy_runs import (
    ComparisonRequest,
    Data,
    policy_config,
    read_data,
    write_untrained_twin,
)
from ..release import Twin, records_to_frame, take_records
from .canaries import (
    ECHOED,
    MORE_FORMATS,
    Bigrams,
    Format,
    draw_canaries,
    exposure,
    numbered_formats,
    plant,
    write_coin_canaries,
)
from .membership import model_attacks, row_losses, text_attacks
from .one_run import include, one_run_audit
from .roc import MODEL, RELEASED, draw_sides, separation

CLAIM = "claimed epsilon"
EXPOSURE = "exposure by copies"
COPIES = (0, 1, 10, 100)  # those of no copy were never seen: what chance gives
EACH = 3  # canaries of each number of copies
COINS = 200  # canaries for the lower bound, half of them planted
DIGITS = 3  # of a secret number: names have a space of the same size
OPENINGS = 32  # rows of the base model whose beginnings coins' canaries share


@dataclass(frozen=True)
class CanaryRequest:
    """What is planted and attacked."""

    rows: ComparisonRequest  # the private table, policies, size of the twins, held-out rows
    copies: tuple[int, ...] = COPIES  # how often secrets are planted
    each: int = within(EACH, SECRETS)  # secrets of every number of copies
    digits: int = within(DIGITS, LENGTHS)  # of a secret. With 3, names are planted too.
    coins: int = within(COINS, CANARIES)  # that put in a canary, or not. 0: no lower bound.
    members: int = within(1000, ROWS)  # and held-out rows, for membership inference, at most

    def __post_init__(self) -> None:
        """Refuse numbers out of range, and more secrets than there are sentences."""
        check_options(self)
        most = len(self.formats) // len(self.copies)
        if self.each > most:
            there_are = f"there are sentences for {most} of each of `copies`"
            raise InputError(f"`each={self.each}`: {there_are}")

    @property
    def formats(self) -> tuple[Format, ...]:
        """The sentences that secrets are planted in."""
        return MORE_FORMATS if self.digits == DIGITS else numbered_formats(self.digits)


def parse_copies(text: str) -> tuple[int, ...]:
    """Return the numbers of "0,1,10,100".

    Raises:
        InputError: something is no whole number, or too many.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise InputError("`copies` takes whole numbers with commas between: 0,1,10,100")
    copies = dict.fromkeys(map(int, parts))
    for number in copies:
        check_number("`copies`", number, PLANTED, is_whole=True)
    return tuple(copies)


def audit_canaries(
    request: CanaryRequest, config: RunConfig, output: Path, command: str, progress: Progress
) -> Findings:
    """Plant, train and ask for each policy that the results at `output` lack.

    The results are a JSON file that is kept after every policy.

    Raises:
        InputError: something cannot be used, or the results there are of other settings.
    """
    configs = {name: policy_config(config, name) for name in request.rows.policies}
    data = read_data(request.rows, config.training.seed, progress)
    asked = ("copies", "each", "digits", "coins", "members")
    settings = data.settings(config) | {name: getattr(request, name) for name in asked}
    settings |= {"copies": list(request.copies), "rows": request.rows.rows}
    if output.is_file():
        findings = Findings.load(output)
        if findings.kind != "canaries":
            raise InputError(f"{output}: holds no audit of canaries; name another `output`")
        check_settings(output, settings, findings.about["settings"])
    else:
        about = {
            "command": command,
            "rows": {"train": len(data.train), "held out": len(data.heldout)},
            "settings": settings,
            # The coins are kept: a resumed audit must plant what the first policies had.
            "coins": include(request.coins).astype(int).tolist(),
            "policies": [],
            "bounds": {},
            "versions": versions(),
            "machine": machine(),
        }
        findings = Findings("canaries", about)
    todo = [name for name in configs if name not in findings.about["policies"]]
    if not todo:
        return findings
    planted = PlantedTable(request, data, config, findings.about["coins"], progress)
    for name in todo:  # refused before anything is trained
        make_plan(len(planted.frame), configs[name])
    for number, name in enumerate(todo, start=1):
        progress.say(f"run {number} of {len(todo)}: {name}")
        model, twin = data.train_twin(planted.frame, configs[name], request.rows.rows, progress)
        progress.say("asking for the canaries")
        found = planted.attack(name, configs[name], model, twin)
        about = {**findings.about, "policies": [*findings.about["policies"], name]}
        about["bounds"] = about["bounds"] | {name: found.about}
        measured = (*findings.measured, *found.measured)
        others = [c for c in findings.curves if not c.name.startswith(EXPOSURE)]
        findings = replace(
            findings,
            about=about,
            measured=measured,
            curves=(*_exposure_curves(measured), *others, *found.curves),
            notes=tuple(dict.fromkeys((*findings.notes, *found.notes))),
        )
        findings.save(output)
    return findings


def _exposure_curves(measured: Sequence[Measured]) -> Iterator[Curve]:
    """Yield exposure against copies, a line each policy: by the model, and by the released rows."""
    for sees in (MODEL, RELEASED):
        series: dict[str, list[tuple[float, ...]]] = {}
        for m in measured:
            if m.score.name == "exposure" and m.place["sees"] == sees:
                point = (float(m.place["copies"]), m.score.value, m.score.low, m.score.high)
                series.setdefault(m.place["policy"], []).append(point)
        title = f"{EXPOSURE}, seen in the {sees}"
        yield Curve("leakage", title, "copies", "exposure, bits", series)


class PlantedTable:
    """The table with its canaries, and what every run on it is asked.

    Everything is drawn by the training seed but the coins (m,), which say whose canaries are in the
    table. An audit of one run must not be able to repeat them.
    """

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
        name, device = config.training.base_model, config.speed.device
        self._base = load_base(name, dtype=frozen_dtype(config), device=device, say=progress.say)
        schema, tokenizer = data.train.schema, self._base.tokenizer
        labels = schema.combinations
        self._prompts = prompt_tokens(data.template, labels, tokenizer)
        self._secrets = draw_canaries(
            labels, self._seed, request.copies, request.each, request.formats
        )
        texts: list[str] = []
        if request.coins:  # Beginnings are public: the base model writes them.
            counts = proportional({label: 1.0 for label in labels}, OPENINGS)
            written = write_untrained_twin(config, schema, data.template, counts, progress)
            openings = [str(cell) for cell in written[schema.text]]
            texts = write_coin_canaries(openings, tokenizer, request.coins, self._seed)
        drawn = np.random.default_rng(self._seed).integers(len(labels), size=len(texts))
        self._coins = Records(texts, [labels[i] for i in drawn], schema)
        self._included = np.array(coins, dtype=bool)
        frame = plant(records_to_frame(data.train), data.text, data.attributes, self._secrets)
        thrown = records_to_frame(take_records(self._coins, np.flatnonzero(self._included)))
        self.frame = pd.concat([frame, thrown[frame.columns]], ignore_index=True)
        self._losses_before = self._coin_losses(self._base) if request.coins else np.zeros(0)
        self._sides = draw_sides(data.train, data.heldout, request.members, self._seed)

    def attack(self, name: str, config: RunConfig, model: TwinModel, twin: Twin) -> Findings:
        """Return what one policy's run showed. Its `about` is how the lower bound came about."""
        place, sides = {"policy": name}, self._sides
        texts = [str(cell) for cell in twin.frame[self._data.text].dropna()]
        members, others = sides.members, sides.non_members
        attacks, notes = model_attacks(model, self._base, members, others, self._progress)
        attacks += text_attacks(texts, members.texts, others.texts, None, self._progress)
        judged = separation(attacks, self._seed, place)
        curve = replace(judged.curve, name=f"{judged.curve.name}, policy {name}")
        measured = [*judged.measured, *sides.measured]
        notes = [*sides.notes, *notes, *judged.notes]

        # Mean exposure by copies, asked of the model and of the released rows. Read it beside the
        # one of secrets with no copy, which nobody has seen.
        bigrams, asked = Bigrams(model.tokenizer, texts), (model.model, model.tokenizer)
        by_model = [
            exposure(*asked, self._prompts[s.label], s, seed=self._seed) for s in self._secrets
        ]
        by_rows = [bigrams.rank(secret, self._seed) for secret in self._secrets]
        for sees, found in ((MODEL, by_model), (RELEASED, by_rows)):
            for copies in self._request.copies:
                some = [each for each in found if each.canary.copies == copies]
                space, bits = some[0].space, [each.bits for each in some]
                most = float(np.log2(min(space, ECHOED) if sees == RELEASED else space))
                where = {**place, "copies": str(copies), "sees": sees}
                where |= {"candidates": str(space), "method": some[0].method}
                score = mean("exposure", bits, "minimise", 0.0, most)
                measured.append(Measured("leakage", score, where))

        # The lower bound of ε, by which of the coins' canaries training made more likely.
        bound: dict[str, Any] = {}
        if model.guarantee.unit != UNIT:
            notes.append(
                f"{name}: no lower bound; it protects {model.guarantee.unit}, which canaries lack"
            )
        else:
            if self._request.coins:
                stated = config.privacy.target_delta  # one δ for all policies: that of the claims
                delta = default_delta(len(self.frame)) if stated is None else stated
                gained = self._losses_before - self._coin_losses(model)
                audit = one_run_audit(gained, self._included, delta)
                bound = asdict(audit)
                measured.append(audit.measured(place))
            if (claimed := twin.epsilon) is not None:
                score = Score(CLAIM, claimed, claimed, claimed, "minimise", 0.0, math.inf, 1)
                measured.append(Measured("leakage", score, place))
        return Findings("canaries", bound, tuple(measured), (curve,), notes=tuple(notes))

    def _coin_losses(self, writer: BaseModel | TwinModel) -> np.ndarray:
        """(coins,) nats of each coin's canary behind its prompt."""
        context, template = context_length(writer.model), self._data.template
        tokens = tokenise(self._coins, template, writer.tokenizer, context, self._longest)
        return row_losses(writer.model, tokens).total
