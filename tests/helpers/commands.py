"""Run the command line in this process, and tables to run it on."""

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

import cli
from twinset.progress import Progress

ROOT = Path(cli.__file__).parent

MARKER = "Xyzzy-7731"  # stands in every private text: it must never be shown
QUICK = ("--steps", "3", "--max-tokens", "12", "--quiet")


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


class Heard(Progress):
    """Keeps what a run shows its owner."""

    def __init__(self) -> None:
        self.lines, self.phases, self.steps, self.counted = [], [], [], []

    def say(self, line):
        self.lines.append(line)

    def warn(self, line):
        self.lines.append(f"WARNING: {line}")

    @property
    def warnings(self):
        return [line for line in self.lines if line.startswith("WARNING: ")]

    def expect(self, phases):
        self.phases = [name for name, _ in phases]  # how long they take is timed

    def step(self, report, plan):
        self.steps.append(report.step)  # all other figures of a step are private

    def count(self, what, done, total, share=None, more=""):
        self.counted.append((what, done, total, share))


def call(*arguments) -> Outcome:
    """Run the command line in this process."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = cli.main([str(argument) for argument in arguments])
    return Outcome(code, out.getvalue(), err.getvalue())


def run_python(*words, timeout: float = 300, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run this checkout in a process of its own, which is killed at the timeout in seconds."""
    return subprocess.run(
        [sys.executable, *map(str, words)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | variables,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


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


GOOD = pd.DataFrame({"review": texts(), "label": ["pos", "neg"] * 30})
OWNED = GOOD.assign(who=[f"Person {i % 20}" for i in range(60)])
COLUMNS = ("--text", "review", "--attribute", "label")


def good_table_in(folder: Path, monkeypatch) -> Path:
    """Make the folder the working folder and lay one good table, t.csv, into it."""
    monkeypatch.chdir(folder)
    GOOD.to_csv("t.csv", index=False)
    return folder


def older_run() -> None:
    """A finished run in the folder `older`."""
    for part in ("share", "model", "internal"):
        Path("older", part).mkdir(parents=True)
    Path("older", "share", "privacy.json").write_text("{}")


def arguments(base, given, command="generate") -> list:
    """A command on a table: (data, flags …), with columns, base and few steps added."""
    data, *rest = given
    columns = [
        a for flag, name in (COLUMNS[:2], COLUMNS[2:]) if flag not in rest for a in (flag, name)
    ]
    where = [] if "--base-model" in rest else ["--base-model", base]
    return [command, data, *columns, *where, *QUICK, *rest]


def fitted_scale(folder: Path, base) -> Path:
    """Fit constants of privacy weights to public texts, and return their file."""
    sentences = [f"A public sentence, number {i}, of words{' more' * (i % 5)}." for i in range(40)]
    public, scale = folder / "public.csv", folder / "scale.json"
    pd.DataFrame({"text": sentences}).to_csv(public, index=False)
    fit = ("weight-scale", public, "--base-model", base, "--output", scale, "--quiet")
    assert cli.main([str(argument) for argument in fit]) == 0
    return scale
