"""The interface of a noise policy: one class with all that the rest of twinset asks of it.

`NoisePolicy` is uniform noise. A policy is a subclass in one file of this folder that overrides the
differences. It defines what it protects (its theorem), its options and what it can't work with. It
also defines the noise it needs, what it reads before the first step, and how an audit attacks it.
No other module compares a policy's name.

Light to import: configs and `--help` load every policy, so torch is imported inside methods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from twinset.bounds import check_options, setting
from twinset.errors import InputError
from twinset.privacy.accounting.events import Event, NonPrivateAccess, SubsampledGaussian
from twinset.privacy.statement.theorems import OWNER_UNIT, UNIFORM, Theorem, register_theorem

if TYPE_CHECKING:
    from torch import Tensor

    from twinset.privacy.clipping.gradient_uses import Scale
    from twinset.privacy.mechanism.randomness import Randomness
    from twinset.privacy.mechanism.units import WeightScale

PolicyForm = Literal["sound", "published"]
DEFAULT = "uniform"

POLICIES: dict[tuple[str, str], type[NoisePolicy]] = {}
"""Every policy by its name and form."""


@dataclass(frozen=True)
class PolicyOptions:
    """Options that all policies share. A policy with its own options adds fields to these."""

    noise_policy: str = setting(
        DEFAULT, "How noise is spread. docs/policies.md helps to choose.", values="NAME"
    )
    policy_form: PolicyForm = setting(
        "sound", "As a theorem covers it, or as published.", values="sound|published"
    )
    detector: str = setting(
        "patterns",
        "With `noise_policy=selective`: what finds private spans.",
        values="patterns|entities|contextual|MODULE:FUNCTION",
    )
    redact_only: bool = setting(False, "Mask what the detector finds. Learn from the rest.")

    def __post_init__(self) -> None:
        """Refuse values that are out of range or that the chosen policy can't work with."""
        check_options(self)
        self.policy_class.check(self)

    @property
    def policy_class(self) -> type[NoisePolicy]:
        """The chosen policy."""
        return find_policy(self.noise_policy, self.policy_form)


@dataclass(frozen=True)
class MechanismParams:
    """The parameters of a policy's mechanism.

    Args:
        noise_multiplier: σ, in units of C. 0 for a run without privacy.
        max_grad_norm: C.
        sample_rate: q.
        randomness: source of the noise.
        options: the policy's own.
        least_share: adaptive: c(1), the share of C that records of privacy weight 1 are clipped to.
        weights: adaptive: (N,) privacy weight of each record.
    """

    noise_multiplier: float
    max_grad_norm: float
    sample_rate: float
    randomness: Randomness
    options: PolicyOptions = field(default_factory=PolicyOptions)
    least_share: float = 1.0
    weights: Tensor | None = None

    @property
    def noise_std(self) -> float:
        """σC, or 0 without privacy, where C is infinite."""
        return self.noise_multiplier * self.max_grad_norm if self.noise_multiplier else 0.0


@dataclass(frozen=True)
class Calibration:
    """The noise that a budget requires.

    Args:
        noise_multiplier: σ, in units of C.
        highest_epsilon: ε for every record, where some have less. None if all have the same.
        least_share: the smallest share of C that a record is clipped to.
        least_noise: the smallest factor on the noise in any direction.
        option: the option that sets ε of the most exposed record, for a message.
    """

    noise_multiplier: float
    highest_epsilon: float | None = None
    least_share: float = 1.0
    least_noise: float = 1.0
    option: str = "epsilon"


