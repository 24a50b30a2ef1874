"""Rows per label, as they are asked for one by one or in a plan file."""

import pytest

from tests.helpers.refusals import refusal
from twinset.errors import InputError
from twinset.sampling.allocation import RowsRequest, explicit
from twinset.table.schema import Attribute, Schema

ONE = Attribute("one", "str", ("a", "a,b"))
OTHER = Attribute("other", "str", ("b,c", "c"))
COMMAS = Schema("text", "str", (ONE, OTHER), ("one", "other", "text"))


def per_label(*given):
    return explicit(COMMAS, RowsRequest(per_label=given))


@pytest.mark.parametrize(
    ("label", "meant"),
    [('"a,b",c', ("a,b", "c")), ('a, "b,c"', ("a", "b,c")), ("a,c", ("a", "c"))],
)
def test_values_with_commas_stand_in_quotes(label, meant):
    assert {c: n for c, n in per_label(f"{label}=3").items() if n} == {meant: 3}


def test_labels_that_read_alike_and_numbers_given_twice_are_refused():
    assert 'a,"b,c"' in refusal(per_label, "a,b,c=3")
    assert "has a number already" in refusal(per_label, "a,c=3", '"a",c=2')
    assert "there is no label 'b'" in refusal(per_label, "b=1")
    with pytest.raises(InputError, match="there is no label"):
        per_label("a\nb=1")  # no line of CSV


def test_plan_file_with_fractional_labels_keeps_whole_numbers_of_rows(tmp_path):
    schema = Schema("text", "str", (Attribute("score", "float64", (0.5, 1.5)),), ("score", "text"))
    path = tmp_path / "plan.csv"
    path.write_text("score,rows\n0.5,3\n1.5,4\n")
    assert explicit(schema, RowsRequest(plan_file=str(path))) == {(0.5,): 3, (1.5,): 4}
