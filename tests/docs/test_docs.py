"""Every command, snippet, example and link of README and docs works, or says what it needs."""

import gzip
import re
import shlex
import shutil
import subprocess
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from typer.main import get_command

import cli
import twinset
from tests.helpers.commands import ROOT, call
from tests.helpers.evaluated import quickly, reviews, without_downloads
from tests.helpers.handover import write_key
from twinset import api
from twinset.config import PHYSICAL_TOKENS
from twinset.models.device import GPU_TOKENS, ROWS_BYTES, ROWS_BYTES_GPU
from twinset.privacy.accounting import events
from twinset.privacy.statement import theorems
from twinset.privacy.statement.theorems import THEOREMS, Theorem

PAGES = (
    "README.md",
    "SECURITY.md",
    *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
)
OTHERS = ("CONTRIBUTING.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md")
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
    "finetune": TRAINING,
    "sample": ["--rows", "12"],
    "weight-scale": ["--rows", "20", "--max-tokens", "12"],
    "audit canaries": [*TRAINING, *"--rows 8 --each 1 --coins 4 --copies 0,1".split()],
    "audit mechanism": ["--trials", "100"],
}
WITH_BASE = ("plan", "generate", "finetune", "weight-scale", "audit canaries")


@dataclass(frozen=True)
class Example:
    """A code block of a page: commands, Python, or a file that the reader is to write."""

    kind: str  # "sh", "python", or the language of a file
    text: str
    file: str | None  # where the block has a title, its text is this file's
    needs: str | None  # what a comment before the block says that it needs

    @property
    def commands(self) -> list[tuple[list[str], str | None]]:
        """The words of each command, without comment, and what it needs."""
        found = []
        for line in self.text.replace("\\\n", "").splitlines() if self.kind == "sh" else ():
            mark = NEEDS.search(line)
            found.append(
                (shlex.split(line, comments=True), mark[1].strip() if mark else self.needs)
            )
        return [(words, needs) for words, needs in found if words]

    @property
    def runs(self) -> bool:
        """Whether all of it runs here, with nothing left out."""
        if self.kind == "sh":
            return all(not needs for _, needs in self.commands)
        return (self.kind == "python" or self.file is not None) and not self.needs


@cache
def tokens_of(path: Path) -> list:
    return MarkdownIt("commonmark").enable("table").parse(path.read_text("utf-8"))


@cache
def examples(page: str) -> list[Example]:
    """Return the code blocks of a page. `text` is output, and `console` is of cli.md."""
    found, needs = [], None
    for token in tokens_of(ROOT / page):
        kind = token.info.split()[0] if token.info else "sh"
        if token.type in ("code_block", "fence") and kind != "console":
            title = re.search('title="([^"]+)"', token.info)
            found.append(Example(kind, token.content, title and title[1], needs))
        if not token.type.endswith("_open"):
            mark = NEEDS.match(token.content) if token.type == "html_block" else None
            needs = mark[1].strip(" -\n") if mark else None
    return found


def commands(page: str) -> list[tuple[list[str], str | None]]:
    return [each for example in examples(page) for each in example.commands]


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
        ours = [at for at, word in enumerate(words) if word in ("twinset", "cli.py")]
        if ours and words[0] != "ssh-keygen":  # its signatures have our name
            called(words[ours[0] + 1 :])
        elif words[:2] == ["python", "-m"]:
            assert find_spec(words[2]), words
        elif words[0] == "make":
            assert f"\n{words[1]}:" in (ROOT / "Makefile").read_text("utf-8")
        else:
            assert words[0] in ("pip", "zcat", "ssh-keygen"), words


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

RUN = "runs/reviews"


def write_tables(folder: Path) -> None:
    """Write the tables and texts that the pages name."""
    for name, rows, seed in (("reviews", 80, 0), ("held-out", 40, 1)):
        table = reviews(rows, seed).rename(columns={"text": "review"}).assign(name="Ann 7")
        table.to_csv(folder / f"{name}.csv", index=False)
    more = {"patient": [f"p{n // 2}" for n in range(rows)], "rating": [n % 5 for n in range(rows)]}
    table.assign(**more).to_csv(folder / "visits.csv", index=False)
    public = reviews(400, 2)
    public.to_csv(folder / "public.csv", index=False)
    (folder / "public").mkdir()
    (folder / "public" / "some.txt").write_text("\n\n".join(public.text[:200]))
    write_key(folder / "my_key")
    with gzip.open(folder / "notes.txt.gz", "wt") as file:
        file.write("\n\n".join(public.text[200:]))


