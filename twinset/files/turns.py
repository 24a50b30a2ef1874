"""Lets threads of one program take turns.

Libraries keep settings of the whole process: PyTorch its number of threads, `csv` the size of a
cell, `warnings` and `logging` what is shown, Python the modules that may be imported. A run changes
some of them for a while and restores them. Two runs at once would restore each other's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from threading import RLock
from typing import ParamSpec, TypeVar

_ALL = RLock()  # a run may load a model and sample from it
_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")


def in_turn(act: Callable[_Given, _Made]) -> Callable[_Given, _Made]:
    """Decorate a function so that it waits until no other thread is inside such a function."""

    @wraps(act)
    def wait(*given: _Given.args, **named: _Given.kwargs) -> _Made:
        with _ALL:
            return act(*given, **named)

    return wait
