"""Membership inference: scores that are higher for rows used in training.

Attacks on the model use that its training rows surprise it less. Sources: Yeom et al. 2018 (loss).
Carlini et al. 2021, "Extracting Training Data from Large Language Models" (another model's loss,
zlib). Shi et al. 2024, "Detecting Pretraining Data from Large Language Models" (Min-K%). Attacks on
the released rows alone use that a training row has a nearer twin row. They need only `share/`.
`evaluation.leakage.roc` judges the scores.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.sparse import vstack
from torch.nn.functional import cross_entropy

from twinset.errors import InputError
from twinset.models.base_model import BaseModel, context_length
from twinset.progress import Progress, Silent
from twinset.sampling.twin_model import TwinModel
from twinset.table.records import Records
from twinset.table.tokenization import TokenisedRecords, batches_of_one_length, tokenise

from ..findings import Measured, mean
from ..release import records_to_frame
from ..utility.classifiers import Encode
from ..utility.columns import MODELLED_ROWS, Cut, column_model, column_tasks
from .roc import MODEL, RELEASED, Attack

MIN_K = 20  # %: the share of a row's tokens, least likely first, that Min-K% looks at
TOKENS_AT_ONCE = 1024  # their logits fill 200 MB with a vocabulary of 50,000
NGRAM_WORDS = 3
GUESSED = "cells guessed from the rest"
PROBED_AT_ONCE = 128  # rows that are compared with all rows of the twin, by their columns
MEMORY = 64  # MiB of similarities compared at once
_UNREADABLE = 1e6  # nats of a token with a NaN probability: the model diverged
_LARGEST = 700.0  # nats (e to a larger power is no float)
_BUCKETS = 2**22  # of the hash (two n-grams of 10 million words seldom share one within a row)


@dataclass(frozen=True)
class RowLosses:
    """A model's losses on every row, in nats: (N,) each."""

    total: np.ndarray  # negative log-likelihood of text and end of text after the prompt
    mean: np.ndarray  # the same per token
    hardest: np.ndarray  # mean over the `MIN_K` % of tokens that surprise it most


