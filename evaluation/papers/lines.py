"""Lines of plain text, small GPT-2s trained on them through `Twinset`, and their perplexity.

A line is one record and one unit of privacy. The table for `Twinset` has a constant label, so every
line has the same short prompt, which perplexity does not count.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from twinset import Twinset
from twinset.errors import InputError

if TYPE_CHECKING:
    from twinset.sampling.twin_model import TwinModel

LABEL, LABELS, PROMPT = "kind", ("line", "other"), "A {kind}:"  # "other" is declared and has no row
LINES_AT_ONCE = 32


def read_lines(path: Path, most: int | None = None, column: str = "text") -> list[str]:
    """Return the lines of a text file, or of a column of a CSV or JSONL, also with `.gz`.

    Args:
        path: the file.
        most: draw this many lines at random, the same ones each time. None takes all.
        column: of a table.

    Raises:
        InputError: the file holds no such column, or no text.
    """
    if path.name.removesuffix(".gz").endswith(".txt"):
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
        texts = content.decode("utf-8").splitlines()
    else:
        read = pd.read_csv if ".csv" in path.name else pd.read_json
        frame = read(path, **({} if ".csv" in path.name else {"lines": True}))
        if column not in frame:
            raise InputError(f"{path}: has no column {column!r}; name another file")
        texts = frame[column].dropna().astype(str).tolist()
    lines = [line.strip() for text in texts for line in text.split("\n") if line.strip()]
    if not lines:
        raise InputError(f"{path}: holds no text; name another file")
    if most is None or most >= len(lines):
        return lines
    chosen = np.random.default_rng(0).permutation(len(lines))[:most]
    return [lines[i] for i in sorted(chosen)]


def load_corpus(paths: Mapping[str, Path], size: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return public lines, and private lines to train on and to score, cut to a size.

    Args:
        paths: of `public`, `private_train` and `private_test`.
        size: with `public_lines`, `private_lines` and `scored_lines`. None takes all lines.
    """
    most = {
        "public": size["public_lines"],
        "private_train": size["private_lines"],
        "private_test": size["scored_lines"],
    }
    return {name: read_lines(path, most[name]) for name, path in paths.items()}


