"""Adapters of a frozen base: only they learn, a stop changes nothing, and the folder is whole."""

import json
import random
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy

from tests.helpers.commands import run_twinset
from twinset.models import base_model
from twinset.models.adapters import ALL_LINEAR, add_lora
from twinset.models.base_model import load_base
from twinset.pretraining import training
from twinset.pretraining.learning_curve import read_log
from twinset.pretraining.token_losses import TokenLosses

WORDS = "the a an old new red blue pan film book works fails well badly and but it was is".split()
SMALL = (
    "--base-model", "tiny", "--lora-rank", "4", "--context", "32", "--batch-size", "8",
    "--micro-batch", "4", "--precision", "float32", "--learning-rate", "0.02", "--quiet",
)  # fmt: skip
AT_ONCE = ("--max-minutes", "0")  # it ends after one step


def write_corpus(folder: Path) -> None:
    rng = random.Random(4)
    texts = (" ".join(rng.choice(WORDS) for _ in range(rng.randrange(20, 60))) for _ in range(300))
    (folder / "corpus.txt").write_text("\n\n".join(texts))


def use_as_builtin(monkeypatch, folder) -> None:
    monkeypatch.setattr(base_model, "shipped_models", lambda: {"tiny": "a tiny one"})
    monkeypatch.setattr(base_model, "shipped_folder", lambda name: folder)


@pytest.fixture(params=["tiny_llama", "tiny_base"], scope="module")
def base(request) -> Path:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def whole(base, tmp_path_factory) -> Path:
    """The folder of an adapter that was trained without a break; its tests only read it."""
    folder = tmp_path_factory.mktemp("whole")
    write_corpus(folder)
    with pytest.MonkeyPatch.context() as monkeypatch:
        use_as_builtin(monkeypatch, base)
        monkeypatch.chdir(folder)
        import cli

        assert cli.main(["pretrain", "corpus.txt", "--output", "adapter", *SMALL]) == 0
    return folder / "adapter"


@pytest.fixture(autouse=True)
def corpus(tmp_path, monkeypatch, base):
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path)
    use_as_builtin(monkeypatch, base)


def pretrain(capsys, *more, output="adapter"):
    return run_twinset(capsys, "pretrain", "corpus.txt", "--output", output, *SMALL, *more)


def factors(folder):
    return load_file(folder / "adapter.safetensors")


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(t, other[n]) for n, t in one.items())


def test_an_adapter_is_made_and_no_copy_of_the_base(whole):
    files = {path.name for path in whole.iterdir()}
    wanted = "README.md adapter.safetensors curve.png log.jsonl pretraining.json"
    assert files == set(wanted.split())
    assert {t.dtype for t in factors(whole).values()} == {torch.bfloat16}
    bits = [line["bits"] for line in read_log(whole / "log.jsonl") if line["bits"] is not None]
    assert bits[-1] < bits[0] - 0.2  # the model improves
    assert read_log(whole / "log.jsonl")[0]["step"] == 0  # the base itself
    card = (whole / "README.md").read_text()
    assert "low-rank adapter (rank 4)" in card and "transformers" not in card.split("---")[1]
    facts = json.loads((whole / "pretraining.json").read_text())
    stored = sum(t.numel() for t in factors(whole).values())
    assert facts["parameters"] == stored and facts["weights"] == "bfloat16"


def test_nothing_but_the_adapters_moves(capsys, monkeypatch):
    seen = []
    plain = training._Run.step

    def step(self):
        before = {n: p.detach().clone() for n, p in self._plain.named_parameters()}
        plain(self)
        moved = {n for n, p in self._plain.named_parameters() if not torch.equal(p, before[n])}
        seen.append((moved, {n for n, p in self._plain.named_parameters() if p.requires_grad}))

    monkeypatch.setattr(training._Run, "step", step)
    assert pretrain(capsys, "--epochs", "0.2").code == 0
    assert len(seen) > 2
    for moved, trained in seen[1:]:  # at first A has no gradient: B is zero
        assert moved == trained and all("lora" in name for name in trained)


def test_all_linear_layers_but_the_output_have_one(whole, base):
    layers = {name.rpartition(".")[0].rpartition(".")[2] for name in factors(whole)}
    gpt2 = {"c_attn", "c_proj", "c_fc"}
    llama = {f"{x}_proj" for x in "q k v o gate up down".split()}
    assert layers == (gpt2 if "gpt2" in str(base) else llama)


def test_killed_and_resumed_it_ends_with_the_same_adapter(whole, tmp_path, capsys, dies_at):
    for victim in (3, 9):
        with dies_at(victim):
            assert pretrain(capsys).code == 1
    state = torch.load(tmp_path / "adapter/training/checkpoints/step-9/state.pt", weights_only=True)
    assert all("lora" in name for name in state["model"])  # no copy of the base
    assert pretrain(capsys).code == 0
    assert same(factors(whole), factors(tmp_path / "adapter"))
    assert pretrain(capsys, "--seed", "1", output="other").code == 0
    assert not same(factors(whole), factors(tmp_path / "other"))  # the control


