"""A run's plan: everything decided before the first private step, from N records alone.

Knows no record and no model. The defaults were chosen by experiment on public sets, whose figures
are in evaluation/bench/results/tuning.md.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import Any

from twinset.config import PrivacyConfig, RunConfig
from twinset.errors import InputError
from twinset.policies import Calibration, NoisePolicy, find_policy
from twinset.privacy.accounting.accountant import (
    calibrate_noise_multiplier,
    epsilon,
    gaussian_noise_multiplier,
    left_of,
)
from twinset.privacy.accounting.events import (
    COLUMNS,
    LABEL_COUNTS,
    TEACHER,
    TOKEN_MARGINALS,
    Event,
    GaussianRelease,
    LabelSelection,
    SubsampledGaussian,
)
from twinset.privacy.statement.guarantee import is_covered
from twinset.privacy.statement.wording import delta_caveats

# σ / L above which a run is refused. The mean of clipped gradients is at most C long in all its
# directions together. With this share of C as noise in each one of them training finds nothing.
LARGEST_NOISE_PER_RECORD = 0.25

# Of each method (tuning.md, learning.md). Least moves are rate × steps: few steps move as far.
LEARNING_RATES = {"lora": 3e-3, "qlora": 3e-3, "ia3": 2.5e-2, "full": 1e-4}
LEAST_MOVES = {"lora": 0.048, "qlora": 0.048, "ia3": 0.4}
FEWEST_STEPS = 8  # before steps become smaller, too
MOST_ADVISED = 20.0  # ε (beyond, it protects too little to be worth a hint)
# Shares of ε and δ for the selection of label values, where some are not declared. Its ε is one of
# Gaussian releases, whose squares add up: noise of all else grows by 3 %. At ε = 8 a value passes
# that 14 of 60 records have.
SELECTION_SHARE, SELECTION_DELTA = 0.2, 0.1
COLUMN_SELECTION = 0.15  # of ε, for the selection of the other columns' values
TEACHER_SHARE = 0.06  # of the budget, where the options do not say
RECORDS_FOR_NOISE = 30  # N / σ of a teacher: it told 0.72 of two sentiments there, 0.82 at 500
MOST_READ = 4000  # mean units for fitting a teacher: if there are more, they are sampled
FEWEST_VISITS = 1024  # of records: the fewest that tuning.md says anything of
FEW = 20_000  # records times ε: with fewer, steps may cost students accuracy (learning.md)
SLACK = 1 + 1e-9  # so that rounding brings no ε above the one asked for
MISMATCH_WEIGHT = 8.0  # λ of the bounded form, if no teacher judges rows (tuning.md has others)


@dataclass(frozen=True)
class Plan:
    """The numbers of a run."""

    records: int  # N, taken as public
    target_epsilon: float | None  # of records of privacy weight 1 (None: without privacy)
    target_delta: float
    batch_size: int  # L = qN, the expected number of records a step
    steps: int  # T
    noise_multiplier: float  # σ in clipping norms (0 without privacy, or without steps)
    label_count_noise: float  # multiplier: over the records of one unit (0 without privacy)
    learning_rate: float  # Adam's, at its peak
    mismatch_weight: float  # λ
    policy: tuple[str, str] = ("uniform", "sound")  # name and form of the noise policy
    highest_epsilon: float | None = None  # adaptive: of records of weight 0, and so of any
    least_share: float = 1.0  # adaptive: c(1), share of C that records of weight 1 are clipped to
    least_noise: float = 1.0  # published importance: the least that noise is multiplied by
    group_size: int | None = None  # m, records that are looked at together too
    marginal_noise: float = 0.0  # multiplier (0: not released, or there is no privacy)
    teacher_noise: float = 0.0  # the same
    selection: LabelSelection | None = None  # of undeclared label values
    column_noise: float = 0.0  # multiplier of the other columns' release (0: none, or no privacy)
    column_selection: LabelSelection | None = None  # of their values, unless all are declared

    @property
    def sample_rate(self) -> float:
        """Sample rate q = L / N."""
        return min(1.0, self.batch_size / self.records)

    @property
    def policy_class(self) -> type[NoisePolicy]:
        """The noise policy."""
        return find_policy(*self.policy)

    @property
    def is_covered(self) -> bool:
        """Whether there is noise, and a theorem about it."""
        return self.target_epsilon is not None and is_covered(*self.policy)

    @property
    def releases(self) -> list[GaussianRelease | LabelSelection]:
        """The run's one-time releases, in addition to training. Empty without privacy."""
        noises = {
            LABEL_COUNTS: self.label_count_noise,
            COLUMNS: self.column_noise,
            TOKEN_MARGINALS: self.marginal_noise,
            TEACHER: self.teacher_noise,
        }
        counted = [GaussianRelease(noise, what) for what, noise in noises.items() if noise]
        selections = (self.selection, self.column_selection)
        return [*(each for each in selections if each is not None), *counted]

    @property
    def epsilon(self) -> float:
        """ε of the whole run, for any record, at `target_delta`. Infinite without privacy."""
        return self.epsilon_after(self.steps)

    @property
    def highest(self) -> float:
        """The highest ε of any record under the plan, as requested if possible."""
        if not self.is_covered or self.least_noise < 1 or self.target_epsilon is None:
            return self.epsilon
        return self.target_epsilon if self.highest_epsilon is None else self.highest_epsilon

    def epsilon_after(self, steps: int, weight: float = 0.0) -> float:
        """ε of releases and some steps, at a privacy weight. Infinite without privacy."""
        events = self.events_after(steps)
        return epsilon(events, self.target_delta, weight) if events else math.inf

    def events_after(self, steps: int) -> list[Event]:
        """Return all releases and the first `steps` steps, or nothing if no theorem covers it."""
        if not self.is_covered:
            return []
        if not steps:
            return [*self.releases]
        noise = Calibration(
            self.noise_multiplier, self.highest_epsilon, self.least_share, self.least_noise
        )
        return [*self.releases, self.policy_class.step_event(noise, self.sample_rate, steps)]

    @property
    def warnings(self) -> list[str]:
        """What its owner must know before it runs."""
        if self.target_epsilon is None:
            return ["privacy is switched off. Treat model and twin as private."]
        policy, known = self.policy_class, (self.target_epsilon, self.highest_epsilon)
        found = [each.format(target=known[0], highest=known[1]) for each in policy.warned]
        found = [*policy.theorem.caveats, *found]
        if self.target_delta * self.records >= 1:
            found.append(
                f"δ = {self.target_delta:g} is not below 1/N, so nothing is guaranteed. It permits "
                f"publishing some of the {self.records} records word for word. Leave `delta` out."
            )
        else:
            found += delta_caveats(self.target_delta, self.records)
        return found


