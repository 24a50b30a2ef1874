"""The ledger: all uses of the private records, and the facts that a guarantee about them rests on.

It is shared with the twin. So it may hold only what is public or was chosen without the private
records. Nothing computed from them without noise goes in: no losses, gradient norms, clipped
shares or numbers of duplicates. The number of records N is in it and is taken as public.

It states facts and computes nothing. ε comes from `accountant`, words from `guarantee`.
"""

from __future__ import annotations

import json
import platform
import unicodedata
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from importlib import metadata
from pathlib import Path
from typing import Any

from twinset.privacy.accounting.accountant import compose
from twinset.privacy.accounting.events import Event, event_from_dict, event_to_dict
from twinset.privacy.mechanism.randomness import Randomness
from twinset.privacy.mechanism.units import WeightScale, is_number
from twinset.privacy.statement.theorems import FLAGGED, OWNER, RECORD, SAMPLER, THEOREMS, UNIFORM

FORMAT_VERSION = 2  # of ledgers, and so of run folders, model folders and shares, which hold one
MOST = 2**63 - 1  # of whole numbers: arithmetic with floats fails on a JSON number that is larger


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= MOST


def _texts(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(t, str) and t.strip() for t in value)


def _has_controls(plain: Any) -> bool:
    """Return whether a text in plain values has a C0 or C1 control character, or DEL."""
    if isinstance(plain, str):
        return any(unicodedata.category(character) == "Cc" for character in plain)
    parts = [*plain, *plain.values()] if isinstance(plain, dict) else plain
    return isinstance(parts, list | tuple) and any(map(_has_controls, parts))


CHECKS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "delta": ("a number between 0 and 1", lambda v: is_number(v) and 0 < v < 1),
    "target_epsilon": ("above 0, or null", lambda v: v is None or (is_number(v) and v > 0)),
    "records": ("a whole number of at least 1", lambda v: _whole(v, 1)),
    "sample_rate": ("above 0 and at most 1", lambda v: is_number(v) and 0 < v <= 1),
    "max_grad_norm": ("a finite number above 0", lambda v: is_number(v) and v > 0),
    "format_version": (str(FORMAT_VERSION), lambda v: _whole(v, 0) and v == FORMAT_VERSION),
    "events": ("a list of events", lambda v: isinstance(v, list)),
    "library_versions": (
        "an object of texts",
        lambda v: isinstance(v, tuple) and all(_texts(pair) and len(pair) == 2 for pair in v),
    ),
    "group_size": ("a whole number of at least 2", lambda v: v is None or _whole(v, 2)),
    "weight_scale": ("an object, or null", lambda v: v is None or isinstance(v, WeightScale)),
    **dict.fromkeys(
        ("randomness_is_private", "records_public"),
        ("true or false", lambda v: isinstance(v, bool)),
    ),
    **dict.fromkeys(("public_inputs", "caveats"), ("a list of texts", _texts)),
    **dict.fromkeys(
        ("randomness", "policy", "policy_form", "unit", "neighbouring", "sampler", "clipping"),
        ("a text that is not blank", lambda v: _texts((v,))),
    ),
}


PUBLIC_INPUTS = (
    "the number of records",
    "the twin's column names, their order and types, and the set of label values",
    "the prompt template",
    "the base model and its training data",
    "the maximum length of a text in tokens",
    "hyper-parameters, chosen without the private records",
)
_LIBRARIES = ("twinset", "torch", "opacus", "transformers", "numpy")


