"""The measured tasks, one process each: `python contestant.py TASK '{"option": …}'` prints JSON.

It imports twinset through its public interface alone, so it also runs against another checkout. It
is started by path, and so must not import anything of `evaluation`.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import nullcontext
from statistics import median
from typing import Any

WORDS = "the film was long and the plot had little to say but we liked how it ended".split()


def make_texts(count: int, words: int) -> list[str]:
    """Return made-up texts with about `words` words each. Speed does not depend on content."""
    return [
        " ".join(WORDS[(i * 7 + j * (1 + i % 5)) % len(WORDS)] for j in range(words))
        for i in range(count)
    ]


def make_frame(count: int, words: int) -> Any:
    """Return a table of made-up texts with two labels."""
    import pandas as pd

    labels = ["good" if i % 2 else "bad" for i in range(count)]
    return pd.DataFrame({"text": make_texts(count, words), "label": labels})


def step_of_twinset(
    base_model: str, batch: int, tokens: int, steps: int, **more: Any
) -> dict[str, Any]:
    """Train with `Twinset`. Return records per second, from the times that progress reports."""
    from twinset import Twinset
    from twinset.progress import Progress

    seen: list[tuple[float, int]] = []

    class Watch(Progress):
        """Records when each step ended, and how many records it had."""

        def step(self, report: Any, plan: Any) -> None:
            seen.append((report.seconds, report.records))

    options = {"marginal_share": 0.0, "teacher_share": 0.0, "mismatch_weight": 0.0}
    twinset = Twinset(
        base_model=base_model,
        progress=Watch(),
        steps=steps,
        batch_size=batch,
        max_tokens=tokens,
        max_minutes=None,
        **(options | more),
    )
    twinset.fit(make_frame(batch * 8, 2 * tokens), "text", ["label"])
    # The first step warms up. A Poisson batch has a size of its own, so records are counted.
    seconds = seen[-1][0] - seen[0][0]
    records = sum(count for _, count in seen[1:])
    return {"rate": records / seconds, "unit": "records/s"}


def load_model(base_model: str, method: str) -> tuple[Any, Any]:
    """Return the base as transformers loads it, with adapters if requested, and its tokenizer."""
    from twinset.models.base_model import load_base

    base = load_base(base_model)
    model = base.model.float()
    if method == "lora":
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=8, target_modules="all-linear"))
    else:
        model.requires_grad_(True)
    return model.train(), base.tokenizer


def encode_texts(tokenizer: Any, count: int, tokens: int) -> Any:
    """Return ids (count, tokens) of made-up texts."""
    import torch

    texts = make_texts(count, 2 * tokens)
    rows = [tokenizer.encode(text, add_special_tokens=False)[:tokens] for text in texts]
    return torch.tensor(rows)


def time_steps(step: Any, batch: int, steps: int) -> dict[str, Any]:
    """Return records per second over the median of some steps, after one warm-up step."""
    step()
    taken = []
    for _ in range(steps):
        began = time.perf_counter()
        step()
        taken.append(time.perf_counter() - began)
    return {"rate": batch / median(taken), "unit": "records/s"}


def step_of_transformers(
    base_model: str, batch: int, tokens: int, steps: int, method: str = "lora"
) -> dict[str, Any]:
    """Train without privacy: the cost of a step without clipping."""
    import torch

    model, tokenizer = load_model(base_model, method)
    ids = encode_texts(tokenizer, batch, tokens)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()

    return time_steps(step, batch, steps)


def step_of_opacus(
    base_model: str, batch: int, tokens: int, steps: int, method: str = "lora"
) -> dict[str, Any]:
    """Train with Opacus' per-sample gradients (`GradSampleModule` and `DPOptimizer`)."""
    import torch
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer
    from torch.nn.functional import cross_entropy

    model, tokenizer = load_model(base_model, method)
    ids = encode_texts(tokenizer, batch, tokens)
    wrapped = GradSampleModule(model, strict=False, loss_reduction="sum")
    inner = torch.optim.AdamW([p for p in wrapped.parameters() if p.requires_grad])
    optimizer = DPOptimizer(
        inner, noise_multiplier=1.0, max_grad_norm=0.1, expected_batch_size=batch
    )

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        logits = wrapped(input_ids=ids).logits[:, :-1]  # (B, S - 1, V)
        losses = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        losses.view(batch, -1).mean(1).sum().backward()
        optimizer.step()

    return time_steps(step, batch, steps) | {"note": "rows clipped apart"}


def rows_of_twinset(
    base_model: str, rows: int, tokens: int, words: bool = True, **more: Any
) -> dict[str, Any]:
    """Write rows with `Twinset`, by default with the released tilt of words and no teacher."""
    twinset = fit_untrained(base_model, tokens, words, **more)
    twinset.sample(8)  # reads weights, packs matrices
    clock = clock_of(twinset.model.model)
    began = clock()
    twin = twinset.sample(rows, seed=1)
    seconds = clock() - began
    lengths = [len(ids) for ids in twinset.model.tokenizer(twin["text"].tolist())["input_ids"]]
    note = f"{sum(lengths) / len(lengths):.0f} tokens a row"
    return {"rate": sum(lengths) / seconds, "unit": "tokens/s", "note": note}


def clock_of(model: Any) -> Any:
    """Return a clock: of the processor, which other programs change less, or of a GPU's work."""
    from twinset.models.device import is_cpu

    return time.process_time if is_cpu(model.device) else time.perf_counter


