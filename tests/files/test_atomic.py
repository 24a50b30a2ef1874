"""Files are written whole or not at all."""

import errno
import json
import os

import pytest

from twinset.errors import InputError
from twinset.files.atomic import write_json


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_files_are_written_whole(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write_json(path, {"ε": 8, "values": [1, None]})
    assert json.loads(path.read_text("utf-8")) == {"ε": 8, "values": [1, None]}
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, float("nan"))
    monkeypatch.setattr("twinset.files.atomic.os.fsync", full)
    with pytest.raises(InputError, match="No space left"):
        write_json(path, {})
    assert json.loads(path.read_text("utf-8"))["ε"] == 8
    assert os.listdir(tmp_path) == ["a.json"]
