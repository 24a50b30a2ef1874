"""What the benchmarks share: turns, and measuring in a process of its own."""

import pytest

from evaluation.bench import runner
from evaluation.bench.cases import StepCase


@pytest.mark.parametrize(
    ("warm_up", "calls"), [(False, "a1 b1 a2 b2"), (True, "a0 b0 a1 b1 a2 b2")]
)
def test_ways_take_turns_and_a_warm_up_is_not_kept(warm_up, calls):
    called = []

    def way(name):
        return lambda turn: called.append(f"{name}{turn}") or turn

    assert runner.in_turn({"a": way("a"), "b": way("b")}, 2, warm_up) == {"a": [1, 2], "b": [1, 2]}
    assert " ".join(called) == calls


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("no_such_module", (), "No module named evaluation.bench.no_such_module"),
        ("step", ("odd",), "missing 2 required positional arguments"),
    ],
)
def test_a_process_that_ends_without_an_answer_says_why(name, arguments, reason):
    with pytest.raises(runner.Failed, match=reason):
        runner.ask(name, *arguments)


def test_a_process_measures_and_answers():
    effort = {"rounds": 1, "seconds": 0.0, "memory_gib": 20.0}
    key = list(vars(StepCase("gpt2-toy", "full", "float32", 2, 8, 1, "ours", 1)).values())
    assert runner.ask("step", key, "times", effort)["ratio"] > 0
