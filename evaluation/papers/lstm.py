"""The LSTM of Shi et al. 2022, and Selective-DPSGD, their Algorithm 1, as it is published.

The LSTM has one layer and the form of a causal model of transformers, so that `ClippingEngine`
knows each row's whole gradient. Its rule for a linear layer wants all tokens of a row at once, but
a recurrence has the next input only when the last output is there. So the layer reads states that
were computed before, without a graph, and the recurrence adds to its output what states with a
graph would have changed: zero, but for its gradient. What the layer's hook sees is then exactly its
input and the loss's gradient at its output, through all of time.

Selective-DPSGD cuts each record of a Poisson batch into public and private segments in turn. A
public segment makes a regular update; a private one an update of clipped, noisy gradients, and its
last hidden and cell state are clipped and made noisy before the next segment begins from them. No
policy of `twinset` covers that, so no ε of it is a guarantee; see `Spent`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from evaluation.papers.causal_model import CausalModel, hidden_with_ones
from evaluation.papers.language_model import plan_of
from evaluation.utility.dp_fitting import Count, Recipe, no_op
from twinset.data.tokenization import TokenisedRecords
from twinset.policies import MechanismParams, NoisePolicy, make_policy
from twinset.privacy.accounting.accountant import compose, epsilon
from twinset.privacy.accounting.calibration import calibrate_noise_multiplier
from twinset.privacy.accounting.events import Event, GaussianRelease
from twinset.privacy.clipping import ClippingEngine, Sequences
from twinset.privacy.mechanism.noise import add_gaussian_
from twinset.privacy.mechanism.poisson import poisson_batches
from twinset.privacy.mechanism.randomness import Randomness

Segment = tuple[int, int]  # half-open, in the places of a record from which the next is predicted
# Of one private segment, in units of C, for other values in it: the gradient differs by at most 2,
# hidden and cell state by at most 2 each. Squares add up: 4 + 4 + 4.
_SQUARED_CHANGE = 12


class State:
    """Hidden and cell states (2, R, d) of R rows; stands where transformers have a cache."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def batch_select_indices(self, places: Tensor) -> None:
        """Keep these rows, in this order, as caches of transformers do."""
        self.values = self.values[:, places]


class Recurrence(nn.Module):
    """(R, T) ids → (R, T, d) hidden states, from zeros or from `begin`.

    Args:
        vocabulary: V.
        width: d, of words' vectors and of both states.
    """

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.table = nn.Embedding(vocabulary, width)
        self.gates = nn.Linear(2 * width, 4 * width)  # of word and hidden state; i, f, g, o
        bound = width**-0.5
        with torch.no_grad():  # as `nn.LSTM` begins
            for parameter in self.gates.parameters():
                parameter.uniform_(-bound, bound)
        self.begin: State | None = None
        self.states: Tensor | None = None

    def forward(self, input_ids: Tensor, **ignored: Any) -> SimpleNamespace:
        """Return the last layer, with a column of ones.

        Where gradients are asked for, `states` holds (2, R, T, d) hidden and cell states then.
        """
        vectors = self.table(input_ids)
        begin = self.begin or self.zeros(len(input_ids))
        hidden, last = self.read(vectors.detach(), begin)
        if torch.is_grad_enabled() and vectors.requires_grad:
            hidden = self._with_graph(vectors, hidden, begin)
        return hidden_with_ones(hidden, past_key_values=last)

    @contextmanager
    def starting_from(self, begin: State | None) -> Iterator[None]:
        """Read from another state than zeros, here alone."""
        self.begin = begin
        try:
            yield
        finally:
            self.begin = None

    def zeros(self, rows: int) -> State:
        """Return the state before any word."""
        return State(torch.zeros(2, rows, self.width, dtype=self.gates.weight.dtype))

    @torch.no_grad()
    def read(self, vectors: Tensor, begin: State) -> tuple[Tensor, State]:
        """(R, T, d) vectors → (R, T, d) hidden states, and the state behind them; no graph."""
        weight, bias = self.gates.weight, self.gates.bias
        of_word, of_state = (part.contiguous() for part in weight.split(self.width, dim=1))
        weights = [of_word, of_state, bias, torch.zeros_like(bias)]
        before = begin.values.unsqueeze(1).contiguous().unbind()
        hidden, h, c = torch.lstm(vectors, before, weights, True, 1, 0.0, False, False, True)
        return hidden, State(torch.cat([h, c]))

    def _with_graph(self, vectors: Tensor, known: Tensor, begin: State) -> Tensor:
        """(R, T, d) → the same hidden states with a graph, as this module's docstring explains."""
        h, c = begin.values
        previous = torch.cat([h[:, None], known[:, :-1]], 1).detach()
        gates = self.gates(torch.cat([vectors, previous], 2))  # (R, T, 4d)
        weight = self.gates.weight[:, self.width :].detach().t()
        hidden, cells = [], []
        for t in range(vectors.shape[1]):
            i, f, g, o = (gates[:, t] + (h - previous[:, t]) @ weight).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            hidden.append(h)
            cells.append(c)
        both = torch.stack([torch.stack(hidden, 1), torch.stack(cells, 1)])
        self.states = both.detach()
        return both[0]


