"""Fewer threads beside other work, and as many as before afterwards."""

import os

import psutil
import pytest
import torch
import torch.distributed as dist

from twinset.models.device import on_free_cores


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
