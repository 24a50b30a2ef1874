"""Rows in groups: any number of them is a twin, whoever draws them, and whatever stops them."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from tests.helpers.commands import Heard
from tests.helpers.refusals import refusal
from tests.helpers.row_workers import load_dying, load_quick
from twinset import Twinset
from twinset.config import SamplingConfig
from twinset.errors import InputError
from twinset.sampling import rows
from twinset.sampling import twin_model as twin_models
from twinset.sampling.allocation import RowsRequest, explicit
from twinset.sampling.row_pool import start_workers
from twinset.sampling.rows import (
    RowGroups,
    devices_for_rows,
    draw_groups,
    groups_of,
    open_row_groups,
)
from twinset.sampling.sampler import Row
from twinset.table.schema import Attribute, Schema

CPU = torch.device("cpu")
SAMPLING = SamplingConfig(max_new_tokens=4, max_redraws=1000)
COUNTS = {("bad",): 12, ("good",): 24}


def check_whole(heard):
    """All 36 rows are there, and progress never went back."""
    done = [done for _, done, *_ in heard.counted]
    assert done == sorted(done) and heard.counted[-1] == ("rows", 36, 36, 1.0)


# -- groups ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("total", [1, 511, 20_000])
def test_any_first_groups_have_the_labels_in_proportion(total):
    """To within a row each; and labels of one row are not all in the same group."""
    counts = {(f"rare {i}",): 1 for i in range(40)}
    counts |= {("good",): total - total // 3, ("bad",): total // 3}
    groups = groups_of(counts, CPU)
    sizes = [sum(group.values()) for group in groups]
    assert sum(sizes) == total + 40 and max(sizes) - min(sizes) <= 1
    assert max(sizes) < 2 * rows.GROUP_ROWS
    assert len(groups) == max(1, (total + 40) // rows.GROUP_ROWS)
    there = dict.fromkeys(counts, 0)
    for number, group in enumerate(groups, start=1):
        there = {c: n + group.get(c, 0) for c, n in there.items()}
        done = sum(sizes[:number]) / sum(sizes)
        assert all(abs(there[c] - done * counts[c]) < 3 for c in counts)
    assert there == counts
    rare = [sum(c[0].startswith("rare") for c in group) for group in groups]
    assert max(rare) <= 2 * (40 / len(groups) + 1)


def test_groups_of_another_twin_are_deleted(tmp_path, monkeypatch):
    def opened(sampling=SAMPLING, counts=COUNTS):
        return open_row_groups(tmp_path / "rows", sampling, counts, CPU)

    opened().write(0, [Row(("bad",), "x")])
    assert opened().numbers == [0]
    assert opened(SamplingConfig(max_new_tokens=4, max_redraws=1000, batch_size=3)).numbers == [0]
    for other in ({"sampling": SamplingConfig(seed=9)}, {"counts": {("bad",): 5}}):
        opened().write(0, [])
        assert opened(**other).numbers == []
    opened().write(0, [])
    monkeypatch.setattr(rows, "GROUP_ROWS", 5)
    assert opened().numbers == []


# -- drawing: a sampler that writes at once, and a clock that stands still -------------------------


def a_sampler(number, drawn=None):
    def sample(wanted, on_rows=lambda rows, share: None):
        if drawn is not None:
            drawn.append(number)
        found = [Row(c, f"{number}.{i}") for c, n in wanted.items() for i in range(n)]
        on_rows(len(found), 1.0)
        return found

    return SimpleNamespace(sample=sample)


@pytest.fixture
def small_groups(monkeypatch):
    monkeypatch.setattr(rows, "GROUP_ROWS", 6)  # of 36 rows there are six


def test_finished_groups_are_not_drawn_again_and_progress_never_falls(small_groups, tmp_path):
    groups, drawn, heard = RowGroups(tmp_path), [], Heard()
    groups.write(2, [Row(("bad",), "kept")] * 6)
    sampler = partial(a_sampler, drawn=drawn)
    assert draw_groups(sampler, COUNTS, CPU, heard, groups) == 36
    assert drawn == [0, 1, 3, 4, 5] and groups.numbers == list(range(6))
    assert [row.text for row in groups.read(2)] == ["kept"] * 6
    check_whole(heard)


@pytest.mark.parametrize(("deadline", "expected"), [(None, 6), (0.0, 1), (3.4, 3), (3.6, 4)])
def test_at_the_deadline_there_is_a_smaller_twin(small_groups, monkeypatch, deadline, expected):
    """A group takes a second. One of which most would come too late is not begun."""
    clock = [0.0]
    monkeypatch.setattr(rows, "monotonic", lambda: clock[0])

    def sampler(number):
        clock[0] += 1.0
        return a_sampler(number)

    groups, heard = RowGroups(), Heard()
    given = COUNTS, CPU, heard
    found = draw_groups(sampler, *given, groups, deadline=deadline)
    # what is counted towards: six rows a second until the deadline, and no fewer than there are
    assert heard.counted[0][2] == {None: 36, 0.0: 6, 3.4: 20, 3.6: 21}[deadline]
    assert [done for _, done, *_ in heard.counted] == sorted(done for _, done, *_ in heard.counted)
    assert found == 6 * expected and groups.numbers == list(range(expected))
    labels = [row.combination for row in groups.rows()]
    assert labels.count(("good",)) == 2 * labels.count(("bad",))
    if expected < 6:  # resumed, with a clock of its own
        assert draw_groups(sampler, *given, groups) == 36


# -- several processes -----------------------------------------------------------------------------


@pytest.mark.parametrize("load", [load_quick, load_dying])
def test_workers_draw_groups_and_what_lost_ones_leave_is_drawn_here(small_groups, load):
    groups, heard = RowGroups(), Heard()

    def late(number):  # gives workers time to draw theirs
        time.sleep(1.0 if load is load_quick else 0.0)
        return a_sampler(number)

    with start_workers(load, ["there"] * 2) as others:
        assert draw_groups(late, COUNTS, CPU, heard, groups, workers=others) == 36
    by_workers = [n for n in groups.numbers if groups.read(n)[0] == (("there",), n)]
    assert groups.numbers == list(range(6)) and 0 not in by_workers
    assert len(by_workers) >= 3 if load is load_quick else not by_workers
    warned = [line for line in heard.lines if line.startswith("WARNING")]
    assert all("ended early" in line for line in warned)
    assert load is load_dying or not warned
    check_whole(heard)


PARENT = """
import math, multiprocessing, threading, time
from tests.helpers.row_workers import load_slow
from twinset.sampling.row_pool import start_workers
print("once", flush=True)  # a script without a guard: started again, it would say so again
with start_workers(load_slow, ["cpu"]) as (worker,):
    threading.Thread(target=worker, args=(0, math.inf), daemon=True).start()
    print(*(process.pid for process in multiprocessing.active_children()), flush=True)
    time.sleep(60)
