"""Which device an option names, and that one which is not there is refused in one line."""

from pathlib import Path

import pytest
import torch

from tests.helpers.commands import arguments, run_twinset
from twinset.config import SpeedConfig
from twinset.errors import InputError
from twinset.models import device
from twinset.models.device import check_device, device_of


@pytest.fixture
def two_gpus(monkeypatch):
    for name in (device.LOCAL_RANK, device.LOCAL_SIZE, *device.REPEATABLE):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    monkeypatch.setattr(device, "gpus", lambda: 2)


@pytest.mark.parametrize(
    ("asked", "rank", "named"),
    [
        ("auto", None, "cuda:0"),
        ("cuda", None, "cuda:0"),
        ("cuda", "1", "cuda:1"),
        ("auto", "1", "cuda:1"),
        ("cuda:1", None, "cuda:1"),
        ("cpu", "1", "cpu"),
    ],
)
def test_each_process_has_a_gpu_of_its_own(two_gpus, monkeypatch, asked, rank, named):
    if rank is not None:
        monkeypatch.setenv(device.LOCAL_RANK, rank)
    assert device_of(asked) == torch.device(named)


def test_a_gpu_adds_in_one_order_unless_the_user_says_otherwise(two_gpus, monkeypatch):
    (name,) = device.REPEATABLE
    device_of("cuda")
    assert device.os.environ[name] == device.REPEATABLE[name]
    monkeypatch.setenv(name, ":16:8")
    device_of("cuda")
    assert device.os.environ[name] == ":16:8"


def test_without_a_gpu_auto_is_the_processor(monkeypatch):
    monkeypatch.setattr(device, "gpus", lambda: 0)
    assert device_of() == torch.device("cpu")
    with pytest.raises(InputError, match="no GPU that PyTorch .* can use; take `device=cpu`"):
        device_of("cuda")


@pytest.mark.parametrize(
    ("asked", "processes", "message"),
    [
        ("cuda:2", 1, "no GPU number 2, counted from 0"),
        ("mps", 1, "no float64"),
        ("cuda:1", 2, "is one GPU for 2 processes"),
        ("auto", 3, "3 processes and 2 GPUs"),
    ],
)
def test_what_is_not_there_for_each_process_is_refused(two_gpus, asked, processes, message):
    with pytest.raises(InputError, match=message):
        check_device(asked, processes)


@pytest.mark.parametrize(("asked", "processes"), [("cpu", 9), ("auto", 2), ("cuda:1", 1)])
def test_what_is_there_is_taken(two_gpus, asked, processes):
    check_device(asked, processes)


def test_a_launcher_says_how_many_processes_there_are_here(two_gpus, monkeypatch):
    monkeypatch.setenv(device.LOCAL_SIZE, "2")
    check_device("cuda", 16)  # on eight machines, say
    monkeypatch.setenv(device.LOCAL_SIZE, "3")
    with pytest.raises(InputError, match="3 processes"):
        check_device("cuda", 1)


@pytest.mark.parametrize("name", ["", "gpu", "cuda:", "cuda:-1", "cuda:1000", "cpu:0", "CUDA"])
def test_other_names_are_no_devices(name):
    with pytest.raises(InputError, match="is none of auto, cpu, cuda, cuda:N, mps"):
        SpeedConfig(device=name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", ["cuda", "cuda:1", "mps", "tpu"])
def test_the_command_line_ends_with_one_line_and_writes_nothing(
    tiny_base, good_table, capsys, name
):
    refused = run_twinset(capsys, *arguments(tiny_base, ("t.csv", "--run", "r")), "--device", name)
    assert refused.code == 2 and refused.err.count("\n") == 1 and "--device" in refused.err
    assert not Path("r").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    "command",
    [
        ("evaluate", "r", "--train", "t.csv", "--test", "t.csv"),
        ("audit", "r", "--members", "t.csv", "--non-members", "t.csv"),
        ("audit", "mechanism"),
        ("demo", "--run", "r"),
    ],
    ids=" ".join,
)
def test_so_do_the_commands_that_measure(good_table, capsys, command):
    refused = run_twinset(capsys, *command, "--device", "cuda")
    assert refused.code == 2 and refused.err.count("\n") == 1 and "--device cuda" in refused.err
    assert not Path("r").exists()