def test_the_folder_loads_as_the_model_that_was_trained(base, tmp_path, capsys, monkeypatch):
    kept = {}
    plain = training._Run.report

    def report(self, *given, **more):
        kept["model"] = self._plain
        return plain(self, *given, **more)

    monkeypatch.setattr(training._Run, "report", report)
    assert pretrain(capsys).code == 0
    ids = torch.arange(20)[None]
    trained = kept["model"].eval()
    for name, weight in trained.named_parameters():
        if "lora" in name:  # kept in bfloat16; what that moves depends on what a machine trained
            weight.data.copy_(weight.data.bfloat16())
    loaded, untrained = load_base(str(tmp_path / "adapter")), load_base("tiny")
    with torch.inference_mode():
        wanted, found, before = (
            m(input_ids=ids).logits for m in (trained, loaded.model, untrained.model)
        )
    assert not loaded.model.training and loaded.model.dtype is torch.float32
    assert (found - wanted).norm() < 1e-4 * (wanted - before).norm()
    assert loaded.origin.startswith(untrained.origin + " with the adapter: local folder, files ")
    low = load_base(str(tmp_path / "adapter"), dtype=torch.bfloat16)
    assert low.model.dtype is torch.bfloat16


def test_an_adapter_can_be_shipped(whole, base, monkeypatch):
    monkeypatch.setattr(base_model, "shipped_models", lambda: {"tiny": "", "tiny-text": ""})
    monkeypatch.setattr(
        base_model, "shipped_folder", lambda name: {"tiny": base, "tiny-text": whole}[name]
    )
    loaded = load_base("tiny-text")
    assert loaded.name == "tiny-text"
    assert "with the adapter: part of twinset, files" in loaded.origin
    assert "kept out of its corpus" in loaded.origin


def test_a_ledger_states_that_texts_were_kept_out(tmp_path, capsys):
    (tmp_path / "private.txt").write_text("a text that must not be trained on\n")
    assert pretrain(capsys, "--decontaminate", "private.txt", *AT_ONCE).code == 0
    assert "which no ε covers" in load_base(str(tmp_path / "adapter")).origin


def change_facts(folder, **changes):
    facts = json.loads((folder / "pretraining.json").read_text())
    facts["adapter"] |= changes
    (folder / "pretraining.json").write_text(json.dumps(facts))


def change_factors(folder, change):
    kept = dict(factors(folder))
    change(kept)
    save_file(kept, folder / "adapter.safetensors")


def wider(kept):
    name = next(iter(kept))
    kept[name] = torch.zeros(kept[name].shape[0], kept[name].shape[1] + 1)


SPOILT = {
    "a base of the hub": (lambda f: change_facts(f, base_model="someone/else"), "no built-in"),
    "a folder as base": (lambda f: change_facts(f, base_model="."), "no built-in model"),
    "another base": (lambda f: change_facts(f, base_origin="elsewhere"), "another tiny"),
    "another rank": (lambda f: change_facts(f, rank=5), "does not fit tiny"),
    "no number": (lambda f: change_facts(f, scaling=float("nan")), "describe no adapter"),
    "more facts": (lambda f: change_facts(f, alpha=1), "describe no adapter"),
    "other shapes": (lambda f: change_factors(f, wider), "does not fit tiny"),
    "a layer less": (lambda f: change_factors(f, dict.popitem), "does not fit tiny"),
    "cut off": (
        lambda f: (f / "adapter.safetensors").write_bytes(b"\0" * 100),
        "cannot be loaded",
    ),
    "no facts": (lambda f: (f / "pretraining.json").unlink(), "has no pretraining.json"),
    "of peft": (lambda f: (f / "adapter_config.json").write_text("{}"), "an adapter; merge it"),
}


@pytest.mark.parametrize("spoilt", SPOILT)
def test_an_adapter_that_cannot_be_is_refused_in_one_line(spoilt, whole, tmp_path):
    from tests.helpers.refusals import refusal

    spoil, message = SPOILT[spoilt]
    spoil(shutil.copytree(whole, tmp_path / "spoilt"))
    said = refusal(load_base, str(tmp_path / "spoilt"))
    assert message in said and "\n" not in said


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--lora-rank", "2"), "--base-model"),
        (("--lora-rank", "2", "--base-model", "elsewhere"), "no built-in model"),
        (("--lora-rank", "0", "--base-model", "tiny"), "--lora-rank"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(given, message, capsys):
    ended = run_twinset(capsys, "pretrain", "corpus.txt", "--output", "new", *given)
    assert ended.code == 2 and message in ended.err and ended.err.count("\n") == 1
    assert not Path("new").exists()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_losses_in_pieces_are_those_of_all_logits(base, dtype):
    torch.manual_seed(0)
    model = add_lora(load_base(str(base), dtype=dtype).model, 4, ALL_LINEAR)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)
    ids = torch.randint(
        model.get_output_embeddings().weight.shape[0], (40, 32)
    )  # more than one piece
    wanted = cross_entropy(
        model(input_ids=ids).logits[:, :-1].flatten(0, 1).float(),
        ids[:, 1:].flatten(),
        reduction="none",
    )
    found = TokenLosses(model)(ids)
    trained = [p for p in model.parameters() if p.requires_grad]
    gradients = [torch.autograd.grad(x.mean(), trained) for x in (wanted, found)]
    close = 1e-5 if dtype is torch.float32 else 0.03
    assert (found - wanted).norm() < close * wanted.norm()
    flat = [torch.cat([g.flatten() for g in some]) for some in gradients]
    assert (flat[0] - flat[1]).norm() < close * flat[0].norm()
    with torch.inference_mode():
        assert torch.equal(TokenLosses(model)(ids), found)
