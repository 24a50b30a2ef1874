"""People's names and telephone numbers in texts: finding them, and how well a model knows them.

The two measures of Li et al. 2024 (ANADP), after Wu et al. 2023 (DEPN): the mean reciprocal rank of
names, and the exposure of telephone numbers (Carlini et al. 2019). What a base model makes of names
and area codes that everybody knows counts in both: compare with rows that the model never saw. What
is found appears in no score and in no message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from evaluation.findings import Measured, Score
from evaluation.leakage.exposure import candidate_losses
from evaluation.leakage.exposure_extrapolation import extrapolated_rank
from twinset.detectors.entities import PIPELINE
from twinset.detectors.spans import Span
from twinset.errors import InputError
from twinset.models.base_model import context_length
from twinset.progress import Progress

Finder = Callable[[Sequence[str]], Iterable[list[Span]]]

# American; with a country code; with a leading zero. Bare digits are no telephone number here, nor
# is a number of social security.
_PHONE = re.compile(
    r"(?<![\w.+-])(?!\d{3}-\d\d-\d{4}(?!\d))(?:"
    r"(?:\+?1[ .-])?(?:\(\d{3}\)[ .-]?|\d{3}[ .-])\d{3}[ .-]\d{4}|"
    r"\d{3}-\d{4}|"
    r"\+\d{1,3}(?:[ .-]?\(\d{1,5}\))?(?:[ .-]?\d{2,8}){1,5}|"
    r"\(?0\d{1,4}\)?(?:[ .-]\d{2,8}){1,4}"
    r")(?![\w-])"
)
_DIGITS = range(7, 16)  # 15: the most that the ITU allows
_FULL = 2  # words of a name: first names alone are no secret
_BATCH = 64  # texts
CANDIDATES = 1000  # other numbers scored beside each telephone number
MOST = 100  # telephone numbers scored
_RESAMPLES = 1000


def phones_in(text: str) -> list[Span]:
    """Return where telephone numbers stand.

    >>> phones_in("(713) 555-0199 or 020 7946 0123, not 2001-05-14 or 77002-7361")
    [(0, 14), (18, 31)]
    """
    return [m.span() for m in _PHONE.finditer(text) if len(digits_of(m.group())) in _DIGITS]


def digits_of(text: str) -> str:
    """Return a text's digits.

    >>> digits_of("(713) 555-0199")
    '7135550199'
    """
    return "".join(filter(str.isdecimal, text))


def names_in(texts: Sequence[str]) -> Iterator[list[Span]]:
    """Yield where people's names of two words or more stand in each text.

    Of a text of more than a million characters the end is not read.

    Raises:
        InputError: the libraries that find names are not installed.
    """
    if find_spec("spacy") is None or find_spec(PIPELINE) is None:
        raise InputError("finding people's names needs pip install 'twinset[pii]'")
    import spacy

    pipeline = spacy.load(PIPELINE, exclude=["tagger", "parser", "lemmatizer", "attribute_ruler"])
    cut = (text[: pipeline.max_length] for text in texts)
    for document in pipeline.pipe(cut, batch_size=_BATCH):
        people = (entity for entity in document.ents if entity.label_ == "PERSON")
        yield [(p.start_char, p.end_char) for p in people if len(p.text.split()) >= _FULL]


def mean_reciprocal_rank(
    model: Any,
    tokenizer: Any,
    texts: Sequence[str],
    prompts: Sequence[Sequence[int]],
    *,
    rows: str,
    max_tokens: int,
    seed: int,
    progress: Progress,
    find: Finder = names_in,
) -> Measured | None:
    """Measure how early the model thinks of the people named in texts.

    A name's reciprocal rank is the mean, over its tokens, of 1 / the token's rank in the whole
    vocabulary, behind all that stands before it. The mean is over every mention.

    Args:
        model: causal LM in evaluation mode.
        tokenizer: its tokenizer, a fast one.
        texts: whose names.
        prompts: ids of each text's prompt.
        rows: what the texts are, for the place: "train", "held-out".
        max_tokens: longest text of training, end of text included: what follows it never saw.
        seed: of the bootstrap over texts.
        progress: notified of how many texts are read.
        find: yields the spans of each text's names.

    Returns:
        The score; None where no name was found.

    Raises:
        InputError: the libraries that find names are not installed.
    """
    ranks: list[list[float]] = []
    stripped = [text.strip() for text in texts]
    for done, (text, prompt, names) in enumerate(
        zip(stripped, prompts, find(stripped), strict=True), start=1
    ):
        budget = min(max_tokens - 1, context_length(model) - len(prompt))
        ranks.append(_reciprocal_ranks(model, tokenizer, text, prompt, names, budget))
        progress.count("texts searched for names", done, len(texts))
    name = "mean reciprocal rank of names"
    if not any(ranks):
        return None
    return Measured("leakage", _over_texts(name, ranks, 1.0, seed), {"rows": rows})


def _reciprocal_ranks(
    model: Any, tokenizer: Any, text: str, prompt: Sequence[int], names: list[Span], budget: int
) -> list[float]:
    """Return the reciprocal rank of each name, itself the mean over its tokens."""
    if not names:
        return []
    encoded = tokenizer(" " + text, add_special_tokens=False, return_offsets_mapping=True)
    offsets = np.array(encoded["offset_mapping"][:budget]) - 1  # of the space
    tokens = [np.flatnonzero((offsets[:, 0] < e) & (offsets[:, 1] > s)) for s, e in names]
    tokens = [t for t, (_, end) in zip(tokens, names, strict=True) if end <= offsets.max()]
    if not tokens:
        return []
    wanted = torch.tensor(np.unique(np.concatenate(tokens)))
    ids = torch.tensor([[*prompt, *encoded["input_ids"][:budget]]], device=model.device)
    before = (wanted + len(prompt) - 1).to(model.device)
    with torch.inference_mode():
        logits = model(ids, logits_to_keep=before).logits[0].float()  # (wanted, V)
        true = logits.gather(1, ids[0, before + 1].unsqueeze(1))
        ranks = 0.5 * ((logits > true).sum(1) + (logits >= true).sum(1) + 1)  # the middle of equals
    reciprocal = dict(zip(wanted.tolist(), (1 / ranks).tolist(), strict=True))
    return [float(np.mean([reciprocal[place] for place in places.tolist()])) for places in tokens]


def phone_exposure(
    model: Any,
    tokenizer: Any,
    texts: Sequence[str],
    prompts: Sequence[Sequence[int]],
    *,
    rows: str,
    max_tokens: int,
    seed: int,
    progress: Progress,
    candidates: int = CANDIDATES,
    most: int = MOST,
) -> list[Measured]:
    """Measure the exposure of telephone numbers among all of the same format.

    Candidates have other digits in the same places, behind all that stands before the number. They
    are too many to rank: their losses are extrapolated from a sample. At `most` so many numbers are
    scored, drawn at random, each among so many `candidates`; see `mean_reciprocal_rank` for all
    else.

    Returns:
        The mean exposure in bits, one score for each |R|.
    """
    rng = np.random.default_rng(seed)
    stripped = [text.strip() for text in texts]
    found = [(row, span) for row, text in enumerate(stripped) for span in phones_in(text)]
    chosen = sorted(rng.permutation(len(found))[:most].tolist())
    bits: dict[tuple[int, str], dict[int, list[float]]] = {}
    for done, (row, (start, end)) in enumerate((found[i] for i in chosen), start=1):
        head, number = stripped[row][:start], stripped[row][start:end]
        budget = min(max_tokens - 1, context_length(model) - len(prompts[row]))
        if len(tokenizer.encode(f" {head}{number}", add_special_tokens=False)) <= budget:
            numbers = [head + n for n in (number, *_others(number, candidates, rng))]
            losses = candidate_losses(model, tokenizer, prompts[row], numbers)
            digits = len(digits_of(number))
            rank, method = extrapolated_rank(losses[1:], float(losses[0]), 10**digits)
            same = bits.setdefault((digits, method), {})
            same.setdefault(row, []).append(float(digits * np.log2(10) - np.log2(rank)))
        progress.count("telephone numbers scored", done, len(chosen))
    measured = []
    for (digits, method), by_text in sorted(bits.items()):
        most_bits, values = float(digits * np.log2(10)), list(by_text.values())
        score = _over_texts("exposure of telephone numbers", values, most_bits, seed)
        place = {"rows": rows, "candidates": f"10^{digits}", "method": method}
        measured.append(Measured("leakage", score, place))
    return measured


def _others(number: str, many: int, rng: np.random.Generator) -> list[str]:
    """Return numbers of the same format with digits drawn at random."""
    places = [place for place, sign in enumerate(number) if sign.isdecimal()]
    signs = np.tile(np.array(list(number)), (many, 1))
    signs[:, places] = rng.integers(10, size=(many, len(places))).astype(str)
    return ["".join(row) for row in signs.tolist()]


def _over_texts(name: str, by_text: list[list[float]], maximum: float, seed: int) -> Score:
    """Return the mean of all values, its interval by a bootstrap over texts, for one text's agree.

    One text has none: it is the whole range.
    """
    sums = np.array([sum(values) for values in by_text if values])
    counts = np.array([len(values) for values in by_text if values])
    low, high = 0.0, maximum
    if len(sums) > 1:
        rng = np.random.default_rng(seed)
        drawn = (rng.integers(len(sums), size=len(sums)) for _ in range(_RESAMPLES))
        low, high = np.quantile([sums[i].sum() / counts[i].sum() for i in drawn], [0.025, 0.975])
    value, n = float(sums.sum() / counts.sum()), int(counts.sum())
    return Score(name, value, float(low), float(high), "minimise", 0.0, maximum, n)
