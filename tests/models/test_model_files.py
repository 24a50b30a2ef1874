"""A model's folder is loaded from its own safetensors alone, and its hash is of what is loaded."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from evaluation.utility.dp_classifiers import EncoderClassifier
from tests.helpers.commands import ROOT, run_python
from tests.helpers.refusals import refusal
from twinset.models import base_model, model_files
from twinset.models.base_model import load_base
from twinset.models.model_files import INDEX, WEIGHTS, plain_values


@pytest.fixture
def pickles(monkeypatch) -> list:
    """The files that are unpickled."""
    read, load = [], torch.load
    monkeypatch.setattr(
        torch, "load", lambda file, *a, **k: read.append(file) or load(file, *a, **k)
    )
    return read


def edit(path: Path, **changes) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def index(folder: Path, file: str) -> None:
    """Have an index name one file for all tensors; a decoy is what a hash would look at."""
    names = load_file(folder / WEIGHTS)
    (folder / INDEX).write_text(
        json.dumps({"metadata": {}, "weight_map": dict.fromkeys(names, file)})
    )
    save_file({"decoy": torch.zeros(1)}, folder / "decoy.safetensors")
    (folder / WEIGHTS).unlink()


def copied_to(place: str, name: str | None = None):
    """Copy the weights to a place that the index names, by another name if it is given."""

    def spoil(folder: Path) -> None:
        (folder / place).parent.mkdir(exist_ok=True)
        shutil.copy(folder / WEIGHTS, folder / place)
        index(folder, name or place)

    return spoil


def pickled_to(place: str):
    """Pickle the weights to a place that the index names."""

    def spoil(folder: Path) -> None:
        torch.save(load_file(folder / WEIGHTS), folder / place)
        index(folder, str((folder / place).resolve()) if ".." in place else place)

    return spoil


def index_says(text: str):
    return lambda folder: index(folder, "decoy.safetensors") or (folder / INDEX).write_text(text)


def linked(name: str):
    """Have a file be a link to one outside of the folder."""

    def spoil(folder: Path) -> None:
        outside = folder.parent / "elsewhere"
        if (folder / name).exists():
            shutil.move(folder / name, outside)
        else:
            outside.write_text("a secret")
        (folder / name).symlink_to(outside)

    return spoil


def configured(**changes):
    return lambda folder: edit(folder / "config.json", **changes)


def renamed(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "other.safetensors")
    edit(folder / "config.json", transformers_weights="other.safetensors")


def absolute(folder: Path) -> None:
    copied_to("../other.safetensors", str(folder.parent / "other.safetensors"))(folder)


NAMES = "must name .safetensors files of the same folder and nothing else; fetch"
SPOILT = {
    "pickle inside": (pickled_to("pytorch_model.bin"), NAMES),
    "pickle elsewhere": (pickled_to("../elsewhere.bin"), NAMES),
    "absolute": (absolute, NAMES),
    "upwards": (copied_to("../elsewhere.safetensors"), NAMES),
    "below": (copied_to(f"sub/{WEIGHTS}"), NAMES),
    "absent": (lambda folder: index(folder, "none.safetensors"), NAMES),
    "no map": (index_says('{"weight_map": ["decoy.safetensors"]}'), NAMES),
    "deep index": (index_says("[" * 100_000), "index.json is damaged; fetch"),
    "other weights": (renamed, "no .safetensors weights under the names"),
    "linked weights": (linked(WEIGHTS), "model.safetensors is a link out of the folder; copy"),
    "linked tokenizer": (linked("merges.txt"), "merges.txt is a link out of the folder; copy"),
    "deep config": (
        lambda folder: (folder / "config.json").write_text('{"a":' * 100_000),
        "config.json is damaged; fetch",
    ),
    "many layers": (configured(n_layer=10**7), "n_layer is above 1000 in config.json; fetch"),
    "wide": (configured(n_embd=10**6), "numbers and the weights have .* bytes; fetch"),
    "long": (configured(n_positions=10**12), "numbers and the weights have .* bytes; fetch"),
    "quantised": (
        configured(quantization_config={"quant_method": "mxfp4"}),
        "name its unquantised form",
    ),
}


@pytest.mark.parametrize(("spoil", "said"), SPOILT.values(), ids=SPOILT)
def test_a_folder_that_leads_elsewhere_or_fills_memory(model_copy, pickles, spoil, said):
    spoil(model_copy)
    assert re.search(said, refusal(load_base, str(model_copy))) and pickles == []


def test_the_pickles_would_be_loaded(model_copy, pickles):
    """The control: transformers follows an index to a pickle."""
    from transformers import AutoModelForCausalLM

    pickled_to("../elsewhere.bin")(model_copy)
    AutoModelForCausalLM.from_pretrained(model_copy, use_safetensors=True)
    assert set(map(str, pickles)) == {str(model_copy.parent / "elsewhere.bin")}


def test_an_encoder_that_leads_elsewhere_is_refused_too(model_copy, pickles):
    pickled_to("../elsewhere.bin")(model_copy)
    assert NAMES in refusal(EncoderClassifier(str(model_copy)).load) and pickles == []


def test_weights_in_parts_are_loaded(model_copy):
    whole = load_file(model_copy / WEIGHTS)
    names = sorted(whole)
    parts = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    for file, some in parts.items():
        save_file({name: whole[name] for name in some}, model_copy / file, {"format": "pt"})
    places = {name: file for file, some in parts.items() for name in some}
    (model_copy / INDEX).write_text(json.dumps({"weight_map": places}))
    (model_copy / WEIGHTS).unlink()
    loaded = load_base(str(model_copy)).model.state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in whole.items())


@pytest.mark.parametrize(
    "file", [WEIGHTS, "config.json", "tokenizer.json", "tokenizer_config.json", "merges.txt"]
)
def test_the_hash_is_of_all_that_is_loaded(model_copy, file):
    before = load_base(str(model_copy)).origin
    (model_copy / "README.md").write_text("# another card")
    assert load_base(str(model_copy)).origin == before
    if file == WEIGHTS:
        weights = load_file(model_copy / file)
        weights["transformer.ln_f.bias"] += 1
        save_file(weights, model_copy / file, {"format": "pt"})
    else:
        path = model_copy / file
        path.write_text((path.read_text() if path.is_file() else "") + "\n")
    assert load_base(str(model_copy)).origin != before


def test_no_file_but_those_chosen_is_read(model_copy):
    (model_copy / "generation_config.json").write_text("{damaged")
    (model_copy / "chat_template.jinja").write_text("{% damaged")
    with model_files.ModelFiles.of(model_copy, "m").alone() as alone:
        found = {path.name for path in alone.iterdir()}
    assert found == {"config.json", WEIGHTS, "tokenizer.json", "tokenizer_config.json"}
    assert not alone.exists()
    load_base(str(model_copy))


def test_entries_that_lead_elsewhere_are_left_out():
    harmless = {"n_layer": 2, "tokenizer_class": "X", "names": [{"a": None}], "text_config": {}}
    leading = {
        "auto_map": {"AutoConfig": "code.C"},
        "configuration_files": ["config.4.0.0.json"],
        "fast_tokenizer_files": ["tokenizer.4.json"],
        "transformers_weights": "x.safetensors",
        "attn_implementation": "someone/kernel",
        "_attn_implementation_internal": "someone/kernel",
        "experts_implementation": "deepgemm",
        "tokenizer_file": "/elsewhere/tokenizer.json",
        "use_kernels": True,
    }
    nested = harmless | leading | {"text_config": leading, "names": [{"a": None} | leading]}
    assert plain_values(nested) == harmless


def test_a_configuration_that_names_another_configuration(model_copy):
    """The other is not looked at."""
    edit(model_copy / "config.json", configuration_files=["config.4.0.0.json"])
    (model_copy / "config.4.0.0.json").write_text("{}")
    assert load_base(str(model_copy)).model.config.n_layer == 2


def test_the_layout_of_the_hubs_cache(tiny_base, tmp_path, monkeypatch):
    """A folder of links to `blobs` is what the hub's cache has; a link out of that is refused."""
    from huggingface_hub import constants

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
    (snapshot / "vocab.txt").symlink_to(Path(__file__))
    assert "vocab.txt is a link out of the folder" in refusal(load_base, "someone/tiny")


