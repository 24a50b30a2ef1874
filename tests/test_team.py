"""Several processes form the sum that one forms, and one of them alone adds noise."""

import hashlib
import math
import os
import subprocess
import sys
import types
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import arguments, good_table_in, run_twinset
from scipy import stats

from twinset import team as teams
from twinset.basemodel import load_base
from twinset.clippedsum import Batch, ClippedSum, WrongPrompts
from twinset.config import RunConfig, SpeedConfig, TrainingConfig
from twinset.learner import Learner
from twinset.nf4 import Nf4Linear
from twinset.plan import Plan
from twinset.policies import Setting, make_policy
from twinset.policies.uniform import Uniform
from twinset.privacy.clipping import ClippingEngine, Scale
from twinset.privacy.randomness import Randomness
from twinset.processes import joined, team_of
from twinset.progress import Silent
from twinset.records import Records
from twinset.schema import Attribute, Schema
from twinset.team import TeamSum
from twinset.templates import Template
from twinset.tokens import TokenisedRecords, tokenise
from twinset.worker import learner_of

ROOT = Path(__file__).parents[1]
SIGMA, NORM = 0.9, 0.2
LABELS = [("good",), ("bad",)]
SCHEMA = Schema("t", "str", (Attribute("l", "str", ("bad", "good")),), columns=("t", "l"))
PLAN = Plan(24, 8.0, 1e-5, 12, 3, SIGMA, 1.0, 1e-3, 2.0)


@pytest.fixture(scope="module")
def config(tiny_base) -> RunConfig:
    training = TrainingConfig(base_model=str(tiny_base), method="full", max_tokens=20)
    return RunConfig(training=training, speed=SpeedConfig(precision="float32", physical_batch=4))


@pytest.fixture(scope="module")
def tokens(config, tmp_path_factory) -> TokenisedRecords:
    texts = [f"The film {'was long ' * (i % 4)}number {i}." for i in range(24)]
    records = Records(texts, [LABELS[i % 2] for i in range(24)], SCHEMA)
    base = load_base(config.training.base_model)
    template = Template("own", "A {l} text:", {}, ("l",))
    return tokenise(records, template, base.tokenizer, 64, 20, tmp_path_factory.mktemp("tokens"))


def engine_of(config, norm=NORM) -> ClippingEngine:
    learner = Learner(load_base(config.training.base_model), config, False, Silent())
    return ClippingEngine(learner.model, norm, learner.how)


def own_sum(config, tokens) -> ClippedSum:
    wrong = WrongPrompts.of(PLAN, config.training)
    return ClippedSum(engine_of(config), tokens, wrong, config.speed)


def job(config, tokens, norm=NORM):
    config = replace(config, privacy=replace(config.privacy, max_grad_norm=norm))
    learner = Learner(load_base(config.training.base_model), config, False, Silent())
    return learner.job(tokens, PLAN) | {"wrong": asdict(WrongPrompts.of(PLAN, config.training))}


def alone_each(records) -> list[list[int]]:
    return [[record] for record in records]


def batches(parameters) -> dict[str, Batch]:
    limits = torch.linspace(0.05, NORM, 13, dtype=torch.float64)
    scales = [Scale(torch.linspace(0.5, 2.0, p.shape[-1])) for p in parameters]
    return {
        "plain": Batch(1, alone_each(range(20))),
        "own limits": Batch(2, alone_each(range(11, 24)), limits),
        "rescaled": Batch(3, alone_each([3, 1, 2]), scales=scales),
        "fewer units than processes": Batch(4, [[5, 7, 6]]),
        "empty": Batch(5, []),
    }


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_the_sum_of_a_team_is_that_of_one_process(config, tokens, size):
    alone, leader = own_sum(config, tokens), own_sum(config, tokens)
    with team_of(size) as team:
        team.tell(job(config, tokens))
        for name, batch in batches(alone.engine.parameters).items():
            mine, theirs = alone.over(batch), TeamSum(leader, team).over(batch)
            for a, b in zip(alone.engine.sums, leader.engine.sums, strict=True):
                assert torch.allclose(a, b, atol=2e-6, rtol=1e-5), name
            for figure in ("losses", "norms", "scales"):
                of_one, of_team = getattr(mine, figure), getattr(theirs, figure)
                pairs = of_one.double().sort().values, of_team.double().sort().values
                assert torch.allclose(*pairs, rtol=1e-5), name
        team.tell(teams.END)


