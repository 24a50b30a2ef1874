"""Where figures that were computed on private rows may lie: with their owner, never in `share/`."""

from __future__ import annotations

from pathlib import Path

from twinset.errors import InputError
from twinset.release.share import PRIVACY

OWNER_ONLY = 0o600  # who may read and write a file of them
SHARE = "share"


def check_private_place(output: Path) -> None:
    """Refuse a file that such figures must not go to.

    Raises:
        InputError: the place is meant for others, or there is no such folder.
    """
    folder = output.resolve().parent
    if (folder / PRIVACY).exists() or folder.name == SHARE:
        raise InputError(f"`output={output}`: share/ is for others, and these figures are not")
    if not output.parent.is_dir():
        raise InputError(f"`output={output}`: its folder does not exist; create it")