def row_losses(
    model: Any,
    tokens: TokenisedRecords,
    on_progress: Callable[[int, int], object] = lambda done, total: None,
) -> RowLosses:
    """Read every row once after its own prompt, in batches of one padded length.

    The same tokens count as in training: text and end of text, cut at the same length.
    """
    found, done = np.zeros((3, len(tokens))), 0
    batches = batches_of_one_length(
        range(len(tokens)), tokens.padded_length, lambda length: max(1, TOKENS_AT_ONCE // length)
    )
    for _, batch in batches:
        rows = tokens.sequences(batch, 0, (0, 0))
        ids, mask = rows.input_ids.to(model.device), rows.loss_mask[:, 1:].to(model.device)
        with torch.inference_mode():
            logits = model(ids).logits[:, :-1][mask].float()  # (M, V): tokens with loss
            nats = cross_entropy(logits, ids[:, 1:][mask], reduction="none").double()
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


def perplexity(model: Any, texts: TokenisedRecords) -> float:
    """Return exp of the mean loss per token, each text after its own prompt.

    Range 1 to ∞, and lower means that the model predicts these texts better.
    """
    losses = row_losses(model, texts)
    nats = losses.total.sum() / sum(map(len, texts.texts))
    return math.exp(min(float(nats), _LARGEST))


def model_attacks(
    twin: TwinModel,
    base: BaseModel | None,
    members: Records,
    non_members: Records,
    progress: Progress | None = None,
) -> tuple[list[Attack], list[str]]:
    """Score members and non-members by the loss, zlib ratio, Min-K % and calibrated loss.

    The loss over compressed length is that of the whole row. A mean per token over the length, as
    published for texts of one length, would rank rows of many lengths by their length. `base` is
    the model before fine-tuning. Without it the calibrated loss is left out.

    Returns the attacks, and notes. Refuses rows with labels that the model was not trained on.
    """
    progress = progress or Silent()
    names = [attribute.name for attribute in twin.schema.attributes]
    for records, who in ((members, "the members"), (non_members, "the non-members")):
        if [attribute.name for attribute in records.schema.attributes] != names:
            raise InputError(
                f"{who}: the model was trained with other labels. Name {', '.join(names)}."
            )
        if not set(records.labels) <= set(twin.schema.combinations):
            raise InputError(
                f"{who} have labels that the model was not trained with. Leave these rows out."
            )
    texts, labels = ([*members.texts, *non_members.texts], [*members.labels, *non_members.labels])
    rows = replace(members, texts=texts, labels=labels, schema=twin.schema)
    context = context_length(twin.model)
    tokens = tokenise(rows, twin.template, twin.tokenizer, context, twin.text_tokens)
    reading = partial(progress.count, "rows read by the twin's model")
    losses = row_losses(twin.model, tokens, reading)
    # (N,) compressed bytes of each text, as far as it was read
    decoded = (twin.tokenizer.decode(ids, skip_special_tokens=True) for ids in tokens.texts)
    compressed = np.array([len(zlib.compress(text.encode())) for text in decoded], float)
    found = {
        "loss": -losses.mean,
        "zlib ratio": -losses.total / compressed,
        f"Min-{MIN_K} %": -losses.hardest,
    }
    notes: list[str] = []
    if base is not None and base.tokenizer.get_vocab() == twin.tokenizer.get_vocab():
        reading = partial(progress.count, "rows read by the base model")
        found["calibrated loss"] = row_losses(base.model, tokens, reading).mean - losses.mean
    else:
        why = "is not at hand" if base is None else "has another vocabulary"
        notes.append(f"calibrated loss: left out, because the base model {why}")
    return [Attack(n, MODEL, *np.split(v, [len(members)])) for n, v in found.items()], notes


def column_attacks(
    twin: pd.DataFrame, members: Records, non_members: Records
) -> tuple[list[Attack], list[Measured]]:
    """Score members and non-members by their labels and other columns, with the twin alone.

    One score is of the twin row that shares most cells. The rarer a cell is in the twin, the more
    it counts. The other is attribute inference: how probable a row's cells are to models of one
    column from all others, which the twin taught. How often those are right is measured too.
    Without other columns there is nothing.
    """
    *real, text = records_to_frame(members), records_to_frame(non_members), members.schema.text
    names = [name for name in twin if name != text and all(name in frame for frame in real)]
    if members.others is None:
        return [], []
    n, both, attacks = len(members), len(members) + len(non_members), list[Attack]()
    cells = [np.concatenate([Cut().parts(f[name]) for f in (*real, twin)]) for name in names]
    codes = np.array([pd.factorize(each)[0] for each in cells])  # (columns, n + m + twin rows)
    nearest = []
    for rows in np.array_split(np.arange(both), both // PROBED_AT_ONCE + 1):
        shared = np.zeros((len(rows), len(twin)))
        for each in codes:
            often = np.bincount(each[both:], minlength=each.max() + 1).clip(1) / len(twin)
            shared -= (each[rows, None] == each[both:]) * np.log(often[each[both:]])
        nearest += shared.max(1).tolist()
    attacks.append(Attack("nearest twin row by columns", RELEASED, *np.split(nearest, [n])))
    frames = *real, twin.sample(min(len(twin), MODELLED_ROWS), random_state=0)
    cuts = {name: Cut.of(frames[2][name]) for name in names}
    parts = {name: [cut.parts(frame[name]) for frame in frames] for name, cut in cuts.items()}
    likely, right = list[np.ndarray](), list[np.ndarray]()  # (n + m,) of each column
    for _, (*inputs, of_twin), (*wanted, taught) in column_tasks(parts, cuts, by=2):
        if len(set(taught)) < 2:
            continue
        model, x, values = column_model().fit(of_twin, taught), vstack(inputs), np.hstack(wanted)
        classes = model.classes_.tolist()
        places = [classes.index(value) if value in classes else -1 for value in values]
        chances = model.predict_log_proba(x)
        least = np.full((both, 1), chances.min())  # of a value that the twin lacks
        likely.append(np.hstack([chances, least])[np.arange(both), places])
        right.append(model.predict(x) == values)
    if not likely:
        return attacks, []
    attacks.append(Attack(GUESSED, RELEASED, *np.split(np.mean(likely, 0), [n])))
    found = zip(("train", "held-out"), np.split(np.mean(right, 0), [n]), strict=True)
    scores = [(rows, mean(GUESSED, hits.tolist(), "minimise", 0.0, 1.0)) for rows, hits in found]
    return attacks, [Measured("leakage", score, {"rows": rows}) for rows, score in scores]


def text_attacks(
    twin: Sequence[str],
    members: Sequence[str],
    non_members: Sequence[str],
    encode: Encode | None = None,
    progress: Progress | None = None,
) -> list[Attack]:
    """Score members and non-members by their largest cosine to a twin row.

    One score uses the runs of three words that they share, in lower case. A shorter text is one
    run. The other uses sentence embeddings from `encode`, and is left out without it. Memory stays
    within the tables and one block of similarities.
    """
    from sklearn import config_context
    from sklearn.feature_extraction.text import HashingVectorizer
    from sklearn.metrics import pairwise_distances_argmin_min

    def cut_ngrams(text: str) -> list[str]:
        words = re.findall(r"\w+", text.lower())
        last = max(1, len(words) - NGRAM_WORDS + 1) if words else 0
        return [" ".join(words[start : start + NGRAM_WORDS]) for start in range(last)]

    kinds: dict[str, Any] = {"binary": True, "alternate_sign": False, "dtype": np.float32}
    vectoriser = HashingVectorizer(analyzer=cut_ngrams, n_features=_BUCKETS, norm="l2", **kinds)
    spaces: dict[str, Callable[[Sequence[str]], Any]] = {
        f"nearest twin row by {NGRAM_WORDS}-grams": vectoriser.transform
    }
    if encode is not None:
        spaces["nearest twin row by embedding"] = encode
    rows, released = [*members, *non_members], list(dict.fromkeys(twin))
    attacks = []
    for done, (name, place) in enumerate(spaces.items(), start=1):
        with config_context(working_memory=MEMORY):
            vectors = place(rows), place(released)  # (N, d) and (M, d)
            _, distance = pairwise_distances_argmin_min(*vectors, metric="cosine")
        attacks.append(Attack(name, RELEASED, *np.split(1 - distance, [len(members)])))
        if progress is not None:
            progress.count("attacks on the released rows", done, len(spaces))
    return attacks
