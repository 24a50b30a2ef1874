"""Public text to learn from: files and folders of documents, each once, with their sources.

A document is a cell of a table's text column, or a paragraph of a text file (between blank lines).
The corpus is held in memory. This module knows no token and no model.

Decontamination leaves out texts that will be private or used as test data. It guarantees no
privacy: what is left out depends on the guarded files. If these are private, that choice is private
as well, and no ε covers it. Only the names of the guarded files are published.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from twinset.bounds import Bounds, check_number
from twinset.errors import InputError
from twinset.files.atomic import sha256_file
from twinset.files.limits import check_inflated, most_items, open_bytes
from twinset.table.ngrams import number_words
from twinset.table.read import format_of, read_frame
from twinset.table.templates import fill, placeholders

TEXT_ENDINGS = (".txt", ".txt.gz", ".md")
SHARES = Bounds(1e-6, 1)
# A document's hash decides three things, each by digits of its own:
VALIDATION = 100  # one document in 100 is held out,
PROMPTED = 2  # one in 2 is written after its file's prompt,
TAKEN = 10**6  # and the share of a file that is read is counted in millionths.
# A document is contaminated if it shares a run of 13 words with a guarded text, the length of Brown
# et al. 2020, "Language Models are Few-Shot Learners", appendix C. Whole shorter texts count too.
RUN = 13
SHORTEST = 6  # words (anyone may write a shorter text)


@dataclass(frozen=True, repr=False)
class Corpus:
    """Documents, and the files they came from."""

    sources: list[dict[str, Any]]  # what the card says about each file
    documents: list[str]  # (D,) texts, some after a prompt
    keys: np.ndarray  # (D,) hashes of the texts alone: which are the same, which are held out
    repeated: int  # documents that were left out because they occur again

    def split(self, clean: np.ndarray | None = None) -> tuple[list[str], list[str], list[str]]:
        """Return training documents, held-out documents, and documents that are left out.

        Documents that are not `clean` (D,) are not used for training, but may be held out. So the
        figures measured there depend on the model and on public text only, not on which documents
        are guarded.

        Raises:
            InputError: there are too few documents.
        """
        heldout = self.keys % VALIDATION == 0
        clean = np.ones(len(heldout), dtype=bool) if clean is None else clean
        parts = [
            [self.documents[i] for i in np.flatnonzero(part)]
            for part in (~heldout & clean, heldout, ~heldout & ~clean)
        ]
        if not parts[0] or not parts[1]:
            raise InputError(
                f"{len(self.documents)} documents are too few to hold one in {VALIDATION} out. "
                "Name more text."
            )
        return parts[0], parts[1], parts[2]


def read_corpus(
    paths: Sequence[Path],  # text files, tables, or folders of them
    *,
    text: str = "text",  # column of a table's texts
    prompts: Sequence[str] = (),  # with `{column}` as placeholders
    shares: Mapping[str, float] | None = None,
    licences: Mapping[str, str] | None = None,
) -> Corpus:
    """Read files, and all files in folders. A repeated text is left out.

    If a table has a prompt's columns, half of its documents are written after the prompt, as in
    fine-tuning. `START=PROMPT` is for files whose names begin with START. Shares and licences also
    go by the beginning of a file's name. A hash of the text decides whether it is read.

    Raises:
        InputError: a path is missing, a file cannot be read, or a share or a prompt fits no file.
    """
    shares, licences, files = shares or {}, licences or {}, list[Path]()
    for path in paths:
        if not path.exists():
            raise InputError(f"{path}: no such file or folder. Check the path.")
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        readable = [p for p in inside if p.is_file() and (is_text(p) or format_of(p))]
        if not readable:
            raise InputError(f"{path}: holds no text file or table. Check the path.")
        files += [file for file in readable if file not in files]
    pairs = []
    for given in prompts:
        named = re.fullmatch(r"([\w.-]+)=(.+)", given, re.DOTALL)
        if not named and not placeholders(given):
            raise InputError(
                "`prompt` names no {column} of the tables. To use it for some files, write "
                "START=PROMPT, with the beginning of their names."
            )
        pairs.append((named[1], named[2]) if named else ("", given))
    # Long beginnings of names go before short ones, and "" (any table) comes last.
    pairs.sort(key=lambda pair: -len(pair[0]))
    for share in shares.values():
        check_number("`share`", share, SHARES)
    for option, start in [("share", s) for s in shares] + [("prompt", s) for s, _ in pairs]:
        if not any(file.name.startswith(start) for file in files):
            raise InputError(f"`{option}={start}=…`: no file name starts so. Correct it.")

    sources, parts = [], []
    for file in files:
        frame = pd.DataFrame({text: paragraphs(file)}) if is_text(file) else read_frame(file)
        if text not in frame.columns:
            raise InputError(f"{file}: has no column {text!r}. Name it with `text`.")
        frame = frame[frame[text].notna()].reset_index(drop=True)
        prompt = None
        for start, given in pairs:  # one that names the file goes before one for any table
            if prompt is not None or not file.name.startswith(start):
                continue
            missing = [c for c in placeholders(given) if is_text(file) or c not in frame.columns]
            if start and missing:
                raise InputError(
                    f"{file.name}: has no column {missing[0]!r} as in `prompt`. Correct it."
                )
            prompt = None if missing else given
        share = next((s for start, s in shares.items() if file.name.startswith(start)), 1.0)
        licence = next((s for start, s in licences.items() if file.name.startswith(start)), None)

        cells = frame[text].astype(str).str.strip()
        hashes = [hashlib.blake2b(cell.encode(), digest_size=8).digest() for cell in cells]
        keys = np.frombuffer(b"".join(hashes), dtype=">u8").astype(np.uint64)
        taken = (cells != "").to_numpy() & (keys // (VALIDATION * PROMPTED) % TAKEN < share * TAKEN)
        if prompt is not None:
            complete = frame[placeholders(prompt)].notna().all(axis=1).to_numpy()
            for i in np.flatnonzero(taken & complete & (keys // VALIDATION % PROMPTED == 0)):
                cells[i] = f"{fill(prompt, frame.loc[i].to_dict())} {cells[i]}"
        parts.append(pd.DataFrame({"document": cells[taken], "key": keys[taken]}))
        sources.append(
            {
                "name": file.name,
                "sha256": sha256_file(file),
                "size": size_of(cells[taken]),
                "documents": int(taken.sum()),
                "licence": licence or "not stated",
                "share": share,
                "prompt": prompt,
            }
        )
    found = pd.concat(parts)
    kept = found.drop_duplicates("key")
    if kept.empty:
        raise InputError("the corpus holds no text. Name files with text in them.")
    documents, keys = kept["document"].tolist(), kept["key"].to_numpy()
    return Corpus(sources, documents, keys, len(found) - len(kept))


def size_of(texts: Iterable[str]) -> int:
    """Return the bytes of texts in UTF-8."""
    return sum(len(text.encode()) for text in texts)


def is_text(path: Path) -> bool:
    """Return whether a file's name says that it is plain text."""
    return path.name.lower().endswith(TEXT_ENDINGS)


