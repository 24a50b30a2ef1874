import json
import re
import shutil
import subprocess
import sys
import time

import pytest
import torch

from twinset.errors import InputError
from twinset.models.base_model import context_length, load_base, special_token_strings
from twinset.models.hub import quiet


@pytest.fixture
def copy(tiny_base, tmp_path):
    """A copy of the tiny GPT-2 that a test may spoil."""
    return shutil.copytree(tiny_base, tmp_path / "model")


def _edit(path, **changes):
    data = json.loads(path.read_text())
    data.update(changes)
    path.write_text(json.dumps({k: v for k, v in data.items() if v is not None}))


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


def test_dtype_and_licence(copy):
    (copy / "README.md").write_text("---\ntags:\n- x\nlicense: mit\n---\n# Model\n")
    base = load_base(str(copy), dtype=torch.float64)
    assert base.model.dtype == torch.float64
    assert base.licence == "mit"


def test_special_tokens_of_all_kinds_are_named(copy):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(copy)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|user|>"]})
    tokenizer.add_tokens(["ordinary"])
    assert special_token_strings(tokenizer) == ["<|endoftext|>", "<|user|>"]


def _no_config(folder):
    (folder / "config.json").unlink()


def _only_pickle(folder):
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")


def _encoder(folder):
    _edit(folder / "config.json", model_type="bert", architectures=["BertForMaskedLM"])


def _classifier(folder):
    _edit(folder / "config.json", architectures=["GPT2ForSequenceClassification"])


def _own_code(folder):
    _edit(
        folder / "config.json",
        model_type="mine",
        architectures=["Mine"],
        auto_map={"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"},
    )
    (folder / "code.py").write_text("raise SystemExit('code of others was run')\n")


def _quantised(folder):
    _edit(folder / "config.json", quantization_config={"quant_method": "gptq", "bits": 4})


def _adapter(folder):
    (folder / "adapter_config.json").write_text("{}")


def _truncated(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])


def _missing_layer(folder):
    _edit(folder / "config.json", n_layer=3)


def _small_embedding(folder):
    from transformers import GPT2Config, GPT2LMHeadModel

    GPT2LMHeadModel(
        GPT2Config(vocab_size=50, n_positions=8, n_embd=8, n_layer=1, n_head=1)
    ).save_pretrained(folder)


def _no_length(folder):
    _edit(folder / "tokenizer_config.json", model_max_length="x")


def _no_end(folder):
    _edit(folder / "tokenizer_config.json", eos_token=None)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_no_config, "has no config.json; name a folder"),
        (_only_pickle, "pickles .* are never loaded; convert it"),
        (_encoder, "no causal language model but BertForMaskedLM; name one"),
        (_classifier, "no causal language model but GPT2ForSequenceClassification; name one"),
        (_own_code, "cannot be loaded: "),
        (_quantised, "name its unquantised form"),
        (_adapter, "holds an adapter; merge it"),
        (_truncated, "cannot be loaded: "),
        (_missing_layer, "weights lack transformer.h.2"),
        (_small_embedding, "more tokens than its model has embeddings; name"),
        (_no_end, "no end-of-text token; set its eos_token"),
        (_no_length, "no number as model_max_length; correct it"),
    ],
)
def test_folder_that_cannot_be_used(copy, spoil, message):
    spoil(copy)
    with pytest.raises(InputError, match=message) as caught:
        load_base(str(copy))
    assert "\n" not in str(caught.value)


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
    with pytest.raises(InputError, match=message):
        load_base(name)


def test_unreachable_hub_says_at_once_what_to_do_instead(tmp_path):
    program = (
        "import sys\n"
        "from twinset.models.base_model import load_base\n"
        "from twinset.errors import InputError\n"
        "try: load_base('gpt2')\n"
        "except InputError as error: print(error)\n"
    )
    environment = {"PATH": "", "HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9"}
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert time.monotonic() - start < 60  # most of it imports
    assert done.stderr == ""
    assert done.stdout == (
        "gpt2 is no local folder, and the hub cannot be reached for it; use `base_model="
        "smollm2-135m`, or download it elsewhere (`hf download`) and give its folder's path\n"
    )


def test_hub_cache_is_used_without_network(tiny_base, tmp_path, monkeypatch):
    from huggingface_hub import constants

    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "models--someone--tiny"
    shutil.copytree(tiny_base, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    base = load_base("someone/tiny")
    assert base.origin == f"https://huggingface.co/someone/tiny at {commit}"


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
    from twinset.files.cache import cache_dir
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
