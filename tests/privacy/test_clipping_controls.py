"""Negative controls: each mistake must fail the checks of exactness by a clear margin."""

import pytest
import torch

from evaluation.audit.faults import norms_of_uses_apart
from tests.helpers import oracle
from tests.helpers.clipped import (
    EXACT,
    LOSSES,
    C,
    build,
    keep_trained,
    random_units,
    run_engine,
    to_sequences,
    total_norm,
)
from tests.helpers.oracle import Clipped, Unit
from twinset.privacy.clipping import ClippingEngine, Sequences


def test_control_leaving_out_the_tied_cross_term_is_seen(monkeypatch):
    """Measured: an error of 1.4e-2 where 1e-9 passes, and a record that contributes 1.04 C."""
    model, units = build("gpt2-tied"), random_units(3, 5, 2)
    mine, theirs = LOSSES["published"]
    expected = oracle.clipped(model, units, theirs, C)
    aligned: Unit = [([11, 11, 11], [11])]  # both uses of the table meet in one row
    only_table = keep_trained(build("gpt2-tied"), "wte")

    def released() -> float:
        clipped = run_engine(only_table, [aligned], LOSSES["plain"][0], max_grad_norm=0.1)
        assert clipped.norms[0] > 0.1
        return total_norm(clipped.sums) / 0.1

    assert released() == pytest.approx(1.0, rel=EXACT)
    monkeypatch.setattr(ClippingEngine, "_norms", norms_of_uses_apart)
    assert oracle.largest_error(run_engine(model, units, mine), expected) > 1e-2
    assert released() > 1.03


def test_control_clipping_sequences_apart_is_seen():
    """Measured: an error of 0.8 where 1e-9 passes, and a record that contributes 1.98 C."""
    model = build("gpt2-tied")
    names = list(oracle.trained(model))

    def apart(units: list[Unit], signs: tuple[float, ...]) -> Clipped:
        parts = [
            oracle.unit_gradient(model, [sequence], lambda means, _, s=sign: s * means[0])
            for unit in units
            for sequence, sign in zip(unit, signs, strict=True)
        ]
        return oracle.clip_and_sum(parts, names, C)

    units = random_units(3, 5, 2)
    expected = oracle.clipped(model, units, oracle.published(1.0), C)
    wrong = apart(units, (1.0, -1.0))
    wrong.norms = expected.norms
    assert oracle.largest_error(wrong, expected) > 0.5

    owner: Unit = [([1, 2], [3, 4, 5]), ([1, 6], [3, 4, 5])]  # two records of one owner
    assert total_norm(apart([owner], (1.0, 1.0)).sums) > 1.9 * C
    right = run_engine(model, [owner], lambda means, counts: means.sum(1))
    assert oracle.largest_error(right, oracle.clipped(model, [owner], oracle.sum_of_all, C)) < EXACT
    assert total_norm(right.sums) == pytest.approx(C, rel=EXACT)


def test_control_counting_padding_is_seen():
    """Measured: an error of 0.98 where 1e-9 passes, and a gradient that physical batches change."""
    model, units = build("gpt2-tied"), random_units(3, 5, 2)
    mine, theirs = LOSSES["published"]
    expected = oracle.clipped(model, units, theirs, C)

    def counting_padding(chosen: list[Unit], padding_seed: int) -> Clipped:
        right = to_sequences(chosen, padding_seed)
        first = right.loss_mask.long().argmax(1, keepdim=True)
        mask = torch.arange(right.input_ids.shape[1]) >= first
        names = list(oracle.trained(model))
        clipper = ClippingEngine(model, C)
        report = clipper.add(Sequences(right.input_ids, mask, 2), mine)
        clipper.close()
        return Clipped(report.norms.tolist(), dict(zip(names, clipper.sums, strict=True)))

    assert oracle.largest_error(counting_padding(units, 0), expected) > 0.5
    assert oracle.largest_error(counting_padding(units, 2), counting_padding(units, 0)) > 0.05
