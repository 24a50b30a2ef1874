"""The command `pretrain`: what it makes, resumes and refuses, and what its figures may tell."""

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import cli
from tests.helpers.commands import run_twinset
from tests.helpers.refusals import refusal
from twinset.files.atomic import sha256_file
from twinset.models import base_model
from twinset.models.base_model import load_base
from twinset.pretraining import pretrain as module

WORDS = "the a an old new red blue pan film book works fails well badly and but it was is".split()
DOCUMENTS = 100  # three of which are held out
SMALL = "--context 32 --batch-size 8 --micro-batch 4 --precision float32 --quiet".split()
SCRATCH = [*SMALL, *"--vocabulary 300 --layers 2 --width 32 --heads 2".split()]
LORA = [*SMALL, *"--base-model tiny --lora-rank 4 --learning-rate 0.02".split()]
AT_ONCE = ["--max-minutes", "0"]  # it ends after one step
plain_step = module.Trainer.training_step


def write_corpus(folder: Path) -> None:
    rng = random.Random(4)
    texts = (" ".join(rng.choices(WORDS, k=rng.randrange(20, 60))) for _ in range(DOCUMENTS))
    lines = [json.dumps({"text": f"{text}.", "kind": "line"}) for text in texts]
    (folder / "corpus.jsonl").write_text("\n".join(lines))


def use_as_builtin(monkeypatch, **folders):
    monkeypatch.setattr(base_model, "shipped_models", lambda: dict.fromkeys(folders, "tiny"))
    monkeypatch.setattr(base_model, "shipped_folder", folders.__getitem__)


@pytest.fixture(autouse=True)
def corpus(tmp_path, monkeypatch, tiny_llama):
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path)
    use_as_builtin(monkeypatch, tiny=tiny_llama)


def trained_whole(options, tiny_llama, folder) -> Path:
    """Return the folder of a model that was trained without a break; tests only read it."""
    write_corpus(folder)
    with pytest.MonkeyPatch.context() as monkeypatch:
        use_as_builtin(monkeypatch, tiny=tiny_llama)
        monkeypatch.chdir(folder)
        assert cli.main(["pretrain", "corpus.jsonl", "--output", "model", *options]) == 0
    return folder / "model"


@pytest.fixture(scope="module")
def scratch(tiny_llama, tmp_path_factory):
    return trained_whole(SCRATCH, tiny_llama, tmp_path_factory.mktemp("scratch"))


@pytest.fixture(scope="module")
def adapter(tiny_llama, tmp_path_factory):
    return trained_whole(LORA, tiny_llama, tmp_path_factory.mktemp("adapter"))


def pretrain(capsys, *more, output="model"):
    return run_twinset(capsys, "pretrain", "corpus.jsonl", "--output", output, *more)


def weights(folder):
    (file,) = folder.glob("*.safetensors")
    return load_file(file)


def same(one, other):
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def facts_of(folder):
    return json.loads((folder / "pretraining.json").read_text())


