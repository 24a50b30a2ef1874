"""People's names, telephone numbers and other personal data: in the model, and in the twin.

In the model, the two measures of Li et al. 2024 (ANADP), after Wu et al. 2023 (DEPN): the mean
reciprocal rank of names, and the exposure of telephone numbers (Carlini et al. 2019). A base model
also knows common names and area codes, which counts in both. So compare with rows that the model
never saw.

In the twin, replay: personal data of the private rows that occur in it too. Chance is the same
share for personal data of held-out rows that it never saw, because a model makes up names and
numbers that exist, and knows famous ones. No score, note or message shows the found data.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from itertools import product
from typing import Any

import numpy as np
import torch

from twinset.errors import InputError
from twinset.models.base_model import context_length
from twinset.policies.detection import PIPELINE, Span
from twinset.progress import Progress
from twinset.sampling.twin_model import TwinModel
from twinset.table.ngrams import words_of
from twinset.table.records import Records
from twinset.table.tokenization import prompt_tokens

from ..findings import Measured, Score, proportion
from .canaries import candidate_losses, extrapolated_rank

EMAIL, PHONE, CARD = "e-mail address", "telephone number", "card number"
ID, NAME = "id number", "person's name"
KINDS = (EMAIL, PHONE, CARD, ID, NAME)
OCCURRENCES = {"1": range(1, 2), "2–9": range(2, 10), "10+": range(10, 2**63)}
REPLAYED, PLANTED = "replayed", "found where it was planted"
PersonalData = dict[str, Counter[str]]  # kind → value → rows that hold it

CANDIDATES = 1000  # other numbers scored for each telephone number
MOST = 100  # telephone numbers scored
RESAMPLES = 1000  # of the bootstrap over texts
BATCH = 64  # texts searched for names at once
REPORT_EVERY = 100  # rows between two reports
UNEQUAL = 2  # tables whose sizes differ by more cannot be compared row by row
PHONE_DIGITS = range(7, 16)  # 15: the most that the ITU allows
FULL_NAME = 2  # words of a name: first names alone are no secret

# American, or with a country code, or with a leading zero. Bare digits are no telephone number
# here, nor is a social security number.
_PHONE = re.compile(
    r"(?<![\w.+-])(?!\d{3}-\d\d-\d{4}(?!\d))(?:"
    r"(?:\+?1[ .-])?(?:\(\d{3}\)[ .-]?|\d{3}[ .-])\d{3}[ .-]\d{4}|"
    r"\d{3}-\d{4}|"
    r"\+\d{1,3}(?:[ .-]?\(\d{1,5}\))?(?:[ .-]?\d{2,8}){1,5}|"
    r"\(?0\d{1,4}\)?(?:[ .-]\d{2,8}){1,4}"
    r")(?![\w-])"
)
_EMAIL = re.compile(r"(?<![\w.%+'-])[\w.%+'-]++@[\w-]++(?:\.[\w-]++)++")
_CARD = re.compile(r"(?<![\w.-])\d(?:[ -]?\d){12,18}(?![\w-])")
_IBAN = re.compile(r"(?<!\w)[A-Z]{2}\d{2}(?: ?[A-Z\d]{4}){2,7}(?: ?[A-Z\d]{1,3})?(?!\w)")
# A code of capitals and digits. Or a word with six digits or more that is no sum of money.
_ID = re.compile(
    r"(?<!\w)(?=[A-Z]*\d)(?=\d*[A-Z])[A-Z\d]{8,24}(?!\w)|"
    r"(?<![\w.,$€£/-])(?=(?:[A-Za-z/-]*\d){6})[A-Za-z\d/-]{6,40}(?!\w|[.,]\d)"
)
_DATE = re.compile(r"\d{4}[/-]\d\d?[/-]\d\d?|\d\d?[/-]\d\d?[/-]\d{2,4}|\d{4}[/-]\d{4}")


def digits_of(text: str) -> str:
    """Return a text's digits."""
    return "".join(filter(str.isdecimal, text))


def is_phone(text: str) -> bool:
    """Return whether a match of `_PHONE` has a telephone number's count of digits."""
    return len(digits_of(text)) in PHONE_DIGITS


