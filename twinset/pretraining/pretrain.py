"""From files of public text to a base model: corpus → tokenizer → blocks → training → folder.

Knows nothing of privacy: what is named here must be public. Until all steps are done the folder has
a part `training/` to go on from, by the same command.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from twinset.bounds import check_number
from twinset.errors import InputError
from twinset.files.atomic import (
    naming_full_disk,
    open_as_folder,
    sha256_file,
    write_json,
    write_text,
    writing,
)
from twinset.files.environment import versions
from twinset.models.adapters import ALL_LINEAR, Adapter, add_lora, read_factors
from twinset.models.assets import quiet
from twinset.models.model_files import ADAPTER, FACTS
from twinset.pretraining.card import card, corpus_facts
from twinset.pretraining.config import MINUTES, PretrainConfig
from twinset.pretraining.corpus import Corpus, read_corpus, size_of
from twinset.pretraining.decontamination import clean, guarded_texts
from twinset.pretraining.learning_curve import Curve
from twinset.pretraining.optimizers import NAMES, OF_ADAPTERS
from twinset.pretraining.packing import Blocks, blocks_of, tokens_in, write_tokens
from twinset.pretraining.training import Text, is_low, on_cpu, train
from twinset.progress import PretrainingReport, Progress

if TYPE_CHECKING:
    from twinset.models.base_model import BaseModel

LOG, PICTURE, CARD = "log.jsonl", "curve.png", "README.md"
SETTINGS, CHECKPOINTS = "settings.json", "checkpoints"
HELDOUT_BYTES = 1 << 17  # that adapters are validated on, about: a pass takes half a minute
GUARDED = "words shared with guarded files"
LIBRARIES = ("twinset", "accelerate", "tokenizers", "torch", "transformers")


@dataclass(frozen=True)
class PretrainRequest:
    """What a model is made of.

    Args:
        corpus: files and folders.
        output: the model's folder.
        config: how it is trained.
        text: column of a table's texts.
        prompts: see `read_corpus`.
        shares: likewise.
        licences: of the corpus, by the beginning of a file's name.
        licence: of the model.
        decontaminate: files that share no long run of words with what is read.
        max_minutes: this time; None: until it is done. The same command resumes.
    """

    corpus: tuple[Path, ...]
    output: Path
    config: PretrainConfig
    text: str = "text"
    prompts: tuple[str, ...] = ()
    shares: Mapping[str, float] = field(default_factory=dict)
    licences: Mapping[str, str] = field(default_factory=dict)
    licence: str = "other"
    decontaminate: tuple[Path, ...] = ()
    max_minutes: float | None = None

    def __post_init__(self) -> None:
        """Refuse a time that is none."""
        if self.max_minutes is not None:
            check_number("`max_minutes`", self.max_minutes, MINUTES)


@dataclass(frozen=True)
class Trainee:
    """What is trained.

    Args:
        model: causal LM, under adapters where these alone are trained.
        tokenizer: its own.
        adapter: what these are.
    """

    model: Any
    tokenizer: Any
    adapter: Adapter | None = None


def pretrain(request: PretrainRequest, command: str, progress: Progress) -> dict[str, Any]:
    """Train, or go on training, and return what is known of the model (on the main process).

    Raises:
        InputError: a file cannot be read, the folder holds something else, or a model of other
            settings or another corpus; training diverged; the disk is full.
    """
    work = request.output / "training"
    is_new = not request.output.exists()
    with naming_full_disk(request.output), writing(request.output):
        try:
            return _pretrain(request, work, command, progress)
        except InputError:
            if is_new and not any(work.glob(f"{CHECKPOINTS}/*")):  # nothing to go on from
                shutil.rmtree(request.output, ignore_errors=True)
            raise


def _pretrain(
    request: PretrainRequest, work: Path, command: str, progress: Progress
) -> dict[str, Any]:
    from accelerate import PartialState

    state = PartialState(cpu=on_cpu())
    with state.main_process_first():  # the others find what it has written
        _check_base(request.config)
        _check_free(request.output, work)
        corpus = _corpus(request, progress)
        facts = _facts(request, corpus, command, progress)
        settings = _settings(request, facts["corpus"])
        _check_same(work / SETTINGS, settings)
        work.mkdir(parents=True, exist_ok=True)
        work.chmod(0o700)  # what is trained on and what is left out stand there side by side
        trainee, text = _prepare(request, corpus, work, progress)
        write_json(work / SETTINGS, settings, mode=0o600)  # hashes of guarded files are private
    curve = Curve(request.output / LOG, request.output / PICTURE)

    def on_progress(report: PretrainingReport) -> None:
        curve.add(report)
        progress.pretraining_step(report)

    seconds = math.inf if request.max_minutes is None else request.max_minutes * 60
    last = train(trainee.model, text, request.config, work / CHECKPOINTS, on_progress, seconds)
    if state.is_main_process:
        facts |= _result(trainee, last)
        _write(request.output, trainee, facts)
        if facts["finished"]:
            shutil.rmtree(work.rename(work.with_name(".finished")))
    state.wait_for_everyone()
    return facts


def _check_base(config: PretrainConfig) -> None:
    from twinset.models.base_model import builtin_models

    if config.lora_rank is not None and config.base_model not in builtin_models():
        raise InputError(
            f"`lora_rank`: {config.base_model} is no built-in model, and an adapter holds no copy "
            f"of its base; there are {', '.join(builtin_models())}"
        )


def _check_free(output: Path, work: Path) -> None:
    if output.exists() and not output.is_dir():
        raise InputError(f"{output}: is a file; name a folder")
    if (output / FACTS).is_file() and not work.is_dir():
        raise InputError(f"{output}: is a finished model; name another folder")
    if output.exists() and any(output.iterdir()) and not work.is_dir():
        raise InputError(f"{output}: holds other files; name another folder")


def _result(trainee: Trainee, last: PretrainingReport) -> dict[str, Any]:
    import torch

    adapter, model = trainee.adapter, trainee.model
    kept = _kept_type(model) if adapter is None else torch.bfloat16
    return {
        "vocabulary": len(trainee.tokenizer),
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "weights": str(kept).removeprefix("torch."),
        "adapter": None if adapter is None else adapter.to_dict(),
        "finished": last.step == last.steps,
        "validation": {
            "bits_per_byte": last.bits,
            "tokens": last.tokens,
            "steps": last.step,
            "of": last.steps,
        },
    }


def _corpus(request: PretrainRequest, progress: Progress) -> Corpus:
    progress.say("reading the corpus")
    corpus = read_corpus(
        request.corpus,
        text=request.text,
        prompts=request.prompts,
        shares=request.shares,
        licences=request.licences,
    )
    if request.decontaminate:
        progress.say("looking for texts that must not be in it")
        kept = clean(corpus.documents, list(guarded_texts(request.decontaminate)))
        guarded = [key for key, good in zip(corpus.keys, kept.tolist(), strict=True) if not good]
        corpus.guarded = frozenset(guarded)
        progress.say(f"left out, {GUARDED}: {len(guarded)} documents")
    return corpus


def _facts(
    request: PretrainRequest, corpus: Corpus, command: str, progress: Progress
) -> dict[str, Any]:
    from twinset.models.base_model import pretraining_of

    config = request.config
    before = None if config.base_model is None else pretraining_of(config.base_model, progress.say)
    config = replace(config, base_model=_without_folder(config.base_model))
    base = config.base_model
    return {
        "name": request.output.resolve().name,
        "command": command,
        "licence": request.licence,
        "origin": f"trained further from {base}" if base else "a GPT-2 from scratch",
        "context": config.context,
        "config": config.to_dict(),
        "optimizer": OF_ADAPTERS if config.lora_rank else NAMES,
        "prompt": request.prompts,
        "share": request.shares,
        "corpus": corpus_facts(corpus),
        "decontaminated": [file.name for file in request.decontaminate],
        "versions": versions(LIBRARIES),
        "before": before,
    }


def _without_folder(base: str | None) -> str | None:
    """Return a base model's name; of a folder its own name, as the card is for others."""
    is_folder = base is not None and Path(base).expanduser().is_dir()
    return Path(base).name if base is not None and is_folder else base