class NoisePolicy:
    """Uniform noise, z ~ N(0, σ²C²I). Other policies inherit from it and override what differs.

    A run calls a policy in this order. The class, before any record is read: `check` refuses
    options, `calibrate` chooses σ, `step_event` says what steps spend, and `weight_scale` and
    `before` give what comes earlier. With the records: `privacy_weights`, once. An instance, in
    each step: `scales` and `limits` set the clipping, `release` adds the noise and returns what
    that spent, and `update_statistics` looks at the released gradient. The noisy gradient and
    its event come together, so nothing is released without being recorded.

    For its guarantee see `twinset.privacy.statement.theorems`, UNIFORM.

    Example:
        `policy = find_policy("uniform")(MechanismParams(1.0, 0.1, 0.01, Randomness.from_os()))`

    Args:
        params: of the mechanism.

    Attributes:
        event: what each release spends.
        claimed: if a paper claims more than any theorem covers: the factor on σ in each release
            so far.
        mean_noise: mean share of σC of each parameter over all releases. Empty: all have σC.
    """

    name: ClassVar[str]
    form: ClassVar[PolicyForm] = "sound"
    theorem: ClassVar[Theorem] = UNIFORM
    options: ClassVar[type[PolicyOptions]] = PolicyOptions
    weighs: ClassVar[bool] = False  # the base model reads and weighs texts before the first step
    needs_steps: ClassVar[bool] = True  # its options have no effect without steps
    # Those of the phases before its own, each of which goes through all steps. They have a theorem
    # of their own, and read masked texts or add no noise. The plan counts its own releases alone.
    before: ClassVar[tuple[type[NoisePolicy], ...]] = ()
    # Of a phase: whether it adds noise, whether it reads masked texts, and that in words.
    adds_noise: ClassVar[bool] = True
    reads_masked: ClassVar[bool] = False
    reads: ClassVar[str] = "texts as they are"
    # Which ε is for whom, and what the owner must know in addition to the theorem's caveats. Filled
    # in are `target` (requested ε) and `highest` (see `Calibration`), and in the first also `spent`
    # (ε by the theorem, rounded up) and `unit` (what is protected as one).
    budget: ClassVar[str] = "ε = {target:g} for every {unit}"
    warned: ClassVar[tuple[str, ...]] = ()
    shapes_noise: ClassVar[bool] = False  # noise differs from number to number, without `scales`
    claims_more: ClassVar[bool] = False  # its paper claims a smaller ε than any theorem covers
    attacked_weights: ClassVar[tuple[float, ...]] = (1.0,)  # of the records that an audit adds
    kept: ClassVar[tuple[str, ...]] = ()  # names of the attributes that change from step to step

    # -- decided from public facts, before any record is read --------------------------------------

    @classmethod
    def check(
        cls,
        options: PolicyOptions,
        steps: int | None = None,
        method: str | None = None,
        by_owner: bool = False,
    ) -> None:
        """Refuse a run that the policy can't work with.

        Args:
            options: the policy's own.
            steps: the requested number. None if it is chosen later.
            method: training method.
            by_owner: whether all records of an owner are protected as one.

        Raises:
            InputError: names the options that contradict each other.
        """
        if cls.needs_steps and steps == 0:
            raise InputError(
                f"`noise_policy={cls.name}` changes the noise of training steps, and `steps=0` "
                "takes none. Leave one of them out."
            )
        if cls.weighs and method == "qlora":
            raise InputError(
                f"`noise_policy={cls.name}` weighs texts by the exact base model, and "
                "`method=qlora` rounds it. Take `method=lora` or another policy."
            )
        if options.redact_only and cls.before:
            raise InputError(
                f"`redact_only` reads no unmasked text, but phase 2 of `noise_policy={cls.name}` "
                "needs it. Take another policy with `redact_only`."
            )
        if by_owner and all(protected.unit != OWNER_UNIT for protected in cls.theorem.protects):
            raise InputError(
                f"`noise_policy={cls.name}` treats records by what they say. No theorem here turns "
                "that into a guarantee for owners. Take uniform or importance with `owner`."
            )

    @classmethod
    def masks(cls, options: PolicyOptions) -> bool:
        """Return whether texts are masked, in one phase or in all."""
        return options.redact_only or any(phase.reads_masked for phase in cls.before)

    @classmethod
    def phases(cls) -> tuple[type[NoisePolicy], ...]:
        """Return the policies that go through all steps, one after the other. This one is the last.

        The plan counts the releases of the last one. The phases `before` it have their own
        theorems, and read masked texts or add no noise.
        """
        return (*cls.before, cls)

    @classmethod
    def least_noise(cls, options: Any) -> float:
        """Return the smallest factor on the noise in any direction.

        Steps spend as much as uniform noise with a σ that is smaller by this factor.
        """
        return 1.0

    @classmethod
    def calibrate(
        cls, sigma_for: Callable[[float], float], target: float, options: Any
    ) -> Calibration:
        """Return the noise that a budget requires.

        Args:
            sigma_for: ε → the σ with which uniform noise spends it in the steps of the plan.
            target: the requested ε.
            options: the policy's own.

        Raises:
            InputError: the options contradict the target.
        """
        return Calibration(sigma_for(target), least_noise=cls.least_noise(options))

    @classmethod
    def step_event(cls, noise: Calibration, sample_rate: float, steps: int) -> Event:
        """Return what some steps with this noise spend.

        Args:
            noise: noise of the steps. The least noisy direction counts.
            sample_rate: q.
            steps: number of releases.
        """
        multiplier = noise.noise_multiplier * noise.least_noise
        return SubsampledGaussian(multiplier, sample_rate, steps)

    @classmethod
    def public_inputs(cls, options: PolicyOptions) -> Iterator[str]:
        """Yield what the ledger takes as public because of the policy."""
        if cls.masks(options):
            yield f"the detector {options.detector!r}, which looks at one record at a time"
        if cls.weighs:
            yield "the constants of the privacy weights, and the texts that they were fitted on"
        if any(phase.reads_masked for phase in cls.before):
            yield "every label, and every text as that detector leaves it"

    @classmethod
    def weight_scale(cls, options: Any, base: Any) -> WeightScale | None:
        """Return the public scale of privacy weights, or None if records have no weights.

        Args:
            options: the policy's own.
            base: the model that weighs. A policy may know its `name` and `origin`.

        Raises:
            InputError: there is none for this base model.
        """
        return None

    # -- with the private records ------------------------------------------------------------------

    @classmethod
    def privacy_weights(
        cls,
        records: int,
        drawn: Sequence[int],
        nats: Callable[[Sequence[int]], Tensor],
        scale: WeightScale | None,
    ) -> Tensor | None:
        """Return the (N,) privacy weights of the records before the first step, or None.

        Args:
            records: N.
            drawn: numbers of the records that are in any batch.
            nats: numbers of records → (n,) nats per token of their texts under the base model.
            scale: as returned by `weight_scale`.
        """
        return None

    def __init__(self, params: MechanismParams) -> None:
        self._params, sigma = params, params.noise_multiplier
        self.event: Event = NonPrivateAccess("trained without noise")
        if sigma:
            least = self.least_noise(params.options)
            noise = Calibration(sigma, least_share=params.least_share, least_noise=least)
            self.event = self.step_event(noise, params.sample_rate, 1)
        self.claimed: list[float] = []
        self.mean_noise: list[float] = []

    def noise_stated(self, event: Event) -> float:
        """Return σC by an event, whose σ is of the least noisy direction. NaN: it says none."""
        least: float = getattr(event, "noise_multiplier", float("nan"))
        return least / self.least_noise(self._params.options) * self._params.max_grad_norm

    def scales(self) -> list[Scale]:
        """Return the geometry for clipping, a scale for each parameter. Empty: the plain one.

        It may depend on earlier releases, and on nothing else that is private.
        """
        return []

    def limits(self, records: Sequence[int]) -> Tensor | None:
        """Return the norms, at most C, that some records are clipped to. None: C for all.

        Args:
            records: by number. A record's norm may depend on that record alone.
        """
        return None

    def release(self, sums: list[Tensor], records: Sequence[int]) -> tuple[list[Tensor], Event]:
        """Add noise to the clipped sums of a batch, in place, and return what that spent.

        Args:
            sums: one per parameter, in its shape.
            records: the batch, by number.
        """
        from twinset.privacy.mechanism.noise import add_gaussian_to_each_

        scale = self.noise_scale(records)
        if self.claims_more:
            self.claimed.append(scale)
        if std := scale * self._params.noise_std:
            add_gaussian_to_each_(sums, std, self._params.randomness)
        return sums, self.event

    def update_statistics(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Look at the released gradient of each parameter before it is applied.

        Args:
            parameters: their current values.
            gradients: the released ones, in the same shapes.
        """

    @property
    def nominal(self) -> list[Event]:
        """The releases so far as the paper counts them, if no theorem covers that."""
        sigma, q = self._params.noise_multiplier, self._params.sample_rate
        scales = Counter(self.claimed if sigma else ())
        return [SubsampledGaussian(g * sigma, q, n) if g else self.event for g, n in scales.items()]

    def state(self) -> dict[str, Any]:
        """Return a copy of all state that changes from step to step, for a checkpoint.

        `kept` names it: tensors, numbers and lists of these.
        """
        return {name: deepcopy(getattr(self, name)) for name in self.kept}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a state returned by `state`."""
        for name in self.kept:
            setattr(self, name, deepcopy(state[name]))

    # -- as an attacker sees it --------------------------------------------------------------------

    def noise_shapes(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Return the factors on the next noise of each parameter, in units of σC.

        Args:
            parameters: tensors of their shapes.
        """
        import torch

        shapes, scales = [torch.ones_like(p) for p in parameters], self.scales()
        for scale, shape in zip(scales, shapes, strict=bool(scales)):
            scale.times_(shape)
        return shapes

    def noise_scale(self, records: Sequence[int]) -> float:
        """Return the factor on all noise of this batch.

        Args:
            records: the batch, by number.
        """
        return 1.0


def register(policy: type[NoisePolicy]) -> type[NoisePolicy]:
    """Decorator: add a policy to `POLICIES`, and its theorem to those of `twinset.privacy`.

    Raises:
        ValueError: another policy has this name and form.
    """
    known = POLICIES.setdefault((policy.name, policy.form), policy)
    if known is not policy:
        raise ValueError(f"there are two policies {policy.name!r} in the {policy.form} form")
    register_theorem(policy.name, policy.form, policy.theorem)
    return policy


def policy_names() -> tuple[str, ...]:
    """Return the names of all policies, the default one first.

    >>> policy_names()[0]
    'uniform'
    """
    return tuple(dict.fromkeys((DEFAULT, *sorted(name for name, _ in POLICIES))))


def find_policy(name: str, form: str = "sound") -> type[NoisePolicy]:
    """Return a policy by name and form.

    Raises:
        InputError: there is none.
    """
    if name not in policy_names():
        raise InputError(f"`noise_policy`: {name[:40]!r} is none of {', '.join(policy_names())}")
    if (name, form) not in POLICIES:
        raise InputError(f"`noise_policy={name}` has no {form[:40]} form. Leave `policy_form` out.")
    return POLICIES[name, form]


@register
class Uniform(NoisePolicy):
    """The Gaussian mechanism of DP-SGD (Abadi et al. 2016), which every policy builds on."""

    name = "uniform"
    needs_steps = False  # without steps its options are those of no noise at all


POLICIES["uniform", "published"] = Uniform  # both forms are one
