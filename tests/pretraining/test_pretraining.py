import json
import random
import shlex
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import cli
from tests.helpers.commands import ROOT, run_python, run_twinset
from twinset.files.atomic import sha256_file
from twinset.models.base_model import load_base
from twinset.pretraining import training
from twinset.pretraining.config import PretrainConfig
from twinset.pretraining.corpus import read_corpus
from twinset.pretraining.learning_curve import read_log
from twinset.pretraining.optimizers import optimizers
from twinset.pretraining.packing import read_tokens

WORDS = "the a an old new red blue pan film book works fails well badly and but it was is".split()
SMALL = (
    "--vocabulary", "300", "--layers", "2", "--width", "32", "--heads", "2", "--context", "32",
    "--batch-size", "8", "--micro-batch", "4", "--epochs", "1", "--precision", "float32", "--quiet",
)  # fmt: skip


DOCUMENTS = 100


def write_corpus(folder: Path) -> None:
    rng = random.Random(4)  # three of its texts are held out
    texts = (
        " ".join(rng.choice(WORDS) for _ in range(rng.randrange(20, 60))) + "."
        for _ in range(DOCUMENTS)
    )
    lines = [json.dumps({"text": text, "kind": "line"}) for text in texts]
    (folder / "corpus.jsonl").write_text("\n".join(lines))


