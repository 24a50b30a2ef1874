"""Prompts → token ids by vLLM, which is made for GPUs: an engine that may stand for `decoding`.

It keeps the contract of `decoding.decode`, without guidance and typical decoding, which it lacks.
Here it runs in this process, and reports to nobody that it does.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count
from tempfile import TemporaryDirectory
from typing import Any

import torch

from twinset.config import SamplingConfig
from twinset.errors import InputError, first_line
from twinset.models.hub import quiet
from twinset.sampling.decoding import Request

SILENT = {
    "VLLM_NO_USAGE_STATS": "1",  # it would report to its makers
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
ROWS_OF_A_STREAM = 2**14  # eight times `row_shards.GROUP_ROWS`: some are drawn again


class VllmEngine:
    """A model and its tokenizer inside vLLM, beside the model itself.

    Args:
        model: causal LM of a kind that vLLM knows.
        tokenizer: its tokenizer.

    Raises:
        InputError: vLLM cannot start with it.
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self._names = map(str, count())
        with TemporaryDirectory(prefix="twinset-") as folder:
            with quiet():
                model.save_pretrained(folder, safe_serialization=True)
                tokenizer.save_pretrained(folder)
            self._engine = _engine(folder, model.dtype)

    def decode(
        self,
        waiting: deque[Request],
        end: int,
        max_new_tokens: int,
        config: SamplingConfig,
        generator: torch.Generator,
    ) -> Iterator[tuple[int, list[int]]]:
        """Yield the key and the ids of each row as it ends; see `decoding.decode`.

        Each row has a seed of its own, which follows from that of `generator`.
        """
        under_way: dict[str, int] = {}
        seeds = _seeds(generator)
        try:
            while waiting or under_way:
                while waiting and len(under_way) < config.batch_size:
                    request, name = waiting.popleft(), next(self._names)
                    under_way[name] = request.key
                    prompt = {"prompt_token_ids": list(request.prompts[0])}
                    asked = _parameters(end, max_new_tokens, config, next(seeds))
                    self._engine.add_request(name, prompt, asked)
                for output in self._engine.step():
                    if output.finished:
                        yield under_way.pop(output.request_id), _ids(output.outputs[0], end)
        finally:
            self._engine.abort_request(list(under_way))


def check_engine(sampling: SamplingConfig, processes: int = 1) -> None:
    """Refuse, before anything slow, an engine that cannot be had.

    Raises:
        InputError: vLLM is asked for, and is missing or cannot be loaded, or is to be in several
            processes.
    """
    if sampling.engine != "vllm":
        return
    if processes > 1:
        raise InputError(
            "`engine=vllm` writes rows in one process; train with `twinset finetune` and several, "
            "then write them with `twinset sample`"
        )
    if find_spec("vllm") is None:
        raise InputError("`engine=vllm` needs pip install 'twinset[vllm]'")
    with _or_refused("cannot be loaded"):
        _vllm()
    with _or_refused("refuses these decoding settings"):
        _parameters(0, sampling.max_new_tokens or 1, sampling, 0)


def _vllm() -> Any:
    os.environ.update(SILENT)
    import vllm

    return vllm


def _engine(folder: str, dtype: torch.dtype) -> Any:
    vllm = _vllm()
    arguments = {
        "model": folder,
        "dtype": str(dtype).removeprefix("torch."),
        "generation_config": "vllm",  # not what a base model's authors advise
        "use_tqdm_on_load": False,
        "disable_log_stats": True,
    }
    with _or_refused("cannot start"):
        return vllm.LLMEngine.from_engine_args(vllm.EngineArgs(**arguments))


@contextmanager
def _or_refused(what: str) -> Iterator[None]:
    """Turn whatever vLLM raises into one line; a run that has trained by then can be resumed."""
    try:
        yield
    except Exception as error:
        raise InputError(
            f"`engine=vllm`: vLLM {what} ({first_line(error)}); mend it, or take `engine=torch`, "
            "with `resume` where a run has begun"
        ) from error


def _parameters(end: int, longest: int, config: SamplingConfig, seed: int) -> Any:
    from vllm import SamplingParams

    return SamplingParams(
        temperature=config.temperature,
        top_p=config.top_p,
        max_tokens=longest,
        stop_token_ids=[end],
        ignore_eos=True,  # of ends that the model's own settings may name besides
        seed=seed,
        detokenize=False,
    )


def _seeds(generator: torch.Generator) -> Iterator[int]:
    """Yield a seed for each row; those of generators with neighbouring seeds never meet.

    On a processor 32 bits of a seed count, so that draws of it would meet now and then.
    """
    first = generator.initial_seed() * ROWS_OF_A_STREAM
    return (seed % 2**32 for seed in count(first))


def _ids(completion: Any, end: int) -> list[int]:
    """Return the ids, with the end of text where it was reached."""
    ids = list(completion.token_ids)
    return [*ids, end] if completion.finish_reason == "stop" and ids[-1:] != [end] else ids
