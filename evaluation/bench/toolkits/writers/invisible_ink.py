"""InvisibleInk (`invink`): no training; every token is drawn with private texts in the prompt.

It knows no labels: it is asked once for each combination of them, about that combination's texts.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import pandas as pd

PLAIN = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
_QUOTED = '{"all devices" if device_map == "auto" else device_map}'


def write_rows(job: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Draw rows of each combination of labels from disjoint groups of its texts."""
    invink = _imported()
    table, model = pd.read_parquet(job["table"]), _with_template(job)
    parts, spent = [], []
    for labels, group in table.groupby(job["attributes"]):
        values = labels if isinstance(labels, tuple) else (labels,)
        row = dict(zip(job["attributes"], values, strict=True))
        wanted = round(job["rows"] * len(group) / len(table))
        prompt = job["prompt"].format(**row)
        made = invink.generate(
            group[job["text"]].sample(frac=1, random_state=job["seed"]).tolist(),
            model,
            dataset_desc=prompt,
            system_prompt="",
            prv_prompt=f"{{}} {{}}\n\n{prompt}",
            pub_prompt="{}",
            epsilon=job["epsilon"],
            delta=job["delta"],
            num=wanted,
            batch_size=1 + len(group) // wanted,
            max_toks=job["tokens"],
            temperature=job["options"]["temperature"],
            topk=job["options"]["topk"],
            device_map=-1,
            dtype="float32",
            allow_download=False,
            trust_remote_code=False,
            random_seed=job["seed"],
        )
        parts.append(pd.DataFrame({job["text"]: made.texts, **row}))
        spent += list(made.epsilon_spent)
    return pd.concat(parts), {"epsilon": float(max(spent)), "settings": job["options"]}


def _imported() -> Any:
    """Import it also before Python 3.12, which alone reads quotes within quotes of a message."""
    found = importlib.util.find_spec("invink")
    assert found is not None and found.origin is not None
    source = Path(found.origin).with_name("utils.py").read_text("utf-8")
    module = types.ModuleType("invink.utils")
    exec(source.replace(_QUOTED, "{device_map}"), module.__dict__)
    sys.modules["invink.utils"] = module
    return importlib.import_module("invink")


def _with_template(job: dict[str, Any]) -> str:
    """Copy the base model with a template of conversations that adds nothing: invink needs one."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = Path(job["folder"], "base")
    tokenizer = AutoTokenizer.from_pretrained(job["base_model"])
    tokenizer.chat_template = PLAIN
    tokenizer.save_pretrained(folder)
    AutoModelForCausalLM.from_pretrained(job["base_model"]).save_pretrained(folder)
    return str(folder)
