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
from typing import Any

from twinset.artefact import room_on_disk, sha256_file, write_json, write_text, writing
from twinset.console import Console
from twinset.errors import InputError
from twinset.lineage import FACTS
from twinset.modelhub import quiet
from twinset.pretraining.card import card, corpus_facts
from twinset.pretraining.config import PretrainConfig
from twinset.pretraining.corpus import Corpus, read_corpus, size_of
from twinset.pretraining.curve import Curve
from twinset.pretraining.decontamination import clean, guarded_texts
from twinset.pretraining.optimizers import NAMES
from twinset.pretraining.packing import Blocks, write_tokens
from twinset.pretraining.training import Learnt, Text, on_cpu, train
from twinset.surroundings import versions

LOG, PICTURE, CARD = "log.jsonl", "curve.png", "README.md"
SETTINGS, CHECKPOINTS = "settings.json", "checkpoints"
GUARDED = "words shared with guarded files"
LIBRARIES = ("twinset", "accelerate", "tokenizers", "torch", "transformers")


@dataclass(frozen=True)
class Wanted:
    """What a model is made of.

    Args:
        corpus: files and folders.
        output: the model's folder.
        config: how it is trained.
        text: column of a table's texts.
        prompt: see `read_corpus`.
        licences: of the corpus, by the beginning of a file's name.
        licence: of the model.
        decontaminate: files that share no long run of words with what is read.
        max_minutes: this time; the same command goes on.
    """

    corpus: tuple[Path, ...]
    output: Path
    config: PretrainConfig
    text: str = "text"
    prompt: str | None = None
    licences: Mapping[str, str] = field(default_factory=dict)
    licence: str = "other"
    decontaminate: tuple[Path, ...] = ()
    max_minutes: float = math.inf


def pretrain(wanted: Wanted, command: str, console: Console) -> dict[str, Any]:
    """Train, or go on training, and return what is known of the model (on the main process).

    Raises:
        InputError: a file cannot be read, the folder holds something else, or a model of other
            settings or another corpus; training diverged; the disk is full.
    """
    work = wanted.output / "training"
    is_new = not wanted.output.exists()
    with room_on_disk(wanted.output), writing(wanted.output):
        try:
            return _pretrain(wanted, work, command, console)
        except InputError:
            if is_new and not any(work.glob(f"{CHECKPOINTS}/*")):  # nothing to go on from
                shutil.rmtree(wanted.output, ignore_errors=True)
            raise


def _pretrain(wanted: Wanted, work: Path, command: str, console: Console) -> dict[str, Any]:
    from accelerate import PartialState

    state = PartialState(cpu=on_cpu())
    with state.main_process_first():  # the others find what it has written
        _check_free(wanted.output, work)
        corpus = _corpus(wanted, console)
        facts = _facts(wanted, corpus, command, console)
        settings = _settings(wanted, facts["corpus"])
        _check_same(work / SETTINGS, settings)
        work.mkdir(parents=True, exist_ok=True)
        model, tokenizer, text = _prepare(wanted, corpus, work, console)
        write_json(work / SETTINGS, settings, mode=0o600)  # hashes of guarded files are private
    curve = Curve(wanted.output / LOG, wanted.output / PICTURE)

    def observe(learnt: Learnt) -> None:
        curve.add(learnt)
        console.learnt(learnt)

    last = train(model, text, wanted.config, work / CHECKPOINTS, observe, wanted.max_minutes * 60)
    if state.is_main_process:
        facts |= _result(model, tokenizer, last)
        _write(wanted.output, model, tokenizer, facts)
        if facts["finished"]:
            shutil.rmtree(work.rename(work.with_name(".finished")))
    state.wait_for_everyone()
    return facts


def _check_free(output: Path, work: Path) -> None:
    if output.exists() and not output.is_dir():
        raise InputError(f"{output}: is a file; name a folder")
    if (output / FACTS).is_file() and not work.is_dir():
        raise InputError(f"{output}: is a finished model; name another folder")
    if output.exists() and any(output.iterdir()) and not work.is_dir():
        raise InputError(f"{output}: holds other files; name another folder")


def _result(model: Any, tokenizer: Any, last: Learnt) -> dict[str, Any]:
    return {
        "vocabulary": len(tokenizer),
        "parameters": sum(p.numel() for p in model.parameters()),
        "weights": str(_kept_type(model)).removeprefix("torch."),
        "finished": last.step == last.steps,
        "validation": {
            "bits_per_byte": last.bits,
            "tokens": last.tokens,
            "steps": last.step,
            "of": last.steps,
        },
    }


