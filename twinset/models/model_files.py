"""Which files of a model's folder are loaded, their hash, and a folder with nothing but these.

A model's configuration may name other files, other folders, and code of the hub, and the library
that loads it follows. So the library gets a folder of links to the files that were chosen here,
with configurations that hold plain values only.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from twinset.errors import DAMAGED, InputError
from twinset.files.atomic import sha256_file

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
CONFIG, TOKENIZER_CONFIG = "config.json", "tokenizer_config.json"
PEFT_CONFIG, ADAPTER = "adapter_config.json", "adapter.safetensors"
FACTS = "pretraining.json"  # what `twinset pretrain` writes about a model
MOST_BYTES = 50_000_000  # of a configuration or an index
MOST_PARTS = 1000  # layers, or experts in one layer
SPARE = 2**28  # numbers that a model may have in addition to its weights: masks, positions
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
# Entries that make transformers load something else, or fetch an implementation.
_STEERING = (
    "auto_map",
    "configuration_files",
    "custom_generate",
    "distributed_config",
    "fast_tokenizer_files",
    "fusion_config",
    "kernel_config",
    "quantization_config",
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
        """Choose the files of a folder: of a whole model, or of an adapter and its facts.

        Args:
            folder: of the model.
            name: what the user called the model.

        Raises:
            InputError: there is no configuration, there are no weights as safetensors, an index
                names anything but safetensors files of this folder, a file is a link that leaves
                the folder, or an adapter is one of peft or lacks the facts that name its base.
        """
        if (folder / PEFT_CONFIG).exists():
            raise InputError(
                f"{name} holds an adapter; merge it into its model (merge_and_unload of peft), "
                "save that and name its folder"
            )
        index: tuple[str, ...] = ()
        weights: tuple[str, ...]
        others: tuple[str, ...]
        if (folder / ADAPTER).exists():
            if not (folder / FACTS).is_file():
                raise InputError(
                    f"{name} has no {FACTS}, which names the base model of its adapter"
                )
            weights, others = (ADAPTER,), (FACTS,)
        elif not (folder / CONFIG).is_file():
            raise InputError(
                f"{name} has no config.json; name a folder that save_pretrained of transformers "
                "wrote"
            )
        else:
            if (folder / WEIGHTS).is_file():
                weights = (WEIGHTS,)
            else:
                index, weights = (INDEX,), _read_index(folder, name)
            models = sorted(path.name for path in folder.glob("*.model"))
            possible = (CONFIG, *index, *_TOKENIZER, *models, FACTS)
            others = tuple(file for file in possible if (folder / file).is_file())

        # What a link leads to becomes part of the model, so it must stay in the folder. The hub's
        # cache keeps files under `blobs` and links to them under `snapshots`.
        homes = [folder.resolve()]
        if homes[0].parent.name == "snapshots":
            homes.append(homes[0].parents[1] / "blobs")
        for file in (*weights, *others):
            if not any((folder / file).resolve().is_relative_to(home) for home in homes):
                raise InputError(
                    f"{name}: {file} is a link out of the folder; copy the file into it"
                )
        return cls(folder, name, weights, others)

    def digest(self) -> str:
        """Return a SHA-256 of all these files and their names."""
        hashes = {file: sha256_file(self.folder / file) for file in (*self.weights, *self.others)}
        return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()

    def check_size(self, kind: Any, config: Any) -> None:
        """Refuse a configuration of a few bytes that would fill all memory.

        Args:
            kind: the class of transformers that makes the model.
            config: of the model.

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
                if file not in (CONFIG, TOKENIZER_CONFIG, INDEX):
                    Path(made, file).symlink_to((self.folder / file).resolve())
                    continue
                data = _read_object(self.folder / file, self.name)
                if file == INDEX:  # only the names of tensors and of files are looked at
                    data = {"metadata": {}, "weight_map": data["weight_map"]}
                else:
                    if data.get("quantization_config") is not None:
                        raise InputError(
                            f"{self.name} is quantised and cannot be trained; name its "
                            "unquantised form"
                        )
                    _check_parts(data, self.name)
                    data = plain_values(data)
                Path(made, file).write_text(json.dumps(data), "utf-8")
            yield Path(made)


def plain_values(data: Any) -> Any:
    """Return a configuration without the entries that lead elsewhere, at any depth.

    >>> plain_values({"n_layer": 2, "auto_map": {"AutoConfig": "code.C"}})
    {'n_layer': 2}
    """
    if isinstance(data, list):
        return [plain_values(value) for value in data]
    if not isinstance(data, dict):
        return data
    return {
        key: plain_values(value)
        for key, value in data.items()
        if key not in _STEERING and not key.endswith(_STEERING_ENDS)
    }


def _check_parts(data: Any, name: str) -> None:
    """Refuse more layers than any model has: each is made before the first weight is read."""
    values = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in values:
        if isinstance(value, dict | list):
            _check_parts(value, name)
        elif isinstance(value, int) and value > MOST_PARTS and _PARTS.search(str(key)):
            raise InputError(f"{name}: {key} is above {MOST_PARTS} in {CONFIG}; fetch it again")


def _read_index(folder: Path, name: str) -> tuple[str, ...]:
    """Return the names of the safetensors files that the index of a model in parts names."""
    if not (folder / INDEX).is_file():
        raise InputError(
            f"{name} has no .safetensors weights under the names that transformers gives them, and "
            "pickles (.bin, .pt) are never loaded; convert it with save_pretrained of "
            "transformers on a machine that trusts it"
        )
    files = _read_object(folder / INDEX, name).get("weight_map")
    named = set(map(str, files.values())) if isinstance(files, dict) else set()
    if not named or not all(
        Path(file).name == file  # no path: neither upwards nor below
        and file.endswith(".safetensors")
        and "\0" not in file
        and (folder / file).is_file()
        for file in named
    ):
        raise InputError(
            f"{name}: {INDEX} must name .safetensors files of the same folder and nothing else; "
            "fetch the model again"
        )
    return tuple(sorted(named))


def _read_object(path: Path, name: str) -> dict[str, Any]:
    """Read a model's small JSON file, which must be an object of limited size."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError
        data = json.loads(path.read_text("utf-8"))
        json.dumps(data)  # what is read must be possible to write: no depth that only reading takes
    except DAMAGED:
        data = None
    if not isinstance(data, dict):
        raise InputError(f"{name} cannot be loaded: {path.name} is damaged; fetch it again")
    return data
