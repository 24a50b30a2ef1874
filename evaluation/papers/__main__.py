"""`python -m evaluation.papers NAME …`: the same as `python -m evaluation.papers.NAME …`."""

from __future__ import annotations

import runpy
import sys

import typer

NAMES = (
    "adp",
    "anadp",
    "anadp_one_set",
    "kerrigan",
    "kerrigan_large_batches",
    "mattern",
    "mattern_few",
    "sdp",
)

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in NAMES:
        typer.echo(f"usage: python -m evaluation.papers {{{','.join(NAMES)}}} [--help]", err=True)
        raise SystemExit(2)
    runpy.run_module(f"evaluation.papers.{sys.argv.pop(1)}", run_name="__main__", alter_sys=True)
