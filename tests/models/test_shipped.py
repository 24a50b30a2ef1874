import json
import math
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from twinset.models.assets import shipped_folder, shipped_models
from twinset.models.base_model import builtin_models, context_length, load_base
from twinset.models.model_files import ADAPTER
from twinset.pretraining.pretrain import render_card

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


def _sizes(name):
    return {path.name: path.stat().st_size for path in shipped_folder(name).iterdir()}


@pytest.mark.parametrize("name", WHOLE)
def test_is_small_and_complete(name):
    assert sum(_sizes(name).values()) <= 20e6
    wanted = "config.json model.safetensors tokenizer.json README.md pretraining.json log.jsonl"
    assert {*wanted.split(), "curve.png"} <= set(_sizes(name))


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_is_small_and_alone(name):
    wanted = {ADAPTER, "README.md", "pretraining.json", "log.jsonl", "curve.png"}
    assert set(_sizes(name)) == wanted
    assert sum(_sizes(name).values()) <= 10.5e6


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


@pytest.mark.parametrize("name", WHOLE)
def test_as_many_parameters_as_its_facts_say(name):
    facts = json.loads((shipped_folder(name) / "pretraining.json").read_text("utf-8"))
    assert facts["parameters"] == sum(p.numel() for p in load_base(name).model.parameters())


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


def test_ledger_names_the_weights_and_what_was_kept_out():
    base = load_base("gpt2-mini")
    assert base.origin.startswith("part of twinset, files ")
    assert "kept out of its corpus" in base.origin
    assert list(builtin_models())[0] == "gpt2-mini"


@pytest.mark.slow
def test_the_wheel_has_the_models_and_what_its_summary_says(tmp_path):
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
        assert tops == {"twinset", "evaluation", "prompts", "cli.py", about}
        (summary,) = re.findall("^Summary: (.*)$", archive.read(f"{about}/METADATA").decode(), re.M)
        said = "Installs the packages twinset, evaluation and prompts, and the module cli."
        assert summary.endswith(said)
