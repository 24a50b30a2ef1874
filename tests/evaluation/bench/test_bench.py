"""Benchmarks: ratios are taken round by round, failures are rows, checkouts are kept apart."""

import pytest

from evaluation.bench.runner import Contestant, format_table, measure_contestant


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
