"""Canaries: made-up records planted among real ones, and how well their secrets are known.

There are two kinds. Secrets are drawn from a known space (Carlini et al. 2019, "The Secret Sharer:
Evaluating and Testing Unintended Memorization in Neural Networks") and are ranked among all
possible secrets. Exposure is log2 |R| - log2 rank, in bits. A model that never saw the canary ranks
its secret at random: log2 e = 1.44 on average. Knowing it by heart gives log2 |R|. Coins' canaries
are separate records that a coin includes or leaves out. They have the table's own beginning of a
sentence, which a twin's prompt leads to, and an end that no one would write (Meeus et al. 2025,
"The Canary's Echo", section 4). This module knows nothing of training.
"""

from __future__ import annotations

import copy
import math
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from os.path import commonprefix
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from twinset.table.schema import Combination, LabelValue

COPIES = (1, 10)
EACH = 5  # canaries of every number of copies
PREFIX_WORDS, SUFFIX_TOKENS = 8, 12  # of a coin's canary

EXACT = "exact rank"
UNKNOWN = math.log2(math.e)  # mean exposure of secrets that the model does not know
LARGEST_SPACE = 10**6  # that is ranked exactly
SAMPLED = 2000  # secrets that represent a larger space
ECHOED = 10_000  # candidates that released rows are asked for, at most
BIGRAMS = "bigram model of the twin"
BATCH_SIZE = 256  # candidates scored at once


@dataclass(frozen=True)
class Format:
    """A sentence with one gap per field. A secret fills them."""

    pattern: str  # `{}` for each gap
    fields: tuple[tuple[str, ...], ...]  # possible contents of each gap

    @property
    def space(self) -> int:
        """|R|, the number of secrets."""
        return math.prod(map(len, self.fields))

    def text(self, secret: int) -> str:
        """Return the sentence of one secret, by its number."""
        places = np.unravel_index(secret, [len(field) for field in self.fields])
        chosen = (field[place] for field, place in zip(self.fields, places, strict=True))
        return self.pattern.format(*chosen)

    def candidates(self) -> list[str]:
        """Return the sentences of all secrets, in the order of their numbers."""
        return [self.pattern.format(*values) for values in product(*self.fields)]


@dataclass(frozen=True)
class Canary:
    """One canary: its text, its label, and how often it is planted."""

    format: Format
    secret: int
    label: Combination
    copies: int

    @property
    def text(self) -> str:
        """The planted text."""
        return self.format.text(self.secret)

    def other_texts(self, many: int, seed: int) -> list[str]:
        """Return the sentences of random other secrets, drawn with replacement."""
        drawn = np.random.default_rng(seed).integers(self.format.space - 1, size=many)
        return [self.format.text(int(n)) for n in drawn + (drawn >= self.secret)]  # skips its own


_STATED = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
_NUMBER = (tuple(f"{number:03d}" for number in range(1000)),)
# A space of a thousand too, so that names and numbers can be averaged.
_NAME = tuple(tuple(_STATED[which].split()) for which in ("first_names", "last_names"))
MORE_FORMATS = tuple(
    Format(sentence, _NAME if sentence.count("{}") == 2 else _NUMBER)
    for sentence in (*_STATED["sentences"], *_STATED["more_sentences"])
)
"""All sentences, for audits that plant many."""
FORMATS = MORE_FORMATS[: len(_STATED["sentences"])]


def draw_canaries(
    combinations: Sequence[Combination],
    seed: int,
    copies: Sequence[int] = COPIES,
    each: int = EACH,
    formats: Sequence[Format] = FORMATS,
) -> list[Canary]:
    """Draw secrets, labels, and which sentence is planted how often, by the seed alone.

    There are `each` canaries for every number of copies, and each sentence is for one canary.
    """
    rng = np.random.default_rng(seed)
    mixed = [formats[place] for place in rng.permutation(len(formats))]
    often = [number for number in copies for _ in range(each)]
    found = []
    for sentence, number in zip(mixed[: len(often)], often, strict=True):
        secret, label = (int(rng.integers(n)) for n in (sentence.space, len(combinations)))
        found.append(Canary(sentence, secret, combinations[label], number))
    return found


