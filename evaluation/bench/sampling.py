"""`python -m evaluation.bench.sampling`: rows a second, beside Hugging Face's `generate`.

The same weights, prompts of two labels, end token, top-p, temperature, longest text and batch size;
`generate` writes batch after batch, ours one running batch. Under guidance a row is read under two
prompts; `generate` is then given both, so it writes two rows for each. They take turns in one
process, and every ratio is of one turn.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median
from typing import Annotated, Any

import torch
import typer

from evaluation.bench import runner
from evaluation.bench.models import MODELS, classes
from evaluation.bench.runner import RESULTS, Output, Rounds, Threads
from evaluation.bench.shares import shares, shares_table
from evaluation.markdown import facts, page, publish, table
from twinset.config import SamplingConfig
from twinset.errors import InputError
from twinset.models.assets import ASSETS
from twinset.models.base_model import load_base
from twinset.models.precision import fuse
from twinset.sampling.decoding import generate

PROMPTS = ("Write a positive review about a film:", "Write a negative review about a film:")
RANDOM_PROMPTS = [[*range(1, 10)], [*range(1, 12)]]  # of a random model, which has no tokenizer
PRECISIONS = ("float32", "bfloat16")
OURS, THEIRS = "twinset", "generate"

Rows = list[list[int]]
Way = Callable[[int], Rows]  # writes every row, from a seed; from 0, a few only: to warm up


@dataclass(frozen=True)
class Work:
    """What both write.

    Args:
        prompts: token ids, one a row, the labels in turn.
        end: id of the token that closes a row.
        longest: tokens of a row.
        config: decoding settings, batch size among them.
    """

    prompts: Rows
    end: int
    longest: int
    config: SamplingConfig

    def drawn(self, seed: int) -> Rows:
        """Return the prompts of a turn's rows."""
        return self.prompts if seed else self.prompts[:2]

    def against(self, seed: int) -> Rows:
        """Return wrong prompts of these rows: the next row's."""
        drawn = self.drawn(seed)
        return [*drawn[1:], drawn[0]]


def bench(
    model: Annotated[
        str, typer.Option(help="Asset, folder, or gpt2-14m and the like: random.")
    ] = "smollm2-135m",
    prompt: Annotated[
        list[str] | None, typer.Option(help="Repeat it; left out: two of film reviews.")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Rows a turn.")] = 128,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows at once.")] = 32,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest row.")] = 48,
    end: Annotated[
        str, typer.Option(help="A token that closes rows; end of text if left out.")
    ] = "",
    top_p: Annotated[float, typer.Option(help="For both.")] = 0.9,
    temperature: Annotated[float, typer.Option(help="For both.")] = 1.0,
    guidance: Annotated[float, typer.Option(help="Ours; `generate` reads as much.")] = 0.0,
    precision: Annotated[str, typer.Option(help="Of the weights.")] = ",".join(PRECISIONS),
    rounds: Rounds = 3,
    threads: Threads = 1,
    output: Output = RESULTS / "sampling.json",
) -> None:
    """Time both ways of writing rows."""
    torch.set_num_threads(threads)
    config = SamplingConfig(
        top_p=top_p, temperature=temperature, guidance=guidance, batch_size=batch_size
    )
    plain, prompts, closing = _load(model, prompt or PROMPTS, end)
    asked = [prompts[i % len(prompts)] for i in range(rows)]
    work = Work(asked, closing, max_new_tokens, config)
    ways = contestants(plain, work, runner.names_in("--precision", precision, PRECISIONS))
    turns = runner.in_turn({n: partial(_timed, way) for n, way in ways.items()}, rounds, True)
    found = {
        **runner.stamp("sampling"),
        "model": model if model in ASSETS or model in MODELS else "local folder",
        "rows": rows,
        "batch_size": batch_size,
        "max_new_tokens": max_new_tokens,
        "end": end or "end of text",
        "top_p": top_p,
        "temperature": temperature,
        "guidance": guidance,
        "threads": threads,
        "profile": shares(partial(list(ways.values())[-1], 1)),
        "turns": turns,
    }
    publish(output, found, markdown(found))
    typer.echo(output.with_suffix(".md").read_text("utf-8"))


