"""How well base models predict held-out public text.

    python -m evaluation.base_models.bits_per_byte MODEL…

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

from evaluation.base_models.kneser_ney import ORDER, KneserNey
from evaluation.markdown import publish, table
from evaluation.results_store import about
from evaluation.run_command import command, command_line, run_command
from twinset.commandline.console import Console
from twinset.errors import InputError
from twinset.models.base_model import BaseModel, context_length, load_base
from twinset.pretraining.bits_per_byte import bits_per_byte
from twinset.pretraining.corpus import read_corpus, size_of
from twinset.pretraining.packing import Blocks, read_tokens, write_tokens


@dataclass(frozen=True)
class BitsPerByte:
    """How well something predicts text.

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


def compare(
    models: Annotated[list[str], typer.Argument(help="Assets, folders or hub names.")],
    corpus: Annotated[list[Path], typer.Option(help="Public text; repeat it.")],
    output: Annotated[Path, typer.Option(help="This .md, and .json beside it.")],
    context: Annotated[int, typer.Option(min=8, help="Tokens that a model sees.")] = 256,
    documents: Annotated[
        int | None, typer.Option(min=1, help="Held-out ones to predict, evenly taken; else all.")
    ] = None,
) -> None:
    """Measure bits per byte."""
    if not output.parent.is_dir():
        raise InputError(f"`output={output}`: its folder does not exist; create it")
    with Console() as console:
        console.say("reading the corpus")
        trained_on, heldout = read_corpus(corpus).split()
        heldout = heldout[:: max(1, len(heldout) // (documents or len(heldout)))][:documents]
        found = []
        for row in measure(models, trained_on, heldout, context):
            console.say(f"{row.name}: {row.bits:.3f} bits per byte")
            found.append(row)
    facts = {
        "command": command_line("evaluation.base_models.bits_per_byte"),
        "heldout": {"documents": len(heldout), "bytes": size_of(heldout), "context": context},
        **about(),
    }
    rows = [asdict(row) for row in found]
    publish(output.with_suffix(".json"), facts | {"rows": rows}, as_markdown(found, facts))


def measure(
    models: Sequence[str], trained_on: Sequence[str], heldout: Sequence[str], context: int
) -> Iterator[BitsPerByte]:
    """Yield the bits per byte of models, then of the baselines of the first.

    Args:
        models: names that `load_base` takes.
        trained_on: texts that the 5-gram model is trained on.
        heldout: texts to predict.
        context: tokens that a neural model sees.
    """
    first: BaseModel | None = None
    for name in models:
        base = load_base(name)
        first = first or base
        if context_length(base.model) < context:
            raise InputError(f"{name} reads {context_length(base.model)} tokens; lower `context`")
        yield _neural(name, base.model, base.tokenizer, heldout, context)
    assert first is not None
    yield _neural("untrained", _untrained(first), first.tokenizer, heldout, context)
    yield _ngrams(first.tokenizer, trained_on, heldout)


def _neural(
    name: str, model: Any, tokenizer: Any, heldout: Sequence[str], context: int
) -> BitsPerByte:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "tokens"
        write_tokens(heldout, tokenizer, path)
        blocks = Blocks(path, len(tokenizer), context)
        bits = bits_per_byte(model, blocks, size_of(heldout))
    return BitsPerByte(name, bits, sum(p.numel() for p in model.parameters()), len(tokenizer))


def _untrained(base: BaseModel) -> Any:
    """Return a model of the same shape with random weights."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(base.model.config).eval()


def _ngrams(tokenizer: Any, trained_on: Sequence[str], heldout: Sequence[str]) -> BitsPerByte:
    with TemporaryDirectory() as folder:
        rows: list[np.ndarray] = []
        for name, texts in (("train", trained_on), ("heldout", heldout)):
            write_tokens(texts, tokenizer, Path(folder) / name)
            rows.append(np.array(read_tokens(Path(folder) / name, len(tokenizer))))
    nats = KneserNey(rows[0], len(tokenizer)).nats(rows[1])[1:]
    bits = float(nats.sum()) / math.log(2) / size_of(heldout)
    return BitsPerByte(f"{ORDER}-gram, Kneser-Ney", bits, None, len(tokenizer))


def as_markdown(rows: Sequence[BitsPerByte], facts: dict[str, Any]) -> str:
    """Return a table with what is needed to make it again."""
    heldout = facts["heldout"]
    size = (
        f"Bits per byte of {heldout['documents']:,} held-out documents, {heldout['bytes']:,} bytes;"
        f" {heldout['context']} tokens of context."
    )
    cells = [
        [
            row.name,
            f"{row.bits:.3f}",
            "" if row.parameters is None else f"{row.parameters:,}",
            f"{row.vocabulary:,}",
        ]
        for row in sorted(rows, key=lambda row: row.bits)
    ]
    lines = table(["model", "bits per byte", "parameters", "vocabulary"], cells)
    made = ["", f"    {facts['command']}", "", f"{facts['versions']}; {facts['machine']}."]
    return "\n".join([size, "", *lines, *made]) + "\n"


if __name__ == "__main__":
    run_command(command(compare))
