"""Run a study as its command does, and check what any must do that is stopped and resumed."""

import contextlib
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from evaluation.papers.page import Prose
from evaluation.papers.study import HERE, Study, run
from twinset.errors import InputError


@dataclass(frozen=True)
class Finished:
    """A study's page and JSON, how many rows there were when it stopped, and the calls made."""

    page: str
    found: dict[str, Any]
    before: int
    calls: int


def run_study(study: type[Study], *options: object) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as output:
        run(study, list(map(str, options)))
    return output.getvalue()


def notes_of(name: str) -> str:
    """Return what was written by hand of how a paper was read, as one line."""
    return " ".join(Prose.read(HERE / f"{name}.md").template.split())


def stopped_and_finished(
    study: type[Study], options: Sequence[str], monkeypatch, owner: object, name: str, after: int
) -> Finished:
    """Interrupt `owner.name` once it was called `after` times, resume, and check what is left.

    The options are of size `tiny`, and the folder for results is the last.
    """
    calls = _Calls(getattr(owner, name), after)
    monkeypatch.setattr(owner, name, lambda *args: calls(*args))
    with pytest.raises(SystemExit, match="130"):
        run_study(study, *options)
    out, calls.most = Path(options[-1]), None
    path = out / f"{study.name}.json"
    before = json.loads(path.read_text())["rows"]
    page = run_study(study, *options)
    found = json.loads(path.read_text())

    assert before and found["rows"][: len(before)] == before  # what was finished was kept
    assert path.with_suffix(".md").read_text() == page
    assert path.with_suffix(".png").stat().st_size > 10_000
    assert "## Verdict" not in page  # it is about other rows
    assert not list(out.glob(".*"))  # the weight cache is gone
    assert str(out.parent) not in page.split("command")[0]
    assert [tuple(row["key"]) for row in found["rows"]] == list(study("tiny").keys(1))
    calls.most = calls.made
    assert run_study(study, *options) == page  # without one more call
    assert run_study(study, "--page", "--size", "tiny", "--output", out) == page
    with pytest.raises(InputError, match="other settings"):
        run_study(study, *("cpu" if option == "tiny" else option for option in options))
    return Finished(page, found, len(before), calls.made)


@dataclass
class _Calls:
    """A function that counts its calls, and interrupts the process after the last it may have."""

    real: Any
    most: int | None
    made: int = 0

    def __call__(self, *args: Any) -> Any:
        if self.made == self.most:
            raise KeyboardInterrupt
        self.made += 1
        return self.real(*args)
