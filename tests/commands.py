"""Run the command line in this process, and tables to run it on."""

from dataclasses import dataclass
from pathlib import Path

import cli

MARKER = "Xyzzy-7731"  # stands in every private text: it must never be shown
QUICK = ("--steps", "3", "--max-tokens", "12", "--quiet")


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


def run_twinset(capsys, *arguments) -> Outcome:
    capsys.readouterr()
    code = cli.main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return Outcome(code, out, err)


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file and folder below, hidden ones too, with size and time of change."""
    paths = sorted(folder.rglob("*"))
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns)
        if path.is_file()
        else (0, 0)
        for path in paths
    }


def texts(n: int = 60) -> list[str]:
    return [f"The {('plot', 'story', 'film')[i % 3]} of {MARKER} was number {i}." for i in range(n)]
