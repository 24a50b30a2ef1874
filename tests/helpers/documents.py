"""README and docs/ as data: their code blocks, commands, links and anchors."""

import re
import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").glob("*.md")))
NEEDS = re.compile(r"(?:#|<!--)\s*needs\b:?\s*([^>]*)")
PYTHON = "python"


@dataclass(frozen=True)
class Block:
    """A code block; `needs` is what a comment before it says that it needs."""

    page: str
    line: int
    language: str
    text: str
    needs: str | None


@dataclass(frozen=True)
class Command:
    """A line of a shell block, continued lines joined; `words` has no comment."""

    page: str
    line: int
    words: tuple[str, ...]
    needs: str | None

    def __str__(self) -> str:
        return f"{self.page}:{self.line} {' '.join(self.words)}"[:70]


def blocks(page: str) -> list[Block]:
    return blocks_in((ROOT / page).read_text("utf-8"), page)


@cache
def blocks_in(text: str, page: str = "") -> list[Block]:
    found, needs = [], None
    for token in MarkdownIt("commonmark").parse(text):
        if token.type in ("code_block", "fence"):
            first = token.map[0] + (2 if token.type == "fence" else 1)
            found.append(Block(page, first, token.info.strip(), token.content, needs))
        if token.type == "html_block":
            mark = NEEDS.match(token.content)
            needs = mark[1].strip(" -\n") if mark else None
        elif not token.type.endswith("_open"):
            needs = None
    return found


def commands(page: str) -> list[Command]:
    return [c for block in blocks(page) if block.language in ("", "sh") for c in commands_of(block)]


def commands_of(block: Block) -> list[Command]:
    found, lines = [], enumerate(block.text.split("\n"))
    for number, line in lines:
        while line.endswith("\\"):
            line = line[:-1] + next(lines)[1]
        if words := shlex.split(line, comments=True):
            mark = NEEDS.search(line)
            needs = mark[1].strip() if mark else block.needs
            found.append(Command(block.page, block.line + number, tuple(words), needs))
    return found


def mentions(page: str) -> list[list[str]]:
    """Return the commands that stand in a sentence: `twinset …` between backticks."""
    text = re.sub(r"(?ms)^```.*?^```|^    .*?$", "", (ROOT / page).read_text("utf-8"))
    return [shlex.split(call) for call in re.findall(r"`twinset ([a-z][^`|]*)`", text)]


@cache
def anchors(path: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    tokens = MarkdownIt("commonmark").parse(path.read_text("utf-8"))
    titles = [
        b.content for a, b in zip(tokens, tokens[1:], strict=False) if a.type == "heading_open"
    ]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def links(page: str) -> list[str]:
    tokens = MarkdownIt("commonmark").enable("table").parse((ROOT / page).read_text("utf-8"))
    inline = [child for token in tokens for child in token.children or ()]
    attributes = [child.attrs.get("href") or child.attrs.get("src") for child in inline]
    return [str(link) for link in attributes if link]
