"""A fine-tuned text encoder; with a budget it learns privately: the DP baseline of the papers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evaluation.utility.dp_fitting import (
    Budget,
    Count,
    Fitting,
    MakePolicy,
    PrivatelyFitted,
    Recipe,
    no_op,
)
from evaluation.utility.embeddings import ASSET
from twinset.errors import InputError
from twinset.models.assets import ASSETS, Say, asset_path, silent
from twinset.models.device import AUTO, device_of
from twinset.models.hub import hub_folder, no_fetched_code, quiet
from twinset.models.model_files import ModelFiles
from twinset.policies import make_policy
from twinset.privacy.clipping import LabelledRows
from twinset.table.tokenization import batches_of_one_length, padded

MAX_TOKENS = 128
TOKENS_AT_ONCE = 4096


OPEN = Recipe(batch_size=32, epochs=3, learning_rate=1e-4)
PRIVATE = Recipe(batch_size=256, epochs=10, learning_rate=1e-3)
Adapt = Callable[[Any], Any]  # a loaded model → what is trained and asked


def whole(model: Any) -> Any:
    """Return a model as it is: all of it is trained."""
    return model


class EncoderClassifier(PrivatelyFitted):
    """Any sequence classifier of the BERT family, fine-tuned whole or in part.

    For what it guarantees see `twinset.privacy.statement.theorems`, CLASSIFIER.

    Args:
        name: folder or hub name; None is the pinned MiniLM.
        budget: ε and δ; None learns without privacy.
        recipe: None takes `OPEN` or `PRIVATE`.
        seed: of the new head and, without a budget, of the batches. Noise never is seeded.
        say: called before the encoder is downloaded.
        count: is notified of each step.
        adapt: freezes parts of the loaded model, or adds some; random draws follow the seed.
        make: makes the noise policy; uniform noise where left out.
        max_tokens: that a text is cut at.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        budget: Budget | None = None,
        recipe: Recipe | None = None,
        seed: int = 0,
        say: Say = silent,
        count: Count = no_op,
        adapt: Adapt = whole,
        make: MakePolicy = make_policy,
        max_tokens: int = MAX_TOKENS,
        device: str = AUTO,
    ) -> None:
        self._name, self._seed, self._say, self._device = name, seed, say, device
        self._adapt, self._max_tokens = adapt, max_tokens
        recipe = recipe or (PRIVATE if budget else OPEN)
        self._fitting = Fitting(recipe, budget, seed, count, make)

    def check(self) -> None:
        """Refuse an encoder that cannot be loaded, before anything slow.

        Raises:
            InputError: it cannot.
        """
        self._load(2)

    def fit(self, texts: Sequence[str], labels: Sequence[str]) -> EncoderClassifier:
        """Learn from rows."""
        self.classes_ = np.array(sorted(set(labels)))
        self._load(len(self.classes_))
        rows, known = self._encode(texts), {c: i for i, c in enumerate(self.classes_)}
        classes = [known[label] for label in labels]

        def labelled(members: Sequence[int]) -> Iterator[LabelledRows]:
            return (self._labelled(rows, some, classes) for some in self._cut(rows, members))

        self.ledger = self._fitting.fit(self._model, len(rows), labelled)
        return self

    def predict(self, texts: Sequence[str]) -> np.ndarray:
        """Return the labels (N,) of texts."""
        rows = self._encode(texts)
        found, unknown = np.zeros(len(rows), dtype=int), [0] * len(rows)
        with torch.inference_mode():
            for members in self._cut(rows, range(len(rows))):
                batch = self._labelled(rows, members, unknown)
                ids, mask = (
                    x.to(self._model.device) for x in (batch.input_ids, batch.attention_mask)
                )
                logits = self._model(input_ids=ids, attention_mask=mask).logits
                found[members] = logits.argmax(1).cpu().numpy()
        predicted: np.ndarray = self.classes_[found]
        return predicted

    @no_fetched_code()
    def _load(self, classes: int) -> None:
        name = self._name or ASSET
        files = ModelFiles.of(self._folder(name), name)
        try:
            with quiet(), files.alone() as folder, torch.random.fork_rng(devices=[]):
                torch.manual_seed(self._seed)
                self._model = self._adapt(self._loaded(files, folder, classes))
        except InputError:
            raise
        except Exception as error:  # whatever a strange file makes three libraries raise
            raise InputError(f"{name} cannot be loaded as a text classifier") from error
        if self._tokenizer.pad_token_id is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        self._model.config.pad_token_id = self._tokenizer.pad_token_id
        self._model.eval().to(device_of(self._device))

    def _loaded(self, files: ModelFiles, folder: Path, classes: int) -> Any:
        """Read the tokenizer; return the model with a new head."""
        from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

        options = {"trust_remote_code": False, "local_files_only": True}
        config = AutoConfig.from_pretrained(folder, num_labels=classes, **options)
        files.check_size(AutoModelForSequenceClassification, config)
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, **options)
        return AutoModelForSequenceClassification.from_pretrained(
            folder,
            config=config,
            ignore_mismatched_sizes=True,  # the head is made anew
            use_safetensors=True,
            **options,
        )

    def _folder(self, name: str) -> Path:
        if name in ASSETS:
            return asset_path(name, self._say)
        folder = Path(name).expanduser()
        return folder if folder.is_dir() else hub_folder(name, self._say)

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        with quiet():
            encoded = self._tokenizer(list(texts), truncation=True, max_length=self._max_tokens)
        ids: list[list[int]] = encoded["input_ids"]
        return ids

    def _cut(self, rows: list[list[int]], members: Sequence[int]) -> Iterator[list[int]]:
        def length(i: int) -> int:
            return padded(len(rows[i]), self._max_tokens)

        def at_once(padded_length: int) -> int:
            return max(1, TOKENS_AT_ONCE // padded_length)

        return (some for _, some in batches_of_one_length(members, length, at_once))

    def _labelled(
        self, rows: list[list[int]], members: list[int], classes: list[int]
    ) -> LabelledRows:
        """Return rows of one padded length."""
        length = padded(len(rows[members[0]]), self._max_tokens)
        ids = torch.full((len(members), length), int(self._tokenizer.pad_token_id or 0))
        mask = torch.zeros((len(members), length), dtype=torch.bool)
        for place, row in enumerate(rows[i] for i in members):
            ids[place, : len(row)] = torch.tensor(row)
            mask[place, : len(row)] = True
        return LabelledRows(ids, mask, torch.tensor([classes[i] for i in members]))
