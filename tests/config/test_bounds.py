"""Every numeric option of every command has a stated range, and nothing else gets past it."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest
import typer

import cli
from evaluation.audit.report import MechanismAudit
from evaluation.evaluate import EvaluationRequest as Evaluated
from evaluation.leakage.audits import AuditRequest as Attacked
from evaluation.leakage.audits import CanaryRequest as Planted
from evaluation.policy_runs import ComparisonRequest as Compared
from tests.helpers.refusals import refusal
from twinset.bounds import Bounds, option_name
from twinset.config import PolicyConfig, PrivacyConfig, SamplingConfig, SpeedConfig, TrainingConfig
from twinset.config.options import OPTIONS, options_of
from twinset.pretraining import PretrainConfig
from twinset.run.request import Source

GIVEN = {  # fields without a default
    Evaluated: {"train": "t", "test": "t"},
    Attacked: {"members": "t", "non_members": "t"},
    Compared: {"source": Source("t")},
    Planted: {"rows": Compared(Source("t"))},
}
CONFIGS = (
    PrivacyConfig, PolicyConfig, TrainingConfig, SpeedConfig, SamplingConfig, PretrainConfig,
    MechanismAudit, *GIVEN,
)  # fmt: skip
FIELDS = {
    f"{kind.__module__.split('.')[-1]}.{field.name}": (kind, field)
    for kind in CONFIGS
    for field in fields(kind)
    if str(field.type).split(" ")[0] in ("int", "float")
}
FEWER = {
    "lora_rank": {"base_model": "gpt2-mini"},
    "heads": {"heads": 1, "width": 1000},
    "width": {"heads": 1},
    "each": {"copies": (0,)},
}
FEWER |= {"importance_low": {"importance_high": 1.0}, "importance_high": {"importance_low": 0.0}}


def set_to(kind, field, value):
    return kind(**GIVEN.get(kind, {}), **{**FEWER.get(field.name, {}), field.name: value})


NO_NUMBERS = (math.nan, math.inf, -math.inf, 10**40, -(10**400), 10**5000, "1", True, [1], {})


@pytest.mark.parametrize("name", FIELDS)
def test_options_out_of_range_are_refused_by_name(name):
    kind, field = FIELDS[name]
    bounds, flag = field.metadata["bounds"], f"`{option_name(field)}` "
    just_outside = math.nextafter(bounds.low, -math.inf), math.nextafter(bounds.high, math.inf)
    whole = math.ceil(bounds.low) - 1, math.floor(bounds.high) + 1
    for value in (*NO_NUMBERS, *just_outside, *whole):
        line = refusal(set_to, kind, field, value)
        assert line.startswith(flag) and str(bounds) in line and len(line) < 200


def numeric(command):
    """Yield every numeric option of a command and of those below it."""
    for each in getattr(command, "commands", {}).values():
        yield from numeric(each)
    yield from (o for o in command.params if o.type_descriptor.annotation in (int, float))


def range_of(option) -> Bounds | None:
    """Return the range that --help states: by the option table, by a dataclass, or by typer."""
    if option.min is not None and option.max is not None:
        return Bounds(option.min, option.max)
    for one in (*OPTIONS.values(), *options_of(PretrainConfig)):
        if one.name == option.name and str(one.bounds) in option.help.lower():
            return one.bounds
    return next(
        (f.metadata.get("bounds") for f in fields(MechanismAudit) if f.name == option.name), None
    )


def test_every_numeric_option_has_a_stated_range():
    options = [*numeric(typer.main.get_command(cli.app))]
    assert len(options) > 80
    assert [option.name for option in options if range_of(option) is None] == []
