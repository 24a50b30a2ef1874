"""The recipe of Yue et al. 2023 (arXiv 2210.14348) with today's Opacus: labels as control codes.

A causal language model reads "label, label, blank line, text" and is fine-tuned by DP-SGD; rows are
its continuations of the labels. Batches here are Poisson ones, as they are accounted for, and each
record's loss is its own mean; what the authors' code does otherwise is said in toolkits.toml.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

MICRO_BATCH = 16
IGNORED = -100


def write_rows(job: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Fine-tune, and sample as the authors' script does."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(job["seed"])
    table, options = pd.read_parquet(job["table"]), job["options"]
    tokenizer = AutoTokenizer.from_pretrained(job["base_model"])
    model = AutoModelForCausalLM.from_pretrained(job["base_model"], dtype=torch.float32)
    model.config.use_cache = False
    codes = [code(row, job["attributes"]) for row in table.to_dict("records")]
    texts = [f"{c}{text}" for c, text in zip(codes, table[job["text"]], strict=True)]
    sequences = [tokenizer(text).input_ids + [tokenizer.eos_token_id] for text in texts]
    epsilon, noise, steps = train(model, sequences, job)
    model.config.use_cache = True
    frame = sample(model.eval(), tokenizer, table, job)
    return frame, {"epsilon": epsilon, "settings": {**options, "steps": steps, "noise": noise}}


def code(row: dict[str, Any], attributes: list[str]) -> str:
    r"""Return the labels as they stand before a text.

    >>> code({"mood": "good", "thing": "pan"}, ["mood", "thing"])
    'mood: good\tthing: pan\n\n'
    """
    return "\t".join(f"{name}: {row[name]}" for name in attributes) + "\n\n"


def train(model: Any, sequences: list[list[int]], job: dict[str, Any]) -> tuple[float, float, int]:
    """Fine-tune all weights by DP-SGD; return ε, noise multiplier and steps."""
    from opacus.accountants import PRVAccountant
    from opacus.accountants.utils import get_noise_multiplier
    from opacus.grad_sample import GradSampleModule, register_grad_sampler
    from opacus.optimizers import DPOptimizer
    from transformers.pytorch_utils import Conv1D

    options = job["options"]
    rate = min(1.0, options["batch_size"] / len(sequences))
    steps = max(1, round(options["epochs"] / rate))
    target = {"target_epsilon": job["epsilon"], "target_delta": job["delta"]}
    noise = get_noise_multiplier(**target, sample_rate=rate, steps=steps, accountant="prv")
    register_grad_sampler(Conv1D)(_conv1d)
    wrapped = GradSampleModule(model.train(), loss_reduction="sum")
    adam = torch.optim.AdamW(
        [p for p in wrapped.parameters() if p.requires_grad], options["learning_rate"]
    )
    expected = rate * len(sequences)
    clip = {"noise_multiplier": noise, "max_grad_norm": options["max_grad_norm"]}
    optimizer = DPOptimizer(adam, expected_batch_size=expected, **clip)
    accountant = PRVAccountant()
    for _ in range(steps):
        _step(wrapped, optimizer, sequences, rate)
        accountant.step(noise_multiplier=noise, sample_rate=rate)
    wrapped.remove_hooks()
    return float(accountant.get_epsilon(job["delta"])), float(noise), steps


def _step(model: Any, optimizer: Any, sequences: list[list[int]], rate: float) -> None:
    chosen = (torch.rand(len(sequences)) < rate).nonzero().flatten().tolist()
    parts = [chosen[at : at + MICRO_BATCH] for at in range(0, len(chosen), MICRO_BATCH)]
    optimizer.zero_grad()
    for part in parts:
        loss([sequences[i] for i in part], model).sum().backward()
        optimizer.signal_skip_step(do_skip=part is not parts[-1])
        optimizer.step()
        optimizer.zero_grad()


def loss(sequences: list[list[int]], model: Any) -> Tensor:
    """Return the mean token loss (R,) of each sequence, its control code included."""
    rows = [torch.tensor(ids) for ids in sequences]
    ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    labels = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=IGNORED)[:, 1:]
    places = torch.arange(ids.shape[1]).repeat(len(ids), 1)  # Opacus needs a row for each record
    logits = model(input_ids=ids, position_ids=places).logits[:, :-1]
    losses = nn.functional.cross_entropy(
        logits.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none"
    )
    return losses.sum(1) / (labels != IGNORED).sum(1)


def _conv1d(layer: Any, inputs: list[Tensor], b: Tensor) -> dict[Any, Tensor]:
    return {layer.weight: torch.einsum("nti,ntj->nij", inputs[0], b), layer.bias: b.sum(1)}


def sample(model: Any, tokenizer: Any, table: pd.DataFrame, job: dict[str, Any]) -> pd.DataFrame:
    """Return rows in the exact proportions of the table's labels, as the authors' script does."""
    shares = table.groupby(job["attributes"]).size() / len(table)
    parts = []
    for labels, share in shares.items():
        values = labels if isinstance(labels, tuple) else (labels,)
        row = dict(zip(job["attributes"], values, strict=True))
        texts = list(_texts(model, tokenizer, code(row, job["attributes"]), share, job))
        parts.append(pd.DataFrame({job["text"]: texts, **row}))
    return pd.concat(parts)


@torch.no_grad()
def _texts(
    model: Any, tokenizer: Any, prompt: str, share: float, job: dict[str, Any]
) -> Iterator[str]:
    wanted = round(share * job["rows"])
    ids = torch.tensor([tokenizer(prompt).input_ids])
    found: list[str] = []
    for _ in range(20):
        if len(found) < wanted:
            made = model.generate(
                ids.repeat(wanted - len(found), 1),
                max_new_tokens=job["tokens"],
                do_sample=True,
                top_k=50,
                top_p=0.9,
                no_repeat_ngram_size=2,
                pad_token_id=tokenizer.eos_token_id,
            )
            texts = tokenizer.batch_decode(made[:, ids.shape[1] :], skip_special_tokens=True)
            found += [" ".join(text.split()) for text in texts if text.strip()]
    yield from found[:wanted]
