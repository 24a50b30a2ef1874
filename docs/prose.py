"""The rules of prose that `make lint` checks: plain words and short sentences.

A page that people write breaks none of them. Messages have no banned words and no semicolons. The
page of commands and the docstrings have ceilings, which may only fall. Examples, tables and code in
backticks are no prose.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "SECURITY.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "CHANGELOG.md")
LONGEST = 30  # words of a sentence

# Words that nobody says to a colleague, and turns of phrase that were translated.
BANNED = re.compile(
    r"\b(?:beside|so many|as many(?! rows as)|whoever|whose it is"
    r"|anew|(?:is|are) told|told of|lies? on|lest"
    r"|stands? (?:in|beside)|lies there|by itself|goes on|went on|gone on|reckon\w*|heed\w*|hence"
    r"|leans? on|denied|denies|misfit|foretold|learnt|nobody|anybody|none is|of them all|thus"
    r"|what (?:is shared|was|lies|holds)|holds for|worth (?:of|nothing)|at no (?:further )?ε|whilst"
    r"|found out|made good|in so far|(?:there|where|here)(?:by|in|of)|amongst|namely|in the mean"
    r"|as it stands|made to hurt|out of all reason|in the house|in order to|be noted|utili[sz]\w+"
    r"|please note|leverag\w+|seamless\w*|e\.g\.|i\.e\.)(?!\w)",
    re.I,
)
SEMICOLON = re.compile(r"(?:^|[\w)`'\"]);\s+\w")  # in a message
NUMBER = re.compile(r"(?<![\w.,·^⁻-])[0-9][0-9.,]*")
# What counts as one number: a range, a share, an interval, a list.
MORE = re.compile(r"([0-9]%?)(?:(?: (?:to|and|or|of|×) |, | ?[–/±:] ?)[0-9][0-9.]*)+")
SETTING = re.compile(r"[εδσNC](?:,? [a-z]+)? ?(?:=|of|·|/) ?[0-9][0-9.,]*|\b(?:19|20)[0-9]{2}\b")
NO_PROSE = (
    r"(?ms)^```.*?^```|<!--.*?-->",
    r"(?m)(?<=\n\n)(?: {4}.*\n+)+|^\s*\|.*$",
    r"`[^`]*`|\]\([^)\s]*\)|<[^>\s]+>|https?://\S+",
)
END = re.compile(r"(?<=[.!?:])[*_)\"]*\s+|\n\s*\n|\n\s*(?:[-*>]|#+|[0-9]+\.)\s+")

# Rates today and their goals: banned, semicolons and numbers per 1,000 words, long ones in 100.
GOALS = (0.5, 3, 35, 0)
CEILINGS = {"docs/cli.md": (0, 0, 35, 0), "docstrings": (0.1, 0.1, 35, 0.5)}


def prose(markdown: str) -> str:
    r"""Blank out what is no prose. Every line keeps its number.

    >>> prose("One `two; three` [four](five.md).\n\n    six\n")
    'One              [four          .\n\n       \n'
    """
    for pattern in NO_PROSE:
        markdown = re.sub(pattern, lambda m: re.sub(r"[^\n]", " ", m[0]), markdown)
    return markdown


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the words of each sentence, list item and heading."""
    start = 0
    for stop, after in [*((m.start(), m.end()) for m in END.finditer(text)), (len(text), 0)]:
        words = " ".join(text[start:stop].split())
        if len(words.split()) > 2:
            lead = len(text[start:stop]) - len(text[start:stop].lstrip())
            yield text.count("\n", 0, start + lead) + 1, words
        start = after


