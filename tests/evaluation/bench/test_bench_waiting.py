"""The benchmark of waiting threads: its processes are told how to wait, and others work beside."""

import subprocess

from evaluation.bench import waiting as bench


def test_each_way_has_its_threads_and_its_company(monkeypatch):
    asked, begun = [], []

    def ask(name, *arguments, **environment):
        asked.append((arguments, environment))
        assert all(process.poll() is None for process in begun[-2:])  # at work
        return 1.0

    plain = subprocess.Popen

    def start(*command):
        begun.append(plain(*command))
        return begun[-1]

    monkeypatch.setattr(bench.runner, "ask", ask)
    monkeypatch.setattr(bench.subprocess, "Popen", start)
    assert bench._measured("gpt2-toy", 2, 2, bench.WAITING, 2, 1) == 1.0
    assert asked == [(("gpt2-toy", 2, 2), bench.WAITING | {"OMP_NUM_THREADS": "2"})]
    assert len(begun) == 2 and all(process.poll() is not None for process in begun)


def test_a_step_is_timed_here():
    assert bench.measured_here("llama-toy", 2, 1) > 0


def test_ratios_are_of_one_turn():
    ways, loads = (bench.ONE, bench.SPINNING, bench.ASLEEP, bench.BRIEFLY), (bench.IDLE, bench.BUSY)
    turns = {f"{way}, {load}": [2.0, 4.0, 9.0] for way in ways for load in loads}
    turns[f"{bench.ASLEEP}, {bench.BUSY}"] = [1.0, 1.0, 3.0]
    page = bench.markdown({"command": "c", "turns": turns})
    assert "| threads that spin | 4.00 s (1.00×) | 4.00 s (1.00×) |" in page
    assert "| threads that sleep | 4.00 s (1.00×) | 1.00 s (3.00×) |" in page
