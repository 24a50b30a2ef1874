"""Which device an option names."""

import os

import pytest
import torch

from tests.helpers.refusals import refusal
from twinset.models import device
from twinset.models.device import check_device, device_of


@pytest.fixture
def two_gpus(monkeypatch):
    for name in (device.LOCAL_RANK, device.LOCAL_SIZE, *device.LIBRARIES):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    monkeypatch.setattr(device, "gpus", lambda: 2)


@pytest.mark.parametrize(
    ("asked", "rank", "named"),
    [("auto", None, "cuda:0"), ("cuda", "1", "cuda:1"), ("cuda:1", None, "cuda:1")],
)
def test_each_process_has_a_gpu_of_its_own(two_gpus, monkeypatch, asked, rank, named):
    if rank is not None:
        monkeypatch.setenv(device.LOCAL_RANK, rank)
    assert device_of(asked) == torch.device(named)


@pytest.mark.parametrize("name", device.LIBRARIES)
def test_libraries_are_set_up_unless_the_user_has_done_it(two_gpus, monkeypatch, name):
    device_of("cuda")
    assert os.environ[name] == device.LIBRARIES[name]
    monkeypatch.setenv(name, "16")
    device_of("cuda")
    assert os.environ[name] == "16"


def test_without_a_gpu_auto_is_the_processor(monkeypatch):
    monkeypatch.setattr(device, "gpus", lambda: 0)
    assert device_of() == torch.device("cpu")
    said = refusal(device_of, "cuda")
    assert "no GPU that PyTorch" in said and "can use. Take `device=cpu`" in said


@pytest.mark.parametrize(
    ("asked", "processes", "launched", "message"),
    [
        ("cuda:2", 1, None, "no GPU number 2, counted from 0"),
        ("mps", 1, None, "no float64"),
        ("cuda:1", 2, None, "is one GPU for 2 processes"),
        ("auto", 3, None, "3 processes and 2 GPUs"),
        ("cpu", 9, None, None),
        ("cuda", 16, "2", None),  # on eight machines, say
    ],
)
def test_a_device_that_some_process_lacks_is_refused(
    two_gpus, monkeypatch, asked, processes, launched, message
):
    if launched:
        monkeypatch.setenv(device.LOCAL_SIZE, launched)
    if message is None:
        check_device(asked, processes)
    else:
        assert message in refusal(check_device, asked, processes)
