"""What a private run counts beside its training: never exactly, whatever its plan says."""

from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest

from tests.helpers.commands import texts
from twinset import Twinset
from twinset.config.options import run_config
from twinset.privacy.accounting.events import GaussianRelease
from twinset.progress import Progress
from twinset.run.generate import finetune, prepare
from twinset.run.request import Source
from twinset.run.story import share_out_rows
from twinset.sampling.allocation import RowsRequest
from twinset.sampling.twin_model import NOTHING_LEARNT
from twinset.table.schema import Attribute, Schema

SHORT = {"epsilon": 50, "steps": 1, "batch_size": 8, "max_tokens": 12, "teacher_share": 0.2}


def released(tiny_base, **changes):
    """Run with a plan that was changed behind the options' back; return what the ledger has."""
    frame = pd.DataFrame({"text": texts(), "label": ["good", "bad"] * 30})
    config = run_config({"base_model": str(tiny_base), **SHORT})
    run = prepare(Source(frame, "text", ("label",)), config)
    run.plan = replace(run.plan, **changes)
    model = finetune(run)
    return [e.what for e in model.ledger.events if isinstance(e, GaussianRelease)]


def test_every_release_is_in_the_ledger(tiny_base):
    assert released(tiny_base) == ["label counts", "token marginals", "teacher"]


@pytest.mark.parametrize("release", ["marginal_noise", "teacher_noise"])
def test_without_noise_in_its_plan_nothing_is_released(tiny_base, release):
    """Fail closed: exact counts would be in no ledger."""
    with pytest.raises(RuntimeError, match="without noise"):
        released(tiny_base, **{release: 0.0})


class Heard(Progress):
    """Keep what a run warns of."""

    def __init__(self, warned):
        self.warned = warned

    def warn(self, line):
        self.warned.append(line)


@pytest.mark.parametrize(
    ("changes", "is_base_alone"),
    [
        ({"steps": 0}, False),
        ({"steps": 0, "tilt": 0}, True),
        ({"steps": 0, "marginal_share": 0}, True),
        ({"marginal_share": 0}, False),
    ],
    ids=str,
)
def test_rows_of_a_base_that_learnt_nothing_are_called_so(tiny_base, changes, is_base_alone):
    warned: list[str] = []
    frame = pd.DataFrame({"text": texts(), "label": ["good", "bad"] * 30})
    model = Twinset(str(tiny_base), progress=Heard(warned), **SHORT | changes).fit(frame)
    warned.clear()
    model.sample(4)
    assert (NOTHING_LEARNT in warned) == is_base_alone


def test_a_label_that_no_row_has_is_named():
    """Its records are too few for so many rows: who needs one of it hears how to have some."""

    schema = Schema("text", "str", (Attribute("stars", "int64", (1, 2, 3)),), ("text", "stars"))
    for counts, expected in (((5, 0, 7), ["stars 2"]), ((5, 1, 7), [])):
        warned: list[str] = []
        known = dict(zip(schema.combinations, counts, strict=True))
        ledger = SimpleNamespace(unit="record", records=12)
        model = SimpleNamespace(schema=schema, label_counts=known, ledger=ledger)
        assert sum(share_out_rows(model, RowsRequest(13), Heard(warned)).values()) == 13
        assert [line.split("no row has ")[1].split(":")[0] for line in warned] == expected
