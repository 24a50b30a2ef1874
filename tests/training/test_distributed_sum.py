"""Several processes form the sum that one forms, and one of them alone adds noise."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import psutil
import pytest
import torch
from scipy import stats

from tests.helpers.commands import arguments, call
from twinset.config import PrivacyConfig, RunConfig, SpeedConfig, TrainingConfig
from twinset.config.plan import Plan
from twinset.errors import InputError
from twinset.models.base_model import load_base
from twinset.models.layers import BatchShape, Nf4Linear
from twinset.policies import MechanismParams
from twinset.policies.policy import Uniform
from twinset.privacy.clipping import ClippingEngine, Scale
from twinset.privacy.mechanism.gate import Gate
from twinset.privacy.mechanism.randomness import Randomness
from twinset.progress import Silent
from twinset.table.records import Records
from twinset.table.schema import Attribute, Schema
from twinset.table.templates import Template
from twinset.table.tokenization import TokenisedRecords, tokenise
from twinset.training import distributed
from twinset.training.clipped_sum import Batch, ClippedSum, MismatchLoss, Trainer
from twinset.training.distributed import END, process_group, run_worker, sum_together
from twinset.training.loop import StepContext, opening_message, run_training

SIGMA, NORM = 0.9, 0.2
LABELS = [("good",), ("bad",)]
SCHEMA = Schema("t", "str", (Attribute("l", "str", ("bad", "good")),), columns=("t", "l"))
TEXTS = [f"The film number {i}." for i in range(24)]
ITS_LABELS = [LABELS[i % 2] for i in range(24)]
PLAN = Plan(24, 8.0, 1e-5, 12, 3, SIGMA, 1.0, 1e-3, 2.0)


@pytest.fixture(scope="module")
def config(tiny_base) -> RunConfig:
    training = TrainingConfig(base_model=str(tiny_base), method="full", max_tokens=20)
    return RunConfig(
        privacy=PrivacyConfig(max_grad_norm=NORM),
        training=training,
        speed=SpeedConfig(precision="float32", physical_batch=4),
    )


@pytest.fixture(scope="module")
def tokens(config, tmp_path_factory) -> TokenisedRecords:
    texts = [f"The film {'was long ' * (i % 4)}number {i}." for i in range(24)]
    base, folder = load_base(config.training.base_model), tmp_path_factory.mktemp("tokens")
    return tokens_of(texts, ITS_LABELS, base, folder)


def trainer(config) -> Trainer:
    return Trainer(load_base(config.training.base_model), config, [], Silent())


def context(config, tokens, policy=None, record=lambda event: None, group=None):
    return StepContext(
        records=tokens,
        plan=PLAN,
        policy=policy,
        max_grad_norm=config.privacy.max_grad_norm,
        gate=Gate(record),
        training=config.training,
        speed=config.speed,
        group=group,
    )


def batches(parameters) -> dict[str, Batch]:
    limits = torch.linspace(0.05, NORM, 13, dtype=torch.float64)
    scales = [Scale(torch.linspace(0.5, 2.0, p.shape[-1])) for p in parameters]
    return {
        "plain": Batch(1, [[i] for i in range(20)]),
        "own limits": Batch(2, [[i] for i in range(11, 24)], limits),
        "rescaled": Batch(3, [[3], [1], [2]], scales=scales),
        "fewer units than processes": Batch(4, [[5, 7, 6]]),
        "empty": Batch(5, []),
    }


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
    spread = stats.chi2(draws.numel()).cdf(float((draws.double() ** 2).sum()) / std**2)
    return 5e-7 < spread < 1 - 5e-7


def check_noise(config, tokens, group) -> None:
    """Check that a run of the group adds noise once, with the whole σ."""
    Watched.drawn.clear()
    policy = Watched(MechanismParams(SIGMA, NORM, PLAN.sample_rate, Randomness.from_os()))
    steps, events = [np.arange(12), np.arange(0), np.arange(24)], []
    run_training(trainer(config), steps, context(config, tokens, policy, events.append, group))
    draws = torch.cat([noise.flatten() for noise in Watched.drawn])
    assert len(events) == 3 and draws.numel() > 10_000
    assert spread_fits(draws, SIGMA * NORM)
    for wrong in (2 / 3, 3 / 2, math.sqrt(2), 1 / math.sqrt(2)):
        assert not spread_fits(draws, wrong * SIGMA * NORM)


def test_several_processes_form_the_sum_of_one_add_noise_once_and_end_with_one_that_dies(
    config, tokens
):
    alone, rank_zero = (
        ClippedSum(
            ClippingEngine((made := trainer(config)).model, NORM, made.execution),
            tokens,
            MismatchLoss.from_plan(PLAN, config.training),
            config.speed,
            PLAN.batch_size,
        )
        for _ in range(2)
    )
    asked = batches(alone.engine.parameters)
    died = pytest.raises(InputError, match="fewer `processes`")
    with died, process_group(2) as group:
        group.broadcast_message(opening_message(trainer(config), context(config, tokens)))
        for name, batch in [*asked.items(), ("other weights", asked["plain"])]:
            if name == "other weights":  # which the other ranks never computed
                before = [total.clone() for total in alone.engine.sums]
                with torch.no_grad():
                    for parameter in (*alone.engine.parameters, *rank_zero.engine.parameters):
                        parameter += 0.05
            mine, theirs = alone.compute_clipped_sum(batch), sum_together(rank_zero, group, batch)
            for a, b in zip(alone.engine.sums, rank_zero.engine.sums, strict=True):
                assert torch.allclose(a, b, atol=2e-6, rtol=1e-4), name
            for figure in ("losses", "norms", "scales"):
                pair = (getattr(sums, figure).double().sort().values for sums in (mine, theirs))
                assert torch.allclose(*pair, rtol=1e-5), name
        group.broadcast_message(END)
        check_noise(config, tokens, group)
        # Nobody else can connect to any of the processes.
        me = psutil.Process()
        (worker,) = [p for p in me.children() if distributed.WORKER in p.cmdline()]
        assert not [c for p in (me, worker) for c in p.net_connections("inet")]
        group.broadcast_message({"config": "none"})  # it ends with an error
        group.gather(torch.zeros(3, 0), [0, 0])
    now = rank_zero.engine.sums
    assert not all(torch.allclose(a, b, atol=1e-4) for a, b in zip(before, now, strict=True))


@pytest.mark.parametrize(
    ("method", "isolated"), [("lora", False), ("ia3", True), ("qlora", True), ("full", False)]
)
def test_others_start_from_the_weights_of_rank_0(config, tokens, monkeypatch, method, isolated):
    """Also where bfloat16 is not fit for it, and the rounded weights stay in float32."""
    monkeypatch.setattr("twinset.training.clipped_sum.is_batch_invariant", lambda *given: isolated)
    training = replace(config.training, method=method)
    low = replace(config, training=training, speed=SpeedConfig(precision="bfloat16"))
    rank_zero = Trainer(load_base(training.base_model), low, [BatchShape(2, 1, 16)], Silent())
    message_sent = opening_message(rank_zero, context(low, tokens))

    def follower_of(message) -> Trainer:
        """Return what another rank makes of a message."""
        made, messages = [], iter([message, END, END])
        group = SimpleNamespace(rank=1, broadcast_message=lambda: next(messages))
        monkeypatch.setattr(
            distributed, "Trainer", lambda *given: made.append(Trainer(*given)) or made[0]
        )
        run_worker(group)
        return made[0]

    follower = follower_of(message_sent)
    assert rank_zero.execution == follower.execution

    def weights_of(trainer: Trainer) -> list[torch.Tensor]:
        layers = [m.weights() for m in trainer.model.modules() if isinstance(m, Nf4Linear)]
        return [*trainer.model.parameters(), *layers]

    pairs = list(zip(weights_of(rank_zero), weights_of(follower), strict=True))
    assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)
    # negative control: weights that were never rounded
    message_sent["config"]["speed"]["precision"] = "float32"
    other = weights_of(follower_of(message_sent | {"has_fallen_back": False}))
    equal = all(torch.equal(a.float(), b) for (a, _), b in zip(pairs, other, strict=True))
    assert equal == (method == "full")


def tokens_of(texts, labels, base, folder=None) -> TokenisedRecords:
    template = Template("own", "A {l} text:", {}, ("l",))
    return tokenise(Records(texts, labels, SCHEMA), template, base.tokenizer, 64, 20, folder)


def test_a_removed_row_moves_no_other_to_another_process(tiny_base, monkeypatch):
    base = load_base(str(tiny_base))
    monkeypatch.setattr(distributed, "_sum_part", lambda *given: None)

    def ranks(gone=None) -> dict[str, int]:
        """Which of three processes forms the gradient of each text, all being in one batch."""
        kept = [i for i in range(24) if i != gone]
        tokens = tokens_of([TEXTS[i] for i in kept], [ITS_LABELS[i] for i in kept], base)
        asked: list[dict] = []
        group = SimpleNamespace(size=3, broadcast_message=asked.append)
        units = [[i] for i in range(len(kept))]
        sum_together(SimpleNamespace(records=tokens), group, Batch(1, units))
        dealt = enumerate(asked[0]["units"])
        return {TEXTS[kept[i]]: rank for rank, part in dealt for (i,) in part}

    def moved() -> int:
        whole = ranks()
        return sum(whole[t] != rank for gone in range(24) for t, rank in ranks(gone).items())

    assert set(ranks().values()) == {0, 1, 2} and moved() == 0
    # The negative control: dealt by number, it moves the later ones.
    monkeypatch.setattr(TokenisedRecords, "digest", lambda self, index: index)
    assert moved() == sum(range(24))


RUN = "t.csv --run r --rows 6 --steps 1 --epsilon 20 --marginal-share 0 --teacher-share 0".split()


@pytest.mark.slow  # sums and rows of several processes are tested each time
def test_a_run_of_two_processes_is_whole(tiny_base, good_table):
    made = call(*arguments(tiny_base, RUN), "--processes", "2")
    assert made.code == 0
    assert len(pd.read_csv("r/share/twin.csv")) == 6
    assert call("verify", "r").code == 0
    assert sorted(path.name for path in good_table.iterdir()) == ["r", "t.csv"]


def test_sharded_training_is_refused(tiny_base, good_table, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    refused = call(*arguments(tiny_base, RUN))
    assert refused.code == 2 and "FSDP is not supported" in refused.err
    assert not Path("r").exists()
