"""All records of an owner as one unit: sampled, clipped and counted together."""

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from tests.helpers import oracle
from tests.helpers.commands import COLUMNS, OWNED, QUICK, run_twinset
from twinset.config import SpeedConfig
from twinset.models.base_model import load_base
from twinset.privacy.accounting.accountant import epsilon
from twinset.privacy.accounting.events import SubsampledGaussian
from twinset.privacy.clipping import ClippingEngine
from twinset.privacy.mechanism.randomness import Randomness
from twinset.privacy.mechanism.units import Units
from twinset.privacy.statement.guarantee import guarantee
from twinset.privacy.statement.ledger import Ledger
from twinset.table.tokenization import TokenisedRecords
from twinset.training.clipped_sum import Batch, ClippedSum, MismatchLoss

LOSS = MismatchLoss(2.0, "bounded")


def test_an_owners_records_are_drawn_afresh_and_evenly():
    units = Units(7, np.array([2, 0, 1, 0, 0, 2, 0]), most=2)
    bits = Randomness.for_tests(0).sampling
    assert len(units) == 3
    drawn = [units.draw(np.array([0, 1, 2]), bits) for _ in range(3000)]
    assert all(records[1:] == [[2], [0, 5]] for records in drawn)
    pairs = Counter(tuple(records[0]) for records in drawn)
    assert len(pairs) == 6  # of the four records 1, 3, 4 and 6
    expected = len(drawn) / 6
    statistic = sum((count - expected) ** 2 / expected for count in pairs.values())
    assert statistic < 33.0  # chi-square, 5 degrees of freedom, 4 in 10⁶
    alone = Units(3)  # without owners each record is a unit
    assert alone.draw(np.array([2, 0]), bits) == [[2], [0]] and len(alone) == 3


@pytest.fixture(scope="module")
def model(tiny_base):
    return load_base(str(tiny_base)).model


def tokens(count: int) -> TokenisedRecords:
    rng = np.random.default_rng(3)
    texts = [rng.integers(5, 60, size=rng.integers(4, 14)).tolist() for _ in range(count)]
    labels = [[("a",), ("b",)][i % 2] for i in range(count)]
    return TokenisedRecords(texts, labels, {("a",): [5, 6, 7], ("b",): [8, 9]}, 0, 128)


def sums_of(model, records, units, norm=math.inf) -> list[torch.Tensor]:
    engine = ClippingEngine(model, norm)
    clipped = ClippedSum(engine, records, LOSS, SpeedConfig(), 64)
    try:
        clipped.compute_clipped_sum(Batch(1, units))
        return [total.clone() for total in engine.sums]
    finally:
        engine.close()


def length(sums) -> float:
    return oracle.norm(list(sums))


def difference(left, right) -> float:
    return length([a - b for a, b in zip(left, right, strict=True)])


def test_an_owners_gradient_is_the_sum_of_its_records(model):
    """By autograd, record by record; the control leaves one out."""
    records, owned = tokens(9), [0, 3, 4, 8]
    loss, prompts = oracle.bounded(LOSS.weight), records.prompts
    expected = [torch.zeros_like(p) for p in model.eval().parameters() if p.requires_grad]
    for record in owned:
        text, own = records.texts[record], records.labels[record]
        order = [prompts[own], *(ids for label, ids in prompts.items() if label != own)]
        unit = [(prompt, text) for prompt in order]
        for total, g in zip(expected, oracle.unit_gradient(model, unit, loss), strict=True):
            total += g
    size = length(expected)
    assert difference(expected, sums_of(model, records, [owned])) < 1e-5 * size
    assert difference(expected, sums_of(model, records, [owned[:3]])) > 1e-2 * size


def test_an_owner_of_hundreds_of_records_moves_the_sum_by_c_at_most(model):
    records, norm = tokens(40), 0.3
    others = [[i] for i in range(4)]
    many = [i % 36 + 4 for i in range(200)]
    without = sums_of(model, records, others, norm)
    moved = difference(sums_of(model, records, [*others, many], norm), without)
    assert 0.99 * norm < moved < norm
    one_by_one = sums_of(model, records, [*others, *([i] for i in many[:36])], norm)
    assert difference(one_by_one, without) > 2 * norm


def test_one_record_hardly_changes_how_the_others_are_rounded(model):
    """Float32 addition is not associative; what SECURITY.md says of it, for small batches."""
    records, norm, everyone = tokens(32), 0.01, [[i] for i in range(32)]
    whole = sums_of(model, records, everyone, norm)
    for left_out in (0, 15):
        units = everyone[:left_out] + everyone[left_out + 1 :]
        given = [whole, *(sums_of(model, records, u, norm) for u in (units, [[left_out]]))]

        def moved(dtype, given=given) -> tuple[float, float]:
            parts = list(
                zip(*([s.to(dtype).double() for s in sums] for sums in given), strict=True)
            )
            return length([a - b for a, b, _ in parts]), length([a - b - c for a, b, c in parts])

        alone, others = moved(torch.float32)
        assert alone < norm and others < 1e-5 * norm
        assert moved(torch.bfloat16)[1] > 1e-3 * norm  # sums of less precision would show it


def test_a_run_by_owners_says_so(tmp_path, monkeypatch, tiny_base, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("twinset.release.verify.prv_epsilon", epsilon)  # it takes seconds
    OWNED.to_csv("t.csv", index=False)
    given = ("t.csv", *COLUMNS, "--base-model", tiny_base, *QUICK, "--run", "r", "--epsilon", "30")
    owners = ("--owner", "who", "--max-records-per-owner", "2")
    made = run_twinset(capsys, "generate", *given, *owners)
    assert made.code == 0, made.err
    spent = Ledger.load(Path("r/model/ledger.json"))
    assert (spent.unit, spent.records) == ("owner", 20)
    claim = guarantee(spent)
    assert claim.epsilon is not None and claim.epsilon <= 30
    assert "for each owner" in claim.sentence and "all records of a given owner" in claim.sentence
    assert "record is" not in claim.sentence
    (steps,) = [e for e in spent.events if isinstance(e, SubsampledGaussian)]
    assert epsilon(spent.events, spent.delta) == claim.epsilon and steps.steps == 3
    assert list(pd.read_csv("r/share/twin.csv").columns) == ["review", "label"]
    assert "Private owners: 20" in Path("r/share/README.md").read_text()
    assert run_twinset(capsys, "verify", "r").code == 0
    assert "Person" not in "".join(p.read_text() for p in Path("r/share").iterdir())
