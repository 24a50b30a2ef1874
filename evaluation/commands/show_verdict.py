"""The verdict at the end of a run. It is shown to the owner, and a run does not fail by it."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING

from twinset.errors import InputError, Stopped

if TYPE_CHECKING:
    from twinset.run.request import Result, Source

WIDTH, INDENT = 80, 22  # of a terminal's lines, and of those that go on


def show_first_verdict(result: Result, source: Source, device: str) -> None:
    """Say on stderr what the twin is worth, by the rows held out."""
    from evaluation.first_verdict import first_verdict
    from twinset.commandline.console import Console

    assert result.run is not None
    with Console() as progress:
        try:
            lines = first_verdict(result.run, source, progress, device)
        except InputError as error:
            lines = [f"no verdict: {error}"]
        except (KeyboardInterrupt, Stopped):
            lines = [f"no verdict: stopped; the run is finished: {result.run}"]
        for line in lines:
            is_command = line.startswith(" ")
            progress.say(line if is_command else fill(line, WIDTH, subsequent_indent=" " * INDENT))
