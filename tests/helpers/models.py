"""Random models of two layers, and rows behind prompts."""

from collections import deque

LLAMA = {"intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2}


def tiny_model(config: str, kind: str = "AutoModelForCausalLM", **sizes):
    """Make a model of a family, named as its configuration is; torch's generator draws weights."""
    import transformers  # not at the top: `conftest` imports this, and xdist waits for it

    common = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    made = getattr(transformers, config)(**common | sizes)
    return getattr(transformers, kind).from_config(made)


def continue_prompts(
    model, prompts, end, longest, config, seed: int = 0, against=None, **request
) -> list[list[int]]:
    """Decode a row behind each prompt, guided away from those of `against`."""
    import torch

    from twinset.sampling.decoding import Request, decode

    pairs = zip(prompts, against, strict=True) if against else zip(prompts, strict=True)
    waiting = deque(Request(i, tuple(map(tuple, p)), **request) for i, p in enumerate(pairs))
    generator = torch.Generator().manual_seed(seed)
    written = dict(decode(model, waiting, end, longest, config, generator))
    return [written[i] for i in range(len(prompts))]