@pytest.fixture(scope="session")
def finished(tmp_path_factory, tiny_base) -> Path:
    """A folder with the tables, a run and its twin, as somebody has it who read the quickstart."""
    folder = tmp_path_factory.mktemp("finished")
    write_tables(folder)
    columns = "reviews.csv --text review --attribute sentiment --hold-out 0.2".split()
    made = ["--run", RUN, "--output", "twin.csv", "--base-model", str(tiny_base), "--rows", "40"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        outcome = call("generate", *columns, *made, *TRAINING, "--quiet")
    assert outcome.code == 0, outcome.err
    return folder


def shorten(text: str) -> str:
    """Ask for fewer rows than a page's Python does."""
    return re.sub(r"\brows=\d+", "rows=12", re.sub(r"\bsample\(\d+", "sample(8", text))


RUNNING = [page for page in PAGES if any(not needs for _, needs in commands(page))]
RUNNING += [page for page in PAGES if page not in RUNNING and any(e.runs for e in examples(page))]


@pytest.mark.parametrize("page", RUNNING)
def test_examples_run(page, finished, tiny_base, tmp_path, monkeypatch, two_accountants):
    """Run a page from top to bottom, in one folder and one Python session."""

    class Small(twinset.Twinset):
        def __init__(self, base_model=None, **options):
            super().__init__(base_model=str(tiny_base), **{**options, **LITTLE})

    def generate(*given, base_model=None, **options):
        return api.generate(*given, base_model=str(tiny_base), **{**options, **LITTLE})

    monkeypatch.setattr(twinset, "Twinset", Small, raising=False)
    monkeypatch.setattr(twinset, "generate", generate, raising=False)
    place = tmp_path / "place"
    makes_run = any(
        ["--run", RUN] == words[i : i + 2] for words, _ in commands(page) for i in range(len(words))
    )
    unwanted = ("runs", "twin*") if makes_run else ()
    shutil.copytree(finished, place, ignore=shutil.ignore_patterns(*unwanted))
    monkeypatch.chdir(place)
    without_downloads(monkeypatch)
    quickly(monkeypatch)
    session = {"frame": reviews(80, 0).rename(columns={"text": "review"})}
    for example in examples(page):
        if example.file:
            Path(example.file).write_text(example.text, "utf-8")
        elif example.kind == "python" and example.runs:
            exec(compile(shorten(example.text), page, "exec"), session)
        for words in [words for words, needs in example.commands if not needs]:
            name = called(words[1:])[0]
            is_small = "--rows-per-label" in words
            arguments = [*words[1:], *([] if is_small else SMALLER.get(name, []))]
            if name in WITH_BASE:
                arguments += ["--base-model", str(tiny_base)]
            outcome = call(*arguments)
            assert outcome.code == 0, f"{words}\n{outcome.err}"


def test_the_docs_have_enough_examples_that_run():
    assert sum(e.runs for page in PAGES[1:] for e in examples(page)) >= 60


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


# -- the page of theorems --------------------------------------------------------------------------


def rows_of_theorems(text: str) -> dict[str, str]:
    """Return the rows of tables by their first cell."""
    return {line.split("|")[1].strip(): line for line in text.splitlines() if line[:2] == "| "}


def missing_theorems(text: str) -> list[str]:
    """Return what has no row: a theorem, an event, or a kind of one-time release.

    A row with code or a test that is not there is as good as none.
    """
    known = {n: each for n, each in vars(theorems).items() if isinstance(each, Theorem)}
    assert {id(each) for each in THEOREMS.values()} <= {id(each) for each in known.values()}
    once = [what for n, what in vars(events).items() if isinstance(what, str) and n.isupper()]
    names = [*known, *(f"gaussian_release: {what}" for what in once)]
    names += [kind for kind in events.KINDS if kind != "gaussian_release"]
    rows, found = rows_of_theorems(text), []
    for name in names:
        row = rows.get(name, "")
        code = re.findall(r"`([\w/]+[.]py)`", row)
        tests = re.findall(r"\]\(\.\./(tests/[\w/]+[.]py)\)", row)
        places = [ROOT / "twinset" / path for path in code if not path.startswith("evaluation")]
        places += [ROOT / path for path in [*tests, *code] if path.startswith(("test", "eval"))]
        if not (code and tests and all(path.is_file() for path in places)):
            found.append(name)
    return found


def test_every_theorem_and_event_has_its_row():
    text = (ROOT / "docs/theorems.md").read_text("utf-8")
    assert missing_theorems(text) == []
    assert missing_theorems(text.replace("| TEACHER |", "| TEACHERS |")) == ["TEACHER"]
    gone = text.replace("test_label_selection.py)", "test_of_nothing.py)")
    assert missing_theorems(gone) == ["LABEL_VALUES", "label_selection"]


def test_options_state_what_a_processor_holds_at_once():
    page = (ROOT / "docs/cli.md").read_text("utf-8")
    assert f"more than {ROWS_BYTES >> 20} MiB (on a GPU {ROWS_BYTES_GPU >> 30} GiB)" in page
    assert f"Omitted: {PHYSICAL_TOKENS:,}, on a GPU {GPU_TOKENS:,}." in page


# -- a first look ----------------------------------------------------------------------------------


def unexplained(readme: str) -> list[str]:
    """Return the words and figures of the first screens that only a reader of the rest knows."""
    first = readme.split("\n## From Python")[0]
    found = re.findall(r"teachers?\b|marginals?\b|MAUVE|[σδ]|\d\.\d{3}", first)
    return found + ["ε"] * (first.find("ε") < first.find("differential privacy"))


def test_the_first_screens_of_the_readme_explain_their_words():
    readme = (ROOT / "README.md").read_text("utf-8")
    assert unexplained(readme) == []
    for word, found in {"teacher": 1, "σ": 1, "of 0.763": 1, "δ and a marginal": 2, "ε": 1}.items():
        assert len(unexplained(readme.replace("noise", word, 1))) == found, word


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize(("target", "extras"), [("demo", []), ("fast-tests", ["dev,pii,qlora"])])
def test_the_demo_installs_no_tools_and_hashes_come_first(target, extras):
    planned = ("make", "--dry-run", "--always-make", target)
    told = subprocess.run(planned, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"-e '?\.\[(.+?)\]", told) == extras and "-c constraints.txt -e ." in told
    steps = re.findall(r"pip install.* (--require-hashes|torch==|--no-index --no-build)", told)
    hashed, offline = "--require-hashes", "--no-index --no-build"
    assert steps == [hashed, "torch==", offline, *[hashed, offline] * len(extras)]
    assert told.count("pip install") == len(steps)


def pinned(text: str) -> list[Requirement]:
    """Return the lines of a text of hashes that have some, and only whole ones."""
    entries = [re.split(r"\s+--hash=", line) for line in text.replace("\\\n", "").splitlines()]
    whole = re.compile("sha256:[0-9a-f]{64}").fullmatch
    return [Requirement(pin) for pin, *hashes in entries if hashes and all(map(whole, hashes))]


def needed(extras: list[str], **system: str) -> set[str]:
    """Return what twinset and its build need on a system, but for PyTorch and its libraries."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    first = settings["build-system"]["requires"] + settings["project"]["dependencies"]
    for extra in extras:
        first += settings["project"]["optional-dependencies"][extra]
    todo, seen = list(map(Requirement, first)), set()
    while todo:
        need = todo.pop()
        for extra in ("", *need.extras):
            package = (canonicalize_name(need.name), extra)
            found = list(metadata.distributions(name=need.name)) if package not in seen else []
            below = map(Requirement, (found[0].requires or []) if found else [])
            here = {**system, "extra": extra}
            todo += [each for each in below if not each.marker or each.marker.evaluate(here)]
            seen.add(package)
    apart = re.compile("torch|triton|cuda-|nvidia-").match
    return {name for name, _ in seen if not apart(name)}


@pytest.mark.parametrize(
    ("system", "platform", "python"),
    [("Linux", "linux", "3.11"), ("Darwin", "darwin", "3.14"), ("Windows", "win32", "3.14")],
)
def test_all_that_make_installs_has_a_hash(system, platform, python):
    here = {"platform_system": system, "sys_platform": platform, "python_version": python}
    plain, tools = ((ROOT / f"hashes{of}.txt").read_text("utf-8") for of in ("", "-tools"))

    def hashed(text: str) -> set[str]:
        return {pin.name for pin in pinned(text) if not pin.marker or pin.marker.evaluate(here)}

    packages, tested = needed([], **here), needed(["dev", "pii", "qlora"], **here)
    assert packages <= hashed(plain) and tested <= hashed(plain + tools)
    assert {"pytest", "spacy"} <= tested - hashed(plain)
    for gone in ("jinja2", "setuptools", "sympy"):
        assert packages - hashed(re.sub(rf"(?m)^{gone}==", "other==", plain)) == {gone}
    assert ("colorama" in packages) == ("colorama" in hashed(plain)) == (system == "Windows")


@pytest.mark.parametrize("file", ["hashes.txt", "hashes-tools.txt"])
def test_hashes_are_those_of_the_pinned_versions(file):
    text = (ROOT / file).read_text("utf-8")
    constraints = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    known = {canonicalize_name(line.split("==")[0]): line.split("==")[1] for line in constraints}
    versions = [(pin.name, str(pin.specifier)) for pin in pinned(text)]
    assert versions == [(name, f"=={known[name]}") for name, _ in sorted(versions)]
    assert len(versions) == len(re.findall(r"(?m)^\S", text))
    assert len(pinned(re.sub(r"sha256:\w{64}", "sha256:0", text, count=1))) == len(versions) - 1


def test_pre_commit_runs_the_ruff_that_is_pinned():
    pinned = re.search(r"(?m)^ruff==(.+)$", (ROOT / "constraints.txt").read_text("utf-8"))
    assert f"rev: v{pinned[1]}\n" in (ROOT / ".pre-commit-config.yaml").read_text("utf-8")
