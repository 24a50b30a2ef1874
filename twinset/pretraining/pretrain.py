"""From files of public text to a base model: corpus → tokenizer → blocks → Trainer → folder.

Knows nothing of privacy: everything that is named here must be public. `transformers.Trainer`
trains, on one process or several, and keeps checkpoints. Until all steps are done, the folder of
the model has a part `training/` from which the same command resumes.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import broadcast
from datasets import Dataset
from safetensors.torch import save_file
from transformers import (
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from twinset.errors import InputError
from twinset.files.atomic import (
    naming_full_disk,
    open_as_folder,
    replacing,
    sha256_file,
    write_json,
    write_text,
    writing,
)
from twinset.files.environment import versions
from twinset.models.adapters import ALL_LINEAR, Adapter, add_lora, read_factors
from twinset.models.assets import quiet
from twinset.models.base_model import (
    builtin_models,
    check_base,
    context_length,
    load_base,
    pretraining_of,
    stages,
)
from twinset.models.device import device_of, has_bfloat16, is_cpu
from twinset.models.model_files import ADAPTER, FACTS
from twinset.pretraining.config import PretrainConfig, PretrainRequest
from twinset.pretraining.corpus import RUN, find_clean, read_corpus, read_guarded
from twinset.progress import PretrainingReport, Progress

END = "<|endoftext|>"
DOCUMENTS_AT_ONCE = 1000  # that are tokenised together
HELDOUT_BYTES = (
    1 << 17
)  # that adapters are validated on: a pass of a large base takes half a minute
# Validations and log lines in a run, about. Adapters have large bases, so fewer validations.
VALIDATIONS, VALIDATIONS_OF_ADAPTERS, LINES = 60, 20, 200
CHECKPOINT_SECONDS = 180.0
LIBRARIES = ("twinset", "accelerate", "datasets", "tokenizers", "torch", "transformers")


def pretrain(request: PretrainRequest, command: str, progress: Progress) -> dict[str, Any]:
    """Train a base model on public text, or resume, and return what is known about it.

    The folder gets the model with its tokenizer (or the factors of an adapter), `README.md` with
    the card, `pretraining.json` with the same facts, and `log.jsonl` with the curve.

    Args:
        request: files, options and the folder of the model.
        command: the line that made it, for the card. It must hold no folder of this machine.
        progress: is shown each logged step.

    Returns:
        The facts of `pretraining.json`.

    Raises:
        InputError: a file cannot be read, the folder holds something else or a model of other
            settings or another corpus, the base was made from private records, training diverged,
            or the disk is full.
    """
    output, work, base = request.output, request.output / "training", request.config.base_model
    is_new = not output.exists()
    if base is not None:
        check_base(base)  # before anything slow, and before the hub is asked for it
        if request.config.lora_rank is not None and base not in builtin_models():
            raise InputError(
                f"`lora_rank`: {base} is no built-in model, and an adapter holds no copy of its "
                f"base; there are {', '.join(builtin_models())}"
            )
    if output.exists() and not output.is_dir():
        raise InputError(f"{output}: is a file; name a folder")
    if not work.is_dir():
        if (output / FACTS).is_file():
            raise InputError(f"{output}: is a finished model; name another folder")
        if not is_new and any(output.iterdir()):
            raise InputError(f"{output}: holds other files; name another folder")
    with naming_full_disk(output), writing(output):
        try:
            return _pretrain(request, work, command, progress)
        except InputError:
            if is_new and not any(work.glob("checkpoint-*")):  # there is nothing to resume
                shutil.rmtree(output, ignore_errors=True)
            raise


def _pretrain(
    request: PretrainRequest, work: Path, command: str, progress: Progress
) -> dict[str, Any]:
    config, state = request.config, PartialState(cpu=is_cpu(device_of()))
    with state.main_process_first():  # the other processes read the tokenizer that it has written
        # 1. Read the corpus, and find what must not be trained on.
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
            clean = find_clean(corpus.documents, list(read_guarded(request.decontaminate)))
            guarded = [key for key, good in zip(corpus.keys, clean, strict=True) if not good]
            corpus.guarded = frozenset(guarded)
            progress.say(f"left out, words shared with guarded files: {len(guarded)} documents")
        training, heldout, left_out = corpus.split()

        # 2. What is known about the model so far. The card is for others: no folder of a path.
        base = config.base_model
        before = None if base is None else pretraining_of(base, progress.say)
        if base is not None and Path(base).expanduser().is_dir():
            base = Path(base).name
        facts: dict[str, Any] = {
            "name": request.output.resolve().name,
            "command": command,
            "licence": request.licence,
            "origin": f"trained further from {base}" if base else "a GPT-2 from scratch",
            "context": config.context,
            "config": asdict(replace(config, base_model=base)),
            "optimizer": "AdamW",
            "prompt": request.prompts,
            "share": request.shares,
            "corpus": {  # before guarded documents were left out
                "sources": [vars(source) for source in corpus.sources],
                "documents": len(corpus.documents),
                "bytes": size_of(corpus.documents),
                "dropped": corpus.dropped,
                "counted_before_decontamination": True,  # older models state what was left
            },
            "decontaminated": [file.name for file in request.decontaminate],
            "versions": versions(LIBRARIES),
            "curve": False,  # older models have a picture of it
            "before": before,
        }

        # 3. A run that resumes must have the same settings. Hashes of guarded files are private.
        settings = {
            "config": asdict(config),
            **{k: facts[k] for k in ("prompt", "share", "corpus")},
        }
        settings["guarded"] = [sha256_file(file) for file in request.decontaminate]
        settings = json.loads(json.dumps(settings))
        if (work / "settings.json").is_file():
            known = json.loads((work / "settings.json").read_text("utf-8"))
            if other := [key for key in settings if known.get(key) != settings[key]]:
                raise InputError(
                    f"{request.output}: was begun with another {other[0]}; name another folder, or "
                    "remove this one"
                )
        work.mkdir(parents=True, exist_ok=True)
        work.chmod(0o700)  # what is trained on and what is left out can be told apart there
        model, tokenizer, adapter = _prepare_model(config, training, work / "tokenizer", progress)
        write_json(work / "settings.json", settings, mode=0o600)

    # 4. Pack the documents. The number of steps counts what is left out as well: it is published,
    # and must not tell how much that is.
    if config.lora_rank is not None:
        order = np.random.default_rng(0).permutation(len(heldout))
        ends = np.cumsum([len(heldout[i].encode()) for i in order])
        heldout = [heldout[i] for i in order[: np.searchsorted(ends, HELDOUT_BYTES) + 1]]
    tokens, validation, unread = (
        encode_documents(documents, tokenizer, progress)
        for documents in (training, heldout, left_out)
    )
    blocks, heldout_blocks = (pack_blocks(x, config.context) for x in (tokens, validation))
    all_blocks = (len(tokens) + len(unread) - 1) // (config.context - 1)
    steps = max(1, math.ceil(config.epochs * all_blocks / config.batch_size))
    if not len(blocks) or not len(heldout_blocks):
        raise InputError(f"the corpus is too small for blocks of `context={config.context}`")

    # 5. Train, from the newest whole checkpoint on.
    watch = _Watch(request, steps, len(validation) / size_of(heldout) / math.log(2), progress)
    arguments = _arguments(config, steps, work, state.num_processes)
    with quiet():
        trainer = _PublicTrainer(
            model,
            arguments,
            train_dataset=Dataset.from_dict({"input_ids": blocks, "labels": blocks}),
            eval_dataset=Dataset.from_dict({"input_ids": heldout_blocks, "labels": heldout_blocks}),
            callbacks=[watch],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train(resume_from_checkpoint=_newest_checkpoint(work))
        if watch.bits is None:  # killed after the last step, so none was taken here
            trainer.evaluate()
        model = trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
    finished = trainer.state.global_step == steps

    # 6. Write the model, its facts and its card.
    facts |= {
        "vocabulary": len(tokenizer),
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "weights": "bfloat16",
        "adapter": None if adapter is None else asdict(adapter),
        "finished": finished,
        "validation": {
            "bits_per_byte": watch.bits,
            "tokens": trainer.state.global_step * watch.tokens_per_step,
            "steps": trainer.state.global_step,
            "of": steps,
        },
    }
    if state.is_main_process:
        history = trainer.state.log_history
        _write_folder(request.output, model, tokenizer, facts, history)
        if finished:
            shutil.rmtree(work.rename(work.with_name(".finished")))
    state.wait_for_everyone()
    return facts


def _write_folder(
    output: Path, model: Any, tokenizer: Any, facts: dict[str, Any], history: Sequence[Any]
) -> None:
    """Write the model with its tokenizer, or the adapter alone, with log, facts and card."""
    if facts["adapter"] is None:
        # float16, or float32 if a weight is too large for it
        largest = max(float(p.detach().abs().max()) for p in model.parameters())
        kept = torch.float16 if largest < torch.finfo(torch.float16).max else torch.float32
        facts["weights"] = str(kept).removeprefix("torch.")
        with quiet():
            model.to(kept).save_pretrained(output)
        tokenizer.save_pretrained(output)
    else:
        save_file(read_factors(model)[0], output / ADAPTER)
    # The Trainer's own log tells the epoch as well, and so how much is trained on.
    lines = [
        json.dumps({name: entry.get(name) for name in ("step", "loss", "bits")}) + "\n"
        for entry in history
        if {"loss", "bits"} & entry.keys()
    ]
    write_text(output / "log.jsonl", "".join(lines))
    write_json(output / FACTS, facts)
    write_text(output / "README.md", render_card(facts))
    open_as_folder(output)


# --- what is trained ----------------------------------------------------------------------------


def _prepare_model(
    config: PretrainConfig, documents: Sequence[str], folder: Path, progress: Progress
) -> tuple[Any, Any, Adapter | None]:
    """Return the model before the first step, its tokenizer, and what its adapters are."""
    if config.base_model is None:
        if not folder.is_dir():  # else a run that resumes reads it
            progress.say("learning a vocabulary")
            with replacing(folder) as new:
                train_tokenizer(documents, config.shape.vocabulary).save_pretrained(new)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        shape = config.shape
        gpt2 = GPT2Config(
            vocab_size=len(tokenizer),
            n_positions=config.context,
            n_embd=shape.width,
            n_layer=shape.layers,
            n_head=shape.heads,
            bos_token_id=tokenizer.eos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            resid_pdrop=0.0,  # no dropout: hardly any token is read twice
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
        with torch.random.fork_rng():
            torch.manual_seed(config.seed)
            return GPT2LMHeadModel(gpt2), tokenizer, None

    # A frozen base may be in bfloat16. Trained weights and their updates are always in float32.
    dtype = torch.bfloat16 if config.lora_rank and is_low(config) else torch.float32
    base = load_base(config.base_model, dtype=dtype, say=progress.say)
    if context_length(base.model) < config.context:
        raise InputError(f"{config.base_model} reads {context_length(base.model)} tokens only")
    if config.lora_rank is None:
        return base.model, base.tokenizer, None
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        model = add_lora(base.model, config.lora_rank, ALL_LINEAR)
    adapter = Adapter(base.name, base.origin, config.lora_rank, read_factors(model)[1])
    return model, base.tokenizer, adapter


def is_low(config: PretrainConfig) -> bool:
    """Return whether products are in bfloat16: as asked, or where the device is fast in it."""
    automatic = config.precision == "auto" and has_bfloat16(device_of())
    return automatic or config.precision == "bfloat16"


def train_tokenizer(documents: Sequence[str], size: int) -> Any:
    """Return a tokenizer of bytes: byte-level BPE as in GPT-2, trained on public text.

    Args:
        documents: texts.
        size: most tokens, among them all bytes and the end of text.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(documents, trainer, length=len(documents))
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=END, bos_token=END, unk_token=END, pad_token=END
    )


