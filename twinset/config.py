"""Every option of a run, as frozen and validated data. Knows nothing of torch, files or models.

Privacy knobs (`PrivacyConfig`, `PolicyConfig`), knobs that change what is learnt
(`TrainingConfig`), knobs that change only time and memory (`SpeedConfig`) and knobs of the sampler
(`SamplingConfig`) live apart, so that a reader sees at once which of them may move a guarantee.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from twinset.errors import InputError

NoisePolicyName = Literal["uniform", "adaptive", "selective", "importance"]
PolicyForm = Literal["sound", "published"]
MismatchForm = Literal["published", "bounded"]
Precision = Literal["auto", "float32", "bfloat16"]
Method = Literal["lora", "qlora", "full"]
Engine = Literal["torch", "vllm"]

LARGEST_EPSILON = 1e6  # beyond it nothing is private, and double precision cannot account for it


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InputError(message)


def _require_one_of(flag: str, value: str, choices: tuple[str, ...]) -> None:
    _require(value in choices, f"{flag}: {value!r} is none of {', '.join(choices)}")


def _finite(value: float, low: float, high: float = sys.float_info.max) -> bool:
    return low < value <= high  # NaN is not, nor a whole number that no float can hold


@dataclass(frozen=True)
class PrivacyConfig:
    """What may move the guarantee.

    Args:
        target_epsilon: total ε of everything released, label counts included. Not infinite: a run
            without privacy is asked for by `None`, and its guarantee is "none".
        target_delta: δ; `None` takes min(1e-5, 1 / N^1.1).
        max_grad_norm: C, the largest norm one unit's gradient may have.
        max_records_per_owner: m, records of an owner that take part in a step or count as labels;
            where each record is protected by itself, without effect.
        group_size: m; what is guaranteed for any m records together is stated too. It is published:
            choose it without looking at the records.
        label_count_share: share of ε that would be spent were the label counts released alone.
        insecure_noise_seed: reproducible noise for tests only; makes the guarantee "none".
    """

    target_epsilon: float | None = 8.0
    target_delta: float | None = None
    max_grad_norm: float = 1.0
    max_records_per_owner: int = 4
    group_size: int | None = None
    label_count_share: float = 0.05
    insecure_noise_seed: int | None = None

    def __post_init__(self) -> None:
        """Refuse values no accountant could interpret."""
        epsilon, delta = self.target_epsilon, self.target_delta
        _require(
            epsilon is None or _finite(epsilon, 0, LARGEST_EPSILON),
            f"--epsilon must be a number above 0 and at most {LARGEST_EPSILON:.0e}, not {epsilon}; "
            "8 is usual, less is safer",
        )
        _require(
            delta is None or (_finite(delta, 0) and delta < 1),
            f"--delta must lie between 0 and 1, not {delta}; leave it out for min(1e-5, 1/N^1.1)",
        )
        _require(_finite(self.max_grad_norm, 0), "--max-grad-norm must be a number above 0")
        _require(self.max_records_per_owner >= 1, "--max-records-per-owner must be at least 1")
        size = self.group_size
        _require(size is None or size >= 2, "--group-size must be at least 2, or left out")
        _require(0 < self.label_count_share < 1, "--label-count-share must lie between 0 and 1")


@dataclass(frozen=True)
class PolicyConfig:
    """How noise is spread, and what is kept from the model. It may move the guarantee.

    Args:
        noise_policy: a name in `twinset.policies.POLICIES`.
        policy_form: "sound", or as its paper states it.
        epsilon_max: adaptive: ε of the records that need least protection; `None`: twice ε.
        weight_scale: adaptive: a file of `twinset weights`; `None`: the constants that come along.
        detector: selective: what flags private spans; see `twinset.detectors`.
        redact_only: mask what the detector flags and read nothing else.
        importance_beta1: β₁, of the moving average of the sensitivity |g̃ · θ|.
        importance_beta2: β₂, of the moving average of its deviation.
        importance_alpha: α, how far importance is drawn towards its mean.
        importance_low: quantile that, with the next, sets the unit of importance.
        importance_high: see `importance_low`.
        importance_bound: b; each factor of a scale lies between 1/b and b. 1 is uniform.
    """

    noise_policy: NoisePolicyName = "uniform"
    policy_form: PolicyForm = "sound"
    epsilon_max: float | None = None
    weight_scale: str | None = None
    detector: str = "patterns"
    redact_only: bool = False
    importance_beta1: float = 0.85
    importance_beta2: float = 0.85
    importance_alpha: float = 0.5
    importance_low: float = 0.25
    importance_high: float = 0.75
    importance_bound: float = 2.0

    def __post_init__(self) -> None:
        """Refuse what no policy could work with."""
        _require_one_of("--noise-policy", self.noise_policy, get_args(NoisePolicyName))
        _require_one_of("--policy-form", self.policy_form, get_args(PolicyForm))
        highest = self.epsilon_max
        _require(
            highest is None or _finite(highest, 0, LARGEST_EPSILON),
            f"--epsilon-max must be a number above 0, and at most {LARGEST_EPSILON:.0e}",
        )
        _require(
            not (self.redact_only and self.noise_policy == "selective"),
            "--redact-only reads no unmasked text, and phase 2 of --noise-policy selective is made "
            "of it; take another policy with --redact-only",
        )
        for name in ("beta1", "beta2", "alpha"):
            within = 0 <= getattr(self, f"importance_{name}") <= 1
            _require(within, f"--importance-{name} must lie between 0 and 1")
        _require(
            0 <= self.importance_low < self.importance_high <= 1,
            "--importance-low and --importance-high must be quantiles, the first the lower one",
        )
        _require(
            1 <= self.importance_bound <= 100,
            "--importance-bound must lie between 1 and 100",
        )

    @property
    def key(self) -> tuple[str, str]:
        """Name and form, as `twinset.policies.POLICIES` has them."""
        return self.noise_policy, self.policy_form

    @property
    def weighs(self) -> bool:
        """Whether records have privacy weights on a public scale, and each an ε of its own."""
        return self.key == ("adaptive", "sound")

    @property
    def phases(self) -> int:
        """How many times training goes through all steps."""
        return 2 if self.noise_policy == "selective" else 1

    @property
    def masks(self) -> bool:
        """Whether texts are masked, for a phase or altogether."""
        return self.redact_only or self.noise_policy == "selective"


@dataclass(frozen=True)
class TrainingConfig:
    """What is learnt and how. `None`: chosen from the number of records by `twinset.plan`."""

    base_model: str = "smollm2-135m"
    method: Method = "lora"
    lora_rank: int = 8
    steps: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    max_tokens: int = 256
    mismatch_weight: float | None = None
    mismatch_prompts: int = 1
    mismatch_form: MismatchForm = "bounded"
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse values the loop could not run with."""
        for name in ("lora_rank", "steps", "batch_size", "max_tokens"):
            value = getattr(self, name)
            _require(value is None or value >= 1, f"--{name.replace('_', '-')} must be at least 1")
        rate, weight = self.learning_rate, self.mismatch_weight
        _require(rate is None or _finite(rate, 0), "--learning-rate must be a number above 0")
        _require(weight is None or _finite(weight, -1e-9), "--mismatch-weight must be 0 or more")
        _require(self.mismatch_prompts >= 0, "--mismatch-prompts must be 0 or more")
        _require_one_of("--method", self.method, get_args(Method))
        _require_one_of("--mismatch-form", self.mismatch_form, get_args(MismatchForm))


