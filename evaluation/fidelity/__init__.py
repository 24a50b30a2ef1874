"""Is the twin faithful? Measures of texts, labels and embeddings beside a second real sample's."""

from .measures import fidelity

__all__ = ["fidelity"]
