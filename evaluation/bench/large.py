"""`python -m evaluation.bench.large`: memory and time of a run as the table grows.

Made-up texts of 60 words, a two-layer GPT-2 made on the spot, and `twinset generate` itself: once
until it is killed in its second step, and again with --resume. Every size has two processes of its
own; what differs between sizes is the number of records alone.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import torch
import typer

from evaluation.bench import runner
from evaluation.bench.measure import peak_bytes, seconds_of
from evaluation.bench.runner import RESULTS, Output
from evaluation.markdown import facts, page, table
from evaluation.results_store import ResultsStore, about
from evaluation.run_command import command_line
from twinset.config.options import run_config
from twinset.files.atomic import write_text
from twinset.models.hub import no_fetched_code
from twinset.privacy.mechanism.poisson import poisson_batches
from twinset.privacy.mechanism.randomness import Randomness
from twinset.progress import Silent, StepReport

WORDS, KNOWN_WORDS, VOCABULARY = 60, 2000, 1024
MOODS, PRODUCTS = ("good", "bad"), 5
ROWS_AT_ONCE, STOP_AFTER, DRAWS = 10_000, 2, 20
TABLE, BASE, RUN = "table.csv", "base", "run"
# where a phase's time is spent: module → functions of it
TIMED = {
    "twinset.pipeline.prepare": ("read_frame", "records_from_frame"),
    "twinset.pipeline.generate": ("prepare", "record_settings", "_write_twin"),
    "twinset.pipeline.finetune": ("tokenise",),
}
PHASES = {
    "reading the table": "read_frame",
    "checking it": "records_from_frame",
    "all before the first private step, the base model loaded": "prepare",
    "hash of the table": "record_settings",
    "first tokenisation": "tokenise",
}


@dataclass(frozen=True)
class Work:
    """What is done at every size.

    Args:
        steps: of training.
        batch_size: expected records a step.
        rows: of the twin.
        max_tokens: of a text.
    """

    steps: int = 100
    batch_size: int = 256
    rows: int = 100_000
    max_tokens: int = 128


def bench(
    sizes: Annotated[str, typer.Option(help="Numbers of records.")] = "10000,100000,1000000",
    steps: Annotated[int, typer.Option(min=3, help="Of training.")] = Work.steps,
    batch_size: Annotated[int, typer.Option(min=1, help="Records a step.")] = Work.batch_size,
    rows: Annotated[int, typer.Option(min=1, help="Of the twin.")] = Work.rows,
    folder: Annotated[Path | None, typer.Option(help="For tables and runs, removed.")] = None,
    output: Output = RESULTS / "large.json",
) -> None:
    """Measure every size; sizes that are in the output already stay as they are."""
    work, command = Work(steps, batch_size, rows), command_line("evaluation.bench.large")
    store = ResultsStore.open(output, about(runner.LIBRARIES), command)
    for _, (records,) in store.missing([(int(size),) for size in sizes.split(",")]):
        with tempfile.TemporaryDirectory(dir=folder) as place:
            store.add((records,), measure(int(records), work, Path(place)))
        write_text(output.with_suffix(".md"), markdown(store))


def measure(records: int, work: Work, place: Path) -> dict[str, Any]:
    """Return what two processes found on a table of so many records."""
    write_base(place / BASE)
    write_table(place / TABLE, records)
    found: dict[str, Any] = {**asdict(work), "table_bytes": (place / TABLE).stat().st_size}
    for name, resume in (("first", False), ("resumed", True)):
        found[name] = runner.ask("large", str(place), asdict(work), resume, HF_HUB_OFFLINE="1")
        typer.echo(f"{records} records, {name}: {found[name]}", err=True)
    found["draw_seconds"] = draw_seconds(records, min(1.0, work.batch_size / records))
    return found


def write_table(path: Path, records: int) -> None:
    """Write texts of 60 words, the frequent ones far more often than others, and two labels."""
    rng, words = np.random.default_rng(0), known_words()
    share = 1 / np.arange(1, len(words) + 1)
    with open(path, "w", encoding="utf-8") as file:
        file.write("review,mood,product\n")
        for start in range(0, records, ROWS_AT_ONCE):
            shape = min(ROWS_AT_ONCE, records - start), WORDS
            for row, drawn in enumerate(
                words[rng.choice(len(words), shape, p=share / share.sum())]
            ):
                label = f"{MOODS[row % len(MOODS)]},{row % PRODUCTS}"
                file.write(f"{' '.join(drawn)}.,{label}\n")


def known_words() -> np.ndarray:
    """(KNOWN_WORDS,) made-up words of two to eight letters, the same in every process."""
    rng = np.random.default_rng(1)
    letters = [rng.choice(list("abcdefghijklmnopqrstuvwxyz"), n) for n in rng.integers(2, 9, 9999)]
    return np.array(list(dict.fromkeys(map("".join, letters)))[:KNOWN_WORDS])


def write_base(folder: Path) -> None:
    """Write a random two-layer GPT-2 and a tokenizer of the bytes and words that there are.

    Of printable bytes only: a random model would write control characters in most rows, and rows
    that have them are drawn again.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    bpe, end = Tokenizer(models.BPE()), "<|endoftext|>"
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    printable = ["Ġ", *map(chr, range(33, 127))]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[end], initial_alphabet=printable, show_progress=False
    )
    bpe.train_from_iterator([f" {word}" for word in known_words()], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=end, bos_token=end)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=256, n_embd=64, n_layer=2, n_head=2,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def draw_seconds(records: int, sample_rate: float) -> float:
    """Return the median time of drawing a batch."""
    batches = poisson_batches(records, sample_rate, DRAWS, Randomness.from_os())
    return median(seconds_of(lambda: next(batches)) for _ in range(DRAWS))


