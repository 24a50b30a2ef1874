"""A tokenizer of bytes: byte-level BPE as in GPT-2, trained on public text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

END = "<|endoftext|>"


def train_tokenizer(documents: Sequence[str], size: int) -> Any:
    """Return a tokenizer of at most so many tokens, all bytes and the end of text among them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(documents, trainer, length=len(documents))
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=END, bos_token=END, unk_token=END, pad_token=END
    )
