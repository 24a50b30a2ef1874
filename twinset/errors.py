"""The ways twinset stops on purpose."""

from __future__ import annotations

# What reading a file may raise that is not what it should be.
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
    r"""Return what a library's error says, as part of a line of ours.

    It may quote a file that others wrote, so it is cut, and nothing in it steers a terminal.

    >>> first_line(OSError("no such thing.\nAt 0x7f")), first_line(MemoryError())
    ('no such thing', 'MemoryError')
    """
    line = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    return printable(line if len(line) <= MOST_OF_AN_ERROR else f"{line[:MOST_OF_AN_ERROR]}…")


def printable(text: str) -> str:
    r"""Return a text in which no character steers a terminal, but for line breaks.

    >>> printable("a column \x1b[2J“naïve”")
    'a column �[2J“naïve”'
    """
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


class _Line(Exception):
    """What is said of an error may quote a file that others wrote."""

    def __init__(self, line: str) -> None:
        super().__init__(printable(line))


class InputError(_Line, ValueError):
    """The user's input cannot be used.

    The message is one line that names the file, column or row and the remedy. It never holds
    private text. It names options as Python does, between backticks: `top_p`, `device=cpu`. The
    command line shows them as its flags, and exits with code 2.
    """


class VerificationError(_Line, RuntimeError):
    """A shared folder does not hold what its ledger and card say it holds."""


class Stopped(BaseException):
    """Somebody stopped a run, and it can be resumed. The message says how."""