class Lstm(CausalModel):
    """`Recurrence` and an output layer.

    Args:
        vocabulary: V.
        width: of words' vectors and states.
    """

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__(Recurrence(vocabulary, width), width, vocabulary)

    def forward(
        self,
        input_ids: Tensor,
        past_key_values: State | None = None,
        logits_to_keep: int = 0,
        **ignored: Any,
    ) -> SimpleNamespace:
        """(R, T) → logits (R, T, V), of the last tokens only where so many are asked for."""
        with self.base_model.starting_from(past_key_values):
            read = self.base_model(input_ids)
        state = read.past_key_values
        if past_key_values is not None:  # a cache grows in place
            past_key_values.values = state.values
        hidden = read.last_hidden_state[:, -logits_to_keep:]
        return SimpleNamespace(logits=self.head(hidden), past_key_values=state)


@dataclass(frozen=True)
class Spent:
    """What a run did; neither the ε of `events` nor `proved` is a guarantee of `twinset`.

    Args:
        noise_multiplier: σ.
        events: what the paper's code adds up: each private update as a Poisson-subsampled step.
        releases: most private segments that one record's visits came to.
    """

    noise_multiplier: float
    events: tuple[Event, ...]
    releases: int

    def proved(self, delta: float) -> float:
        """Return an upper bound of ε by an argument made here; `twinset` states none of it.

        Let what is flagged in one record become something of as many tokens in the same places.
        Who knows all the rest, the batches too, then sees Gaussian releases alone: of each private
        segment of each visit a clipped gradient and two clipped states.
        They compose (Dong et al. 2019) to one of 12 · releases / σ² squared means. Subsampling is
        no help: regular updates carry no noise, and tell which records are in a batch.
        """
        sigma = self.noise_multiplier / math.sqrt(_SQUARED_CHANGE * max(1, self.releases))
        return epsilon([GaussianRelease(sigma, "gradients and states of private segments")], delta)


def segments(flags: np.ndarray) -> list[Segment]:
    """Cut a record into public and private segments in turn, a public one first, if empty.

    A place is private if its own token is, or the next, which is predicted there (section 4.1).

    Args:
        flags: of each token behind the begin.

    >>> segments(np.array([False, False, True, False, False]))
    [(0, 2), (2, 4), (4, 5)]
    >>> segments(np.array([True]))
    [(0, 0), (0, 1)]
    """
    private = flags.copy()
    private[1:] |= flags[:-1]
    edges = np.flatnonzero(np.diff(private, prepend=False))
    cuts = [0, *edges.tolist(), len(private)]
    return list(zip(cuts[:-1], cuts[1:], strict=True))


