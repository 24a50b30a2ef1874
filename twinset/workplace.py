"""Where a private fine-tuning is done, what it goes on from, and with whom."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from twinset.resumption import Resumption
from twinset.team import Team


@dataclass(frozen=True)
class Workplace:
    """Where a fine-tuning is done.

    Args:
        folder: private to its owner, for tokens; None: they are kept in memory.
        resumption: keeps what a stopped fine-tuning goes on from; None: nothing is kept.
        team: processes that form sums together; None: this one alone. It needs a folder.
    """

    folder: Path | None = None
    resumption: Resumption | None = None
    team: Team | None = None

    def tokens(self, name: str) -> Path | None:
        """Return a folder for tokens of one kind."""
        if self.folder is None:
            return None
        made = self.folder / name
        made.mkdir(mode=0o700, parents=True, exist_ok=True)
        return made

    @contextmanager
    def cleared(self) -> Iterator[None]:
        """Remove all tokens at the end of the block, however it ends: they hold the texts.

        A killed process leaves them, and a run that goes on from there looks at them again.
        """
        try:
            yield
        finally:
            if self.folder is not None:
                shutil.rmtree(self.folder, ignore_errors=True)
