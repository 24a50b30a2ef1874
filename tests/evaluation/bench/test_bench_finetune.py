"""The end-to-end benchmark on a toy: both loops see the same records, and every step is timed."""

import random

import pytest
import torch

from evaluation.bench import finetune as bench
from evaluation.bench.shares import shares
from twinset.config import RunConfig, SpeedConfig, TrainingConfig
from twinset.data.tokenization import TokenisedRecords

PROMPTS = {("a",): [1, 2], ("b",): [1, 3, 4]}


@pytest.fixture
def tokens() -> TokenisedRecords:
    draw = random.Random(0)
    texts = [[draw.randrange(1, 200) for _ in range(draw.randint(2, 20))] for _ in range(6)]
    return TokenisedRecords(texts, [("a",), ("b",)] * 3, PROMPTS, 0, 128)


def config(base, method: str) -> RunConfig:
    training = TrainingConfig(base_model=str(base), method=method)
    return RunConfig(training=training, speed=SpeedConfig(precision="float32"))


@pytest.mark.parametrize("method", ["lora", "full"])
def test_both_loops_are_timed_and_profiled(tiny_base, tokens, method):
    options = config(tiny_base, method)
    found = {
        "records_per_second": {
            bench.TRAINER: [1 / bench._trainer(options, tokens, 3)],
            bench.TWO: [1 / bench._twinset(options, tokens, 3, 8.0)],
        },
        "profile": shares(lambda: bench._twinset(options, tokens, 2, 8.0)),
        **dict.fromkeys(("command", "versions", "machine", "threads"), "x"),
        **dict.fromkeys(("dtype", "autocast", "mean_tokens"), "y"),
    }
    assert all(speed[0] > 0 for speed in found["records_per_second"].values())
    assert sum(found["profile"].values()) == pytest.approx(1, abs=0.01)
    assert "matrix products" in found["profile"]
    assert f"| {bench.TRAINER} |" in bench.markdown(found)


def test_the_trainer_reads_the_records_that_we_read(tokens):
    ours = tokens.sequences(range(6), 0, (0, 1))
    theirs = bench._padded([bench._row(tokens, i) for i in range(6)])
    counted = theirs["labels"] != -100
    assert counted.sum(1).tolist() == ours.loss_mask.sum(1).tolist()
    assert torch.equal(theirs["labels"][counted], ours.targets)
    assert torch.equal(theirs["input_ids"][counted], ours.targets)