def log_of(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def check_outcome(folder):
    """Check that it has learned, and that log, facts and card agree."""
    assert not (folder / "training").exists()
    bits = [line["bits"] for line in log_of(folder) if line["bits"] is not None]
    assert bits[-1] < bits[0] - 0.2 and bits[-1] == facts_of(folder)["validation"]["bits_per_byte"]
    card = (folder / "README.md").read_text()
    assert "corpus.jsonl" in card and "without differential privacy" in card


def test_a_model_from_scratch_can_be_loaded_and_has_learned(scratch):
    check_outcome(scratch)
    base = load_base(str(scratch))
    assert base.model.config.n_layer == 2 and base.model.config.n_positions == 32
    assert base.tokenizer.decode(base.tokenizer.encode("an old pan – äöü")) == "an old pan – äöü"
    assert len(base.tokenizer) <= 300
    assert {t.dtype for t in weights(scratch).values()} == {torch.float16}


def test_an_adapter_moves_all_linear_layers_by_its_product_and_may_be_shipped(
    adapter, tiny_llama, monkeypatch
):
    check_outcome(adapter)
    made, facts, base = weights(adapter), facts_of(adapter), load_base(str(adapter))
    assert {t.dtype for t in made.values()} == {torch.bfloat16}
    assert facts["parameters"] == sum(t.numel() for t in made.values())
    layers = {name.split(".")[-2] for name in made}  # all linear ones but the output
    assert layers == {f"{x}_proj" for x in "q k v o gate up down".split()}
    before, after = load_base(str(tiny_llama)).model.state_dict(), base.model.state_dict()
    name = next(iter(made)).rpartition(".")[0]
    product = facts["adapter"]["scaling"] * made[f"{name}.B"].float() @ made[f"{name}.A"].float()
    moved = after[f"{name}.weight"] - before[f"{name}.weight"]
    assert product.abs().max() > 0 and torch.allclose(moved, product, atol=1e-5)
    assert same({n: t for n, t in before.items() if "norm" in n}, after)

    use_as_builtin(monkeypatch, tiny=tiny_llama, text=adapter)
    origin = load_base("text").origin
    assert "with the adapter: part of twinset, files" in origin and "kept out of its corp" in origin


@pytest.mark.parametrize(
    ("kind", "options"),
    [("scratch", SCRATCH), pytest.param("adapter", LORA, marks=pytest.mark.slow)],
)
def test_killed_or_stopped_it_ends_with_the_same_weights(
    kind, options, request, tmp_path, capsys, monkeypatch
):
    whole, model = request.getfixturevalue(kind), tmp_path / "model"
    monkeypatch.setattr(module, "CHECKPOINT_SECONDS", -1.0)

    def dies(self, *given, **more):
        if self.state.global_step == 4:
            raise RuntimeError
        return plain_step(self, *given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(module.Trainer, "training_step", dies)
        assert pretrain(capsys, *options).code == 1
    work = model / "training"
    assert {path.name for path in work.glob("checkpoint-*")} == {"checkpoint-3", "checkpoint-4"}
    (work / "checkpoint-4" / "trainer_state.json").write_text("{")  # killed while it was written
    stopped = pretrain(capsys, *options, *AT_ONCE, "--json")
    assert stopped.code == 0 and json.loads(stopped.out)["validation"]["steps"] == 4
    load_base(str(model))  # it can be used meanwhile
    assert pretrain(capsys, *options).code == 0
    assert same(weights(whole), weights(model))
    assert [x for x in log_of(whole) if x["loss"]] == [x for x in log_of(model) if x["loss"]]
    assert "is a finished model" in pretrain(capsys, *options).err
    assert pretrain(capsys, *options, *AT_ONCE, "--seed", "1", output="other").code == 0
    assert not same(weights(whole), weights(tmp_path / "other"))  # the control


def test_a_model_remembers_the_stages_before(tmp_path, capsys):
    (tmp_path / "private.txt").write_text("a text that must not be trained on\n")
    guard = ("--decontaminate", "private.txt", *AT_ONCE)
    assert pretrain(capsys, *SCRATCH, *guard, output="first").code == 0
    further = ("--base-model", str(tmp_path / "first"), "--precision", "bfloat16")
    assert pretrain(capsys, *SMALL, *further, *AT_ONCE, output="second").code == 0
    facts = facts_of(tmp_path / "second")
    assert facts["before"]["name"] == "first" and facts["decontaminated"] == []
    assert str(tmp_path) not in json.dumps(facts)
    assert facts["origin"] == "trained further from first"
    card = (tmp_path / "second" / "README.md").read_text()
    assert "## Before that: first, a GPT-2 from scratch" in card and "private.txt" in card
    assert "which no ε covers" in load_base(str(tmp_path / "second")).origin  # still so


REFUSED = [
    ("--width 33", "cannot be shared"),
    ("--text words", "no column 'words'"),
    ("--decontaminate absent.csv", "absent.csv"),
    ("--licences corpus.jsonl", "no TOML"),
    ("--context 100000", "too small for blocks"),
    ("--precision float8", "--precision"),
    ("--share corpus", "write START=NUMBER"),
    ("--lora-rank 2", "--base-model"),
    ("--lora-rank 2 --base-model elsewhere", "no built-in model"),
    ("--base-model private", "was made from private records"),
    ("--output corpus.jsonl", "is a file"),
    ("--output mine", "holds other files"),
]


@pytest.mark.parametrize(("more", "message"), REFUSED)
def test_what_cannot_be_is_refused_in_one_line(more, message, capsys):
    for folder, name in (("private", "twinset.json"), ("mine", "thesis.txt")):
        Path(folder).mkdir()
        Path(folder, name).write_text("{}")
    ended = pretrain(capsys, *SCRATCH, *more.split(), output="new")
    assert ended.code == 2 and message in ended.err and ended.err.count("\n") == 1
    assert not Path("new").exists()  # the same command may be tried again


def test_a_run_that_was_begun_with_other_options_is_not_resumed(capsys):
    pretrain(capsys, *SCRATCH, *AT_ONCE, output="new")
    others = {"epochs": "2", "share": "corpus=0.9", "prompt": "corpus=Write:"}
    for option, value in others.items():
        ended = pretrain(capsys, *SCRATCH, f"--{option}", value, output="new")
        assert ended.code == 2 and f"another value of {option}" in ended.err


def test_training_that_diverges_is_reported_in_one_line(capsys, monkeypatch):
    nan = torch.tensor(float("nan"))
    monkeypatch.setattr(module.Trainer, "training_step", lambda *given, **more: nan)
    ended = pretrain(capsys, *SCRATCH)
    assert ended.code == 2 and "diverged at step 1" in ended.err and ended.err.count("\n") == 1
    assert not Path("model").exists()


def test_guarded_texts_are_kept_out(tmp_path, capsys, monkeypatch):
    rng, model = random.Random(5), tmp_path / "model"
    secret = " ".join(f"{rng.choice(WORDS)}{n}" for n in range(30))
    with open("corpus.jsonl", "a") as file:
        file.write("\n" + json.dumps({"text": f"Before it, {secret} and after it."}))
    (tmp_path / "private.csv").write_text(f"note\n{secret}\n")
    trained, plain = [], module.pack_blocks
    monkeypatch.setattr(module, "pack_blocks", lambda *x: trained.append(x[0]) or plain(*x))
    ended = pretrain(capsys, *SCRATCH, "--decontaminate", "private.csv", *AT_ONCE, "--json")
    text = load_base(str(model)).tokenizer.decode(trained[0])
    assert "Before it" not in text and text.count("<|endoftext|>") > 0.9 * DOCUMENTS
    written = {p.name: p for p in model.rglob("*") if p.is_file()}
    assert written.pop("settings.json").stat().st_mode & 0o077 == 0
    digest = sha256_file(tmp_path / "private.csv").encode()
    assert not any(digest in path.read_bytes() for path in written.values())
    assert "guarded" not in json.loads(ended.out)["corpus"]["dropped"]


def test_no_figure_reveals_how_much_was_guarded(tmp_path, capsys):
    """A third of the corpus is left out, and all that is counted is as if one text were."""
    texts = [json.loads(line)["text"] for line in Path("corpus.jsonl").read_text().splitlines()]
    figures = []
    for name, guarded in (("one", texts[:1]), ("many", texts[: DOCUMENTS // 3])):
        (tmp_path / "private.csv").write_text("\n".join(["note", *guarded]))
        given = ("--decontaminate", "private.csv", "--epochs", "0.4")
        assert pretrain(capsys, *SCRATCH, *given, output=name).code == 0
        facts = facts_of(tmp_path / name)
        steps = [facts["validation"][key] for key in ("tokens", "steps", "of")]
        log = [(line["step"], sorted(line)) for line in log_of(tmp_path / name)]
        card = (tmp_path / name / "README.md").read_text().splitlines()
        counts = [line for line in card if " documents, " in line or "Left out" in line]
        figures.append((facts["corpus"], steps, log, counts))
    assert figures[0] == figures[1] and figures[0][0]["documents"] == DOCUMENTS
    assert not same(weights(tmp_path / "one"), weights(tmp_path / "many"))


def change_facts(**changes):
    def spoil(folder):
        facts = facts_of(folder)
        facts["adapter"] |= changes
        (folder / "pretraining.json").write_text(json.dumps(facts))

    return spoil


def change_factors(change):
    return lambda f: save_file(change(dict(weights(f))), f / "adapter.safetensors")


def widen(kept):
    name, a = next(iter(kept.items()))
    return kept | {name: torch.zeros(a.shape[0], a.shape[1] + 1)}


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (change_facts(base_model="someone/else"), "no built-in"),
        (change_facts(base_model="."), "no built-in model"),
        (change_facts(base_origin="elsewhere"), "another tiny"),
        (change_facts(rank=5), "does not fit tiny"),
        (change_facts(scaling=float("nan")), "describe no adapter"),
        (change_facts(alpha=1), "describe no adapter"),
        (change_factors(widen), "does not fit tiny"),
        (change_factors(lambda kept: dict(list(kept.items())[1:])), "does not fit tiny"),
        (lambda f: (f / "adapter.safetensors").write_bytes(b"\0" * 100), "cannot be loaded"),
        (lambda f: (f / "pretraining.json").unlink(), "has no pretraining.json"),
        (lambda f: (f / "adapter_config.json").write_text("{}"), "an adapter; merge it"),
    ],
)
def test_an_adapter_that_cannot_be_is_refused_in_one_line(spoil, message, adapter, tmp_path):
    spoil(shutil.copytree(adapter, tmp_path / "spoilt"))
    said = refusal(load_base, str(tmp_path / "spoilt"))
    assert message in said and "\n" not in said


def test_blocks_predict_every_token_once():
    documents = [f"Text number {n}: it is {'long ' * (n % 7)}enough." for n in range(40)]
    tokenizer = module.train_tokenizer(documents, 280)
    tokens = module.encode_documents(documents, tokenizer)
    rows = module.pack_blocks(tokens, 16)
    assert (rows[1:, 0] == rows[:-1, -1]).all()
    read = np.concatenate([rows[0, :1], rows[:, 1:].flatten()])
    assert (read == tokens[: len(read)]).all() and len(tokens) - len(read) < 15
    assert sorted(tokenizer.decode(tokens).split(tokenizer.eos_token)[1:]) == sorted(documents)
