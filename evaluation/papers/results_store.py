"""The finished rows of a study: a store whose rows are asked for by a path within them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from evaluation.results_store import Key, ResultsStore, about


class Results(ResultsStore):
    """All rows of a study that were made under the same settings; only their owner reads them."""

    @classmethod
    def resume(cls, path: Path, settings: Mapping[str, Any], command: str) -> Self:
        """Return the results that a file holds, or none yet, to add rows to.

        Raises:
            InputError: the file holds no results, or results of other settings.
        """
        return cls.open(path, {**settings, "about": about()}, command, mode=0o600)

    def values(self, level: Key, *path: str) -> dict[int, Any]:
        """Return by seed what stands under `path` in the rows whose key is `level` and a seed.

        >>> rows = {("a", 0.5, seed): {"leak": {"names": seed}} for seed in range(2)}
        >>> Results(Path("a.json"), {}, rows=rows).values(("a", 0.5), "leak", "names")
        {0: 0, 1: 1}
        """
        return {seed: _at(row, path) for seed, row in self.by_seed(*level).items()}


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        value = value[name]
    return value