"""


def test_workers_end_with_their_parent_and_run_no_script(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(PARENT)
    (tmp_path / "multiprocessing.py").write_text("print('imported from the folder of a table')")
    parent = subprocess.Popen(
        [sys.executable, "-P", script], cwd=tmp_path, stdout=subprocess.PIPE, text=True,
        stderr=subprocess.DEVNULL, env=os.environ | {"PYTHONPATH": os.getcwd()},
    )  # fmt: skip
    assert parent.stdout.readline() == "once\n"
    (worker,) = map(int, parent.stdout.readline().split())
    time.sleep(1.0)
    os.kill(worker, 0)  # it is there
    parent.send_signal(signal.SIGKILL)
    assert parent.wait(20) != 0 and parent.stdout.read() == ""
    with pytest.raises(ProcessLookupError):
        for _ in range(100):
            os.kill(worker, 0)
            time.sleep(0.1)


@pytest.fixture(scope="module")
def model(tiny_base, tmp_path_factory):
    frame = pd.DataFrame({"mood": ["bad", "good"] * 30, "text": [f"it was {n}" for n in range(60)]})
    options = {"steps": 1, "batch_size": 8, "max_tokens": 8, "epsilon": 20.0, "teacher_share": 0.2}
    return (
        Twinset(base_model=str(tiny_base), prompt="generic", **options)
        .fit(frame, "text", "mood")
        .model
    )


@contextmanager
def workers_here(load, devices):
    """Stand in for `start_workers`: load the model again, and draw with it in this process."""
    loaded = [load(device) for device in devices]  # here: another thread would wait for its turn
    yield [lambda number, latest, draw=each: draw(number) for each in loaded]


@pytest.mark.parametrize(
    "start", [workers_here, pytest.param(start_workers, marks=pytest.mark.slow)]
)
def test_rows_depend_on_neither_threads_nor_processes(
    model, small_groups, tmp_path, monkeypatch, start
):
    """Workers load the model again, from a folder that is made for them."""
    monkeypatch.setattr(twin_models, "start_workers", start)
    counts = {("bad",): 4, ("good",): 8}  # two groups, one of them in a worker
    found, plain = [], rows.computing_with
    for threads, processes in ((1, 1), (2, 1), (1, 2)):
        used = []
        monkeypatch.setattr(rows, "computing_with", lambda n, u=used: u.append(n) or plain(n))
        monkeypatch.setattr(torch, "get_num_threads", lambda n=threads: n)
        devices = ["cpu"] * processes
        monkeypatch.setattr(twin_models, "devices_for_rows", lambda *_, d=devices: d)
        groups, heard = RowGroups(tmp_path / f"{threads}{processes}"), Heard()
        assert len(model.sample(counts, SAMPLING, heard, groups)) == 12
        assert used == [1] and any("2 processes" in line for line in heard.lines) == (processes > 1)
        found.append([(n, groups.read(n)) for n in groups.numbers])
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(
    ("threads", "processes", "gigabytes", "groups", "expected"),
    [
        (4, 1, 100.0, 9, 4),
        (1, 3, 100.0, 9, 3),  # asked for
        (4, 1, 5.0, 9, 2),  # a fifth is left free
    ],
)
def test_public_facts_decide_the_number_of_processes(
    model, monkeypatch, threads, processes, gigabytes, groups, expected
):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(rows, "total_memory", lambda: int(gigabytes * 2**30))
    before = devices_for_rows(model.model, groups, processes)
    held = torch.ones(2**22)  # what this process holds changes nothing
    assert devices_for_rows(model.model, groups, processes) == before == ["cpu"] * expected
    del held


def test_groups_keep_how_often_texts_were_redrawn_and_damage_is_named(tmp_path):
    kept = RowGroups(tmp_path)
    kept.write(0, [Row(("a",), "x", 2, 1), Row(("b",), "y")])
    kept.write(3, [Row(("a",), "z", 3)])
    for groups in (kept, RowGroups(tmp_path)):
        assert groups.redrawn() == {"filtered": 5, "unfinished": 1, "denied": 0}
        assert [row.text for row in groups.rows()] == ["x", "y", "z"]
    (tmp_path / "rows-000003.json").write_text(json.dumps([1]))
    with pytest.raises(InputError, match=r"rows-000003.json: is damaged"):
        kept.read(3)


# -- rows per label, asked for one by one or in a plan file ----------------------------------------


def test_labels_with_commas_are_quoted_and_ambiguous_ones_refused(tmp_path):
    one, other = Attribute("one", "str", ("a", "a,b")), Attribute("other", "str", ("b,c", "c"))
    schema = Schema("text", "str", (one, other), ("one", "other", "text"))

    def asked(*given):
        found = explicit(schema, RowsRequest(per_label=given))
        return {label: number for label, number in found.items() if number}

    assert asked('"a,b",c=3') == {("a,b", "c"): 3}
    assert asked('a, "b,c"=3', "a,c=2") == {("a", "b,c"): 3, ("a", "c"): 2}
    assert 'a,"b,c"' in refusal(asked, "a,b,c=3")  # two labels read alike
    assert "was given before" in refusal(asked, "a,c=3", '"a",c=2')
    assert "there is no label 'b'" in refusal(asked, "b=1")
    fractions = Schema("text", "str", (Attribute("score", "float64", (0.5, 1.5)),), ("score",))
    (path := tmp_path / "plan.csv").write_text("score,rows\n0.5,3.0\n1.5,4\n")
    assert explicit(fractions, RowsRequest(plan_file=str(path))) == {(0.5,): 3, (1.5,): 4}


GAP = "row 3: has no label"
PLANNED = {
    "a gap": (["None", "Some"], "label,rows\nSome,10\n,500\n", GAP),
    "a gap among numbers": ([1, 2], "label,rows\n2,10\n,500\n", GAP),
    "versions": (["3.1", "3.10"], "label,rows\n3.10,20\n3.1,10\n", {"3.1": 10, "3.10": 20}),
    "one version": (["3.1", "3.10"], "label,rows\n3.1,10\n", {"3.1": 10, "3.10": 0}),
    "a number for versions": (["3.1", "3.10"], [3.1, 3.1], "row 2: has a number that may be"),
    "another column": (["1", "2"], "label,city,rows\n1,York,1\n", "'city' is no label column"),
    "another number": ([1, 2], "label,rows\n1,1\n007,2\n", "no label '007'. The table has"),
    "no lines": (["a", "b"], "label,age,rows\n", "has no lines"),
    "only empty lines": (["a", "b"], "label,rows\n,\n,\n", "has no lines"),
    "empty lines": (["a", "b"], "label,rows\n,\na,1\n,\nb,2\n,\n", {"a": 1, "b": 2}),
    "a fault below empty lines": (["a", "b"], "label,rows\n,\na,1\n,\nc,2\n", "row 5: there is no"),
    "numbers of a sheet": (["1", "2"], [1, 2], {"1": 5, "2": 5}),
}


@pytest.mark.parametrize(("values", "content", "found"), PLANNED.values(), ids=PLANNED)
def test_labels_of_a_plan_file_are_those_of_the_schema(tmp_path, values, content, found):
    schema = Schema("t", "str", (Attribute("label", "str", tuple(values)),), ("t", "label"))
    path = tmp_path / ("plan.csv" if isinstance(content, str) else "plan.xlsx")
    if isinstance(content, str):
        path.write_text(content)
    else:
        pd.DataFrame({"label": content, "rows": 5}).to_excel(path, index=False)
    request = RowsRequest(plan_file=str(path))
    if isinstance(found, str):
        assert found in refusal(explicit, schema, request)
    else:
        assert explicit(schema, request) == {(label,): rows for label, rows in found.items()}


def test_a_plan_from_standard_input_is_read_once_and_checked_twice(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"label,rows\na,3\n")))
    request = RowsRequest(plan_file="-")
    request.check_plan(["label"])
    schema = Schema("t", "str", (Attribute("label", "str", ("a", "b")),), ("t", "label"))
    assert explicit(schema, request) == {("a",): 3, ("b",): 0}
