"""Checks of a base model that was loaded: are its weights whole, does its tokenizer keep texts?

They know no private text. The sentence by which a tokenizer is tried is public.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from twinset.errors import InputError, first_line

# the module that holds a decoder's layers, in the name of a tensor
_LAYER = re.compile(r"(\w+)\.\d+\.")
# tensors of layers that are made from the configuration, and that older checkpoints have
_MADE = ("attn.bias", "attention.bias", "masked_bias", "inv_freq")
_FLOATS = ("F64", "F32", "F16", "BF16")
_SENTENCE = (
    'In 2019 our neighbour Zoë gave me "The Old Lake" (a novel). Was it worth the money?\n'
    "Yes: I quickly read it to the end, and my 8 friends liked it too 😀!"
)
_KINDS: dict[str, Callable[[str], bool]] = {
    "capital letters": str.isupper,
    "some letters": lambda c: c.isascii() and c.islower(),
    "accents": lambda c: not c.isascii() and c.isalpha(),
    "digits": str.isdigit,
    "punctuation": lambda c: c in string.punctuation,
    "line breaks": lambda c: c == "\n",
    "emoji": lambda c: not c.isascii() and not c.isalpha(),
}


def check_weights(
    model: Any, alone: Path, weights: Sequence[str], unexpected: Collection[str]
) -> None:
    """Refuse weights that are no finite numbers, or layers that the model leaves out.

    `alone` is the folder of the files `weights`, and `unexpected` has names of unused tensors.

    Raises:
        ValueError: says what is wrong, and what to do.
    """
    from safetensors import safe_open

    if getattr(model.config, "num_hidden_layers", 1) < 1:
        raise ValueError("config.json gives it no layers. Fetch it again.")
    found = (_LAYER.search(name) for name, _ in model.named_parameters())
    layers = {place[1] for place in found if place}
    for name in sorted(unexpected):
        place = _LAYER.search(name)
        if place and place[1] in layers and not name.endswith(_MADE):
            raise ValueError(f"config.json leaves out its weights {name}. Fetch both again.")
    for file in weights:
        with safe_open(alone / file, "pt") as tensors:
            for part in map(tensors.get_slice, tensors.keys()):
                shape = part.get_shape()  # masks and positions of older checkpoints are no matrices
                if len(shape) == 2 and min(shape) > 1 and part.get_dtype() not in _FLOATS:
                    raise ValueError("its weights are no floats. Name the original model.")
    for name, tensor in model.named_parameters():
        if not bool(tensor.isfinite().all()):
            raise ValueError(f"{name} of its weights is not finite. Fetch it again.")


def lost_kinds(tokenizer: Any, name: str) -> tuple[str, ...]:
    """Return which kinds of characters a tokenizer loses, on a public sentence.

    Raises:
        InputError: it loses or breaks many words.
    """
    try:
        ids = tokenizer(_SENTENCE, add_special_tokens=False).input_ids
        found = tokenizer.decode(ids, skip_special_tokens=True)
    except Exception as error:  # the library's own errors have no other class
        why = first_line(error)
        raise InputError(
            f"{name}: its tokenizer reads no sentence ({why}). Fetch it again."
        ) from None
    words, read = (re.findall(r"\w+", text.lower()) for text in (_SENTENCE, found))
    if 4 * (Counter(words) & Counter(read)).total() < 3 * len(words):
        raise InputError(
            f"{name}: its tokenizer does not restore most words of a sentence. Fetch it again, or "
            "name another model."
        )
    lost = Counter(_SENTENCE) - Counter(found)
    return tuple(kind for kind, is_kind in _KINDS.items() if any(map(is_kind, lost)))
