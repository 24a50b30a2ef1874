"""Families of causal models: those that twinset supports make a twin, others end in one line."""

import json

import pandas as pd
import pytest
import torch

import cli
from tests.conftest import CONTEXT, make_tokenizer
from tests.helpers.commands import Heard, arguments
from tests.helpers.models import LLAMA, tiny_model
from twinset import Twinset
from twinset.models.base_model import INDEX

LEARNED = {"max_position_embeddings": CONTEXT}
ROTARY = LLAMA | LEARNED | {"pad_token_id": None}
SUPPORTED = {
    "GPT2Config": LEARNED,
    "GPTJConfig": LEARNED | {"rotary_dim": 4},
    "GPTNeoConfig": LEARNED | {"attention_types": [[["global", "local"], 1]]},
    "GPTNeoXConfig": LEARNED | {"intermediate_size": 48},
    "OPTConfig": LEARNED | {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "LlamaConfig": ROTARY,
    "MistralConfig": ROTARY,
    "MixtralConfig": ROTARY | {"num_local_experts": 2},
    "Qwen2Config": ROTARY,
    "Qwen3Config": ROTARY | {"head_dim": 8},
    "Gemma2Config": ROTARY | {"head_dim": 8},
    "Gemma3TextConfig": ROTARY | {"head_dim": 8},
    "Phi3Config": ROTARY,
    "Olmo2Config": ROTARY,
    "GraniteConfig": ROTARY,
    "SmolLM3Config": ROTARY,
}
# Bloom has no longest context, and Mamba keeps no cache of keys and values.
REFUSED = {"BloomConfig": {}, "MambaConfig": {"state_size": 4}}


def save_family(folder, config, sizes, **how):
    tokenizer = make_tokenizer()
    end = tokenizer.eos_token_id
    sizes = {"vocab_size": len(tokenizer), "bos_token_id": end, "eos_token_id": end} | sizes
    torch.manual_seed(0)
    tiny_model(config, hidden_size=32, **sizes).save_pretrained(folder, **how)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("config", SUPPORTED)
def test_a_supported_family_makes_a_twin(config, good_table):
    base = save_family(good_table / "base", config, SUPPORTED[config])
    given = ("t.csv", "--rows", "4", "--output", "twin.csv")
    assert cli.main([str(word) for word in arguments(base, given)]) == 0
    assert len(pd.read_csv("twin.csv")) == 4


UNUSED = len(make_tokenizer()) + 300  # embeddings, most of which no token has


@pytest.mark.parametrize(
    ("sizes", "how", "changes"),
    [
        ({}, {"max_shard_size": "20KB"}, {}),
        ({"vocab_size": UNUSED}, {}, {}),
        ({"vocab_size": UNUSED, "tie_word_embeddings": False}, {}, {}),
        ({}, {}, {"pad_token": None, "bos_token": None, "unk_token": None}),
        ({"pad_token_id": 5, "bos_token_id": None, "eos_token_id": 9}, {}, {"pad_token": "~"}),
    ],
    ids=["sharded", "unused", "untied", "end token alone", "another pad and end"],
)
def test_a_folder_as_libraries_save_it_makes_a_twin(good_table, sizes, how, changes):
    base = save_family(good_table / "base", "GPT2Config", LEARNED | sizes, **how)
    assert (base / INDEX).exists() == bool(how)
    settings = json.loads((base / "tokenizer_config.json").read_text())
    (base / "tokenizer_config.json").write_text(json.dumps(settings | changes))
    given = ("t.csv", "--rows", "20", "--output", "twin.csv")
    assert cli.main([str(word) for word in arguments(base, given)]) == 0
    twin = pd.read_csv("twin.csv")
    assert len(twin) == 20 and twin["review"].str.strip().str.len().min() > 0


def test_a_folder_without_a_tokenizer_is_refused_in_one_line(good_table, model_copy, capsys):
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (model_copy / file).unlink()
    assert cli.main([str(word) for word in arguments(model_copy, ("t.csv",))]) == 2
    assert "it has no tokenizer" in capsys.readouterr().err


def test_changes_that_a_tokenizer_makes_to_texts_are_reported(good_table, model_copy):
    spelling = json.loads((model_copy / "tokenizer.json").read_text())
    spelling["normalizer"] = {"type": "Lowercase"}
    (model_copy / "tokenizer.json").write_text(json.dumps(spelling))
    table = pd.read_csv("t.csv")
    reviews = ["<|endoftext|>", "a <|endoftext|> b", *table["review"][2:] * 20]
    table.assign(review=reviews).to_csv("t.csv", index=False)
    heard, options = Heard(), {"steps": 1, "teacher_share": 0, "marginal_share": 0}
    options |= {"batch_size": 4, "max_tokens": 10 * CONTEXT, "progress": heard}
    Twinset(base_model=str(model_copy), **options).fit("t.csv", "review", "label")
    said = heard.lines
    assert "removed special tokens of the base model from 2 texts (`strict` refuses them)" in said
    assert "the base model loses capital letters of a text, so the twin will lack them" in said
    assert any(f"the base model reads {CONTEXT}, the prompt included" in line for line in said)


@pytest.mark.slow
@pytest.mark.parametrize("config", REFUSED)
def test_another_family_is_refused_in_one_line(config, good_table, capsys):
    base = save_family(good_table / "base", config, REFUSED[config])
    capsys.readouterr()
    assert cli.main([str(word) for word in arguments(base, ("t.csv",))]) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1 and config.removesuffix("Config").lower() in shown
