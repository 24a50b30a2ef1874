"""Sentence embeddings by the pinned encoder all-MiniLM-L6-v2. Nothing is written to any disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from twinset.models.assets import Say, asset_path, silent
from twinset.models.device import AUTO, device_of
from twinset.models.hub import no_fetched_code, quiet
from twinset.models.model_files import ModelFiles
from twinset.progress import Progress

ASSET = "minilm"
MAX_TOKENS = 128
BATCH_SIZE = 64
REPORTED = 256  # texts between two reports


class Encoder(Protocol):
    """Embeds texts."""

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return unit vectors (N, d)."""
        ...


def encode_tables(
    encoder: Encoder, tables: Mapping[str, Sequence[str]], progress: Progress
) -> dict[str, np.ndarray]:
    """Return the embeddings of each table's rows; texts of one length are read together."""
    everything = sorted({text for rows in tables.values() for text in rows}, key=len)
    vectors: list[np.ndarray] = []
    for start in range(0, len(everything), REPORTED):
        vectors.extend(encoder.encode(everything[start : start + REPORTED]))
        progress.count("texts embedded", len(vectors), len(everything))
    known = dict(zip(everything, vectors, strict=True))
    return {name: np.stack([known[text] for text in rows]) for name, rows in tables.items()}


class SentenceEncoder:
    """Embeds texts, each of them once: vectors are kept in memory as long as this object.

    Args:
        say: called before the encoder is downloaded, the first time ever.
        device: that embeds, as `device_of` takes it.
    """

    def __init__(self, say: Say = silent, device: str = AUTO) -> None:
        self._say, self.device = say, device
        self._model: Any = None
        self._tokenizer: Any = None
        self._known: dict[str, np.ndarray] = {}

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return unit vectors (N, 384): the mean over the tokens of the last layer, normalised."""
        new = sorted(set(texts) - self._known.keys(), key=len)  # by length: little padding
        if new and self._model is None:
            self._load()
        for start in range(0, len(new), BATCH_SIZE):
            batch = new[start : start + BATCH_SIZE]
            self._known.update(zip(batch, self._embed(batch), strict=True))
        return np.stack([self._known[text] for text in texts])

    @no_fetched_code()
    def _load(self) -> None:
        from transformers import AutoModel, AutoTokenizer

        options = {"trust_remote_code": False, "local_files_only": True}
        files = ModelFiles.of(asset_path(ASSET, self._say), ASSET)
        with quiet(), files.alone() as folder:
            model: Any = AutoModel.from_pretrained(folder, use_safetensors=True, **options)
            self._tokenizer = AutoTokenizer.from_pretrained(folder, **options)
        self._model = model.eval().to(device_of(self.device))

    def _embed(self, texts: list[str]) -> np.ndarray:
        import torch
        from torch.nn.functional import normalize

        inputs = self._tokenizer(
            texts, padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt"
        ).to(self._model.device)
        with torch.inference_mode():
            states = self._model(**inputs).last_hidden_state  # (B, T, d)
            mask = inputs["attention_mask"].unsqueeze(-1)  # (B, T, 1)
            means = (states * mask).sum(1) / mask.sum(1)  # (B, d)
            vectors: np.ndarray = normalize(means, dim=1).cpu().numpy()
        return vectors
