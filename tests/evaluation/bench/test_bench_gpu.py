"""The benchmark of a GPU measures on any device; without a GPU it ends with one line."""

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import typer

from evaluation.bench import gpu, gpu_run
from evaluation.bench.gpu_page import NOISES, NOT_RUN, PEERS, WAYS, markdown
from evaluation.bench.gpu_run import Work, run_row
from evaluation.bench.runner import RESULTS
from tests.helpers.commands import run_python
from tests.helpers.pretended import pretended_gpu

FIGURES = {*WAYS, *NOISES, "trained", "GB"}


def all_positive(row: dict) -> bool:
    return all(row[name] > 0 for name in FIGURES)


@pytest.mark.parametrize(("model", "method"), [("gpt2-toy", "lora"), ("llama-toy", "full")])
def test_a_row_of_steps(model, method):
    row = gpu.measured_here(gpu.STEPS, model, method, 2, 16, 1, "cpu")
    assert set(row) == {*FIGURES, *PEERS} and all_positive(row)
    assert row["opacus-ghost"] == "not tried in autocast" or method == "lora"


@pytest.mark.parametrize("model", ["gpt2-toy", "llama-toy"])
def test_steps_are_measured_where_they_are_to_be(model, monkeypatch):
    """Other engines too: on a pretended device, which refuses to mix with the processor."""
    with pretended_gpu(monkeypatch):
        row = gpu.measured_here(gpu.STEPS, model, "lora", 2, 16, 1, "cuda")
    assert all_positive(row) and isinstance(row["opacus-ghost"], float), row


def test_a_row_of_the_sampler(monkeypatch):
    monkeypatch.setattr(gpu, "WRITTEN", {"rows": 4, "tokens": 3, "at once": 2})
    monkeypatch.setattr(gpu, "ENGINES", {"torch": "rows a second"})  # to compile takes long
    assert gpu.measured_here(gpu.ROWS, "llama-toy", 1, "cpu")["rows a second"] > 0


def test_a_whole_run_of_made_up_words():
    found = run_row("cpu", Work("llama-toy", records=60, tokens=12, batch_size=20, rows=30))
    assert set(found) == {"minutes"} and found["minutes"] > 0


def test_how_busy_a_gpu_is_is_asked_of_its_own_program(monkeypatch):
    class Watch(subprocess.Popen):
        def __init__(self, asked, stdout):
            assert asked[0] == "nvidia-smi" and "GPU-a" in asked
            super().__init__(["printf", "80\\n[N/A]\\n90\\n"], stdout=stdout)
            self.communicate()

    monkeypatch.setattr(gpu_run, "device_of", lambda asked: torch.device("meta"))
    monkeypatch.setattr(gpu_run, "unique_name", lambda place: "GPU-a")
    monkeypatch.setattr(gpu_run, "subprocess", SimpleNamespace(Popen=Watch))
    monkeypatch.setattr(gpu_run.shutil, "which", lambda program: program)
    with gpu_run._watched("cuda") as busy:
        assert busy == []
    assert busy == [80, 90]


def found() -> dict:
    step = dict.fromkeys((*FIGURES, *PEERS), 0.12345) | {"noise": 0.0012345}
    return {
        "device": "some GPU",
        "failed tests": ["FAILED tests/a.py::b"],
        "run": {"minutes": 4.56, "busy": 0.75},
        "steps": [
            {"case": "a"} | step | {"fastdp": "not installed"},
            {"case": "b"} | step | {"ours": 0.2469},
            {"case": "gpt2-1558m full 32 512", "failed": "out of memory"},
        ],
        "rows": [{"case": "a", "rows a second": 4.0}],
    }


def test_each_goal_stands_beside_what_was_measured_and_what_failed_is_a_row():
    lines = markdown(found())
    assert "≤ 1.15× | 1.00× to 2.00× |" in lines and "≤ 3 % of a step | 0.5% to 1.0% |" in lines
    assert "fits | gpt2-1558m full 32 512: no |" in lines
    assert "rows 10000): ≤ 5 | 4.6 |" in lines and "≥ 80 % | 75% |" in lines
    assert "| 0.1235 | not installed | " in lines
    assert "| gpt2-1558m full 32 512 | out of memory |" in lines
    assert "- FAILED tests/a.py::b" in lines and NOT_RUN not in lines


def test_each_row_is_written_as_it_comes_and_a_failed_test_ends_with_one(monkeypatch, tmp_path):
    output, rows = tmp_path / "gpu.json", []

    def asked(what, *case):
        rows.append(len(output.read_text("utf-8")))
        return {"case": str(case[0]), "failed": "as planted"}

    tests = {"tests": "1 failed", "failed tests": ["FAILED tests/a.py::b"]}
    monkeypatch.setattr(gpu, "_tests", lambda: tests)
    monkeypatch.setattr(gpu, "_asked", asked)
    with pytest.raises(typer.Exit) as ended:
        gpu.bench("gpt2-toy,llama-toy", "cpu", 1, output)
    assert ended.value.exit_code == 1
    assert len(rows) == 1 + 2 * (4 + 1) and rows == sorted(set(rows))
    assert "as planted" in output.with_suffix(".md").read_text("utf-8")


def test_goals_that_were_not_measured_say_so():
    lines = markdown(found() | {"run": {"failed": "killed"}, "steps": []}).splitlines()
    goals = [line for line in lines if "≤" in line or "≥" in line or "fits" in line]
    assert [line.split(" | ")[1] for line in goals] == [*[f"{NOT_RUN} |"] * 4, *["killed |"] * 2]
    page, rows = Path(RESULTS, "gpu.md"), Path(RESULTS, "gpu.json")
    assert rows.exists() or page.read_text("utf-8") == markdown({})
    assert markdown({}).count(NOT_RUN) == 6


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_ends_with_one_line(tmp_path):
    done = run_python("-m", "evaluation.bench.gpu", "--output", str(tmp_path / "gpu.json"))
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "no GPU" in done.stderr
    assert list(tmp_path.iterdir()) == []
