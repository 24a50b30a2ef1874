"""Benchmarks: ratios are taken round by round, failures are rows, checkouts are kept apart."""

import pandas as pd
import pytest
import torch

from evaluation.bench import arms, columns
from evaluation.bench.runner import Contestant, format_table, measure_contestant
from tests.helpers import oracle
from tests.helpers.clipped import EXACT, LOSSES, C, build, random_units, run_engine
from twinset.config import TrainingConfig
from twinset.models.adapters import merge_trained


def rounds(*rates, **more):
    return [{"rate": rate, "unit": "x", **more} for rate in rates]


@pytest.mark.parametrize(
    ("found", "line"),
    [
        # Both become slower together: the ratio does not see it, a ratio of medians would.
        (
            {"a": rounds(1, 10, 100), "b": rounds(2, 20, 200)},
            "| b | 20 x | 2.00 (2.00 to 2.00) | |",
        ),
        ({"a": rounds(1), "b": [{"failed": "no opacus"}]}, "| b | not measured | | no opacus |"),
    ],
)
def test_ratios_are_taken_within_rounds(found, line):
    assert format_table(found, "a")[-1] == line


def test_the_given_checkout_is_imported(tmp_path):
    """The control of `--against`: the folder that is named decides, not the installed package."""
    (tmp_path / "twinset").mkdir()
    (tmp_path / "twinset" / "__init__.py").write_text("raise ImportError('the other checkout')\n")
    work = {"base_model": "gpt2-mini", "rows": 1, "tokens": 1}
    other = Contestant("other", "rows_of_twinset", work, tmp_path)
    assert "the other checkout" in measure_contestant(other, threads=1)["failed"]


def test_columns_of_other_tools_are_measured_in_the_parts_that_they_are_given(
    tmp_path, capsys, monkeypatch
):
    age = [20, 20, 40, None] * 10
    table = pd.DataFrame({"text": "a text", "stars": [1, 2] * 20, "age": age, "city": "York"})
    table.to_csv(tmp_path / "table.csv", index=False)
    words = ["columns", str(tmp_path / "table.csv"), "--text", "text", "--attribute", "stars"]
    monkeypatch.setattr("sys.argv", [*words, "--parts", str(tmp_path / "parts.csv")])
    columns.main()

    parts = pd.read_csv(tmp_path / "parts.csv", dtype=str)
    assert parts.age.value_counts().to_dict() == {"20": 20, "40": 10, "(gap)": 10}

    parts.assign(age="20", stars="1").to_csv(tmp_path / "twin.csv", index=False)
    monkeypatch.setattr("sys.argv", [*words, "--twins", str(tmp_path / "twin.csv")])
    columns.main()
    assert capsys.readouterr().out == "| twin | 0.2500 | age 0.500 | 0.5000 | age × city 0.500 |\n"


@pytest.mark.parametrize("arm", arms.FEW_NUMBERS)
def test_few_numbers_are_clipped_exactly_and_become_weights(arm):
    """The ε of these arms is true only if no record adds more than C to a sum."""
    model = arms.FEW_NUMBERS[arm](build("gpt2-tied"), TrainingConfig()).double()
    units, (loss, expected) = random_units(5, 6, 1, prompt=(6, 12)), LOSSES["plain"]
    found = run_engine(model, units, loss)
    assert oracle.largest_error(found, oracle.clipped(model, units, expected, C)) < EXACT

    ids = torch.arange(10)[None]
    with torch.no_grad():
        before = model(input_ids=ids).logits
        for weight in oracle.trained(model).values():
            moved = weight[:-1]  # the last vector of a soft prompt stays 0
            moved += torch.linspace(0, 1, moved.numel()).view_as(moved)
        after = model(input_ids=ids).logits
        merged = merge_trained(model) if arm == arms.SOFT_PROMPT else model
        assert not torch.allclose(after, before)
        again = merged(input_ids=ids).logits.double()
        assert torch.allclose(again, after, rtol=1e-4, atol=1e-4)
    assert not [each for each in merged.modules() if type(each).__module__ == arms.__name__]
