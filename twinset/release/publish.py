"""The shared files next to the file a user named: FILE, STEM.README.md, STEM.privacy.json and more.

The signature of `privacy.json` comes with them, if there is one, and so do the files for
registries. Knows names and atomic replacement. Does not know how the twin was made.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from twinset.errors import InputError
from twinset.files.atomic import sha256_file, writing
from twinset.release.card import CARD
from twinset.release.registries import CROISSANT, DEPLOYMENT
from twinset.release.share import LEDGER, PRIVACY, find_twins
from twinset.release.sign import SIGNATURE


def beside(output: Path) -> tuple[Path, Path]:
    """Return the paths of the card and the ledger of an output file.

    >>> [path.name for path in beside(Path("out/twin.parquet"))]
    ['twin.README.md', 'twin.privacy.json']
    """
    return (
        output.with_name(f"{output.stem}.README.md"),
        output.with_name(f"{output.stem}.privacy.json"),
    )


def companions(output: Path) -> dict[str, Path]:
    """Return the paths of all files that come with an output file, by their names in a `share/`.

    >>> [path.name for path in companions(Path("o.csv")).values()][2:]
    ['o.privacy.json.sig', 'o.croissant.json', 'o.deployment.yaml']
    """
    names = (CARD, PRIVACY, PRIVACY + SIGNATURE, CROISSANT, DEPLOYMENT)
    return {name: output.with_name(f"{output.stem}.{name}") for name in names}


def find_published(named: Path) -> Path:
    """Return the published twin of a file that comes with it. Any other file returns itself.

    Raises:
        InputError: there is no twin of its name, or there are several files that may be it.
    """
    endings = [f".{name}" for name in companions(named) if named.name.endswith(f".{name}")]
    if not endings or beside(named)[1].is_file():
        return named
    stem = named.name.removesuffix(endings[0])
    twins = sorted(f for f in named.parent.iterdir() if f.stem == stem and f.is_file())
    if len(twins) != 1:
        found = f" ({' or '.join(f.name for f in twins)})" if twins else f", {stem}.csv or another"
        raise InputError(f"{named}: comes with a twin. Name its file{found}.")
    return twins[0]


def check_output(output: Path, overwrite: bool = False, is_same: bool = False) -> None:
    """Refuse an output file that `publish` could not write. Call it before any training.

    Existing files may be replaced if they are the same already (`is_same`).

    Raises:
        InputError: its folder is missing, not writable or part of a run, or one of the files
            exists. With `overwrite`: the existing file is not a twin.
    """
    folder = output.parent
    if any((folder / name).exists() for name in (PRIVACY, LEDGER)):
        raise InputError(f"`output={output}`: {folder} belongs to a run. Name another folder.")
    if not folder.is_dir():
        raise InputError(f"`output={output}`: the folder {folder} does not exist. Create it.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"`output={output}`: {folder} is not writable. Choose another folder.")
    for path in (output, *companions(output).values()):
        if path.is_dir():
            raise InputError(f"`output={path}`: is a folder. Name a file.")
        if path.exists() and not (overwrite or is_same):
            raise InputError(f"{path}: exists. Use `overwrite`, or name another `output`.")
    # An existing file may be anything, the private table too.
    if output.exists() and not is_same and not beside(output)[1].is_file():
        raise InputError(f"`output={output}`: exists and has no ledger. Name another file.")


def publish(share: Path, output: Path, overwrite: bool = False) -> None:
    """Copy the shared files next to the user's other files: all of them, or none.

    Existing files that are the same already, from a run that was stopped, are replaced.

    Args:
        share: the finished run's `share/`, with one `twin.*`, `README.md`, `privacy.json` and
            others of `companions`.
        output: the twin's new name.
        overwrite: whether other files of these names may be replaced.

    Raises:
        InputError: as `check_output`, or the disk is full. Existing files stay.
    """
    pairs = [(find_twins(share)[0], output)]
    pairs += [(share / name, target) for name, target in companions(output).items()]
    there = [pair for pair in pairs if pair[1].is_file()]
    is_same = all(
        source.is_file() and sha256_file(source) == sha256_file(target) for source, target in there
    )
    check_output(output, overwrite, is_same)
    with (
        writing(output),
        tempfile.TemporaryDirectory(prefix=f".{output.name}.partial-", dir=output.parent) as name,
    ):
        new, old = Path(name, "new"), Path(name, "old")
        new.mkdir()
        old.mkdir()
        # Copies may fail on a full disk. Nothing of the user's was touched by then.
        made = [target for source, target in pairs if source.is_file()]
        for source, target in pairs:
            if target in made:
                shutil.copyfile(source, new / target.name)
        try:
            for _, target in pairs:
                if target.exists():  # an old one, too, where the new twin has none
                    os.replace(target, old / target.name)
                if target in made:
                    os.replace(new / target.name, target)
        except BaseException:  # undo, after Ctrl-C too
            for _, target in pairs:
                if target in made and not (new / target.name).exists():
                    target.unlink(missing_ok=True)
                if (old / target.name).exists():
                    os.replace(old / target.name, target)
            raise