def _settings(request: PretrainRequest, corpus: Mapping[str, Any]) -> dict[str, Any]:
    """Return all that must be the same to go on."""
    settings = {
        "config": request.config.to_dict(),
        "prompt": request.prompts,
        "share": request.shares,
        "corpus": corpus,
        "guarded": [sha256_file(file) for file in request.decontaminate],
    }
    plain: dict[str, Any] = json.loads(json.dumps(settings))
    return plain


def _check_same(path: Path, settings: Mapping[str, Any]) -> None:
    if not path.is_file():
        return
    known = json.loads(path.read_text("utf-8"))
    if other := [key for key in settings if known.get(key) != settings[key]]:
        raise InputError(
            f"{path.parent.parent}: was begun with another {other[0]}; name another folder, or "
            "remove this one"
        )


def _prepare(
    request: PretrainRequest, corpus: Corpus, work: Path, progress: Progress
) -> tuple[Trainee, Text]:
    """Return what is trained, and on which blocks; what is on the disk already is read.

    What is left out is tokenised too, for the number of steps: it must not tell how much that is.
    """
    training, heldout = corpus.split()
    config = request.config
    if config.lora_rank is not None:
        heldout = _some(heldout, HELDOUT_BYTES)
    trainee = _beginning(config, training, work / "tokenizer", progress)
    tokenizer = trainee.tokenizer
    parts = {"training": training, "heldout": heldout, "left-out": corpus.left_out()}
    for name, documents in parts.items():
        if not (work / f"{name}.tokens").is_file():
            new = work / f".{name}.new"
            write_tokens(
                documents, tokenizer, new, lambda *done: progress.count("documents read", *done)
            )
            new.rename(work / f"{name}.tokens")
    blocks = [
        Blocks(work / f"{name}.tokens", len(tokenizer), config.context)
        for name in ("training", "heldout")
    ]
    if not all(map(len, blocks)):
        raise InputError(f"the corpus is too small for blocks of `context={config.context}`")
    tokens = sum(
        tokens_in(work / f"{name}.tokens", len(tokenizer)) for name in ("training", "left-out")
    )
    before = blocks_of(tokens, config.context)
    return trainee, Text(blocks[0], blocks[1], size_of(heldout), before)


