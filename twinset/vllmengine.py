"""Prompts → token ids by vLLM, which is made for GPUs: an engine that may stand for `decoding`.

It keeps the contract of `decoding.decode`, without guidance and typical decoding, which it lacks.
Here it runs in this process, and tells nobody that it does.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import count
from tempfile import TemporaryDirectory
from typing import Any

import torch

from twinset.config import SamplingConfig
from twinset.decoding import Request
from twinset.errors import InputError
from twinset.modelhub import quiet

SILENT = {
    "VLLM_NO_USAGE_STATS": "1",  # it would report to its makers
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


class VllmEngine:
    """A model and its tokenizer inside vLLM, beside the model itself.

    Args:
        model: causal LM of a kind that vLLM knows.
        tokenizer: its tokenizer.

    Raises:
        InputError: vLLM is not installed.
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        check_installed()
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

        Each row has a seed of its own, drawn from `generator`.
        """
        under_way: dict[str, int] = {}
        while waiting or under_way:
            while waiting and len(under_way) < config.batch_size:
                request, name = waiting.popleft(), next(self._names)
                under_way[name] = request.key
                prompt = {"prompt_token_ids": list(request.prompts[0])}
                asked = _parameters(end, max_new_tokens, config, _seed(generator))
                self._engine.add_request(name, prompt, asked)
            for output in self._engine.step():
                if output.finished:
                    yield under_way.pop(output.request_id), _ids(output.outputs[0], end)


def check_installed() -> None:
    """Refuse where vLLM is missing.

    Raises:
        InputError: it is.
    """
    if find_spec("vllm") is None:
        raise InputError("--engine vllm needs pip install 'twinset[vllm]'")


def _engine(folder: str, dtype: torch.dtype) -> Any:
    os.environ.update(SILENT)
    from vllm import EngineArgs, LLMEngine

    arguments = EngineArgs(
        model=folder,
        dtype=str(dtype).removeprefix("torch."),
        generation_config="vllm",  # what a base model's authors advise is not what was asked for
        use_tqdm_on_load=False,
        disable_log_stats=True,
    )
    return LLMEngine.from_engine_args(arguments)


def _parameters(end: int, longest: int, config: SamplingConfig, seed: int) -> Any:
    from vllm import SamplingParams

    return SamplingParams(
        temperature=config.temperature,
        top_p=config.top_p,
        max_tokens=longest,
        stop_token_ids=[end],
        seed=seed,
        detokenize=False,
    )


def _seed(generator: torch.Generator) -> int:
    return int(torch.randint(2**62, (), generator=generator, device=generator.device))


def _ids(completion: Any, end: int) -> list[int]:
    """Return the ids, with the end of text where it was reached."""
    ids = list(completion.token_ids)
    return [*ids, end] if completion.finish_reason == "stop" and ids[-1:] != [end] else ids
