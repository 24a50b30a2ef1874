"""List the functions that a record passes on its way to the twin: `python -m docs.make_trip`.

Runs `twinset generate` on a made-up table whose texts hold a mark, and notes each function of
twinset that is passed the mark, as text or as tokens, or, within the training loop, a tensor of
floating-point numbers, which is computed from records there. After the loop the record is in the
weights alone; what is noted then is passed the rows of the twin. The list replaces the one between
the two comments in docs/architecture.md.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import numpy as np
import pandas as pd
import torch

import cli
import twinset
from twinset.models.base_model import load_base

PAGE = Path(__file__).with_name("architecture.md")
BEGIN, END = "<!-- trip: made by `make docs` -->\n", "<!-- trip: end -->\n"
HOME = f"{Path(twinset.__file__).parent}/"
LOOP = ("training/loop.py", "train")
BASE, MARK = "gpt2-mini", "Zanzibar quixotic"
RUN = """generate table.csv --text text --attribute label --steps 2 --batch-size 16
    --max-tokens 16 --rows 12 --quiet --run run --output twin.csv"""
PHASES = {
    "table": "From the table to tokens",
    "loop": "In the training loop",
    "twin": "From the model to the twin",
}
DEPTH = {"table": 4, "loop": 4, "twin": 1}  # of objects in objects that are looked into
LONGEST = 10_000  # numbers in a row that are looked at
MANY = 100  # values of a list
NAMED = 3  # functions of a file that the page names


@dataclass
class Trip:
    """Where records were seen.

    Attributes:
        key: tokens of the mark.
        phase: of the run: a key of `PHASES`.
        seen: phase and file → functions, in the order of the first visit.
        loop: the frame of the training loop, while it is entered.
    """

    key: np.ndarray
    phase: str = "table"
    seen: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    loop: FrameType | None = None

    @property
    def files(self) -> set[str]:
        """All files that a record, or a row of the twin, passed."""
        return {file for _, file in self.seen}

    @property
    def folders(self) -> set[str]:
        """The folders of these files."""
        return {str(Path(file).parent) for file in self.files}

    def visit(self, frame: FrameType, event: str, value: Any) -> Any:
        """Look at one call or return of twinset; for `sys.settrace`."""
        code = frame.f_code
        if not code.co_filename.startswith(HOME):
            return None
        frame.f_trace_lines = False
        file = code.co_filename.removeprefix(HOME)
        if event == "call" and (file, code.co_name) == LOOP:
            self.phase, self.loop = "loop", frame
        if event == "return" and frame is self.loop:
            self.phase = "twin"
        if self._is_on_the_way(frame, event, value):
            functions = self.seen.setdefault((self.phase, file), [])
            name = code.co_qualname.partition(".<locals>")[0]
            functions += [name] if name not in functions else []
        return self.visit

    def _is_on_the_way(self, frame: FrameType, event: str, value: Any) -> bool:
        """Tell whether a function was passed a record, or read one that it returns."""
        if event == "call":
            code = frame.f_code
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            return any(self.holds(frame.f_locals.get(name)) for name in names)
        return event == "return" and self.phase != "loop" and self.holds(value)

    def holds(self, value: Any, depth: int = 0) -> bool:
        """Tell whether a value holds text or tokens of a record, or follows from them."""
        match value:
            case None | bool() | int() | float() | type() | torch.nn.Module():
                return False
            case str():
                return MARK in value
            case torch.Tensor():
                whole = value.dtype in (torch.int32, torch.int64)
                return self._is_computed(value) or (whole and self._has_key(value.numpy()))
            case np.ndarray():
                return value.dtype.kind in "iu" and self._has_key(value)
            case pd.DataFrame():
                return self.phase == "twin" or self.holds([*value.to_numpy().flat], depth)
            case pd.Series():
                return self.holds([*value], depth)
            case list() | tuple() if value and all(type(v) is int for v in value[:MANY]):
                return self._has_key(np.array(value[:MANY]))
        return depth < DEPTH[self.phase] and any(self.holds(v, depth + 1) for v in _parts(value))

    def _is_computed(self, value: torch.Tensor) -> bool:
        if value.ndim == 0:
            return False
        return self.phase == "twin" or (self.phase == "loop" and value.is_floating_point())

    def _has_key(self, numbers: np.ndarray) -> bool:
        """Tell whether the tokens of the mark stand somewhere in a row."""
        row, length = numbers.reshape(-1)[:LONGEST], len(self.key)
        if len(row) < length:
            return False
        windows = np.lib.stride_tricks.sliding_window_view(row, length)
        return bool((windows == self.key).all(1).any())


def _parts(value: Any) -> Iterator[Any]:
    """Yield what a container or an object of twinset consists of."""
    module = type(value).__module__
    if isinstance(value, dict):
        yield from islice(value.values(), MANY)
    elif isinstance(value, list | tuple):
        yield from value[:MANY]
    elif module.startswith("pyarrow") and hasattr(value, "to_pylist"):
        yield str(value.to_pylist())
    elif module.startswith("twinset"):
        slots = getattr(type(value), "__slots__", ())
        yield from getattr(
            value, "__dict__", {name: getattr(value, name) for name in slots}
        ).values()


def trace(base: str = BASE) -> Trip:
    """Make a twin of a small table, and return what its records passed.

    Raises:
        RuntimeError: the run failed, or a phase was not seen.
    """
    tokens = load_base(base).tokenizer(MARK)["input_ids"]
    trip = Trip(np.array(tokens[1:-1]))  # the outer ones may join with their neighbours
    rows = [(f"It was {MARK} and {('good', 'bad')[i % 2]}, {i}.", i % 2) for i in range(60)]
    with TemporaryDirectory() as folder, chdir(folder), redirect_stdout(StringIO()):
        pd.DataFrame(rows, columns=["text", "label"]).to_csv("table.csv", index=False)
        with _traced(trip):
            code = cli.main([*RUN.split(), "--base-model", base])
    if code or set(PHASES) != {phase for phase, _ in trip.seen}:
        raise RuntimeError(f"the run was not followed to its end (exit code {code}); see LOOP")
    return trip


@contextmanager
def _traced(trip: Trip) -> Iterator[None]:
    before = sys.gettrace()
    sys.settrace(trip.visit)
    try:
        yield
    finally:
        sys.settrace(before)


def listing(trip: Trip) -> str:
    """Return the list in Markdown, with the counts."""
    lines = [f"**{len(trip.files)} files in {len(trip.folders)} folders of `twinset/`.**", ""]
    for phase, title in PHASES.items():
        lines += [f"### {title}", "", "| file | functions |", "|---|---|"]
        lines += [
            f"| [{file}](../twinset/{file}) | {_named(functions)} |"
            for (where, file), functions in trip.seen.items()
            if where == phase
        ]
        lines.append("")
    return "\n".join(lines)


def _named(functions: list[str]) -> str:
    ordered = sorted(functions, key=lambda name: name.rpartition(".")[2].startswith("_"))
    shown = [f"`{name}`" for name in ordered[:NAMED]]
    return ", ".join([*shown, *(["…"] if len(ordered) > NAMED else [])])


def parts_of(page: str) -> tuple[str, str, str]:
    """Return what stands before the list in the page, the list, and what follows."""
    before, rest = page.split(BEGIN)
    inside, after = rest.split(END)
    return before + BEGIN, inside, END + after


def counts(text: str) -> tuple[int, int]:
    """Return how many files and folders a list says there are.

    >>> counts("**3 files in 2 folders of `twinset/`.**")
    (3, 2)
    """
    found = re.search(r"\*\*(\d+) files in (\d+) folders", text)
    assert found is not None
    return int(found[1]), int(found[2])


if __name__ == "__main__":
    head, _, tail = parts_of(PAGE.read_text("utf-8"))
    PAGE.write_text(f"{head}\n{listing(trace())}\n{tail}", "utf-8")
