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
from tests.helpers.commands import run_twinset
from tests.helpers.refusals import refusal
from twinset.bounds import Bounds, option_name
from twinset.config import (
    PolicyConfig,
    PrivacyConfig,
    SamplingConfig,
    SpeedConfig,
    TrainingConfig,
)
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
def test_what_is_out_of_range_is_refused_by_name(name):
    kind, field = FIELDS[name]
    bounds, flag = field.metadata["bounds"], f"`{option_name(field)}` "
    just_outside = math.nextafter(bounds.low, -math.inf), math.nextafter(bounds.high, math.inf)
    whole = math.ceil(bounds.low) - 1, math.floor(bounds.high) + 1
    for value in (*NO_NUMBERS, *just_outside, *whole):
        line = refusal(set_to, kind, field, value)
        assert line.startswith(flag) and str(bounds) in line and len(line) < 200


# --- the command line ----------------------------------------------------------------------------


def numeric(command, above: tuple[str, ...] = ()):
    """Yield the words before, the command and the option, of every numeric option."""
    for name, each in getattr(command, "commands", {}).items():
        yield from numeric(each, (*above, name))
    for option in command.params:
        if option.type_descriptor.annotation in (int, float):
            yield " ".join((*above, option.opts[0])), (above, command, option)


NUMERIC = dict(numeric(typer.main.get_command(cli.app)))
ONCE, _seen = [], set()  # what is declared once is tried once, and so is each command
for _name, (_words, _, _option) in NUMERIC.items():
    if not {_words, (_option.opts[0], _option.help)} <= _seen:
        ONCE.append(_name)
        _seen |= {_words, (_option.opts[0], _option.help)}


def range_of(option) -> Bounds | None:
    """Return the range that --help states: by the option table, by a dataclass, or by typer."""
    if option.min is not None and option.max is not None:
        return Bounds(option.min, option.max)
    for one in (*OPTIONS.values(), *options_of(PretrainConfig)):
        if one.name == option.name and str(one.bounds) in option.help:
            return one.bounds
    return next(
        (f.metadata.get("bounds") for f in fields(MechanismAudit) if f.name == option.name), None
    )


assert len(NUMERIC) > 80 and len(ONCE) > 60  # else the table below tests nothing


def test_every_numeric_option_has_a_stated_range():
    assert [name for name, (_, _, option) in NUMERIC.items() if range_of(option) is None] == []


@pytest.mark.parametrize("name", ONCE)
def test_every_command_refuses_what_is_out_of_range(name, tmp_path, monkeypatch, capsys):
    """With exit code 2 and one line that names the option, and before anything is read."""
    monkeypatch.chdir(tmp_path)
    words, command, option = NUMERIC[name]
    bounds = range_of(option)
    is_whole = option.type_descriptor.annotation is int
    needed = [p for p in command.params if p.required]
    given = [a for p in needed for a in ((p.opts[0], "absent") if p.opts[0][0] == "-" else ())]
    arguments = ["absent.csv" for p in needed if p.opts[0][0] != "-"]
    below = bounds.low - 1 if is_whole or not bounds.low else bounds.low / 2
    values = [10**40, below] if is_whole else [math.nan, below, "1e308"]
    for value in values:
        ended = run_twinset(capsys, *words, *arguments, *given, f"{option.opts[0]}={value}")
        assert ended.code == 2 and ended.err.count("\n") == 1, (value, ended.err)
        assert option.opts[0] in ended.err and "absent.csv" not in ended.err, (value, ended.err)
    assert not list(tmp_path.iterdir())
