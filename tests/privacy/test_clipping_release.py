"""What leaves the engine: at most C a unit, whatever the unit and the number format."""

import math

import pytest
import torch

from tests.helpers import oracle
from tests.helpers.clipped import (
    EXACT,
    FAMILIES,
    LOSSES,
    PADDING_BELOW,
    VOCABULARY,
    C,
    build,
    difference,
    random_units,
    run_engine,
    to_sequences,
    total_norm,
    with_adapters,
)
from twinset.privacy.clipping import ClippingEngine, Execution


@pytest.mark.parametrize("hostile", [False, True])
@pytest.mark.parametrize("loss", ["published", "bounded"])
@pytest.mark.parametrize("family", FAMILIES)
def test_one_record_moves_the_sums_by_exactly_c_when_clipped(family, loss, hostile):
    """Also a hostile one, whose text the model holds to be impossible, with a loss above 100."""
    model = build(family)
    units = random_units(10, 5, 3)
    if hostile:
        with torch.no_grad():
            model.get_output_embeddings().weight.mul_(300)
        units[2] = [(p, [0, VOCABULARY - 1] * 12) for p, _ in units[2]]
        assert oracle.mean_nll(model, *units[2][0]) > 100
    everyone = run_engine(model, units, LOSSES[loss][0], 3)
    without = run_engine(model, units[:2] + units[3:], LOSSES[loss][0], 3)
    assert everyone.norms[2] > (100 * C if hostile else C)
    assert difference(everyone, without) == pytest.approx(C, rel=EXACT)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 0.01), (torch.bfloat16, 0.08)])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_autocast_stays_close_and_releases_at_most_c(family, checkpointing, dtype, tolerance):
    """Stated tolerance of autocast: norms within 1 % in float16 and 8 % in bfloat16 of float64's.

    What is released of a unit is C to 1e-5 all the same: norm and sum see the same numbers.
    """
    units, (mine, theirs) = random_units(8, 6, 2), LOSSES["bounded"]
    expected = oracle.clipped(build(family), units, theirs, C)
    execution = Execution(gradient_checkpointing=checkpointing, autocast=dtype)
    for unit, norm in zip(units, expected.norms, strict=True):
        model = build(family, torch.float32)
        released = run_engine(model, [unit], mine, max_grad_norm=0.01, execution=execution)
        assert released.norms[0] == pytest.approx(norm, rel=tolerance)
        assert total_norm(released.sums) == pytest.approx(0.01, rel=1e-5)


@pytest.mark.parametrize("family", ["gpt2-tied", "llama-tied"])
def test_bfloat16_base_with_lora_releases_at_most_c(family):
    """What is released of one unit, from what bfloat16 layers computed, is C to 1e-5."""
    model = with_adapters(build(family).to(torch.bfloat16))
    for unit in random_units(11, 4, 2):
        released = run_engine(model, [unit], LOSSES["bounded"][0], max_grad_norm=0.01)
        assert released.norms[0] > 0.01
        assert total_norm(released.sums) == pytest.approx(0.01, rel=1e-5)


@pytest.mark.parametrize("family", ["gpt2-untied", "llama-untied"])
def test_a_unit_that_is_not_finite_counts_as_zero_and_spoils_no_other(family):
    model, poison = build(family), PADDING_BELOW
    with torch.no_grad():
        model.get_input_embeddings().weight[poison] = math.nan

    def harmless(ids: list[int]) -> list[int]:
        return [1 if i == poison else i for i in ids]

    units = [[(harmless(p), harmless(t)) for p, t in unit] for unit in random_units(12, 4, 2)]
    units[1][1] = ([poison], units[1][1][1])  # in a mismatched prompt only
    mine, theirs = LOSSES["published"]
    clean = oracle.clipped(model, units[:1] + units[2:], theirs, C)
    embedding = next(n for n in clean.sums if "wte" in n or "embed_tokens" in n)
    for physical in (1, 2, 4):
        actual = run_engine(model, units, mine, physical)
        assert not math.isfinite(actual.norms.pop(1))
        assert all(bool(s.isfinite().all()) for s in actual.sums.values())
        assert not actual.sums[embedding][poison].any()
        assert oracle.largest_error(actual, clean) < EXACT


def test_the_report_states_losses_and_scales():
    model, units = build("gpt2-tied"), random_units(13, 4, 2)
    mine, theirs = LOSSES["bounded"]
    with torch.no_grad():
        losses = [
            float(theirs([oracle.mean_nll(model, *s) for s in unit], len(unit[0][1])))
            for unit in units
        ]
    clipper = ClippingEngine(model, C)
    report = clipper.add(to_sequences(units), mine)
    assert report.losses.tolist() == pytest.approx(losses, rel=1e-12)
    assert report.scales.tolist() == pytest.approx([min(1, C / n) for n in report.norms.tolist()])


def test_zero_and_close():
    model, units = build("gpt2-tied"), random_units(14, 2, 1)
    clipper = ClippingEngine(model, C)
    assert not any(p.requires_grad for p in model.parameters())
    clipper.add(to_sequences(units), LOSSES["plain"][0])
    once = [total.clone() for total in clipper.sums]
    clipper.zero()
    clipper.add(to_sequences(units), LOSSES["plain"][0])
    assert all(map(torch.equal, once, clipper.sums))
    clipper.zero()
    assert not any(bool(total.any()) for total in clipper.sums)
    clipper.zero()  # what the sums hold now is overwritten, also by units that all count as zero
    with torch.no_grad():
        model.get_input_embeddings().weight.fill_(math.nan)
    assert not clipper.add(to_sequences(units), LOSSES["plain"][0]).scales.any()
    assert not any(bool(total.any()) for total in clipper.sums)
    clipper.close()
    assert all(p.requires_grad for p in model.parameters())
    assert not any(m._forward_hooks for m in model.modules())
