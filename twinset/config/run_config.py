"""Every option of a run, as frozen and validated data. Knows nothing of torch, files or models.

A field with a help text is an option on the command line as well, see `twinset.config.options`.

Privacy knobs (`PrivacyConfig`, `PolicyConfig`), knobs that change what is trained
(`TrainingConfig`), knobs that change only time and memory (`SpeedConfig`) and knobs of the sampler
(`SamplingConfig`) live apart, so that a reader sees at once which of them may move a guarantee.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from twinset.bounds import SEEDS, Bounds, Checked, bounded, setting
from twinset.errors import InputError
from twinset.policies import PolicyConfig

MismatchForm = Literal["bounded", "published"]
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
PHYSICAL_TOKENS = 2048  # in memory at once, on a processor


@dataclass(frozen=True)
class PrivacyConfig(Checked):
    """What may move the guarantee. An ε of None guarantees nothing."""

    target_epsilon: float | None = bounded(
        8.0,
        SMALLEST_EPSILON,
        LARGEST_EPSILON,
        "ε of all that is shared; adaptive: of the most unusual records.",
        option="epsilon",
        hint="8 is usual, less is safer",
    )
    target_delta: float | None = bounded(
        None,
        1e-30,
        1 - 1e-6,
        "δ; left out: min(1e-5, 0.01/N^1.1).",
        option="delta",
        hint="leave it out for min(1e-5, 0.01/N^1.1)",
    )
    # The noise is as large as C, so a smaller one has more signal for the same ε until most
    # gradients are clipped.
    max_grad_norm: float = bounded(
        0.1, 1e-6, 1e6, "C, to which each record's gradient is clipped.", expert=True
    )
    # They count as labels as well. Nothing without owners.
    max_records_per_owner: int = bounded(4, 1, 10**6, "`owner`: m, records of an owner in a step.")
    # m is published, so choose it without looking at the records.
    group_size: int | None = bounded(
        None, 2, 100_000, "Also state the guarantee for any group of so many records."
    )
    # Shares of ε that each release would spend alone. The token marginals tilt rows towards the
    # private texts' words. The teacher tells a text's labels, judges rows and is handed over.
    label_count_share: float = bounded(
        0.05, 1e-3, 0.999, "Share of ε for the noisy label counts.", expert=True
    )
    marginal_share: float = bounded(
        0.5,
        0,
        0.999,
        "Share of ε for noisy counts of tokens and lengths; 0: none.",
        hint="0 leaves them out",
        expert=True,
    )
    teacher_share: float | None = bounded(
        None,
        0,
        0.999,
        "Share of ε for a classifier of labels; 0: none; left out: 0.1 where records suffice.",
        hint="0 leaves it out",
        expert=True,
    )
    # Reproducible noise for tests only. It makes the guarantee "none".
    insecure_noise_seed: int | None = setting(None, bounds=SEEDS)


@dataclass(frozen=True)
class TrainingConfig(Checked):
    """What is trained and how. `None`: chosen from the number of records by `config.plan`.

    `max_minutes` is for the whole run, rows included; with it fewer steps, or smaller ones, are
    chosen where this machine needs longer. `None`: they may take any time.
    """

    base_model: str = setting(
        "smollm2-135m-text",
        "Asset (see `twinset models`), local folder or hub name.",
        values="MODEL",
    )
    method: Method = setting(
        "lora", "What is trained: adapters, the same beside four-bit weights, or all weights."
    )
    lora_rank: int = bounded(8, 1, 1024, "Rank of the adapters.", expert=True)
    steps: int | None = bounded(
        None,
        0,
        10**7,
        "Training steps; 0: none. Left out: none where N·ε is below 70,000, else by N and time.",
        hint="0 trains nothing",
    )
    batch_size: int | None = bounded(
        None, 1, 10**7, "Expected records a step; left out: chosen from N and the time."
    )
    learning_rate: float | None = bounded(
        None, 1e-9, 10, "Adam's, at its peak; left out: by `method`."
    )
    max_tokens: int = bounded(256, 1, 10**6, "Longest text kept, in tokens.")
    mismatch_weight: float | None = bounded(
        None, 0, 1000, "λ of the prompt-mismatch loss; 0 switches it off.", expert=True
    )
    mismatch_prompts: int = bounded(
        1, 0, 10_000, "Wrong prompts a record is set against.", expert=True
    )
    mismatch_form: MismatchForm = setting("bounded", "Form of that loss.", expert=True)
    max_minutes: float | None = bounded(
        60.0, 0.1, 10**6, "Time of the whole run, by which steps are chosen."
    )
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
        "Tokens in memory at once; changes no result. Left out: 2,048, on a GPU 16,384.",
        expert=True,
    )
    physical_batch: int | None = bounded(
        None, 1, 10**6, "The same in records; overrides the tokens.", expert=True
    )
    precision: Precision = setting("auto", "Number format of the model's matrix products.")
    gradient_checkpointing: bool = setting(
        False, "Compute layers twice instead of keeping them.", expert=True
    )
    low_memory: bool = setting(
        False, "Keep no record's gradient, whatever time that costs.", expert=True
    )
    processes: int = bounded(
        1, 1, 1024, "Processes that train and sample together; the guarantee is the same."
    )
    device: str = setting(
        "auto", "Device to compute on; auto: a GPU, if any.", values="auto|cpu|cuda|cuda:N"
    )

    def __post_init__(self) -> None:
        """Refuse what names no device as well."""
        super().__post_init__()
        if not re.fullmatch(r"auto|cpu|mps|cuda(:\d{1,3})?", self.device):
            raise InputError(
                f"`device`: {self.device[:40]!r} is none of auto, cpu, cuda, cuda:N, mps"
            )


@dataclass(frozen=True)
class SamplingConfig(Checked):
    """How rows are drawn from the model. All of it is post-processing: it moves no guarantee."""

    top_p: float = bounded(0.95, 1e-3, 1, "Draw from the likeliest tokens up to this probability.")
    temperature: float = bounded(1.0, 1e-6, 100, "Below 1: safer text; above 1: more varied.")
    guidance: float | None = bounded(
        None,
        0,
        100,
        "Classifier-free guidance of rows towards their label; left out: 0 where a teacher judges "
        "them, else 0.5.",
        hint="0 switches it off",
    )
    tilt: float = bounded(
        1.0,
        0,
        2,
        "How far words follow released counts; 0: neither words nor lengths do.",
        hint="0 switches it off",
    )
    max_new_tokens: int | None = bounded(
        None, 1, 10**6, "Longest text written; left out: as in training."
    )
    batch_size: int = bounded(
        256,
        1,
        10**5,
        "Rows written at once, at most: fewer beyond 1 GiB (a GPU's 8).",
        option="sample_batch",
        expert=True,
    )
    max_redraws: int = bounded(20, 1, 10_000)
    seed: int = setting(0, bounds=SEEDS)
    # Private texts that were cut at `max_tokens` end unfinished too.
    endings: Endings = setting(
        "keep",
        "Of unfinished rows: cut at the last sentence, or draw again, which favours short ones.",
    )
    filter: Filter = setting("none", "Draw rows like web pages or with vulgar words again.")
    teacher_redraws: int = bounded(
        4,
        0,
        20,
        "How often a row is drawn again whose labels teacher and noisy counts reject; 0: never.",
        hint="0 asks no teacher",
    )

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

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunConfig:
        """Read the groups as plain values; other keys are left alone.

        Raises:
            InputError: a group is missing, or an option is unknown or not what it may be.
        """
        try:
            return cls(**{name: group(**data[name]) for name, group in GROUPS.items()})
        except (LookupError, TypeError, AttributeError) as error:
            raise InputError(f"these are no options of a run ({type(error).__name__})") from None


GROUPS: dict[str, type[Any]] = {one.name: type(one.default) for one in fields(RunConfig)}
