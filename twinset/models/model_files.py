"""Which files of a model's folder are loaded, their hash, and a folder with nothing but these.

A model's configuration may name other files, other folders, code and machine code of the hub, and
the library that loads it follows. So it is given a folder of links to the files that were chosen
here, with configurations that hold plain values only.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from twinset.errors import DAMAGED, InputError
from twinset.files.atomic import sha256_file
from twinset.models.provenance import FACTS

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
CONFIG, TOKENIZER_CONFIG = "config.json", "tokenizer_config.json"
PEFT_CONFIG, ADAPTER = "adapter_config.json", "adapter.safetensors"
MOST_BYTES = 50_000_000  # of a configuration or an index
MOST_PARTS = 1000  # layers, or experts in one
SPARE = 2**28  # numbers that a model may have beside its weights: masks, positions
_PARTS = re.compile(r"(layers?|experts|blocks|stages)$")
_TOKENIZER = (
    TOKENIZER_CONFIG,
    "tokenizer.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
)
# What makes transformers load something else, or choose an implementation that it would fetch.
_STEERING = (
    "auto_map",
    "configuration_files",
    "custom_generate",
    "distributed_config",
    "fast_tokenizer_files",
    "fusion_config",
    "kernel_config",
    "transformers_weights",
    "use_kernels",
)
_STEERING_ENDS = ("_file", "_implementation", "_implementation_internal")


@dataclass(frozen=True)
class ModelFiles:
    """The files that make up a model.

    Args:
        folder: where they are.
        name: what the user called the model.
        weights: names of its safetensors files.
        others: names of all else that is read.
    """

    folder: Path
    name: str
    weights: tuple[str, ...]
    others: tuple[str, ...]

    @classmethod
    def of(cls, folder: Path, name: str) -> ModelFiles:
        """Choose the files of a folder.

        Raises:
            InputError: it has no configuration, no weights as safetensors, an index that names
                anything but safetensors files of this folder, or links that leave it.
        """
        if not (folder / CONFIG).is_file():
            raise InputError(
                f"{name} has no config.json; name a folder that save_pretrained of transformers "
                "wrote"
            )
        index, weights = _weights(folder, name)
        models = sorted(path.name for path in folder.glob("*.model"))
        others = (CONFIG, *index, *_TOKENIZER, *models, FACTS)
        found = cls(
            folder, name, weights, tuple(file for file in others if (folder / file).is_file())
        )
        for file in (*found.weights, *found.others):
            _check_link(folder, file, name)
        return found

    @classmethod
    def of_adapter(cls, folder: Path, name: str) -> ModelFiles:
        """Choose the files of an adapter's folder: its factors, and the facts that name its base.

        Raises:
            InputError: the facts are missing, or a file is a link that leaves the folder.
        """
        if not (folder / FACTS).is_file():
            raise InputError(f"{name} has no {FACTS}, which names the base model of its adapter")
        for file in (ADAPTER, FACTS):
            _check_link(folder, file, name)
        return cls(folder, name, (ADAPTER,), (FACTS,))

    def digest(self) -> str:
        """Return a SHA-256 of all these files and their names."""
        hashes = {file: sha256_file(self.folder / file) for file in (*self.weights, *self.others)}
        return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()

    def check_size(self, kind: Any, config: Any) -> None:
        """Refuse a configuration of a few bytes that would fill all memory: weights must be there.

        Raises:
            InputError: the model has far more numbers than its weights have bytes.
        """
        import torch

        with torch.device("meta"):  # takes no memory
            model = kind.from_config(config)
        numbers = sum(part.numel() for part in (*model.parameters(), *model.buffers()))
        size = sum((self.folder / file).stat().st_size for file in self.weights)
        if numbers > size + SPARE:
            raise InputError(
                f"{self.name}: {CONFIG} describes {numbers} numbers and the weights have {size} "
                "bytes; fetch the model again"
            )

    @contextmanager
    def alone(self) -> Iterator[Path]:
        """Yield a folder that has these files and no others.

        Raises:
            InputError: a configuration is no JSON object, or asks for four-bit or such weights.
        """
        with TemporaryDirectory(prefix="twinset-model-") as made:
            for file in (*self.weights, *self.others):
                if file in (CONFIG, TOKENIZER_CONFIG, INDEX):
                    Path(made, file).write_text(json.dumps(self._plain(file)), "utf-8")
                else:
                    Path(made, file).symlink_to((self.folder / file).resolve())
            yield Path(made)

    def _plain(self, file: str) -> Any:
        data = read_object(self.folder / file, self.name)
        if file == INDEX:  # nothing but tensors' names and files is looked at
            return {"metadata": {}, "weight_map": data["weight_map"]}
        if data.get("quantization_config") is not None:
            raise InputError(
                f"{self.name} is quantised and cannot be trained; name its unquantised form"
            )
        _check_parts(data, self.name)
        return plain_values(data)


def plain_values(data: Any) -> Any:
    """Return a configuration without the entries that lead elsewhere, at any depth."""
    if isinstance(data, list):
        return [plain_values(value) for value in data]
    if not isinstance(data, dict):
        return data
    return {key: plain_values(value) for key, value in data.items() if not _steers(key)}


def _check_parts(data: Any, name: str) -> None:
    """Refuse more layers than any model has: each is made before the first weight is read."""
    values = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in values:
        if isinstance(value, dict | list):
            _check_parts(value, name)
        elif isinstance(value, int) and value > MOST_PARTS and _PARTS.search(str(key)):
            raise InputError(f"{name}: {key} is above {MOST_PARTS} in {CONFIG}; fetch it again")


def read_object(path: Path, name: str) -> dict[str, Any]:
    """Read a model's small JSON file.

    Raises:
        InputError: it is large, damaged, or no JSON object.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError
        data = json.loads(path.read_text("utf-8"))
        json.dumps(data)
    except DAMAGED:
        data = None
    if not isinstance(data, dict):
        raise InputError(f"{name} cannot be loaded: {path.name} is damaged; fetch it again")
    return data


def _steers(key: str) -> bool:
    return key in _STEERING or key.endswith(_STEERING_ENDS) or key == "quantization_config"


def _weights(folder: Path, name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the name of the index, if there is one, and those of the weights."""
    if (folder / WEIGHTS).is_file():
        return (), (WEIGHTS,)
    if not (folder / INDEX).is_file():
        raise InputError(
            f"{name} has no .safetensors weights under the names that transformers gives them, and "
            "pickles (.bin, .pt) are never loaded; convert it with save_pretrained of "
            "transformers on a machine that trusts it"
        )
    files = read_object(folder / INDEX, name).get("weight_map")
    named = set(map(str, files.values())) if isinstance(files, dict) else set()
    if not named or not all(map(partial(_is_part, folder), named)):
        raise InputError(
            f"{name}: {INDEX} must name .safetensors files of the same folder and nothing else; "
            "fetch the model again"
        )
    return (INDEX,), tuple(sorted(named))


def _is_part(folder: Path, file: str) -> bool:
    plain = Path(file).name == file and file.endswith(".safetensors") and "\0" not in file
    return plain and (folder / file).is_file()


def _check_link(folder: Path, file: str, name: str) -> None:
    """Refuse a link that leaves the folder: what it leads to would become part of the model.

    The hub's cache keeps files under `blobs`, and links to them under `snapshots`.
    """
    homes = [folder.resolve()]
    if homes[0].parent.name == "snapshots":
        homes.append(homes[0].parents[1] / "blobs")
    if not any((folder / file).resolve().is_relative_to(home) for home in homes):
        raise InputError(f"{name}: {file} is a link out of the folder; copy the file into it")
