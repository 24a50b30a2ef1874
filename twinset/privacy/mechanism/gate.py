"""The one gate between private records and what others may see.

Each mechanism of this package returns a `Noisy` value, which is closed. `Gate.release` records the
event of a value and then hands it out. Nothing else opens one, so no release is missing from the
ledger (`tests/privacy/test_gate.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from twinset.privacy.accounting.events import RELEASES, Event, GaussianRelease, LabelSelection

T = TypeVar("T", covariant=True)
U = TypeVar("U")
ROUNDING = 1e-9  # relative, of a sum of σ⁻²


class Measured(NamedTuple):
    """How much noise sums had, as found by subtraction. It knows the exact sums: it is private."""

    noise: float  # over what a unit can change a sum
    numbers: float  # by how many of them it was found

    @classmethod
    def of(
        cls, exact: np.ndarray, noisy: np.ndarray, change: float = 1.0, rounded: float = 0.0
    ) -> tuple[Measured, ...]:
        """Measure a noisy sum (n,). A sum of no numbers tells nothing.

        `change` is how far one unit moves the sum, and `rounded` how much noise rounding may hide.
        """
        if not len(exact):
            return ()
        added = float(np.sqrt(np.square(noisy - exact).mean())) + rounded
        return (cls(added / change, len(exact)),)

    @classmethod
    def together(cls, sums: Sequence[Measured]) -> Measured:
        """Return the noise of one sum that tells as much as these sums with all their σ⁻².

        The mean of σ⁻² by n numbers is too large by n / (n - 2), and their n counts as n - 4.
        """
        found, numbers = np.array(sums, float).T
        weights = np.maximum(found, 1e-30) ** -2.0  # a sum without noise tells all
        if len(sums) > 1:
            numbers = np.maximum(numbers - 4, 1)
            weights *= (numbers + 2) / (numbers + 4)
        shares = weights / weights.sum()
        return cls(float(weights.sum() ** -0.5), int(1 / (shares**2 / numbers).sum()))


class Noisy(Generic[T]):
    """A value with noise, closed until a `Gate` has recorded what it spends.

    Args:
        value: what was computed from private records.
        event: what it spends. None: there is no noise, and nothing is guaranteed.
        measured: the noise of its sums. Empty: it is measured elsewhere, or there is no sum.
    """

    def __init__(self, value: T, event: Event | None, measured: Sequence[Measured] = ()) -> None:
        self._value, self.event, self._measured = value, event, tuple(measured)

    @classmethod
    def gaussian(cls, value: U, sigma: float, what: str, sums: Sequence[Measured]) -> Noisy[U]:
        """Return the value of one Gaussian release of multiplier σ. With σ = 0 it has no event."""
        return Noisy(value, GaussianRelease(sigma, what) if sigma else None, sums)

    def then(self, function: Callable[[T], U]) -> Noisy[U]:
        """Return what a mechanism makes of the value without a record. It spends no more."""
        return Noisy(function(self._value), self.event, self._measured)


Keep = Callable[[RELEASES, str, Sequence[Measured]], object]


class Gate:
    """Records each release before it hands its value out.

    Guarantee: every value that passed is an output of a mechanism whose event was recorded. What
    the mechanism guarantees is stated by it. Values without an event pass only if `is_private` is
    False. In a private run they would be exact.

    Args:
        record: the ledger's.
        is_private: whether values need noise.
        keep: called with a release over all records, its name, and the noise that was measured.

    >>> spent = []
    >>> Gate(spent.append).release(Noisy(3, GaussianRelease(1.0, "label counts")))
    3
    >>> spent
    [GaussianRelease(noise_multiplier=1.0, what='label counts')]
    """

    def __init__(
        self,
        record: Callable[[Event], object],
        is_private: bool = True,
        keep: Keep = lambda event, name, measured: None,
    ) -> None:
        self.record, self._is_private, self._keep = record, is_private, keep
        self._whole: GaussianRelease | None = None  # whose parts pass at the moment
        self._left, self._of_parts = 0.0, list[Measured]()  # of its σ⁻²

    def release(self, noisy: Noisy[T], name: str = "") -> T:
        """Record what a value spends, keep how much noise it had, and hand it out.

        Args:
            noisy: of a mechanism.
            name: of a release whose event has no name.

        Raises:
            RuntimeError: there is no noise in a private run, or a part spends more than is left.
        """
        event = noisy.event
        if event is None:
            if self._is_private:
                raise RuntimeError("a private run releases nothing without noise")
        elif self._whole and isinstance(event, GaussianRelease) and event.what == self._whole.what:
            self._left -= event.noise_multiplier**-2
            if self._left < -ROUNDING * self._whole.noise_multiplier**-2:
                raise RuntimeError(f"the parts of {event.what} spend more than its event states")
            self._of_parts += noisy._measured
        else:
            self.record(event)
            if isinstance(event, GaussianRelease | LabelSelection):
                self._keep(event, name or getattr(event, "what", ""), noisy._measured)
        return noisy._value

    @contextmanager
    def parts_of(self, event: GaussianRelease) -> Iterator[None]:
        """Let parts of one release pass. Later ones may depend on earlier ones.

        Guarantee: Gaussian releases compose as one whose σ⁻² is the sum of theirs (Dong, Roth and
        Su 2019, corollary 3.3). The whole is recorded before its first part passes, and parts
        never spend more than it.
        """
        if self._whole:
            raise RuntimeError(f"parts of {self._whole.what} pass at the moment")
        self.record(event)
        self._whole, self._left, self._of_parts = event, event.noise_multiplier**-2, []
        try:
            yield
        finally:
            self._whole = None
        self._keep(event, event.what, self._of_parts)
