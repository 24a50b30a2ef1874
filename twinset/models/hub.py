"""The Hugging Face hub: a model's name to a local folder of its safe files.

Asks the hub once, without its long retries, keeps its noise off stderr, and lets no library fetch
machine code from it. Knows nothing of what the files hold.
"""

from __future__ import annotations

import contextlib
import logging
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from twinset.errors import InputError
from twinset.models.assets import Say

HUB_TIMEOUT = 10.0  # seconds until the hub counts as out of reach
HUB_FILES = ["*.json", "*.txt", "*.model", "*.jinja", "*.safetensors", "README.md"]
# A package; transformers, bitsandbytes, and peft that imports it, ask it for faster products.
FETCHER = "kernels"


@contextlib.contextmanager
def no_fetched_code() -> Iterator[None]:
    """Hide the package that fetches code from what is imported inside a block, or a function.

    Once imported so, a library does not ask again.
    """
    modules: dict[str, Any] = sys.modules
    known = {FETCHER: modules[FETCHER]} if FETCHER in modules else {}
    modules[FETCHER] = None
    logger = logging.getLogger("bitsandbytes")  # which would advise to install it
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
        del modules[FETCHER]
        modules.update(known)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers' and the hub's warnings and progress bars off stderr inside the block."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars
    from huggingface_hub.utils import enable_progress_bars as show_hub
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging as transformers_logging

    loggers: tuple[Any, ...] = (transformers_logging, hub_logging)
    levels = [logger.get_verbosity() for logger in loggers]
    bars = transformers_logging.is_progress_bar_enabled()
    hub_bars = not are_progress_bars_disabled()
    for logger in loggers:
        logger.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    disable_progress_bars()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()
        if hub_bars:
            show_hub()


def hub_folder(name: str, say: Say) -> Path:
    """Return the folder of a hub model, from the hub's local cache where it is complete there."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, HTTPError

    with quiet():
        try:
            folder = Path(snapshot_download(name, local_files_only=True, allow_patterns=HUB_FILES))
            if (folder / "config.json").exists() and any(folder.glob("*.safetensors")):
                return folder
        except (OSError, HFValidationError):
            pass  # not in the cache
        try:
            return _download(name, say)
        except HfHubHTTPError as error:
            raise InputError(
                f"the hub has no model {name}, or keeps it from you (HTTP "
                f"{error.response.status_code}); check the name, or log in with `hf auth login`"
            ) from error
        except (HTTPError, OSError, HFValidationError) as error:
            raise InputError(
                f"{name} is no local folder, and the hub cannot be reached for it; use "
                "`base_model=smollm2-135m`, or download it elsewhere (`hf download`) and give "
                "its folder's path"
            ) from error


def _download(name: str, say: Say) -> Path:
    from huggingface_hub import HfApi, snapshot_download

    # One try without retries: it finds out in no time whether the hub is within reach.
    info = HfApi().model_info(name, timeout=HUB_TIMEOUT, files_metadata=True)
    weights = [
        file for file in info.siblings or [] if re.fullmatch(r"[^/]+\.safetensors", file.rfilename)
    ]
    if not weights:
        raise InputError(
            f"{name} has no .safetensors weights on the hub, and pickles are never loaded; "
            "name another model"
        )
    megabytes = sum(file.size or 0 for file in weights) / 1e6
    say(f"fetching {name} from the hub ({megabytes:.0f} MB, once)")
    return Path(
        snapshot_download(
            name, revision=info.sha, allow_patterns=HUB_FILES, ignore_patterns=["*/*"]
        )
    )
