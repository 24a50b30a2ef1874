"""How a command begins and ends: memory, exit code, and one line on stderr without private data."""

from __future__ import annotations

import ast
import ctypes
import errno
import os
import re
import resource
import shlex
import signal
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import typer

from twinset.errors import InputError, Stopped, VerificationError, printable
from twinset.models.device import is_out_of_memory
from twinset.table.schema import written_line

STOPPED = 130  # exit code
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_MOST = 2**31 - 1
_OPTION = re.compile(r"`([a-z][a-z0-9_]*)(?:=([^`]*))?`")  # in a message of the library
_OTHERWISE = {"attributes": "--attribute", "private": "--no-privacy"}
_OTHERWISE |= {"kinds": "--kind", "ranges": "--range"}
SPINS = "100000"  # some milliseconds in GNU's OpenMP, PyTorch's own
HOME = Path(__file__).resolve().parent.parent.parent


def run(command: Callable[[], int]) -> int:
    """Run a command and return its exit code: 0, 1 (failed), 2 (bad input) or 130 (stopped)."""
    # Idle OpenMP threads spin briefly, then block. Threads that spin for long take time from other
    # work, and threads that block at once wake too late. It has no effect after PyTorch's import.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
    # The C library keeps freed memory. By default it maps each large tensor again, and the system
    # zeroes every page of it: a third of a small model's step. Only glibc can be asked.
    with suppress(OSError, TypeError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        _ = mallopt(_MMAP_THRESHOLD, _MOST) and mallopt(_TRIM_THRESHOLD, _MOST)

    def stop(number: int, frame: object) -> NoReturn:
        """Stop once. A second signal must not disturb the cleanup."""
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    previous = {s: signal.signal(s, stop) for s in (signal.SIGINT, signal.SIGTERM)}
    cores = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, cores[1]))  # a core dump would hold the table
    debugging = os.environ.get("TWINSET_DEBUG") == "1"
    if not debugging:
        warnings.simplefilter("ignore")  # of libraries, to developers
    try:
        code = command() or 0
        if code == STOPPED:  # typer says so of an interrupt
            raise KeyboardInterrupt
        return code
    except BaseException as error:
        if isinstance(error, SystemExit) and error.code in (None, 0):
            return 0  # the shell was told how to complete a word
        if isinstance(error, SystemExit) and isinstance(error.__context__, BrokenPipeError):
            return 1  # the reader has left, as `head` does, so there is no one to tell
        try:
            line, code = describe_end(error)
        except Exception:
            line, code = f"error: unexpected {type(error).__name__}. TWINSET_DEBUG=1 shows more.", 1
        typer.echo(printable(" ".join(line.split())), err=True)
        if debugging:
            typer.echo(printable("".join(traceback.format_exception(error))), err=True)
        return code
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, cores)
        for number, handler in previous.items():
            signal.signal(number, handler)


def describe_end(error: BaseException) -> tuple[str, int]:
    """Return the message about an error that ended a command, and the exit code."""
    if isinstance(error, Stopped):
        return with_flags(str(error)), STOPPED
    if isinstance(error, KeyboardInterrupt):
        return "Stopped. Nothing half-written is left.", STOPPED
    if isinstance(error, InputError):
        return f"error: {with_flags(str(error))}", 2
    if isinstance(error, VerificationError):
        return f"error: {error}", 1
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return "error: a path is too long. Name a shorter one.", 2
    if hasattr(error, "format_message"):  # typer's: an unknown flag, a number that is none
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "twinset"
        return f"error: {error.format_message().rstrip('.')}. See {command} --help.", 2
    if isinstance(error, RuntimeError) and is_out_of_memory(error):
        return (
            "error: memory ran out. Close other programs, or take a smaller --sample-batch or "
            "--physical-tokens. A run that began continues with --resume."
        ), 1
    # Its message may quote a record, so only the last place in twinset's own code is shown.
    roots = (HOME / "cli.py", HOME / "twinset", HOME / "evaluation")
    frames = traceback.extract_tb(error.__traceback__)
    passed = [(Path(frame.filename).resolve(), frame.lineno) for frame in frames]
    own = [(p, line) for p, line in passed if any(p.is_relative_to(root) for root in roots)]
    place = f"in {own[-1][0].name}:{own[-1][1]}" if own else "outside twinset"
    return f"error: unexpected {type(error).__name__} {place}. TWINSET_DEBUG=1 shows more.", 1


def with_flags(line: str) -> str:
    """Return a line of the library with its parameters written as flags.

    A mapping in a Python message becomes one shell word. Other braces stay, because a message may
    quote a file from others.

    >>> with_flags("`top_p` must be above 0. Take `device=cpu`, or run `pip install torch`")
    '--top-p must be above 0. Take --device cpu, or run `pip install torch`'
    >>> with_flags("`overwrite=True` replaces it. Name `attributes`, or train with `private=False`")
    '--overwrite replaces it. Name --attribute, or train with --no-privacy'
    >>> with_flags("declare them with `labels={'city': ['York', 'New York']}`")
    "declare them with --labels 'city=York,New York'"
    """
    for found in _OPTION.finditer(line):
        name, value = found.groups()
        flag = _OTHERWISE.get(name, f"--{name.replace('_', '-')}")
        if value is not None and value.startswith("{"):
            try:
                ((column, values),) = ast.literal_eval(value).items()
                listed = values if name == "kinds" else written_line([] + values)
                value = shlex.quote(f"{column}={listed}")  # of a list alone
            except Exception:  # the text of others
                continue
        written = flag if value in (None, "True", "False", "None") else f"{flag} {value}"
        line = line.replace(found[0], written, 1)
    return line
