import math

import numpy as np
import pytest
import torch

from tests.helpers.models import tiny_model
from twinset.pretraining.bits_per_byte import bits_per_byte
from twinset.pretraining.packing import Blocks, Order, write_tokens
from twinset.pretraining.tokenizer import train_tokenizer

DOCUMENTS = [f"Text number {n}: it is {'long ' * (n % 7)}enough." for n in range(40)]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(DOCUMENTS, 280)


@pytest.fixture
def blocks(tokenizer, tmp_path):
    write_tokens(DOCUMENTS, tokenizer, tmp_path / "tokens")
    return Blocks(tmp_path / "tokens", len(tokenizer), 16)


def test_every_token_is_predicted_once_and_every_document_is_there(blocks, tokenizer):
    rows = blocks.read(np.arange(len(blocks)))
    assert (rows[1:, 0] == rows[:-1, -1]).all()
    read = [int(rows[0, 0]), *rows[:, 1:].flatten().tolist()]
    found = tokenizer.decode(read).split(tokenizer.eos_token)
    assert set(found[1:-1]) <= set(DOCUMENTS)
    assert len(found[1:-1]) >= len(DOCUMENTS) - 2  # but for what no block has room for
    total = sum(len(ids) + 1 for ids in tokenizer(DOCUMENTS)["input_ids"])
    assert blocks.share == pytest.approx(len(blocks) * 15 / (total - 1))


def test_bits_per_byte_of_a_model_that_knows_nothing(blocks, tokenizer):
    model = tiny_model("GPT2Config", vocab_size=len(tokenizer), max_position_embeddings=16)
    torch.nn.init.zeros_(model.transformer.wte.weight)  # tied: all logits are zero
    model.train()
    size = sum(len(text.encode()) for text in DOCUMENTS)
    expected = len(blocks) * 15 * math.log2(len(tokenizer)) / (size * blocks.share)
    assert bits_per_byte(model, blocks, size) == pytest.approx(expected, rel=1e-5)
    assert model.training


def test_an_epoch_has_every_block_once_and_each_its_own_order():
    order = Order(blocks=10, batch_size=5, seed=3)
    epochs = [np.concatenate([order.of_step(s), order.of_step(s + 1)]) for s in (0, 2)]
    assert [sorted(epoch.tolist()) for epoch in epochs] == [list(range(10))] * 2
    assert epochs[0].tolist() != epochs[1].tolist()
    assert order.of_step(1).tolist() == Order(10, 5, 3).of_step(1).tolist()
    assert order.of_step(1).tolist() != Order(10, 5, 4).of_step(1).tolist()