def profile_of_rows(base_model: str, rows: int, tokens: int) -> dict[str, Any]:
    """Profile the rows of `rows_of_twinset`. Return each operation's share of the time, in %."""
    from torch.profiler import ProfilerActivity, profile

    twinset = fit_untrained(base_model, tokens)
    twinset.sample(8)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        began = time.process_time()
        twinset.sample(rows, seed=1)
        seconds = time.process_time() - began
    own = {each.key: each.self_cpu_time_total for each in seen.key_averages()}
    largest = sorted(own, key=lambda name: -own[name])[:12]
    shares = {name: round(100 * own[name] / sum(own.values()), 1) for name in largest}
    return {"rate": rows / seconds, "unit": "rows/s", "shares": shares}


def fit_untrained(base_model: str, tokens: int, words: bool = True, **more: Any) -> Any:
    """Fit to 400 made-up texts, by default with the released tilt of words. Train nothing."""
    from twinset import Twinset

    twinset = Twinset(
        base_model=base_model,
        epsilon=8.0,
        steps=0,
        teacher_share=0.0,
        marginal_share=0.5 if words else 0.0,
        max_tokens=tokens,
        max_new_tokens=tokens,
        max_minutes=None,
        guidance=0.0,
        prompt="Write a {label} text:",
        **more,
    )
    return twinset.fit(make_frame(400, 2 * tokens), "text", ["label"])


def rows_of_generate(
    base_model: str, rows: int, tokens: int, batch: int = 64, format: str = "float32"
) -> dict[str, Any]:
    """Write rows with `generate` of transformers, nucleus sampling, batches of one length."""
    import torch

    from twinset.models.base_model import load_base

    base = load_base(base_model)
    model = base.model.to(getattr(torch, format)).eval()
    prompt = torch.tensor([base.tokenizer.encode("Write a good text:", add_special_tokens=False)])

    def write(count: int) -> int:
        ids = model.generate(
            prompt.expand(count, -1),
            attention_mask=torch.ones(count, prompt.shape[1], dtype=torch.long),
            do_sample=True,
            top_p=0.95,
            max_new_tokens=tokens,
            pad_token_id=base.tokenizer.eos_token_id,
        )[:, prompt.shape[1] :]
        return int((ids != base.tokenizer.eos_token_id).sum())

    write(4)
    clock = clock_of(model)
    began = clock()
    written = sum(write(min(batch, rows - done)) for done in range(0, rows, batch))
    seconds = clock() - began
    return {"rate": written / seconds, "unit": "tokens/s", "note": "no tilt"}


def phases_of_run(
    base_model: str, records: int, rows: int, tokens: int, counted: bool = False, **more: Any
) -> dict[str, Any]:
    """Make a twin with a teacher on a CPU. Return the CPU seconds of each phase that reports.

    `counted` returns operations in matrix products and attention instead, two for each
    multiplication and addition. Counting slows a run, so time another one.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from twinset import Twinset
    from twinset.progress import Progress

    def linear(x: Any, weight: Any, *_: Any, out_shape: Any, **__: Any) -> int:
        return 2 * int(torch.Size(x).numel()) * int(weight[0])

    def attention(query: Any, key: Any, *_: Any, out_shape: Any, **__: Any) -> int:
        return 4 * int(torch.Size(query).numel()) * int(key[-2])

    ours: dict[Any, Any] = {
        torch.ops.mkldnn._linear_pointwise: linear,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention,
    }
    counter = FlopCounterMode(display=False, custom_mapping=ours)
    found: dict[str, float] = {}
    last = [0.0 if counted else time.process_time()]

    class Watch(Progress):
        """Adds what went by since the last report to the phase that reports."""

        def count(self, what: str, done: int, *_: Any, **__: Any) -> None:
            now = counter.get_total_flops() if counted else time.process_time()
            found[what] = found.get(what, 0.0) + (now - last[0]) * (done > 0)
            last[0] = now

    twinset = Twinset(
        base_model=base_model,
        epsilon=8.0,
        steps=0,
        max_tokens=tokens,
        max_new_tokens=tokens,
        max_minutes=None,
        progress=Watch(),
        **more,
    )
    with counter if counted else nullcontext():
        twinset.fit(make_frame(records, 2 * tokens), "text", ["label"])
        twinset.sample(rows, seed=1)
    return {"rate": sum(found.values()), "unit": "operations" if counted else "s", "phases": found}


def matrix_products(format: str = "float32", width: int = 576, inner: int = 1536) -> dict[str, Any]:
    """Return the GFLOP/s of the main product of decoding 64 rows, with packed weights or not."""
    import torch
    from torch.nn.functional import linear

    kind = getattr(torch, format)
    x, weight = torch.randn(64, width, dtype=kind), torch.randn(inner, width, dtype=kind)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, 64)
    ways = {
        "packed": lambda: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], ""),
        "as they are": lambda: linear(x, weight),
    }
    rates = {}
    for name, product in ways.items():
        taken = []
        for _ in range(300):
            began = time.perf_counter()
            product()
            taken.append(time.perf_counter() - began)
        rates[name] = 2e-9 * 64 * width * inner / median(taken[50:])
    best = max(rates, key=lambda name: rates[name])
    return {"rate": rates[best], "unit": "GFLOP/s", "note": f"weights {best}"}


if __name__ == "__main__":
    task, options = globals()[sys.argv[1]], json.loads(sys.argv[2])
    sys.stdout.write(json.dumps(task(**options)) + "\n")
