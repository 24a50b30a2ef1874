"""Rows per label from a plan file."""

from twinset.data.schema import Attribute, Schema
from twinset.sampling.allocation import from_file


def test_plan_file_with_fractional_labels_keeps_whole_numbers_of_rows(tmp_path):
    schema = Schema("text", "str", (Attribute("score", "float64", (0.5, 1.5)),), ("score", "text"))
    path = tmp_path / "plan.csv"
    path.write_text("score,rows\n0.5,3\n1.5,4\n")
    assert from_file(schema, path) == {(0.5,): 3, (1.5,): 4}
