"""Tiny models made on the spot: one of each family, so that no test needs a download."""

import gc
import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"  # of several workers, each would take all cores
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import shutil
from pathlib import Path

import pytest

import cli
from tests.helpers.commands import arguments, good_table_in
from tests.helpers.models import LLAMA, tiny_model
from twinset.privacy.accounting.accountant import epsilon, prv_epsilon
from twinset.privacy.mechanism.gate import Gate

gc.disable()  # until all tests are collected: nothing that they import is garbage

collect_ignore_glob = ["policies/added/*"]  # importing an added policy registers it for all tests

SENTENCES = (
    "Write a positive review about a film: The story was great and I loved every minute of it.",
    "Write a negative review about a book: The plot was dull, and I could not finish it.",
    "Write a fresh review about a product: It works well, it is cheap and it looks good.",
    "Write a rotten review about a kitchen: The pan broke after two days; do not buy this one!",
)
CONTEXT = 128


def opened(noisy):
    """What a mechanism releases, with no ledger to record it in."""
    return Gate(lambda event: None, is_private=False).release(noisy)


def make_tokenizer(eos: str = "<|endoftext|>"):
    """Byte-level BPE without control bytes: a random model would write them in most rows."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    control = {chr(256 + byte) for byte in range(32) if chr(byte) not in "\t\n\r"} | {chr(289)}
    alphabet = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - control)
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=384,
        min_frequency=2,
        special_tokens=[eos],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    bpe.train_from_iterator(SENTENCES, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=eos, bos_token=eos, unk_token=eos
    )


def save_tiny(folder: Path, config: str, **sizes) -> Path:
    """Save a random model of a family, and its tokenizer."""
    import torch  # not at the top: workers start when this file is read

    tokenizer = make_tokenizer()
    end = tokenizer.eos_token_id
    sizes |= {"hidden_size": 32, "max_position_embeddings": CONTEXT}
    torch.manual_seed(0)
    model = tiny_model(
        config, vocab_size=len(tokenizer), bos_token_id=end, eos_token_id=end, **sizes
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory) -> Path:
    """Folder of a random two-layer GPT-2 (tied embeddings, Conv1D) and its tokenizer."""
    return save_tiny(tmp_path_factory.mktemp("tiny-gpt2"), "GPT2Config")


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory) -> Path:
    """Folder of a random two-layer Llama (tied embeddings, grouped-query attention)."""
    sizes = LLAMA | {"intermediate_size": 48, "tie_word_embeddings": True}
    return save_tiny(tmp_path_factory.mktemp("tiny-llama"), "LlamaConfig", **sizes)


@pytest.fixture(scope="session")
def tokenizer(tiny_base):
    """The tokenizer of the tiny GPT-2; its tests only read it."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_base)


@pytest.fixture(scope="session")
def tiny_encoder(tiny_base, tmp_path_factory) -> Path:
    """Folder of a random two-layer BERT with the tiny base's tokenizer."""
    import torch
    from transformers import AutoTokenizer

    folder, own = tmp_path_factory.mktemp("encoder"), AutoTokenizer.from_pretrained(tiny_base)
    own.pad_token = own.eos_token
    own.save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 160}
    sizes |= {"vocab_size": len(own), "pad_token_id": own.pad_token_id}
    tiny_model("BertConfig", "AutoModelForSequenceClassification", **sizes).save_pretrained(folder)
    return folder


@pytest.fixture
def model_copy(tiny_base, tmp_path) -> Path:
    """A copy of the tiny GPT-2's folder that a test may spoil."""
    return shutil.copytree(tiny_base, tmp_path / "model")


@pytest.fixture
def good_table(tmp_path, monkeypatch) -> Path:
    """A working folder with one good table, t.csv."""
    return good_table_in(tmp_path, monkeypatch)


@pytest.fixture(scope="session")
def tiny_run(tiny_base, tmp_path_factory) -> Path:
    """A folder with the good table, a finished run `r` and its published `twin.csv`.

    It is made once. Tests only read it, and change copies.
    """
    with pytest.MonkeyPatch.context() as patch:
        place = good_table_in(tmp_path_factory.mktemp("tiny-run"), patch)
        given = ("t.csv", "--run", "r", "--rows", "6", "--output", "twin.csv")
        assert cli.main([str(word) for word in arguments(tiny_base, given)]) == 0
    return place


@pytest.fixture(scope="session", autouse=True)
def cheap_runs():
    """One accountant: the second takes as long as all the rest. `two_accountants` has both.

    Fewer rows of the base model find a tilt. How good that is makes no difference to a tiny run.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("twinset.release.verify.prv_epsilon", epsilon)
        patch.setattr("twinset.sampling.tilt_fitting.REFERENCE_ROWS", 12)
        patch.setattr("twinset.sampling.tilt_fitting.WEIGHT_ROWS", 8)
        yield


@pytest.fixture
def two_accountants(monkeypatch):
    """Have a second accountant confirm ε, as users have it."""
    monkeypatch.setattr("twinset.release.verify.prv_epsilon", prv_epsilon)


def pytest_collection_finish() -> None:
    """Compute in one thread. Let no run look for garbage in what was imported: it takes half."""
    import torch

    torch.set_num_threads(1)
    gc.freeze()
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a GPU where there is none."""
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a GPU")