# --- text as blocks -----------------------------------------------------------------------------


def size_of(texts: Sequence[str]) -> int:
    """Return the bytes of texts in UTF-8."""
    return sum(len(text.encode()) for text in texts)


def encode_documents(
    documents: Sequence[str], tokenizer: Any, progress: Progress | None = None
) -> np.ndarray:
    """Return the tokens of all documents, each behind an end of text, in the order of a shuffle.

    Args:
        documents: texts.
        tokenizer: has an end-of-text token.
        progress: is shown how many documents are read.

    Returns:
        (N,) int32.
    """
    order = np.random.default_rng(0).permutation(len(documents))
    parts = [np.empty(0, dtype=np.int32)]
    for start in range(0, len(order), DOCUMENTS_AT_ONCE):
        some = [documents[i] for i in order[start : start + DOCUMENTS_AT_ONCE]]
        for ids in tokenizer(some, add_special_tokens=False)["input_ids"]:
            parts.append(np.array([tokenizer.eos_token_id, *ids], dtype=np.int32))
        if progress is not None:
            progress.count("documents read", start + len(some), len(order))
    return np.concatenate(parts)


def pack_blocks(tokens: np.ndarray, context: int) -> np.ndarray:
    """Return tokens as blocks. Each begins with the last token of the one before it.

    So every token but the first is predicted once. What does not fill a block is left over.

    >>> pack_blocks(np.arange(8), 4)
    array([[0, 1, 2, 3],
           [3, 4, 5, 6]])
    """
    number = max(0, len(tokens) - 1) // (context - 1)
    starts = np.arange(number)[:, None] * (context - 1)
    found: np.ndarray = tokens[starts + np.arange(context)]  # (blocks, context)
    return found


