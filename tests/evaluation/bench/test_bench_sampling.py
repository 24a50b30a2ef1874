"""The sampling benchmark on a toy: both write the rows that were asked for, with the same ends."""

import json

import pytest
import torch
from typer.testing import CliRunner

from evaluation.bench import sampling as bench
from evaluation.bench.runner import command, names_in
from twinset.config import SamplingConfig
from twinset.errors import InputError


def _work(rows: int, end: int = 0) -> tuple[object, bench.Work]:
    model, prompts, _ = bench._load("gpt2-toy", (), "")
    config = SamplingConfig(top_p=0.9, guidance=0.0, batch_size=3)
    return model, bench.Work([prompts[i % 2] for i in range(rows)], end, 6, config)


def test_each_way_writes_every_row_up_to_its_end():
    model, work = _work(7, end=5)
    with torch.no_grad():
        model.transformer.ln_f.bias.copy_(4 * model.transformer.wte.weight[5])  # rows end often
    ways = bench.contestants(model, work, ["float32", "bfloat16"])
    assert list(ways) == [
        "generate, float32",
        "twinset, float32",
        "generate, bfloat16",
        "twinset, bfloat16",
    ]
    for write in ways.values():
        rows = write(1)
        assert len(rows) == 7
        assert all(row[-1] == 5 or len(row) == 6 for row in rows)
        assert not any(5 in row[:-1] for row in rows)
        assert len(write(0)) == 2  # to warm up


def test_ratios_are_medians_of_turns():
    speeds = {"generate, float32": (1.0, 2.0, 4.0), "twinset, float32": (3.0, 4.0, 8.0)}
    turns = {
        name: [
            {"rows_per_second": speed, "rows_per_processor_second": 1.0, "mean_tokens": 5.0}
            for speed in each
        ]
        for name, each in speeds.items()
    }
    page = bench.markdown({"command": "x", "turns": turns, "profile": {"copies": 1.0}})
    assert "| twinset, float32 | 4.00 | 5.0 | 2.00× | 2.00× | 1.00× |" in page
    assert "- turns: 3;" in page and "| copies | 100% |" in page


def test_the_command_writes_both_files(tmp_path):
    output = tmp_path / "results" / "sampling.json"
    options = ["--model", "gpt2-toy", "--rows", "4", "--batch-size", "2", "--max-new-tokens", "3"]
    options += ["--precision", "float32", "--rounds", "2", "--output", str(output)]
    done = CliRunner().invoke(command(bench.bench), options)
    assert done.exit_code == 0, done.output
    found = json.loads(output.read_text("utf-8"))
    assert found["model"] == "gpt2-toy" and [*map(len, found["turns"].values())] == [2, 2]
    assert all(row["rows_per_second"] > 0 for rows in found["turns"].values() for row in rows)
    assert output.with_suffix(".md").read_text("utf-8") in done.output


@pytest.mark.parametrize(
    ("model", "end", "precision", "part"),
    [
        ("tiny", "no such token", "float32", "no single token"),
        ("gpt2-toy", "", "float16", "float16"),
    ],
)
def test_bad_input_is_one_line(tiny_base, model, end, precision, part):
    name = str(tiny_base) if model == "tiny" else model
    with pytest.raises(InputError, match=part) as error:
        bench._load(name, ("A film:",), end)
        names_in("--precision", precision, bench.PRECISIONS)
    assert "\n" not in str(error.value)
