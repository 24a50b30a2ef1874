"""List the functions that a record passes on its way to the twin: `python -m docs.make_trip`.

Runs `generate` twice, with the same noise, on tables that differ in one record's text alone. A
function is on the way where it is passed, passes on, is given or returns text, token ids or
floating-point tensors that are not the same in both runs; the last of these up to the first step's
noisy sum. Behind it the record is in the weights alone. From then on the two runs differ in the
seed of sampling, so that what differs there, as text or token ids, is rows of the twin.

What does not count: scalars and hashes; positions and lengths; random bits, of which an undecided
rounding takes some more; and an object that has the record only in another object, as `Prepared`
has it in its `records`: whoever takes it out and passes it to a function is counted for that. The
methods of an object count by what it has itself, and what calls them does not. Nor do tensors count
behind the training: they hold logits and one next token of many rows, and no row.

The list replaces the one between the two comments in docs/architecture.md.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import torch

import twinset
from twinset.config.options import run_config
from twinset.run.generate import generate
from twinset.run.request import OutputPaths, Source
from twinset.progress import Silent
from twinset.sampling.allocation import RowsRequest

PAGE = Path(__file__).with_name("architecture.md")
BEGIN, END = "<!-- trip: made by `make docs` -->\n", "<!-- trip: end -->\n"
HOME = f"{Path(twinset.__file__).parent}/"
LOOP = ("training/loop.py", "train")
STEP = ("training/loop.py", "PrivateOptimizer.step")
BASE = "gpt2-mini"
OPTIONS = {
    "steps": 2,
    "batch_size": 60,
    "max_tokens": 16,
    "epsilon": 50,
    "teacher_share": 0,
    "insecure_noise_seed": 1,
}
TEXTS = "It was a good and bad film.", "It was a bad and good film."  # of as many tokens
PHASES = {
    "table": "From the table to tokens",
    "loop": "In the training loop",
    "twin": "From the model to the twin",
}
OBJECTS = 1  # within one another that are looked into; lists and the like are none
FIRST_TOKEN = 64  # whole numbers that are all below are positions or lengths: rows are shorter
MANY = 1000  # values of a list
NAMED = 3  # functions of a file that the page names
NUMBER = re.compile(r"\b[0-9a-f]{16,}\b|\d+")  # hashes too

Seen = dict[tuple[str, str], dict[str, set[int]]]  # phase and file → function → values


@dataclass
class Trip:
    """What each function of one run held: it was passed it, passed it on, was given or returned it.

    Attributes:
        phase: of the run: a key of `PHASES`; "" from the first noisy sum to the end of training.
        seen: values by function, in the order of the first visit.
        loop: the frame of the training loop, while it is entered.
    """

    phase: str = "table"
    seen: Seen = field(default_factory=dict)
    loop: FrameType | None = None

    def visit(self, frame: FrameType, event: str, value: Any) -> Any:
        """Look at one call or return of twinset; for `sys.settrace`."""
        code = frame.f_code
        if not code.co_filename.startswith(HOME):
            return None
        frame.f_trace_lines = False
        place = code.co_filename.removeprefix(HOME), code.co_qualname.partition(".<locals>")[0]
        if event == "call" and place == LOOP:
            self.phase, self.loop = "loop", frame
        if event == "return" and place == STEP:
            self.phase = ""
        if event == "return" and frame is self.loop:
            self.phase = "twin"
        if self.phase:
            own, passed = self._values(frame, event, value)
            self._note(code, own | passed)
            if frame.f_back and frame.f_back.f_code.co_filename.startswith(HOME):
                self._note(frame.f_back.f_code, passed)
        return self.visit

    def _note(self, code: CodeType, values: set[int]) -> None:
        """Add values that a function held; what stands inside of it is part of it."""
        file, name = code.co_filename.removeprefix(HOME), code.co_qualname.partition(".<locals>")[0]
        self.seen.setdefault((self.phase, file), {}).setdefault(name, set()).update(values)

    def values(self, place: tuple[str, str], name: str) -> set[int]:
        """Return what a function held."""
        return self.seen.get(place, {}).get(name, set())

    def _values(self, frame: FrameType, event: str, value: Any) -> tuple[set[int], set[int]]:
        """Return numbers of what a method's object has, and of what is passed or returned."""
        if event != "call":
            return set(), set(self.values_in(value)) if event == "return" else set()
        code = frame.f_code
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        passed = [frame.f_locals.get(name) for name in names if name != "self"]
        return set(self.values_in(frame.f_locals.get("self"))), set(self.values_in(passed))

    def values_in(self, value: Any, objects: int = OBJECTS) -> Iterator[int]:
        """Yield a number for each text, each row of whole numbers and each tensor in a value.

        Args:
            value: any.
            objects: of twinset, one within another, that are looked into.
        """
        match value:
            case None | bool() | int() | float() | type() | torch.nn.Module():
                return
            case str() | bytes() | bytearray():
                text = value if isinstance(value, str) else bytes(value).decode(errors="replace")
                yield hash(NUMBER.sub("", text))
            case torch.Tensor():
                yield from self.values_in(value.detach().float().numpy() if value.ndim else None)
            case np.ndarray():
                yield from self._in_array(value)
            case pd.DataFrame() | pd.Series():
                yield hash(value.to_csv())
            case list() | tuple() if value and all(type(v) is int for v in value[:MANY]):
                yield from self._in_array(np.array(value))
            case _:
                left = objects if isinstance(value, dict | Sequence) else objects - 1
                for part in _parts(value) if left >= 0 else ():
                    yield from self.values_in(part, left)

    def _in_array(self, value: np.ndarray) -> Iterator[int]:
        """Yield a number for what may be token ids (signed) or, in the loop, computed from them."""
        is_tokens = value.dtype.kind == "i" and value.max(initial=0) >= FIRST_TOKEN
        if is_tokens or (value.dtype.kind == "f" and self.phase == "loop"):
            yield hash(value.tobytes())


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