@dataclass(frozen=True)
class SpeedConfig:
    """Time and memory only: nothing here changes a clipped gradient by more than rounding."""

    physical_tokens: int = 2048
    physical_batch: int | None = None
    precision: Precision = "auto"
    gradient_checkpointing: bool = False
    low_memory: bool = False
    processes: int = 1

    def __post_init__(self) -> None:
        """Refuse an empty physical batch or an unknown precision."""
        _require(self.processes >= 1, "--processes must be at least 1")
        batch = self.physical_batch
        _require(self.physical_tokens >= 1, "--physical-tokens must be at least 1")
        _require(batch is None or batch >= 1, "--physical-batch must be at least 1")
        _require_one_of("--precision", self.precision, get_args(Precision))

    def units_at_once(self, tokens: int) -> int:
        """Return how many units of so many tokens, padding included, are in memory at once."""
        return self.physical_batch or max(1, self.physical_tokens // tokens)


@dataclass(frozen=True)
class SamplingConfig:
    """How rows are drawn from the model. All of it is post-processing: it moves no guarantee."""

    top_p: float = 0.95
    temperature: float = 1.0
    guidance: float = 1.0
    typical_p: float | None = None
    max_new_tokens: int | None = None
    batch_size: int = 256
    max_redraws: int = 20
    seed: int = 0
    engine: Engine = "torch"

    def __post_init__(self) -> None:
        """Refuse decoding settings that define no distribution."""
        _require(0 < self.top_p <= 1, "--top-p must lie above 0 and be at most 1")
        _require(_finite(self.temperature, 0), "--temperature must be a number above 0")
        _require(
            self.guidance == 0 or _finite(self.guidance, 0),
            "--guidance must be 0 or more; 0 switches it off",
        )
        _require(
            self.typical_p is None or 0 < self.typical_p <= 1,
            "--typical-p must lie above 0 and be at most 1",
        )
        longest = self.max_new_tokens
        _require(longest is None or longest >= 1, "--max-new-tokens must be at least 1")
        _require(self.batch_size >= 1, "--sample-batch must be at least 1")
        _require(self.max_redraws >= 1, "max_redraws must be at least 1")
        _require_one_of("--engine", self.engine, get_args(Engine))
        _require(
            self.engine == "torch" or (self.guidance == 0 and self.typical_p is None),
            "--engine vllm has neither guidance nor typical decoding; add --guidance 0 and leave "
            "--typical-p out, or take --engine torch",
        )


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
        _require(
            self.training.method != "qlora" or self.policy.noise_policy != "adaptive",
            "--noise-policy adaptive weighs texts by the base model as it is, and --method qlora "
            "rounds it; take --method lora or another policy",
        )

    def to_dict(self) -> dict[str, Any]:
        """Return nested plain values, ready for JSON."""
        from dataclasses import asdict

        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunConfig:
        """Read what `to_dict` returned; other keys are left alone.

        Raises:
            KeyError, TypeError: a group or an option is missing or unknown.
        """
        groups: dict[str, Any] = {
            "privacy": PrivacyConfig,
            "policy": PolicyConfig,
            "training": TrainingConfig,
            "speed": SpeedConfig,
            "sampling": SamplingConfig,
        }
        return cls(**{name: group(**data[name]) for name, group in groups.items()})