@dataclass(frozen=True)
class Ledger:
    """Everything a reader needs to recompute the guarantee, and no private record.

    All of it is fixed once opened, except `events`, to which `record` appends.

    Args:
        delta: δ.
        target_epsilon: the requested ε, or None if privacy was switched off.
        records: N, the number of units: of owners, if these are protected.
        sample_rate: q, the probability with which each unit enters a step.
        max_grad_norm: C, the norm to which one unit's whole gradient is clipped.
        randomness: source of Poisson draws and noise.
        randomness_is_private: whether a guarantee may rest on it.
        policy: name of the noise policy.
        policy_form: "sound" or "published".
        events: the spending so far. Append with `record`.
        public_inputs: facts that are taken as public.
        caveats: further sentences the reader must see.
        library_versions: name to version.
        unit: whose presence is protected.
        neighbouring: the change against which it is protected.
        sampler: how batches are drawn.
        clipping: what is clipped together.
        records_public: N is taken as public.
        weight_scale: how privacy weights follow from a public model. Adaptive noise only.
        group_size: m, chosen without looking at the records. The guarantee for any m of them
            together is stated too. None: not requested, and not written.
        format_version: of the file.

    Raises:
        ValueError: a field has the wrong type or an impossible value. The message names the field.
    """

    delta: float
    target_epsilon: float | None
    records: int
    sample_rate: float
    max_grad_norm: float
    randomness: str
    randomness_is_private: bool
    policy: str
    policy_form: str
    events: list[Event] = field(default_factory=list)
    public_inputs: tuple[str, ...] = PUBLIC_INPUTS
    caveats: tuple[str, ...] = ()
    library_versions: tuple[tuple[str, str], ...] = ()
    unit: str = RECORD.unit
    neighbouring: str = RECORD.neighbouring
    sampler: str = SAMPLER
    clipping: str = RECORD.clipping
    records_public: bool = True
    weight_scale: WeightScale | None = None
    group_size: int | None = None
    format_version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        """Refuse values that no ledger can have."""
        for name, (expected, holds) in CHECKS.items():
            if not holds(getattr(self, name)):
                raise ValueError(f"ledger field '{name}' must be {expected}")
        for name, value in self.to_dict().items():
            if _has_controls(value):  # it could steer a reader's terminal
                raise ValueError(f"ledger field '{name}' has a control character")

    @classmethod
    def open(
        cls,
        randomness: Randomness,
        policy: str,
        policy_form: str = "sound",
        by_owner: bool = False,
        **facts: Any,
    ) -> Ledger:
        """Open the ledger of a run that has spent nothing yet, and note the library versions.

        Args:
            randomness: of Poisson draws and noise.
            policy: name of the noise policy.
            policy_form: "sound" or "published".
            by_owner: whether all records of an owner are one unit.
            facts: other fields, chosen before any record is read.
        """
        protected = OWNER if by_owner else RECORD
        if FLAGGED in THEOREMS.get((policy, policy_form), UNIFORM).protects:
            protected = FLAGGED
        versions = []
        for name in _LIBRARIES:
            try:
                versions.append((name, metadata.version(name)))
            except metadata.PackageNotFoundError:  # it is imported from a folder
                versions.append((name, "not installed as a package"))
        return cls(
            randomness=randomness.description,
            randomness_is_private=randomness.is_private,
            policy=policy,
            policy_form=policy_form,
            library_versions=(*versions, ("python", platform.python_version())),
            **asdict(protected),
            **facts,
        )

    def record(self, event: Event) -> None:
        """Append one event. Equal steps in a row are added up.

        Call it before the release is used. Then a run that is stopped has spent no more than the
        ledger says.

        Raises:
            TypeError: it is not an event.
        """
        event_to_dict(event)  # raises if it is not an event
        self.events[-1:] = compose([*self.events[-1:], event])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON. `from_dict` reads them.

        A ledger without a group size has no such field.
        """
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        if self.group_size is None:
            del plain["group_size"]
        return plain | {
            "events": [event_to_dict(event) for event in self.events],
            "public_inputs": list(self.public_inputs),
            "caveats": list(self.caveats),
            "library_versions": dict(self.library_versions),
            "weight_scale": self.weight_scale and asdict(self.weight_scale),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Ledger:
        """Rebuild a ledger from `to_dict`'s output. Nothing is guessed or ignored.

        Raises:
            ValueError: a field is missing, unknown, of the wrong type or out of range.
        """
        if not isinstance(data, dict):
            raise ValueError("a ledger must be a JSON object")
        known = {f.name for f in fields(cls)}
        if data.get("group_size") is None:
            known -= {"group_size"}
        if wrong := sorted(known ^ set(data)):
            raise ValueError(f"ledger: missing or unknown field: {', '.join(map(str, wrong))}")
        read: dict[str, tuple[type, Callable[[Any], Any]]] = {
            "events": (list, lambda events: [event_from_dict(event) for event in events]),
            "public_inputs": (list, tuple),
            "caveats": (list, tuple),
            "library_versions": (dict, lambda versions: tuple(versions.items())),
            "weight_scale": (object, lambda scale: scale and WeightScale.from_dict(scale)),
        }
        values = dict(data)
        for name, (kind, reader) in read.items():
            try:
                if not isinstance(data[name], kind):
                    raise ValueError(f"must be {CHECKS[name][0]}")
                values[name] = reader(data[name])
            except ValueError as error:
                raise ValueError(f"ledger field '{name}': {error}") from None
        return cls(**values)

    @classmethod
    def load(cls, path: Path) -> Ledger:
        """Read a file with the output of `to_dict`.

        Raises:
            ValueError: the file is no JSON, repeats a field, or is no ledger. The message names it.
        """

        def once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            if len(dict(pairs)) < len(pairs):
                raise ValueError("a field is given twice")
            return dict(pairs)

        try:
            text = path.read_text(encoding="utf-8")
            return cls.from_dict(json.loads(text, object_pairs_hook=once_each))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path.name}: {error}") from None