def plant(
    frame: pd.DataFrame, text: str, attributes: Sequence[str], canaries: Sequence[Canary]
) -> pd.DataFrame:
    """Return the table with every canary's copies appended. Dtypes stay, other columns go."""
    planted = [canary for canary in canaries for _ in range(canary.copies)]
    cells: dict[str, list[LabelValue]] = {text: [canary.text for canary in planted]}
    cells |= {name: [c.label[place] for c in planted] for place, name in enumerate(attributes)}
    rows = pd.DataFrame({n: pd.Series(v, dtype=frame[n].dtype) for n, v in cells.items()})
    return pd.concat([frame[list(cells)], rows], ignore_index=True)


@dataclass(frozen=True)
class Exposure:
    """A canary's exposure."""

    canary: Canary
    rank: float  # of its secret, 1 for the likeliest. A half where candidates tie.
    method: str = EXACT  # how the rank was found

    @property
    def bits(self) -> float:
        """The exposure."""
        return math.log2(self.canary.format.space) - math.log2(self.rank)


def exposure(
    model: Any, tokenizer: Any, prompt: Sequence[int], canary: Canary, seed: int = 0
) -> Exposure:
    """Rank the secret among all candidates by their likelihood after the prompt.

    The prompt is that of the canary's label. For a space of more than `LARGEST_SPACE` secrets the
    rank is extrapolated from `SAMPLED` others.
    """
    asked = model, tokenizer, prompt
    if canary.format.space <= LARGEST_SPACE:
        losses = candidate_losses(*asked, canary.format.candidates())
        return Exposure(canary, expected_rank(losses, canary.secret))
    losses = candidate_losses(*asked, [canary.text, *canary.other_texts(SAMPLED, seed)])
    rank = extrapolated_rank(losses[1:], float(losses[0]), canary.format.space)
    return Exposure(canary, *rank)


def extrapolated_rank(sample: np.ndarray, loss: float, space: int) -> tuple[float, str]:
    """Return a secret's rank among |R| candidates, 1 … |R|, and how it was found.

    Carlini et al. 2019, section 4.3: the losses of all candidates follow a skew-normal
    distribution. Its tail below the secret's loss, fitted to a random sample, gives rank / |R|.
    If no curve can be fitted, the rank within the sample is scaled to the space. This happens if
    all losses are equal, or some are NaN, as for a model that diverged.

    A sample cannot show the real tail. If the model prefers some kinds of candidates, compare with
    secrets that it never saw, not with theory.
    """
    from scipy.stats import skewnorm

    losses = np.append(loss, sample)
    if not np.isfinite(losses).all() or np.ptp(sample) < 1e-9:
        rank = expected_rank(losses, 0) / len(losses) * space
        return max(1.0, rank), f"rank among {len(sample)} candidates"
    tail = float(skewnorm.cdf(loss, *skewnorm.fit(sample)))
    return min(max(1.0, tail * space), float(space)), f"skew-normal, {len(sample)} candidates"


def expected_rank(losses: np.ndarray, secret: int) -> float:
    """Return the secret's rank by rising loss, and among equal losses the middle one.

    A NaN loss, as of a model that diverged, counts as infinite.

    >>> losses = np.array([3.0, 1.0, 2.0, 2.0])
    >>> expected_rank(losses, 1), expected_rank(losses, 2)
    (1.0, 2.5)
    """
    losses = np.nan_to_num(losses, nan=np.inf, posinf=np.inf)
    likelier = int((losses < losses[secret]).sum())
    equal = int((losses == losses[secret]).sum())  # itself too
    return likelier + (equal + 1) / 2


