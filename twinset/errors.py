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


class InputError(ValueError):
    """The user's input cannot be used.

    The message is one line that names the file, column or row and the remedy, and never holds
    private text. The command line prints it and exits with code 2.
    """


class VerificationError(RuntimeError):
    """A shared folder does not hold what its ledger and card say it holds."""


class Stopped(BaseException):
    """Somebody stopped a run, and it can be gone on with; the message says how."""
