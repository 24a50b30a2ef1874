"""The trained model with everything needed to sample from it, on the sharing side of the fence.

Holds no private record and no figure computed from one without noise: weights, tokenizer, schema,
template, noisy label counts and ledger.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pandas as pd

from twinset.artefact import write_json
from twinset.basemodel import load_base
from twinset.config import SamplingConfig
from twinset.errors import DAMAGED, InputError
from twinset.modelhub import quiet
from twinset.privacy.guarantee import Guarantee, guarantee
from twinset.privacy.ledger import Ledger
from twinset.progress import Progress, Silent
from twinset.records import twin_frame
from twinset.rowgroups import RowGroups, sample_groups
from twinset.sampler import Sampler
from twinset.schema import Combination, Schema
from twinset.sealed import fault, seal
from twinset.templates import Template
from twinset.tokens import prompt_tokens
from twinset.vllmengine import VllmEngine

DESCRIPTION, LEDGER = "twinset.json", "ledger.json"


@dataclass
class TwinModel:
    """A model that writes twins.

    Args:
        model: causal LM in evaluation mode.
        tokenizer: its tokenizer.
        schema: the private table's shape.
        template: renders the prompts.
        label_counts: noisy number of private records of every label combination.
        text_tokens: longest text the model was trained on, in tokens.
        ledger: what training spent.
        base_origin: where the base model came from; no path of this machine.
    """

    model: Any
    tokenizer: Any
    schema: Schema
    template: Template
    label_counts: dict[Combination, float]
    text_tokens: int
    ledger: Ledger
    base_origin: str

    @property
    def guarantee(self) -> Guarantee:
        """What may truthfully be claimed of everything sampled from this model, taken together."""
        return guarantee(self.ledger)

    def sample(
        self,
        counts: Mapping[Combination, int],
        sampling: SamplingConfig,
        progress: Progress | None = None,
        kept: RowGroups | None = None,
    ) -> pd.DataFrame:
        """Return a twin with exactly `counts[c]` rows of each combination c, shuffled.

        Columns, order, dtypes and label values are the private table's.

        Args:
            counts: rows wanted.
            sampling: decoding settings and seed.
            progress: is told how many rows there are.
            kept: where finished groups of rows are; what is there is not drawn again.
        """
        draw = partial(self.sampler, sampling)
        rows = sample_groups(draw, counts, progress or Silent(), kept)
        labels, texts = [row.combination for row in rows], [row.text for row in rows]
        frame = twin_frame(self.schema, texts, labels)
        return frame.sample(frac=1, random_state=sampling.seed).reset_index(drop=True)

    def sampler(self, sampling: SamplingConfig, stream: int) -> Sampler:
        """Return what draws rows, with random numbers of its own for each stream."""
        prompts = prompt_tokens(self.template, self.schema.combinations, self.tokenizer)
        engine = self._vllm.decode if sampling.engine == "vllm" else None
        return Sampler(
            self.model, self.tokenizer, prompts, sampling, self.text_tokens, stream, engine
        )

    @cached_property
    def _vllm(self) -> VllmEngine:
        return VllmEngine(self.model, self.tokenizer)

    def save(self, folder: Path) -> None:
        """Write weights (safetensors), tokenizer, description and ledger, and seal the folder."""
        with quiet():
            self.model.save_pretrained(folder, safe_serialization=True)
            self.tokenizer.save_pretrained(folder)
        write_json(folder / DESCRIPTION, self._description())
        write_json(folder / LEDGER, self.ledger.to_dict())
        seal(folder)

    def _description(self) -> dict[str, Any]:
        counts = [[list(c), n] for c, n in self.label_counts.items()]
        return {
            "schema": self.schema.to_dict(),
            "template": self.template.to_dict(),
            "label_counts": counts,
            "text_tokens": self.text_tokens,
            "base_origin": self.base_origin,
        }

    @classmethod
    def load(cls, folder: str | Path) -> TwinModel:
        """Read what `save` wrote; a run folder is taken for its `model/`.

        Raises:
            InputError: the folder holds no such model.
        """
        folder = Path(folder)
        folder = folder / "model" if (folder / "model" / DESCRIPTION).exists() else folder
        if not (folder / DESCRIPTION).exists():
            raise InputError(f"{folder} is no run and no model folder of twinset")
        if damage := fault(folder):
            raise InputError(f"the model folder is damaged: {damage}; copy it again")
        try:
            data = json.loads((folder / DESCRIPTION).read_text("utf-8"))
            base = load_base(str(folder), dtype=_stored_dtype(folder))
            return cls(
                base.model,
                base.tokenizer,
                Schema.from_dict(data["schema"]),
                Template.from_dict(data["template"]),
                {tuple(c): n for c, n in data["label_counts"]},
                data["text_tokens"],
                Ledger.load(folder / LEDGER),
                data["base_origin"],
            )
        except InputError:
            raise
        except DAMAGED as error:
            raise InputError(
                f"{folder}: the model folder is damaged ({type(error).__name__}); copy it again"
            ) from error


def _stored_dtype(folder: Path) -> Any:
    import torch

    name = json.loads((folder / "config.json").read_text("utf-8")).get("dtype", "float32")
    return torch.bfloat16 if name == "bfloat16" else torch.float32