# -- numbers that follow from N ------------------------------------------------------------------


def default_delta(records: int) -> float:
    """δ = min(1e-5, 0.01/N^1.1), which needs no warning: δN stays below 0.01.

    >>> default_delta(500), round(default_delta(100_000), 12)
    (1e-05, 3.1623e-08)
    """
    return min(1e-5, 0.01 * records**-1.1)


def default_size(records: int) -> tuple[int, int]:
    """Return steps and batch size. Larger batches mean less noise and more time.

    A few large steps teach no less than many small ones (learning.md), and take less time.

    >>> [default_size(n) for n in (300, 3_000, 10_000, 100_000, 1_000_000)]
    [(8, 300), (8, 512), (8, 1024), (48, 1024), (300, 1024)]
    """
    batch = min(records, max(512, min(1024, records // 8)))
    return max(FEWEST_STEPS, min(300, records // 2048)), batch


def size_for(records: int, visits: int) -> tuple[int, int]:
    """Return steps and batch size for a number of visits of records, each batch counted whole.

    Fewer visits than usual first reduce the steps, down to `FEWEST_STEPS`, then the batch size.
    More visits make larger batches, because noise falls with them.

    >>> [size_for(100_000, visits) for visits in (98_304, 49_152, 20_480, 1_024)]
    [(48, 2048), (48, 1024), (20, 1024), (8, 128)]
    """
    most, usual = default_size(records)
    steps = min(most, max(FEWEST_STEPS, visits // usual))
    return steps, max(1, min(records, visits // steps))


def sized(config: RunConfig, steps: int | None, batch_size: int | None) -> RunConfig:
    """Return the options with other steps and batch size. `None`: chosen from N."""
    return replace(config, training=replace(config.training, steps=steps, batch_size=batch_size))


# -- the plan ------------------------------------------------------------------------------------


def make_plan(
    records: int,
    config: RunConfig,
    selection: LabelSelection | None = None,
    of_columns: LabelSelection | None = None,
    has_columns: bool = False,
) -> Plan:
    """Choose sample rate, steps, σ and learning rate for N records.

    The selections of label values and of the other columns' values, if there are such, have been
    planned before. Other columns need none (`has_columns`) if all of their values are declared.

    Raises:
        InputError: δ ≥ 1, a highest ε below ε, or the noise needed is so large that it would drown
            the records. The message says what ε is attainable.
    """
    privacy, training, policy = config.privacy, config.training, config.policy
    target, delta = privacy.target_epsilon, privacy.target_delta or default_delta(records)
    steps, batch = default_size(records)
    steps = steps if training.steps is None else training.steps
    batch = min(training.batch_size or batch, records)
    moves, weight = LEAST_MOVES.get(training.method, 0.0), training.mismatch_weight
    rate = max(LEARNING_RATES[training.method], moves / max(1, steps))
    plan = Plan(
        records=records,
        target_epsilon=target,
        target_delta=delta,
        batch_size=batch,
        steps=steps,
        noise_multiplier=0.0,
        learning_rate=training.learning_rate or rate,
        mismatch_weight=weight if weight is not None else MISMATCH_WEIGHT,
        policy=(policy.noise_policy, policy.policy_form),
        group_size=privacy.group_size,
        selection=selection,
        column_selection=of_columns,
        **find_release_noise(
            privacy, target, delta, selection, steps == 0, of_columns, has_columns
        ),
    )
    if target is None or not steps:
        return plan

    def sigma_for(target: float) -> float:
        """Return the noise of the steps, which use the ε that the releases leave."""
        try:
            return calibrate_noise_multiplier(target, delta, batch / records, steps, plan.releases)
        except ValueError as error:
            raise InputError(f"ε = {target} cannot be reached: {error}") from None

    noise = policy.policy_class.calibrate(sigma_for, target, policy)
    least = LARGEST_NOISE_PER_RECORD * batch
    if noise.noise_multiplier <= least:
        return replace(
            plan,
            noise_multiplier=noise.noise_multiplier,
            highest_epsilon=noise.highest_epsilon,
            least_share=noise.least_share,
            least_noise=noise.least_noise,
        )
    # An ε, to two digits and with a margin, at which the noise is small enough.
    training_alone = SubsampledGaussian(least, batch / records, steps)
    attainable, spent = epsilon([training_alone], delta), math.inf
    while spent > attainable:
        attainable = float(f"{1.06 * attainable:.2g}")
        labels, others = (
            of and plan_selection(records, privacy, of.attributes, of.most, is_first, attainable)
            for of, is_first in ((selection, True), (of_columns, False))
        )
        noises = find_release_noise(privacy, attainable, delta, labels, False, others, has_columns)
        other = replace(plan, selection=labels, column_selection=others, **noises)
        spent = epsilon([*other.releases, training_alone], delta)
    more = "Use `steps=0`, which trains nothing, or give some thousands of records."
    if attainable <= MOST_ADVISED:
        more += f" From `{noise.option}={attainable:g}` on, training is possible."
    raise InputError(
        f"{records} records are too few to train at ε = {target:g}, because the noise would drown "
        f"them. {more}"
    )


def plan_selection(
    records: int,
    privacy: PrivacyConfig,
    attributes: int,
    most: int,
    of_labels: bool = True,
    target: float | None = None,
) -> LabelSelection | None:
    """Return how the values of `attributes` undeclared columns are selected.

    None: there are no such columns, or no privacy. `most` is the records of a unit. The columns
    hold labels, or else they are the other columns. The selection has its shares of ε (by default
    the one asked for) and δ, and the lowest possible threshold. Its share of δ is that of
    `group_size` units together.
    """
    target, delta = target or privacy.target_epsilon, privacy.target_delta or default_delta(records)
    if target is None or not attributes:
        return None
    share = SELECTION_SHARE if of_labels else COLUMN_SELECTION
    own = SELECTION_DELTA * delta
    noise = gaussian_noise_multiplier(share * target, delta - own)
    return least_threshold(noise, attributes, most, privacy.group_size or 1, own)


def least_threshold(
    noise: float, attributes: int, most: int, together: int, share: float
) -> LabelSelection:
    """Return the selection of the lowest threshold that costs `together` units this δ at most."""

    def is_enough(threshold: int) -> bool:
        return LabelSelection(noise, threshold, attributes, most).delta(together) <= share

    found = bisect_left(range(2**40), True, lo=1, key=is_enough)
    return LabelSelection(noise, found, attributes, most)


def find_release_noise(
    privacy: PrivacyConfig,
    target: float | None,
    delta: float,
    selection: LabelSelection | None = None,
    takes_all: bool = False,
    of_columns: LabelSelection | None = None,
    has_columns: bool = False,
) -> dict[str, Any]:
    """Return the noise of a plan's one-time releases, at this ε. 0: without privacy, or left out.

    Budgets of Gaussian releases add up as σ⁻². Each release has its share of what the selections
    leave, and steps have the rest. If nothing is trained (`takes_all`), the releases share it all.

    Raises:
        InputError: the shares leave nothing for steps.
    """
    selections = [each for each in (selection, of_columns) if each is not None]
    of_tables = privacy.column_share if has_columns or of_columns is not None else 0.0
    shares = privacy.label_count_share, privacy.marginal_share, privacy.teacher_share, of_tables
    total = sum(share or 0.0 for share in shares)
    if target and not takes_all and total >= 1:
        raise InputError(
            f"the shares of the budget add up to {total:g}, so nothing is left for steps. Make one "
            "smaller, or train nothing with `steps=0`."
        )
    noises = [0.0] * len(shares)
    if target:
        budget = gaussian_noise_multiplier(target, left_of(delta, selections)) ** -2
        budget -= sum(each.noise_multiplier**-2 for each in selections)
        budget /= total if takes_all else 1.0
        noises = [SLACK * (share * budget) ** -0.5 if share else 0.0 for share in shares]
    names = ("label_count_noise", "marginal_noise", "teacher_noise", "column_noise")
    return dict(zip(names, noises, strict=True))


# -- what the options leave to N -----------------------------------------------------------------


def settled(
    config: RunConfig,
    records: int,
    begun: int | None = None,
    selection: LabelSelection | None = None,
    of_columns: LabelSelection | None = None,
    has_columns: bool = False,
) -> RunConfig:
    """Settle what the options leave to N, steps first. Values given by options stay.

    With few records for ε nothing is trained. Steps would cost time and add nothing, so their ε
    goes to counts of words (if rows follow) and to the teacher. If several models are compared, all
    are trained, and no clock chooses their steps. A resumed run has `begun` with a number of steps,
    and trains as it did then.

    There is a teacher if it would know enough. Rows that it judges need neither guidance nor the
    prompt-mismatch loss, which doubles the time of steps (learning.md).
    """
    privacy, target = config.privacy, config.privacy.target_epsilon
    follows_words = privacy.marginal_share > 0 and config.sampling.tilt > 0
    needs_steps = config.policy.policy_class.needs_steps
    is_few = target is not None and records * target < FEW and follows_words and not needs_steps
    if config.training.is_timed and (is_few if begun is None else begun == 0):
        config = replace(config, training=replace(config.training, steps=0))
    if privacy.teacher_share is None:
        delta = privacy.target_delta or default_delta(records)
        asked = replace(privacy, teacher_share=TEACHER_SHARE)
        takes_all = config.training.steps == 0
        given = asked, target, delta, selection, takes_all, of_columns, has_columns
        noises = find_release_noise(*given)
        knows = min(records, MOST_READ) >= RECORDS_FOR_NOISE * noises["teacher_noise"]
        privacy = asked if knows else replace(privacy, teacher_share=0.0)
    sampling, training, teacher = config.sampling, config.training, bool(privacy.teacher_share)
    if training.mismatch_weight is None and sampling.is_judged(teacher):
        training = replace(training, mismatch_weight=0.0)
    return replace(config, privacy=privacy, training=training, sampling=sampling.settled(teacher))
