"""The benchmark of a GPU measures on any device; without a GPU it ends with one line."""

import pytest
import torch

from evaluation.bench import gpu
from tests.helpers.commands import run_python


@pytest.mark.parametrize(("model", "method"), [("gpt2-toy", "lora"), ("llama-toy", "full")])
def test_a_row_of_steps(model, method):
    row = gpu.measured_here(gpu.STEPS, model, method, 2, 16, 1, "cpu")
    assert set(row) == {*gpu.WAYS, *gpu.NOISES, "trained", "GB"}
    assert all(value > 0 for value in row.values())


def test_a_row_of_the_sampler(monkeypatch):
    monkeypatch.setattr(gpu, "WRITTEN", {"rows": 4, "tokens": 3, "at once": 2})
    assert gpu.measured_here(gpu.ROWS, "llama-toy", 1, "cpu")["rows a second"] > 0


def test_what_failed_is_a_row_of_the_page():
    step = dict.fromkeys((*gpu.WAYS, *gpu.NOISES, "trained", "GB"), 0.12345)
    rows = [{"case": "a", "rows a second": 4.0}]
    failed = {"case": "b", "failed": "out of memory"}
    lines = gpu.markdown(
        {"device": "some GPU", "steps": [{"case": "a"} | step, failed], "rows": rows}
    )
    assert "| a |" in lines and "0.1235 |" in lines and "| b | out of memory |" in lines


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_ends_with_one_line(tmp_path):
    done = run_python("-m", "evaluation.bench.gpu", "--output", str(tmp_path / "gpu.json"))
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "no GPU" in done.stderr
    assert list(tmp_path.iterdir()) == []