# --- in a process of its own ---------------------------------------------------------------------


@dataclass
class Watch(Silent):
    """Takes down when each step was done.

    Args:
        stop: called after `STOP_AFTER` steps; None: never.
        began: when the process began to work.
        ends: seconds since then at which a step was done, of the wall and of the processor.
    """

    stop: Callable[[Watch], None] | None
    began: np.ndarray = field(default_factory=lambda: _clocks())
    ends: list[np.ndarray] = field(default_factory=list)

    def step(self, report: StepReport, plan: Any) -> None:
        """See `Progress`."""
        self.ends.append(_clocks() - self.began)
        if len(self.ends) == STOP_AFTER and self.stop is not None:
            self.stop(self)


def _clocks() -> np.ndarray:
    """(2,) seconds of the wall and of the processor."""
    return np.array([time.perf_counter(), time.process_time()])


def measured_here(folder: str, asked: dict[str, int], resume: bool) -> dict[str, Any]:
    """Run `twinset generate` in this process; return seconds, and bytes above those of imports.

    A run that is not resumed answers and kills itself, a checkpoint behind it: nothing but that
    leaves tokens on the disk.
    """
    from twinset.pipeline.generate import generate
    from twinset.pipeline.request import OutputPaths, Source
    from twinset.sampling.allocation import RowsRequest
    from twinset.training import resume as resumption

    _imported()
    seconds, place, work = _timed(), Path(folder), Work(**asked)
    source = Source(str(place / TABLE), "review", ("mood", "product"), prompt="A {mood} {product}:")
    options = {
        "base_model": str(place / BASE),
        "max_tokens": work.max_tokens,
        "temperature": 0.7,
        "guidance": 0.0,
    }
    config = run_config(options | {"steps": work.steps, "batch_size": work.batch_size})
    if not resume:
        resumption.CHECKPOINT_SECONDS = 0.0
    before = peak_bytes()

    def stop(watch: Watch) -> None:
        runner.answer(_observed(watch, before, place) | {"seconds": seconds})
        os.kill(os.getpid(), signal.SIGKILL)

    watch = Watch(None if resume else stop)
    generate(
        source, config, RowsRequest(work.rows), OutputPaths(run=place / RUN, resume=resume), watch
    )
    return _observed(watch, before, place) | {"seconds": seconds}


