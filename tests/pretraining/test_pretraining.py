"""The command `pretrain`: what it reads, makes, resumes and refuses, and what its figures tell."""

import gzip
import json
import random
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

import cli
from tests.helpers.commands import call
from twinset.files.atomic import sha256_file
from twinset.models import base_model
from twinset.models.base_model import load_base
from twinset.pretraining import pretrain as module
from twinset.pretraining.corpus import RUN, find_clean, read_corpus

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
    monkeypatch.setattr(base_model, "SHIPPED", dict.fromkeys(folders, "tiny"))
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


def pretrain(*more, output="model"):
    return call("pretrain", "corpus.jsonl", "--output", output, *more)


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
    """Check that it has learned, and that log and facts agree."""
    assert not (folder / "training").exists()
    bits = [line["bits"] for line in log_of(folder) if line["bits"] is not None]
    assert bits[-1] < bits[0] - 0.2 and bits[-1] == facts_of(folder)["validation"]["bits_per_byte"]
    assert "without differential privacy" in (folder / "README.md").read_text()


def test_an_adapter_moves_all_linear_layers_by_its_product_and_may_be_shipped(
    adapter, tiny_llama, monkeypatch
):
    check_outcome(adapter)
    made, facts, base = weights(adapter), facts_of(adapter), load_base(str(adapter))
    before, after = load_base(str(tiny_llama)).model.state_dict(), base.model.state_dict()
    name = next(iter(made)).rpartition(".")[0]
    product = facts["adapter"]["scaling"] * made[f"{name}.B"].float() @ made[f"{name}.A"].float()
    moved = after[f"{name}.weight"] - before[f"{name}.weight"]
    assert product.abs().max() > 0 and torch.allclose(moved, product, atol=1e-5)
    use_as_builtin(monkeypatch, tiny=tiny_llama, text=adapter)
    origin = load_base("text").origin
    assert "with the adapter: part of twinset, files" in origin and "kept out of its corp" in origin


def test_killed_or_stopped_it_ends_with_the_same_weights(scratch, tmp_path, monkeypatch):
    whole, model, options = scratch, tmp_path / "model", SCRATCH
    check_outcome(whole)
    monkeypatch.setattr(module, "CHECKPOINT_SECONDS", -1.0)

    def dies(self, *given, **more):
        if self.state.global_step == 4:
            raise RuntimeError
        return plain_step(self, *given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(module.Trainer, "training_step", dies)
        assert pretrain(*options).code == 1
    work = model / "training"
    assert {path.name for path in work.glob("checkpoint-*")} == {"checkpoint-3", "checkpoint-4"}
    (work / "checkpoint-4" / "trainer_state.json").write_text("{")  # killed while it was written
    stopped = pretrain(*options, *AT_ONCE, "--json")
    assert stopped.code == 0 and json.loads(stopped.out)["validation"]["steps"] == 4
    assert pretrain(*options).code == 0
    assert same(weights(whole), weights(model))
    assert [x for x in log_of(whole) if x["loss"]] == [x for x in log_of(model) if x["loss"]]
    assert pretrain(*options, *AT_ONCE, "--seed", "1", output="other").code == 0
    assert not same(weights(whole), weights(tmp_path / "other"))  # the control


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--base-model private", "was trained on private records"),
        ("--output mine", "holds other files"),
    ],
)
def test_impossible_inputs_are_refused_in_one_line(more, message):
    for name in ("private/twinset.json", "mine/thesis.txt"):
        Path(name).parent.mkdir()
        Path(name).write_text("{}")
    ended = pretrain(*SCRATCH, *more.split(), output="new")
    assert ended.code == 2 and message in ended.err and ended.err.count("\n") == 1
    assert not Path("new").exists()  # the same command may be tried again


def test_guarded_texts_are_kept_out(tmp_path, monkeypatch):
    rng, model = random.Random(5), tmp_path / "model"
    secret = " ".join(f"{rng.choice(WORDS)}{n}" for n in range(30))
    with open("corpus.jsonl", "a") as file:
        file.write("\n" + json.dumps({"text": f"Before it, {secret} and after it."}))
    (tmp_path / "private.csv").write_text(f"note\n{secret}\n")
    trained, plain = [], module.pack_blocks
    monkeypatch.setattr(module, "pack_blocks", lambda *x: trained.append(x[0]) or plain(*x))
    pretrain(*SCRATCH, "--decontaminate", "private.csv", *AT_ONCE)
    text = load_base(str(model)).tokenizer.decode(trained[0])
    assert "Before it" not in text and text.count("<|endoftext|>") > 0.9 * DOCUMENTS
    written = {p.name: p for p in model.rglob("*") if p.is_file()}
    assert written.pop("settings.json").stat().st_mode & 0o077 == 0
    digest = sha256_file(tmp_path / "private.csv").encode()
    assert not any(digest in path.read_bytes() for path in written.values())