def candidate_losses(
    model: Any, tokenizer: Any, prompt: Sequence[int], texts: Sequence[str]
) -> np.ndarray:
    """Return the negative log-likelihood of each text after the prompt: (N,), in nats.

    The tokens that all texts begin with are read once and not scored. Tokens are those of training,
    without the end of text. Equal beginnings are read once in each batch: a thousand numbers of
    three digits are 1,110 tokens, not 3,000.
    """
    encoded = tokenizer([" " + text for text in texts], add_special_tokens=False)["input_ids"]
    shared = commonprefix([ids[:-1] for ids in encoded])  # works on lists too
    tails = [tuple(ids[len(shared) :]) for ids in encoded]
    order = sorted(range(len(tails)), key=tails.__getitem__)  # those that begin alike together
    losses = np.zeros(len(tails))
    with torch.inference_mode():
        stem = torch.tensor([[*prompt, *shared]], device=model.device)
        read = model(stem, use_cache=True, logits_to_keep=1)
        for start in range(0, len(order), BATCH_SIZE):
            batch = order[start : start + BATCH_SIZE]
            cache = copy.deepcopy(read.past_key_values)  # the model appends to it
            logits = read.logits[:, -1]  # (1, V), after the stem
            rows: dict[tuple[int, ...], int] = {(): 0}  # beginning → its row of logits
            for depth in range(max(len(tails[i]) for i in batch)):
                log_probabilities = logits.float().log_softmax(1)  # (beginnings, V)
                alive = [i for i in batch if len(tails[i]) > depth]
                places = [rows[tails[i][:depth]] for i in alive], [tails[i][depth] for i in alive]
                losses[alive] -= log_probabilities[places].double().cpu().numpy()
                deeper = (tails[i][: depth + 1] for i in alive if len(tails[i]) > depth + 1)
                longer = list(dict.fromkeys(deeper))
                if longer:
                    parents = [rows[beginning[:-1]] for beginning in longer]
                    cache.batch_select_indices(torch.tensor(parents, device=model.device))
                    last = [[beginning[-1]] for beginning in longer]
                    ids = torch.tensor(last, device=model.device)  # (beginnings, 1)
                    logits = model(ids, past_key_values=cache, use_cache=True).logits[:, -1]
                    rows = {beginning: row for row, beginning in enumerate(longer)}
    return losses


def rank_in_rows(
    tokenizer: Any, texts: Sequence[str], canaries: Sequence[Canary], seed: int
) -> list[Exposure]:
    """Rank canaries' secrets by the released rows alone (Meeus et al. 2025, section 3).

    This uses a bigram model of the released rows, with add-one smoothing over its words and one
    more. For a space larger than `ECHOED`, that many candidates drawn by the seed represent the
    rest. The exposure is then at most log2 of their number.
    """

    def split(texts: Sequence[str]) -> list[list[int]]:
        """Return tokens as in training: a space before each text, and a mark for its beginning."""
        spaced = [" " + text for text in texts]
        encoded = tokenizer(spaced, add_special_tokens=False)["input_ids"]
        return [[-1, *ids] for ids in encoded]

    rows = split(texts)
    pairs = Counter(pair for row in rows for pair in pairwise(row))
    firsts = Counter(first for row in rows for first in row[:-1])
    kinds = len({token for row in rows for token in row}) + 1
    found = []
    for canary in canaries:
        space, method = canary.format.space, f"{EXACT}, {BIGRAMS}"
        if space <= ECHOED:
            candidates, place = canary.format.candidates(), canary.secret
        else:
            candidates, place = [canary.text, *canary.other_texts(ECHOED - 1, seed)], 0
            method = f"rank among {ECHOED} candidates, {BIGRAMS}"
        losses = np.zeros(len(candidates))  # nats
        for number, row in enumerate(split(candidates)):
            for one, two in pairwise(row):
                losses[number] += math.log(firsts[one] + kinds) - math.log(pairs[one, two] + 1)
        rank = expected_rank(losses, place) / len(candidates) * space
        found.append(Exposure(canary, rank, method))
    return found
