"""A model's folder is loaded from its own safetensors alone, and its hash is of what is loaded."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from evaluation.utility.encoder_classifier import EncoderClassifier
from twinset.errors import InputError
from twinset.models import base_model as basemodel
from twinset.models import model_files as modelfiles
from twinset.models.base_model import load_base
from twinset.models.model_files import INDEX, WEIGHTS, plain_values

ROOT = Path(__file__).parents[2]


@pytest.fixture
def copy(tiny_base, tmp_path) -> Path:
    """A copy of the tiny GPT-2 that a test may spoil."""
    return shutil.copytree(tiny_base, tmp_path / "model")


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


def _pickle_inside(folder: Path) -> None:
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    index(folder, "pytorch_model.bin")


def _pickle_elsewhere(folder: Path) -> None:
    torch.save(load_file(folder / WEIGHTS), folder.parent / "elsewhere.bin")
    index(folder, str(folder.parent / "elsewhere.bin"))


def _absolute(folder: Path) -> None:
    shutil.copy(folder / WEIGHTS, folder.parent / "elsewhere.safetensors")
    index(folder, str(folder.parent / "elsewhere.safetensors"))


def _upwards(folder: Path) -> None:
    shutil.copy(folder / WEIGHTS, folder.parent / "elsewhere.safetensors")
    index(folder, "../elsewhere.safetensors")


def _below(folder: Path) -> None:
    (folder / "sub").mkdir()
    shutil.copy(folder / WEIGHTS, folder / "sub")
    index(folder, f"sub/{WEIGHTS}")


def _absent(folder: Path) -> None:
    index(folder, "none.safetensors")


def _no_map(folder: Path) -> None:
    index(folder, "decoy.safetensors")
    (folder / INDEX).write_text('{"weight_map": ["decoy.safetensors"]}')


def _deep_index(folder: Path) -> None:
    index(folder, "decoy.safetensors")
    (folder / INDEX).write_text("[" * 100_000)


def _other_weights(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "other.safetensors")
    edit(folder / "config.json", transformers_weights="other.safetensors")


def _linked_weights(folder: Path) -> None:
    shutil.move(folder / WEIGHTS, folder.parent / "elsewhere.safetensors")
    (folder / WEIGHTS).symlink_to(folder.parent / "elsewhere.safetensors")


def _linked_tokenizer(folder: Path) -> None:
    (folder.parent / "id_ed25519").write_text("a secret")
    (folder / "merges.txt").symlink_to(folder.parent / "id_ed25519")


def _deep_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"a":' * 100_000)


def _many_layers(folder: Path) -> None:
    edit(folder / "config.json", n_layer=10**7)


def _wide(folder: Path) -> None:
    edit(folder / "config.json", n_embd=10**6)


def _long(folder: Path) -> None:
    edit(folder / "config.json", n_positions=10**12)


def _quantised_within(folder: Path) -> None:
    edit(folder / "config.json", quantization_config={"quant_method": "mxfp4"})


SPOILT = {
    _pickle_inside: "must name .safetensors files of the same folder and nothing else; fetch",
    _pickle_elsewhere: "must name .safetensors files",
    _absolute: "must name .safetensors files",
    _upwards: "must name .safetensors files",
    _below: "must name .safetensors files",
    _absent: "must name .safetensors files",
    _no_map: "must name .safetensors files",
    _deep_index: "index.json is damaged; fetch",
    _other_weights: "no .safetensors weights under the names",
    _linked_weights: "model.safetensors is a link out of the folder; copy",
    _linked_tokenizer: "merges.txt is a link out of the folder; copy",
    _deep_config: "config.json is damaged; fetch",
    _many_layers: "n_layer is above 1000 in config.json; fetch",
    _wide: "numbers and the weights have .* bytes; fetch",
    _long: "numbers and the weights have .* bytes; fetch",
    _quantised_within: "name its unquantised form",
}


@pytest.mark.parametrize(
    ("spoil", "said"), SPOILT.items(), ids=lambda f: getattr(f, "__name__", "")
)
def test_a_folder_that_leads_elsewhere_or_fills_memory(copy, pickles, spoil, said):
    spoil(copy)
    with pytest.raises(InputError, match=said) as caught:
        load_base(str(copy))
    assert "\n" not in str(caught.value) and pickles == []


def test_the_pickles_would_be_loaded(copy, pickles):
    """The control: transformers follows an index to a pickle."""
    from transformers import AutoModelForCausalLM

    _pickle_elsewhere(copy)
    AutoModelForCausalLM.from_pretrained(copy, use_safetensors=True)
    assert set(map(str, pickles)) == {str(copy.parent / "elsewhere.bin")}


def test_an_encoder_that_leads_elsewhere_is_refused_too(copy, pickles):
    _pickle_elsewhere(copy)
    with pytest.raises(InputError, match="must name .safetensors files"):
        EncoderClassifier(str(copy)).check()
    assert pickles == []


def test_weights_in_parts_are_loaded(copy):
    whole = load_file(copy / WEIGHTS)
    names = sorted(whole)
    parts = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    for file, some in parts.items():
        save_file({name: whole[name] for name in some}, copy / file, {"format": "pt"})
    places = {name: file for file, some in parts.items() for name in some}
    (copy / INDEX).write_text(json.dumps({"weight_map": places}))
    (copy / WEIGHTS).unlink()
    loaded = load_base(str(copy)).model.state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in whole.items())


@pytest.mark.parametrize(
    "file", [WEIGHTS, "config.json", "tokenizer.json", "tokenizer_config.json", "merges.txt"]
)
def test_the_hash_is_of_all_that_is_loaded(copy, file):
    before = load_base(str(copy)).origin
    (copy / "README.md").write_text("# another card")
    assert load_base(str(copy)).origin == before
    if file == WEIGHTS:
        weights = load_file(copy / file)
        weights["transformer.ln_f.bias"] += 1
        save_file(weights, copy / file, {"format": "pt"})
    else:
        path = copy / file
        path.write_text((path.read_text() if path.is_file() else "") + "\n")
    assert load_base(str(copy)).origin != before


def test_no_file_but_those_chosen_is_read(copy):
    (copy / "generation_config.json").write_text("{damaged")
    (copy / "chat_template.jinja").write_text("{% damaged")
    files = modelfiles.ModelFiles.of(copy, "m")
    with files.alone() as alone:
        found = {path.name for path in alone.iterdir()}
    assert found == {"config.json", WEIGHTS, "tokenizer.json", "tokenizer_config.json"}
    assert not alone.exists()
    load_base(str(copy))


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


def test_a_configuration_that_names_another_configuration(copy):
    """The other is not looked at."""
    edit(copy / "config.json", configuration_files=["config.4.0.0.json"])
    (copy / "config.4.0.0.json").write_text("{}")
    assert load_base(str(copy)).model.config.n_layer == 2


def test_the_layout_of_the_hubs_cache(tiny_base, tmp_path, monkeypatch):
    """A folder of links to `blobs` is what the hub's cache has; a link out of that is refused."""
    from huggingface_hub import constants

    repository = tmp_path / "models--someone--tiny"
    snapshot = repository / "snapshots" / ("0" * 40)
    shutil.copytree(tiny_base, repository / "blobs")
    snapshot.mkdir(parents=True)
    for path in (repository / "blobs").iterdir():
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert load_base("someone/tiny").origin.endswith("0" * 40)
    assert load_base(str(snapshot)).origin.startswith(basemodel.LOCAL)
    (snapshot / "vocab.txt").symlink_to(Path(__file__))
    with pytest.raises(InputError, match="vocab.txt is a link out of the folder"):
        load_base("someone/tiny")


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
load_base(sys.argv[1])
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


def fetches(place: Path, code: str, folder: Path) -> str:
    paths = os.pathsep.join(map(str, (place, ROOT)))
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, folder], env=environment, capture_output=True, text=True
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
@pytest.mark.parametrize("code", [LOADS, BEFORE + LOADS], ids=["first", "loaded before"])
def test_a_configuration_fetches_no_machine_code(copy, stand_in, key, code):
    edit(copy / "config.json", **{key: "kernels-community/flash-attn2"})
    told = fetches(stand_in, code, copy)
    assert told.strip().endswith("loaded") and "FETCHED" not in told


def test_the_stand_in_would_be_asked(copy, stand_in):
    """The control."""
    edit(copy / "config.json", attn_implementation="kernels-community/flash-attn2")
    assert "FETCHED kernels-community/flash-attn2" in fetches(stand_in, CONTROL, copy)
