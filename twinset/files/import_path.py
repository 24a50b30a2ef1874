"""Keeps the working folder off the import path, because it holds tables and files from others.

`python -m` puts it first on the import path, and so does an empty entry of PYTHONPATH. A file named
`secrets.py` next to a table would then run instead of the library's. This module imports only
modules of the interpreter, not even `__future__`. Until the folder is removed, any other module may
come from it.
"""

import os
import sys

TYPE_CHECKING = False  # a type checker takes it for true. `typing` itself may be planted, too
if TYPE_CHECKING:
    from types import ModuleType

# twinset is in this folder
HOME = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))


def find_folder(name: str) -> str:
    """Return the path of a folder next to `twinset` in a checkout, inside it if installed."""
    installed = os.path.join(HOME, "twinset", name)
    return installed if os.path.isdir(installed) else os.path.join(HOME, name)


def import_evaluation(module: str) -> "ModuleType":
    """Import a module of `evaluation`, which is above this package."""
    from importlib import import_module

    if os.path.dirname(find_folder("evaluation")) != HOME:
        return import_module(f"twinset.evaluation.{module}")
    if HOME not in map(os.path.realpath, sys.path):
        sys.path.append(HOME)
    return import_module(f"evaluation.{module}")


def drop_working_folder() -> None:
    """Remove the working folder from the import path of a command, and of its future processes.

    It stays if twinset itself is in it: a checkout. Programs that import twinset keep theirs.
    """
    started = (getattr(sys, "argv", None) or [""])[0]
    is_command = os.path.basename(started) in ("twinset", "cli.py")
    if started == "-m":  # what `sys.argv` says as long as the packages of a module are imported
        words = (word.partition(".")[0] for word in sys.orig_argv[1:])
        is_command = any(word in ("twinset", "evaluation") for word in words)
    if is_command:
        sys.path[:] = filter(_is_trusted, sys.path)
        os.environ.update(safe_environment())


def safe_environment(finds_twinset: bool = False) -> dict[str, str]:
    """Return the environment for a Python process that does not import from its working folder.

    `finds_twinset` is for a process that must find this very twinset, installed or not.
    """
    paths = [HOME] * finds_twinset
    if inherited := os.environ.get("PYTHONPATH"):  # empty entries mean the working folder
        paths += filter(_is_trusted, inherited.split(os.pathsep))
    safe = os.environ | {"PYTHONSAFEPATH": "1"}
    return safe | {"PYTHONPATH": os.pathsep.join(paths)} if paths or inherited else safe


def _is_trusted(entry: str) -> bool:
    try:
        place, here = os.path.realpath(entry or os.curdir), os.path.realpath(os.curdir)
    except OSError:  # the working folder was removed: nothing can be imported from it
        return bool(entry)
    return place == HOME or place != here