def _load(name: str, texts: Sequence[str], end: str) -> tuple[Any, Rows, int]:
    """Return a float32 model, the prompts of its labels, and the token that closes a row."""
    if name in MODELS and name not in ASSETS:
        torch.manual_seed(0)
        config_class, model_class = classes(name)
        config = config_class(bos_token_id=0, eos_token_id=0, **MODELS[name][1])
        return model_class(config).eval(), RANDOM_PROMPTS, 0
    base = load_base(name)
    closing = base.tokenizer.encode(end, add_special_tokens=False) if end else []
    if end and len(closing) != 1:
        raise InputError(f"--end: {end!r} is no single token of {name}")
    prompts = [base.tokenizer.encode(text) for text in texts]
    return base.model, prompts, closing[0] if end else base.tokenizer.eos_token_id


def contestants(plain: Any, work: Work, precisions: list[str]) -> dict[str, Way]:
    """Return each way of writing all rows, from a seed; each has a model of its own."""
    made: dict[str, Way] = {}
    for precision in precisions:
        model = copy.deepcopy(plain).to(getattr(torch, precision))
        theirs = copy.deepcopy(model)
        theirs.set_attn_implementation("sdpa")  # what it has by default
        made[f"{THEIRS}, {precision}"] = _theirs(theirs, work)
        made[f"{OURS}, {precision}"] = _ours(fuse(model), work)
    return made


def _ours(model: Any, work: Work) -> Way:
    def write(seed: int) -> Rows:
        generator = torch.Generator(model.device).manual_seed(seed)
        wrong = work.against(seed) if work.config.guidance else None
        asked = (work.drawn(seed), work.end, work.longest, work.config, generator, wrong)
        return generate(model, *asked)

    return write


def _theirs(model: Any, work: Work) -> Way:
    size = work.config.batch_size

    def write(seed: int) -> Rows:
        torch.manual_seed(seed)
        prompts = work.drawn(seed)
        both = prompts + (work.against(seed) if work.config.guidance else [])
        starts = range(0, len(both), size)
        rows = [row for i in starts for row in _batch(model, both[i : i + size], work)]
        return rows[: len(prompts)]

    return write


@torch.inference_mode()
def _batch(model: Any, prompts: Rows, work: Work) -> Rows:
    width = max(map(len, prompts))
    ids = torch.tensor([[work.end] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    written = model.generate(
        input_ids=ids.to(model.device),
        attention_mask=mask.to(model.device),
        do_sample=True,
        top_k=0,
        top_p=work.config.top_p,
        temperature=work.config.temperature,
        max_new_tokens=work.longest,
        eos_token_id=work.end,
        pad_token_id=work.end,
    )[:, width:].tolist()
    return [ids[: ids.index(work.end) + 1] if work.end in ids else ids for ids in written]


def _timed(write: Way, seed: int) -> dict[str, float]:
    began, busy = time.perf_counter(), time.process_time()
    rows = write(seed)
    seconds, busy = time.perf_counter() - began, time.process_time() - busy
    return {
        "rows_per_second": len(rows) / seconds,
        "rows_per_processor_second": len(rows) / busy,
        "mean_tokens": fmean(map(len, rows)),
    }


def markdown(found: dict[str, Any]) -> str:
    """Return a table of medians over turns."""
    turns: dict[str, list[dict[str, float]]] = found["turns"]
    first = next(iter(turns))
    rounds = (
        f"- turns: {len(turns[first])}; a ratio is the median of each turn's. The last column "
        "counts seconds of the processor, which other programs on it change less"
    )
    header = ["", "rows/s", "mean tokens", f"{THEIRS}, same weights", first, "likewise, processor"]
    return page(
        "Rows a second beside Hugging Face's `generate`",
        [*facts(found, "turns", "profile"), rounds],
        table(header, [_cells(turns, name, first) for name in turns]),
        shares_table(f"where the time of {list(turns)[-1]}, goes", found["profile"]),
    )


def _cells(turns: dict[str, list[dict[str, float]]], name: str, first: str) -> list[str]:
    def ratio(other: str, measure: str) -> str:
        pairs = zip(turns[name], turns[other], strict=True)
        return f"{median(mine[measure] / its[measure] for mine, its in pairs):.2f}×"

    return [
        name,
        f"{median(turn['rows_per_second'] for turn in turns[name]):.2f}",
        f"{fmean(turn['mean_tokens'] for turn in turns[name]):.1f}",
        ratio(name.replace(OURS, THEIRS), "rows_per_second"),
        ratio(first, "rows_per_second"),
        ratio(first, "rows_per_processor_second"),
    ]


if __name__ == "__main__":
    runner.run(bench)