def weights_of(learner: Learner) -> list[torch.Tensor]:
    layers = [m.weights() for m in learner.model.modules() if isinstance(m, Nf4Linear)]
    return [*learner.model.parameters(), *layers]


@pytest.mark.parametrize("isolated", [True, False])
@pytest.mark.parametrize("method", ["lora", "qlora", "full"])
def test_others_begin_with_the_leaders_weights(config, tokens, monkeypatch, method, isolated):
    """Also where bfloat16 is not fit for it, and the rounded weights go on in float32."""
    monkeypatch.setattr("twinset.learner.is_isolated", lambda *given: isolated)
    training = replace(config.training, method=method)
    low = replace(config, training=training, speed=SpeedConfig(precision="bfloat16"))
    leader = Learner(load_base(training.base_model), low, True, Silent())
    told = leader.job(tokens, PLAN)
    follower = learner_of(told)
    assert leader.how == follower.how
    pairs = list(zip(weights_of(leader), weights_of(follower), strict=True))
    assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)
    # negative control: weights that were never rounded
    told["config"]["speed"]["precision"] = "float32"
    other = weights_of(learner_of(told | {"fallen_back": False}))
    equal = all(torch.equal(a.float(), b) for (a, _), b in zip(pairs, other, strict=True))
    assert equal == (method == "full")


def test_who_forms_a_gradient_does_not_depend_on_its_company():
    units = [[i] for i in range(5, 60, 4)]
    team = TeamSum(None, types.SimpleNamespace(size=3))

    def process_of(some) -> dict[int, int]:
        dealt = team._dealt(some)
        return {some[place][0]: rank for rank, places in enumerate(dealt) for place in places}

    whole = process_of(units)
    assert sorted(whole) == [u for [u] in units] and set(whole.values()) == {0, 1, 2}
    for i in range(len(units)):
        assert process_of(units[:i] + units[i + 1 :]).items() <= whole.items()


@pytest.mark.slow
def test_others_are_given_the_leaders_weights(config, tokens):
    """After a step the sums are those of the new weights, which the others never computed."""
    alone, leader = own_sum(config, tokens), own_sum(config, tokens)
    batch = batches(alone.engine.parameters)["plain"]
    with team_of(2) as team:
        team.tell(job(config, tokens))
        before = [total.clone() for total in alone.engine.sums] if alone.over(batch) else []
        with torch.no_grad():
            for own in (alone, leader):
                for parameter in own.engine.parameters:
                    parameter += 0.05
        alone.over(batch), TeamSum(leader, team).over(batch)
        team.tell(teams.END)
    pairs = list(zip(before, alone.engine.sums, leader.engine.sums, strict=True))
    assert all(torch.allclose(a, b, atol=2e-6, rtol=1e-4) for _, a, b in pairs)
    assert not all(torch.allclose(old, b, atol=1e-4) for old, _, b in pairs)


class Watched(Uniform):
    """Keeps the noise that was drawn."""

    drawn: list[torch.Tensor] = []

    def release(self, sums, records):
        before = [total.clone() for total in sums]
        noisy, event = super().release(sums, records)
        Watched.drawn += [a - b for a, b in zip(noisy, before, strict=True)]
        return noisy, event


def spread_fits(draws: torch.Tensor, std: float) -> bool:
    """A chi-square test of the variance, at 1 in 10⁶."""
    n = draws.numel()
    ratio = float((draws.double() ** 2).sum()) / std**2
    return bool(stats.chi2.ppf(5e-7, n) < ratio < stats.chi2.ppf(1 - 5e-7, n))


def test_noise_is_added_once_with_the_whole_sigma(config, tokens, monkeypatch):
    monkeypatch.setattr(Watched, "drawn", [])
    setting = Setting(SIGMA, NORM, PLAN.sample_rate, Randomness.from_os())
    privacy = config.privacy.__class__(max_grad_norm=NORM)
    config = RunConfig(privacy=privacy, training=config.training, speed=config.speed)
    steps, events = [np.arange(12), np.arange(0), np.arange(24)], []
    with team_of(2) as team:
        learner = Learner(load_base(config.training.base_model), config, False, Silent(), team)
        learner.train(tokens, steps, PLAN, Watched(setting), events.append)
    draws = torch.cat([noise.flatten() for noise in Watched.drawn])
    assert len(events) == 3 and draws.numel() > 10_000
    assert spread_fits(draws, SIGMA * NORM)
    for wrong in (2 / 3, 3 / 2, math.sqrt(2), 1 / math.sqrt(2)):
        assert not spread_fits(draws, wrong * SIGMA * NORM)