def has_check_digit(text: str) -> bool:
    """Return whether the last digit is the check digit of the others, as in card numbers (Luhn).

    >>> has_check_digit("4111 1111 1111 1111"), has_check_digit("4111111111111112")
    (True, False)
    """
    digits = digits_of(text)
    doubled = (sum(divmod(2 * int(d), 10)) for d in digits[-2::-2])
    return (sum(map(int, digits[::-2])) + sum(doubled)) % 10 == 0


# In the order in which they are looked for: a kind, its pattern, what else must hold of a match,
# and its one way of writing. Telephone numbers lose America's country code.
_FINDERS: tuple[tuple[str, re.Pattern[str], Callable[[str], object], Callable[[str], str]], ...] = (
    (EMAIL, _EMAIL, bool, str.casefold),
    (CARD, _CARD, has_check_digit, digits_of),
    (ID, _IBAN, bool, lambda text: re.sub(r"\W", "", text)),
    (PHONE, _PHONE, is_phone, lambda text: re.sub(r"^1(?=\d{10}$)", "", digits_of(text))),
    (ID, _ID, lambda text: not _DATE.fullmatch(text), lambda text: re.sub(r"\W", "", text).upper()),
)


def numbers_in(text: str) -> Iterator[tuple[str, str]]:
    """Yield kind and value of e-mail addresses and numbers, in a normalised spelling.

    A match of one kind is not matched again: a card number is no id number.

    >>> list(numbers_in("Ann@X.org paid with 4111-1111-1111-1111 on 2001-05-14, case A-955320"))
    [('e-mail address', 'ann@x.org'), ('card number', '4111111111111111'), ('id number', 'A955320')]
    """
    for kind, pattern, holds, written in _FINDERS:
        rest, end = [], 0
        for match in pattern.finditer(text):
            if holds(match.group()):
                yield kind, written(match.group())
                rest.append(text[end : match.start()])
                end = match.end()
        text = "|".join([*rest, text[end:]])  # a mark that no pattern reaches across


@cache
def _load_pipeline() -> Any:
    """Load spaCy's pipeline once, because it takes seconds."""
    import spacy

    return spacy.load(PIPELINE, exclude=["tagger", "parser", "lemmatizer", "attribute_ruler"])


def names_in(texts: Sequence[str]) -> Iterator[list[Span]]:
    """Yield the places of people's names with two words or more in each text.

    The end of a text of more than a million characters is not read.
    """
    if find_spec("spacy") is None or find_spec(PIPELINE) is None:
        raise InputError("finding people's names needs pip install 'twinset[pii]'")
    pipeline = _load_pipeline()
    cut = (text[: pipeline.max_length] for text in texts)
    for document in pipeline.pipe(cut, batch_size=BATCH):
        people = (entity for entity in document.ents if entity.label_ == "PERSON")
        yield [(p.start_char, p.end_char) for p in people if len(p.text.split()) >= FULL_NAME]


def _plain_words(text: str) -> str:
    """Return the words of a name or of a text in a normalised spelling."""
    return " ".join(word.removesuffix("'s") for word in words_of(text))


def mean_reciprocal_rank(
    twin: TwinModel, records: Records, rows: str, *, seed: int, progress: Progress
) -> list[Measured]:
    """Measure how likely the model finds the names of people in texts.

    A name's reciprocal rank is the mean, over its tokens, of 1 / the token's rank in the whole
    vocabulary, given all text before it. The mean is over every mention. Range 0 to 1. The best
    value is that of held-out rows: 1 means that every name is known by heart. A name that training
    cut off is left out, because the model never saw it. Without names there is no score. `rows`
    says which records these are, "train" or "held-out". The seed is of the bootstrap over texts.
    """
    prompts = prompt_tokens(twin.template, twin.schema.combinations, twin.tokenizer)
    ranks: list[list[float]] = []  # by text, of each of its names
    texts = [text.strip() for text in records.texts]
    found = zip(texts, records.labels, names_in(texts), strict=True)
    for done, (text, label, names) in enumerate(found, start=1):
        prompt = prompts[label]
        budget = min(twin.text_tokens - 1, context_length(twin.model) - len(prompt))
        ranks.append([])
        progress.count("texts searched for names", done, len(texts))
        if not names:
            continue
        encoded = twin.tokenizer(" " + text, add_special_tokens=False, return_offsets_mapping=True)
        offsets = np.array(encoded["offset_mapping"][:budget]) - 1  # of the space
        tokens = [
            np.flatnonzero((offsets[:, 0] < end) & (offsets[:, 1] > start))
            for start, end in names
            if end <= offsets.max()
        ]
        if not tokens:
            continue
        wanted = torch.tensor(np.unique(np.concatenate(tokens)))
        ids = torch.tensor([[*prompt, *encoded["input_ids"][:budget]]], device=twin.model.device)
        before = (wanted + len(prompt) - 1).to(twin.model.device)
        with torch.inference_mode():
            logits = twin.model(ids, logits_to_keep=before).logits[0].float()  # (wanted, V)
            true = logits.gather(1, ids[0, before + 1].unsqueeze(1))
            # the middle of equals, as in `expected_rank`
            places = 0.5 * ((logits > true).sum(1) + (logits >= true).sum(1) + 1)
        reciprocal = dict(zip(wanted.tolist(), (1 / places).tolist(), strict=True))
        ranks[-1] = [float(np.mean([reciprocal[i] for i in name.tolist()])) for name in tokens]
    if not any(ranks):
        return []
    score = _mean_over_texts("mean reciprocal rank of names", ranks, 1.0, seed)
    return [Measured("leakage", score, {"rows": rows})]


