"""Noise policies: how a step's clipped sum becomes a noisy gradient.

A policy is one file of this folder. Every module here is loaded, and each class with `@register` is
found by its name (see CONTRIBUTING.md). `policy` defines the interface. `detection` finds and masks
private spans, for the policies that protect these.
"""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass, make_dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from twinset.policies.policy import (
    POLICIES,
    Calibration,
    MechanismParams,
    NoisePolicy,
    PolicyForm,
    PolicyOptions,
    find_policy,
    policy_names,
    register,
)

for _module in pkgutil.iter_modules(__path__):
    if _module.name != "detection":  # it is no policy, and loads more
        import_module(f"{__name__}.{_module.name}")

if TYPE_CHECKING:  # a type checker knows the packaged policies
    from twinset.policies.adaptive import AdaptiveOptions
    from twinset.policies.importance import ImportanceOptions

    @dataclass(frozen=True)
    class PolicyConfig(ImportanceOptions, AdaptiveOptions):
        """The options of all policies together."""
else:
    # The shared options come first, then each policy's own: a dataclass takes its last base first.
    _kinds = dict.fromkeys(POLICIES[name, form].options for name, form in sorted(POLICIES))
    _own = [kind for kind in _kinds if kind is not PolicyOptions]
    PolicyConfig = make_dataclass(
        "PolicyConfig",
        [],
        bases=(*reversed(_own), *([] if _own else [PolicyOptions])),
        namespace={"__doc__": "The options of all policies together.", "__module__": __name__},
        frozen=True,
    )

__all__ = [
    "POLICIES",
    "Calibration",
    "MechanismParams",
    "NoisePolicy",
    "PolicyConfig",
    "PolicyForm",
    "PolicyOptions",
    "find_policy",
    "policy_names",
    "register",
]