# --- the Trainer --------------------------------------------------------------------------------


def _arguments(config: PretrainConfig, steps: int, work: Path, processes: int) -> TrainingArguments:
    if config.batch_size % processes:
        raise InputError(
            f"`batch_size={config.batch_size}` cannot be shared by {processes} processes"
        )
    share = config.batch_size // processes
    micro = max(n for n in range(1, min(config.micro_batch, share) + 1) if share % n == 0)
    validations = VALIDATIONS_OF_ADAPTERS if config.lora_rank else VALIDATIONS
    on_cpu = is_cpu(device_of())
    arguments = TrainingArguments(
        output_dir=str(work),
        max_steps=steps,
        per_device_train_batch_size=micro,
        per_device_eval_batch_size=config.micro_batch,
        gradient_accumulation_steps=share // micro,
        learning_rate=config.learning_rate,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": 0.1},
        warmup_steps=max(1, round(config.warmup * steps)),
        weight_decay=0.0 if config.lora_rank else config.weight_decay,
        adam_beta2=0.95,  # usual for language models: gradients change faster than 0.999 forgets
        max_grad_norm=1.0,
        bf16=is_low(config) and config.lora_rank is None,  # a frozen base is in bfloat16 itself
        seed=config.seed,
        data_seed=config.seed,
        eval_strategy="steps",
        eval_steps=max(1, steps // validations),
        # The base itself is validated before the first step.
        eval_on_start=config.lora_rank is not None and _newest_checkpoint(work) is None,
        logging_steps=max(1, steps // LINES),
        logging_nan_inf_filter=False,
        save_strategy="no",  # `_Watch` saves by the clock
        save_total_limit=2,
        prediction_loss_only=True,
        use_cpu=on_cpu,
        dataloader_pin_memory=not on_cpu,
        disable_tqdm=True,
        report_to="none",
        log_level="error",
    )
    arguments._n_gpu = min(1, arguments.n_gpu)  # several GPUs are for several processes
    return arguments


def _newest_checkpoint(work: Path) -> str | None:
    """Return the newest checkpoint that is whole: the Trainer writes its state last."""
    found = sorted(work.glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2]))
    for folder in reversed(found):
        with suppress(OSError, ValueError):
            json.loads((folder / "trainer_state.json").read_text("utf-8"))
            return str(folder)
    return None


