"""Every option of a run, as frozen and validated data. Knows nothing of torch, files or models.

A field with a help text is an option on the command line as well, see `twinset.config.options`.

The groups show at once which options may change a guarantee. `PrivacyConfig` and `PolicyConfig`
have the privacy options, and `TrainingConfig` decides what is trained. `SpeedConfig` changes only
time and memory, and `SamplingConfig` belongs to the sampler.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from twinset.bounds import SEEDS, Bounds, Checked, bounded, setting
from twinset.errors import InputError
from twinset.policies import PolicyConfig as PolicyConfig  # it is of a run, too

MismatchForm = Literal["bounded", "published"]
Precision = Literal["auto", "float32", "bfloat16"]
Method = Literal["ia3", "lora", "qlora", "full"]
Endings = Literal["keep", "cut", "redraw"]
Filter = Literal["none", "debris", "vulgar", "all"]

SMALLEST_EPSILON = 1e-3
LARGEST_EPSILON = 1e6  # beyond it nothing is private, and double precision cannot account for it
EPSILON = Bounds(SMALLEST_EPSILON, LARGEST_EPSILON)
ROWS = Bounds(1, 10**9)  # of a twin
HOLD_OUT = Bounds(0, 0.5)  # share of a private table
RECORDS = Bounds(1, 10**9)  # of a private table that is not there yet
UNJUDGED_GUIDANCE = 0.5  # without a teacher that judges rows
PHYSICAL_TOKENS = 1024  # in memory at once, on a processor


@dataclass(frozen=True)
class PrivacyConfig(Checked):
    """Options that may change the guarantee. An ε of None guarantees nothing."""

    target_epsilon: float | None = bounded(
        8.0,
        SMALLEST_EPSILON,
        LARGEST_EPSILON,
        "Privacy budget ε of the release. Adaptive noise: of the most unusual records.",
        option="epsilon",
        hint="Usual is 8, less is safer",
    )
    target_delta: float | None = bounded(
        None,
        1e-30,
        1 - 1e-6,
        "Privacy parameter δ. Omitted: min(1e-5, 0.01/N^1.1) for N records.",
        option="delta",
        hint="Leave it out for min(1e-5, 0.01/N^1.1)",
    )
    # The noise is as large as C, so a smaller one has more signal for the same ε until most
    # gradients are clipped.
    max_grad_norm: float = bounded(
        0.1, 1e-6, 1e6, "Clipping norm C: the longest gradient that a record may have.", expert=True
    )
    # They count as labels as well. Nothing without owners.
    max_records_per_owner: int = bounded(4, 1, 10**6, "`owner`: their most records in a step.")
    # m is published, so choose it without looking at the records.
    group_size: int | None = bounded(
        None, 2, 100_000, "Also state the guarantee for any group of this many records."
    )
    # Shares of the sum of σ⁻². Steps take the rest, or else the releases share all of it. The token
    # marginals tilt rows towards the private texts' words. The teacher judges rows' labels.
    label_count_share: float = bounded(
        0.005, 1e-4, 0.999, "Share of the budget for noisy label counts.", expert=True
    )
    marginal_share: float = bounded(
        0.55,
        0,
        0.999,
        "Share of the budget for noisy counts of tokens and lengths. 0 skips them.",
        hint="0 leaves them out",
        expert=True,
    )
    column_share: float = bounded(
        0.2,
        1e-3,
        0.999,
        "Share of the budget for noisy tables of the other columns, if there are any.",
        expert=True,
    )
    teacher_share: float | None = bounded(
        None,
        0,
        0.999,
        "Share of the budget for a private classifier of labels. 0 skips it. Omitted: 0.06 or 0.",
        hint="0 leaves it out",
        expert=True,
    )
    # Reproducible noise for tests only. It makes the guarantee "none".
    insecure_noise_seed: int | None = setting(None, bounds=SEEDS)


@dataclass(frozen=True)
class TrainingConfig(Checked):
    """What is trained and how. `None`: chosen from the number of records by `config.plan`.

    `max_minutes` is for the whole run, rows included. If this machine needs longer, fewer or
    smaller steps are chosen. `None`: no limit.
    """

    base_model: str = setting(
        "smollm2-135m-text",
        "Base model: a name from `twinset models`, a folder or a hub name.",
        values="MODEL",
    )
    method: Method = setting(
        "ia3",
        "Train factors of features (ia3), adapters, adapters on four-bit weights (qlora), or all "
        "weights.",
    )
    lora_rank: int = bounded(8, 1, 1024, "Rank of the adapters.", expert=True)
    steps: int | None = bounded(
        None,
        0,
        10**7,
        "DP training steps. 0: none. Omitted: none below N·ε = 20,000, else by N and time.",
        hint="0 trains nothing",
    )
    batch_size: int | None = bounded(
        None, 1, 10**7, "Expected records per step. Omitted: chosen from N and the time."
    )
    learning_rate: float | None = bounded(
        None, 1e-9, 10, "Peak learning rate of Adam. Omitted: by `method` and steps."
    )
    max_tokens: int = bounded(256, 1, 10**6, "Longest text, in tokens. Longer ones are cut.")
    mismatch_weight: float | None = bounded(
        None,
        0,
        1000,
        "Weight λ of the prompt-mismatch loss. Omitted: 0 if a teacher judges rows, else 8.",
        expert=True,
    )
    mismatch_prompts: int = bounded(
        1, 0, 10_000, "Wrong prompts that each record is compared with.", expert=True
    )
    mismatch_form: MismatchForm = setting(
        "bounded", "Form of the prompt-mismatch loss.", expert=True
    )
    max_minutes: float | None = bounded(60.0, 0.1, 10**6, "Time for the whole run, in minutes.")
    seed: int = setting(0, bounds=SEEDS)

    @property
    def is_timed(self) -> bool:
        """Whether `max_minutes` may choose steps and batch size: neither was given."""
        return self.max_minutes is not None and self.steps is None and self.batch_size is None


@dataclass(frozen=True)
class SpeedConfig(Checked):
    """Time and memory only: nothing here changes a clipped gradient by more than rounding."""

    physical_tokens: int | None = bounded(
        None,
        1,
        10**8,
        "Tokens held in memory at once. Changes no result. Omitted: 1,024, on a GPU 16,384.",
        expert=True,
    )
    physical_batch: int | None = bounded(
        None, 1, 10**6, "Records held in memory at once. Overrides `physical_tokens`.", expert=True
    )
    precision: Precision = setting("auto", "Number format of matrix products.")
    gradient_checkpointing: bool = setting(
        False, "Recompute layers instead of storing them. Saves memory, takes time.", expert=True
    )
    low_memory: bool = setting(
        False, "Store no gradient per record. Saves memory, takes time.", expert=True
    )
    processes: int = bounded(
        1, 1, 1024, "Processes that train and sample together. The guarantee stays the same."
    )
    device: str = setting(
        "auto",
        "Device to compute on. auto takes a GPU if there is one.",
        values="auto|cpu|cuda|cuda:N",
    )

    def __post_init__(self) -> None:
        """Also refuse a value that names no device."""
        super().__post_init__()
        if not re.fullmatch(r"auto|cpu|mps|cuda(:\d{1,3})?", self.device):
            raise InputError(
                f"`device`: {self.device[:40]!r} is none of auto, cpu, cuda, cuda:N, mps"
            )


@dataclass(frozen=True)
class SamplingConfig(Checked):
    """How rows are drawn from the model. All of it is post-processing and changes no guarantee."""

    top_p: float = bounded(0.95, 1e-3, 1, "Draw from the likeliest tokens up to this probability.")
    temperature: float = bounded(1.0, 1e-6, 100, "Below 1 the text is safer, above 1 more varied.")
    guidance: float | None = bounded(
        None,
        0,
        100,
        "Guidance of rows towards their label. Omitted: 0 if a teacher judges rows, else 0.5.",
        hint="0 switches it off",
    )
    tilt: float = bounded(
        1.0,
        0,
        2,
        "How closely words and lengths follow the noisy counts. 0: not at all.",
        hint="0 switches it off",
    )
    max_new_tokens: int | None = bounded(
        None, 1, 10**6, "Longest text to write, in tokens. Omitted: as in training."
    )
    batch_size: int | None = bounded(
        None,
        1,
        10**5,
        "Most rows written at once, by default 256 (on a GPU 1,024). Fewer if they need more than "
        "768 MiB (on a GPU 8 GiB).",
        option="sample_batch",
        expert=True,
    )
    max_redraws: int = bounded(20, 1, 10_000)
    seed: int = setting(0, bounds=SEEDS)
    # Private texts that were cut at `max_tokens` end unfinished too.
    endings: Endings = setting(
        "keep",
        "Unfinished rows: keep, cut at the last sentence, or redraw, which favours short rows.",
    )
    filter: Filter = setting("none", "Redraw rows like web pages (debris) or with vulgar words.")
    teacher_redraws: int = bounded(
        4,
        0,
        20,
        "How often to redraw a row whose label teacher and noisy counts reject. 0: never.",
        hint="0 asks no teacher",
    )

    def settled(self, teacher: bool) -> SamplingConfig:
        """Settle guidance if the options leave it open: rows judged by a teacher need none.

        Guidance makes labels true, but rows less like real ones.
        """
        if self.guidance is not None:
            return self
        return replace(self, guidance=0.0 if self.is_judged(teacher) else UNJUDGED_GUIDANCE)

    def is_judged(self, teacher: bool) -> bool:
        """Whether rows are judged, where there is a teacher."""
        return teacher and self.teacher_redraws > 0


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

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunConfig:
        """Read the groups as plain values. Other keys are ignored.

        Raises:
            InputError: a group is missing, or an option is unknown or has an invalid value.
        """
        try:
            return cls(**{name: group(**data[name]) for name, group in GROUPS.items()})
        except (LookupError, TypeError, AttributeError) as error:
            raise InputError(f"these are no options of a run ({type(error).__name__})") from None


GROUPS: dict[str, type[Any]] = {one.name: type(one.default) for one in fields(RunConfig)}
