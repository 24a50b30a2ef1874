"""twinset: a synthetic twin of a private, labelled table of texts, with differential privacy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Twinset", "__version__"]

if TYPE_CHECKING:
    from twinset.api import Twinset


def __getattr__(name: str) -> Any:
    """Import the interface when it is asked for: `twinset --help` should not wait for torch."""
    if name == "Twinset":
        from twinset.api import Twinset

        return Twinset
    raise AttributeError(name)