FOLLOWER = """
import hashlib, sys
from pathlib import Path
from twinset import team, worker

plain = team._part
def watched(batch, sizes, own, group):
    report = plain(batch, sizes, own, group)
    with open(sys.argv[4], "a") as file:
        data = b"".join(p.detach().numpy().tobytes() for p in own.engine.parameters)
        file.write(hashlib.sha256(data).hexdigest() + "\\n")
    return report
team._part = watched
worker.main(*sys.argv[1:4])
"""


@pytest.mark.slow
def test_weights_are_equal_on_all_processes_in_each_step(config, tokens, tmp_path, monkeypatch):
    theirs, plain = tmp_path / "theirs", teams._part

    def digest(parameters) -> str:
        data = b"".join(p.detach().numpy().tobytes() for p in parameters)
        return hashlib.sha256(data).hexdigest()

    seen = []

    def watched(batch, sizes, own, group):
        report = plain(batch, sizes, own, group)
        seen.append(digest(own.engine.parameters))
        return report

    monkeypatch.setattr(teams, "_part", watched)
    meeting = str(tmp_path / "meeting")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-c", FOLLOWER, meeting, "1", "2", str(theirs)]
    setting = Setting(SIGMA, config.privacy.max_grad_norm, 0.5, Randomness.from_os())
    with subprocess.Popen(command, env=environment), joined(f"file://{meeting}", 0, 2) as team:
        learner = Learner(load_base(config.training.base_model), config, False, Silent(), team)
        steps = [np.arange(12)] * 3
        learner.train(tokens, steps, PLAN, make_policy(setting), lambda event: None)
    assert theirs.read_text().split() == seen and len(set(seen)) == 3


RUN = ("t.csv", "--run", "r", "--rows", "40", "--steps", "3", "--epsilon", "20")


def test_a_run_of_two_processes_is_whole(tiny_base, tmp_path, monkeypatch, capsys):
    import pandas as pd

    place = good_table_in(tmp_path, monkeypatch)
    made = run_twinset(capsys, *arguments(tiny_base, RUN), "--processes", "2")
    assert made.code == 0
    assert len(pd.read_csv("r/share/twin.csv")) == 40
    assert run_twinset(capsys, "verify", "r").code == 0
    assert sorted(path.name for path in place.iterdir()) == ["r", "t.csv"]


@pytest.mark.slow
def test_rows_do_not_depend_on_who_draws_them(tiny_base, tmp_path, monkeypatch, capsys):
    """Without noise, and with every record in each batch, nothing else is random."""
    good_table_in(tmp_path, monkeypatch)
    plain = ("t.csv", "--rows", "40", "--no-privacy", "--batch-size", "60", "--precision")
    for run, more in (("one", []), ("two", ["--processes", "2"])):
        given = arguments(tiny_base, (*plain, "float32", "--steps", "1", "--run", run))
        assert run_twinset(capsys, *given, *more).code == 0
    twins = [Path(run, "share/twin.csv").read_text() for run in ("one", "two")]
    assert twins[0] == twins[1]


def test_a_process_that_dies_ends_the_run_with_one_line(config, tokens, monkeypatch):
    from twinset.errors import InputError

    with pytest.raises(InputError, match="fewer --processes"), team_of(2) as team:
        team.tell({"job": "no such job"})  # it ends with an error
        team.wait()


def test_sharded_training_is_refused(tiny_base, tmp_path, monkeypatch, capsys):
    good_table_in(tmp_path, monkeypatch)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    refused = run_twinset(capsys, *arguments(tiny_base, RUN))
    assert refused.code == 2 and "FSDP is not supported" in refused.err
    assert not Path("r").exists()


@pytest.mark.slow
def test_a_launcher_may_start_the_processes(tiny_base, tmp_path, monkeypatch):
    good_table_in(tmp_path, monkeypatch)
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m"]
    given = ("t.csv", "--rows", "40", "--epsilon", "20")  # --run would be taken for the launcher's
    command = [*launch, "twinset", *map(str, arguments(tiny_base, given))]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in Path("runs").iterdir()] == ["t-1"]
    assert Path("runs/t-1/share/privacy.json").is_file()
