"""The two ways twinset stops on purpose."""

from __future__ import annotations


class InputError(ValueError):
    """The user's input cannot be used.

    The message is one line that names the file, column or row and the remedy, and never holds
    private text. The command line prints it and exits with code 2.
    """


class VerificationError(RuntimeError):
    """A shared folder does not hold what its ledger and card say it holds."""
