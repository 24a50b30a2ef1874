"""Personal data of the private rows that stand in a twin too, by how often the private rows say it.

Chance is what a twin holds of the same kinds of data in held-out rows that it never saw: a model
makes up names and numbers that exist, and knows famous ones. What is found stays in this module: no
score, note or message holds it.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from evaluation.findings import Measured, proportion
from evaluation.leakage.names import digits_of, names_in, phones_in
from twinset.detectors.spans import Span
from twinset.errors import InputError
from twinset.progress import Progress
from twinset.table.ngrams import words_of

EMAIL, PHONE, CARD = "e-mail address", "telephone number", "card number"
ID, NAME = "id number", "person's name"
KINDS = (EMAIL, PHONE, CARD, ID, NAME)
OCCURRENCES = {"1": range(1, 2), "2–9": range(2, 10), "10+": range(10, 2**63)}
ANY = {"1+": range(1, 2**63)}
PLANTED = "found where it was planted"
PersonalData = dict[str, Counter[str]]  # kind → value → rows that hold it

_EMAIL = re.compile(r"(?<![\w.%+'-])[\w.%+'-]++@[\w-]++(?:\.[\w-]++)++")
_CARD = re.compile(r"(?<![\w.-])\d(?:[ -]?\d){12,18}(?![\w-])")
_IBAN = re.compile(r"(?<!\w)[A-Z]{2}\d{2}(?: ?[A-Z\d]{4}){2,7}(?: ?[A-Z\d]{1,3})?(?!\w)")
# A code of capitals and digits; a word with six digits or more that is no sum of money.
_ID = re.compile(
    r"(?<!\w)(?=[A-Z]*\d)(?=\d*[A-Z])[A-Z\d]{8,24}(?!\w)|"
    r"(?<![\w.,$€£/-])(?=(?:[A-Za-z/-]*\d){6})[A-Za-z\d/-]{6,40}(?!\w|[.,]\d)"
)
_DATE = re.compile(r"\d{4}[/-]\d\d?[/-]\d\d?|\d\d?[/-]\d\d?[/-]\d{2,4}|\d{4}[/-]\d{4}")
_REPORT_EVERY = 100  # rows between two reports
_FEW = 2  # tables whose sizes differ by more are no equals


def replay(
    twin_texts: Sequence[str],
    train_texts: Sequence[str],
    heldout_texts: Sequence[str],
    *,
    progress: Progress,
) -> tuple[list[Measured], list[str]]:
    """Measure how many of the personal data in train stand in the twin; see `overlap`.

    Returns:
        Scores, and notes on what could not be measured. A place names the kind; the rows that hold
        the value ("train", "train only", "held-out only": the last two are to be compared); and how
        many of them do. Empty groups are left out.
    """
    private = {"train": _numbers(train_texts), "held-out": _numbers(heldout_texts)}
    written = {value for values in _numbers(twin_texts).values() for value in values}
    try:
        names = _names([*train_texts, *heldout_texts], progress)
    except InputError as error:
        notes = [f"Replayed names were not counted: {error}."]
    else:
        notes = []
        private["train"][NAME] = Counter(n for row in names[: len(train_texts)] for n in row)
        private["held-out"][NAME] = Counter(n for row in names[len(train_texts) :] for n in row)
        written |= _said(twin_texts, {name for row in names for name in row})
    measured = [each for kind in private["train"] for each in _shares(kind, private, written)]
    return measured, [*notes, *_notes(private, len(train_texts), len(heldout_texts))]


def replay_planted(
    twin_texts: Sequence[str],
    train_texts: Sequence[str],
    train: Sequence[Mapping[str, str]],
    heldout: Sequence[Mapping[str, str]],
) -> list[Measured]:
    """Measure the same of personal data that are known: nothing is missed, and nothing guessed.

    Args:
        twin_texts: of the twin.
        train_texts: of the rows it was made from.
        train: by row of these, what was planted in it: kind → value.
        heldout: the same of rows that the twin was not made from.

    Returns:
        Scores as of `replay`; and, as a control that this way of counting finds what is there, the
        share of what was planted in train that is found in train.
    """
    private = {"train": _planted(train), "held-out": _planted(heldout)}
    known = {v for found in private.values() for values in found.values() for v in values}
    written, there = _said(twin_texts, known), _said(train_texts, known)
    measured: list[Measured] = []
    for kind, values in private["train"].items():
        measured += _shares(kind, private, written, ANY)
        score = proportion(PLANTED, len(values.keys() & there), len(values))
        measured.append(Measured("leakage", score, {"kind": kind, "rows": "train"}))
    return measured


def _planted(rows: Iterable[Mapping[str, str]]) -> PersonalData:
    found: PersonalData = defaultdict(Counter)
    for row in rows:
        for kind, value in row.items():
            found[kind.replace("_", " ")][" ".join(_name_words(value))] += 1
    return found


def _shares(
    kind: str,
    private: dict[str, PersonalData],
    written: set[str],
    bands: Mapping[str, range] = OCCURRENCES,
) -> Iterator[Measured]:
    train, heldout = private["train"][kind], private["held-out"][kind]
    sources = {
        "train": train,
        "train only": {v: n for v, n in train.items() if v not in heldout},
        "held-out only": {v: n for v, n in heldout.items() if v not in train},
    }
    for rows, values in sources.items():
        for occurrences, band in bands.items():
            hits = [value in written for value, n in values.items() if n in band]
            if hits:
                score = proportion("replayed", sum(hits), len(hits), "minimise")
                place = {"kind": kind, "rows": rows, "occurrences": occurrences}
                yield Measured("leakage", score, place)


def _notes(private: dict[str, PersonalData], train: int, heldout: int) -> Iterator[str]:
    if absent := [kind for kind, values in private["train"].items() if not values]:
        yield f"Train holds none of these, so none can be replayed: {', '.join(absent)}."
    if max(train, heldout) > _FEW * min(train, heldout):
        yield (
            f"Train has {train:,} rows and held-out {heldout:,}: what stands in one row of the "
            "smaller is commoner than what stands in one of the larger, so chance is only roughly "
            "known."
        )


def _numbers(texts: Iterable[str]) -> PersonalData:
    """Count the rows that hold each e-mail address and each number of any kind."""
    found: PersonalData = {kind: Counter() for kind in KINDS if kind != NAME}
    for text in texts:
        for kind, value in set(numbers_in(text)):
            found[kind][value] += 1
    return found


def numbers_in(text: str) -> Iterator[tuple[str, str]]:
    """Yield kind and value of e-mail addresses and numbers, in one way of writing.

    What was found as one kind is not looked at again: a card number is no id number.

    >>> list(numbers_in("Ann@X.org paid with 4111-1111-1111-1111 on 2001-05-14, case A-955320"))
    [('e-mail address', 'ann@x.org'), ('card number', '4111111111111111'), ('id number', 'A955320')]
    """
    for kind, find, written in _FINDERS:
        rest: list[str] = []
        end = 0
        for start, stop in find(text):
            yield kind, written(text[start:stop])
            rest.append(text[end:start])
            end = stop
        text = "|".join([*rest, text[end:]])


def _spans(
    pattern: re.Pattern[str], wanted: Callable[[str], bool] = lambda found: True
) -> Callable[[str], list[Span]]:
    return lambda text: [m.span() for m in pattern.finditer(text) if wanted(m.group())]


def _phone(text: str) -> str:
    """Return the digits, without America's country code."""
    digits = digits_of(text)
    return digits[1:] if len(digits) == 11 and digits[0] == "1" else digits


