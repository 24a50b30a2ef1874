"""Every option of a run, as frozen and validated data. Knows nothing of torch, files or models.

Privacy knobs (`PrivacyConfig`, `PolicyConfig`), knobs that change what is trained
(`TrainingConfig`), knobs that change only time and memory (`SpeedConfig`) and knobs of the sampler
(`SamplingConfig`) live apart, so that a reader sees at once which of them may move a guarantee.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from twinset.bounds import SEEDS, Bounds, bounded, check_options, within
from twinset.errors import InputError
from twinset.policies import PolicyConfig

MismatchForm = Literal["published", "bounded"]
Precision = Literal["auto", "float32", "bfloat16"]
Method = Literal["lora", "qlora", "full"]
Endings = Literal["keep", "cut", "redraw"]
Filter = Literal["none", "debris", "vulgar", "all"]

SMALLEST_EPSILON = 1e-3
LARGEST_EPSILON = 1e6  # beyond it nothing is private, and double precision cannot account for it
ROWS = Bounds(1, 10**9)  # of a twin
HOLD_OUT = Bounds(0, 0.5)  # share of a private table
RECORDS = Bounds(1, 10**9)  # of a private table that is not there yet
UNJUDGED_GUIDANCE = 0.5  # where no teacher judges rows


@dataclass(frozen=True)
class PrivacyConfig:
    """What may move the guarantee."""

    # Total ε of all that is released. None asks for a run without privacy, which guarantees "none".
    target_epsilon: float | None = bounded(
        8.0,
        SMALLEST_EPSILON,
        LARGEST_EPSILON,
        option="epsilon",
        hint="8 is usual, less is safer",
    )
    target_delta: float | None = bounded(
        None, 1e-30, 1 - 1e-6, option="delta", hint="leave it out for min(1e-5, 0.01/N^1.1)"
    )
    # C, the largest norm of one unit's gradient. The noise is as large as C, so a smaller one has
    # more signal for the same ε until most gradients are clipped.
    max_grad_norm: float = bounded(0.1, 1e-6, 1e6)
    # m, records of an owner that take part in a step or count as labels. Nothing without owners.
    max_records_per_owner: int = bounded(4, 1, 10**6)
    # m: what holds of any m records together is stated too. It is published, so choose it without
    # looking at the records.
    group_size: int | None = bounded(None, 2, 100_000)
    # Shares of ε that each release would spend alone. The token marginals tilt rows towards the
    # private texts' words. The teacher tells a text's labels, judges rows and is handed over.
    label_count_share: float = bounded(0.05, 1e-3, 0.999)
    marginal_share: float = bounded(0.5, 0, 0.999, hint="0 leaves them out")
    teacher_share: float | None = bounded(None, 0, 0.999, hint="0 leaves it out")
    # Reproducible noise for tests only. It makes the guarantee "none".
    insecure_noise_seed: int | None = within(None, SEEDS)

    def __post_init__(self) -> None:
        """Refuse values no accountant could interpret."""
        check_options(self)


@dataclass(frozen=True)
class TrainingConfig:
    """What is trained and how. `None`: chosen from the number of records by `config.plan`.

    `max_minutes` is for the whole run, rows included; with it fewer steps, or smaller ones, are
    chosen where this machine needs longer. `None`: they may take any time.
    """

    base_model: str = "smollm2-135m-text"
    method: Method = "lora"
    lora_rank: int = bounded(8, 1, 1024)
    steps: int | None = bounded(None, 0, 10**7, hint="0 trains nothing")
    batch_size: int | None = bounded(None, 1, 10**7)
    learning_rate: float | None = bounded(None, 1e-9, 10)
    max_tokens: int = bounded(256, 1, 10**6)
    mismatch_weight: float | None = bounded(None, 0, 1000)
    mismatch_prompts: int = bounded(1, 0, 10_000)
    mismatch_form: MismatchForm = "bounded"
    max_minutes: float | None = bounded(60.0, 0.1, 10**6)
    seed: int = within(0, SEEDS)

    def __post_init__(self) -> None:
        """Refuse values the loop could not run with."""
        check_options(self)

    @property
    def is_timed(self) -> bool:
        """Whether `max_minutes` may choose steps and batch size: neither was given."""
        return self.max_minutes is not None and self.steps is None and self.batch_size is None


PHYSICAL_TOKENS = 2048  # in memory at once, on a processor


@dataclass(frozen=True)
class SpeedConfig:
    """Time and memory only: nothing here changes a clipped gradient by more than rounding."""

    physical_tokens: int | None = bounded(None, 1, 10**8)
    physical_batch: int | None = bounded(None, 1, 10**6)
    precision: Precision = "auto"
    gradient_checkpointing: bool = False
    low_memory: bool = False
    processes: int = bounded(1, 1, 1024)
    device: str = "auto"

    def __post_init__(self) -> None:
        """Refuse an empty physical batch, an unknown precision or what names no device."""
        check_options(self)
        if not re.fullmatch(r"auto|cpu|mps|cuda(:\d{1,3})?", self.device):
            raise InputError(
                f"`device`: {self.device[:40]!r} is none of auto, cpu, cuda, cuda:N, mps"
            )

    def units_at_once(self, tokens: int, usual: int = PHYSICAL_TOKENS) -> int:
        """Return how many units of so many tokens, padding included, are in memory at once.

        `usual` tokens are in memory at once where the options do not say.
        """
        return self.physical_batch or max(1, (self.physical_tokens or usual) // tokens)


@dataclass(frozen=True)
class SamplingConfig:
    """How rows are drawn from the model. All of it is post-processing: it moves no guarantee."""

    top_p: float = bounded(0.95, 1e-3, 1)
    temperature: float = bounded(1.0, 1e-6, 100)
    guidance: float | None = bounded(None, 0, 100, hint="0 switches it off")
    tilt: float = bounded(1.0, 0, 2, hint="0 switches it off")
    max_new_tokens: int | None = bounded(None, 1, 10**6)
    batch_size: int = bounded(256, 1, 10**5, option="sample_batch")
    max_redraws: int = bounded(20, 1, 10_000)
    seed: int = within(0, SEEDS)
    endings: Endings = "keep"  # private texts that were cut at max_tokens end so too
    filter: Filter = "none"
    teacher_redraws: int = bounded(4, 0, 20, hint="0 asks no teacher")

    def __post_init__(self) -> None:
        """Refuse decoding settings that define no distribution."""
        check_options(self)

    def settled(self, teacher: bool) -> SamplingConfig:
        """Settle guidance where the options do not say: rows that a teacher judges need none.

        Guidance makes labels true, and rows less like real ones.
        """
        if self.guidance is not None:
            return self
        judged = teacher and self.teacher_redraws > 0
        return replace(self, guidance=0.0 if judged else UNJUDGED_GUIDANCE)


@dataclass(frozen=True)
class RunConfig:
    """One run: the groups together, as written to `internal/config.json`."""

    privacy: PrivacyConfig = PrivacyConfig()
    policy: PolicyConfig = PolicyConfig()
    training: TrainingConfig = TrainingConfig()
    speed: SpeedConfig = SpeedConfig()
    sampling: SamplingConfig = SamplingConfig()

    def __post_init__(self) -> None:
        """Refuse groups that contradict one another."""
        policy, training = self.policy, self.training
        policy.policy_class.check(policy, training.steps, training.method)

    def to_dict(self) -> dict[str, Any]:
        """Return nested plain values, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunConfig:
        """Read what `to_dict` returned; other keys are left alone.

        Raises:
            InputError: a group is missing, or an option is unknown or not what it may be.
        """
        try:
            return cls(**{name: group(**data[name]) for name, group in GROUPS.items()})
        except (LookupError, TypeError, AttributeError) as error:
            raise InputError(f"these are no options of a run ({type(error).__name__})") from None


GROUPS: dict[str, type[Any]] = {one.name: type(one.default) for one in fields(RunConfig)}
