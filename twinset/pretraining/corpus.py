"""Public text to learn from: files and folders of documents, each once, with where they came from.

A document is a cell of a table's text column, or a paragraph of a text file (between blank lines).
The corpus is held in memory. This module knows no token and no model.

Decontamination keeps texts out that will be private, or will be tested on. It guarantees no
privacy: what is left out depends on the guarded files. If these are private, that choice is private
as well, and no ε covers it. Only the names of the guarded files are published.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from twinset.bounds import Bounds, check_number
from twinset.errors import InputError
from twinset.files.atomic import sha256_file
from twinset.files.limits import inflated
from twinset.table.ngrams import Vocabulary, contained
from twinset.table.read import format_of, read_frame
from twinset.table.templates import fill, placeholders

TEXT_ENDINGS = (".txt", ".txt.gz", ".md")
SHARES = Bounds(1e-6, 1)
# A document's hash decides three things, each by digits of its own:
VALIDATION = 100  # one document in so many is held out,
PROMPTED = 2  # one in so many is written behind its file's prompt,
TAKEN = 10**6  # and the share of a file that is read is counted in so many parts.
# A document is contaminated if it shares a run of 13 words with a guarded text, the length of Brown
# et al. 2020, "Language Models are Few-Shot Learners", appendix C. Whole shorter texts count too.
RUN = 13
SHORTEST = 6  # words; anyone may write a shorter text


@dataclass(frozen=True)
class Source:
    """A file of the corpus.

    Args:
        name: of the file.
        sha256: of the file.
        size: bytes of its documents.
        documents: number of documents that are read.
        licence: as the user states it.
        share: of its documents that is read.
        prompt: half of them are written behind it.
    """

    name: str
    sha256: str
    size: int
    documents: int
    licence: str
    share: float = 1.0
    prompt: str | None = None


@dataclass(repr=False)
class Corpus:
    """Documents by the file they came from.

    Args:
        sources: the files.
        documents: (D,) texts, some behind a prompt.
        keys: (D,) hashes of the texts alone. They tell which are the same and which are held out.
        dropped: reasons, and how many documents were left out for each.
        guarded: keys of documents that must not be trained on. Their number is private.
    """

    sources: list[Source] = field(default_factory=list)
    documents: list[str] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)
    guarded: frozenset[int] = frozenset()

    def split(self) -> tuple[list[str], list[str], list[str]]:
        """Return documents to train on, held-out documents, and documents that are left out.

        Guarded documents are not trained on. Held-out ones stay even if they are guarded. So the
        figures measured there follow from the model and from public text, and not from which
        documents are guarded.

        Raises:
            InputError: there are too few documents.
        """
        parts: dict[str, list[str]] = {"training": [], "heldout": [], "left out": []}
        for text, key in zip(self.documents, self.keys, strict=True):
            is_held_out = key % VALIDATION == 0
            rest = "left out" if key in self.guarded else "training"
            parts["heldout" if is_held_out else rest].append(text)
        if not parts["training"] or not parts["heldout"]:
            raise InputError(
                f"{len(self.documents)} documents are too few to hold one in {VALIDATION} out; "
                "name more text"
            )
        return parts["training"], parts["heldout"], parts["left out"]


def read_corpus(
    paths: Sequence[Path],
    *,
    text: str = "text",
    prompts: Sequence[str] = (),
    shares: Mapping[str, float] | None = None,
    licences: Mapping[str, str] | None = None,
) -> Corpus:
    """Read files, and all files that folders hold. A text that occurs again is left out.

    Args:
        paths: `.txt`, tables in any format that twinset reads, each also as `.gz`, or folders.
        text: column of a table's texts.
        prompts: with `{column}` where a value goes. Half of the documents of tables that have these
            columns are written behind the prompt, as in fine-tuning. `START=PROMPT` is for files
            whose names begin with START.
        shares: share of a file's documents that is read, by the beginning of its name. A hash of
            the text decides. Files without a share are read in full.
        licences: by the beginning of a file's name.

    Raises:
        InputError: a path is missing, a file cannot be read, or a share or a prompt fits no file.

    Example:
        corpus = read_corpus([Path("public")], prompts=["Write a {mood} review:"])
        training, heldout, left_out = corpus.split()
    """
    files = find_files(paths)
    # A prompt is a pair: the beginning of its files' names ("": any table that has its columns),
    # and the pattern. Long beginnings go before short ones.
    pairs = sorted(map(parse_prompt, prompts), key=lambda pair: -len(pair[0]))
    for share in (shares or {}).values():
        check_number("`share`", share, SHARES)
    stated = [("share", start) for start in shares or {}] + [
        ("prompt", start) for start, _ in pairs
    ]
    for option, start in stated:
        if not any(file.name.startswith(start) for file in files):
            raise InputError(f"`{option}={start}=…`: no file of the corpus begins so")

    corpus, seen, repeated = Corpus(), set[int](), 0
    for file in files:

        def find(stated: Mapping[str, Any] | None, default: Any, name: str = file.name) -> Any:
            starts = [start for start in stated or {} if name.startswith(start)]
            return (stated or {})[starts[0]] if starts else default

        share, size, number = find(shares, 1.0), 0, 0
        prompt, documents = _read_documents(file, text, pairs)
        for document, key in documents:
            if not document or key // (VALIDATION * PROMPTED) % TAKEN >= share * TAKEN:
                continue
            size, number = size + len(document.encode()), number + 1
            if key in seen:
                repeated += 1
                continue
            seen.add(key)
            corpus.documents.append(document)
            corpus.keys.append(key)
        licence = find(licences, "not stated")
        source = Source(file.name, sha256_file(file), size, number, licence, share, prompt)
        corpus.sources.append(source)
    corpus.dropped["the same text again"] = repeated
    if not corpus.documents:
        raise InputError("the corpus holds no text; name files with text in them")
    return corpus


def find_files(paths: Sequence[Path]) -> list[Path]:
    """Return the text files and tables among paths and in the folders among them.

    Raises:
        InputError: a path is missing, or holds neither.
    """
    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise InputError(f"{path}: no such file or folder; check the path")
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        readable = [p for p in inside if p.is_file() and (is_text(p) or format_of(p))]
        if not readable:
            raise InputError(f"{path}: holds no text file and no table that twinset reads")
        files += [file for file in readable if file not in files]
    return files


def parse_prompt(given: str) -> tuple[str, str]:
    """Read `START=PROMPT`, or a prompt alone, which must name a column.

    >>> parse_prompt("cars=Write about a car:"), parse_prompt("Write a {mood} review:")
    (('cars', 'Write about a car:'), ('', 'Write a {mood} review:'))

    Raises:
        InputError: it is neither.
    """
    if found := re.fullmatch(r"([\w.-]+)=(.+)", given, re.DOTALL):
        return found[1], found[2]
    if not placeholders(given):
        raise InputError(
            "`prompt` names no {column} of the tables; for one without, say of which files: "
            "START=PROMPT, with the beginning of their names"
        )
    return "", given


def _read_documents(
    file: Path, text: str, prompts: Sequence[tuple[str, str]]
) -> tuple[str | None, Iterator[tuple[str, int]]]:
    """Return a file's prompt, and its texts as they are written, each with its own hash."""
    frame = pd.DataFrame({text: paragraphs(file)}) if is_text(file) else read_frame(file)
    if text not in frame.columns:
        raise InputError(f"{file}: has no column {text!r}; name it with `text`")
    frame = frame[frame[text].notna()]
    # A prompt for files of such names goes before one for any table.
    chosen = None
    for start, pattern in prompts:
        missing = [c for c in placeholders(pattern) if is_text(file) or c not in frame.columns]
        if start and file.name.startswith(start):
            if missing:
                raise InputError(
                    f"{file.name}: has no column {missing[0]!r}, which its `prompt` names"
                )
            chosen = pattern
            break
        if not start and not missing:
            chosen = pattern
            break

    def documents() -> Iterator[tuple[str, int]]:
        columns = placeholders(chosen or "")
        complete = frame[columns].notna().all(axis=1)
        for row, is_complete in zip(frame.to_dict("records"), complete, strict=True):
            cell = str(row[text]).strip()
            key = int.from_bytes(hashlib.blake2b(cell.encode(), digest_size=8).digest())
            is_prompted = cell and is_complete and key // VALIDATION % PROMPTED == 0
            yield f"{fill(chosen, row)} {cell}" if chosen and is_prompted else cell, key

    return chosen, documents()


