"""Which device an option names, and how many threads are left beside other work."""

import os
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from tests.helpers.commands import arguments, run_twinset
from tests.helpers.refusals import refusal
from twinset.config import SpeedConfig
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
    assert os.environ[name] == device.REPEATABLE[name]
    monkeypatch.setenv(name, ":16:8")
    device_of("cuda")
    assert os.environ[name] == ":16:8"


def test_without_a_gpu_auto_is_the_processor(monkeypatch):
    monkeypatch.setattr(device, "gpus", lambda: 0)
    assert device_of() == torch.device("cpu")
    said = refusal(device_of, "cuda")
    assert "no GPU that PyTorch" in said and "can use; take `device=cpu`" in said


@pytest.mark.parametrize(
    ("asked", "processes", "launched", "message"),
    [
        ("cuda:2", 1, None, "no GPU number 2, counted from 0"),
        ("mps", 1, None, "no float64"),
        ("cuda:1", 2, None, "is one GPU for 2 processes"),
        ("auto", 3, None, "3 processes and 2 GPUs"),
        ("cuda", 1, "3", "3 processes"),
        ("cpu", 9, None, None),
        ("auto", 2, None, None),
        ("cuda:1", 1, None, None),
        ("cuda", 16, "2", None),  # on eight machines, say
    ],
)
def test_what_is_not_there_for_each_process_is_refused(
    two_gpus, monkeypatch, asked, processes, launched, message
):
    if launched:
        monkeypatch.setenv(device.LOCAL_SIZE, launched)
    if message is None:
        check_device(asked, processes)
    else:
        assert message in refusal(check_device, asked, processes)


@pytest.mark.parametrize("name", ["", "gpu", "cuda:", "cuda:-1", "cuda:1000", "cpu:0", "CUDA"])
def test_other_names_are_no_devices(name):
    said = refusal(lambda: SpeedConfig(device=name))
    assert "is none of auto, cpu, cuda, cuda:N, mps" in said


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    "command",
    [
        "generate --device cuda:1",
        "generate --device mps",
        "generate --device tpu",
        "evaluate r --train t.csv --test t.csv --device cuda",
        "audit r --members t.csv --non-members t.csv --device cuda",
        "audit mechanism --device cuda",
        "demo --run r --device cuda",
    ],
)
def test_each_command_ends_with_one_line_and_writes_nothing(tiny_base, good_table, capsys, command):
    first, *rest = command.split()
    given = [first, *rest]
    if first == "generate":
        given = [*arguments(tiny_base, ("t.csv", "--run", "r")), *rest]
    refused = run_twinset(capsys, *given)
    assert refused.code == 2 and refused.err.count("\n") == 1 and "--device" in refused.err
    assert not Path("r").exists()


@pytest.fixture
def four_threads():
    own = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    assert torch.get_num_threads() == 4  # as before
    torch.set_num_threads(own)


def busy(monkeypatch, *percent, usable=None):
    usable = range(len(percent)) if usable is None else usable
    monkeypatch.setattr(psutil, "cpu_percent", lambda seconds, percpu: [*percent])
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {*usable}, raising=False)
    monkeypatch.setattr(device, "BETWEEN", 0)


@pytest.mark.parametrize(
    ("percent", "usable", "threads"),
    [
        ((0, 3, 1, 10), None, 4),
        ((100, 3, 1, 10), None, 3),
        ((25, 30, 20, 25), None, 3),  # one core's worth, wherever it is done
        ((100, 98, 100, 95), None, 1),
        ((0, 0, 100, 100, 0, 0), None, 4),  # there are more cores than threads
        ((100, 100, 0, 0, 0, 0), range(4), 2),  # the process may not use the others
    ],
)
def test_there_are_as_many_threads_as_free_cores(
    four_threads, monkeypatch, percent, usable, threads
):
    busy(monkeypatch, *percent, usable=usable)
    said = []
    with on_free_cores(said.append) as found:
        assert (found, torch.get_num_threads()) == (threads, threads)
    assert [f"{threads} of 4 threads" in line for line in said] == [True] * (threads < 4)


def test_the_number_is_as_before_where_the_block_fails(four_threads, monkeypatch):
    busy(monkeypatch, 100, 100, 100, 0)
    with pytest.raises(ZeroDivisionError), on_free_cores():
        raise ZeroDivisionError


def test_processes_that_share_the_cores_do_not_take_each_other_for_other_work(
    four_threads, monkeypatch
):
    busy(monkeypatch, 100, 100, 100, 0)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    with on_free_cores() as threads:
        assert threads == 4
