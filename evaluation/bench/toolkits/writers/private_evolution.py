"""Private Evolution (Aug-PE) from a copy of its repository, with the same base model as generator.

Its classes do all that touches private rows. Its wrapper of language models is replaced by plain
continuation, since the base model holds no conversation. Its parts for pictures, tables and hosted
models are left out, and so is a tokenizer that it would download: it blanks words, and none are.
"""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pandas as pd
import torch

BATCH = 100  # prompts at once
_NOT_TEXT = (
    "pe.api.image pe.api.tabular pe.data.image pe.data.tabular pe.embedding.image "
    "pe.embedding.tabular pe.llm.openai pe.llm.azure_openai pe.llm.huggingface "
    "pe.llm.huggingface.huggingface tiktoken"
).split()


def write_rows(job: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Evolve rows of the base model towards the private ones by noisy votes."""
    sys.path.insert(0, job["copy"])
    import numpy as np

    _leave_out(_NOT_TEXT)
    from pe.api.text.llm_augpe_api import LLMAugPE
    from pe.data.text import TextCSV
    from pe.embedding.text import SentenceTransformer
    from pe.histogram import NearestNeighbors
    from pe.population import PEPopulation
    from pe.runner import PE

    pd.options.mode.copy_on_write = True
    np.random.seed(job["seed"])
    torch.manual_seed(job["seed"])
    options = job["options"]
    prompts = _prompt_files(job)
    data = TextCSV(_csv(job), label_columns=job["attributes"], text_column=job["text"])
    api = LLMAugPE(_language_model(job), *prompts)
    embedding = SentenceTransformer(job["encoder"], batch_size=64)
    histogram = NearestNeighbors(embedding, mode="L2", lookahead_degree=0, backend="sklearn")
    population = PEPopulation(
        api,
        initial_variation_api_fold=options["variations"],
        next_variation_api_fold=options["variations"],
        keep_selected=True,
        selection_mode="rank",
    )
    evolved = PE(data, population, histogram).run(
        [job["rows"]] * (options["iterations"] + 1),
        delta=job["delta"],
        epsilon=job["epsilon"],
        save_checkpoint=False,
    )
    return _selected(evolved, job), {"epsilon": job["epsilon"], "settings": options}


def _leave_out(names: list[str]) -> None:
    """Put empty modules in the place of those that need what is not here, and are not used."""
    for name in names:
        module = types.ModuleType(name)
        module.__getattr__ = lambda _: MagicMock()  # type: ignore[method-assign]
        sys.modules[name] = module


def _language_model(job: dict[str, Any]) -> Any:
    from pe.llm.llm import LLM
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(job["base_model"], padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(job["base_model"], dtype=torch.float32).eval()
    longest = model.config.max_position_embeddings - job["tokens"]

    class Continuation(LLM):
        @torch.no_grad()
        def get_responses(self, requests: list[Any], **generation_args: Any) -> list[str]:
            asked = ["\n".join(m["content"] for m in r.messages) for r in requests]
            return [text for at in range(0, len(asked), BATCH) for text in some(asked[at:][:BATCH])]

    def some(prompts: list[str]) -> list[str]:
        given = tokenizer(
            prompts, return_tensors="pt", padding=True, truncation=True, max_length=longest
        )
        made = model.generate(
            **given,
            max_new_tokens=job["tokens"],
            do_sample=True,
            top_p=0.95,
            temperature=job["options"]["temperature"],
            pad_token_id=tokenizer.pad_token_id,
        )
        texts = tokenizer.batch_decode(
            made[:, given.input_ids.shape[1] :], skip_special_tokens=True
        )
        return [" ".join(text.split()) or "." for text in texts]

    return Continuation()


def _prompt_files(job: dict[str, Any]) -> list[str]:
    """Write its two prompts: a new text, and another one like a text."""
    alike = f"{job['prompt']} {{sample}}\n\n{job['prompt']}"
    files = []
    for name, content in (("random", job["prompt"]), ("variation", alike)):
        file = Path(job["folder"], f"{name}.json")
        file.write_text(json.dumps({"message_template": [{"role": "user", "content": content}]}))
        files.append(str(file))
    return files


def _csv(job: dict[str, Any]) -> str:
    file = Path(job["folder"], "private.csv")
    pd.read_parquet(job["table"]).to_csv(file, index=False)
    return str(file)


def _selected(evolved: Any, job: dict[str, Any]) -> pd.DataFrame:
    """Return the rows that the votes chose last, as its paper does, without their variations."""
    from pe.constant.data import LABEL_ID_COLUMN_NAME as LABEL
    from pe.constant.data import TEXT_DATA_COLUMN_NAME as TEXT
    from pe.constant.data import VARIATION_API_FOLD_ID_COLUMN_NAME as FOLD

    frame = evolved.data_frame
    frame = frame[frame[FOLD] == -1]
    labels = [dict(info.column_values) for info in evolved.metadata.label_info]
    rows = [
        {job["text"]: t, **labels[int(i)]} for t, i in zip(frame[TEXT], frame[LABEL], strict=True)
    ]
    return pd.DataFrame(rows)
