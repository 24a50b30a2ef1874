"""Tiny models made on the spot: one of each family, so that no test needs a download."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)

SENTENCES = (
    "Write a positive review about a film: The story was great and I loved every minute of it.",
    "Write a negative review about a book: The plot was dull, and I could not finish it.",
    "Write a fresh review about a product: It works well, it is cheap and it looks good.",
    "Write a rotten review about a kitchen: The pan broke after two days; do not buy this one!",
)
CONTEXT = 128


def _tokenizer(eos: str = "<|endoftext|>"):
    """Byte-level BPE without control bytes: a random model would write them in most rows."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    control = {chr(256 + byte) for byte in range(32) if chr(byte) not in "\t\n\r"} | {chr(289)}
    alphabet = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - control)
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=384,
        min_frequency=2,
        special_tokens=[eos],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    bpe.train_from_iterator(SENTENCES, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=eos, bos_token=eos, unk_token=eos
    )


def _save(model, tokenizer, folder: Path) -> Path:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory) -> Path:
    """Folder of a random two-layer GPT-2 (tied embeddings, Conv1D) and its tokenizer."""
    from transformers import GPT2Config, GPT2LMHeadModel

    tokenizer = _tokenizer()
    end = tokenizer.eos_token_id
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=CONTEXT,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=end,
        eos_token_id=end,
    )
    return _save(GPT2LMHeadModel(config), tokenizer, tmp_path_factory.mktemp("tiny-gpt2"))


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory) -> Path:
    """Folder of a random two-layer Llama (tied embeddings, grouped-query attention)."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = _tokenizer()
    end = tokenizer.eos_token_id
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=CONTEXT,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        bos_token_id=end,
        eos_token_id=end,
    )
    return _save(LlamaForCausalLM(config), tokenizer, tmp_path_factory.mktemp("tiny-llama"))
