"""Random models of two layers, of any family of transformers."""

LLAMA = {"intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2}


def tiny_model(config: str, kind: str = "AutoModelForCausalLM", **sizes):
    """Make a model of a family, named as its configuration is; torch's generator draws weights."""
    import transformers

    common = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    made = getattr(transformers, config)(**common | sizes)
    return getattr(transformers, kind).from_config(made)