class SelectiveDpsgd:
    """One training by Algorithm 1, with σ such that its nominal ε is a given one.

    Args:
        model: trained in place.
        records: to train on.
        flags: of each record, (T,) whether each of its tokens is private.
        recipe: batches and epochs, and Adam's rate for regular updates; C.
        step: η·C of private updates, which are plain descent.
        target: nominal ε.
        delta: δ.
        count: progress callback, of batches.
    """

    def __init__(
        self,
        model: Lstm,
        records: TokenisedRecords,
        flags: Sequence[np.ndarray],
        recipe: Recipe,
        step: float,
        target: float,
        delta: float,
        count: Count = no_op,
    ) -> None:
        self._model, self._records, self._count = model, records, count
        self._plan = plan_of(len(records), recipe, 0.0)
        self._norm, self._rate = recipe.max_grad_norm, step / recipe.max_grad_norm
        self._cuts = [segments(private) for private in flags]
        self._randomness = Randomness.from_os()
        rate, steps = self._plan.sample_rate, self._plan.steps
        drawn = poisson_batches(len(self._cuts), rate, steps, self._randomness)
        self._batches = [batch.tolist() for batch in drawn]
        self._target, self._delta = target, delta

    @cached_property
    def noise_multiplier(self) -> float:
        """σ with which the private updates nominally spend the target."""
        rate, updates = self._plan.sample_rate, self._updates()
        return calibrate_noise_multiplier(self._target, self._delta, rate, updates)

    @cached_property
    def _policy(self) -> NoisePolicy:
        sigma, rate = self.noise_multiplier, self._plan.sample_rate
        return make_policy(MechanismParams(sigma, self._norm, rate, self._randomness))

    def train(self) -> Spent:
        """Do all steps."""
        engine, spent = ClippingEngine(self._model, math.inf), list[Event]()
        regular = torch.optim.Adam(engine.parameters, self._plan.learning_rate, (0.9, 0.99))
        schedule = torch.optim.lr_scheduler.LinearLR(regular, 1.0, 0.1, self._plan.steps)
        try:
            for done, batch in enumerate(self._batches, start=1):
                spent = list(compose([*spent, *self._over(batch, engine, regular)]))
                schedule.step()
                self._count(done, len(self._batches))
        finally:
            engine.close()
        return Spent(self.noise_multiplier, tuple(spent), self._releases())

    def _rounds(self, batch: list[int]) -> Iterator[tuple[bool, dict[int, Segment]]]:
        """Yield of each round whether it is private, and the segments by row of the batch."""
        for turn in range(max((len(self._cuts[i]) for i in batch), default=0)):
            cuts = {row: self._cuts[i][turn : turn + 1] for row, i in enumerate(batch)}
            spans = {row: cut[0] for row, cut in cuts.items() if cut and cut[0][0] < cut[0][1]}
            if spans:
                yield turn % 2 == 1, spans

    def _updates(self) -> int:
        """Return how many private updates the batches come to."""
        rounds = (private for batch in self._batches for private, _ in self._rounds(batch))
        return max(1, sum(rounds))

    def _releases(self) -> int:
        visits = np.bincount(
            np.concatenate([*map(np.array, self._batches), []]).astype(int),
            minlength=len(self._cuts),
        )
        private = np.array([len(cut) // 2 for cut in self._cuts])
        return int((visits * private).max())

    def _over(
        self, batch: list[int], engine: ClippingEngine, regular: torch.optim.Optimizer
    ) -> Iterator[Event]:
        """Take a batch's updates in turn; yield what the private ones spend."""
        states = self._model.base_model.zeros(len(batch))
        for private, by_row in self._rounds(batch):
            rows, spans = list(by_row), list(by_row.values())
            taken = self._sequences([batch[row] for row in rows], spans)
            begin = State(states.values[:, rows])
            engine.zero()
            if private:
                yield self._private_update(engine, taken, begin)
            else:
                self._regular_update(engine, taken, begin, regular)
            last = self._last_states(spans)
            states.values[:, rows] = self._noisy(last) if private else last

    def _sequences(self, records: Sequence[int], spans: Sequence[Segment]) -> Sequences:
        """Return the tokens that are read and, one further, those that are predicted."""
        width = max(end - start for start, end in spans) + 1
        ids = torch.zeros(len(records), width, dtype=torch.long)
        mask = torch.zeros(len(records), width, dtype=torch.bool)
        (begin,) = self._records.prompts[()]
        for row, (record, (start, end)) in enumerate(zip(records, spans, strict=True)):
            tokens = [begin, *self._records.texts[record]][start : end + 1]
            ids[row, : len(tokens)] = torch.tensor(tokens)
            mask[row, 1 : len(tokens)] = True
        return Sequences(ids, mask, 1)

    def _regular_update(
        self, engine: ClippingEngine, taken: Sequences, begin: State, adam: torch.optim.Optimizer
    ) -> None:
        self._add(engine, taken, begin, None)
        tokens = int(taken.tokens_per_row.sum())
        for parameter, total in zip(engine.parameters, engine.sums, strict=True):
            parameter.grad = total / tokens
        adam.step()
        adam.zero_grad()

    @torch.no_grad()
    def _private_update(self, engine: ClippingEngine, taken: Sequences, begin: State) -> Event:
        """Descend along noisy clipped gradients; as published, divided by the realised number."""
        self._add(engine, taken, begin, torch.full((taken.units,), self._norm))
        noisy, event = self._policy.release(engine.sums, [])
        for parameter, total in zip(engine.parameters, noisy, strict=True):
            parameter.sub_(total, alpha=self._rate / taken.units)
        return event

    def _add(
        self, engine: ClippingEngine, taken: Sequences, begin: State, limits: Tensor | None
    ) -> None:
        """Sum the gradients of all tokens' losses; with limits, of each row's mean loss."""

        def loss(means: Tensor, counts: Tensor) -> Tensor:
            return (means if limits is not None else means * counts)[:, 0]

        with self._model.base_model.starting_from(begin):
            engine.add(taken, loss, limits)

    def _last_states(self, spans: Sequence[Segment]) -> Tensor:
        """Return hidden and cell state (2, R, d) behind each row's own segment."""
        states = self._model.base_model.states
        assert states is not None
        last = torch.tensor([end - start - 1 for start, end in spans])
        return states[:, torch.arange(len(spans)), last]

    def _noisy(self, states: Tensor) -> Tensor:
        """(…, d): each state clipped to C, with noise of σC."""
        norms = states.norm(dim=-1, keepdim=True)
        clipped = states / (norms / self._norm).clamp(min=1.0)
        return add_gaussian_(clipped, self.noise_multiplier * self._norm, self._randomness)
