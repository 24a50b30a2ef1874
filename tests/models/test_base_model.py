"""Base models from folders, assets, the hub and this package: from their own safetensors alone."""

import base64
import json
import math
import re
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from evaluation.utility.classifiers import EncoderClassifier
from tests.helpers.commands import ROOT
from tests.helpers.refusals import refusal
from twinset.models import base_model
from twinset.models.assets import SHIPPED, shipped_folder
from twinset.models.base_model import (
    ADAPTER,
    INDEX,
    WEIGHTS,
    ModelFiles,
    check_growth,
    context_length,
    load_base,
    plain_values,
)
from twinset.pretraining.pretrain import render_card


@pytest.mark.parametrize("family", ["tiny_base", "tiny_llama"])
def test_loads_a_folder(family, request):
    folder = request.getfixturevalue(family)
    base = load_base(str(folder))
    model, tokenizer = base.model, base.tokenizer
    assert not model.training
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert model.get_input_embeddings().num_embeddings == len(tokenizer)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert context_length(model) == 128
    assert tokenizer.pad_token == tokenizer.eos_token == "<|endoftext|>"
    assert re.fullmatch("local folder, files [0-9a-f]{64}", base.origin)
    assert base.licence == "unknown"
    text = "The story was great — 100 % naïve!"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    saved, loaded = load_file(folder / WEIGHTS), model.state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in saved.items())


# --- folders that cannot be used ----------------------------------------------------------------


def configured(file="config.json", **changes):
    """Change entries of a JSON file; None takes one away."""

    def spoil(folder):
        data = json.loads((folder / file).read_text()) | changes
        kept = {name: value for name, value in data.items() if value is not None}
        (folder / file).write_text(json.dumps(kept))

    return spoil


def only_pickle(folder):
    (folder / WEIGHTS).unlink()
    torch.save({}, folder / "pytorch_model.bin")


