"""Which device an option names, and how many threads are left beside other work."""

import os
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from tests.helpers.commands import arguments, run_twinset
from twinset.config import SpeedConfig
from twinset.errors import InputError
from twinset.models import device
from twinset.models.device import check_device, device_of, on_free_cores


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


@pytest.fixture
def four_threads():
    own = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(own)


def busy(monkeypatch, *percent, usable=None):
    usable = range(len(percent)) if usable is None else usable
    monkeypatch.setattr(psutil, "cpu_percent", lambda seconds, percpu: [*percent])
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {*usable}, raising=False)


@pytest.mark.parametrize(
    ("percent", "threads"),
    [
        ((0, 3, 1, 10), 4),
        ((100, 3, 1, 10), 3),
        ((25, 30, 20, 25), 3),  # one core's worth, wherever it is done
        ((100, 98, 100, 95), 1),
        ((0, 0, 100, 100, 0, 0), 4),  # there are more cores than threads
    ],
)
def test_there_are_as_many_threads_as_free_cores(four_threads, monkeypatch, percent, threads):
    busy(monkeypatch, *percent)
    said = []
    with on_free_cores(said.append) as found:
        assert (found, torch.get_num_threads()) == (threads, threads)
    assert torch.get_num_threads() == 4
    assert [f"{threads} of 4 threads" in line for line in said] == [True] * (threads < 4)


def test_cores_that_the_process_may_not_use_do_not_count(four_threads, monkeypatch):
    busy(monkeypatch, 100, 100, 0, 0, 0, 0, usable=range(4))
    with on_free_cores() as threads:
        assert threads == 2


def test_the_number_is_as_before_where_the_block_fails(four_threads, monkeypatch):
    busy(monkeypatch, 100, 100, 100, 0)
    with pytest.raises(ZeroDivisionError), on_free_cores():
        raise ZeroDivisionError
    assert torch.get_num_threads() == 4


@pytest.mark.parametrize("alone", [True, False])
def test_processes_that_share_the_cores_do_not_take_each_other_for_other_work(
    four_threads, monkeypatch, alone
):
    busy(monkeypatch, 100, 100, 100, 0)
    monkeypatch.setattr(dist, "is_initialized", lambda: not alone)
    with on_free_cores() as threads:
        assert threads == (1 if alone else 4)