def write_base(
    folder: Path,
    public: Sequence[str],
    shape: dict[str, int],
    seed: int,
    epochs: float = 0.0,
    learning_rate: float = 1e-3,
) -> Path:
    """Write a GPT-2 with its own tokenizer of the public lines. Return its folder.

    Args:
        folder: created if it is missing.
        public: lines that decide the tokens, and that the model is trained on.
        shape: `vocabulary`, `width`, `layers`, `heads` and `context`.
        seed: of the weights and of the order of lines.
        epochs: passes over the public lines. 0 leaves the weights random.
        learning_rate: of AdamW, while it is trained.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    end = "<|endoftext|>"
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()  # every byte is a token, so every text is known
    trainer = trainers.BpeTrainer(
        vocab_size=shape["vocabulary"],
        special_tokens=[end],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    bpe.train_from_iterator(public, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=end, bos_token=end)
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=shape["context"],
        n_embd=shape["width"],
        n_layer=shape["layers"],
        n_head=shape["heads"],
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = GPT2LMHeadModel(config)
    if epochs:
        train_on_public(model, tokenizer, public, seed, epochs, learning_rate)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def train_on_public(
    model: Any,
    tokenizer: Any,
    lines: Sequence[str],
    seed: int,
    epochs: float,
    learning_rate: float,
    batch_size: int = 64,
) -> None:
    """Train a causal model on public lines after the prompt, in place, without privacy."""
    import torch
    from torch.nn.functional import cross_entropy

    prompt, rows = encode_lines(tokenizer, lines, model.config.n_positions)
    order = np.random.default_rng(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    for _ in range(round(epochs * len(rows) / batch_size)):
        batch = [rows[i] for i in order.integers(len(rows), size=batch_size)]
        ids, counted = pad_lines(prompt, batch)  # (B, S) each
        logits = model(input_ids=ids).logits[:, :-1]  # (B, S - 1, V)
        losses = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        loss = losses[counted[:, 1:].flatten()].mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def fit_lines(base: Path | str, lines: Sequence[str], seed: int, **options: Any) -> Twinset:
    """Fine-tune all weights of a base on private lines, with a policy and an ε.

    Args:
        base: a folder from `write_base`, or a model's name.
        lines: private ones.
        seed: never reaches the noise.
        options: of `Twinset`: `epsilon`, `noise_policy`, `steps`, `batch_size`, …
    """
    frame = pd.DataFrame({"text": list(lines), LABEL: LABELS[0]})
    usual: dict[str, Any] = {
        "method": "full",
        "mismatch_weight": 0.0,  # the papers train on the plain loss
        "marginal_share": 0.0,  # and release nothing but the model
        "teacher_share": 0.0,
        "max_grad_norm": 1.0,
        "max_minutes": None,
    }
    is_private = options["epsilon"] is not None
    shape = {"base_model": base, "prompt": PROMPT, "seed": seed}
    twinset = Twinset(private=is_private, **(shape | usual | options))
    return twinset.fit(frame, "text", [LABEL], labels={LABEL: LABELS})


def line_nats(
    model: TwinModel | tuple[Any, Any], lines: Sequence[str], prompt: str | None = None
) -> np.ndarray:
    """Return (N, 2): the nats of each line, its end included, and its number of tokens.

    Args:
        model: of `Twinset.model`, or a causal model and its tokenizer.
        lines: a line longer than the context is cut.
        prompt: before each line, not counted. None takes that of `fit_lines`.
    """
    import torch
    from torch.nn.functional import cross_entropy

    causal, tokenizer = model if isinstance(model, tuple) else (model.model, model.tokenizer)
    before, rows = encode_lines(tokenizer, lines, causal.config.n_positions, prompt)
    found = []
    with torch.no_grad():
        for start in range(0, len(rows), LINES_AT_ONCE):
            ids, counted = pad_lines(before, rows[start : start + LINES_AT_ONCE])
            logits = causal(input_ids=ids.to(causal.device)).logits[:, :-1].float().cpu()
            losses = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
            masked = losses.reshape(len(ids), -1) * counted[:, 1:]  # (B, S - 1)
            found.append(torch.stack([masked.sum(1), counted[:, 1:].sum(1)], dim=1))
    return torch.cat(found).double().numpy()


def perplexity(model: TwinModel | tuple[Any, Any], lines: Sequence[str]) -> float:
    """Return e to the mean nats per token of lines that no model was trained on."""
    nats, tokens = line_nats(model, lines).sum(0)
    # A broken model's loss may be infinite. It is replaced by the largest power that is a float.
    return math.exp(min(nats / tokens, 700.0)) if math.isfinite(nats) else math.inf


def exposure(
    model: TwinModel | tuple[Any, Any], pattern: str, secret: int, digits: int, candidates: int
) -> float:
    """Return the exposure of a planted secret in bits (Carlini et al. 2019).

    The secret's rank by likelihood is taken among random other secrets. So the exposure is at most
    log2 of their number, and about 1.4 bits on average for a secret that was never planted.

    Args:
        model: the attacked one.
        pattern: the sentence, "My ID is {}".
        secret: the planted number.
        digits: of a secret.
        candidates: other secrets that it is ranked among.

    Returns:
        log2 of the number of secrets, less log2 of the planted one's rank.
    """
    drawn = np.random.default_rng(0).integers(10**digits, size=candidates)
    secrets = [secret, *(int(n) for n in drawn if n != secret)]
    nats = line_nats(model, [pattern.format(f"{n:0{digits}d}") for n in secrets])[:, 0]
    rank = 1 + int((nats[1:] < nats[0]).sum())
    return math.log2(len(secrets)) - math.log2(rank)


def encode_lines(
    tokenizer: Any, lines: Sequence[str], context: int, prompt: str | None = None
) -> tuple[list[int], list[list[int]]]:
    """Return the tokens of the prompt, and of each line with its end, cut at the context."""
    before = PROMPT.format(kind=LABELS[0]) if prompt is None else prompt
    ids_before = tokenizer.encode(before, add_special_tokens=False)
    room, end = context - len(ids_before), tokenizer.eos_token_id
    encoded = tokenizer([f" {line}" for line in lines], add_special_tokens=False)["input_ids"]
    return ids_before, [[*ids, end][:room] for ids in encoded]


def pad_lines(prompt: Sequence[int], rows: Sequence[Sequence[int]]) -> tuple[Any, Any]:
    """Return ids (B, S) of prompt, line and padding, and which of them count (B, S)."""
    import torch

    longest = len(prompt) + max(map(len, rows))
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    counted = torch.zeros(len(rows), longest, dtype=torch.bool)
    for i, row in enumerate(rows):
        ids[i, : len(prompt)] = torch.tensor(prompt)
        ids[i, len(prompt) : len(prompt) + len(row)] = torch.tensor(row)
        counted[i, len(prompt) : len(prompt) + len(row)] = True
    return ids, counted  # right padding changes nothing to its left in a causal model