def _observed(watch: Watch, before: int, place: Path) -> dict[str, Any]:
    each = np.median(np.diff(watch.ends, axis=0), axis=0)
    return {
        "bytes": peak_bytes() - before,
        "import_bytes": before,
        "start_seconds": (watch.ends[0] - each).tolist(),
        "step_seconds": each.tolist(),
        "token_bytes": sum(f.stat().st_size for f in place.rglob("tokens/*/*") if f.is_file()),
        "left": [f.name for f in place.rglob("*.bin")],
    }


@no_fetched_code()
def _imported() -> None:
    """Import what a run imports on its way."""
    import datasets  # noqa: F401
    import peft  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    from transformers import AutoTokenizer, GPT2LMHeadModel  # noqa: F401

    import twinset.pipeline.finetune  # noqa: F401


def _timed() -> dict[str, list[float]]:
    """Have functions note how long they took, by the wall and by the processor; return where."""
    import importlib

    found: dict[str, list[float]] = {}

    def noting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any, **named: Any) -> Any:
            began = _clocks()
            try:
                return function(*given, **named)
            finally:
                found[name] = (_clocks() - began).tolist()

        return timed

    for module_name, names in TIMED.items():
        module = importlib.import_module(module_name)
        for name in names:
            setattr(module, name, noting(name, getattr(module, name)))
    return found


# --- the page ------------------------------------------------------------------------------------


def markdown(store: ResultsStore) -> str:
    """Return a table with a column for each size."""
    sizes = {int(records): row for (records,), row in sorted(store.rows.items())}
    introduction = (
        "Made-up texts of 60 words with two labels in a CSV file, a random two-layer GPT-2 with "
        "adapters, `twinset generate`: stopped in step 2, and resumed in another process. Memory "
        "is the peak of a process (resident, mapped files included) above that of imports; seconds "
        "are of the wall, on a machine with other work, and in brackets of the processor."
    )
    commands = [f"- command: `{command}`" for command in store.commands]
    rows = [[name, *map(cell, sizes.values())] for name, cell in _ROWS.items()]
    return page(
        "A run as the table grows",
        [introduction],
        [*facts(store.settings), *commands],
        table(["", *(f"{records:,} records" for records in sizes)], rows),
    )


def _megabytes(count: float) -> str:
    return f"{count / 1e6:,.0f} MB"


def _spent(part: str, name: str) -> Callable[[dict[str, Any]], str]:
    return lambda size: _seconds_of(size[part]["seconds"][name])


def _seconds_of(found: list[float]) -> str:
    return f"{found[0]:.2f} s ({found[1]:.2f} s)"


_ROWS: dict[str, Callable[[dict[str, Any]], str]] = {
    "the table": lambda size: _megabytes(size["table_bytes"]),
    "**peak memory, first start to step 2**": lambda s: _megabytes(s["first"]["bytes"]),
    "**peak memory, resumed to the end**": lambda s: _megabytes(s["resumed"]["bytes"]),
    "tokens on the disk": lambda s: _megabytes(s["first"]["token_bytes"]),
    **{name: _spent("first", function) for name, function in PHASES.items()},
    "resumed: tokens that are there": _spent("resumed", "tokenise"),
    "**resumed: from start to first step**": lambda s: _seconds_of(s["resumed"]["start_seconds"]),
    "a step": lambda s: _seconds_of(s["resumed"]["step_seconds"]),
    "records a step, expected": lambda s: str(s["batch_size"]),
    "drawing a batch": lambda s: f"{1000 * s['draw_seconds']:.2f} ms",
    "steps": lambda s: str(s["steps"]),
    "rows of the twin": lambda s: f"{s['rows']:,}",
    "rows a second": lambda s: "{:.0f} ({:.0f})".format(
        *(s["rows"] / seconds for seconds in s["resumed"]["seconds"]["_write_twin"])
    ),
    "files of tokens at the end": lambda s: str(len(s["resumed"]["left"])),
}


if __name__ == "__main__":
    runner.run(bench, measured_here)
