"""Rows by several processes are those of one; one that ends before its time loses none."""

import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pandas as pd
import pytest
import torch

from twinset.config import SamplingConfig
from twinset.config.options import run_config
from twinset.errors import InputError
from twinset.progress import Progress, Silent
from twinset.run import row_processes
from twinset.run.estimate import DENIED_SHARE, Speed
from twinset.run.finetune import finetune
from twinset.run.prepare import prepare
from twinset.run.request import Source
from twinset.run.row_processes import RowsToDraw, draw_by_processes, writers
from twinset.run.twin_rows import drawn_rows
from twinset.sampling.row_shards import draw_groups, groups_of
from twinset.sampling.sampler import RowGroups

CPU = torch.device("cpu")
COUNTS = {("bad",): 600, ("good",): 480}  # two groups
SAMPLING = SamplingConfig(max_new_tokens=4, max_redraws=1000)


class Heard(Progress):
    def __init__(self):
        self.said, self.warned, self.counted = [], [], []

    def say(self, line):
        self.said.append(line)

    def warn(self, line):
        self.warned.append(line)

    def count(self, what, done, total=None, share=None):
        self.counted.append((what, done, total))


@pytest.fixture(scope="module")
def model(tiny_base):
    moods, ends = ["bad", "good"] * 30, range(60)
    frame = pd.DataFrame({"mood": moods, "text": [f"it was number {n}" for n in ends]})
    options = {
        "base_model": str(tiny_base),
        "steps": 1,
        "batch_size": 8,
        "max_tokens": 8,
        "epsilon": 20.0,
    }
    source = Source(frame, "text", ("mood",), prompt="generic")
    return finetune(prepare(source, run_config(options)))


@pytest.fixture
def to_draw(model, tmp_path, monkeypatch):
    monkeypatch.setattr(row_processes, "free_threads", lambda say: 2)
    folder = tmp_path / "model"
    folder.mkdir()
    model.save(folder)
    return RowsToDraw(folder, "cpu", SAMPLING, COUNTS, tmp_path / "rows")


def texts(folder):
    return [(row.combination, row.text) for row in RowGroups(folder).rows(2)]


def test_two_processes_write_the_rows_of_one(model, to_draw, tmp_path):
    heard, alone = Heard(), RowGroups(tmp_path / "alone")
    draw_by_processes(model, to_draw, heard, None)
    assert to_draw.missing == [] and not heard.warned
    assert "2 processes write the rows" in heard.said[-1]
    assert heard.counted[-1] == ("rows", 1080, 1080)
    assert draw_groups(partial(model.sampler, SAMPLING), COUNTS, Silent(), alone) == 2
    assert texts(to_draw.folder) == texts(tmp_path / "alone")


def test_rows_that_another_process_left_are_drawn_all_the_same(model, to_draw, tmp_path):
    heard = Heard()
    draw_by_processes(model, replace(to_draw, model=tmp_path / "nowhere"), heard, None)
    assert to_draw.missing == [1]
    (warned,) = heard.warned
    assert "ended before its time" in warned and "written by this one" in warned
    twin = model.sample(COUNTS, SAMPLING, Silent(), RowGroups(to_draw.folder))
    assert len(twin) == 1080 and to_draw.missing == []


def test_what_is_drawn_already_starts_no_process(model, to_draw, monkeypatch):
    to_draw.draw(model, [1], Silent())
    monkeypatch.setattr(row_processes, "_start", lambda *_: pytest.fail("started"))
    heard = Heard()
    draw_by_processes(model, to_draw, heard, None)
    assert to_draw.missing == [0] and not heard.said


def test_processes_share_what_is_missing(model, to_draw, monkeypatch):
    asked = []

    def start(message, rank, threads):
        asked.append((message["groups"], rank, threads))
        return subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.PIPE)

    rows = replace(to_draw, counts={("bad",): 1100, ("good",): 1000})
    rows.draw(model, [0], Silent())
    monkeypatch.setattr(row_processes, "_start", start)
    monkeypatch.setattr(row_processes, "free_threads", lambda say: 5)
    draw_by_processes(model, rows, Silent(), None)
    assert asked == [([[1], [2], [3]], 1, 1), ([[1], [2], [3]], 2, 1)]
    assert rows.missing == [2, 3]