def trace(text: str, seed: int, base: str = BASE) -> Trip:
    """Make a twin of a small table whose first record says `text`; `seed` is the sampler's.

    The working folder is to be empty, and of the same name whenever trips are compared.

    Raises:
        RuntimeError: a phase was not seen.
    """
    texts = [text, *(f"It was a film of number {i}." for i in range(59))]
    pd.DataFrame({"text": texts, "label": [0, 1] * 30}).to_csv("table.csv", index=False)
    config = run_config({**OPTIONS, "base_model": base})
    config = replace(config, sampling=replace(config.sampling, seed=seed))
    source, paths = Source("table.csv", "text", ("label",)), OutputPaths(Path("run"))
    trip = Trip()
    with _traced(trip):
        generate(source, config, RowsRequest(12), paths, Silent())
    if not set(PHASES) <= {phase for phase, _ in trip.seen}:
        raise RuntimeError("the run was not followed to its end; see LOOP and STEP")
    return trip


@contextmanager
def _traced(trip: Trip) -> Iterator[None]:
    """Trace, with fresh memory filled: what it held before would differ by chance."""
    before, strict = sys.gettrace(), torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills tensors, too
    sys.settrace(trip.visit)
    try:
        with patch.object(np, "empty", np.zeros):
            yield
    finally:
        sys.settrace(before)
        torch.use_deterministic_algorithms(strict)


@dataclass(frozen=True)
class Way:
    """What a record passes, and what a row of the twin passes.

    Args:
        functions: by phase and file, in the order of the first visit.
    """

    functions: dict[tuple[str, str], list[str]]

    @classmethod
    def between(cls, trip: Trip, other_text: Trip, other_seed: Trip, again: Trip) -> Way:
        """Compare a run with one on another text, and with one that draws other rows.

        What counts must be there again: up to the noisy sum with another seed, and behind the
        training where the run is repeated. What memory held before, what is drawn anew in each run,
        and what is read once a process, as a card's template is, is no record and no row.
        """
        found: dict[tuple[str, str], list[str]] = {}
        for place, functions in trip.seen.items():
            for name, values in functions.items():
                seed, text = other_seed.values(place, name), other_text.values(place, name)
                rows = (values & again.values(place, name)) - seed
                if rows if place[0] == "twin" else (values & seed) - text:
                    found.setdefault(place, []).append(name)
        return cls(found)

    @property
    def files(self) -> set[str]:
        """All files that a record, or a row of the twin, passed."""
        return {file for _, file in self.functions}

    @property
    def folders(self) -> set[str]:
        """The folders of these files."""
        return {str(Path(file).parent) for file in self.files}


def trips(base: str = BASE) -> Iterator[Trip]:
    """Yield what `Way.between` compares, and the first trip once more."""
    with TemporaryDirectory() as folder:
        for text, seed in ((TEXTS[0], 0), (TEXTS[1], 0), (TEXTS[0], 1), (TEXTS[0], 0)):
            place = Path(folder, "table")
            place.mkdir()
            with chdir(place):
                yield trace(text, seed, base)
            shutil.rmtree(place)


def listing(way: Way) -> str:
    """Return the list in Markdown, with the counts."""
    lines = [f"**{len(way.files)} files in {len(way.folders)} folders of `twinset/`.**", ""]
    for phase, title in PHASES.items():
        lines += [f"### {title}", "", "| file | functions |", "|---|---|"]
        lines += [
            f"| [{file}](../twinset/{file}) | {_named(functions)} |"
            for (where, file), functions in way.functions.items()
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
    PAGE.write_text(f"{head}\n{listing(Way.between(*trips()))}\n{tail}", "utf-8")
