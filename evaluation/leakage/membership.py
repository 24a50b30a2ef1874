"""Membership inference: scores of rows that are higher where a row was trained on.

Attacks on the model: rows that it was trained on are less surprising to it. Sources: Yeom et al.
2018 (loss); Carlini et al. 2021, "Extracting Training Data from Large Language Models" (another
model's loss, zlib); Shi et al. 2024, "Detecting Pretraining Data from Large Language Models"
(Min-K%). Attacks on the released rows alone: what was trained on has a nearer twin row. Whoever is
given only `share/` can do these. How scores are judged is `evaluation.leakage.roc`.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from evaluation.leakage.roc import MODEL, RELEASED, Attack
from twinset.errors import InputError
from twinset.models.assets import Say, silent
from twinset.models.base_model import BaseModel, context_length, load_base
from twinset.models.device import AUTO
from twinset.progress import Progress, Silent
from twinset.sampling.twin_model import TwinModel
from twinset.table.records import Records
from twinset.table.tokenization import TokenisedRecords, batches_of_one_length, tokenise

MIN_K = 20  # %: the share of a row's tokens, least likely first, that Min-K% looks at
TOKENS_AT_ONCE = 1024  # their logits fill 200 MB with a vocabulary of 50,000
NGRAM_WORDS = 3
CELLS_AT_ONCE = 2**23  # similarities in one block: 32 MB, in a sparse matrix 100 MB at worst
_UNREADABLE = 1e6  # nats of a token whose probability is no number: the model diverged
_LARGEST = 700.0  # nats; e to a larger power is no float
_BUCKETS = 2**22  # of the hash; two n-grams of 10 million words seldom share one within a row

Encode = Callable[[Sequence[str]], np.ndarray]  # (N, d) unit vectors, as of SentenceEncoder.encode
OnProgress = Callable[[int, int], object]


def _ignore(done: int, total: int) -> None:
    """Report no progress."""


def read_losses(model: Any, texts: TokenisedRecords) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Read every text once behind its own prompt, in batches of one padded length.

    What counts is what carries loss in training: text and end of text, cut at the same length.

    Args:
        model: causal LM in evaluation mode.
        texts: tokenised for it.

    Yields:
        The batch's texts by their numbers; (M,) float64 nats of each token with loss; (R, T-1)
        where these tokens stand.
    """
    batches = batches_of_one_length(
        range(len(texts)), texts.padded_length, lambda length: max(1, TOKENS_AT_ONCE // length)
    )
    for _, batch in batches:
        rows = texts.sequences(batch, 0, (0, 0))
        ids, mask = rows.input_ids.to(model.device), rows.loss_mask[:, 1:].to(model.device)
        with torch.inference_mode():
            logits = model(ids).logits[:, :-1][mask].float()  # (M, V)
            nats = cross_entropy(logits, ids[:, 1:][mask], reduction="none").double()
        yield batch, nats, mask


def perplexity(model: Any, texts: TokenisedRecords) -> float:
    """Return exp of the mean loss of a token, each text behind its own prompt.

    Range 1 to ∞, and lower means that the model predicts these texts better.
    """
    nats, tokens = 0.0, 0
    for _, found, mask in read_losses(model, texts):
        nats += float(found.sum())
        tokens += int(mask.sum())
    return math.exp(min(nats / tokens, _LARGEST))


@dataclass(frozen=True)
class RowLosses:
    """What a model makes of every row, in nats.

    Args:
        total: (N,) negative log-likelihood of text and end of text behind the prompt.
        mean: (N,) the same per token.
        hardest: (N,) mean over the `MIN_K` % of tokens that surprise it most.
    """

    total: np.ndarray
    mean: np.ndarray
    hardest: np.ndarray


def row_losses(
    model: Any, tokens: TokenisedRecords, on_progress: OnProgress = _ignore
) -> RowLosses:
    """Read every row once behind its own prompt.

    Args:
        model: causal LM in evaluation mode.
        tokens: rows, tokenised for it.
        on_progress: is called with the number of rows read, and of all.
    """
    found, done = np.zeros((3, len(tokens))), 0
    for batch, nats, mask in read_losses(model, tokens):
        # (R, T-1) nats where the mask is true, and -∞ elsewhere: sorted, these come last
        spread = torch.full(mask.shape, -torch.inf, dtype=torch.float64, device=mask.device)
        spread[mask] = nats.nan_to_num(nan=_UNREADABLE, posinf=_UNREADABLE)
        running = spread.sort(1, descending=True).values.cumsum(1)
        lengths = mask.sum(1)
        hardest = (lengths * MIN_K // 100).clamp(min=1)
        total, most = (running.gather(1, n[:, None] - 1)[:, 0] for n in (lengths, hardest))
        found[:, batch] = torch.stack([total, total / lengths, most / hardest]).cpu().numpy()
        done += len(batch)
        on_progress(done, len(tokens))
    return RowLosses(*found)


def model_attacks(
    twin: TwinModel,
    base: BaseModel | None,
    members: Records,
    non_members: Records,
    progress: Progress | None = None,
) -> tuple[list[Attack], list[str]]:
    """Score members and non-members by the loss, zlib ratio, Min-K % and calibrated loss.

    The loss by compressed length is that of the whole row. A mean per token over the length, as
    published for texts of one length, would rank rows of many lengths by their length.

    Args:
        twin: the model attacked.
        base: what it was before fine-tuning. Without it the calibrated loss is left out.
        members: rows it was trained on.
        non_members: rows of the same kind that it was not trained on.
        progress: is notified of how many rows are read.

    Returns:
        The attacks, and notes.

    Raises:
        InputError: rows whose labels the model was not trained with.
    """
    progress = progress or Silent()
    names = [attribute.name for attribute in twin.schema.attributes]
    for records, who in ((members, "the members"), (non_members, "the non-members")):
        if [attribute.name for attribute in records.schema.attributes] != names:
            raise InputError(
                f"{who}: the model was trained with the labels {', '.join(names)}; name these"
            )
        if not set(records.labels) <= set(twin.schema.combinations):
            raise InputError(
                f"{who} have label values that the model was not trained with; leave these rows out"
            )
    rows = replace(
        members,
        texts=[*members.texts, *non_members.texts],
        labels=[*members.labels, *non_members.labels],
        schema=twin.schema,
    )
    context = context_length(twin.model)
    tokens = tokenise(rows, twin.template, twin.tokenizer, context, twin.text_tokens)
    losses = row_losses(
        twin.model, tokens, partial(progress.count, "rows read by the twin's model")
    )
    # (N,) bytes that zlib makes of each text, as far as it was read
    decoded = (twin.tokenizer.decode(ids, skip_special_tokens=True) for ids in tokens.texts)
    compressed = np.array([len(zlib.compress(text.encode())) for text in decoded], float)
    found = {
        "loss": -losses.mean,
        "zlib ratio": -losses.total / compressed,
        f"Min-{MIN_K} %": -losses.hardest,
    }
    notes: list[str] = []
    if base is not None and base.tokenizer.get_vocab() == twin.tokenizer.get_vocab():
        before = row_losses(
            base.model, tokens, partial(progress.count, "rows read by the base model")
        )
        found["calibrated loss"] = before.mean - losses.mean
    else:
        why = "is not at hand" if base is None else "has another vocabulary"
        notes.append(f"calibrated loss: left out, for the base model {why}")
    return [Attack(n, MODEL, *np.split(v, [len(members)])) for n, v in found.items()], notes


def find_base(name: str, origin: str, say: Say = silent, device: str = AUTO) -> BaseModel | None:
    """Return the base model of that name if its origin is what the twin states, or None."""
    try:
        base = load_base(name, device=device, say=say)
    except InputError:
        return None
    return base if base.origin == origin else None  # the hub, or the folder, may hold another now


# -- the released rows alone -------------------------------------------------------------------


def text_attacks(
    twin: Sequence[str],
    members: Sequence[str],
    non_members: Sequence[str],
    encode: Encode | None = None,
    progress: Progress | None = None,
) -> list[Attack]:
    """Score members and non-members by their similarity to the nearest twin row.

    By the word triples they share, and by the cosine of sentence embeddings. Memory stays within
    the tables and one block of rows, whatever their sizes.

    Args:
        twin: texts of the twin.
        members: texts it was made from.
        non_members: texts of the same kind that it was not made from.
        encode: of sentences. None leaves embeddings out.
        progress: is notified of how many rows are compared.
    """
    progress = progress or Silent()
    rows, released = [*members, *non_members], list(dict.fromkeys(twin))
    found = {
        f"nearest twin row by {NGRAM_WORDS}-grams": nearest_by_ngrams(
            rows, released, partial(progress.count, "rows compared by words")
        )
    }
    if encode is not None:
        found["nearest twin row by embedding"] = nearest_by_embedding(
            rows, released, encode, partial(progress.count, "rows compared by meaning")
        )
    return [Attack(n, RELEASED, *np.split(v, [len(members)])) for n, v in found.items()]


def nearest_by_ngrams(
    rows: Sequence[str], twin: Sequence[str], on_progress: OnProgress = _ignore
) -> np.ndarray:
    """Return each row's largest cosine to a twin row: (N,) in [0, 1].

    A text is the set of its runs of three words, in lower case. A shorter one is one run.

    >>> nearest_by_ngrams(["The pan broke at once.", "Fine."], ["the pan broke", "Dull!"]).round(2)
    array([0.58, 0.  ])
    """
    from sklearn.feature_extraction.text import HashingVectorizer

    def cut_ngrams(text: str) -> list[str]:
        words = re.findall(r"\w+", text.lower())
        last = max(1, len(words) - NGRAM_WORDS + 1) if words else 0
        return [" ".join(words[start : start + NGRAM_WORDS]) for start in range(last)]

    vectoriser = HashingVectorizer(
        analyzer=cut_ngrams,
        n_features=_BUCKETS,
        binary=True,
        alternate_sign=False,
        norm="l2",
        dtype=np.float32,
    )
    known = vectoriser.transform(twin).T.tocsr()  # (buckets, M)
    found = np.zeros(len(rows))
    for block in _blocks(len(rows), len(twin), on_progress):
        found[block] = (vectoriser.transform(rows[block]) @ known).max(axis=1).toarray()[:, 0]
    return found


def nearest_by_embedding(
    rows: Sequence[str], twin: Sequence[str], encode: Encode, on_progress: OnProgress = _ignore
) -> np.ndarray:
    """Return each row's largest cosine to a twin row: (N,) in [-1, 1]."""
    known = encode(twin)  # (M, d)
    found = np.zeros(len(rows))
    for block in _blocks(len(rows), len(twin), on_progress):
        found[block] = (encode(rows[block]) @ known.T).max(axis=1)
    return found


def _blocks(rows: int, twin: int, on_progress: OnProgress) -> Iterator[slice]:
    size = max(1, CELLS_AT_ONCE // twin)
    for start in range(0, rows, size):
        end = min(start + size, rows)
        yield slice(start, end)
        on_progress(end, rows)
