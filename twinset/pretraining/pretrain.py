"""From files of public text to a base model: corpus → tokenizer → blocks → Trainer → folder.

This module knows nothing of privacy: all its inputs must be public. `transformers.Trainer` trains,
in one process or several, and keeps checkpoints. Until all steps are done, the model's folder has a
subfolder `training/`, from which the same command resumes.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import broadcast
from datasets import Dataset
from jinja2 import Environment, StrictUndefined
from safetensors.torch import save_file
from transformers import (
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from twinset.errors import InputError
from twinset.files import atomic
from twinset.files.environment import versions
from twinset.models.adapters import ALL_LINEAR, Adapter, add_lora, read_factors
from twinset.models.assets import GPT2_MINI, quiet, shipped_folder
from twinset.models.base_model import (
    ADAPTER,
    FACTS,
    builtin_models,
    check_base,
    context_length,
    load_base,
    locate_model,
    read_facts,
    stages,
)
from twinset.models.device import device_of, has_bfloat16, is_cpu
from twinset.pretraining import PretrainConfig
from twinset.pretraining.corpus import RUN, find_clean, read_corpus, size_of
from twinset.progress import Progress

DOCUMENTS_AT_ONCE = 1000  # that are tokenised together
# Adapters are validated on this many tokens: a pass of a large base takes half a minute.
HELDOUT_TOKENS = 1 << 15
# Validations and log lines in a run, about. Adapters have large bases, so fewer validations.
VALIDATIONS, VALIDATIONS_OF_ADAPTERS, LINES = 60, 20, 200
CHECKPOINT_SECONDS = 180.0
LIBRARIES = ("twinset", "accelerate", "datasets", "tokenizers", "torch", "transformers")
# Options that decide how a corpus is read or how long, and not how the model is trained.
BESIDE = ("text", "licences", "licence", "decontaminate", "max_minutes")


def pretrain(
    corpus: Sequence[Path], output: Path, config: PretrainConfig, command: str, progress: Progress
) -> dict[str, Any]:
    """Train a base model on public text, or resume, and return its facts.

    The folder gets the model with its tokenizer (or the factors of an adapter), `README.md` with
    the card, `pretraining.json` with the returned facts, and `log.jsonl` with the curve. `command`
    is the command line for the card. It must not name a folder of this machine.

    Raises:
        InputError: a file cannot be read, the folder holds something else or a model of other
            options or another corpus, or the base was made from private records. Or training
            diverged, or the disk is full.
    """
    work, base, is_new = output / "training", config.base_model, not output.exists()
    if base is not None:
        check_base(base)  # before anything slow, and before the hub is asked for it
        if config.lora_rank is not None and base not in builtin_models():
            raise InputError(
                f"`lora_rank`: {base} is not built in, and an adapter holds no copy of its base "
                f"model. Choose one of {', '.join(builtin_models())}."
            )
    if output.exists() and not output.is_dir():
        raise InputError(f"{output}: is a file. Name a folder.")
    if not work.is_dir():
        if (output / FACTS).is_file():
            raise InputError(f"{output}: holds a finished model. Name another folder.")
        if not is_new and any(output.iterdir()):
            raise InputError(f"{output}: holds other files. Name another folder.")
    with atomic.writing(output):
        try:
            return train_base(corpus, output, work, config, command, progress)
        except InputError:
            if is_new and not any(work.glob("checkpoint-*")):  # there is nothing to resume
                shutil.rmtree(output, ignore_errors=True)
            raise


def train_base(
    paths: Sequence[Path],
    output: Path,
    work: Path,
    config: PretrainConfig,
    command: str,
    progress: Progress,
) -> dict[str, Any]:
    """Do the work of `pretrain`, once the folder is known to be writable."""
    state, base = PartialState(cpu=is_cpu(device_of())), config.base_model
    with state.main_process_first():  # the other processes read the tokenizer that it has written
        # 1. Read the corpus, and find what must not be trained on.
        progress.say("reading the corpus")
        corpus = read_corpus(
            paths,
            text=config.text,
            prompts=config.prompts,
            shares=config.shares,
            licences=config.licences,
        )
        clean = None
        if config.decontaminate:
            progress.say("looking for texts to leave out")
            clean = find_clean(corpus.documents, config.decontaminate)
            progress.say(f"left out {(~clean).sum()} documents that share words with guarded files")
        training, heldout, left_out = corpus.split(clean)

        # 2. What is known about the model so far. The card is for others: no folder of a path.
        before = None if base is None else read_facts(locate_model(base, progress.say)[0])
        options = {name: v for name, v in asdict(config).items() if name not in BESIDE}
        public = Path(base).name if base and Path(base).expanduser().is_dir() else base
        facts: dict[str, Any] = {
            "name": output.resolve().name,
            "command": command,
            "licence": config.licence,
            "origin": f"trained further from {public}" if base else "a GPT-2 from scratch",
            "context": config.context,
            "config": options | {"base_model": public},
            "optimizer": "AdamW",
            "corpus": {  # before guarded documents were left out
                "sources": corpus.sources,
                "documents": len(corpus.documents),
                "bytes": size_of(corpus.documents),
                "dropped": {"the same text again": corpus.repeated},
                "counted_before_decontamination": True,  # older models count the rest
            },
            "decontaminated": [file.name for file in config.decontaminate],
            "versions": versions(LIBRARIES),
            "curve": False,  # older models have a picture of it
            "before": before,
        }

        # 3. A run that resumes must have the same options. Hashes of guarded files are private.
        guarded = [atomic.sha256_file(file) for file in config.decontaminate]
        settings = options | {"corpus": facts["corpus"], "decontaminate": guarded}
        settings = json.loads(json.dumps(settings))
        if (work / "settings.json").is_file():
            known = json.loads((work / "settings.json").read_text("utf-8"))
            if other := [name for name in settings if known.get(name) != settings[name]]:
                raise InputError(
                    f"{output}: was started with another value of {other[0]}. Name another "
                    "folder, or remove this one."
                )
        work.mkdir(parents=True, exist_ok=True)
        work.chmod(0o700)  # what is trained on and what is left out can be told apart there
        model, tokenizer, adapter = make_model(config, training, work / "tokenizer", progress)
        atomic.write_json(work / "settings.json", settings, mode=0o600)

    # 4. Pack the documents. The number of steps counts what is left out as well: it is published,
    # and must not tell how much that is.
    tokens, validation, unread = (
        encode_documents(documents, tokenizer) for documents in (training, heldout, left_out)
    )
    blocks, heldout_blocks = (pack_blocks(x, config.context) for x in (tokens, validation))
    if config.lora_rank is not None:
        heldout_blocks = heldout_blocks[: max(1, HELDOUT_TOKENS // config.context)]
    all_blocks = (len(tokens) + len(unread) - 1) // (config.context - 1)
    steps = max(1, math.ceil(config.epochs * all_blocks / config.batch_size))
    if not len(blocks) or not len(heldout_blocks):
        raise InputError(f"the corpus is too small for `context={config.context}`. Lower it.")

    # 5. Train, from the newest whole checkpoint on. The Trainer writes its state last.
    newest = None
    for folder in sorted(work.glob("checkpoint-*"), key=lambda path: int(path.name[11:])):
        with suppress(OSError, ValueError):
            json.loads((folder / "trainer_state.json").read_text("utf-8"))
            newest = str(folder)
    bits_of_nats = len(validation) / size_of(heldout) / math.log(2)
    watch = _Watch(config, steps, bits_of_nats, progress)
    with quiet():
        trainer = Trainer(
            model,
            make_arguments(config, steps, work, state.num_processes, newest is None),
            train_dataset=Dataset.from_dict({"input_ids": blocks, "labels": blocks}),
            eval_dataset=Dataset.from_dict({"input_ids": heldout_blocks, "labels": heldout_blocks}),
            callbacks=[watch],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train(resume_from_checkpoint=newest)
        if watch.bits is None:  # killed after the last step, so none was taken here
            trainer.evaluate()
        model = trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
    done = trainer.state.global_step

    # 6. Write the model with its tokenizer, or the adapter alone, with log, facts and card.
    facts |= {
        "vocabulary": len(tokenizer),
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "weights": "bfloat16",
        "adapter": None if adapter is None else asdict(adapter),
        "finished": done == steps,
        "validation": {
            "bits_per_byte": watch.bits,
            "tokens": done * config.batch_size * (config.context - 1),
            "steps": done,
            "of": steps,
        },
    }
    if state.is_main_process:
        if adapter is None:
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
            for entry in trainer.state.log_history
            if {"loss", "bits"} & entry.keys()
        ]
        atomic.write_text(output / "log.jsonl", "".join(lines))
        atomic.write_json(output / FACTS, facts)
        atomic.write_text(output / "README.md", render_card(facts))
        atomic.open_as_folder(output)
        if facts["finished"]:
            shutil.rmtree(work.rename(work.with_name(".finished")))
    state.wait_for_everyone()
    return facts


def make_model(
    config: PretrainConfig, documents: Sequence[str], folder: Path, progress: Progress
) -> tuple[Any, Any, Adapter | None]:
    """Return the model before the first step, its tokenizer, and its adapters."""
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        if config.base_model is None:
            if not folder.is_dir():  # else a run that resumes reads it
                progress.say("learning a vocabulary")
                # bytes (BPE as in GPT-2) of public text
                kind = AutoTokenizer.from_pretrained(
                    shipped_folder(GPT2_MINI), local_files_only=True
                )
                learned = kind.train_new_from_iterator(
                    documents, config.vocabulary, min_frequency=2, show_progress=False
                )
                with atomic.replacing(folder) as new:
                    learned.save_pretrained(new)
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            end = tokenizer.eos_token_id
            gpt2 = GPT2Config(
                vocab_size=len(tokenizer),
                n_positions=config.context,
                n_embd=config.width,
                n_layer=config.layers,
                n_head=config.heads,
                bos_token_id=end,
                eos_token_id=end,
                resid_pdrop=0.0,  # no dropout: hardly any token is read twice
                embd_pdrop=0.0,
                attn_pdrop=0.0,
            )
            return GPT2LMHeadModel(gpt2), tokenizer, None

        # A frozen base may be in bfloat16. Trained weights and updates are always in float32.
        dtype = torch.bfloat16 if config.lora_rank and is_low(config) else torch.float32
        base = load_base(config.base_model, dtype=dtype, say=progress.say)
        if context_length(base.model) < config.context:
            raise InputError(f"`context` may be {context_length(base.model)} at most for this base")
        if config.lora_rank is None:
            return base.model, base.tokenizer, None
        model = add_lora(base.model, config.lora_rank, ALL_LINEAR)
    adapter = Adapter(base.name, base.origin, config.lora_rank, read_factors(model)[1])
    return model, base.tokenizer, adapter


def is_low(config: PretrainConfig) -> bool:
    """Return whether products are in bfloat16: if requested, or if the device is fast in it."""
    automatic = config.precision == "auto" and has_bfloat16(device_of())
    return automatic or config.precision == "bfloat16"


def encode_documents(documents: Sequence[str], tokenizer: Any) -> np.ndarray:
    """Return the tokens (N,) int32 of shuffled documents, each after an end of text."""
    order = np.random.default_rng(0).permutation(len(documents))
    parts = [np.empty(0, dtype=np.int32)]
    for start in range(0, len(order), DOCUMENTS_AT_ONCE):
        some = [documents[i] for i in order[start : start + DOCUMENTS_AT_ONCE]]
        for ids in tokenizer(some, add_special_tokens=False)["input_ids"]:
            parts.append(np.array([tokenizer.eos_token_id, *ids], dtype=np.int32))
    return np.concatenate(parts)


def pack_blocks(tokens: np.ndarray, context: int) -> np.ndarray:
    """Return tokens as blocks. Each begins with the last token of the one before it.

    So every token except the first is predicted once. An incomplete last block is dropped.

    >>> pack_blocks(np.arange(8), 4)
    array([[0, 1, 2, 3],
           [3, 4, 5, 6]])
    """
    number = max(0, len(tokens) - 1) // (context - 1)
    starts = np.arange(number)[:, None] * (context - 1)
    found: np.ndarray = tokens[starts + np.arange(context)]  # (blocks, context)
    return found


def make_arguments(
    config: PretrainConfig, steps: int, work: Path, processes: int, is_first: bool
) -> TrainingArguments:
    """Return the Trainer's options."""
    if config.batch_size % processes:
        raise InputError(
            f"`batch_size={config.batch_size}` must be a multiple of the {processes} processes"
        )
    share = config.batch_size // processes
    micro = max(n for n in range(1, min(config.micro_batch, share) + 1) if share % n == 0)
    on_cpu, has_adapters = is_cpu(device_of()), config.lora_rank is not None
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
        weight_decay=0.0 if has_adapters else config.weight_decay,
        adam_beta2=0.95,  # usual for language models: gradients change faster than 0.999 forgets
        bf16=is_low(config) and not has_adapters,  # a frozen base is in bfloat16 itself
        seed=config.seed,
        eval_strategy="steps",
        eval_steps=max(1, steps // (VALIDATIONS_OF_ADAPTERS if has_adapters else VALIDATIONS)),
        eval_on_start=has_adapters and is_first,  # of the base itself
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


class _Watch(TrainerCallback):
    """Reports steps and bits per byte, stops and saves by the clock, and ends a diverging run."""

    def __init__(
        self, config: PretrainConfig, steps: int, bits_of_nats: float, progress: Progress
    ) -> None:
        self._steps, self._bits_of_nats, self._progress = steps, bits_of_nats, progress
        self._seconds = math.inf if config.max_minutes is None else config.max_minutes * 60
        self.bits: float | None = None  # of the last validation, per byte
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
        step, loss = state.global_step, logs.get("loss", 0.0)
        if not math.isfinite(loss):
            raise InputError(f"training diverged at step {step}. Lower `learning_rate`.")
        if "eval_loss" in logs:
            self.bits = state.log_history[-1]["bits"] = logs["eval_loss"] * self._bits_of_nats
            self._progress.say(f"validation at step {step}: {self.bits:.3f} bits per byte")
        elif "loss" in logs:
            self._progress.count("step", step, self._steps, more=f"loss {loss:6.3f}")


def render_card(facts: Mapping[str, Any]) -> str:
    """Return the model card in Markdown: what a model read, how, and how well it reads."""
    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    template = files("twinset.pretraining").joinpath("card.md.jinja").read_text("utf-8")
    return environment.from_string(template).render(
        facts=facts,
        adapter=facts.get("adapter"),
        stages=stages(facts["before"]),
        RUN=RUN,
        versions=", ".join(f"{name} {version}" for name, version in facts["versions"].items()),
    )
