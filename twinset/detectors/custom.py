"""The user's own detector, a function `str -> iterable of (start, end)` named `module:function`.

Trusts nothing it returns, and repeats nothing it says: its errors may quote a record.
"""

from __future__ import annotations

import importlib
import operator
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from twinset.detectors.spans import Span, joined
from twinset.errors import InputError


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