@pytest.fixture(autouse=True)
def corpus(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The folder of a model that was trained without a break; its tests only read it."""
    folder = tmp_path_factory.mktemp("whole")
    write_corpus(folder)
    given = ("pretrain", str(folder / "corpus.jsonl"), "--output", str(folder / "model"), *SMALL)
    assert cli.main([*given]) == 0
    return folder / "model"


AT_ONCE = ("--max-minutes", "0")  # it ends after one step


def pretrain(capsys, *more, output="model"):
    return run_twinset(capsys, "pretrain", "corpus.jsonl", "--output", output, *SMALL, *more)


def weights(folder):
    return load_file(folder / "model.safetensors")


def same(one, other):
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def largest_difference(one: Path, other: Path) -> float:
    left, right = weights(one), weights(other)
    return max(float((left[name] - right[name]).abs().max()) for name in left)


def test_a_model_is_made_that_load_base_loads(whole):
    base = load_base(str(whole))
    assert base.model.config.n_layer == 2 and base.model.config.n_positions == 32
    assert base.tokenizer.decode(base.tokenizer.encode("an old pan – äöü")) == "an old pan – äöü"
    assert {t.dtype for t in weights(whole).values()} == {torch.float16}
    bits = [line["bits"] for line in read_log(whole / "log.jsonl") if line["bits"] is not None]
    assert bits[-1] < bits[0] - 0.3  # the model improves
    assert not (whole / "training").exists()
    card = (whole / "README.md").read_text()
    assert "corpus.jsonl" in card and "without differential privacy" in card


def test_one_process_trains_in_one_precision_after_another(tmp_path, capsys):
    """Accelerate keeps the first precision of a process and refuses any other."""
    for precision in ("bfloat16", "float32", "auto"):
        ended = pretrain(capsys, "--precision", precision, *AT_ONCE, output=precision)
        assert ended.code == 0, ended.err
    assert not same(weights(tmp_path / "bfloat16"), weights(tmp_path / "float32"))


def test_killed_and_resumed_it_ends_with_the_same_weights(whole, tmp_path, capsys, dies_at):
    for victim in (3, 4, 9):
        with dies_at(victim):
            assert pretrain(capsys).code == 1
        checkpoints = tmp_path / "model" / "training" / "checkpoints"
        kept = sorted(int(path.name.removeprefix("step-")) for path in checkpoints.iterdir())
        assert kept == [victim - 1, victim]
    assert pretrain(capsys).code == 0
    assert same(weights(whole), weights(tmp_path / "model"))


def test_another_seed_makes_other_weights(whole, tmp_path, capsys):
    """The control of the comparisons with a model that was trained without a break."""
    assert pretrain(capsys, "--seed", "1").code == 0
    assert not same(weights(whole), weights(tmp_path / "model"))


def test_stopped_by_the_clock_it_says_so_and_can_be_resumed(whole, tmp_path, capsys):
    stopped = pretrain(capsys, *AT_ONCE)
    assert stopped.code == 0 and "the same command resumes" in stopped.out
    load_base(str(tmp_path / "model"))  # it can be used meanwhile
    assert pretrain(capsys).code == 0
    assert same(weights(whole), weights(tmp_path / "model"))


def test_the_card_describes_the_weights_that_were_written(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(training, "VALIDATIONS", 1)  # none before the end
    stopped = pretrain(capsys, *AT_ONCE, "--json")
    assert stopped.code == 0, stopped.err
    stated = json.loads(stopped.out)["validation"]
    assert stated["steps"] == 1 and 2.5 < stated["bits_per_byte"] < 3.5
    (tmp_path / "model" / "log.jsonl").open("a").write('{"step": 7, "los')  # killed in a line
    assert pretrain(capsys).code == 0


@pytest.mark.slow
def test_blocks_at_once_change_nothing_but_rounding(whole, tmp_path, capsys):
    pretrain(capsys, "--micro-batch", "3")
    assert largest_difference(whole, tmp_path / "model") < 2e-3


def test_a_base_model_is_trained_further(tiny_base, tmp_path, capsys):
    ended = pretrain(capsys, "--base-model", str(tiny_base), *AT_ONCE)
    assert ended.code == 0, ended.err
    base, more = load_base(str(tiny_base)), load_base(str(tmp_path / "model"))
    assert more.tokenizer.get_vocab() == base.tokenizer.get_vocab()
    assert more.model.config.n_positions == base.model.config.n_positions
    assert not torch.equal(more.model.get_input_embeddings().weight,
                           base.model.get_input_embeddings().weight)  # fmt: skip


def test_a_model_remembers_the_stages_before(tmp_path, capsys):
    (tmp_path / "private.txt").write_text("a text that must not be trained on\n")
    first = pretrain(capsys, "--decontaminate", "private.txt", *AT_ONCE, output="first")
    assert first.code == 0
    further = ("--base-model", str(tmp_path / "first"), "--seed", "1")
    assert pretrain(capsys, *further, *AT_ONCE, output="second").code == 0
    facts = json.loads((tmp_path / "second" / "pretraining.json").read_text())
    assert facts["before"]["name"] == "first" and facts["decontaminated"] == []
    assert str(tmp_path) not in json.dumps(facts)
    assert facts["origin"] == "trained further from first"
    card = (tmp_path / "second" / "README.md").read_text()
    assert "## Before that: first, a GPT-2 from scratch" in card and "private.txt" in card
    assert "which no ε covers" in load_base(str(tmp_path / "second")).origin  # still so


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--epochs", "2"), "was begun with another config"),
        (("--width", "33"), "cannot be shared"),
        (("--vocabulary", "100"), "--vocabulary"),
        (("--text", "words"), "no column 'words'"),
        (("--decontaminate", "absent.csv"), "absent.csv"),
        (("--licences", "corpus.jsonl"), "no TOML"),
        (("--context", "100000"), "too small for blocks"),
        (("--epochs", "0"), "--epochs"),
        (("--precision", "float8"), "--precision"),
        (("--prompt", "Write:"), "names no {column}"),
        (("--learning-rate", "1e30"), "--learning-rate"),
        (("--share", "corpus"), "write START=NUMBER"),
        (("--share", "corpus=0.9"), "was begun with another share"),
        (("--prompt", "corpus=Write:"), "was begun with another prompt"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(more, message, capsys):
    pretrain(capsys, *AT_ONCE)
    output = "model" if "was begun" in message else "new"
    ended = pretrain(capsys, *more, output=output)
    assert ended.code == 2 and message in ended.err and ended.err.count("\n") == 1
    assert not Path("new").exists()  # the same command may be tried again


def test_training_that_diverges_is_reported_in_one_line(capsys, monkeypatch):
    monkeypatch.setattr(training._Run, "_learn", lambda *blocks, last: float("nan"))
    ended = pretrain(capsys)
    assert ended.code == 2 and "diverged at step 1" in ended.err and ended.err.count("\n") == 1
    assert not Path("model").exists()


def test_a_finished_model_and_other_folders_are_left_alone(whole, tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    assert "holds other files" in pretrain(capsys, output="mine").err
    shutil.copytree(whole, "model")
    assert "is a finished model" in pretrain(capsys).err
    assert same(weights(whole), weights(tmp_path / "model"))


def test_guarded_texts_are_kept_out(tmp_path, capsys):
    rng, model = random.Random(5), tmp_path / "model"
    secret = " ".join(f"{rng.choice(WORDS)}{n}" for n in range(30))
    with open("corpus.jsonl", "a") as file:
        file.write("\n" + json.dumps({"text": f"Before it, {secret} and after it."}))
    (tmp_path / "private.csv").write_text(f"note\n{secret}\n")
    ended = pretrain(capsys, "--decontaminate", "private.csv", *AT_ONCE, "--json")
    tokens = read_tokens(model / "training" / "training.tokens", 300)
    trained = load_base(str(model)).tokenizer.decode(tokens)
    assert "Before it" not in trained and trained.count("<|endoftext|>") > 0.9 * DOCUMENTS
    written = {p.name: p for p in model.rglob("*") if p.is_file()}
    assert written.pop("settings.json").stat().st_mode & 0o077 == 0
    digest = sha256_file(tmp_path / "private.csv").encode()
    assert not any(digest in path.read_bytes() for path in written.values())
    assert "guarded" not in json.loads(ended.out)["corpus"]["dropped"]
    assert "which no ε covers" in load_base(str(model)).origin


def figures(folder):
    """Return all numbers that a model's folder states, times and losses left out."""
    facts = json.loads((folder / "pretraining.json").read_text())
    log = [(line["step"], line["steps"], line["tokens"]) for line in read_log(folder / "log.jsonl")]
    lines = (folder / "README.md").read_text().splitlines()
    card = [line for line in lines if " documents, " in line or "Left out" in line]
    steps = [facts["validation"][name] for name in ("tokens", "steps", "of")]
    return facts["corpus"], steps, log, card


def test_no_figure_reveals_how_much_was_guarded(tmp_path, capsys):
    """A third of the corpus is left out, and all that is counted is as if one text were."""
    texts = [json.loads(line)["text"] for line in Path("corpus.jsonl").read_text().splitlines()]
    for name, guarded in (("one", texts[:1]), ("many", texts[: DOCUMENTS // 3])):
        (tmp_path / "private.csv").write_text("\n".join(["note", *guarded]))
        ended = pretrain(capsys, "--decontaminate", "private.csv", output=name)
        assert ended.code == 0, ended.err
    one, many = (figures(tmp_path / name) for name in ("one", "many"))
    assert one == many and one[0]["documents"] == DOCUMENTS
    assert not same(weights(tmp_path / "one"), weights(tmp_path / "many"))


def test_what_is_measured_depends_on_the_model_and_public_text_alone():
    corpus = read_corpus([Path("corpus.jsonl")])
    before, heldout = corpus.split()
    corpus.guarded = frozenset(corpus.keys[: DOCUMENTS // 3])
    assert corpus.split()[1] == heldout
    assert sorted(corpus.split()[0] + corpus.left_out()) == sorted(before)


COUNTED = """
import cli
from accelerate import PartialState
code = cli.main()
print("processes:", PartialState().num_processes)
raise SystemExit(code)
"""


@pytest.mark.slow
def test_two_processes_take_the_same_steps_as_one(whole, tmp_path):
    launch = "-m torch.distributed.run --nproc_per_node 2 --master_port 29511 counted.py".split()
    (tmp_path / "counted.py").write_text(COUNTED)
    done = run_python(*launch, "pretrain", "corpus.jsonl", "--output", "two", *SMALL)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("bits per byte") == 1 and "processes: 2" in done.stdout
    assert largest_difference(whole, tmp_path / "two") < 2e-3


@pytest.mark.slow
def test_killed_outright_it_can_be_resumed(whole, tmp_path):
    """SIGKILL at random moments, in reading, learning and writing; the weights are the same."""
    command = (ROOT / "cli.py", "pretrain", "corpus.jsonl", "--output", "killed", *SMALL)
    rng = random.Random(0)
    for _ in range(6):
        with suppress(subprocess.TimeoutExpired):  # it is killed then
            run_python(*command, timeout=rng.uniform(3, 15))
    assert run_python(*command).returncode in (0, 2)  # 2: finished before
    assert same(weights(whole), weights(tmp_path / "killed"))


def test_each_parameter_has_one_optimiser_and_tables_of_tokens_are_not_orthogonalised(tiny_base):
    model = load_base(str(tiny_base)).model
    muon, adamw = optimizers(model, 0.1)
    taken = [[p for group in one.param_groups for p in group["params"]] for one in (muon, adamw)]
    names = {id(p): name for name, p in model.named_parameters()}  # a tied table once
    assert sorted(names[id(p)] for some in taken for p in some) == sorted(names.values())
    assert {names[id(p)].rpartition(".h.")[2][2:] for p in taken[0]} == {
        "attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight",
    }  # fmt: skip
    plain = [
        p for group in adamw.param_groups if not group["weight_decay"] for p in group["params"]
    ]
    assert {p.ndim for p in plain} == {1}


def test_the_learning_rate_rises_and_falls():
    config = PretrainConfig(warmup=0.1)
    shape = [training.rate(step, 100, config.warmup) for step in range(100)]
    assert shape[9] == 1.0 and np.argmax(shape) in (9, 10)
    assert shape[0] == 0.1 and shape[-1] == pytest.approx(training.LOWEST, abs=1e-3)


CURVE = Path(__file__).parents[2] / "evaluation" / "examples" / "brown.pretraining.json"
BROWN = Path(__file__).parents[3] / "shared" / "data" / "brown" / "brown.csv.gz"
NEAR = 0.02  # bits per byte; other machines round otherwise


@pytest.mark.slow
@pytest.mark.skipif(not BROWN.exists(), reason="needs the shared data")
def test_a_documented_curve_is_reproduced(tmp_path):
    known = json.loads(CURVE.read_text())
    command = shlex.split(known["command"])[1:]
    command[command.index("brown.csv.gz")] = str(BROWN)
    command[command.index("brown")] = str(tmp_path / "brown")
    assert cli.main([*command, "--quiet"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "brown/log.jsonl").read_text().splitlines()]
    found = {line["tokens"]: line["bits"] for line in lines if line["bits"]}
    for point in known["curve"]:
        assert abs(found[point["tokens"]] - point["bits_per_byte"]) < NEAR, point
