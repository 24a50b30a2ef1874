"""What a language model makes of texts: hidden states, the teacher that reads them, and perplexity.

The teacher is a set of linear classifiers on hidden states that predict a text's labels. It holds
only numbers that were released with noise or were already public.

In a private computation, each record's numbers must not depend on other records, to the bit. In a
batch of any shape the other rows would affect their rounding. So the shape of a batch follows from
a record's own length, and filler completes the batch. For hidden states the device is tested, too:
each row must be read as if it were alone (`states_of_records`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from torch import Tensor
from torch.nn.functional import cross_entropy

from twinset.models.base_model import context_length
from twinset.models.device import GPU_TOKENS, is_cpu, is_out_of_memory
from twinset.models.layers import PackedLinears
from twinset.progress import Count
from twinset.table.tokenization import batches_of_one_length, padded

QUESTION = "\n\nThe {} of this text is"
# Tokens in a batch on a processor. More are no faster, and the attention of longer rows is slower.
TOKENS_AT_ONCE = 1024
NATS_TOKENS_AT_ONCE = 2048  # likewise, for `nats_per_token`
# Share of the layers up to the one that is read: the last ones serve the next token. See
# tuning.md.
DEPTH = 28 / 30


def rows_at_once(width: int, device: torch.device) -> int:
    """Return how many rows of `width` tokens a device reads in one batch."""
    return max(1, (TOKENS_AT_ONCE if is_cpu(device) else GPU_TOKENS) // width)


class Questions:
    """Reads a text and, after it, a question about each attribute.

    The states are those of a `layer`, counted from 1. None: by `DEPTH`.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        attributes: Sequence[str],
        layer: int | None = None,
        packed: PackedLinears | None = None,
    ) -> None:
        self._model, self._tokenizer, self._packed = model, tokenizer, packed
        self.layer: int = layer or round(DEPTH * model.config.num_hidden_layers)
        self.device: torch.device = model.device
        asked = [QUESTION.format(name.replace("_", " ")) for name in attributes]
        questions = tokenizer(asked, add_special_tokens=False)["input_ids"]
        self._asked = [token for question in questions for token in question]
        self._ends = np.cumsum([len(question) for question in questions])
        self._longest, self.vocabulary = context_length(model), model.config.vocab_size
        self._room = self._longest - 1 - len(self._asked)  # tokens of the text itself
        self._start = tokenizer.bos_token_id or tokenizer.eos_token_id
        # For each shape that was tried: whether its rows are read as if alone.
        self.alone: dict[tuple[int, int], bool] = {}

    def tokens(self, text: str, longest: int) -> list[int]:
        """Return the first token ids of a text, at most `longest`."""
        ids: list[int] = self._tokenizer(" " + text.strip(), add_special_tokens=False)["input_ids"]
        return ids[:longest]

    def batches(self, rows: Sequence[Sequence[int]]) -> Iterator[tuple[tuple[int, int], list[int]]]:
        """Yield batches of texts of one padded length: rows and tokens, and the texts' numbers."""
        read = [1 + min(len(ids), self._room) + len(self._asked) for ids in rows]
        widths = [padded(length, self._longest) for length in read]
        shapes = [(rows_at_once(width, self.device), width) for width in widths]
        return batches_of_one_length(range(len(rows)), shapes.__getitem__, itemgetter(0))

    def states_of_texts(
        self, rows: Sequence[Sequence[int]], count: Count = lambda done, total: None
    ) -> list[np.ndarray]:
        """Return the states (A, d) of several texts. Not for private records.

        Texts of about one length are read together, and the rest of a batch affects their rounding.
        """
        found: dict[int, np.ndarray] = {}
        for _, numbers in self.batches(rows):
            found |= zip(numbers, self.states_of_batch([rows[i] for i in numbers]), strict=True)
            count(len(found), len(rows))
        return [found[i] for i in range(len(rows))]

    def states_of_batch(
        self, rows: Sequence[Sequence[int]], shape: tuple[int, int] | None = None
    ) -> np.ndarray:
        """Return the states (B, A, d) of one batch. For private records use `states_of_records`.

        All questions follow one another in one pass. Tokens without room before the questions are
        not read. Filler up to a `shape` of (rows, tokens) comes after all questions, and no token
        looks ahead that far.
        """
        read = [[self._start, *ids[: self._room], *self._asked] for ids in rows]
        lengths = np.array([len(ids) for ids in read])
        filled = torch.full(shape or (len(read), int(lengths.max())), self._start)
        for row, ids in zip(filled, read, strict=False):
            row[: len(ids)] = torch.tensor(ids)
        ends = torch.tensor(lengths[:, None] - len(self._asked) - 1 + self._ends)  # (B, A)
        places = torch.arange(len(read))[:, None].to(self.device), ends.to(self.device)
        states = self.hidden(filled)[places]  # (B, T, d) → (B, A, d)
        found: np.ndarray = states.double().cpu().numpy()
        return found

    @torch.inference_mode()
    def hidden(self, ids: Tensor) -> Tensor:
        """Return the hidden states (B, T, d) of tokens (B, T) in the chosen layer."""
        with self._packed.in_use() if self._packed else nullcontext():
            passed = self._model.base_model(
                input_ids=ids.to(self.device), use_cache=False, output_hidden_states=self.layer
            )
        found: Tensor = passed.hidden_states[self.layer]
        return found


