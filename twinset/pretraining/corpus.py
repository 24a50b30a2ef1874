"""Public text to learn from: files and folders of documents, each once, with where they came from.

A document is a cell of a table's text column, or a text file's paragraph (what stands between blank
lines). All of it is held in memory. Knows no token and no model.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from twinset.data.formats import format_of, read_frame
from twinset.data.templates import fill, placeholders
from twinset.errors import InputError
from twinset.files.atomic import sha256_file
from twinset.files.limits import inflated

TEXT_ENDINGS = (".txt", ".txt.gz", ".md")
TEXT = "text"
VALIDATION = 100  # one document in so many is held out
PROMPTED = 2  # one in so many of those that could be is written behind its prompt


@dataclass(frozen=True)
class Source:
    """A file of the corpus.

    Args:
        name: of the file.
        sha256: of the file.
        size: bytes of its documents.
        documents: how many it holds.
        licence: as the user states it.
    """

    name: str
    sha256: str
    size: int
    documents: int
    licence: str


@dataclass(repr=False)
class Corpus:
    """Documents by the file they came from.

    Args:
        sources: the files.
        documents: (D,) texts, some behind a prompt.
        keys: (D,) hashes of the texts alone: they tell what is the same, and what is held out.
        dropped: why, and how many documents were left out.
        guarded: keys of documents that must not be trained on; how many they are is private.
    """

    sources: list[Source] = field(default_factory=list)
    documents: list[str] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)
    guarded: frozenset[int] = frozenset()

    def keep(self, kept: Sequence[bool], why: str) -> None:
        """Leave out what is not kept, and count it."""
        self.dropped[why] = self.dropped.get(why, 0) + len(kept) - sum(kept)
        self.documents = [text for text, good in zip(self.documents, kept, strict=True) if good]
        self.keys = [key for key, good in zip(self.keys, kept, strict=True) if good]

    def split(self) -> tuple[list[str], list[str]]:
        """Return documents to learn from, and held-out ones: by a hash of the text alone.

        Guarded ones are not trained on. Held out they stay, so that the figures measured there
        follow from the model and from public text, and not from which documents are guarded.

        Raises:
            InputError: there are too few for both.
        """
        keyed = list(zip(self.documents, self.keys, strict=True))
        heldout = [text for text, key in keyed if _is_held_out(key)]
        training = [t for t, key in keyed if not _is_held_out(key) and key not in self.guarded]
        if not training or not heldout:
            raise InputError(
                f"{len(self.documents)} documents are too few to hold one in {VALIDATION} out; "
                "name more text"
            )
        return training, heldout

    def left_out(self) -> list[str]:
        """Return what would be trained on, were it not guarded."""
        keyed = zip(self.documents, self.keys, strict=True)
        return [t for t, key in keyed if key in self.guarded and not _is_held_out(key)]


def read_corpus(
    paths: Sequence[Path],
    *,
    text: str = TEXT,
    prompt: str | None = None,
    licences: Mapping[str, str] | None = None,
) -> Corpus:
    """Read files, and all that folders hold; a text that occurs again is left out.

    Args:
        paths: `.txt`, tables in any format that twinset reads, each also as `.gz`, or folders.
        text: column of a table's texts.
        prompt: with `{column}` where a value goes: half of the documents of tables that have these
            columns are written behind it, as in fine-tuning.
        licences: by the beginning of a file's name.

    Raises:
        InputError: nothing is there, or a file cannot be read.
    """
    if prompt is not None and not placeholders(prompt):
        raise InputError("`prompt` names no {column} of the tables")
    corpus = Corpus()
    for file in _files(paths):
        texts = [(written, key) for written, key in _texts(file, text, prompt) if written]
        size = size_of([written for written, _ in texts])
        licence = _licence(file.name, licences or {})
        corpus.sources.append(Source(file.name, sha256_file(file), size, len(texts), licence))
        corpus.documents += [written for written, _ in texts]
        corpus.keys += [key for _, key in texts]
    corpus.keep(list(_first(corpus.keys)), "the same text again")
    if not corpus.documents:
        raise InputError("the corpus holds no text; name files with text in them")
    return corpus


def _is_held_out(key: int) -> bool:
    return key % VALIDATION == 0


def size_of(texts: Sequence[str]) -> int:
    """Return the bytes of texts in UTF-8."""
    return sum(len(text.encode()) for text in texts)


def _first(keys: Sequence[int]) -> Iterator[bool]:
    """Return for each key whether it is its first."""
    seen = set[int]()
    for key in keys:
        yield key not in seen
        seen.add(key)


def _files(paths: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise InputError(f"{path}: no such file or folder; check the path")
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        readable = [p for p in inside if p.is_file() and (is_text(p) or format_of(p))]
        if not readable:
            raise InputError(f"{path}: holds no text file and no table that twinset reads")
        found += readable
    return list(dict.fromkeys(found))


def is_text(path: Path) -> bool:
    """Return whether a file's name says that it is plain text."""
    return path.name.lower().endswith(TEXT_ENDINGS)


def _texts(file: Path, text: str, prompt: str | None) -> Iterator[tuple[str, int]]:
    """Yield texts as they are written, and the hash of each without its prompt."""
    cells = _plain(paragraphs(file)) if is_text(file) else _cells(file, text, prompt)
    for beginning, cell in cells:
        yield beginning + cell, _number(cell)


def _plain(texts: Iterable[object]) -> Iterator[tuple[str, str]]:
    return (("", str(text).strip()) for text in texts)


def paragraphs(file: Path) -> list[str]:
    """Return what stands between blank lines of a text file.

    Raises:
        InputError: the file cannot be read.
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


def _cells(file: Path, text: str, prompt: str | None) -> Iterator[tuple[str, str]]:
    frame = read_frame(file)
    if text not in frame.columns:
        raise InputError(f"{file}: has no column {text!r}; name it with `text`")
    rows = frame[frame[text].notna()]
    names = placeholders(prompt or "")
    if prompt and set(names) <= set(rows.columns):
        return _prompted(rows, text, prompt, names)
    return _plain(rows[text])


def _prompted(
    rows: pd.DataFrame, text: str, prompt: str, names: list[str]
) -> Iterator[tuple[str, str]]:
    complete = rows[names].notna().all(axis=1)
    for row, has_all in zip(rows.to_dict("records"), complete, strict=True):
        cell = str(row[text]).strip()
        drawn = cell and has_all and _number(cell) // VALIDATION % PROMPTED == 0
        yield f"{fill(prompt, {name: row[name] for name in names})} " if drawn else "", cell


def _licence(name: str, licences: Mapping[str, str]) -> str:
    return next((v for start, v in licences.items() if name.startswith(start)), "not stated")


def _number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