def _some(documents: list[str], size: int) -> list[str]:
    """Return documents of so many bytes, or just more: the first of a fixed shuffle."""
    order = np.random.default_rng(0).permutation(len(documents))
    ends = np.cumsum([len(documents[i].encode()) for i in order])
    return [documents[i] for i in order[: np.searchsorted(ends, size) + 1]]


def _beginning(
    config: PretrainConfig, documents: list[str], folder: Path, progress: Progress
) -> Trainee:
    """Return what is trained, before the first step."""
    import torch

    from twinset.models.base_model import check_base, context_length, load_base

    if config.base_model is None:
        tokenizer = _tokenizer(config, documents, folder, progress)
        return Trainee(new_model(config, len(tokenizer), tokenizer.eos_token_id), tokenizer)
    check_base(config.base_model)
    low = config.lora_rank is not None and is_low(config)
    base = load_base(
        config.base_model, dtype=torch.bfloat16 if low else torch.float32, say=progress.say
    )
    if context_length(base.model) < config.context:
        raise InputError(f"{config.base_model} reads {context_length(base.model)} tokens only")
    return _adapted(base, config) if config.lora_rank else Trainee(base.model, base.tokenizer)


def _adapted(base: BaseModel, config: PretrainConfig) -> Trainee:
    """Return a frozen base under adapters, whose start the seed decides."""
    import torch

    assert config.lora_rank is not None
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        model = add_lora(base.model, config.lora_rank, ALL_LINEAR)
    adapter = Adapter(base.name, base.origin, config.lora_rank, read_factors(model)[1])
    return Trainee(model, base.tokenizer, adapter)


def _tokenizer(
    config: PretrainConfig, documents: list[str], folder: Path, progress: Progress
) -> Any:
    from transformers import AutoTokenizer

    from twinset.files.atomic import replacing
    from twinset.pretraining.tokenizer import train_tokenizer

    if not folder.is_dir():
        progress.say("learning a vocabulary")
        with replacing(folder) as new:
            train_tokenizer(documents, config.shape.vocabulary).save_pretrained(new)
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


def new_model(config: PretrainConfig, vocabulary: int, end: int) -> Any:
    """Return a GPT-2 with random weights."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = config.shape
    made = GPT2Config(
        vocab_size=vocabulary,
        n_positions=config.context,
        n_embd=shape.width,
        n_layer=shape.layers,
        n_head=shape.heads,
        bos_token_id=end,
        eos_token_id=end,
        resid_pdrop=0.0,  # hardly any token is read twice
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        return GPT2LMHeadModel(made)


def _kept_type(model: Any) -> Any:
    """Return float16, or float32 where a weight is too large for it."""
    import torch

    largest = max(float(p.detach().abs().max()) for p in model.parameters())
    return torch.float16 if largest < torch.finfo(torch.float16).max else torch.float32


def _write(output: Path, trainee: Trainee, facts: Mapping[str, Any]) -> None:
    """Write the model with its tokenizer, or the adapter alone; card and facts."""
    if trainee.adapter is None:
        _write_model(output, trainee, facts["weights"])
    else:
        from safetensors.torch import save_file

        save_file(read_factors(trainee.model)[0], output / ADAPTER)
    write_json(output / FACTS, facts)
    write_text(output / CARD, card(facts))
    open_as_folder(output)


def _write_model(output: Path, trainee: Trainee, dtype: str) -> None:
    import copy

    import torch

    kept = copy.deepcopy(trainee.model).to(getattr(torch, dtype))
    with quiet():
        kept.save_pretrained(output, safe_serialization=True)
    trainee.tokenizer.save_pretrained(output)
