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


def first_line(error: BaseException) -> str:
    r"""Return what a library's error says, as part of a line of ours.

    >>> first_line(OSError("no such thing.\nAt 0x7f")), first_line(MemoryError())
    ('no such thing', 'MemoryError')
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


class InputError(ValueError):
    """The user's input cannot be used.

    The message is one line that names the file, column or row and the remedy, and never holds
    private text. The command line prints it and exits with code 2.
    """


class VerificationError(RuntimeError):
    """A shared folder does not hold what its ledger and card say it holds."""


class Stopped(BaseException):
    """Somebody stopped a run, and it can be gone on with; the message says how."""
