"""The command `pretrain`: parse, call, print."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import Annotated

import typer

from twinset.commandline import Json, Quiet, show
from twinset.errors import InputError


def pretrain(
    corpus: Annotated[list[Path], typer.Argument(help="Public text: .txt, tables, .gz, folders.")],
    output: Annotated[Path, typer.Option(help="Folder of the model; begun, it is gone on with.")],
    base_model: Annotated[
        str | None, typer.Option(help="Train this one further; left out: from scratch.")
    ] = None,
    vocabulary: Annotated[int, typer.Option(help="Tokens, from scratch.")] = 8192,
    layers: Annotated[int, typer.Option(min=1, help="From scratch.")] = 6,
    width: Annotated[int, typer.Option(min=1, help="From scratch.")] = 256,
    heads: Annotated[int, typer.Option(min=1, help="From scratch.")] = 4,
    context: Annotated[int, typer.Option(min=2, help="Tokens of a block.")] = 256,
    epochs: Annotated[float, typer.Option(help="Passes over the corpus; parts count.")] = 1.0,
    batch_size: Annotated[int, typer.Option(min=1, help="Blocks a step.")] = 32,
    micro_batch: Annotated[int, typer.Option(min=1, help="Blocks at once.")] = 16,
    learning_rate: Annotated[float, typer.Option(help="The highest.")] = 1e-3,
    warmup: Annotated[float, typer.Option(help="Share of the steps.")] = 0.02,
    weight_decay: Annotated[float, typer.Option(help="Of matrices.")] = 0.1,
    seed: Annotated[int, typer.Option(min=0, help="Of weights and order.")] = 0,
    precision: Annotated[str, typer.Option(help="auto, float32 or bfloat16.")] = "auto",
    max_minutes: Annotated[
        float | None, typer.Option(help="Stop after so long; the same command goes on.")
    ] = None,
    text: Annotated[str, typer.Option(help="Column of a table's texts.")] = "text",
    prompt: Annotated[
        str | None, typer.Option(help="Half of the rows that have its {columns} follow it.")
    ] = None,
    decontaminate: Annotated[
        list[Path] | None, typer.Option(help="Text that must not be learnt (not DP); repeat it.")
    ] = None,
    licences: Annotated[
        Path | None, typer.Option(help='TOML: "beginning of a file\'s name" = "licence".')
    ] = None,
    licence: Annotated[str, typer.Option(help="Of the model, for its card.")] = "other",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train a base model on PUBLIC text: no privacy here. Killed, the same command goes on."""
    from accelerate import PartialState

    from twinset.console import Console
    from twinset.pretraining.config import PretrainConfig, Shape
    from twinset.pretraining.pretrain import Wanted
    from twinset.pretraining.pretrain import pretrain as make
    from twinset.pretraining.training import on_cpu
    from twinset.surroundings import shell_line

    config = PretrainConfig(
        base_model,
        Shape(vocabulary, layers, width, heads),
        context,
        epochs,
        batch_size,
        micro_batch,
        learning_rate,
        warmup,
        weight_decay,
        seed,
        precision,
    )
    wanted = Wanted(
        tuple(corpus),
        output,
        config,
        text,
        prompt,
        {} if licences is None else _licences(licences),
        licence,
        tuple(decontaminate or ()),
        math.inf if max_minutes is None else max_minutes,
    )
    leading = PartialState(cpu=on_cpu()).is_main_process
    with Console(quiet or not leading) as console:
        facts = make(wanted, _without_folders(shell_line("twinset")), console)
    if not leading:
        return
    told = facts["validation"]
    lines = [f"model: {output}", f"validation: {told['bits_per_byte']:.3f} bits per byte"]
    if not facts["finished"]:
        lines.append(f"{told['steps']} of {told['of']} steps: the same command goes on")
    show(facts, lines, as_json)


def _without_folders(line: str) -> str:
    """Return a command without the folders of this machine: the card is for others."""
    return shlex.join(Path(part).name if "/" in part else part for part in shlex.split(line))


def _licences(path: Path) -> dict[str, str]:
    import tomllib

    try:
        stated = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: is no TOML file ({type(error).__name__})") from None
    return {str(name): str(licence) for name, licence in stated.items()}