# --- private records ----------------------------------------------------------------------------


def states_of_records(
    questions: Questions, records: Sequence[Sequence[int]]
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the number and the hidden states (A, d) float64 of each record, in any order.

    A record's states depend on its tokens and on the model alone. Adding or removing another record
    changes no bit of them. This is measured with made-up tokens for each shape in use. Where it
    fails, records are read one by one.
    """
    for shape, numbers in questions.batches(records):
        if is_read_alone(questions, shape):
            states = questions.states_of_batch([records[i] for i in numbers], shape)
            yield from zip(numbers, states, strict=True)
        else:
            yield from ((i, questions.states_of_batch([records[i]])[0]) for i in numbers)


def is_read_alone(questions: Questions, shape: tuple[int, int]) -> bool:
    """Return whether rows (R, T) are read the same to the bit, whatever the other rows are.

    Made-up rows are read twice more, each time one place further, in either direction. A third of
    them, in the first places or in the last, are replaced, as filler would be. A shape that does
    not fit into memory counts as failed.
    """
    known = questions.alone
    if shape in known:
        return known[shape]
    rows, tokens = shape
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(questions.vocabulary, (2 * rows, tokens), generator=generator)
    places, strangers = torch.arange(rows), -(-rows // 3) if rows > 1 else 0
    try:
        first, is_same = questions.hidden(ids[:rows]), True
        for turn, end in ((1, slice(0, strangers)), (-1, slice(rows - strangers, rows))):
            order = places.roll(turn)
            order[end] += rows  # rows of the second half
            again, stays = questions.hidden(ids[order]), order < rows
            before = first[order[stays].to(first.device)]
            is_same = is_same and torch.equal(before, again[stays.to(again.device)])
        known[shape] = is_same
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        known[shape] = False
    return known[shape]


# --- the teacher --------------------------------------------------------------------------------


COMPONENTS = 128  # most principal components of the reference texts' hidden states
FEWEST_COMPONENTS = 8
# Records that one component needs for each unit of the noise multiplier (tuning.md).
RECORDS_FOR_COMPONENT = 6
CONSTANT = 0.3  # follows each vector of length one: the intercept of the regression
TEACHER = "teacher.safetensors"
LAYER = "layer"  # a tensor in it
# As progress calls them.
PHASE, READ_PHASE = "texts read by the teacher", "rows read by the teacher"
FIT_PHASE = "steps of the teacher"
_SLACK = 1e-9  # keeps divisions finite where reference texts are all alike


@dataclass(frozen=True)
class Whitening:
    """Hidden states → vectors of length one, by statistics of texts that are not private."""

    mean: np.ndarray  # (d,) of the reference texts
    # (d, c) onto their principal components. Each is divided by the square root of its own
    # deviation, which is half-way to white.
    projection: np.ndarray

    @classmethod
    def fit(cls, reference: np.ndarray, records: int, noise_multiplier: float) -> Whitening:
        """Take the statistics of reference states (R, d), for a teacher of `records` records.

        Each further component takes the same noise, so few records can afford only few components.
        """
        components = float(COMPONENTS)
        if noise_multiplier:
            affordable = records / (RECORDS_FOR_COMPONENT * noise_multiplier)
            components = min(components, max(FEWEST_COMPONENTS, affordable))
        mean, scale = reference.mean(0), reference.std(0) + _SLACK
        _, singular, axes = np.linalg.svd((reference - mean) / scale, full_matrices=False)
        kept = min(int(components), max(1, len(reference) - 1), int((singular > _SLACK).sum()) or 1)
        deviation = np.maximum(singular[:kept], _SLACK) / max(1, len(reference) - 1) ** 0.5
        return cls(mean, axes[:kept].T / scale[:, None] / deviation**0.5)

    def __call__(self, state: np.ndarray) -> np.ndarray:
        """Return the vector (c + 1,) of one hidden state (d,).

        It takes one state at a time, because products of several states would affect the rounding.
        """
        found = (state - self.mean) @ self.projection
        return np.append(found / max(float(np.linalg.norm(found)), _SLACK), CONSTANT)


@dataclass(frozen=True)
class Teacher:
    """One logistic regression for each attribute."""

    whitenings: Sequence[Whitening]  # one for each attribute's hidden states
    weights: Sequence[np.ndarray]  # (K, c + 1) for each attribute with K values
    layer: int  # of the model, whose hidden states it knows, counted from 1

    def log_probabilities(self, states: np.ndarray) -> list[np.ndarray]:
        """Return log P[value | text], (K,) for each attribute, of one text's states (A, d)."""
        scores = (
            weights @ whiten(state)
            for weights, whiten, state in zip(self.weights, self.whitenings, states, strict=True)
        )
        return [each - np.logaddexp.reduce(each) for each in scores]

    def save(self, folder: Path) -> None:
        """Write it next to a model's weights, in float64."""
        arrays = {LAYER: np.array([self.layer])}
        for number, whiten in enumerate(self.whitenings):
            arrays[f"{number}.mean"] = whiten.mean
            arrays[f"{number}.projection"] = np.ascontiguousarray(whiten.projection)
            arrays[f"{number}.weights"] = np.ascontiguousarray(self.weights[number])
        save_file(arrays, folder / TEACHER)

    @classmethod
    def load(cls, folder: Path, classes: Sequence[int], config: Any) -> Teacher | None:
        """Read a teacher written by `save`, or return None if the folder has none.

        `classes` has the number of values of each attribute, and `config` is the model's. A teacher
        that does not fit raises a ValueError or KeyError.
        """
        hidden, layers = config.hidden_size, config.num_hidden_layers
        if not (folder / TEACHER).is_file():
            return None
        arrays: dict[str, Any] = load_file(folder / TEACHER)
        (layer,) = arrays.pop(LAYER)
        whitenings, weights = [], []
        for number, values in enumerate(classes):
            mean, projection = (arrays.pop(f"{number}.{part}") for part in ("mean", "projection"))
            whitenings.append(Whitening(mean, projection))
            weights.append(arrays.pop(f"{number}.weights"))
            parts, inner = (mean, projection, weights[-1]), projection.shape[1]
            shapes = (hidden,), (hidden, inner), (values, inner + 1)
            is_finite = all(np.isfinite(part).all() for part in parts)
            if not is_finite or tuple(part.shape for part in parts) != shapes:
                raise ValueError
        if arrays or int(layer) not in range(1, layers + 1):
            raise ValueError
        return cls(whitenings, weights, int(layer))


# --- perplexity ---------------------------------------------------------------------------------


@torch.inference_mode()
def nats_per_token(
    model: Any,
    texts: Sequence[Sequence[int]],
    start: int,
    on_progress: Callable[[int, int], object] = lambda done, total: None,
) -> Tensor:
    """Return the mean nats per token of each text (N,), the log of perplexity.

    Rows are batched with rows of their own padded length, and all batches of a length have the same
    number of rows. So all products have one shape, and a text's number depends on the text alone,
    not through rounding on the rest of its batch. Texts are token ids, none empty, and `start` is
    the token before each. Right padding needs no mask.
    """
    found = torch.zeros(len(texts), dtype=torch.float64)
    longest, done = context_length(model), 0
    lengths = [padded(min(1 + len(text), longest), longest) for text in texts]
    shapes = [(max(1, NATS_TOKENS_AT_ONCE // length), length) for length in lengths]
    numbers = range(len(texts))
    for shape, members in batches_of_one_length(numbers, shapes.__getitem__, itemgetter(0)):
        ids = torch.zeros(shape, dtype=torch.long)  # (R, T)
        counted = torch.zeros(shape, dtype=torch.bool)
        # What would be missing in the last batch of a length is filled up with rows of two tokens.
        filler = [[start, start]] * (len(ids) - len(members))
        for r, row in enumerate([[start, *texts[i]][:longest] for i in members] + filler):
            ids[r, : len(row)] = torch.tensor(row)
            counted[r, 1 : len(row)] = True
        ids, counted = ids.to(model.device), counted[:, 1:].to(model.device)
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()  # (R, T-1, V)
        nats = cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none").double()
        means = (nats * counted).sum(1) / counted.sum(1)  # (R,)
        found[members] = means.cpu()[: len(members)]
        done += len(members)
        on_progress(done, len(texts))
    return found