def problems(text: str) -> Iterator[tuple[int, str]]:
    r"""Yield the line of each sentence that breaks a rule, and why.

    >>> [why for _, why in problems("Short ones are read. This has one number, 1 to 5.")]
    []
    >>> [why for _, why in problems("Whoever reads on is told; nobody goes on.")]
    ['"Whoever"', '"is told"', '"nobody"', '"goes on"', 'a semicolon']
    >>> [why for _, why in problems("It took 3 runs, with 40 rows each. " + "So " * 31 + "on.")]
    ['2 numbers', '32 words']
    >>> list(problems("One. Two.\n\n- Take this beside that."))
    [(3, '"beside"')]
    """
    for line, words in sentences(text):
        yield from ((line, f'"{found[0]}"') for found in BANNED.finditer(words))
        if ";" in words:
            yield line, "a semicolon"
        numbers = len(NUMBER.findall(MORE.sub(r"\1", SETTING.sub("", words))))
        if numbers > 1:
            yield line, f"{numbers} numbers"
        if len(words.split()) > LONGEST:
            yield line, f"{len(words.split())} words"


def rates(text: str) -> list[tuple[str, float]]:
    """Return banned words, semicolons and numbers per 1,000 words, and long sentences per 100."""
    words = max(1, len(re.findall(r"[A-Za-z][A-Za-z'-]+", text)))
    counts = {"banned": len(BANNED.findall(text)), "semicolons": text.count(";")}
    counts["numbers"] = len(re.findall(r"[0-9][0-9.,]*", text))
    lengths = [len(words.split()) for _, words in sentences(text)] or [0]
    long = 100 * sum(length > LONGEST for length in lengths) / len(lengths)
    return [*((name, 1000 * count / words) for name, count in counts.items()), ("long", long)]


def findings(texts: dict[str, str]) -> list[str]:
    """Return what breaks a rule or passes a ceiling, with its place.

    >>> findings({"page.md": "Two are here. Nobody else is; really."})
    ['page.md:1: "Nobody"', 'page.md:1: a semicolon']
    >>> findings({"docstrings": "Words are told to nobody. " * 9})
    ['docstrings: banned 400.0, at most 0.1, goal 0.5']
    """
    found = []
    for name, text in texts.items():
        if name not in CEILINGS:
            found += [f"{name}:{line}: {why}" for line, why in problems(text)]
            continue
        for (rule, rate), most, goal in zip(rates(text), CEILINGS[name], GOALS, strict=True):
            if rate > most:
                found.append(f"{name}: {rule} {rate:.1f}, at most {most}, goal {goal}")
    return found


Trees = dict[Path, list[ast.AST]]  # by file, the nodes of its syntax tree
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def all_texts(trees: Trees) -> dict[str, str]:
    """Return the prose of each page, and that of all docstrings."""
    pages = [*(ROOT / page for page in PAGES), *sorted((ROOT / "docs").glob("*.md"))]
    texts = {str(page.relative_to(ROOT)): prose(page.read_text("utf-8")) for page in pages}
    nodes = [node for found in trees.values() for node in found if isinstance(node, DOCUMENTED)]
    strings = [ast.get_docstring(node) or "" for node in nodes]
    return texts | {"docstrings": "\n\n".join(re.sub(r"`[^`]*`", " ", s) for s in strings)}


def messages(trees: Trees) -> Iterator[str]:
    """Yield the place of each message with a banned word or a semicolon."""
    for path, nodes in trees.items():
        if {"papers", "bench", "charts.py"} & {*path.parts}:  # research, and SVG
            continue
        documented = [n for n in nodes if isinstance(n, DOCUMENTED) and ast.get_docstring(n)]
        docs = {id(n.body[0].value) for n in documented}
        for n in nodes:
            if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in docs:
                if " " in n.value and (bad := BANNED.search(n.value) or SEMICOLON.search(n.value)):
                    yield f"{path.relative_to(ROOT)}:{n.lineno}: {bad[0]!r}"


if __name__ == "__main__":
    files = [path for top in ("twinset", "evaluation") for path in (ROOT / top).rglob("*.py")]
    parsed = {file: list(ast.walk(ast.parse(file.read_text("utf-8")))) for file in files}
    sys.exit("\n".join([*findings(all_texts(parsed)), *messages(parsed)]) or 0)
