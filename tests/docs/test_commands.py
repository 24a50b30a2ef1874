"""Every command, snippet and example of README and docs runs, unless it says what it needs."""

import gzip
import re
import runpy
from importlib.util import find_spec

import pytest
from typer.main import get_command

import cli
import twinset
from tests.helpers.commands import run_twinset
from tests.helpers.documents import (
    PAGES,
    PYTHON,
    ROOT,
    Block,
    blocks,
    commands,
    mentions,
)
from tests.helpers.evaluated import reviews, without_downloads
from twinset.release.verify import verify

ALL = [command for page in PAGES for command in commands(page)]
SNIPPETS = [block for page in PAGES for block in blocks(page) if block.language == PYTHON]
LITTLE = {"steps": 2, "batch_size": 8, "max_tokens": 12}
TRAINING = "--steps 2 --batch-size 8 --max-tokens 12".split()
TINY_SHAPE = "--vocabulary 300 --layers 1 --width 16 --heads 2 --context 64 --batch-size 8"
# What makes a command small enough; it is added to the command as it stands on the page.
SMALLER = {
    "plan": TRAINING,
    "generate": [*TRAINING, "--rows", "12"],
    "evaluate": ["--classifier", "tfidf"],
    "pretrain": [*TINY_SHAPE.split(), "--micro-batch", "8"],
    "weight-scale": ["--rows", "20", "--max-tokens", "12"],
    "audit canaries": [*TRAINING, *"--rows 8 --each 1 --coins 4 --copies 0,1".split()],
    "audit mechanism": ["--trials", "100"],
}
WITH_BASE = ("plan", "generate", "weight-scale", "audit canaries")


def twinset_arguments(words) -> list[str] | None:
    """Return what twinset is called with; None where it is not called. A launcher may call it."""
    for call in (["twinset"], ["-m", "twinset"], ["cli.py"]):
        for at in range(len(words)):
            if list(words[at : at + len(call)]) == call:
                return [*words[at + len(call) :]]
    return None


def called(arguments, **settings):
    """Return the name of the command that is called, and the command; nothing is run.

    With `resilient_parsing` neither required arguments nor values are checked.
    """
    command, names = get_command(cli.app), []
    context = command.make_context("twinset", [*arguments], **settings)
    while hasattr(command, "commands"):
        rest = [*context._protected_args, *context.args]
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context, **settings)
        names.append(name)
    return " ".join(names), command


def exists(words) -> bool:
    """Tell whether a command that is not twinset's is there, as far as this checkout can say."""
    if words[:2] == ("python", "-m"):
        return find_spec(words[2]) is not None
    if words[0] == "make":
        return f"\n{words[1]}:" in (ROOT / "Makefile").read_text("utf-8")
    return words[0] in ("pip", "zcat")


@pytest.mark.parametrize("command", ALL, ids=str)
def test_a_command_parses_and_says_what_it_needs_if_it_is_not_run(command):
    arguments = twinset_arguments(command.words)
    assert exists(command.words) if arguments is None else called(arguments)
    assert command.needs or command.words[0] == "twinset"


@pytest.mark.parametrize(
    "call",
    [
        "plan t.csv --no-such",
        "verify",
        "no-such",
    ],
)
def test_a_wrong_command_is_refused(call):
    with pytest.raises(Exception, match="(?i)no such|missing|valid"):
        called(call.split())


@pytest.mark.parametrize("page", [page for page in PAGES if page != "docs/cli.md"])
def test_commands_in_sentences_exist(page):  # Typer writes that page from the commands
    for words in mentions(page):
        flags = {word.partition("=")[0] for word in words if word.startswith("--")}
        _, command = called([w for w in words if w not in flags], resilient_parsing=True)
        known = {flag for parameter in command.params for flag in parameter.opts}
        assert flags <= {*known, "--help"}, words


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with the tables and texts that the pages name."""
    monkeypatch.chdir(tmp_path)
    without_downloads(monkeypatch)
    for name, rows, seed in (("reviews", 80, 0), ("held-out", 40, 1)):
        table = reviews(rows, seed).rename(columns={"text": "review"})
        table.assign(name="Ann 7").to_csv(f"{name}.csv", index=False)
    public = reviews(400, 2)
    public.to_csv("public.csv", index=False)
    (tmp_path / "public").mkdir()
    (tmp_path / "public" / "some.txt").write_text("\n\n".join(public.text[:200]))
    with gzip.open("notes.txt.gz", "wt") as file:
        file.write("\n\n".join(public.text[200:]))
    return tmp_path


# Tests of these commands' own rooms run them each time. Here they run in the slow tests.
LONG = ("evaluate", "audit release")
RUN = [page for page in PAGES if any(not command.needs for command in commands(page))]


@pytest.mark.parametrize(
    ("page", "all_of_them"),
    [("README.md", False), *(pytest.param(page, True, marks=pytest.mark.slow) for page in RUN)],
)
def test_commands_run(page, all_of_them, place, tiny_base, capsys):
    for command in commands(page):
        if command.needs:
            continue
        name = called(command.words[1:])[0]
        if name in LONG and not all_of_them:
            continue
        arguments = [*command.words[1:], *SMALLER.get(name, [])]
        if name in WITH_BASE and "--base-model" not in arguments:
            arguments += ["--base-model", str(tiny_base)]
        outcome = run_twinset(capsys, *arguments)
        assert outcome.code == 0, f"{command}\n{outcome.err}"


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda block: f"{block.page}:{block.line}")
def test_python_runs(snippet: Block, place, tiny_base, monkeypatch, capsys):
    class Small(twinset.Twinset):
        def __init__(self, base_model=str(tiny_base), **options):
            super().__init__(base_model, **{**LITTLE, **options})

    monkeypatch.setattr(twinset, "Twinset", Small, raising=False)
    text = re.sub(r"\bsample\(\d+\)", "sample(8)", snippet.text)
    frame = reviews(80, 0).rename(columns={"text": "review"})
    exec(compile(text, snippet.page, "exec"), {"frame": frame})
    assert "differentially private" in capsys.readouterr().out


EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.py"))
# numbers in the examples, and smaller ones that take their place
FEWER = {
    r"make_dialogues\(400\)": "make_dialogues(80)",
    r"made_up\(600": "made_up(80",
    r"made_up\(200": "made_up(40",
    r"rows=60": "rows=12",
    r"sample\(\d+\)": "sample(12)",
    r"epsilon=8": "steps=2, batch_size=8, max_redraws=1000, epsilon=50",
}


@pytest.mark.slow  # the snippets above take the same ways each time
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs(path, tiny_base, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    without_downloads(monkeypatch)
    source = path.read_text("utf-8").replace('gpt2-mini"', f'{tiny_base}"', 2)
    for long, short in FEWER.items():
        source = re.sub(long, short, source)
    (tmp_path / path.name).write_text(source)
    runpy.run_path(str(tmp_path / path.name))
    assert "differentially private" in capsys.readouterr().out
    assert verify(next(tmp_path.rglob("privacy.json")).parent).rows == 12


def test_every_example_is_in_their_list():
    page = (ROOT / "docs" / "examples" / "README.md").read_text("utf-8")
    assert {path.name for path in EXAMPLES} == set(re.findall(r"\]\((\w+\.py)\)", page))
    assert (ROOT / "docs" / "README.md").read_text("utf-8").count("(examples/README.md)") == 1