@pytest.mark.parametrize("error", [InputError("only 5 of 600 rows"), KeyboardInterrupt()])
def test_what_stops_the_first_process_stops_the_others_and_is_said_as_it_is(
    model, to_draw, monkeypatch, error
):
    started, plain = [], row_processes._start
    monkeypatch.setattr(
        row_processes, "_start", lambda *a: started.append(plain(*a)) or started[-1]
    )

    def fail(self, model, groups, progress):
        raise error

    monkeypatch.setattr(RowsToDraw, "draw", fail)
    with pytest.raises(type(error), match=str(error) or None):
        draw_by_processes(model, to_draw, Silent(), None)
    assert [process.returncode for process in started] == [-signal.SIGKILL]


def test_a_worker_ends_with_the_process_that_started_it(model, to_draw):
    message = replace(to_draw, counts={("bad",): 10**6}).message([[], range(100)])
    worker = row_processes._start(message, 1, 1)
    with pytest.raises(subprocess.TimeoutExpired):
        worker.wait(1)
    worker.stdin.close()  # as the system does for a process that was killed
    assert worker.wait(60) == 1


@pytest.mark.parametrize(
    ("threads", "free", "sampling", "device", "expected"),
    [
        (4, 100.0, SAMPLING, CPU, 4),
        (4, 4.5, SAMPLING, CPU, 3),
        (4, 4.3, SAMPLING, CPU, 2),  # a tenth is left free
        (4, 0.5, SAMPLING, CPU, 1),
        (1, 100.0, SAMPLING, CPU, 1),
        (4, 100.0, SAMPLING, torch.device("cuda"), 1),
    ],
)
def test_there_are_as_many_writers_as_threads_and_memory(
    monkeypatch, threads, free, sampling, device, expected
):
    monkeypatch.setattr(row_processes, "free_memory", lambda: free)
    assert writers(threads, sampling, device, gigabytes=2.0) == expected
    monkeypatch.setenv("WORLD_SIZE", "2")  # under a launcher each writes its part
    assert writers(threads, sampling, device, gigabytes=2.0) == 1


def test_writers_share_the_time_of_many_rows_and_not_of_few():
    speed = Speed(
        run_config({}), 8, 8, 1.0, 1, 0.0, 0.0, 0.0, 2.0, 1.0, judge_seconds=1.0,
        writers=2, writer_row_seconds=3.0, writer_judge_seconds=1.0,
    )  # fmt: skip
    assert speed._sampling_seconds(500) == 500 * (1 + DENIED_SHARE) * 3.0
    assert speed._sampling_seconds(2048) == 1024 * (1 + DENIED_SHARE) * 4.0
    assert speed._sampling_seconds(3000) == 1800 * (1 + DENIED_SHARE) * 4.0  # three of five groups
    assert speed.at(16)._sampling_seconds(3000) == 2 * speed._sampling_seconds(3000)


def test_rows_that_an_earlier_version_grouped_otherwise_are_drawn_anew(tmp_path, monkeypatch):
    drawn_rows(tmp_path, SAMPLING, COUNTS).write(0, [])
    assert 0 in drawn_rows(tmp_path, SAMPLING, COUNTS)
    monkeypatch.setattr("twinset.sampling.row_shards.LEAST_ROWS", 100)
    assert 0 not in drawn_rows(tmp_path, SAMPLING, COUNTS)


@pytest.mark.parametrize("rows", [1, 511, 1024, 3000, 6256, 50_000])
def test_groups_have_all_rows_and_are_alike(rows):
    groups = list(groups_of({("bad",): rows // 3, ("good",): rows - rows // 3}))
    sizes = [sum(group.values()) for group in groups]
    assert sum(sizes) == rows and max(sizes) - min(sizes) <= 1 and max(sizes) <= 2048
