"""The templates of what is handed over, and the words for a ledger's events.

Whatever a user may have named goes through `plain` or `code` in Markdown, and is escaped in HTML.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from typing import Any

from twinset.privacy.accounting.events import (
    Event,
    GaussianRelease,
    IndividualGaussian,
    MaskedAccess,
    NonPrivateAccess,
    SubsampledGaussian,
)
from twinset.release.markdown import code, plain


@lru_cache
def template(name: str) -> Any:
    """Return a template of this folder: `*.md.jinja` is Markdown, `*.html.jinja` escapes."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(_read),
        autoescape=name.endswith(".html.jinja"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"plain": plain, "code": code, "described": described, "worded": _worded}
    return environment.get_template(name)


def described(event: Event) -> str:
    """Return an event of a ledger as a line of Markdown."""
    match event:
        case SubsampledGaussian(sigma, rate, steps):
            noise = f"noise multiplier σ = {sigma:g}, sample rate q = {rate:g}"
            return f"Training: {steps} steps, {noise}"
        case IndividualGaussian(sigma, rate, steps, share):
            noise = f"noise multiplier σ = {sigma:g}, sample rate q = {rate:g}"
            return f"Training: {steps} steps, {noise}; σ / {share:.4g} at privacy weight 1"
        case MaskedAccess(detector):
            return f"**Training without noise** on texts masked by the detector {code(detector)}"
        case GaussianRelease(sigma, what):
            return f"Noisy release of {plain(what)}: noise multiplier σ = {sigma:g}"
        case NonPrivateAccess(reason):
            return f"**Access without privacy**: {plain(reason)}"


def _worded(pair: tuple[str, str]) -> str:
    return f"{code(pair[0])} as {code(pair[1])}"


def _read(name: str) -> str:
    return files("twinset.release").joinpath(name).read_text("utf-8")
