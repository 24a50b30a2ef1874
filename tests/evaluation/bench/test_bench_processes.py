"""The benchmark of several processes: its page."""

from evaluation.bench.processes import markdown


def test_each_way_is_set_against_one_process_of_one_thread():
    def way(processes: int, threads: int, *steps: float) -> dict:
        rounds = [{"step": step, "rows": 10 * step} for step in steps]
        return {"processes": processes, "threads": threads, "rounds": rounds}

    page = markdown({"versions": "v", "ways": [way(1, 1, 4, 6, 5), way(2, 1, 2, 3, 2.5)]})
    assert "- versions: v" in page
    assert "| processes: 1, threads of each: 1 | 3 | 5.00 s (1.00×) | 50.00 s (1.00×) |" in page
    assert "| processes: 2, threads of each: 1 | 3 | 2.50 s (2.00×) | 25.00 s (2.00×) |" in page
