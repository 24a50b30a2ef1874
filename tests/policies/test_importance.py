"""The importance policy: its equations, its geometry, and that it is uniform where it must be."""

import pytest
import torch

from twinset.config import PolicyConfig
from twinset.policies import MechanismParams
from twinset.policies.importance import (
    Importance,
    PublishedImportance,
    factored,
    noise_factor,
    normalised,
)
from twinset.policies.uniform import Uniform
from twinset.privacy.mechanism.randomness import Randomness

SHAPES = [(4, 6), (6,), (5, 3)]


def tensors(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def params(seed=1, sigma=0.8, **options):
    named = {f"importance_{name}": value for name, value in options.items()}
    return MechanismParams(sigma, 2.0, 0.1, Randomness.for_tests(seed), PolicyConfig(**named))


def policy(seed=1, sigma=0.8, kind=Importance, steps=0, **options):
    """A policy that has seen the gradients of some steps."""
    made = kind(params(seed, sigma, **options))
    for step in range(steps):
        made.update_statistics(tensors(100), tensors(step))
    return made


def test_averages_follow_equations_3_and_4():
    updated = policy(beta1=0.5, beta2=0.25)
    theta, first, second = (torch.tensor([x]) for x in (2.0, -3.0, 1.0))
    updated.update_statistics([theta], [first])  # |g θ| = 6
    assert (updated._sensitivity[0].item(), updated._deviation[0].item()) == (3.0, 0.75 * 3.0)
    updated.update_statistics([theta], [second])  # |g θ| = 2, S̄ = 2.5
    assert updated._sensitivity[0].item() == 2.5
    assert updated._deviation[0].item() == pytest.approx(0.25 * 2.25 + 0.75 * 0.5)


def test_normalisation_follows_equations_6_and_7():
    importance = torch.tensor([1.0, 2.0, 3.0, 4.0, 10.0])
    found = normalised(importance, PolicyConfig(importance_alpha=0.4))
    scaled = (importance - 3) / 2  # median 3, quartiles 2 and 4
    smooth = 0.6 * scaled + 0.4 * scaled.mean()
    torch.testing.assert_close(found, smooth - (smooth.mean() - 1))
    assert float(found.mean()) == pytest.approx(1.0)


def test_more_important_means_less_noise_within_the_bound():
    importance = torch.tensor([0.0, 1.0, 2.0, 3.0, 100.0])
    factors = noise_factor(importance, PolicyConfig(importance_bound=3.0))
    assert bool((factors.diff() <= 0).all())
    assert float(factors.max()) == 3.0 and float(factors.min()) == pytest.approx(1 / 3)


def test_equal_importance_leaves_the_plain_geometry():
    shapes = [(4, 6), (6,)]
    for scale, shape in zip(
        factored([torch.zeros(s) for s in shapes], PolicyConfig()), shapes, strict=True
    ):
        assert torch.equal(scale.times_(torch.ones(shape)), torch.ones(shape))


def test_scales_come_from_what_was_released_and_fit():
    assert policy().scales() == []  # nothing was released yet
    scales = policy(steps=3).scales()
    assert all(scale.fits(torch.Size(shape)) for scale, shape in zip(scales, SHAPES, strict=True))
    assert len({round(float(scale.columns[0]), 6) for scale in scales}) > 1


def test_noise_is_that_of_the_geometry():
    """The release divided by s is the sum plus N(0, σ²C²): two thirds of it would be noticed."""
    updated = policy(sigma=1.5)
    updated.update_statistics([torch.randn(300, 200)], [torch.randn(300, 200)])
    (scale,) = updated.scales()
    (noisy,), event = updated.release([torch.zeros(300, 200)], [])
    z = noisy / scale.times_(torch.ones(300, 200))
    assert float(z.std()) == pytest.approx(3.0, rel=0.02)
    assert float(noisy.std()) != pytest.approx(3.0, rel=0.02)
    assert event.noise_multiplier == 1.5 and event.sample_rate == 0.1


def test_with_a_bound_of_one_it_is_uniform_bit_for_bit():
    same, uniform = policy(bound=1.0), Uniform(params())
    for step in range(3):
        same.update_statistics(tensors(100), tensors(step))
        same.scales()
        mine, event = same.release(tensors(step), [])
        theirs, other = uniform.release(tensors(step), [])
        assert all(map(torch.equal, mine, theirs)) and event == other


def test_a_restored_policy_continues_as_if_nothing_had_happened():
    first, second, forgetful = policy(steps=3), policy(), policy()
    first.release(tensors(9), [])
    second.restore(first.state())
    for updated in (first, second, forgetful):
        updated.update_statistics(tensors(100), tensors(7))
    for one, other in zip(first.scales(), second.scales(), strict=True):
        assert torch.equal(one.columns, other.columns)
    assert first.mean_noise == second.mean_noise
    assert not torch.equal(forgetful.scales()[0].columns, first.scales()[0].columns)


def test_a_saved_state_does_not_follow_the_policy():
    updated = policy(steps=1)
    saved = updated.state()["sensitivity"][0]
    before = saved.clone()
    updated.update_statistics(tensors(100), tensors(1))
    assert torch.equal(saved, before)


def test_it_reports_where_noise_went():
    updated = policy()
    updated.release(tensors(0), [])
    assert updated.mean_noise == [1.0, 1.0, 1.0]
    for step in range(3):
        updated.update_statistics(tensors(100), tensors(step))
    scales = updated.scales()
    updated.release(tensors(1), [])
    means = [
        float(s.times_(torch.ones(shape)).mean()) for s, shape in zip(scales, SHAPES, strict=True)
    ]
    assert updated.mean_noise == pytest.approx([(1 + mean) / 2 for mean in means])


# -- the published form ----------------------------------------------------------------------------


def test_published_noise_is_two_minus_equation_7_over_all_parameters_together():
    updated = policy(kind=PublishedImportance, beta1=0.0, beta2=0.0, alpha=0.0, bound=100.0)
    weights = [torch.ones(2), torch.ones(3)]
    updated.update_statistics(weights, [torch.zeros(2), torch.zeros(3)])
    # S̄ = 1 2 | 3 4 10 and Ū = |S - S̄| = 0 with β = 0, so the averages are set by hand
    updated._sensitivity = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0, 10.0])]
    updated._deviation = [torch.ones(2), torch.ones(3)]
    # median 3, quartiles 2 and 4: scaled -1 -½ 0 ½ 3½, mean ½; centred at one: -½ 0 ½ 1 4
    first, second = updated.noise_scales()
    assert first.tolist() == [2.5, 2.0]
    assert second.tolist() == pytest.approx([1.5, 1.0, 0.01])  # 2 - 4 is no scale
    assert updated.scales() == []  # clipped as ever


def test_published_noise_has_that_spread_and_spends_what_the_least_noisy_direction_spends():
    updated = policy(kind=PublishedImportance, sigma=1.5)
    updated._sensitivity, updated._deviation = [torch.rand(100, 2000)], [torch.rand(100, 2000)]
    (scales,) = updated.noise_scales()
    (noisy,), event = updated.release([torch.zeros(100, 2000)], [])
    assert float((noisy / scales).std()) == pytest.approx(3.0, rel=0.01)
    assert event.noise_multiplier == 0.75  # σ / b
    (nominal,) = updated.nominal
    assert nominal.noise_multiplier == 1.5
    assert float(scales.min()) >= 0.5
