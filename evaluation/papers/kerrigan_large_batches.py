"""Paper 003 by a second recipe: with less noise for each line, is public text still needed?

Of Kerrigan, Slack and Tuyls 2020, as `kerrigan`, which see. There a step has 64 lines, as in the
paper; here it has many more under the same noise, which is what has since been found to help
private training most, and the public text is larger.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from evaluation.papers.kerrigan import BOTH, LARGEST, PRIVATE, PUBLIC, Kerrigan
from evaluation.papers.study import main


class KerriganLargeBatches(Kerrigan):
    """Does the claim of Kerrigan, Slack and Tuyls 2020 outlive larger batches?"""

    name = "kerrigan_large_batches"
    levels: ClassVar[Sequence[tuple[str, float]]] = (
        (PUBLIC, 0.0),
        (PRIVATE, 0.0),
        (PRIVATE, LARGEST),
        (BOTH, LARGEST),
    )


if __name__ == "__main__":
    main(KerriganLargeBatches)
