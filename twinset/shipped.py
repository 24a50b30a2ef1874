"""The base models that are part of twinset: folders of its package, made by `twinset pretrain`."""

from __future__ import annotations

from pathlib import Path

GPT2_MINI = "gpt2-mini"
_FOLDER = Path(__file__).parent / "models"
_ABOUT = {
    GPT2_MINI: "a GPT-2 of 4 million parameters from public reviews, dialogues, novels and news: "
    "part of twinset, quick, less fluent",
}


def shipped_models() -> dict[str, str]:
    """Return the names of the models and a line about each for people."""
    return dict(_ABOUT)


def shipped_folder(name: str) -> Path:
    """Return a model's folder: config, safetensors, tokenizer, card, facts and training log.

    Args:
        name: of `shipped_models`.
    """
    return _FOLDER / name