# --- machine code of the hub ----------------------------------------------------------------------

STAND_IN = """
class _Any:
    def __init__(self, *a, **k): pass
    def __call__(self, *a, **k): return a[0] if a and callable(a[0]) else self
    def __getattr__(self, name): return _Any()
    def __enter__(self): return self
    def __exit__(self, *a): return False
def get_kernel(*names, **more):
    print("FETCHED", names[0])
    raise SystemExit(9)
def __getattr__(name):
    if name.startswith("__"): raise AttributeError(name)
    return _Any()
"""
LOADS = """
import sys
from twinset.models.base_model import load_base
for folder in sys.argv[1:]:
    load_base(folder)
    print("loaded")
"""
BEFORE = "import kernels, transformers.modeling_utils, transformers.integrations.hub_kernels\n"
CONTROL = """
import sys
from transformers import AutoModelForCausalLM
AutoModelForCausalLM.from_pretrained(sys.argv[1])
"""


@pytest.fixture
def stand_in(tmp_path) -> Path:
    """A place with a package `kernels` that says what it is asked to fetch."""
    place = tmp_path / "place"
    for package in ("kernels", "kernels/layer"):
        (place / package).mkdir(parents=True)
        (place / package / "__init__.py").write_text(STAND_IN)
    (place / "kernels" / "layer" / "mode.py").write_text(STAND_IN)
    from transformers.utils.import_utils import KERNELS_MIN_VERSION

    facts = place / f"kernels-{KERNELS_MIN_VERSION}.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: kernels\nVersion: {KERNELS_MIN_VERSION}\n"
    )
    return place


def fetches(place: Path, code: str, *folders: Path) -> str:
    done = run_python("-c", code, *folders, PYTHONPATH=os.pathsep.join(map(str, (place, ROOT))))
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("code", "keys"),
    [
        (LOADS, ["attn_implementation", "_attn_implementation"]),
        (BEFORE + LOADS, ["attn_implementation", "_attn_implementation"]),
    ],
    ids=["first", "loaded before"],
)
def test_a_configuration_fetches_no_machine_code(model_copy, tmp_path, stand_in, code, keys):
    folders = [shutil.copytree(model_copy, tmp_path / key) for key in keys]
    for folder, key in zip(folders, keys, strict=True):
        edit(folder / "config.json", **{key: "kernels-community/flash-attn2"})
    printed = fetches(stand_in, code, *folders)
    assert printed.count("loaded\n") == len(keys) and "FETCHED" not in printed


def test_the_stand_in_would_be_asked(model_copy, stand_in):
    """The control."""
    edit(model_copy / "config.json", attn_implementation="kernels-community/flash-attn2")
    assert "FETCHED kernels-community/flash-attn2" in fetches(stand_in, CONTROL, model_copy)
