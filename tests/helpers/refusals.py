"""Bad input is refused soon, in one line, and without a word of what a table holds."""

import signal
import traceback
from collections.abc import Callable
from contextlib import contextmanager

import pytest

from tests.helpers.commands import MARKER
from twinset.errors import InputError

SECRET = "XYZZYMARK"  # stands in private cells, as MARKER does: no refusal may repeat it
PATIENCE = 60  # seconds for what takes milliseconds


@contextmanager
def no_hang():
    """A guard, not a measurement: what is caught here would go on for ever."""

    def hangs(number, frame):
        raise AssertionError("it hangs")

    previous = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def assert_silent(error: BaseException) -> None:
    """Neither its message nor its traceback repeats a private cell."""
    shown = "".join(traceback.format_exception(error))
    assert SECRET not in shown and MARKER not in shown


def refusal(act: Callable, *arguments, error: type[Exception] = InputError, **named) -> str:
    """Return how a call is refused: in one short line that repeats no private cell."""
    with no_hang(), pytest.raises(error) as caught:
        act(*arguments, **named)
    assert_silent(caught.value)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 500
    return message