def _capitals(text: str) -> str:
    return "".join(filter(str.isalnum, text)).upper()


def luhn(digits: str) -> bool:
    """Return whether the last digit is the check digit of the others, as in card numbers.

    >>> luhn("4111111111111111"), luhn("4111111111111112")
    (True, False)
    """
    doubled = (sum(divmod(2 * int(d), 10)) for d in digits[-2::-2])
    return (sum(map(int, digits[::-2])) + sum(doubled)) % 10 == 0


# In the order in which they are looked for: a kind, how it is found, and its one way of writing.
_FINDERS: tuple[tuple[str, Callable[[str], list[Span]], Callable[[str], str]], ...] = (
    (EMAIL, _spans(_EMAIL), str.casefold),
    (CARD, _spans(_CARD, lambda found: luhn(digits_of(found))), _capitals),
    (ID, _spans(_IBAN), _capitals),
    (PHONE, phones_in, _phone),
    (ID, _spans(_ID, lambda found: not _DATE.fullmatch(found)), _capitals),
)


def _names(texts: Sequence[str], progress: Progress) -> list[set[str]]:
    """Return each row's names, as words."""
    names = []
    for done, (text, spans) in enumerate(zip(texts, names_in(texts), strict=True), start=1):
        names.append({" ".join(_name_words(text[start:end])) for start, end in spans})
        if done % _REPORT_EVERY == 0 or done == len(texts):
            progress.count("rows searched for names", done, len(texts))
    return names


def _said(texts: Iterable[str], names: set[str]) -> set[str]:
    """Return which names stand in the texts, whether or not they are names there."""
    lengths = {len(name.split()) for name in names}
    said = set()
    for text in texts:
        words = _name_words(text)
        for length in lengths:
            runs = (" ".join(words[i : i + length]) for i in range(len(words) - length + 1))
            said |= names.intersection(runs)
    return said


def _name_words(text: str) -> list[str]:
    return [word.removesuffix("'s") for word in words_of(text)]
