"""The command `pretrain`: parse, call, print."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from twinset.bounds import limits
from twinset.commandline.common import Json, Quiet, show
from twinset.errors import InputError
from twinset.files.limits import SMALL, read_text
from twinset.pretraining import MINUTES, PretrainConfig


def pretrain(
    corpus: Annotated[list[Path], typer.Argument(help="Public text: .txt, tables, .gz, folders.")],
    output: Annotated[Path, typer.Option(help="Folder of the model; a stopped run is resumed.")],
    base_model: Annotated[
        str | None, typer.Option(help="Train this one further; left out: from scratch.")
    ] = None,
    lora_rank: Annotated[
        int | None,
        typer.Option(
            help="Train adapters of a built-in model alone.", **limits(PretrainConfig, "lora_rank")
        ),
    ] = None,
    vocabulary: Annotated[
        int, typer.Option(help="Tokens, from scratch.", **limits(PretrainConfig, "vocabulary"))
    ] = 8192,
    layers: Annotated[
        int, typer.Option(help="From scratch.", **limits(PretrainConfig, "layers"))
    ] = 6,
    width: Annotated[
        int, typer.Option(help="From scratch.", **limits(PretrainConfig, "width"))
    ] = 256,
    heads: Annotated[
        int, typer.Option(help="From scratch.", **limits(PretrainConfig, "heads"))
    ] = 4,
    context: Annotated[
        int, typer.Option(help="Tokens of a block.", **limits(PretrainConfig, "context"))
    ] = 256,
    epochs: Annotated[
        float,
        typer.Option(
            help="Passes over the corpus; parts count.", **limits(PretrainConfig, "epochs")
        ),
    ] = 1.0,
    batch_size: Annotated[
        int, typer.Option(help="Blocks a step.", **limits(PretrainConfig, "batch_size"))
    ] = 32,
    micro_batch: Annotated[
        int, typer.Option(help="Blocks at once.", **limits(PretrainConfig, "micro_batch"))
    ] = 16,
    learning_rate: Annotated[
        float, typer.Option(help="The highest.", **limits(PretrainConfig, "learning_rate"))
    ] = 1e-3,
    warmup: Annotated[
        float, typer.Option(help="Share of the steps.", **limits(PretrainConfig, "warmup"))
    ] = 0.02,
    weight_decay: Annotated[
        float, typer.Option(help="Of matrices.", **limits(PretrainConfig, "weight_decay"))
    ] = 0.1,
    seed: Annotated[
        int, typer.Option(help="Of weights and order.", **limits(PretrainConfig, "seed"))
    ] = 0,
    precision: Annotated[str, typer.Option(help="auto, float32 or bfloat16.")] = "auto",
    max_minutes: Annotated[
        float | None,
        typer.Option(help="Stop after so long; the same command resumes.", **MINUTES.limits),
    ] = None,
    text: Annotated[str, typer.Option(help="Column of a table's texts.")] = "text",
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[START=]PROMPT",
            help="Half of the rows that have its {columns}, or of files whose names begin with "
            "START, follow it; repeat it.",
        ),
    ] = None,
    share: Annotated[
        list[str] | None,
        typer.Option(
            metavar="START=NUMBER",
            help="Read this share of files whose names begin with START; repeat it.",
        ),
    ] = None,
    decontaminate: Annotated[
        list[Path] | None, typer.Option(help="Text not to be trained on (not DP); repeat it.")
    ] = None,
    licences: Annotated[
        Path | None, typer.Option(help='TOML: "beginning of a file\'s name" = "licence".')
    ] = None,
    licence: Annotated[str, typer.Option(help="Of the model, for its card.")] = "other",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train a base model on PUBLIC text: no privacy here. Killed, the same command resumes."""
    from accelerate import PartialState

    from twinset.commandline.console import Console
    from twinset.files.environment import shell_line
    from twinset.models.device import device_of, is_cpu
    from twinset.pretraining.pretrain import pretrain as train_base

    shares: dict[str, float] = {}
    for given in share or ():
        start, _, number = given.partition("=")
        try:
            shares[start] = float(number)
        except ValueError:
            said = f"`share={given}`: write START=NUMBER, such as novels=0.04"
            raise InputError(said) from None
    config = PretrainConfig(
        base_model,
        vocabulary,
        layers,
        width,
        heads,
        lora_rank,
        context,
        epochs,
        batch_size,
        micro_batch,
        learning_rate,
        warmup,
        weight_decay,
        seed,
        precision,  # type: ignore[arg-type]  # checked there
        text,
        tuple(prompt or ()),
        shares,
        {} if licences is None else read_licences(licences),
        licence,
        tuple(decontaminate or ()),
        max_minutes,
    )
    # The card is for others, so folders of this machine are left out of the command.
    words = shlex.split(shell_line("twinset"))
    line = shlex.join(Path(word).name if "/" in word else word for word in words)
    leading = PartialState(cpu=is_cpu(device_of())).is_main_process
    with Console(quiet or not leading) as console:
        facts = train_base(corpus, output, config, line, console)
    if not leading:  # only one process of several prints
        return
    validation = facts["validation"]
    lines = [f"model: {output}", f"validation: {validation['bits_per_byte']:.3f} bits per byte"]
    if not facts["finished"]:
        lines.append(f"{validation['steps']} of {validation['of']} steps: the same command resumes")
    show(facts, lines, as_json)


def read_licences(path: Path) -> dict[str, str]:
    """Return licences by the beginnings of files' names, from a TOML file."""
    import tomllib

    try:
        stated = tomllib.loads(read_text(path, SMALL))
    except InputError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: is no TOML file ({type(error).__name__})") from None
    return {str(name): str(licence) for name, licence in stated.items()}
