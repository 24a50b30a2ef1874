import json
import re
import subprocess
import sys
import time

import pytest
import torch

from tests.helpers.models import tiny_model
from tests.helpers.refusals import refusal
from twinset.models.assets import quiet
from twinset.models.base_model import context_length, load_base, special_token_strings


def configured(file="config.json", **changes):
    """Change entries of a JSON file; None takes one away."""

    def spoil(folder):
        data = json.loads((folder / file).read_text()) | changes
        kept = {name: value for name, value in data.items() if value is not None}
        (folder / file).write_text(json.dumps(kept))

    return spoil


def only_pickle(folder):
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")


def own_code(folder):
    code = {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"}
    configured(model_type="mine", architectures=["Mine"], auto_map=code)(folder)
    (folder / "code.py").write_text("raise SystemExit('code of others was run')\n")


def truncated(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])


def small_embedding(folder):
    tiny_model("GPT2Config", vocab_size=50, max_position_embeddings=8).save_pretrained(folder)


BERT = configured(model_type="bert", architectures=["BertForMaskedLM"])
CLASSIFIER = configured(architectures=["GPT2ForSequenceClassification"])
GPTQ = configured(quantization_config={"quant_method": "gptq", "bits": 4})
SPOILT = {
    "no config": (lambda f: (f / "config.json").unlink(), "has no config.json; name a folder"),
    "only a pickle": (only_pickle, "pickles .* are never loaded; convert it"),
    "an encoder": (BERT, "no causal language model but BertForMaskedLM; name one"),
    "a classifier": (CLASSIFIER, "language model but GPT2ForSequenceClassification; name one"),
    "code of its own": (own_code, "cannot be loaded: "),
    "quantised": (GPTQ, "name its unquantised form"),
    "an adapter": (lambda f: (f / "adapter_config.json").write_text("{}"), "an adapter; merge it"),
    "cut off": (truncated, "cannot be loaded: "),
    "a layer more": (configured(n_layer=3), "weights lack transformer.h.2"),
    "small embedding": (small_embedding, "more tokens than its model has embeddings; name"),
    "no end of text": (
        configured("tokenizer_config.json", eos_token=None),
        "no end-of-text token; set its eos_token",
    ),
    "no length": (
        configured("tokenizer_config.json", model_max_length="x"),
        "no number as model_max_length; correct it",
    ),
}


@pytest.mark.parametrize("family", ["tiny_base", "tiny_llama"])
def test_loads_a_folder(family, request):
    base = load_base(str(request.getfixturevalue(family)))
    model, tokenizer = base.model, base.tokenizer
    assert not model.training
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert model.get_input_embeddings().num_embeddings == len(tokenizer)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert context_length(model) == 128
    assert tokenizer.pad_token == tokenizer.eos_token == "<|endoftext|>"
    assert special_token_strings(tokenizer) == ["<|endoftext|>"]
    assert re.fullmatch("local folder, files [0-9a-f]{64}", base.origin)
    assert base.licence == "unknown"
    text = "The story was great — 100 % naïve!"
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_weights_are_those_of_the_folder(tiny_base):
    from safetensors.torch import load_file

    saved = load_file(tiny_base / "model.safetensors")
    loaded = load_base(str(tiny_base)).model.state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in saved.items())


def test_dtype_and_licence(model_copy):
    (model_copy / "README.md").write_text("---\ntags:\n- x\nlicense: mit\n---\n# Model\n")
    base = load_base(str(model_copy), dtype=torch.float64)
    assert base.model.dtype == torch.float64
    assert base.licence == "mit"


def test_special_tokens_of_all_kinds_are_named(model_copy):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_copy)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|user|>"]})
    tokenizer.add_tokens(["ordinary"])
    assert special_token_strings(tokenizer) == ["<|endoftext|>", "<|user|>"]


@pytest.mark.parametrize(("spoil", "message"), SPOILT.values(), ids=SPOILT)
def test_folder_that_cannot_be_used(model_copy, spoil, message):
    spoil(model_copy)
    assert re.search(message, refusal(load_base, str(model_copy)))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./no/such/folder", "there is no folder ./no/such/folder; `base_model` takes"),
        (
            "minilm",
            "minilm is no causal language model; `base_model` takes gpt2-mini, smollm2-135m",
        ),
        ("no--such..name", "hub cannot be reached"),
    ],
)
def test_name_that_means_nothing(name, message):
    assert message in refusal(load_base, name)


HUB_MODEL = """
from twinset.models.base_model import load_base
from twinset.errors import InputError
try: load_base('gpt2')
except InputError as error: print(error)
"""


def test_unreachable_hub_says_at_once_what_to_do_instead(tmp_path):
    environment = {"PATH": "", "HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9"}
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", HUB_MODEL], env=environment, capture_output=True, text=True
    )
    assert time.monotonic() - start < 60  # most of it imports
    assert done.stderr == ""
    assert done.stdout == (
        "gpt2 is no local folder, and the hub cannot be reached for it; use `base_model="
        "smollm2-135m`, or download it elsewhere (`hf download`) and give its folder's path\n"
    )


def test_quiet_restores_what_it_changed():
    from transformers.utils import logging

    logging.set_verbosity_warning()
    logging.enable_progress_bar()
    with quiet():
        assert logging.get_verbosity() == logging.ERROR
        assert not logging.is_progress_bar_enabled()
    assert logging.get_verbosity() == logging.WARNING
    assert logging.is_progress_bar_enabled()


@pytest.mark.slow
def test_smollm2_speaks_and_a_damaged_conversion_is_made_again(monkeypatch):
    from twinset.files.atomic import cache_dir
    from twinset.models import base_model as basemodel

    base = load_base("smollm2-135m")
    prompt = base.tokenizer("The capital of France is", return_tensors="pt")
    answer = base.model.generate(**prompt, max_new_tokens=4, do_sample=False)
    assert "Paris" in base.tokenizer.decode(answer[0])
    assert base.tokenizer.eos_token in special_token_strings(base.tokenizer)

    config = cache_dir() / "smollm2-135m-0.1.2-safetensors" / "config.json"
    good = config.read_bytes()
    config.write_bytes(good.replace(b"100000.0", b"10000.0"))
    monkeypatch.setattr(basemodel, "_verified", set())
    said: list[str] = []
    load_base("smollm2-135m", say=said.append)
    assert len(said) == 1 and said[0].startswith("converting")
    assert config.read_bytes() == good