def is_text(path: Path) -> bool:
    """Return whether a file's name says that it is plain text."""
    return path.name.lower().endswith(TEXT_ENDINGS)


def paragraphs(file: Path) -> list[str]:
    """Return what stands between blank lines of a text file.

    Raises:
        InputError: the file cannot be read, or is not UTF-8.
    """
    try:
        with inflated(file) if file.suffix == ".gz" else file.open("rb") as opened:
            raw = opened.read()
        return raw.decode().replace("\r\n", "\n").split("\n\n")
    except UnicodeDecodeError:
        raise InputError(f"{file}: is not UTF-8; save it as UTF-8") from None
    except (EOFError, OSError, zlib.error) as error:
        raise InputError(
            f"{file}: cannot be read ({type(error).__name__}); copy it again"
        ) from None


def find_clean(documents: Sequence[str], guarded: Sequence[str]) -> np.ndarray:
    """Return which documents share nothing with guarded texts.

    Args:
        documents: of the corpus.
        guarded: texts of `read_guarded`.

    Returns:
        (D,) bool.
    """
    vocabulary = Vocabulary()
    ours, theirs = vocabulary.words(documents), vocabulary.words(guarded)
    words = np.bincount(theirs.row, minlength=theirs.rows)  # of each guarded text
    sharing = np.zeros(len(documents), dtype=bool)
    for length in range(SHORTEST, RUN + 1):
        wanted, rows = theirs.runs(length)
        if length < RUN:  # only whole texts of this length
            wanted = wanted[words[rows] == length]
        codes, rows = ours.runs(length)
        sharing[rows[contained(codes, wanted)]] = True
    return ~sharing


def read_guarded(files: Sequence[Path]) -> Iterator[str]:
    """Yield the texts of guarded files, every cell of text in a table, and each line of them.

    A corpus may be cut where a guarded text is not. So its lines are guarded one by one as well.

    Raises:
        InputError: a file cannot be read.
    """
    for file in files:
        if is_text(file):
            texts = paragraphs(file)
        elif format_of(file) is None or not file.is_file():
            raise InputError(f"{file}: `decontaminate` takes text files and tables; check the path")
        else:
            frame = read_frame(file)
            texts = [
                cell for name in frame.columns for cell in frame[name] if isinstance(cell, str)
            ]
        for text in texts:
            yield text
            if "\n" in text:
                yield from text.splitlines()
