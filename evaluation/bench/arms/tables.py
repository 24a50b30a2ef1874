"""The public tables of the page, each cut into rows to train on and rows to test on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from evaluation.demo_tables.film_reviews import demo_reviews
from twinset.data.formats import read_frame
from twinset.errors import InputError
from twinset.files.atomic import sha256_file
from twinset.models.assets import Say, asset_path
from twinset.pipeline.request import Source

DEMO = "demo"
SPLITS = ("test", "dev")
DRAW = 0  # seed of what is drawn from a table: the same for every cell


@dataclass(frozen=True)
class Table:
    """One table.

    Args:
        name: in arms.toml.
        train: rows that play the private ones.
        heldout: rows that students are tested on.
        source: `train` with its columns and prompt, as a run takes it.
        options: of runs on this table; those of all runs override them.
        checksums: SHA-256 of each file read.
        always: options that override those of all runs.
    """

    name: str
    train: pd.DataFrame
    heldout: pd.DataFrame
    source: Source
    options: Mapping[str, Any]
    checksums: Mapping[str, str]
    always: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Name of the text column."""
        return str(self.source.text)

    @property
    def attributes(self) -> tuple[str, ...]:
        """Names of the label columns."""
        return self.source.attributes

    def facts(self) -> dict[str, Any]:
        """Return what rows made of this table depend on: ready for JSON, and no text."""
        return {
            "training rows": len(self.train),
            "test rows": len(self.heldout),
            "labels": list(self.attributes),
            "prompt": self.source.prompt,
            "options": {**self.options, **self.always},
            "SHA-256": dict(self.checksums),
        }


def read_table(
    name: str,
    stated: Mapping[str, Any],
    folder: Path,
    size: Mapping[str, Any],
    split: str,
    say: Say,
) -> Table:
    """Read a table; of `split` "dev", test rows are training rows, and no others are read.

    Args:
        name: of the table.
        stated: what arms.toml says of it.
        folder: of all tables.
        size: numbers of the size.
        split: in `SPLITS`.
        say: called before an asset is downloaded.

    Raises:
        InputError: the table is not there.
    """
    train, heldout, checksums = _files(stated.get("folder", name), folder, split, say)
    columns = [stated["text"], *stated["attributes"]]
    train = _some(train[columns], size["train_rows"])
    if heldout is None:
        heldout = train.sample(min(size["dev_rows"], len(train) // 2), random_state=DRAW)
        train = train.drop(heldout.index)
    heldout = _some(heldout[columns], size["test_rows"])
    train, heldout = (part.reset_index(drop=True) for part in (train, heldout))
    asked = stated["text"], tuple(stated["attributes"])
    source = Source(train, *asked, prompt=stated.get("prompt"))
    options = stated.get("options", {}), checksums, stated.get("always", {})
    return Table(name, train, heldout, source, *options)


def _files(
    name: str, folder: Path, split: str, say: Say
) -> tuple[pd.DataFrame, pd.DataFrame | None, dict[str, str]]:
    if name == DEMO:
        train, test = demo_reviews(say)
        corpus = asset_path("demo-reviews", say)
        return train, test if split == "test" else None, {corpus.name: sha256_file(corpus)}
    paths = {part: folder / name / f"{part}.csv.gz" for part in ("train", "test")}
    if split != "test":
        del paths["test"]
    if absent := [path for path in paths.values() if not path.is_file()]:
        raise InputError(f"`tables`: {absent[0]} is not there")
    frames = {part: read_frame(path) for part, path in paths.items()}
    checksums = {path.name: sha256_file(path) for path in paths.values()}
    return frames["train"], frames.get("test"), checksums


def _some(frame: pd.DataFrame, most: int) -> pd.DataFrame:
    """Return so many rows at most; all of them in their own order, where there are no more."""
    return frame if len(frame) <= most else frame.sample(most, random_state=DRAW)
