"""Public text to learn from: files and folders of documents, each once, with where they came from.

A document is a cell of a table's text column, or a text file's paragraph (what stands between blank
lines). All of it is held in memory. Knows no token and no model.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pandas as pd

from twinset.bounds import Bounds, check_number
from twinset.errors import InputError
from twinset.files.atomic import sha256_file
from twinset.files.limits import inflated
from twinset.pretraining.prompts import Prompt, prompt_of
from twinset.table.read import format_of, read_frame
from twinset.table.templates import fill

Value = TypeVar("Value")
TEXT_ENDINGS = (".txt", ".txt.gz", ".md")
TEXT = "text"
SHARES = Bounds(1e-6, 1)
# A document's hash decides, by digits of its own, whether it is
VALIDATION = 100  # held out: one in so many
PROMPTED = 2  # written behind its file's prompt: one in so many
TAKEN = 10**6  # of the share that is read: in so many parts


@dataclass(frozen=True)
class Source:
    """A file of the corpus.

    Args:
        name: of the file.
        sha256: of the file.
        size: bytes of its documents.
        documents: how many of it are read.
        licence: as the user states it.
        share: of its documents that is read.
        prompt: that half of them are written behind.
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
    prompts: Sequence[str] = (),
    shares: Mapping[str, float] | None = None,
    licences: Mapping[str, str] | None = None,
) -> Corpus:
    """Read files, and all that folders hold; a text that occurs again is left out.

    Args:
        paths: `.txt`, tables in any format that twinset reads, each also as `.gz`, or folders.
        text: column of a table's texts.
        prompts: with `{column}` where a value goes: half of the documents of tables that have these
            columns are written behind it, as in fine-tuning; `START=PROMPT`: of the files whose
            names begin so.
        shares: of a file's documents that is read, by the beginning of its name. A hash of the text
            decides; all of what no share is stated of.
        licences: by the beginning of a file's name.

    Raises:
        InputError: nothing is there, a file cannot be read, or a share or a prompt is of no file.
    """
    files, parsed, shares = _files(paths), [Prompt.parse(one) for one in prompts], shares or {}
    _check_starts(files, parsed, shares)
    corpus = Corpus()
    for file in files:
        share = _by_start(file.name, shares, 1.0)
        prompt, texts = _texts(file, text, parsed)
        taken = [(t, key) for t, key in texts if t and _is_taken(key, share)]
        documents, keys = [t for t, _ in taken], [key for _, key in taken]
        size, licence = size_of(documents), _by_start(file.name, licences or {}, "not stated")
        source = Source(file.name, sha256_file(file), size, len(documents), licence, share, prompt)
        corpus.sources.append(source)
        corpus.documents += documents
        corpus.keys += keys
    corpus.keep(list(_first(corpus.keys)), "the same text again")
    if not corpus.documents:
        raise InputError("the corpus holds no text; name files with text in them")
    return corpus


def _is_held_out(key: int) -> bool:
    return key % VALIDATION == 0


def _is_prompted(key: int) -> bool:
    return key // VALIDATION % PROMPTED == 0


def _is_taken(key: int, share: float) -> bool:
    return key // (VALIDATION * PROMPTED) % TAKEN < share * TAKEN


def _check_starts(
    files: Sequence[Path], prompts: Sequence[Prompt], shares: Mapping[str, float]
) -> None:
    """Refuse a share that is none, and what is stated of files that are not there."""
    for share in shares.values():
        check_number("`share`", share, SHARES)
    stated = [("share", start) for start in shares] + [("prompt", p.start) for p in prompts]
    for option, start in stated:
        if not any(file.name.startswith(start) for file in files):
            raise InputError(f"`{option}={start}=…`: no file of the corpus begins so")


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


def _texts(
    file: Path, text: str, prompts: Sequence[Prompt]
) -> tuple[str | None, Iterator[tuple[str, int]]]:
    """Return a file's prompt, and texts as they are written with the hash of each without it."""
    frame = pd.DataFrame({text: paragraphs(file)}) if is_text(file) else _rows(file, text)
    prompt = prompt_of(file.name, [] if is_text(file) else list(frame.columns), prompts)
    if prompt is None:
        return None, ((cell, _number(cell)) for cell in map(_cell, frame[text]))
    return prompt.pattern, _prompted(frame, text, prompt)


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


def _rows(file: Path, text: str) -> pd.DataFrame:
    frame = read_frame(file)
    if text not in frame.columns:
        raise InputError(f"{file}: has no column {text!r}; name it with `text`")
    return frame[frame[text].notna()]


def _prompted(rows: pd.DataFrame, text: str, prompt: Prompt) -> Iterator[tuple[str, int]]:
    complete = rows[prompt.columns].notna().all(axis=1)
    for row, has_all in zip(rows.to_dict("records"), complete, strict=True):
        cell = _cell(row[text])
        key = _number(cell)
        drawn = cell and has_all and _is_prompted(key)
        yield f"{fill(prompt.pattern, row)} {cell}" if drawn else cell, key


def _cell(value: object) -> str:
    return str(value).strip()


def _by_start(name: str, stated: Mapping[str, Value], default: Value) -> Value:
    return next((value for start, value in stated.items() if name.startswith(start)), default)


def _number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