def own_code(folder):
    code = {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"}
    configured(model_type="mine", architectures=["Mine"], auto_map=code)(folder)
    (folder / "code.py").write_text("raise SystemExit('code of others was run')\n")


def weights_at(place: str, is_absolute: bool = False):
    """Have an index lead to weights elsewhere (`.bin`: pickled); a hash would see a decoy."""

    def spoil(folder: Path) -> None:
        target, tensors = folder / place, load_file(folder / WEIGHTS)
        (torch.save if target.suffix == ".bin" else save_file)(tensors, target)
        file = str(target.resolve()) if is_absolute else place
        places = {"metadata": {}, "weight_map": dict.fromkeys(tensors, file)}
        (folder / INDEX).write_text(json.dumps(places))
        save_file({"decoy": torch.zeros(1)}, folder / "decoy.safetensors")
        (folder / WEIGHTS).unlink()

    return spoil


PICKLE = weights_at("../elsewhere.bin", is_absolute=True)


def renamed(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "other.safetensors")
    configured(transformers_weights="other.safetensors")(folder)


def steps(**parts):
    """Put steps into a tokenizer."""
    return configured("tokenizer.json", **parts)


DOUBLE = {"pattern": {"String": "w"}, "content": "ww"}
TWELVE = {"type": "Sequence", "normalizers": [{"type": "Replace"} | DOUBLE] * 12}
NESTED = {"type": "Sequence", "normalizers": [{"normalizers": [DOUBLE] * 6}] * 2}  # no types
BYTES_OF_BYTES = {"type": "Sequence", "normalizers": [{"type": "ByteLevel"}] * 6}
BETWEEN = {"type": "Replace", "pattern": {"Regex": "q*"}, "content": "x" * 3000}
ALL_TEXTS = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
AGAIN = {"type": "TemplateProcessing", "single": ALL_TEXTS[:1] * 3001, "pair": ALL_TEXTS}


def words(unknown: str):
    """Have a tokenizer know five words."""
    known = {word: n for n, word in enumerate(("<|endoftext|>", "A", "word", ".", "[UNK]"))}
    model = {"type": "WordLevel", "vocab": known, "unk_token": unknown}
    return steps(model=model, pre_tokenizer={"type": "Whitespace"}, decoder=None)


def vocabulary(change):
    """Change what the tokenizer of a folder knows."""

    def spoil(folder: Path) -> None:
        data = json.loads((folder / "tokenizer.json").read_text())
        change(data["model"])
        (folder / "tokenizer.json").write_text(json.dumps(data))

    return spoil


def tensors(change):
    """Change the weights of a folder by their names."""

    def spoil(folder: Path) -> None:
        found = {name: change(name, t) for name, t in load_file(folder / WEIGHTS).items()}
        save_file(found, folder / WEIGHTS, {"format": "pt"})

    return spoil


def one_is(value: float):
    return tensors(lambda name, t: t.index_fill(0, torch.tensor(3), value) if "c_fc" in name else t)


def one_id_far_away(model: dict) -> None:
    model["vocab"][max(model["vocab"], key=model["vocab"].get)] = 4000


def no_e_or_t(model: dict) -> None:
    model["vocab"] = {k: n for k, n in model["vocab"].items() if k not in "et"}
    model["merges"] = []


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


NAMES = "must name .safetensors files of the same folder and nothing else. Fetch"
LONGER = "tokenizer.json may make texts 3000 times longer. Fetch"
BYTES = "numbers and the weights have .* bytes. Fetch"
SPOILT = {
    "only a pickle": (only_pickle, "pickles .* are never loaded. Convert it"),
    "an encoder": (
        configured(model_type="bert", architectures=["BertForMaskedLM"]),
        "not a causal language model but BertForMaskedLM. Name one",
    ),
    "code of its own": (own_code, "cannot be loaded: "),
    "an adapter": (lambda f: (f / "adapter_config.json").write_text("{}"), "an adapter. Merge it"),
    "a layer more": (configured(n_layer=3), "weights lack transformer.h.2"),
    "a layer fewer": (configured(n_layer=1), "leaves out its weights transformer.h.1"),
    "no layers": (configured(n_layer=0), "gives it no layers"),
    "not a number": (one_is(math.nan), "c_fc.* not finite. Fetch"),
    "infinite": (one_is(math.inf), "c_fc.* not finite. Fetch"),
    "whole numbers": (tensors(lambda name, t: t.to(torch.int8)), "are no floats"),
    "eight bits": (tensors(lambda name, t: t.to(torch.float8_e4m3fn)), "are no floats"),
    "a token beyond the embeddings": (vocabulary(one_id_far_away), "more tokens than the model"),
    "a length in quotes": (
        configured("tokenizer_config.json", model_max_length="128"),
        "no number as model_max_length",
    ),
    "no decoder": (steps(decoder=None), "does not restore most words"),
    "few words": (words("[UNK]"), "does not restore most words"),
    "few words, and the end for others": (words("<|endoftext|>"), "does not restore most words"),
    "few words, and no sign for others": (words("?"), "reads no sentence .WordLevel"),
    "no e and no t": (vocabulary(no_e_or_t), "does not restore most words"),
    "no end of text": (
        configured("tokenizer_config.json", eos_token=None),
        "no end-of-text token. Set its eos",
    ),
    "pickle elsewhere": (PICKLE, NAMES),
    "upwards": (weights_at("../elsewhere.safetensors"), NAMES),
    "other weights": (renamed, "no .safetensors weights under the names"),
    "wide": (configured(n_embd=10**6), BYTES),
    "doubled": (steps(normalizer=TWELVE), LONGER),
    "doubled in two ways": (steps(normalizer=NESTED), LONGER),
    "as a list": (steps(normalizer=[[[{"String": "w"}, "w" * 3001]]]), LONGER),
    "between letters": (steps(normalizer=BETWEEN), LONGER),
    "bytes of bytes": (steps(normalizer=BYTES_OF_BYTES), LONGER),
    "a mapped letter": (
        steps(
            normalizer={
                "type": "Precompiled",
                "precompiled_charsmap": b64(bytes(4) + b"a\0" + b"b" * 3001),
            }
        ),
        LONGER,
    ),
    "repeated": (steps(post_processor=AGAIN | {"special_tokens": {}}), LONGER),
    "decoded": (steps(decoder={"type": "Replace"} | DOUBLE | {"content": "w" * 3001}), LONGER),
    "no steps": (steps(normalizer=[1]), "tokenizer.json is damaged"),
    "other sizes": (configured(n_positions=10), "not have the sizes in config.json. Fetch both"),
    "a text for a number": (configured(n_positions="128"), "field 'n_positions': .*, got str"),
    "heads": (configured(n_head=3), "^[^`]*'embed_dim' must be divisible"),
}


@pytest.fixture
def pickles(monkeypatch) -> list:
    """The files that are unpickled."""
    read, load = [], torch.load

    def noted(file, *more, **options):
        read.append(str(file))
        return load(file, *more, **options)

    monkeypatch.setattr(torch, "load", noted)
    return read


@pytest.mark.parametrize(("spoil", "message"), SPOILT.values(), ids=SPOILT)
def test_a_folder_that_cannot_be_used_leads_elsewhere_or_fills_memory(
    model_copy, pickles, spoil, message
):
    spoil(model_copy)
    assert re.search(message, refusal(load_base, str(model_copy))) and pickles == []


LOST = {
    "Lowercase": ({"type": "Lowercase"}, ("capital letters",)),
    "no digits": (
        {"type": "Replace", "pattern": {"Regex": "[0-9]"}, "content": ""},
        ("digits",),
    ),
    "ASCII": (
        {"type": "Replace", "pattern": {"Regex": r"[^\x00-\x7f]|\n"}, "content": " "},
        ("accents", "line breaks", "emoji"),
    ),
    "no q": (
        {"type": "Replace", "pattern": {"String": "q"}, "content": ""},
        ("some letters",),
    ),
}


@pytest.mark.parametrize(("normalizer", "lost"), LOST.values(), ids=LOST)
def test_what_a_tokenizer_loses_is_known(model_copy, normalizer, lost):
    assert load_base(str(model_copy)).loses == ()
    steps(normalizer=normalizer)(model_copy)
    assert load_base(str(model_copy)).loses == lost


ORDINARY = {
    "transformer.h.0.attn.bias": torch.ones(1, 1, 8, 8, dtype=torch.bool),
    "transformer.h.0.attn.masked_bias": torch.tensor(-1e4),
    "transformer.h.0.attn.rotary_emb.inv_freq": torch.ones(4),
    "transformer.position_ids": torch.arange(8)[None],
    "v_head.0.weight": torch.ones(2, 2),
}


def test_what_older_checkpoints_have_besides_is_left_out(model_copy):
    save_file(load_file(model_copy / WEIGHTS) | ORDINARY, model_copy / WEIGHTS, {"format": "pt"})
    assert load_base(str(model_copy)).loses == ()


def test_the_longest_steps_of_known_tokenizers_are_taken():
    """ALBERT's, and Llama's. GPT-2's are those of most tests."""
    quotes = [DOUBLE | {"pattern": {"String": mark * 2}, "content": '"'} for mark in "`'"]
    mapped = {"precompiled_charsmap": b64(bytes(4) + b"a" * 18)}
    kinds = [{"type": kind} for kind in ("NFKD", "StripAccents", "Lowercase")]
    blanks = {"pattern": {"Regex": " {2,}"}, "content": " "}
    albert = [*quotes, *kinds, {"type": "Precompiled"} | mapped, blanks]
    space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    llama = [{"type": "Prepend", "prepend": "▁"}, {"pattern": {"String": " "}, "content": "▁"}]
    for normalizers in (albert, llama):
        before = {"type": "Sequence", "normalizers": normalizers}
        parts = {"normalizer": before, "pre_tokenizer": space, "decoder": space}
        check_growth({"version": "1.0", "truncation": None, "padding": None} | parts, "m")


def test_the_pickles_would_be_loaded(model_copy, pickles):
    """The control: transformers follows an index to a pickle. An encoder's is not followed."""
    PICKLE(model_copy)
    assert NAMES in refusal(EncoderClassifier(str(model_copy)).load) and pickles == []
    AutoModelForCausalLM.from_pretrained(model_copy, use_safetensors=True)
    assert set(pickles) == {str(model_copy.parent / "elsewhere.bin")}


@pytest.mark.parametrize("file", [WEIGHTS, "config.json", "tokenizer.json"])
def test_the_hash_is_of_all_that_is_loaded(model_copy, file):
    def digest() -> str:
        return ModelFiles.of(model_copy, "m").digest()

    before, path = digest(), model_copy / file
    (model_copy / "README.md").write_text("# another card")
    assert digest() == before and before in load_base(str(model_copy)).origin
    with path.open("ab") as opened:
        opened.write(b"\n")
    assert digest() != before


def test_nothing_but_the_chosen_files_and_plain_values_is_read(model_copy):
    (model_copy / "generation_config.json").write_text("{damaged")
    (model_copy / "chat_template.jinja").write_text("{% damaged")
    (model_copy / "config.4.0.0.json").write_text("{}")
    configured(configuration_files=["config.4.0.0.json"])(model_copy)
    with ModelFiles.of(model_copy, "m").alone() as alone:
        found = {path.name for path in alone.iterdir()}
    assert found == {"config.json", WEIGHTS, "tokenizer.json", "tokenizer_config.json"}
    assert not alone.exists()
    assert load_base(str(model_copy)).model.config.n_layer == 2

    harmless = {"n_layer": 2, "tokenizer_class": "X", "names": [{"a": None}], "text_config": {}}
    leading = {
        "auto_map": {"AutoConfig": "code.C"},
        "configuration_files": ["config.4.0.0.json"],
        "transformers_weights": "x.safetensors",
        "attn_implementation": "someone/kernel",
        "tokenizer_file": "/elsewhere/tokenizer.json",
        "use_kernels": True,
    }
    nested = harmless | leading | {"text_config": leading, "names": [{"a": None} | leading]}
    assert plain_values(nested) == harmless


# --- the hub ------------------------------------------------------------------------------------


def test_the_layout_of_the_hubs_cache(tiny_base, tmp_path, monkeypatch):
    """A folder of links to `blobs` is what the hub's cache has; a link out of that is refused."""
    commit, repository = "0123456789abcdef" * 2 + "01234567", tmp_path / "models--someone--tiny"
    snapshot = repository / "snapshots" / commit
    shutil.copytree(tiny_base, repository / "blobs")
    snapshot.mkdir(parents=True)
    for path in (repository / "blobs").iterdir():
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert load_base("someone/tiny").origin == f"https://huggingface.co/someone/tiny at {commit}"
    assert load_base(str(snapshot)).origin.startswith(base_model.LOCAL)
    for name in ("someone/tiny", str(snapshot)):
        (snapshot / base_model.PRIVATE).write_text("{}")
        assert "was trained on private records" in refusal(load_base, name)
    (snapshot / base_model.PRIVATE).unlink()
    (snapshot / "vocab.txt").symlink_to(Path(__file__))
    assert "vocab.txt is a link to another folder" in refusal(load_base, "someone/tiny")


def test_unreachable_hub_says_at_once_what_to_do_instead(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    start = time.monotonic()
    assert "download it elsewhere (`hf download`)" in refusal(load_base, "gpt2")
    assert time.monotonic() - start < 20 and capfd.readouterr().err == ""


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_a_configuration_fetches_no_machine_code(model_copy, monkeypatch, key):
    """The control: transformers alone asks the hub for what a configuration names."""
    asked, kernel = [], "kernels-community/flash-attn2"

    def fetch(name, **more):
        asked.append(name)
        raise ImportError(name)

    monkeypatch.setattr("transformers.modeling_utils.lazy_import_flash_attention", fetch)
    configured(**{key: kernel})(model_copy)
    assert load_base(str(model_copy)).model.config.n_layer == 2 and asked == []
    with pytest.raises(ImportError):
        AutoModelForCausalLM.from_pretrained(model_copy)
    assert asked == [kernel]


# --- models of this package ---------------------------------------------------------------------


ADAPTERS = sorted(name for name in SHIPPED if (shipped_folder(name) / ADAPTER).is_file())
WHOLE = sorted(SHIPPED.keys() - ADAPTERS)
REVIEW = "The room was clean and the staff were friendly, but the breakfast was cold."
SHUFFLED = "was breakfast friendly, cold. but clean the were and room the The staff was the"


def facts_of(name):
    return json.loads((shipped_folder(name) / "pretraining.json").read_text("utf-8"))


@pytest.mark.parametrize("name", WHOLE)
def test_a_shipped_model_predicts_english_and_names_the_guarded_files(name):
    base, nats = load_base(name), []
    for text in (REVIEW, SHUFFLED):
        ids = torch.tensor([[base.tokenizer.eos_token_id, *base.tokenizer(text).input_ids]])
        with torch.inference_mode():
            nats.append(float(base.model(input_ids=ids, labels=ids).loss) * (ids.shape[1] - 1))
    assert nats[0] / math.log(2) / len(REVIEW) < 2.2  # an untrained one: about 4
    assert nats[1] > 1.5 * nats[0]
    assert context_length(base.model) == 256
    assert facts_of(name)["parameters"] == sum(p.numel() for p in base.model.parameters())
    assert base.origin.startswith("part of twinset, files ")
    assert "kept out of its corpus" in base.origin


@pytest.mark.parametrize("name", [*WHOLE, *ADAPTERS])
def test_a_shipped_model_is_small_and_its_card_says_what_it_was_made_of(name):
    folder, facts = shipped_folder(name), facts_of(name)
    assert facts["finished"] and facts["name"] == name and facts["decontaminated"]
    assert (folder / "README.md").read_text("utf-8") == render_card(facts)
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    wanted = {"README.md", "pretraining.json", "log.jsonl", "curve.png"}
    if name in ADAPTERS:
        assert set(sizes) == wanted | {ADAPTER} and sum(sizes.values()) <= 10.5e6
    else:
        assert wanted | {"config.json", WEIGHTS, "tokenizer.json"} <= set(sizes)
        assert sum(sizes.values()) <= 20e6


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