def _corpus(wanted: Wanted, console: Console) -> Corpus:
    console.say("reading the corpus")
    corpus = read_corpus(
        wanted.corpus, text=wanted.text, prompt=wanted.prompt, licences=wanted.licences
    )
    if wanted.decontaminate:
        console.say("looking for texts that must not be in it")
        kept = clean(corpus.documents, list(guarded_texts(wanted.decontaminate)))
        dropped = corpus.dropped.copy()  # how many it were is a figure of the guarded files
        corpus.keep(kept.tolist(), GUARDED)
        console.say(f"left out, {GUARDED}: {corpus.dropped[GUARDED]} documents")
        corpus.dropped = dropped
    return corpus


def _facts(wanted: Wanted, corpus: Corpus, command: str, console: Console) -> dict[str, Any]:
    from twinset.basemodel import pretraining_of

    config = wanted.config
    before = None if config.base_model is None else pretraining_of(config.base_model, console.say)
    config = replace(config, base_model=_without_folder(config.base_model))
    base = config.base_model
    return {
        "name": wanted.output.resolve().name,
        "command": command,
        "licence": wanted.licence,
        "origin": f"trained further from {base}" if base else "a GPT-2 from scratch",
        "context": config.context,
        "config": config.to_dict(),
        "optimizer": NAMES,
        "prompt": wanted.prompt,
        "corpus": corpus_facts(corpus),
        "decontaminated": [file.name for file in wanted.decontaminate],
        "versions": versions(LIBRARIES),
        "before": before,
    }


def _without_folder(base: str | None) -> str | None:
    """Return a base model's name; of a folder its own name, as the card is for others."""
    is_folder = base is not None and Path(base).expanduser().is_dir()
    return Path(base).name if base is not None and is_folder else base


def _settings(wanted: Wanted, corpus: Mapping[str, Any]) -> dict[str, Any]:
    """Return all that must be the same to go on."""
    settings = {
        "config": wanted.config.to_dict(),
        "prompt": wanted.prompt,
        "corpus": corpus,
        "guarded": [sha256_file(file) for file in wanted.decontaminate],
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


def _prepare(wanted: Wanted, corpus: Corpus, work: Path, console: Console) -> tuple[Any, Any, Text]:
    """Return model, tokenizer and blocks; what is on the disk already is read."""
    learnt, heldout = corpus.split()
    config = wanted.config
    model, tokenizer = _beginning(config, learnt, work / "tokenizer", console)
    for name, documents in (("learnt", learnt), ("heldout", heldout)):
        if not (work / f"{name}.tokens").is_file():
            new = work / f".{name}.new"
            write_tokens(
                documents, tokenizer, new, lambda *done: console.count("documents read", *done)
            )
            new.rename(work / f"{name}.tokens")
    blocks = [
        Blocks(work / f"{name}.tokens", len(tokenizer), config.context)
        for name in ("learnt", "heldout")
    ]
    if not all(map(len, blocks)):
        raise InputError(f"the corpus is too small for blocks of --context {config.context}")
    return model, tokenizer, Text(blocks[0], blocks[1], size_of(heldout))


def _beginning(
    config: PretrainConfig, documents: list[str], folder: Path, console: Console
) -> tuple[Any, Any]:
    """Return model and tokenizer before the first step."""
    from twinset.basemodel import context_length, load_base

    if config.base_model is not None:
        base = load_base(config.base_model, say=console.say)
        if context_length(base.model) < config.context:
            raise InputError(f"{config.base_model} reads {context_length(base.model)} tokens only")
        return base.model, base.tokenizer
    tokenizer = _tokenizer(config, documents, folder, console)
    return new_model(config, len(tokenizer), tokenizer.eos_token_id), tokenizer


def _tokenizer(config: PretrainConfig, documents: list[str], folder: Path, console: Console) -> Any:
    from transformers import AutoTokenizer

    from twinset.assets import replacing
    from twinset.pretraining.vocabulary import train_tokenizer

    if not folder.is_dir():
        console.say("learning a vocabulary")
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


def _write(output: Path, model: Any, tokenizer: Any, facts: Mapping[str, Any]) -> None:
    """Write the model, its tokenizer, card and facts."""
    import copy

    import torch

    kept = copy.deepcopy(model).to(getattr(torch, facts["weights"]))
    with quiet():
        kept.save_pretrained(output, safe_serialization=True)
    tokenizer.save_pretrained(output)
    write_json(output / FACTS, facts)
    write_text(output / CARD, card(facts))
