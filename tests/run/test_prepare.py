"""The one way in: what tables in memory and in files become, and what is refused on the way."""

import pandas as pd
import pytest

from tests.helpers.commands import run_twinset, texts
from twinset import Twinset
from twinset.config.options import run_config
from twinset.errors import InputError
from twinset.models.base_model import check_base
from twinset.privacy.statement.theorems import OWNER_UNIT, UNIT
from twinset.run.generate import finetune, prepare
from twinset.run.request import Source
from twinset.sampling.allocation import RowsRequest
from twinset.sampling.twin_model import DESCRIPTION
from twinset.table.templates import Template

SHORT = {"epsilon": 50, "steps": 2, "max_tokens": 12, "insecure_noise_seed": 1}


@pytest.fixture
def frame():
    table = {"text": texts(), "label": ["good", "bad"] * 30, "who": [i // 3 for i in range(60)]}
    return pd.DataFrame(table)


@pytest.fixture
def config(tiny_base):
    return run_config({"base_model": str(tiny_base), **SHORT})


@pytest.fixture
def prepared(frame, config):
    return prepare(Source(frame, "text", ("label",)), config)


def test_a_table_in_memory_and_its_file_are_prepared_alike(frame, config, tmp_path):
    frame.to_csv(tmp_path / "t.csv", index=False)
    rows = RowsRequest(per_label=("3",))
    made = [
        prepare(Source(data, "text", ("label",), owner="who"), config, rows, folder=folder)
        for data, folder in ((frame, None), (tmp_path / "t.csv", tmp_path))
    ]
    facts = [(p.records.fingerprint(), p.plan, p.template, p.counts, p.config) for p in made]
    assert facts[0] == facts[1]
    assert made[0].plan.records == 20 and made[0].notes == made[1].notes != ()
    assert made[0].counts == {("good",): 3, ("bad",): 3}


def test_a_template_in_hand_is_taken_as_it_is(frame, config):
    mine = Template("mine", "Say {label}:", {}, ("label",))
    assert prepare(Source(frame, "text", ("label",), prompt=mine), config).template is mine


@pytest.mark.parametrize(("owner", "unit", "units"), [("who", OWNER_UNIT, 20), (None, UNIT, 60)])
def test_python_protects_owners_too(frame, tiny_base, owner, unit, units):
    twinset = Twinset(str(tiny_base), **SHORT).fit(frame, "text", ["label"], owner=owner)
    ledger = twinset.model.ledger
    assert (ledger.unit, ledger.records) == (unit, units)


@pytest.mark.parametrize(
    ("source", "options", "said"),
    [
        ({}, {"max_records_per_owner": 2}, "does nothing without `owner`"),
        ({"owner": "who"}, {"group_size": 2}, "`group_size` is of records"),
        ({"owner": "nobody"}, {}, "no column 'nobody'"),
        ({"split": "train"}, {}, "a table in memory has none"),
        ({"owner": "who"}, {"noise_policy": "selective"}, "treats records by what they say"),
    ],
)
def test_what_would_do_nothing_is_refused(frame, tiny_base, source, options, said):
    config = run_config({"base_model": str(tiny_base), **SHORT, **options})
    with pytest.raises(InputError, match=said):
        prepare(Source(frame, "text", ("label",), **source), config)


@pytest.mark.parametrize("command", [("compare",), ("audit", "canaries")])
def test_comparisons_refuse_owners(frame, tmp_path, capsys, command):
    """They would train on rows one by one, whatever was asked for."""
    frame.to_csv(tmp_path / "t.csv", index=False)
    refused = run_twinset(capsys, *command, tmp_path / "t.csv", "--owner", "who")
    assert refused.code == 2 and "one by one" in refused.err


def test_a_fine_tuning_uses_the_plan_that_was_made(prepared, monkeypatch):
    monkeypatch.setattr("twinset.config.plan.calibrate_noise_multiplier", None)
    ledger = finetune(prepared).ledger
    assert ledger.sample_rate == prepared.plan.sample_rate
    assert prepared.plan.noise_multiplier in [
        getattr(event, "noise_multiplier", None) for event in ledger.events
    ]


def test_what_was_prepared_is_good_for_one_fine_tuning(frame, tiny_base):
    """Another would start from what the first trained, and its ledger would not say so."""
    config = run_config({"base_model": str(tiny_base), "method": "full", **SHORT})
    prepared = prepare(Source(frame, "text", ("label",)), config)
    finetune(prepared)
    with pytest.raises(RuntimeError, match="prepare the next anew"):
        finetune(prepared)


def test_a_model_of_private_records_is_no_base_model(tmp_path):
    """What it spent would be counted nowhere, by a run or by `pretrain`."""
    (tmp_path / "run" / "model").mkdir(parents=True)
    check_base(str(tmp_path / "run"))
    (tmp_path / "run" / "model" / DESCRIPTION).write_text("{}")
    for place in ("run", "run/model"):
        with pytest.raises(InputError, match="was made from private records"):
            check_base(str(tmp_path / place))
        config = run_config({"base_model": str(tmp_path / place)})
        table = pd.DataFrame({"text": ["a text of words"] * 40, "label": ["a", "b"] * 20})
        with pytest.raises(InputError, match="was made from private records"):
            prepare(Source(table, "text", ("label",)), config)
