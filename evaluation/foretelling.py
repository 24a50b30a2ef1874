"""`python -m evaluation.foretelling MODEL…`: how well base models foresee held-out public text.

Bits per byte of the documents that `twinset pretrain` would hold out of the corpus, beside the same
of an untrained model of the first one's shape and of a 5-gram model of the corpus.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer

from evaluation.command import command_line, run_command
from evaluation.kneserney import ORDER, KneserNey
from twinset.artefact import write_json, write_text
from twinset.basemodel import BaseModel, context_length, load_base
from twinset.console import Console
from twinset.errors import InputError
from twinset.pretraining.bits import bits_per_byte
from twinset.pretraining.corpus import read_corpus, size_of
from twinset.pretraining.packing import Blocks, read_tokens, write_tokens
from twinset.surroundings import machine, versions

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Foretelling:
    """How well something foresees text.

    Args:
        name: of the model.
        bits: per byte.
        parameters: of a neural model.
        vocabulary: tokens.
    """

    name: str
    bits: float
    parameters: int | None
    vocabulary: int


@app.command()
def foretelling(
    models: Annotated[list[str], typer.Argument(help="Assets, folders or hub names.")],
    corpus: Annotated[list[Path], typer.Option(help="Public text; repeat it.")],
    output: Annotated[Path, typer.Option(help="This .md, and .json beside it.")],
    context: Annotated[int, typer.Option(min=8, help="Tokens that a model sees.")] = 256,
    documents: Annotated[
        int | None, typer.Option(min=1, help="Held-out ones to foresee, evenly taken; else all.")
    ] = None,
) -> None:
    """Measure bits per byte."""
    if not output.parent.is_dir():
        raise InputError(f"--output {output}: its folder does not exist; create it")
    with Console() as console:
        console.say("reading the corpus")
        learnt, heldout = read_corpus(corpus).split()
        heldout = heldout[:: max(1, len(heldout) // (documents or len(heldout)))][:documents]
        found = []
        for row in measure(models, learnt, heldout, context):
            console.say(f"{row.name}: {row.bits:.3f} bits per byte")
            found.append(row)
    size = size_of(heldout)
    about = {
        "command": command_line("evaluation.foretelling"),
        "heldout": {"documents": len(heldout), "bytes": size, "context": context},
        "versions": versions(),
        "machine": machine(),
    }
    write_json(output.with_suffix(".json"), about | {"rows": [asdict(row) for row in found]})
    write_text(output, as_markdown(found, about))


def measure(
    models: Sequence[str], learnt: Sequence[str], heldout: Sequence[str], context: int
) -> Iterator[Foretelling]:
    """Yield the bits per byte of models, then of the rivals of the first.

    Args:
        models: names that `load_base` takes.
        learnt: what the 5-gram model learns from.
        heldout: texts to foresee.
        context: tokens that a neural model sees.
    """
    first: BaseModel | None = None
    for name in models:
        base = load_base(name)
        first = first or base
        if context_length(base.model) < context:
            raise InputError(f"{name} reads {context_length(base.model)} tokens; lower --context")
        yield _neural(name, base.model, base.tokenizer, heldout, context)
    assert first is not None
    yield _neural("untrained", _untrained(first), first.tokenizer, heldout, context)
    yield _ngrams(first.tokenizer, learnt, heldout)


def _neural(
    name: str, model: Any, tokenizer: Any, heldout: Sequence[str], context: int
) -> Foretelling:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "tokens"
        write_tokens(heldout, tokenizer, path)
        blocks = Blocks(path, len(tokenizer), context)
        bits = bits_per_byte(model, blocks, size_of(heldout))
    return Foretelling(name, bits, sum(p.numel() for p in model.parameters()), len(tokenizer))


def _untrained(base: BaseModel) -> Any:
    """Return a model of the same shape with random weights."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(base.model.config).eval()


def _ngrams(tokenizer: Any, learnt: Sequence[str], heldout: Sequence[str]) -> Foretelling:
    with TemporaryDirectory() as folder:
        rows: list[np.ndarray] = []
        for name, texts in (("learnt", learnt), ("heldout", heldout)):
            write_tokens(texts, tokenizer, Path(folder) / name)
            rows.append(np.array(read_tokens(Path(folder) / name, len(tokenizer))))
    nats = KneserNey(rows[0], len(tokenizer)).nats(rows[1])[1:]
    bits = float(nats.sum()) / math.log(2) / size_of(heldout)
    return Foretelling(f"{ORDER}-gram, Kneser-Ney", bits, None, len(tokenizer))


def as_markdown(rows: Sequence[Foretelling], about: dict[str, Any]) -> str:
    """Return a table with what is needed to make it again."""
    heldout = about["heldout"]
    lines = [
        f"Bits per byte of {heldout['documents']:,} held-out documents, {heldout['bytes']:,} bytes;"
        f" {heldout['context']} tokens of context.",
        "",
        "| model | bits per byte | parameters | vocabulary |",
        "|---|---:|---:|---:|",
    ]
    for row in sorted(rows, key=lambda row: row.bits):
        parameters = "" if row.parameters is None else f"{row.parameters:,}"
        lines.append(f"| {row.name} | {row.bits:.3f} | {parameters} | {row.vocabulary:,} |")
    told = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    lines += ["", f"    {about['command']}", "", f"{told}; {about['machine']['cpu']}."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    run_command(app)
