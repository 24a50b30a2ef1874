"""The detector of who and what a sentence is about, after Shi et al. (2022), section 6."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from twinset.detectors.entities import Entities
from twinset.detectors.spans import Span

SUBJECTS = {"nsubj", "nsubjpass", "csubj", "csubjpass"}
OBJECTS = {"dobj", "pobj", "dative"}  # dative: the indirect object
NAMING = {"PROPN", "PRON"}


class Contextual(Entities):
    """Flags what `entities` flags, and every subject, object, proper noun and pronoun."""

    name = "contextual"

    def _private(self, document: Any) -> Iterator[Span]:
        yield from super()._private(document)
        for token in document:
            if token.dep_ in SUBJECTS | OBJECTS or token.pos_ in NAMING:
                yield token.idx, token.idx + len(token)
