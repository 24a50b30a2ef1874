"""Every command, snippet, example and link of README and docs works, or says what it needs."""

import gzip
import re
import runpy
import shlex
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from typer.main import get_command

import cli
import twinset
from tests.helpers.commands import ROOT, run_twinset
from tests.helpers.evaluated import reviews, without_downloads
from twinset.release.verify import verify

PAGES = ("README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))
OTHERS = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
NEEDS = re.compile(r"(?:#|<!--)\s*needs\b:?\s*([^>]*)")
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
# Tests of these commands' own rooms run them each time. Here they run in the slow tests.
LONG = ("evaluate", "audit release")


@cache
def tokens_of(path: Path) -> list:
    return MarkdownIt("commonmark").enable("table").parse(path.read_text("utf-8"))


def blocks(page: str, *languages: str) -> list[tuple[str, str | None]]:
    """Return the code blocks of a page, and what a comment before each says that it needs."""
    found, needs = [], None
    for token in tokens_of(ROOT / page):
        if token.type in ("code_block", "fence") and token.info.strip() in languages:
            found.append((token.content, needs))
        if not token.type.endswith("_open"):
            mark = NEEDS.match(token.content) if token.type == "html_block" else None
            needs = mark[1].strip(" -\n") if mark else None
    return found


def commands(page: str) -> list[tuple[list[str], str | None]]:
    """Return the words of each line of the shell blocks, without comment, and what it needs."""
    found = []
    for text, needs in blocks(page, "", "sh"):
        for line in text.replace("\\\n", "").splitlines():
            mark = NEEDS.search(line)
            found.append((shlex.split(line, comments=True), mark[1].strip() if mark else needs))
    return [(words, needs) for words, needs in found if words]


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


@pytest.mark.parametrize("page", PAGES)
def test_commands_parse_and_say_what_they_need_if_they_are_not_run(page):
    for words, needs in commands(page):
        assert needs or words[0] == "twinset", words
        # twinset may be called by a launcher; a bar may stand before it
        calls = (["twinset"], ["-m", "twinset"], ["cli.py"])
        ends = [at + len(c) for c in calls for at in range(len(words)) if words[at:][: len(c)] == c]
        if ends:
            called(words[ends[0] :])
        elif words[:2] == ["python", "-m"]:
            assert find_spec(words[2]), words
        elif words[0] == "make":
            assert f"\n{words[1]}:" in (ROOT / "Makefile").read_text("utf-8")
        else:
            assert words[0] in ("pip", "zcat"), words


@pytest.mark.parametrize("call", ["plan t.csv --no-such", "verify", "no-such"])
def test_a_wrong_command_is_refused(call):
    with pytest.raises(Exception, match="(?i)no such|missing|valid"):
        called(call.split())


@pytest.mark.parametrize("page", [page for page in PAGES if page != "docs/cli.md"])
def test_commands_in_sentences_exist(page):  # Typer writes that page from the commands
    text = re.sub(r"(?ms)^```.*?^```|^    .*?$", "", (ROOT / page).read_text("utf-8"))
    for words in map(shlex.split, re.findall(r"`twinset ([a-z][^`|]*)`", text)):
        flags = {word.partition("=")[0] for word in words if word.startswith("--")}
        _, command = called([w for w in words if w not in flags], resilient_parsing=True)
        known = {flag for parameter in command.params for flag in parameter.opts}
        assert flags <= {*known, "--help"}, words


# -- what runs -------------------------------------------------------------------------------------


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


RUN = [page for page in PAGES if any(not needs for _, needs in commands(page))]


@pytest.mark.parametrize(
    ("page", "all_of_them"),
    [("README.md", False), *(pytest.param(page, True, marks=pytest.mark.slow) for page in RUN)],
)
def test_commands_run(page, all_of_them, place, tiny_base, capsys, two_accountants):
    for words in [words for words, needs in commands(page) if not needs]:
        name = called(words[1:])[0]
        if name in LONG and not all_of_them:
            continue
        arguments = [*words[1:], *SMALLER.get(name, [])]
        if name in WITH_BASE and "--base-model" not in arguments:
            arguments += ["--base-model", str(tiny_base)]
        outcome = run_twinset(capsys, *arguments)
        assert outcome.code == 0, f"{words}\n{outcome.err}"


SNIPPETS = [(page, text) for page in PAGES for text, _ in blocks(page, "python")]


@pytest.mark.parametrize(("page", "text"), SNIPPETS, ids=[page for page, _ in SNIPPETS])
def test_python_runs(page, text, place, tiny_base, monkeypatch, capsys):
    class Small(twinset.Twinset):
        def __init__(self, base_model=str(tiny_base), **options):
            super().__init__(base_model=base_model, **{**LITTLE, **options})

    monkeypatch.setattr(twinset, "Twinset", Small, raising=False)
    text = re.sub(r"\bsample\(\d+\)", "sample(8)", text)
    frame = reviews(80, 0).rename(columns={"text": "review"})
    exec(compile(text, page, "exec"), {"frame": frame})
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


# -- links -----------------------------------------------------------------------------------------


def links(page: str) -> list[str]:
    inline = [child for token in tokens_of(ROOT / page) for child in token.children or ()]
    found = [child.attrs.get("href") or child.attrs.get("src") for child in inline]
    return [str(link) for link in found if link]


def is_broken(page: str, link: str) -> bool:
    """Tell whether a link of a page leads nowhere. GitHub makes an anchor of each heading."""
    target, _, anchor = link.partition("#")
    path = (ROOT / page).parent / target if target else ROOT / page
    if not anchor or not path.exists():
        return not path.exists()
    tokens = tokens_of(path)
    after = zip(tokens, tokens[1:], strict=False)
    titles = [title.content.lower() for token, title in after if token.type == "heading_open"]
    return anchor not in {re.sub(r"[^\w\- ]", "", t).replace(" ", "-") for t in titles}


@pytest.mark.parametrize("page", [*PAGES, *OTHERS])
def test_links_lead_somewhere(page):
    assert [e for e in links(page) if "://" not in e and is_broken(page, e)] == []


@pytest.mark.parametrize("link", ["docs/none.md", "docs/cli.md#none", "#none"])
def test_a_broken_link_is_found(link):
    assert is_broken("README.md", link)
