"""The working folder is no place to import code from: it holds tables, and what came with them.

`python -m` puts it first on the import path, and so does an empty entry of PYTHONPATH: a file named
`secrets.py` beside a table would be run instead of the library's. Imports nothing but the
interpreter's own modules, not even `__future__`: what is imported before the folder is gone may
come from it.
"""

import os
import sys

HOME = os.path.dirname(
    os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
)  # twinset lies in it
_COMMANDS = ("twinset", "cli.py")
_PACKAGES = ("twinset", "evaluation")


def is_command() -> bool:
    """Return whether this process runs twinset itself, and no program that imports it."""
    started = getattr(sys, "argv", None) or [""]
    if started[0] != "-m":  # what `sys.argv` says as long as the packages of a module are imported
        return os.path.basename(started[0]) in _COMMANDS
    return any(word.partition(".")[0] in _PACKAGES for word in sys.orig_argv[1:])


def drop_working_folder() -> None:
    """Take the working folder off the import path, for this process and for all that it starts.

    It stays where twinset itself lies in it: a checkout.
    """
    sys.path[:] = filter(_is_trusted, sys.path)
    os.environ.update(safe_environment())


def safe_environment() -> dict[str, str]:
    """Return the environment for a Python process that imports nothing by its working folder."""
    inherited = os.environ.get("PYTHONPATH")
    if not inherited:  # else an entry that is empty would stand for the working folder
        return os.environ | {"PYTHONSAFEPATH": "1"}
    kept = os.pathsep.join(filter(_is_trusted, inherited.split(os.pathsep)))
    return os.environ | {"PYTHONPATH": kept, "PYTHONSAFEPATH": "1"}


def worker_environment() -> dict[str, str]:
    """Return the same for a process that must find this very twinset, installed or not."""
    safe = safe_environment()
    paths = [HOME, *filter(None, [safe.get("PYTHONPATH")])]
    return safe | {"PYTHONPATH": os.pathsep.join(paths)}


def _is_trusted(entry: str) -> bool:
    try:
        place, here = os.path.realpath(entry or os.curdir), os.path.realpath(os.curdir)
    except OSError:  # the working folder was removed: nothing can be imported from it
        return bool(entry)
    return place == HOME or place != here
