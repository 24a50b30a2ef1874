"""The errors that twinset raises on purpose."""

from __future__ import annotations

import re

# Errors that reading an invalid file may raise.
DAMAGED = (
    OSError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
MOST_OF_AN_ERROR = 200  # characters


def first_line(error: BaseException) -> str:
    r"""Return the first line of a library's error, for use inside one of our messages.

    The error may quote a file from others, so the line is cut and cannot control a terminal. A
    title, which ends in a colon, gets the line below it. Backticks are for our own options.

    >>> first_line(OSError("no such thing.\nAt 0x7f")), first_line(MemoryError())
    ('no such thing', 'MemoryError')
    >>> first_line(ValueError("Invalid:\n  `n_layer` is None"))
    "Invalid: 'n_layer' is None"
    """
    text = re.sub(r":\s*\n\s*", ": ", str(error).strip() or type(error).__name__)
    line = text.splitlines()[0].rstrip(".").replace("`", "'")
    return printable(line if len(line) <= MOST_OF_AN_ERROR else f"{line[:MOST_OF_AN_ERROR]}…")


def printable(text: str) -> str:
    r"""Return a text without characters that control a terminal, except line breaks.

    >>> printable("a column \x1b[2J“naïve”")
    'a column �[2J“naïve”'
    """
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


class _Line(Exception):
    """An error message made safe to print, because it may quote a file from others."""

    def __init__(self, line: str) -> None:
        super().__init__(printable(line))


class InputError(_Line, ValueError):
    """The user's input cannot be used.

    The message is one line that names the file, column or row and the remedy. It never contains
    private text. It names options as Python does, between backticks: `top_p`, `device=cpu`. The
    command line shows them as its flags and exits with code 2.
    """


class VerificationError(_Line, RuntimeError):
    """A shared folder does not match its ledger and card."""


class Stopped(BaseException):
    """The user stopped a run, and it can be resumed. The message says how."""
