"""Selective-DPSGD, Algorithm 1 of Shi et al. 2022, as it is published; and what covers it.

Each record of a Poisson batch is cut into public and private stretches in turn. A public stretch
makes a regular update; a private one an update of clipped, noisy gradients, and its last hidden
and cell state are clipped and made noisy before the next stretch begins from them. No policy of
`twinset` covers that, so no ε of it is a guarantee; see `Spent`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from evaluation.fitting import Count, Recipe, unheard
from evaluation.papers.learning import plan_of
from evaluation.papers.sdp.corpora import Flagged
from evaluation.papers.sdp.lstm import Lstm, State
from twinset.policies import NoisePolicy, Setting, make_policy
from twinset.privacy.accountant import compose, epsilon
from twinset.privacy.batches import poisson_batches
from twinset.privacy.calibration import calibrate_noise_multiplier
from twinset.privacy.clipping import ClippingEngine, Sequences
from twinset.privacy.events import Event, GaussianRelease
from twinset.privacy.noise import add_gaussian_
from twinset.privacy.randomness import Randomness

Stretch = tuple[int, int]  # half-open, in the places of a record from which the next is predicted
# Of one private stretch, in units of C, for other values in it: the gradient differs by at most 2,
# hidden and cell state by at most 2 each. Squares add up: 4 + 4 + 4.
_SQUARED_CHANGE = 12


@dataclass(frozen=True)
class Spent:
    """What a run did, and two ε of it, neither of which is a guarantee of `twinset`.

    Args:
        noise_multiplier: σ.
        events: what the paper's code adds up: each private update as a Poisson-subsampled step.
        releases: most private stretches that one record's visits came to.
    """

    noise_multiplier: float
    events: tuple[Event, ...]
    releases: int

    def nominal(self, delta: float) -> float:
        """Return the ε of `events`: by the paper's accounting, and no theorem."""
        return epsilon(self.events, delta)

    def proved(self, delta: float) -> float:
        """Return an upper bound of ε by an argument made here; `twinset` states none of it.

        Let what is flagged in one record become something of as many tokens in the same places.
        Who knows all the rest, the batches too, then sees Gaussian releases alone: of each private
        stretch of each visit a clipped gradient and two clipped states.
        They compose (Dong et al. 2019) to one of 12 · releases / σ² squared means. Subsampling is
        no help: regular updates carry no noise, and tell which records are in a batch.
        """
        sigma = self.noise_multiplier / math.sqrt(_SQUARED_CHANGE * max(1, self.releases))
        return epsilon([GaussianRelease(sigma, "gradients and states of private stretches")], delta)


def stretches(flags: np.ndarray) -> list[Stretch]:
    """Cut a record into public and private stretches in turn, a public one first, if empty.

    A place is private if its own token is, or the next, which is predicted there (section 4.1).

    Args:
        flags: of each token behind the begin.

    >>> stretches(np.array([False, False, True, False, False]))
    [(0, 2), (2, 4), (4, 5)]
    >>> stretches(np.array([True]))
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
        flagged: the records.
        recipe: batches and epochs, and Adam's rate for regular updates; C.
        step: η·C of private updates, which are plain descent.
        target: nominal ε.
        delta: δ.
        count: is told of each batch.
    """

    def __init__(
        self,
        model: Lstm,
        flagged: Flagged,
        recipe: Recipe,
        step: float,
        target: float,
        delta: float,
        count: Count = unheard,
    ) -> None:
        self._model, self._records, self._count = model, flagged.records, count
        self._plan = plan_of(len(flagged.records), recipe, 0.0)
        self._norm, self._rate = recipe.max_grad_norm, step / recipe.max_grad_norm
        self._cuts = [stretches(flags) for flags in flagged.flags]
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
        return make_policy(Setting(sigma, self._norm, rate, self._randomness))

    def train(self) -> Spent:
        """Do all steps."""
        engine, spent = ClippingEngine(self._model, math.inf), list[Event]()
        regular = torch.optim.Adam(engine.parameters, self._plan.learning_rate, (0.9, 0.99))
        fall = torch.optim.lr_scheduler.LinearLR(regular, 1.0, 0.1, self._plan.steps)
        try:
            for done, batch in enumerate(self._batches, start=1):
                spent = list(compose([*spent, *self._over(batch, engine, regular)]))
                fall.step()
                self._count(done, len(self._batches))
        finally:
            engine.close()
        return Spent(self.noise_multiplier, tuple(spent), self._releases())

    def _rounds(self, batch: list[int]) -> Iterator[tuple[bool, dict[int, Stretch]]]:
        """Yield of each round whether it is private, and the stretches by place in the batch."""
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
        for private, stretched in self._rounds(batch):
            rows, spans = list(stretched), list(stretched.values())
            taken = self._sequences([batch[row] for row in rows], spans)
            begin = State(states.hidden[rows], states.cell[rows])
            engine.zero()
            if private:
                yield self._private_update(engine, taken, begin)
            else:
                self._regular_update(engine, taken, begin, regular)
            hidden, cell = self._last_states(spans)
            if private:
                hidden, cell = self._noisy(hidden), self._noisy(cell)
            states.hidden[rows], states.cell[rows] = hidden, cell

    def _sequences(self, records: Sequence[int], spans: Sequence[Stretch]) -> Sequences:
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

        recurrence = self._model.base_model
        recurrence.begin = begin
        try:
            engine.add(taken, loss, limits)
        finally:
            recurrence.begin = None

    def _last_states(self, spans: Sequence[Stretch]) -> tuple[Tensor, Tensor]:
        """Return hidden and cell state (R, d) behind each row's own stretch."""
        states = self._model.base_model.states
        assert states is not None
        last = torch.tensor([end - start - 1 for start, end in spans])
        hidden, cell = (s[torch.arange(len(spans)), last] for s in states)
        return hidden, cell

    def _noisy(self, states: Tensor) -> Tensor:
        """(R, d): each row clipped to C, with noise of σC."""
        norms = states.norm(dim=1, keepdim=True)
        clipped = states / (norms / self._norm).clamp(min=1.0)
        return add_gaussian_(clipped, self.noise_multiplier * self._norm, self._randomness)