def paragraphs(file: Path) -> list[str]:
    """Return the parts of a text file between blank lines.

    Raises:
        InputError: the file cannot be read, or is not UTF-8.
    """
    try:
        data = bytearray()
        with open_bytes(file) as opened:
            while block := opened.read(2**20):
                data += block
                check_inflated(len(data), file)
        if data.count(b"\n\n") > most_items(file):
            raise InputError(f"{file}: most of its paragraphs are empty. Keep those with text.")
        return data.decode().replace("\r\n", "\n").split("\n\n")
    except UnicodeDecodeError:
        raise InputError(f"{file}: is not UTF-8. Save it as UTF-8.") from None
    except (EOFError, OSError, zlib.error) as error:
        raise InputError(
            f"{file}: cannot be read ({type(error).__name__}). Copy it again."
        ) from None


def find_clean(documents: Sequence[str], files: Sequence[Path]) -> np.ndarray:
    """Return which documents share nothing with guarded files: (D,) bool.

    Every cell of text in a table is guarded. A corpus may be cut at other places than a guarded
    text, so the text's lines are also guarded one by one.

    Raises:
        InputError: a file cannot be read.
    """
    guarded: list[str] = []
    for file in files:
        if is_text(file):
            texts = paragraphs(file)
        elif format_of(file) is None or not file.is_file():
            raise InputError(f"{file}: is not a text file or table. Check `decontaminate`.")
        else:
            frame = read_frame(file)
            texts = [cell for c in frame.columns for cell in frame[c] if isinstance(cell, str)]
        for text in texts:
            guarded += [text, *(text.splitlines() if "\n" in text else ())]
    vocabulary: dict[str, int] = {}
    ours, theirs = number_words(documents, vocabulary), number_words(guarded, vocabulary)
    words = np.bincount(theirs.row, minlength=theirs.rows)  # of each guarded text
    sharing = np.zeros(len(documents), dtype=bool)
    for length in range(SHORTEST, RUN + 1):
        wanted, rows = theirs.runs(length)
        if length < RUN:  # only whole texts of this length
            wanted = wanted[words[rows] == length]
        codes, rows = ours.runs(length)
        sharing[rows[np.isin(codes, wanted)]] = True
    return ~sharing
