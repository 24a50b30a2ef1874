import math

import pytest
import torch

from tests.helpers import oracle
from twinset.training.clipped_sum import MismatchLoss

MEANS = torch.tensor([[2.0, 2.5, 1.5], [3.0, 1.0, 1.0]], dtype=torch.float64)
COUNTS = torch.tensor([[4, 4, 4], [10, 10, 10]])


@pytest.mark.parametrize("form", ["published", "bounded"])
@pytest.mark.parametrize(("weight", "prompts"), [(0.0, 3), (0.7, 1)])
def test_without_weight_or_wrong_prompts_it_is_the_plain_likelihood(form, weight, prompts):
    found = MismatchLoss(weight, form)(MEANS[:, :prompts], COUNTS[:, :prompts])
    assert torch.equal(found, MEANS[:, 0])


@pytest.mark.parametrize(
    ("form", "written_again"), [("published", oracle.published), ("bounded", oracle.bounded)]
)
def test_both_forms_match_the_oracle(form, written_again):
    ours = MismatchLoss(0.3, form)(MEANS, COUNTS)
    theirs = [written_again(0.3)(list(m), int(c[0])) for m, c in zip(MEANS, COUNTS, strict=True)]
    assert ours.tolist() == pytest.approx([float(t) for t in theirs], rel=1e-12)


def _slopes(form: str, right: float, wrong: float, tokens: int, weight: float = 0.5) -> list[float]:
    means = torch.tensor([[right, wrong]], dtype=torch.float64, requires_grad=True)
    MismatchLoss(weight, form)(means, torch.tensor([[tokens, tokens]])).sum().backward()
    return means.grad[0].tolist()


def test_the_published_form_pushes_for_ever_and_the_bounded_one_stops():
    for wrong in (2.0, 5.0, 50.0):
        assert _slopes("published", 2.0, wrong, 20)[1] == -0.5
    assert _slopes("bounded", 2.0, 50.0, 20)[1] == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("gap", [-1e4, -3.0, 0.0, 3.0, 1e4])
def test_the_bounded_form_never_pushes_harder_than_the_published_one(gap):
    right, wrong = _slopes("bounded", 1e4, 1e4 + gap, 7)
    assert -0.5 <= wrong <= 0.0
    assert 1.0 <= right <= 1.5
    value = MismatchLoss(0.5, "bounded")(
        torch.tensor([[1e4, 1e4 + gap]], dtype=torch.float64), torch.tensor([[7, 7]])
    )
    assert 0 < value.item() < math.inf


@pytest.mark.parametrize("tokens", [1, 50])
def test_at_no_gap_the_bounded_slope_is_half_the_published_one(tokens):
    bounded, published = (_slopes(f, 2.0, 2.0, tokens)[1] for f in ("bounded", "published"))
    assert bounded == pytest.approx(published / 2, rel=1e-12)


@pytest.mark.parametrize("form", ["published", "bounded"])
def test_a_unit_does_not_see_the_others(form):
    loss = MismatchLoss(0.7, form)
    together = loss(MEANS, COUNTS)
    assert together.tolist() == [loss(MEANS[i : i + 1], COUNTS[i : i + 1]).item() for i in (0, 1)]
    jacobian = torch.autograd.functional.jacobian(lambda means: loss(means, COUNTS), MEANS)
    assert not jacobian[0, 1].any() and not jacobian[1, 0].any()


def test_control_the_authors_batch_mean_does():
    def batch_mean(means: torch.Tensor) -> torch.Tensor:
        return means[:, 0] - 0.7 * means[:, 1:].mean()

    jacobian = torch.autograd.functional.jacobian(batch_mean, MEANS)
    assert jacobian[0, 1].abs().max() > 0.1