def phone_exposure(
    twin: TwinModel, records: Records, rows: str, *, seed: int, progress: Progress
) -> list[Measured]:
    """Measure the exposure of telephone numbers among all of the same format.

    Candidates have other digits in the same places, after all text before the number. They are too
    many to rank, so their losses are extrapolated from a sample of `CANDIDATES`. At most `MOST`
    numbers are scored, drawn at random. The mean exposure is in bits, one score for each |R|. See
    `mean_reciprocal_rank` for all else.
    """
    prompts = prompt_tokens(twin.template, twin.schema.combinations, twin.tokenizer)
    rng, texts = np.random.default_rng(seed), [text.strip() for text in records.texts]
    matches = ((row, match) for row, text in enumerate(texts) for match in _PHONE.finditer(text))
    found = [(row, match.span()) for row, match in matches if is_phone(match.group())]
    chosen = [found[i] for i in sorted(rng.permutation(len(found))[:MOST].tolist())]
    bits: dict[tuple[int, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for done, (row, (start, end)) in enumerate(chosen, start=1):
        progress.count("telephone numbers scored", done, len(chosen))
        head, number = texts[row][:start], texts[row][start:end]
        prompt = prompts[records.labels[row]]
        budget = min(twin.text_tokens - 1, context_length(twin.model) - len(prompt))
        if len(twin.tokenizer.encode(f" {head}{number}", add_special_tokens=False)) > budget:
            continue
        # Numbers of the same format with digits drawn at random: (CANDIDATES, characters).
        places = [place for place, sign in enumerate(number) if sign.isdecimal()]
        signs = np.tile(np.array(list(number)), (CANDIDATES, 1))
        signs[:, places] = rng.integers(10, size=(CANDIDATES, len(places))).astype(str)
        numbers = [head + n for n in (number, *map("".join, signs.tolist()))]
        losses = candidate_losses(twin.model, twin.tokenizer, prompt, numbers)
        rank, method = extrapolated_rank(losses[1:], float(losses[0]), 10 ** len(places))
        bits[len(places), method][row].append(float(len(places) * np.log2(10) - np.log2(rank)))
    measured = []
    for (digits, method), by_text in sorted(bits.items()):
        most_bits, values = float(digits * np.log2(10)), list(by_text.values())
        score = _mean_over_texts("exposure of telephone numbers", values, most_bits, seed)
        place = {"rows": rows, "candidates": f"10^{digits}", "method": method}
        measured.append(Measured("leakage", score, place))
    return measured


def _mean_over_texts(name: str, by_text: list[list[float]], maximum: float, seed: int) -> Score:
    """Return the mean of all values, with a bootstrap interval over texts.

    The values of one text stay together. For a single text the interval is the whole range.
    """
    sums = np.array([sum(values) for values in by_text if values])
    counts = np.array([len(values) for values in by_text if values])
    low, high = 0.0, maximum
    if len(sums) > 1:
        rng = np.random.default_rng(seed)
        drawn = (rng.integers(len(sums), size=len(sums)) for _ in range(RESAMPLES))
        low, high = np.quantile([sums[i].sum() / counts[i].sum() for i in drawn], [0.025, 0.975])
    value, n = float(sums.sum() / counts.sum()), int(counts.sum())
    return Score(name, value, float(low), float(high), "minimise", 0.0, maximum, n)


def replay(
    twin: Sequence[str], train: Sequence[str], heldout: Sequence[str], *, progress: Progress
) -> tuple[list[Measured], list[str]]:
    """Measure the share of personal data in train's texts that also occurs in the twin's.

    Each score is a share, 0 to 1. Compare "train only" with "held-out only". A twin that leaks
    nothing has equal shares of both. A place names the kind, the rows that have the value, and how
    many of them do. Empty groups are left out. Notes say what could not be measured.
    """
    private: dict[str, PersonalData] = {}
    for rows, texts in (("train", train), ("held-out", heldout)):
        private[rows] = {kind: Counter() for kind in KINDS if kind != NAME}
        for text in texts:  # a row counts once, however often it says a value
            for kind, value in set(numbers_in(text)):
                private[rows][kind][value] += 1
    written = {value for text in twin for _, value in numbers_in(text)}
    notes, texts, names = [], [*train, *heldout], []
    try:
        for done, (text, spans) in enumerate(zip(texts, names_in(texts), strict=True), start=1):
            names.append({_plain_words(text[start:end]) for start, end in spans})
            if done % REPORT_EVERY == 0 or done == len(texts):
                progress.count("rows searched for names", done, len(texts))
    except InputError as error:
        notes.append(f"Replayed names were not counted: {error}.")
    else:
        private["train"][NAME] = Counter(n for row in names[: len(train)] for n in row)
        private["held-out"][NAME] = Counter(n for row in names[len(train) :] for n in row)
        written |= find_values(twin, set().union(*names))
    if absent := [kind for kind, values in private["train"].items() if not values]:
        notes.append(f"Train holds none of these, so none can be replayed: {', '.join(absent)}.")
    few, many = sorted((len(train), len(heldout)))
    if many > UNEQUAL * few:
        notes.append(
            f"Train has {len(train):,} rows and held-out {len(heldout):,}. The tables differ so "
            "much in size that the share expected by chance is only roughly known."
        )
    return list(_replayed(private, written, OCCURRENCES)), notes


def replay_planted(
    twin_texts: Sequence[str],
    train_texts: Sequence[str],
    train: Sequence[Mapping[str, str]],
    heldout: Sequence[Mapping[str, str]],
) -> list[Measured]:
    """Measure the same for known personal data, so that nothing is missed or guessed.

    `train` and `heldout` give the planted data of each row: kind → value. As a control that this
    way of counting works, the share of train's planted values that is found in train is measured
    too.
    """
    private: dict[str, PersonalData] = {}
    for name, rows in (("train", train), ("held-out", heldout)):
        private[name] = defaultdict(Counter)
        for row in rows:
            for kind, value in row.items():
                private[name][kind.replace("_", " ")][_plain_words(value)] += 1
    known = {v for found in private.values() for values in found.values() for v in values}
    written, there = find_values(twin_texts, known), find_values(train_texts, known)
    measured = list(_replayed(private, written, {"1+": range(1, 2**63)}))
    for kind, values in private["train"].items():
        score = proportion(PLANTED, len(values.keys() & there), len(values))
        measured.append(Measured("leakage", score, {"kind": kind, "rows": "train"}))
    return measured


def find_values(texts: Iterable[str], values: set[str]) -> set[str]:
    """Return which values occur as runs of words in the texts, whatever they mean there."""
    lengths = {len(value.split()) for value in values}
    found = set()
    for text in texts:
        words = _plain_words(text).split()
        for length in lengths:
            runs = (" ".join(words[i : i + length]) for i in range(len(words) - length + 1))
            found |= values.intersection(runs)
    return found


def _replayed(
    private: dict[str, PersonalData], written: set[str], bands: Mapping[str, range]
) -> Iterator[Measured]:
    """Yield the share of values that occur in the twin, by kind, source and band."""
    for kind, train in private["train"].items():
        heldout = private["held-out"][kind]
        sources = {
            "train": train,
            "train only": {v: n for v, n in train.items() if v not in heldout},
            "held-out only": {v: n for v, n in heldout.items() if v not in train},
        }
        for (rows, values), (occurrences, band) in product(sources.items(), bands.items()):
            hits = [value in written for value, n in values.items() if n in band]
            if hits:
                score = proportion(REPLAYED, sum(hits), len(hits), "minimise")
                place = {"kind": kind, "rows": rows, "occurrences": occurrences}
                yield Measured("leakage", score, place)
