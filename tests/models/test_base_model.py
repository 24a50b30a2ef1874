"""Base models from folders, assets, the hub and this package."""

import json
import math
import re
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.helpers.models import tiny_model
from tests.helpers.refusals import refusal
from twinset.models.assets import quiet, shipped_folder, shipped_models
from twinset.models.base_model import (
    builtin_models,
    context_length,
    load_base,
    special_token_strings,
)
from twinset.models.model_files import ADAPTER
from twinset.pretraining.pretrain import render_card


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
    saved, loaded = (
        load_file(Path(request.getfixturevalue(family)) / "model.safetensors"),
        model.state_dict(),
    )
    assert all(torch.equal(loaded[name], tensor) for name, tensor in saved.items())


def test_dtype_and_licence(model_copy):
    (model_copy / "README.md").write_text("---\ntags:\n- x\nlicense: mit\n---\n# Model\n")
    base = load_base(str(model_copy), dtype=torch.float64)
    assert (base.model.dtype, base.licence) == (torch.float64, "mit")


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


def test_unreachable_hub_says_at_once_what_to_do_instead(tmp_path, monkeypatch, capfd):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    start = time.monotonic()
    assert refusal(load_base, "gpt2") == (
        "gpt2 is no local folder, and the hub cannot be reached for it; use `base_model="
        "smollm2-135m`, or download it elsewhere (`hf download`) and give its folder's path"
    )
    assert time.monotonic() - start < 20 and capfd.readouterr().err == ""


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
    monkeypatch.setattr(basemodel, "_converted", set())
    said: list[str] = []
    load_base("smollm2-135m", say=said.append)
    assert len(said) == 1 and said[0].startswith("converting")
    assert config.read_bytes() == good


ROOT = Path(__file__).parents[2]
ADAPTERS = sorted(name for name in shipped_models() if (shipped_folder(name) / ADAPTER).is_file())
WHOLE = sorted(shipped_models().keys() - ADAPTERS)
REVIEW = "The room was clean and the staff were friendly, but the breakfast was cold."
SHUFFLED = "was breakfast friendly, cold. but clean the were and room the The staff was the"


def _nats(base, text):
    ids = torch.tensor([[base.tokenizer.eos_token_id, *base.tokenizer(text).input_ids]])
    with torch.inference_mode():
        logits = base.model(input_ids=ids).logits[0, :-1]
    return torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum").item()


@pytest.mark.slow
@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_foresees_its_kind_of_text_better_than_its_base(name):
    facts = json.loads((shipped_folder(name) / "pretraining.json").read_text("utf-8"))
    adapted, base = load_base(name), load_base(facts["config"]["base_model"])
    assert _nats(adapted, REVIEW) < _nats(base, REVIEW)
    assert _nats(adapted, SHUFFLED) > 1.5 * _nats(adapted, REVIEW)


@pytest.mark.parametrize("name", WHOLE)
def test_predicts_english(name):
    base = load_base(name)
    nats = _nats(base, REVIEW)
    assert nats / math.log(2) / len(REVIEW) < 2.2  # an untrained one: about 4
    assert _nats(base, SHUFFLED) > 1.5 * nats
    assert context_length(base.model) == 256
    assert base.model.dtype is torch.float32


@pytest.mark.parametrize("name", [*WHOLE, *ADAPTERS])
def test_card_and_facts_say_what_it_was_made_of(name):
    folder = shipped_folder(name)
    facts = json.loads((folder / "pretraining.json").read_text("utf-8"))
    assert facts["finished"] and facts["name"] == name
    assert all(len(source["sha256"]) == 64 for source in facts["corpus"]["sources"])
    assert facts["decontaminated"]
    assert (folder / "README.md").read_text("utf-8") == render_card(facts)
    last = json.loads((folder / "log.jsonl").read_text("utf-8").splitlines()[-1])
    assert last["bits"] == pytest.approx(facts["validation"]["bits_per_byte"], abs=1e-4)


@pytest.mark.parametrize("name", [*WHOLE, *ADAPTERS])
def test_is_small_and_complete(name):
    sizes = {path.name: path.stat().st_size for path in shipped_folder(name).iterdir()}
    wanted = {"README.md", "pretraining.json", "log.jsonl", "curve.png"}
    if name in ADAPTERS:
        assert set(sizes) == wanted | {ADAPTER} and sum(sizes.values()) <= 10.5e6
    else:
        assert wanted | {"config.json", "model.safetensors", "tokenizer.json"} <= set(sizes)
        assert sum(sizes.values()) <= 20e6
        facts = json.loads((shipped_folder(name) / "pretraining.json").read_text("utf-8"))
        assert facts["parameters"] == sum(p.numel() for p in load_base(name).model.parameters())


def test_ledger_names_the_weights_and_what_was_kept_out():
    base = load_base("gpt2-mini")
    assert base.origin.startswith("part of twinset, files ")
    assert "kept out of its corpus" in base.origin
    assert list(builtin_models())[0] == "gpt2-mini"


@pytest.mark.slow
def test_the_wheel_has_the_models_and_one_name(tmp_path):
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet"]
    subprocess.run([*build, "--wheel-dir", tmp_path, ROOT], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for name in [*WHOLE, *ADAPTERS]:
            for path in shipped_folder(name).iterdir():
                packed = archive.read(f"twinset/models/{name}/{path.name}")
                assert packed == path.read_bytes()
        tops = {name.split("/")[0] for name in archive.namelist()}
        (about,) = (top for top in tops if top.endswith(".dist-info"))
        assert tops == {"twinset", about}
        inside = {"twinset/evaluation/report/page.css", "twinset/prompts/generic.toml"}
        assert inside <= set(archive.namelist())