def test_no_figure_reveals_how_much_was_guarded(tmp_path):
    """A third of the corpus is left out, and all that is counted is as if one text were."""
    texts = [json.loads(line)["text"] for line in Path("corpus.jsonl").read_text().splitlines()]
    figures = []
    for name, guarded in (("one", texts[:1]), ("many", texts[: DOCUMENTS // 3])):
        (tmp_path / "private.csv").write_text("\n".join(["note", *guarded]))
        given = ("--decontaminate", "private.csv", "--epochs", "0.4")
        assert pretrain(*SCRATCH, *given, output=name).code == 0
        facts = facts_of(tmp_path / name)
        steps = [facts["validation"][key] for key in ("tokens", "steps", "of")]
        log = [(line["step"], sorted(line)) for line in log_of(tmp_path / name)]
        card = (tmp_path / name / "README.md").read_text().splitlines()
        counts = [line for line in card if " documents, " in line or "Left out" in line]
        figures.append((facts["corpus"], steps, log, counts))
    assert figures[0] == figures[1] and figures[0][0]["documents"] == DOCUMENTS
    assert not same(weights(tmp_path / "one"), weights(tmp_path / "many"))


# -- public text from files, and what is kept out of it --------------------------------------------

REVIEWS = pd.DataFrame({"text": [f"Review {n}." for n in range(200)], "mood": ["good"] * 200})
PARAGRAPHS = [f"Paragraph {n}." for n in range(4000)]


@pytest.fixture
def folder(tmp_path):
    inside = tmp_path / "in"
    inside.mkdir()
    (inside / "novel.txt").write_text("One paragraph,\nof two lines.\n\n\n\nAnother.\n")
    with gzip.open(inside / "more.txt.gz", "wt") as file:
        file.write("Zipped.\n\nAnother.")
    REVIEWS.to_csv(inside / "table.csv.gz", index=False)
    REVIEWS.head(3).to_parquet(inside / "table.parquet")
    (inside / "picture.png").write_bytes(b"\x89PNG")
    return inside


def test_all_formats_of_a_folder_are_read_and_repeated_texts_left_out(folder):
    corpus = read_corpus([folder])
    assert {"One paragraph,\nof two lines.", "Zipped.", "Review 7."} <= set(corpus.documents)
    assert len(corpus.documents) == len(corpus.keys) == len(set(corpus.documents)) == 203
    assert corpus.repeated == 4


def test_only_a_hash_of_the_text_decides_whether_it_is_read_or_held_out(tmp_path):
    (tmp_path / "long.txt").write_text("\n\n".join(PARAGRAPHS))
    (tmp_path / "same.txt").write_text("\n\n".join([*PARAGRAPHS[::-1], "One more."]))
    plain = read_corpus([tmp_path / "long.txt"]).split()
    again = read_corpus([tmp_path / "same.txt"], prompts=["same=P:"]).split()
    assert set(plain[1]) <= {text.removeprefix("P: ") for text in again[1]}
    assert 15 < len(plain[1]) < 90 and not set(plain[0]) & set(plain[1])


LONG = " ".join(f"word{n}" for n in range(40))
LINES = [" ".join(f"verse{n}word{w}" for w in range(9)) for n in range(2)]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A table with text in two columns, and a zipped text."""
    place = tmp_path_factory.mktemp("guarded")
    bodies = ["\n\n".join(LINES), "A short and guarded note indeed."]
    table = pd.DataFrame({"n": [1, 2], "title": [None, "All right"], "body": bodies})
    table.to_csv(place / "private.csv", index=False)
    with gzip.open(place / "more.txt.gz", "wt") as file:
        file.write(f"Another.\n\n{LONG}")
    return [place / "private.csv", place / "more.txt.gz"]


@pytest.mark.parametrize(
    ("document", "is_clean"),
    [
        (f"Before, {' '.join(LONG.split()[5 : 5 + RUN]).upper()} – after.", False),
        (f"Before, {' '.join(LONG.split()[5 : 4 + RUN])} after.", True),  # one word less
        ("He said: a short and guarded note indeed!", False),
        ("All right.", True),  # too short for anyone to own
        (LINES[1], False),  # the corpus is cut where the guarded text is not
    ],
)
def test_documents_that_hold_guarded_text_are_found(guarded, document, is_clean):
    assert find_clean([document, "Nothing of it."], guarded).tolist() == [is_clean, True]
