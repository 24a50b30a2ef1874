"""How many units are computed at once: by public facts and a unit's own size, and nothing else.

Were it the rest of the batch that decides, a record more would change how its neighbours are
rounded; see `twinset.privacy.clipping.batch_invariance`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from twinset.config import SpeedConfig
from twinset.config.run_config import PHYSICAL_TOKENS
from twinset.models.device import GPU_TOKENS, device_of, is_cpu
from twinset.privacy.clipping.batch_invariance import BatchShape

# Half a physical batch of each padded length is filler. Where a step's records lie in some eight of
# them, so many physical batches of its expected size keep the filler to about a quarter, and a
# product large enough for what it costs whatever its size. On a GPU that takes many more.
FEWEST_BATCHES, GPU_FEWEST_BATCHES = 16, 2


@dataclass(frozen=True)
class BatchShapes:
    """The shape of a physical batch, for units of any size.

    Args:
        speed: tokens at once.
        batch_size: units that a step is expected to have.
        sequences: K, of a record.
    """

    speed: SpeedConfig
    batch_size: int
    sequences: int

    def units(self, records: int, tokens: int) -> int:
        """Return how many units of so many records, padded to so many tokens, are one batch."""
        usual, fewest = self._usual
        fit = self.speed.units_at_once(self.sequences * records * tokens, usual)
        if self.speed.physical_batch:  # asked for, whatever the batch
            return fit
        return max(1, min(fit, self.batch_size // fewest))

    @cached_property
    def _usual(self) -> tuple[int, int]:
        """Return tokens at once, and how many physical batches a step has at least."""
        if is_cpu(device_of(self.speed.device)):
            return PHYSICAL_TOKENS, FEWEST_BATCHES
        return GPU_TOKENS, GPU_FEWEST_BATCHES

    def all(self, padded_lengths: Iterable[int], most_records: int = 1) -> list[BatchShape]:
        """Return every shape that can come, with units of up to so many records."""
        return [
            BatchShape(self.units(records, tokens), records * self.sequences, tokens)
            for tokens in padded_lengths
            for records in range(1, most_records + 1)
        ]
