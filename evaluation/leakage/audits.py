"""Does it leak? `twinset audit RUN|TWIN` and `twinset audit canaries` run and report every attack.

The first attacks the release. Members are rows the twin was made from. Non-members are rows of the
same kind that it was not made from. Attacks that need only the twin run without a model.

The second asks what training remembers: plant secrets, train, ask for them. Two kinds of canaries
enter every run. Secrets of a known space, planted 0, 1, 10 and 100 times, are ranked among all
possible secrets: exposure. The others are separate records that a coin includes. Telling them from
those it left out bounds ε from below. Membership inference on real rows is measured as well.
Results are kept after every policy, and the same command resumes from them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from twinset.bounds import SEEDS, check_options, setting
from twinset.config import ROWS, RunConfig
from twinset.config.plan import default_delta, make_plan
from twinset.errors import InputError
from twinset.files.environment import machine, versions
from twinset.models.base_model import BaseModel, context_length, load_base
from twinset.models.layers import choose_execution
from twinset.privacy.statement.theorems import UNIT
from twinset.progress import Progress
from twinset.sampling.allocation import proportional
from twinset.sampling.twin_model import TwinModel
from twinset.table.kinds import ColumnRules
from twinset.table.read import write_frame
from twinset.table.records import Records, records_from_frame
from twinset.table.tokenization import prompt_tokens, tokenise

from ..findings import (
    ATTACKED,
    CANARIES,
    LENGTHS,
    OWNER_ONLY,
    SECRETS,
    Findings,
    Measured,
    Score,
    check_settings,
    mean,
)
from ..policy_runs import ComparisonRequest, Data, policy_config, read_data, write_untrained_twin
from ..release import AS_THEY_ARE, Forms, Release, Twin, records_to_frame, take_records
from ..utility.classifiers import SentenceEncoder
from . import canaries, roc
from .copies import NEAR, TRAIN, overlap
from .membership import column_attacks, model_attacks, row_losses, text_attacks
from .names import mean_reciprocal_rank, phone_exposure, replay
from .noise import NOISE, lacks_noise, measured_noise

FILE, RISKIEST_FILE = "audit.json", "riskiest.csv"
ROWS_TRIED = 1000  # of members and of non-members that attacks look at
COPIES = (0, 1, 10, 100)  # those of no copy were never seen: what chance gives
EACH = 3  # canaries of each number of copies
COINS = 200  # canaries for the lower bound, half of them planted
DIGITS = 3  # of a secret number: names have a space of the same size
OPENINGS = 32  # rows of the base model whose beginnings coins' canaries share


@dataclass(frozen=True)
class AuditRequest:
    """What is attacked, and with which rows."""

    members: Path  # the private table
    non_members: Path  # real rows held out
    text: str | None = None  # column, or the template it was joined by. None: the run's, or a guess
    forms: Forms = AS_THEY_ARE  # how the files of real rows are read
    attributes: tuple[str, ...] = ()  # label columns. Empty: the run's, or a guess.
    rows: int = setting(ROWS_TRIED, bounds=ATTACKED)  # members, and non-members, tried at most
    seed: int = setting(0, bounds=SEEDS)

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_options(self)


def audit_release(
    release: Release,
    request: AuditRequest,
    command: str,
    progress: Progress,
    model: TwinModel | None = None,
) -> Findings:
    """Attack a release: its model or that of its run folder, and the twin alone."""
    notes: list[str] = []
    run, seed = release.run, request.seed
    paths = request.members, request.non_members
    frames, text, attributes = release.real_tables(paths, request, notes)
    twin = [str(cell) for cell in release.twin.frame[text].dropna()]
    if not twin:
        raise InputError(f"{release.path}: the twin has no texts. Give another file.")
    known, taken = set(frames[0]) & set(frames[1]), {text, *attributes}
    keep = ColumnRules(tuple(n for n in release.twin.frame if n in known - taken))
    members, others = (
        records_from_frame(frame, text, attributes, source=str(path), drop_empty=True, keep=keep)[0]
        for path, frame in zip(paths, frames, strict=True)
    )
    sides = roc.draw_sides(members, others, request.rows, seed)
    notes += sides.notes
    measured: list[Measured] = []
    if run is not None and model is None:
        model = TwinModel.load(run.root, release.device)
    if model is None:
        attacks: list[roc.Attack] = []
        notes.append("the model was not attacked. To attack it, name its run folder.")
    else:
        base = None  # without a run nothing says which model it was before
        if run is not None:
            training, device = run.config.training, run.config.speed.device
            try:
                base = load_base(training.base_model, device=device, say=progress.say)
            except InputError:
                base = None
            if base is not None and base.origin != model.base_origin:
                base = None  # the hub, or the folder, holds another now
        attacks, more = model_attacks(model, base, sides.members, sides.non_members, progress)
        for rows, records in (("train", sides.members), ("held-out", sides.non_members)):
            measured += phone_exposure(model, records, rows, seed=seed, progress=progress)
            try:
                measured += mean_reciprocal_rank(model, records, rows, seed=seed, progress=progress)
            except InputError as error:
                more.append(f"names were not tried: {error}")
        notes += dict.fromkeys(more)
    measured += sides.measured
    if run is not None and model is not None:
        measured += measured_noise(run.internal, model.ledger.events)
    encode = SentenceEncoder(progress.say, release.device).encode
    tried = sides.members.texts, sides.non_members.texts
    attacks += text_attacks(twin, *tried, encode, progress)
    of_columns, guessed = column_attacks(release.twin.frame, sides.members, sides.non_members)
    attacks, measured = [*attacks, *of_columns], [*measured, *guessed]
    measured += overlap(twin, members.texts, others.texts, encode, seed=seed, progress=progress)
    replayed, more = replay(twin, members.texts, others.texts, progress=progress)
    judged, curve, rates = roc.separation(attacks, seed)
    at_risk, found, risks = roc.find_riskiest(attacks, seed)
    if run is not None:
        shown = records_to_frame(take_records(sides.members, found))
        shown.insert(0, "risk", risks.round(4), allow_duplicates=True)
        write_frame(shown, run.internal / RISKIEST_FILE)
        (run.internal / RISKIEST_FILE).chmod(OWNER_ONLY)
        notes.append(f"the riskiest rows are in internal/{RISKIEST_FILE}, for you alone")
    counted = {"twin": len(twin), "members": len(members), "non-members": len(others)}
    about = {"seed": seed, "rows": counted, "tried": request.rows}
    about = release.about(command, request.members) | about
    scores = (*judged, at_risk, *measured, *replayed)  # what attacks are worth comes first
    return Findings("audit", about, scores, (curve,), notes=(*notes, *more, *rates))


def check_limits(
    findings: Findings, max_auroc: float | None = None, max_copied: int | None = None
) -> list[str]:
    """Return what of an audit's findings is over a limit, one line each. Empty: it passes.

    Missing noise is over any limit, and so is a number that is missing. The verdict allows for
    chance, and a limit does not: with a thousand members and no leak, 19 of 20 AUROCs are within
    0.03 of 0.5.

    Args:
        findings: of `audit_release`.
        max_auroc: the largest AUROC that any attack may reach.
        max_copied: the most rows of the twin that may be near-duplicates of members.
    """
    over = [
        f"{NOISE} ({m.place['release']}) is {m.score.value:.2f} of what the ledger says"
        for m in findings.measured
        if lacks_noise(m.score)
    ]
    for name, limit in ((roc.AUROC, max_auroc), (NEAR, max_copied)):
        if limit is None:
            continue
        found = [m for m in findings.measured if m.score.name == name and not m.part]
        if name == NEAR:
            found = [m for m in found if m.place["against"] == TRAIN]
        if not found:
            over.append(f"{name} was not measured")
        for each in found:
            value = each.score.value
            if name == NEAR:  # a share of the twin's rows
                value = round(value * each.score.n)
            if not value <= limit:  # not a number fails, too
                over.append(f"{name} ({', '.join(each.place.values())}) is {value:.3g}")
    return over


@dataclass(frozen=True)
class CanaryRequest:
    """What is planted and attacked."""

    rows: ComparisonRequest  # the private table, policies, size of the twins, held-out rows
    copies: tuple[int, ...] = COPIES  # how often secrets are planted
    each: int = setting(EACH, bounds=SECRETS)  # secrets of every number of copies
    digits: int = setting(DIGITS, bounds=LENGTHS)  # of a secret. With 3, names are planted too.
    coins: int = setting(COINS, bounds=CANARIES)  # that put in a canary, or not. 0: no lower bound.
    members: int = setting(1000, bounds=ROWS)  # and held-out rows, for membership inference

    def __post_init__(self) -> None:
        """Refuse numbers out of range, and more secrets than there are sentences."""
        check_options(self)
        most = len(self.formats) // len(self.copies)
        if self.each > most:
            there_are = f"there are only sentences for {most} of each of `copies`. Lower it."
            raise InputError(f"`each={self.each}`: {there_are}")

    @property
    def formats(self) -> tuple[canaries.Format, ...]:
        """The sentences that secrets are planted in."""
        if self.digits == DIGITS:
            return canaries.MORE_FORMATS
        # Rows with any number, with numbers of this many digits.
        numbered = (f.pattern for f in canaries.MORE_FORMATS if len(f.fields) == 1)
        gaps, fields = "{}" * self.digits, (tuple("0123456789"),) * self.digits
        return tuple(
            canaries.Format(pattern.replace("{}", gaps), fields)
            for pattern in numbered
            if "020" not in pattern
        )


def audit_canaries(
    request: CanaryRequest, config: RunConfig, output: Path, command: str, progress: Progress
) -> Findings:
    """Plant, train and ask, for each policy that is missing in the results at `output`.

    The results are a JSON file that is kept after every policy. Results of other settings are
    refused.
    """
    configs = {name: policy_config(config, name) for name in request.rows.policies}
    data = read_data(request.rows, config.training.seed, progress)
    asked = ("copies", "each", "digits", "coins", "members")
    settings = data.settings(config) | {name: getattr(request, name) for name in asked}
    settings |= {"copies": list(request.copies), "rows": request.rows.rows}
    if output.is_file():
        findings = Findings.load(output)
        if findings.kind != "canaries":
            raise InputError(f"{output}: holds no audit of canaries. Name another `output`.")
        check_settings(output, settings, findings.about["settings"])
    else:
        # The coins are kept, because a resumed audit must plant the same canaries.
        coins = roc.include(request.coins).astype(int).tolist()
        rows = {"train": len(data.train), "held out": len(data.heldout)}
        about = {"command": command, "rows": rows, "settings": settings, "coins": coins}
        about |= {"policies": [], "bounds": {}, "versions": versions(), "machine": machine()}
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
        curves = (*findings.curves, *found.curves)
        notes = tuple(dict.fromkeys((*findings.notes, *found.notes)))
        findings = Findings("canaries", about, measured, curves, notes=notes)
        findings.save(output)
    return findings


class PlantedTable:
    """The table with its canaries, and what every run on it is asked.

    The training seed decides all draws except the coins (m,), which say whose canaries are in the
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
        self._base = load_base(
            name, dtype=choose_execution(config)[0], device=device, say=progress.say
        )
        schema, tokenizer = data.train.schema, self._base.tokenizer
        labels = schema.combinations
        self._prompts = prompt_tokens(data.template, labels, tokenizer)
        self._secrets = canaries.draw_canaries(
            labels, self._seed, request.copies, request.each, request.formats
        )
        texts: list[str] = []
        # Distinct texts, each to be a record of its own. They begin with words that the base model
        # writes, which are public, and end with words of the tokenizer, of at least four letters
        # and one token each.
        if request.coins:
            counts = proportional({label: 1.0 for label in labels}, OPENINGS)
            written = write_untrained_twin(config, schema, data.template, counts, progress)
            openings = [str(cell) for cell in written[schema.text]]
            rng = np.random.default_rng(self._seed)
            decoded = (tokenizer.decode([token]).strip() for token in range(len(tokenizer)))
            known = {
                word for word in decoded if word.isascii() and word.isalpha() and len(word) > 3
            }
            words = np.array(sorted(known))
            for number in range(request.coins):
                opening = openings[number % len(openings)].split()[: canaries.PREFIX_WORDS]
                ending = rng.choice(words, canaries.SUFFIX_TOKENS)
                texts.append(" ".join([*opening, *ending]))
        drawn = np.random.default_rng(self._seed).integers(len(labels), size=len(texts))
        self._coins = Records(texts, [labels[i] for i in drawn], schema)
        self._included = np.array(coins, dtype=bool)
        table = records_to_frame(data.train)
        frame = canaries.plant(table, data.text, data.attributes, self._secrets)
        thrown = records_to_frame(take_records(self._coins, np.flatnonzero(self._included)))
        self.frame = pd.concat([frame, thrown[frame.columns]], ignore_index=True)
        self._losses_before = self._coin_losses(self._base) if request.coins else np.zeros(0)
        self._sides = roc.draw_sides(data.train, data.heldout, request.members, self._seed)

    def attack(self, name: str, config: RunConfig, model: TwinModel, twin: Twin) -> Findings:
        """Return the findings for one policy's run. Their `about` explains the lower bound."""
        place, sides = {"policy": name}, self._sides
        texts = [str(cell) for cell in twin.frame[self._data.text].dropna()]
        members, others = sides.members, sides.non_members
        attacks, notes = model_attacks(model, self._base, members, others, self._progress)
        attacks += text_attacks(texts, members.texts, others.texts, None, self._progress)
        judged, curve, rates = roc.separation(attacks, self._seed, place)
        curve = replace(curve, name=f"{curve.name}, policy {name}")
        measured = [*judged, *sides.measured]
        notes = [*sides.notes, *notes, *rates]

        # Mean exposure by copies, for the model and for the released rows. Compare it with that of
        # secrets without a copy, which no model has seen.
        asked, prompts = (model.model, model.tokenizer), self._prompts
        by_model = [
            canaries.exposure(*asked, prompts[s.label], s, self._seed) for s in self._secrets
        ]
        by_rows = canaries.rank_in_rows(model.tokenizer, texts, self._secrets, self._seed)
        for sees, found in ((roc.MODEL, by_model), (roc.RELEASED, by_rows)):
            for copies in self._request.copies:
                some = [each for each in found if each.canary.copies == copies]
                space, bits = some[0].canary.format.space, [each.bits for each in some]
                most = float(
                    np.log2(min(space, canaries.ECHOED) if sees == roc.RELEASED else space)
                )
                where = {**place, "copies": str(copies), "sees": sees}
                where |= {"candidates": str(space), "method": some[0].method}
                score = mean("exposure", bits, "minimise", 0.0, most)
                measured.append(Measured("leakage", score, where))

        # The lower bound of ε, by which of the coins' canaries training made more likely.
        bound: dict[str, Any] = {}
        if model.guarantee.unit != UNIT:
            notes.append(
                f"{name}: no lower bound, because canaries do not test {model.guarantee.unit}"
            )
        else:
            if self._request.coins:
                stated = config.privacy.target_delta  # one δ for all policies: that of the claims
                delta = default_delta(len(self.frame)) if stated is None else stated
                # To the model, canaries of the table are more likely than to the base model. The
                # rows repeat them: some row shares more runs of words with them than with others.
                gained = self._losses_before - self._coin_losses(model)
                echoed = text_attacks(texts, self._coins.texts, ())[0].members
                given = self._included, delta
                for sees, audit in (
                    (roc.MODEL, roc.one_run_audit(gained, *given)),
                    (roc.RELEASED, roc.one_run_audit(echoed, *given, highest_only=True)),
                ):
                    bound[sees] = asdict(audit)
                    # Nothing is known above a lower bound, so its interval is open.
                    ends = audit.epsilon, audit.epsilon, math.inf
                    score = Score(roc.BOUND, *ends, "minimise", 0.0, audit.ceiling, audit.canaries)
                    where = {"attack": "one run", "sees": sees, **place}
                    measured.append(Measured("leakage", score, where))
            if (claimed := twin.epsilon) is not None:
                score = Score(roc.CLAIM, claimed, claimed, claimed, "minimise", 0.0, math.inf, 1)
                measured.append(Measured("leakage", score, place))
        return Findings("canaries", bound, tuple(measured), (curve,), notes=tuple(notes))

    def _coin_losses(self, writer: BaseModel | TwinModel) -> np.ndarray:
        """(coins,) nats of each coin's canary after its prompt."""
        context, template = context_length(writer.model), self._data.template
        tokens = tokenise(self._coins, template, writer.tokenizer, context, self._longest)
        return row_losses(writer.model, tokens).total
