"""Run a paper's experiment at its command line, and what any must do that is stopped once."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer import Typer
from typer.testing import CliRunner

from evaluation.papers.verdict import Word
from twinset.errors import InputError


@dataclass(frozen=True)
class Finished:
    """An experiment's page and JSON, how many rows a stop left, and calls from first to last."""

    page: str
    found: dict[str, Any]
    before: int
    calls: int


def run(app: Typer, *options: object) -> str:
    result = CliRunner().invoke(app, list(map(str, options)))
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def stopped_and_finished(
    app: Typer, options: Sequence[str], monkeypatch, owner: object, name: str, after: int
) -> Finished:
    """Interrupt `owner.name` once it was called `after` times, go on, and check what is left.

    The options are of size `tiny`, and the folder for results is the last.
    """
    calls = _Calls(getattr(owner, name), after)
    monkeypatch.setattr(owner, name, lambda *args: calls(*args))
    with pytest.raises(AssertionError):  # interrupted: exit code 130
        run(app, *options)
    out, calls.most = Path(options[-1]), None
    (path,) = out.glob("*.json")
    before = json.loads(path.read_text())["rows"]
    page = run(app, *options)
    found = json.loads(path.read_text())

    assert before and found["rows"][: len(before)] == before  # what was finished was kept
    assert path.with_suffix(".md").read_text() == page
    assert path.with_suffix(".png").stat().st_size > 10_000
    assert found["summary"]["word"] in list(Word)
    assert not list(out.glob(".*"))  # what was kept between rows is gone
    calls.most = calls.made
    assert run(app, *options) == page  # without one more call
    with pytest.raises(InputError, match="other settings"):
        run(app, *("cpu" if option == "tiny" else option for option in options))
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
