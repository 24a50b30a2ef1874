"""docs/cli.md is what the command line says of itself."""

import re

import pytest

from docs import make_cli
from tests.helpers.commands import run_twinset
from twinset.config import options


def test_the_page_is_up_to_date():
    page = make_cli.PAGE.read_text("utf-8")
    assert page == make_cli.page(), "the command line has changed: run `make docs`"


def test_drift_is_seen(monkeypatch):
    known = make_cli.page()
    more = (*options.SEED, options.Option("flavour", str, "New."))
    monkeypatch.setitem(options.PANELS, "Repeating", more)
    assert make_cli.page() != known


@pytest.mark.parametrize(
    "row",
    [
        "| `--epsilon` | NUMBER | a number from 0.001 to 1e+06 | `8.0` | ε of all that is",
        "| `--rows-per-label` | [LABEL=]N, repeatable | 500 for each",
        "| `--members` | PATH |  | required | The private table",
        "| `--digits` | INTEGER | 1 to 18 | `3` | Of a secret",
        "| `--json` | One JSON object on stdout.",
        "| `CORPUS...` | required | Public text",
    ],
)
def test_rows(row):
    assert f"\n{row}" in make_cli.page()


@pytest.mark.parametrize("command", ["generate", "pretrain", "evaluate", "audit canaries"])
def test_every_flag_of_the_help_is_on_the_page(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "200")  # nothing is cut
    help_text = run_twinset(capsys, *command.split(), "--help").out
    flags = set(re.findall(r"(?m)^│\W*(--[a-z][\w-]+)", help_text)) - {"--help"}
    assert len(flags) > 5
    assert flags <= set(re.findall(r"`(--[\w-]+)`", make_cli.page()))