class _PublicTrainer(Trainer):
    """The Trainer of transformers, which stops where the loss is no number."""

    def training_step(self, *given: Any, **more: Any) -> torch.Tensor:
        loss: torch.Tensor = super().training_step(*given, **more)
        if not torch.isfinite(loss):
            step = self.state.global_step + 1
            raise InputError(f"training diverged at step {step}; lower `learning_rate`")
        return loss


class _Watch(TrainerCallback):
    """Reports steps, converts losses to bits per byte, and stops and saves by the clock."""

    def __init__(
        self, request: PretrainRequest, steps: int, bits_of_nats: float, progress: Progress
    ) -> None:
        config = request.config
        self._steps, self._bits_of_nats, self._progress = steps, bits_of_nats, progress
        self.tokens_per_step = config.batch_size * (config.context - 1)
        minutes = request.max_minutes
        self._seconds = math.inf if minutes is None else minutes * 60
        self._began = self._saved = time.monotonic()
        self._first: int | None = None  # steps done before this process
        self._loss: float | None = None
        self.bits: float | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._first = state.global_step
        self._began = self._saved = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # Clocks differ, and all processes must do the same: the first one decides.
        now = time.monotonic()
        answers = [now - self._began > self._seconds, now - self._saved > CHECKPOINT_SECONDS]
        late, due = broadcast(torch.tensor(answers, device=args.device)).tolist()
        control.should_training_stop |= late
        control.should_save |= late or due
        control.should_evaluate |= late or state.global_step == self._steps
        if control.should_save:
            self._saved = now

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self._loss = logs.get("loss", self._loss)
        bits = None
        if "eval_loss" in logs:
            bits = self.bits = logs["eval_loss"] * self._bits_of_nats
            state.log_history[-1]["bits"] = bits
        elif "loss" not in logs:  # the summary at the end
            return
        step, seconds = state.global_step, time.monotonic() - self._began
        taken = step - (self._first or 0)
        self._progress.pretraining_step(
            PretrainingReport(
                step, self._steps, self._loss, step * self.tokens_per_step, seconds, taken, bits
            )
        )


def render_card(facts: Mapping[str, Any]) -> str:
    """Return the model card in Markdown: what a model read, how, and how well it reads.

    Args:
        facts: of `pretraining.json`.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    template = files("twinset.pretraining").joinpath("card.md.jinja").read_text("utf-8")
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    return environment.from_string(template).render(
        facts=facts,
        adapter=facts.get("adapter"),
        stages=stages(facts["before"]),
        RUN=RUN,
        versions=versions,
    )
