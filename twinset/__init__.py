"""twinset: a synthetic twin of a private, labelled table of texts, with differential privacy."""

from twinset.files.import_path import drop_working_folder

drop_working_folder()  # before anything else is imported
# isort: split

from typing import TYPE_CHECKING, Any  # noqa: E402

__version__ = "0.1.0"
__all__ = ["Twinset", "__version__", "generate"]

if TYPE_CHECKING:
    from twinset.api import Twinset, generate


def __getattr__(name: str) -> Any:
    """Import the interface on first use, so that `twinset --help` need not wait for torch."""
    if name in ("Twinset", "generate"):
        from twinset import api

        return getattr(api, name)
    raise AttributeError(name)
